# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of the docs that are made from code and saved results: `python tools/reference.py` checks them, `--write` writes them.

A page has each part between `<!-- generated: NAME -->` and `<!-- /generated -->`. What people write stands around it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
for folder in (".collections", "files/gpushare_runtime", "tests", "tools/lab"):
    sys.path.insert(0, str(ROOT / folder))

from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.virtual_environment import OLDEST  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import advisories, driver_branches  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import MINIMUM_DRIVER  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.container_runtimes import KINDS  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import host, kubernetes_ends, looked_up, reasons  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import (  # noqa: E402
    CHECKS,
    FOLLOWS_FROM,
    LINK_OF,
    PREFLIGHT,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.links import LINKS  # noqa: E402

import chart_values  # noqa: E402
import figures  # noqa: E402
import modes  # noqa: E402
import proof  # noqa: E402
import readme  # noqa: E402
import rights  # noqa: E402
from gpushare_runtime.device_plugin.gpu import health  # noqa: E402
from gpushare_runtime.settings.dashboard import DashboardConfig  # noqa: E402
from gpushare_runtime.settings.device_plugin import DevicePluginConfig  # noqa: E402
from gpushare_runtime.settings.extender import ExtenderConfig  # noqa: E402
from gpushare_runtime.settings.schema import settings_of  # noqa: E402
from markdown_parts import code, item, table  # noqa: E402
from suites.table import SUITES, Suite  # noqa: E402
from unit.fakes.plugins.driver.machines import MACHINES  # noqa: E402

BLOCK: Final = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)
FAMILIES: Final = {"debian": "Debian", "ubuntu": "Ubuntu", "rhel": "Enterprise Linux", "suse": "SUSE"}
#: Programs of the runtime, in the order of the page.
PROGRAMS: Final = (
    ("kubectl gpushare", "kubectl_program.main"),
    ("kubectl inspect gpushare", "kubectl_gpushare.inspect_main"),
    ("gpushare-doctor", "doctor.main"),
    ("gpushare-extender", "extender.options"),
    ("gpushare-device-plugin", "device_plugin.options"),
    ("gpushare-claims", "dra.templates"),
    ("gpushare-mps", "mps.main"),
    ("gpushare-pki", "pki.main"),
    ("gpushare-probe", "probe.main"),
    ("gpushare-dashboard", "dashboard.main"),
)


# Requirements, from the data of preflight.


def requirements() -> str:
    return table(
        ["on", "required", "check of preflight"],
        [
            ["the controller", f"ansible-core {modes.oldest_ansible()} or newer", "`controller`"],
            ["every host", f"{' or '.join(host.MACHINES)}, systemd", "`os`"],
            ["every host", f"Python {OLDEST[0]}.{OLDEST[1]} or newer with venv", "`python`"],
            ["every host", f"{host.MINIMUM_FREE_MIB} MiB of free disk in `gpushare_install_dir`", "`disk`"],
            [
                "the cluster",
                f"Kubernetes {reasons.OLDEST_IN_WORDS}, by {modes.by_site()}; others [as pods](modes.md)",
                "`kubernetes`, `distribution`",
            ],
            [
                "the cluster",
                f"Kubernetes {modes.dotted(reasons.OLDEST_WITH_POLICIES)} or newer for admission policies, or `gpushare_without_policies`",
                "`policies`",
            ],
            ["GPU nodes", f"{' or '.join(KINDS)}, as kubelet's endpoint names it", "`runtime`"],
            ["GPU nodes", f"NVIDIA's driver {MINIMUM_DRIVER} or newer, or `gpushare_driver_state: managed`", "`gpus`, `driver`"],
            [
                "GPU nodes",
                f"NVIDIA's container toolkit {modes.default_of('gpushare_toolkit_minimum')} or newer, or `gpushare_toolkit_state: managed`",
                "`toolkit`",
            ],
            ["GPU nodes", "GPUs that report their memory; in MIG mode, [instances](../operate/mig.md)", "`gpus`"],
            ["GPU nodes", "no other device plugin or operator that allocates the GPUs", "`managers`"],
        ],
    )


def distributions() -> str:
    rows = []
    for family, versions in host.SYSTEMS.items():
        for version in versions:
            state = "**tested**" if version in host.TRIED.get(family, ()) else "**from docs**"
            rows.append([f"{FAMILIES[family]} {version}", state])
    rows.append(["a relative of these", "**from docs**"])
    rows.append(["older or other ones", "**rejected**"])
    return table(["distribution", "whole installation"], rows)


def driver_plans() -> str:
    """What the role nvidia_driver plans for real machines."""
    rows = []
    for machine in MACHINES:
        plan, family = machine.plan(), machine.distribution.partition("_")[0]
        on = f"{FAMILIES.get(family, family)} {machine.distribution.partition('_')[2]}, {machine.facts.machine}"
        driver = f"{machine.wish.version}, {machine.wish.source}"
        if plan.rejected:
            rows.append(
                [machine.name, on, driver, "**rejected**: " + "; ".join(f"{one.check}: {one.found}" for one in plan.rejected), "", ""]
            )
            continue
        packages = dict(plan.packages)
        fabric = [name for name in packages if re.match(r"nvidia-fabric|nvidia-imex|libnvidia-nscq|libnvsdm|nvlsm|infiniband", name)]
        modules = [name for name in packages if re.search(r"dkms|kmod-nvidia|kmp|linux-modules-nvidia|driver-G0[67]", name)]
        later = [name for name, _ in plan.headers[1:]] + [name for name in modules[1:] if not re.search("[0-9]+[.][0-9]+[.][0-9]+", name)]
        rows.append([machine.name, on, driver, f"{plan.module}: `{modules[0]}`", code(later), code(fabric)])
    return table(["machine", "system", "driver, source", "kernel module", "headers, later", "fabric"], rows)


def toolkit_advisories() -> str:
    rows = [[", ".join(one.cves), one.fixed_in, one.bulletin, one.published] for one in advisories.TOOLKIT]
    return table(["vulnerability", "fixed in", "bulletin", "of"], rows) + _read_up_to(looked_up.BULLETINS)


def driver_advisories() -> str:
    rows = []
    for one in advisories.DRIVER:
        worst = f"{one.worst} ({one.score:g})" + (f" and {one.more} more" if one.more else "")
        rows.append([worst, ", ".join(one.fixed_in), one.bulletin, one.published])
    return table(["vulnerability (CVSS score)", "fixed in", "bulletin", "of"], rows) + _read_up_to(looked_up.BULLETINS)


def branches_of_drivers() -> str:
    """Without a newest bulletin that names a branch, it has no fixed version: it is newer than that, or gets no more."""
    fixed = {int(version.partition(".")[0]): version for version in advisories.DRIVER[0].fixed_in}
    rows = [[one.number, one.kind, _end_of(one), fixed.get(one.number) or _unfixed(one), one.remark] for one in driver_branches.BRANCHES]
    header = ["branch", "kind", "fixes until", f"fixed against bulletin {advisories.DRIVER[0].bulletin}", ""]
    return table(header, rows) + _read_up_to(looked_up.BRANCHES)


def _end_of(branch: driver_branches.Branch) -> str:
    past = branch.has_ended(looked_up.BRANCHES.read_up_to) and branch.end != driver_branches.PAST
    return f"ended {branch.end}" if past else branch.end or "none stated"


def _unfixed(branch: driver_branches.Branch) -> str:
    return "no" if branch.has_ended(looked_up.BRANCHES.read_up_to) else "newer than the bulletin, which does not name it"


#: More names than a cell can have and be read.
_MANY: Final = 4
_UNBROKEN: Final = {"break_on_hyphens": False, "break_long_words": False}


def ends_of_kubernetes() -> str:
    """A short row for each end; where it has many names, they are in a list of their own."""
    return table(["from", "ends", "who still uses it"], _ends()[0]) + _read_up_to(looked_up.KUBERNETES)


def gates_of_kubernetes() -> str:
    return "\n\n".join(textwrap.fill(one, 120, **_UNBROKEN) for one in _ends()[1])


def _ends() -> tuple[list[list[str]], list[str]]:
    rows, lists = [], []
    for release, ends, effect in kubernetes_ends.rows():
        names = re.findall(r"`[^`]+`", ends)
        if len(names) > _MANY:
            kind = ends.partition(" `")[0]
            lists.append(f"**{release}, {len(names)} {kind}**: {', '.join(names)}.")
            ends = f"{len(names)} {kind}, listed [below](#feature-gates-and-flags-that-end)"
        rows.append([release, ends, effect])
    return rows, lists


def facts_of_others() -> str:
    """The tables of facts of others, and the presets, each with its day."""
    rows = [
        [one.subject, one.read_up_to, f"`{one.file}`", f"<{one.source}>" if one.source else "in the file"]
        for one in looked_up.every(presets.read_days())
    ]
    return table(["facts of others", "read up to", "file", "source"], rows)


def _read_up_to(of: looked_up.FactTable) -> str:
    return f"\n\nRead up to {of.read_up_to}."


# Programs.


class Captured(Exception):
    """The parser of a program, instead of its answer."""


def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser that a program makes, as it is when it is asked to parse."""
    loaded = importlib.import_module(f"gpushare_runtime.{module}")
    if hasattr(loaded, "_parser"):
        found: argparse.ArgumentParser = loaded._parser()
        return found

    def capture(self: argparse.ArgumentParser, *_: object) -> None:
        raise Captured(self)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", capture):
        try:
            (loaded.main if hasattr(loaded, "main") else loaded.parse_arguments)([])
        except Captured as found_it:
            parser: argparse.ArgumentParser = found_it.args[0]
            return parser
    raise RuntimeError(f"{module} has no parser")


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Command to its parser; empty for a program without commands."""
    return next((dict(action.choices) for action in parser._actions if isinstance(action, argparse._SubParsersAction)), {})


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """(option or argument, what it is) of each."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        value = str(action.metavar or action.dest.upper().replace("_", "-"))
        if action.option_strings and (action.nargs == 0 or action.choices):
            value = ""
        shown = f"`{', '.join(action.option_strings)}{f' {value}' if value else ''}`" if action.option_strings else f"`{value}`"
        text = str(action.help or "")
        text = (text % {**vars(action), "prog": parser.prog}) if "%(" in text else text.replace("%%", "%")
        choices = f"one of {code(choice for choice in map(str, action.choices) if choice)}" if action.choices else ""
        yield [shown, " ".join(sentence(part) for part in [*text.split("; "), choices] if part)]


def sentence(words: str) -> str:
    """Words as a sentence of their own."""
    begin = words[:1].upper() if words.split()[0].rstrip(",:").isalpha() else words[:1]
    return f"{begin}{words[1:].rstrip('.')}."


def _stable() -> mock._patch_dict:
    """Defaults by environment are those of an empty one."""
    return mock.patch.dict("os.environ", {}, clear=True)


def programs() -> str:
    parts = []
    with _stable(), mock.patch("socket.gethostname", return_value="HOST"):
        for title, module in PROGRAMS:
            parser = parser_of(module)
            description = (parser.description or "").rstrip(".")
            parts.append(f"## {title}\n\n{description}.")
            own = [row for row in arguments_of(parser) if row[0] != "`--version`"]
            if own:
                parts.append(table(["option", "meaning"], own))
            alike: dict[str, list[tuple[str, str]]] = {}
            for command, sub in subcommands(parser).items():
                options = table(["option", "meaning"], arguments_of(sub))
                alike.setdefault(options, []).append((command, (sub.description or "").rstrip(".")))
            for options, commands in alike.items():
                parts.append(f"### {title} {', '.join(command for command, _ in commands)}")
                parts.append(table(["command", "effect"], [[f"`{command}`", text] for command, text in commands]))
                parts.append(options)
    return "\n\n".join(parts)


# Settings of daemons.


def settings_table(owner: type[Any]) -> str:
    """A row for each field of a daemon's file."""
    rows = []
    for one in settings_of(owner):
        names = [f"`{one.variable}`" if one.variable else "", f"`{one.chart}` of the chart" if one.chart else ""]
        words = " ".join(sentence(part) for part in [*one.doc.split("; "), one.agrees] if part)
        values = f"`{json.dumps(one.default)}`" if one.default not in (None, "", []) else ""
        expected = re.sub(r"https?://[^ ,]+", r"`\g<0>`", one.kind.expected)
        rows.append([f"`{one.key}`", values, expected, ", ".join(filter(None, names)), words])
    return table(["field", "default", "value", "set by", "effect"], rows)


# Codes.


def codes_of_verify() -> str:
    """Of verify and gpushare-doctor."""
    checks = {name: one for name, one in sorted(CHECKS.items()) if PREFLIGHT not in one[1]}
    rows = [
        [f"`{name}`", LINK_OF[name], ", ".join(one[0]), " and ".join(one[1]), "yes" * (name in FOLLOWS_FROM)]
        for name, one in checks.items()
    ]
    return table(["code", "link", "severity", "found by", "may follow from another"], rows)


def links() -> str:
    """From a pod to its GPU, with the codes of verify and gpushare-doctor."""
    return table(
        ["link", "it holds if", "verify reads", "and", "findings"],
        [[link.name, link.holds, *link.evidence, code(link.codes)] for link in LINKS],
    )


def codes_of_preflight() -> str:
    rows = [[f"`{name}`", ", ".join(severities)] for name, (severities, by) in sorted(CHECKS.items()) if PREFLIGHT in by]
    return table(["check", "severity"], rows)


# Clusters of others.


def _heads() -> dict[str, dict[str, str]]:
    """The comments at the head of each file of charts/gpushare/presets."""
    found = {name: (presets.FOLDER / f"{name}.yaml").read_text() for name in presets.names()}
    return {name: dict(re.findall(r"^# (title|driver|brings|switch|source|read|state): (.+)$", text, re.M)) for name, text in found.items()}


def presets_of_clusters() -> str:
    """A row for each preset: its values, and what the cluster must have."""

    def word(value: Any) -> str:
        return value if value and isinstance(value, str) else json.dumps(value)

    rows, needs = [], []
    for name, head in _heads().items():
        values = yaml.safe_load((presets.FOLDER / f"{name}.yaml").read_text())
        shown = code(f"{key}: {word(value)}" for key, value in values.items())
        rows.append([f"`{name}`", head["title"], head.get("state", "from docs"), shown])
        needs.append([f"`{name}`", head["driver"], head["brings"], head["switch"]])
    needed = table(["preset", "driver", "driver and toolkit by", "its own device plugin, switched off by"], needs)
    return "\n\n".join([table(["preset", "cluster", "state", "values"], rows), "Before gpushare is installed:", needed])


def sources_of_presets() -> str:
    return "\n".join(item(f"`{name}`: {head['source']} ({head['read']})") for name, head in _heads().items())


def values_of_the_chart() -> str:
    """A row for each value: its default, and its meaning for people with Helm."""
    rows = [[f"`{name}`", f"`{json.dumps(one.default)}`", one.meaning] for name, one in chart_values.values().items()]
    return table(["value", "default", "meaning"], rows)


def variables_of_the_chart() -> str:
    """The values whose variable is not their own name in another spelling."""
    others = {name: one.variable for name, one in chart_values.values().items() if one.variable != presets.variable(name)}
    return table(["value", "variable"], [[f"`{name}`", f"`{variable}`" if variable else "none"] for name, variable in others.items()])


# XIDs.


def xids() -> str:
    """NVIDIA's numbers, as the device plugin knows them."""
    ours = {True: "The GPU stays usable. We log and count it.", False: "New pods go to other GPUs until it has passed its checks."}
    replaced = " With Karpenter: [delete the NodeClaim](#a-sick-gpu)."
    rows = [
        [
            number,
            f"{one.meaning[0].upper()}{one.meaning[1:]}.",
            ours[number in health.SPARED_XIDS],
            f"{one.cure[0].upper()}{one.cure[1:]}.{replaced if one.action == health.RESTART_HOST else ''}",
        ]
        for number, one in sorted(health.XIDS.items())
    ]
    others = sorted(health.SPARED_XIDS - health.XIDS.keys())
    first = [number for number in others if number - 1 not in others]
    last = [number for number in others if number + 1 not in others]
    spans = [str(low) if low == high else f"{low}–{high}" for low, high in zip(first, last, strict=True)]
    rows.append([", ".join(spans), "The catalogue: restart the program, or nothing.", ours[True], "Read the log of the pod."])
    rows.append(["any other", "", ours[False], "Read `dmesg` and the catalogue."])
    return table(["XID", "what it means", "what we do", "what you do"], rows)


# Results.


def benchmarks() -> str:
    """One row for each saved result; the figures are the files' own."""
    churn, plugin, page, kubectl = (proof.saved(name) for name in ("churn", "device-plugin", "dashboard", "kubectl"))
    rest = proof.saved("device-plugin-rest")
    earlier = rest["CPU ms each second"].get("before")
    rested = f" (before it read how busy pods are: {earlier:.1f})" if earlier else ""
    wrong, over, lab = churn["original"]["wrong_gpus"], churn["original"]["over_booked_gpus"], churn["most_units_at_one_time"]
    binds = [proof.saved(f"binds-{seed}") for seed in (1, 2)]
    killed = proof.saved("leader-killed")
    slowest = max(one["cpu_seconds"] for one in kubectl["results"])
    smaller, larger = proof.saved("scheduling-500"), proof.saved("scheduling-5000-sampled")
    claimed, churned = proof.saved("claims-500"), proof.saved("claims-churn")
    by_claims, by_us = (proof.mean(claimed, kind, "rate") for kind in ("claims", "ours"))

    def rates(one: Mapping[str, Any]) -> str:
        with_it, without = (proof.rate(one, extender=side) for side in (True, False))
        missed = "" if one["ratio"] >= one["target_ratio"] else ", missed"
        return f"{with_it:.0f} with the extender, {without:.0f} without: {one['ratio']:.2f} of it (target {one['target_ratio']}{missed})"

    def cpu(one: Mapping[str, Any]) -> str:
        without, with_it = proof.cpu(one)
        return f"{with_it:.1f} ms with the extender, {without:.1f} ms without"

    def together(one: proof.Report, kind: str) -> str:
        return "{:.0f} %, with MPS {:.0f} %".format(*(100 * rate for rate in one.together(kind)))

    placed = _placed()

    def in_use(trace: str) -> str:
        new, old = (placed["filled", trace, policy, 100] for policy in ("binpack", "before"))
        return f"{new:.1f} % of all GPUs (before it knew scarce GPUs: {old:.1f} %)"

    rows = [
        ["GPUs in use by `binpack` when pods have asked for all of them, openb `default`", in_use("default"), "placement.json"],
        ["the same, `gpuspec25`, where a quarter of the pods with GPUs names models", in_use("gpuspec25"), "placement.json"],
        *([f"the same, `{trace}`", in_use(trace), "placement.json"] for trace in ("multigpu20", "cpu250", "gpushare100")),
        [
            "fragmentation gradient descent (FGD) in its authors' model, which is not the model of the rows above",
            ", ".join(f"`{trace}` {placed['anchor', trace, 'FGD', 100]:.1f} %" for trace in ("default", "gpushare100")),
            "placement.json",
        ],
        ["pods bound per second, 500 nodes", rates(smaller), "scheduling-500.json"],
        ["the same, 5000 nodes, sampled", rates(larger), "scheduling-5000-sampled.json"],
        [
            f"the same with the back end dra, {claimed['nodes']} nodes with 8 GPUs",
            f"{by_claims:.0f}, {by_us:.0f} with the extender: {claimed['claims_ratio']:.2f} of it",
            "claims-500.json",
        ],
        ["CPU of all components for each of these pods, 500 nodes", cpu(smaller), "scheduling-500.json"],
        ["the same, 5000 nodes, sampled", cpu(larger), "scheduling-5000-sampled.json"],
        [
            f"memory of the extender, {larger['startup']['nodes']} nodes and {larger['startup']['pods']:,} pods",
            f"{larger['startup']['resident_mib']:.0f} MiB resident",
            "scheduling-5000-sampled.json",
        ],
        *(
            [
                f"memory of the device plugin with NVIDIA's library, on an {one.gpu}",
                f"{one.found('plugin', 'resident MiB')} MiB resident",
                one.file,
            ]
            for one in proof.reports()
        ),
        *(
            [
                f"four programs at a time on an {one.gpu}: their work together, of that of one alone",
                f"each fills the GPU: {together(one, 'matrix-product')}. Small ones: {together(one, 'transformer')}",
                one.file,
            ]
            for one in proof.reports()
        ),
        [
            "answer to kubelet, 10,240 ids",
            f"99 % of Allocate within {plugin['Allocate p99 ms']} ms, of GetPreferredAllocation within "
            f"{plugin['GetPreferredAllocation p99 ms']} ms",
            "device-plugin.json",
        ],
        [
            f"device plugin at rest, {rest['gpus']} GPUs without pods",
            f"{rest['CPU ms each second']['now']:.1f} ms of CPU each second{rested}, without the driver's own work; "
            f"{rest['resident MiB']['now']:.0f} MiB resident (before: {rest['resident MiB']['before']:.0f})",
            "device-plugin-rest.json",
        ],
        [
            f"random pods on a cluster with simulated GPUs ({churn['pods']} pods)",
            f"{churn['here']['wrong_gpus']} wrong GPUs, {churn['here']['over_booked']} over-booked GPUs. The original's matching, "
            f"replayed on the same {churn['original']['admissions']} admissions: another GPU {wrong['another']} times, none "
            f"{wrong['none']} times, too few {wrong['too_few']} times; it over-books {over} of the lab's {len(lab)} GPUs. "
            f"{churn['several_containers']} of the pods have several containers, and {churn['several_gpus']} several GPUs, which the "
            "original does not support",
            "churn.json",
        ],
        [
            f"the same with the back end dra ({churned['pods']} pods), beside {sum(churned['kills'].values())} kills of programs",
            f"{churned['wrong_gpus']} wrong GPUs, {churned['over_booked']} over-booked GPUs, {churned['left_claims']} claims left",
            "claims-churn.json",
        ],
        [
            "binds in virtual time, with restarts, lost answers and changes of leader",
            f"{binds[0]['bound']:,} and {binds[1]['bound']:,} Bindings, {binds[0]['node_over'] + binds[1]['node_over']} over-booked GPUs",
            "binds-1.json",
        ],
        [
            f"leader killed under load, {len(killed)} times",
            f"first pod bound again after {min(one['first_bound_s'] for one in killed):.0f} to "
            f"{max(one['first_bound_s'] for one in killed):.0f} s, {sum(one['conflicts'] for one in killed)} conflicts",
            "leader-killed.json",
        ],
        [
            f"dashboard, {page['nodes']} nodes and {page['pods']:,} pods",
            f"usable after {page['page usable ms']} ms, {page['resident MiB']:.0f} MiB resident",
            "dashboard.json",
        ],
        [
            f"kubectl gpushare, {kubectl['nodes']} nodes and {kubectl['pods']:,} pods",
            f"{slowest:.1f} s of CPU at most, {max(one['resident_mib'] for one in kubectl['results'])} MiB resident, at a load of "
            f"{kubectl['load_average']:.0f}; the target is {kubectl['target_cpu_seconds']:.0f} s"
            f"{', missed' if slowest > kubectl['target_cpu_seconds'] else ''}",
            "kubectl.json",
        ],
    ]
    return table(["measured", "result", "file"], [[what, found, f"[{name}]({name})"] for what, found, name in rows])


def claims() -> str:
    """The back end dra beside the extender: means of the rounds of each kind. A dash where nothing has chosen a GPU."""
    found = proof.saved("claims-500")
    sides = [[one for one in found["rounds"] if one["kind"] == kind] for kind in ("no extender", "ours", "claims")]

    def row(what: str, form: str, value: Callable[[Mapping[str, Any]], float | None]) -> list[str]:
        numbers = [[number for one in side if (number := value(one)) is not None] for side in sides]
        return [what, *(form.format(statistics.mean(each)) if each else "–" for each in numbers)]

    head = [f"means of {len(sides[0])} rounds", "without extender", "with the extender", "with claims"]
    rows = [
        row("pods bound a second", "{:.0f}", lambda one: one["rate"]),
        row("CPU for each pod, all processes", "{:.1f} ms", lambda one: sum(one["cpu_ms_per_pod"].values())),
        row("of which kube-scheduler", "{:.1f} ms", lambda one: one["cpu_ms_per_pod"]["kube-scheduler"]),
        row("of which kube-apiserver", "{:.1f} ms", lambda one: one["cpu_ms_per_pod"]["kube-apiserver"]),
        row("CPU before, for the pod and its claim", "{:.1f} ms", lambda one: one["made_ms_per_pod"]),
        row("GPUs that have a pod", "{:.0f}", lambda one: one["gpus"]),
        row("load of the machine", "{:.1f}", lambda one: one["load"]),
    ]
    return table(head, rows)


def claims_by_trace() -> str:
    """GPUs in use when pods have asked for all: kube-scheduler with claims, beside the extender."""
    placed = _placed()
    rows = [
        [f"`{trace}`", *(f"{placed['filled', trace, each, 100]:.1f} %" for each in (policy, "binpack"))]
        for part, trace, policy, load in placed
        if (part, policy, load) == ("filled", "first fit", 100)
    ]
    return table(["trace", "with claims", "with the extender"], rows)


def _placed() -> dict[tuple[str, str, str, int], float]:
    """(part, trace, policy, percent of all GPUs that pods have asked for) → percent of them in use."""
    return {(one["part"], one["trace"], one["policy"], one["load"]): one["in_use"] for one in proof.saved("placement")["figures"]}


def gpu_proof() -> str:
    """What the reports of real GPUs say."""
    reports = sorted(proof.RESULTS.glob("gpu-*.json"))
    steps = [{step["name"]: step for step in json.loads(one.read_text())["steps"]} for one in reports]

    def row(what: str, form: str, *values: tuple[str, str]) -> list[str]:
        """values: step and name of each, which is a value or a check."""
        return [what, *(form.format(*(_figure(one[step], name) for step, name in values)) for one in steps)]

    def together(what: str, kind: str) -> list[str]:
        return [what, *("{:.2f}, {:.2f}".format(*one.together(kind)) for one in proof.reports())]

    rows = [
        ["on", *(one.day for one in proof.reports())],
        row("memory, units", "{} MiB, {}", ("discovery", "GPU 0: memory in MiB"), ("plugin", "ids of memory, in GiB")),
        row("start of the device plugin until kubelet has its lists", "{} s", ("plugin", "seconds until kubelet has both lists")),
        row("its CPU at rest", "{} ms each second", ("plugin", "CPU ms in each second at rest")),
        row("its memory", "{} MiB resident", ("plugin", "resident MiB")),
        row("CUDA context of one program", "{} MiB", ("memory", "cgroupfs: MiB of the context beside 4096")),
        row(
            "program with 4096 MiB of MPS",
            "{}",
            ("limits", "MPS: a program with its container's environment asks for 1 GiB more than its 4096 MiB"),
        ),
        *(
            row(f"MPS, {what}", "{}", ("limits", f"MPS: {name}"))
            for what, name in (
                ("1 GiB of managed memory more than the limit", "managed memory, 1 GiB more than 4096 MiB"),
                ("a program of another user", "a program of another user beside the first"),
                ("the same once the first has ended", "the same once the first has ended"),
                ("a program after the fault of another", "a program after the fault of another"),
                ("a new program after that", "a new program after that"),
            )
        ),
        together("4 programs that fill the GPU (matrix products), together of the rate of one: without MPS, with", "matrix-product"),
        together("4 small programs (a transformer), likewise", "transformer"),
        row(
            "churn: simulated pods that ran, moments with too much given out", "{}, {}", ("churn", "pods that ran"), ("churn", _OVER_BOOKED)
        ),
        row("rate of a program after another's fault, of before", "{}", ("health", "its rate afterwards, of the rate before")),
    ]
    models = [f"[{_figure(one['discovery'], 'model')}](benchmarks/{file.name})" for one, file in zip(steps, reports, strict=True)]
    return table(["measured", *models], rows)


_OVER_BOOKED: Final = "moments at which a GPU had given out more than it has"


def _figure(step: Mapping[str, Any], name: str) -> str:
    """A value of a step, or what its check found; 0 of an empty list."""
    if name in step["values"]:
        return str(step["values"][name])
    (found,) = (one["found"] for one in step["checks"] if one["name"] == name)
    return "0" if found == "[]" else str(found)


#: Page to its parts, each with what it must be.
# The suites, from the table of their runner.


_MODES: Final = "docs/start/modes.md"


def _costs_on(page: str) -> str:
    return modes.rebased(readme.costs_of_pods(), page)


def suites() -> str:
    return table(("suite", "", "runs in"), ((code([suite.name]), suite.what, _runs_in(suite)) for suite in SUITES))


def _runs_in(suite: Suite) -> str:
    if suite.quick:
        return "`make test`; in CI by path"
    return "`make test`" if suite.always else "`make test-full`" if suite.only_full else "by path"


PARTS: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "README.md": {name: partial(make, readme.EN) for name, make in readme.PARTS.items()},
    "README.zh-CN.md": {name: partial(make, readme.ZH) for name, make in readme.PARTS.items()},
    "docs/project/status.md": {"ran": lambda: modes.rebased(readme.ran(), "docs/project/status.md")},
    **{f"docs/operate/{page}.md": {"costs": partial(_costs_on, f"docs/operate/{page}.md")} for page in ("eks", "openshift")},
    "docs/start/modes.md": {"modes": partial(modes.table, _MODES), "costs": lambda: modes.rebased(readme.costs(), _MODES)},
    "docs/start/requirements.md": {"requirements": requirements, "distributions": distributions},
    "docs/start/drivers.md": {"driver-plans": driver_plans, "driver-branches": branches_of_drivers},
    "roles/nvidia_container_toolkit/README.md": {"toolkit-advisories": toolkit_advisories},
    "roles/nvidia_driver/README.md": {"driver-advisories": driver_advisories},
    "docs/reference/cli.md": {"programs": programs},
    "docs/reference/device-plugin.md": {"settings": partial(settings_table, DevicePluginConfig)},
    "docs/reference/extender.md": {"settings": partial(settings_table, ExtenderConfig)},
    "docs/use/dashboard.md": {"settings": partial(settings_table, DashboardConfig)},
    "docs/reference/codes.md": {"codes": codes_of_verify, "checks": codes_of_preflight},
    "docs/reference/permissions.md": rights.PARTS,
    "docs/operate/clusters-of-others.md": {"presets": presets_of_clusters, "preset-sources": sources_of_presets},
    "charts/gpushare/README.md": {"values": values_of_the_chart, "variables": variables_of_the_chart},
    "docs/operate/on-call.md": {"xids": xids},
    "docs/operate/links.md": {"links": links},
    "docs/operate/operations.md": {"kubernetes-ends": ends_of_kubernetes, "kubernetes-gates": gates_of_kubernetes},
    "docs/project/release.md": {"looked-up": facts_of_others},
    "docs/project/benchmarks/README.md": {"benchmarks": benchmarks},
    "docs/project/dra.md": {"claims": claims, "claims-by-trace": claims_by_trace},
    "docs/project/gpu-proof.md": {"gpu-proof": gpu_proof},
    "docs/project/testing.md": {"suites": suites},
}


def filled(page: str, text: str) -> str:
    """The text of a page with its parts as they must be. KeyError for a part that no code makes."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{PARTS[page][found[2]]()}\n\n{found[3]}", text)


def problems(root: Path = ROOT) -> Iterator[str]:
    """What is stale or missing."""
    for page in PARTS:
        text = (root / page).read_text()
        missing = sorted(PARTS[page].keys() - {found[2] for found in BLOCK.finditer(text)})
        if missing:
            yield f"{page} has no part {', '.join(missing)}; expected <!-- generated: NAME --> and <!-- /generated -->"
        elif filled(page, text) != text:
            yield f"{page} is not as the code makes it; run `python tools/reference.py --write`"


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        for page in PARTS:
            path = ROOT / page
            path.write_text(filled(page, path.read_text()))
        figures.write()
    found = list(problems())
    if found:
        sys.exit("\n".join(found))
    print(f"the parts of {len(PARTS)} pages of the docs are as the code makes them")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The public variables: argument specifications equal defaults, each name means one thing, docs/operate/variables.md lists them all.

`python tools/variables.py` checks; with `--write` it first writes that page, and all that is made from the settings of the daemons.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import (  # noqa: E402
    HOST,
    OF_HOSTS,
    SCOPES,
    Variable,
    of_type,
    role_options,
    variables,
)

import settings_files  # noqa: E402
import shared_variables  # noqa: E402
from shared_variables import SEE, described, files, names_in_expressions  # noqa: E402

DOCUMENT = Path("docs/operate/variables.md")
INTRODUCTION = """\
# Variables

This page lists every public variable of the collection `gpushare.kubernetes`. The roles' argument specifications are
its source (`python tools/variables.py --write`). Set variables for all hosts, for a group or for one host. Ansible's
own precedence applies. The scope limits where values may differ:

- `host`: may differ from host to host. `gpushare_kubectl` and `gpushare_admin_kubeconfig` come from the control plane
  that runs the command.
- `control planes`, `GPU nodes`: must be the same on all hosts of this group, because the hosts share the result.
- `group`: must be the same within each of the two groups.
- `cluster`: must be the same on every host.

With `gpushare_deploy_mode: kubernetes` each variable of the role `in_cluster` is one for the cluster, too, and must be
the same on every host. Only these may differ there:

OF_HOSTS

`preflight` rejects a value that differs within its scope. It also rejects any other name that begins with `gpushare_`,
as a typo.
"""
HEADER = """
| variable | type | default | scope | roles | what it is |
|---|---|---|---|---|---|
"""
#: Heading to what the names begin with after gpushare_; the longest beginning counts.
TOPICS = {
    "Hosts, clusters and access": (
        "control_plane_group gpu_group node_name admin_kubeconfig kubectl api_server annotation_writers without_policies"
    ),
    "In the cluster": (
        "backend cluster_ deploy_mode openshift preset image kubeconfig namespace runtime_class kubelet_root scheduler scheduler_image "
        "scheduler_on_gpu_nodes "
        "driver_root cdi_dir selinux_type tolerations node_selector"
    ),
    "How a run goes": "serial max_fail_percentage drain preflight_ target_kubernetes start_timeout expect_ minimum_driver",
    "Memory, isolation and devices": "memory_unit isolation device_strategy limit_running_pods overuse unstartable mps_",
    "Placement": "placement gpu_placement node_placement node_schedule taint_gpu_nodes preemption most_nodes percentage_of_nodes_to_score",
    "Metrics": "metrics_ scrape_dir prometheus",
    "Dashboard": "dashboard_",
    "Extender and kube-scheduler": "extender_ scheduler_ pki_dir token_seconds",
    "kubelet": "kubelet_",
    "Container runtime": "container_runtime_ default_runtime",
    "NVIDIA's container toolkit": "toolkit_ package_folder",
    "NVIDIA's driver": "driver_",
    "Hosts without a network": "bundle",
    "Python, folders and downloads": "python prerequisites pip_extra_args proxy no_proxy install_dir config_dir kubectl_plugin_dir",
    "Verification": "verify_",
    "Taking over and removing": "take_over takeover hand_over gpu_operator remove_ uninstall_",
}
SET_BY_TASK = re.compile(r"^ *register: *(gpushare_\w+)|set_fact:\n +(gpushare_\w+):", re.MULTILINE)


def defaults(role: Path) -> dict[str, Any]:
    path = role / "defaults/main.yml"
    return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}


def role_problems(role: Path) -> Iterator[str]:
    """What is wrong within one role."""
    options, values = role_options(role), defaults(role)
    with_default = {name for name, spec in options.items() if "default" in spec}
    for name in sorted(with_default ^ set(values)):
        where, missing = ("argument_specs", "defaults") if name in with_default else ("defaults", "the defaults of argument_specs")
        yield f"roles/{role.name}: {name} is in {where} and not in {missing}"
    for name in sorted(with_default & set(values)):
        given, specified = values[name], options[name]["default"]
        if given != specified or type(given) is not type(specified):
            yield f"roles/{role.name}: {name} is {given!r} in defaults and {specified!r} in argument_specs"
        wrong = of_type(name, specified, options[name])[1]
        if wrong:
            yield f"roles/{role.name}: the default of {name} is not of its own type: {wrong}"
    for name, spec in sorted(options.items()):
        if not name.startswith("gpushare_"):
            yield f"roles/{role.name}: {name} is public and does not begin with gpushare_"
        if not spec.get("description"):
            yield f"roles/{role.name}: {name} has no description"
    for path in files(role):
        text = path.read_text()
        for name in sorted(names_in_expressions(text) - set(options)):
            yield f"{path.relative_to(ROOT)} reads {name}, which is not in this role's argument_specs"
        for pair in SET_BY_TASK.findall(text):
            yield f"{path.relative_to(ROOT)} sets {pair[0] or pair[1]}, which looks like a public variable; let it begin with __"


def specs_of(name: str, variable: Variable) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The variable's specification by role: of all roles that read it, and of those that describe it themselves."""
    specs = {role: role_options(ROOT / "roles" / role)[name] for role in variable.roles}
    return specs, {role: spec for role, spec in specs.items() if SEE.fullmatch(described(spec)) is None}


def collection_problems() -> Iterator[str]:
    """What is wrong between roles, and in playbooks and examples."""
    known = variables(ROOT)
    for name, variable in known.items():
        specs, own = specs_of(name, variable)
        if len(own) > 1:
            yield f"{name} is described in {' and '.join(own)}; expected one of them, and See P(…) in the others"
            continue
        for role, spec in specs.items():
            see = SEE.fullmatch(described(spec))
            if see and see[1] not in own:
                yield f"roles/{role}: {name} is not described in roles/{see[1]}, but in {', '.join(own) or 'none'}"
            expected = next(iter(own.values()), spec)
            if spec != ({**expected, "description": spec["description"]} if see else expected):
                yield f"{name} is one thing in roles/{next(iter(own))} and another in roles/{role}: {expected} and {spec}"
    for path in sorted((ROOT / "playbooks").rglob("*.yml")):
        for name in sorted(names_in_expressions(path.read_text()) - set(known)):
            yield f"{path.relative_to(ROOT)} reads {name}, which is in no role's argument_specs"
    for path in sorted((ROOT / "inventory.example").rglob("*.yml")):
        for name in sorted(set(re.findall(r"^[# ]*(gpushare_\w+):", path.read_text(), re.MULTILINE)) - set(known)):
            yield f"{path.relative_to(ROOT)} sets {name}, which is in no role's argument_specs"


def cell(spec: Mapping[str, Any]) -> str:
    """A description for one cell of a Markdown table."""
    text = re.sub(r"\bP\(gpushare\.kubernetes\.(\w+)#role\)", r"the role `\1`", described(spec))
    text = re.sub(r"\b[CVOEM]\(([^)]*)\)", r"`\1`", text)
    choices = ", ".join(f"`{choice}`" if choice else "nothing" for choice in spec.get("choices", ()))
    return (text + (f" One of {choices}." if choices else "")).replace("|", "\\|")


def document() -> str:
    """docs/operate/variables.md as it should be."""
    topics: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for name, variable in variables(ROOT).items():
        spec = next(iter(specs_of(name, variable)[1].values()), variable.spec)
        kind = f"list of {spec['elements']}" if spec.get("elements") else spec.get("type", "str")
        default = "required" if spec.get("required") else f"`{json.dumps(spec['default'])}`" if "default" in spec else ""
        row = f"| `{name}` | {kind} | {default} | {SCOPES.get(name, HOST)} | {', '.join(variable.roles)} | {cell(spec)} |\n"
        topics.setdefault(topic_of(name) or "Others", []).append(row)
    own = textwrap.fill(", ".join(f"`{name}`" for name in OF_HOSTS) + ".", 120, break_on_hyphens=False)
    return INTRODUCTION.replace("OF_HOSTS", own) + "".join(
        f"\n## {topic}\n{HEADER}{''.join(rows)}" for topic, rows in topics.items() if rows
    )


def topic_of(name: str) -> str:
    """The heading below which a variable stands, "" for none."""
    short = name.removeprefix("gpushare_")
    own = [(0, settings_files.topics().get(name, ""))]
    fitting = [(len(word), topic) for topic, words in TOPICS.items() for word in words.split() if short.startswith(word)]
    return max([*own, *fitting])[1]


def made() -> dict[str, str]:
    """Path to what it must be, of files with parts that are made."""
    found = settings_files.files()
    return {**found, **shared_variables.filled(ROOT, found)}


def main() -> None:
    path = ROOT / DOCUMENT
    if sys.argv[1:] == ["--write"]:
        parts = made()
        stale = (ROOT / settings_files.TABLE).read_text() != parts[settings_files.TABLE]
        for name, text in parts.items():
            (ROOT / name).write_text(text)
        if stale:
            # This process has the former scopes.
            os.execv(sys.executable, [sys.executable, *sys.argv])
        variables.cache_clear()
        path.parent.mkdir(exist_ok=True)
        path.write_text(document())
    problems = [problem for role in sorted((ROOT / "roles").iterdir()) for problem in role_problems(role)]
    problems += collection_problems()
    problems += [f"_preflight_values gives a scope to {name}, which no role has" for name in sorted(set(SCOPES) - set(variables(ROOT)))]
    problems += [f"{name} has no topic in TOPICS of tools/variables.py" for name in variables(ROOT) if not topic_of(name)]
    problems += [
        f"{name} is not what the settings of the daemons and the other roles say; run `python tools/variables.py --write`"
        for name, text in made().items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text() != text
    ]
    if not path.is_file() or path.read_text() != document():
        problems.append(f"{DOCUMENT} is not what the argument specifications say; run `python tools/variables.py --write`")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(variables(ROOT))} public variables, each with one meaning and documented")


if __name__ == "__main__":
    main()

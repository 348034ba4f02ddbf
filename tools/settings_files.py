# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files and parts of files that are made from the settings of the daemons: tools/variables.py writes and compares them.

Specifications and defaults of roles have them between `# made from DATACLASS` and `# end`, the chart's schema by their names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "files/gpushare_runtime"))

from gpushare_runtime.settings import document  # noqa: E402
from gpushare_runtime.settings.cluster import ClusterConfig  # noqa: E402
from gpushare_runtime.settings.dashboard import DashboardConfig  # noqa: E402
from gpushare_runtime.settings.device_plugin import DevicePluginConfig  # noqa: E402
from gpushare_runtime.settings.extender import ExtenderConfig  # noqa: E402
from gpushare_runtime.settings.installer import InstallerConfig  # noqa: E402
from gpushare_runtime.settings.schema import (  # noqa: E402
    HOST,
    OWN,
    Clash,
    ListType,
    NumberType,
    Setting,
    TextType,
    VariableType,
    settings_of,
)

TABLE: Final = "plugins/plugin_utils/_settings/table.py"
IN_CLUSTER: Final = "in_cluster"
CHART: Final = "charts/gpushare"
_WIDTH: Final = 140
_HEAD: Final = '''\
# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of our daemons, as `python tools/variables.py --write` makes them."""

from __future__ import annotations

from .rows import ConfiguredDaemon, DaemonSetting, SettingClash

'''


@dataclass(frozen=True)
class Daemon:
    """A daemon with a file of settings, and the role that runs it on hosts. topic: of a variable that has no other one."""

    owner: type[Any]
    role: str
    topic: str

    @property
    def settings(self) -> tuple[Setting, ...]:
        return settings_of(self.owner)

    @property
    def of_role(self) -> list[Setting]:
        """The settings whose variables the role has."""
        return [each for each in self.settings if each.variable and each.hosts]

    def describes(self, each: Setting) -> str:
        """The role that has the description for the others, "" for none."""
        return each.role or (self.role if each.hosts else "")

    @property
    def of_chart(self) -> list[Setting]:
        return [each for each in self.settings if each.chart]


DAEMONS: Final = (
    Daemon(DevicePluginConfig, "device_plugin", "Memory, isolation and devices"),
    Daemon(ExtenderConfig, "extender", "Extender and kube-scheduler"),
    Daemon(DashboardConfig, "dashboard", "Dashboard"),
)


_ALONE: Final = (ClusterConfig, InstallerConfig)
#: Of no daemon: each with the role that describes it.
SHARED: Final = tuple(each for owner in _ALONE for each in settings_of(owner))
_TOPIC_OF_SHARED: Final = "Hosts, clusters and access"


def default(each: Setting) -> Any:
    """The default of the variable and of the value of the chart."""
    return each.default if each.preset is None else each.preset


def topics() -> dict[str, str]:
    """The variables of settings, and the heading of each on the page of variables, where no other one fits its name."""
    of_daemons = {each.variable: daemon.topic for daemon in DAEMONS for each in daemon.settings if each.variable}
    return {**{each.variable: _TOPIC_OF_SHARED for each in SHARED}, **of_daemons}


def files() -> dict[str, str]:
    """Path to what it must be."""
    found = {TABLE: table()}
    for daemon in DAEMONS:
        for path, lines in (
            (f"roles/{daemon.role}/meta/argument_specs.yml", [line for each in daemon.of_role for line in spec(each, each.role)]),
            (f"roles/{daemon.role}/defaults/main.yml", [_default(each) for each in daemon.of_role]),
            (
                f"roles/{IN_CLUSTER}/meta/argument_specs.yml",
                [line for each in daemon.of_chart for line in spec(each, daemon.describes(each))],
            ),
            (f"roles/{IN_CLUSTER}/defaults/main.yml", [_default(each) for each in daemon.of_chart]),
        ):
            if lines:
                found[path] = filled(found.get(path) or (ROOT / path).read_text(), document.kind_of(daemon.owner), lines, path)
    for owner in _ALONE:
        kind = document.kind_of(owner)
        for role in sorted({each.role for each in settings_of(owner)}):
            own = [each for each in settings_of(owner) if each.role == role]
            path = f"roles/{role}/meta/argument_specs.yml"
            for entry in sorted({each.entry for each in own}):
                lines = [line for each in own if each.entry == entry for line in spec(each)]
                found[path] = filled(found.get(path) or (ROOT / path).read_text(), f"{kind} for {entry}" if entry else kind, lines, path)
            path = f"roles/{role}/defaults/main.yml"
            found[path] = filled(found.get(path) or (ROOT / path).read_text(), kind, map(_default, own), path)
    found[f"{CHART}/values.yaml"] = values((ROOT / CHART / "values.yaml").read_text())
    found[f"{CHART}/values.schema.json"] = schema((ROOT / CHART / "values.schema.json").read_text())
    return found


def filled(text: str, kind: str, lines: Iterable[str], path: str, source: str = "") -> str:
    """A text with other lines between the marks of a kind. source: in the first mark, by default the dataclass of that name."""
    block = re.compile(rf"^( *)# made from {kind}\b(?! for )[^\n]*\n.*?^ *# end\n", re.MULTILINE | re.DOTALL)
    found = block.search(text)
    if found is None:
        raise SystemExit(f"{path} has no part # made from {kind}; expected one that ends with # end")
    around = text[: found.start()] + text[found.end() :]
    body = "".join(f"{found[1]}{_anchored(line, around)}\n" for line in lines)
    head = f"{found[1]}# made from {source or f'{kind} (settings/) of the runtime'} by tools/variables.py\n"
    return text[: found.start()] + f"{head}{body}{found[1]}# end\n" + text[found.end() :]


def _anchored(line: str, text: str) -> str:
    """A line with the anchor that the rest of the text has an alias of: another entry point has the same option."""
    name, colon, value = line.partition(":")
    alias = re.search(rf"^ +{name}: \*(\w+)$", text, re.MULTILINE) if colon and re.fullmatch(r"gpushare_\w+", name) else None
    return f"{name}: &{alias[1]}{value}" if alias and f"&{alias[1]}" not in text else line


def spec(each: Setting, described_in: str = "") -> Iterator[str]:
    """The option of a variable in an argument specification. described_in: the role that has its description."""
    option = {**each.kind.ansible, "default": default(each)}
    if described_in:
        yield from reference(each.variable, described_in, option)
        return
    yield f"{each.variable}:"
    yield "  description: >-"
    yield from (f"    {line}" for line in textwrap.wrap(description(each), _WIDTH - 10, break_long_words=False, break_on_hyphens=False))
    yield from (f"  {line}" for line in _wrapped(option))


def reference(variable: str, role: str, option: Mapping[str, Any], anchor: str = "") -> Iterator[str]:
    """The option of a variable whose description is another role's."""
    head = f"{variable}:{anchor}"
    short = f"{{description: See P(gpushare.kubernetes.{role}#role)., {', '.join(_parts(option))}}}"
    if len(head) + len(short) < _WIDTH - 9:
        yield f"{head} {short}"
    elif len(short) < _WIDTH:
        yield from [head, f"  {short}"]
    else:
        yield from [head, f"  description: See P(gpushare.kubernetes.{role}#role)."]
        yield from (f"  {line}" for line in _wrapped(option))


def _wrapped(option: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an option, each on as many lines as it needs."""
    for part in _parts(option):
        yield from textwrap.wrap(part, _WIDTH - 10, subsequent_indent=" " * (part.find("[") + 1), break_on_hyphens=False)


def _parts(option: Mapping[str, Any]) -> list[str]:
    """The fields of an option, each as people write it."""
    names = sorted(option.keys() - {"description"}, key=("type", "elements", "choices", "no_log", "default", "required").index)
    return [f"{name}: {yaml_of(option[name])}" for name in names]


def description(each: Setting) -> str:
    """What the variable is, for people."""
    return each.description or f"{each.doc[0].upper()}{each.doc[1:]}."


def _default(each: Setting) -> str:
    return f"{each.variable}: {yaml_of(default(each))}"


def values(text: str) -> str:
    """The chart's values with the defaults of the settings, each at its place; tools/chart_values.py writes the comments."""
    for each in (each for daemon in DAEMONS for each in daemon.of_chart):
        line = f"{each.chart}: {yaml_of(default(each))}\n"
        text, there = re.subn(rf"^{each.chart}:.*\n", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
        text += "" if there else line
    return text


def yaml_of(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_of, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9/_.-]*|[0-9]+[A-Za-z][A-Za-z0-9]*", value)
    return value if plain and value not in ("true", "false", "null", "yes", "no", "on", "off") else json.dumps(value)


def schema(text: str) -> str:
    """The schema of the chart's values, with those of the settings as they must be, each at its place."""
    whole = json.loads(text)
    for each in (each for daemon in DAEMONS for each in daemon.of_chart):
        # tools/chart_values.py writes the descriptions.
        described = {key: words for key, words in whole["properties"].get(each.chart, {}).items() if key == "description"}
        whole["properties"][each.chart] = {**described, **each.kind.schema}
        whole["required"] += [] if each.chart in whole["required"] else [each.chart]
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def table() -> str:
    """The rows for the controller."""
    parts = []
    for daemon in DAEMONS:
        rows = ", ".join(_row(each) for each in daemon.settings if each.variable)
        parts.append(f'"{daemon.role}": ConfiguredDaemon("{document.kind_of(daemon.owner)}", "{daemon.role}", ({rows},))')
    shared = ", ".join(_row(each) for each in SHARED)
    text = f"{_HEAD}DAEMONS = {{{', '.join(parts)}}}\n#: Of no daemon.\nSHARED = ({shared},)\n"
    ruff = [str(Path(sys.executable).parent / "ruff"), "format", "--stdin-filename", TABLE, "-"]
    return subprocess.run(ruff, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout


def _row(each: Setting) -> str:
    kind = each.kind.each if isinstance(each.kind, ListType) else each.kind
    number, text = kind if isinstance(kind, NumberType) else None, kind if isinstance(kind, TextType) and not kind.path else None
    alone = kind if isinstance(kind, VariableType) else None
    pattern = text.pattern if text and text.pattern != TextType.pattern else ""
    form = kind.form if isinstance(kind, TextType | VariableType) else ""
    further = {
        "variable": each.variable,
        "hosts": None if each.hosts else False,
        "scope": each.scope if each.scope != HOST else "",
        "chart": each.chart,
        "least": number.least if number else None,
        "most": number.most if number else None,
        "zero": True if number and number.zero else None,
        "pattern": pattern,
        "items": each.kind.most if isinstance(each.kind, ListType) else None,
        "form": form,
        "longest": alone.longest if alone and alone.longest else None,
        "longer": alone.longer if alone else "",
        "expected": each.kind.expected if number or pattern or form else "",
        "apart": True if each.apart else None,
        "compared": None if each.compared else False,
        "secret": True if each.secret else None,
    }
    given = "".join(f", {name}={value!r}" for name, value in further.items() if value not in ("", None))
    clashes = "".join(f"{_clash(clash, each.variable)}," for clash in each.clashes)
    return f"DaemonSetting({each.name!r}, {each.key!r}, {default(each)!r}{given}{f', clashes=({clashes})' if clashes else ''})"


def _clash(clash: Clash, variable: str) -> str:
    """variable: of the field that has it."""

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {variable if name == OWN else name: value for name, value in values.items()}

    further = {
        "found": clash.found,
        "unless": named(clash.unless) or "",
        "same": tuple(variable if name == OWN else name for name in clash.same or ()) or "",
        "warns": clash.warns or "",
    }
    given = "".join(f", {name}={value!r}" for name, value in further.items() if value != "")
    return f"SettingClash({named(clash.when)!r}, {clash.expected!r}, {clash.cure!r}{given})"

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "files/gpushare_runtime"))

from gpushare_runtime.settings import document  # noqa: E402
from gpushare_runtime.settings.device_plugin import DevicePluginConfig  # noqa: E402
from gpushare_runtime.settings.extender import ExtenderConfig  # noqa: E402
from gpushare_runtime.settings.schema import HOST, NumberType, Setting, settings_of  # noqa: E402

TABLE: Final = "plugins/plugin_utils/_settings/table.py"
IN_CLUSTER: Final = "in_cluster"
CHART: Final = "charts/gpushare"
_WIDTH: Final = 140
_HEAD: Final = '''\
# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of our daemons, as `python tools/variables.py --write` makes them."""

from __future__ import annotations

from .rows import ConfiguredDaemon, DaemonSetting

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
)


def default(each: Setting) -> Any:
    """The default of the variable and of the value of the chart."""
    return each.default if each.preset is None else each.preset


def topics() -> dict[str, str]:
    """The variables of settings, and the heading of each on the page of variables, where no other one fits its name."""
    return {each.variable: daemon.topic for daemon in DAEMONS for each in daemon.settings if each.variable}


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
            (f"{CHART}/values.yaml", [line for each in daemon.of_chart for line in _value(each)]),
        ):
            found[path] = filled(found.get(path) or (ROOT / path).read_text(), document.kind_of(daemon.owner), lines, path)
    found[f"{CHART}/values.schema.json"] = schema((ROOT / CHART / "values.schema.json").read_text())
    return found


def filled(text: str, kind: str, lines: Iterable[str], path: str) -> str:
    """A text with other lines between the marks of a kind."""
    block = re.compile(rf"^( *)# made from {kind}[^\n]*\n.*?^ *# end\n", re.MULTILINE | re.DOTALL)
    found = block.search(text)
    if found is None:
        raise SystemExit(f"{path} has no part # made from {kind}; expected one that ends with # end")
    body = "".join(f"{found[1]}{line}\n" for line in lines)
    head = f"{found[1]}# made from {kind} of the runtime by tools/variables.py\n"
    return text[: found.start()] + f"{head}{body}{found[1]}# end\n" + text[found.end() :]


def spec(each: Setting, described_in: str = "") -> Iterator[str]:
    """The option of a variable in an argument specification. described_in: the role that has its description."""
    kind = dict(each.kind.ansible)
    parts = [f"type: {kind['type']}", *([f"elements: {kind['elements']}"] if "elements" in kind else [])]
    parts += [f"choices: [{', '.join(map(_yaml, kind['choices']))}]"] if "choices" in kind else []
    parts.append(f"default: {_yaml(default(each))}")
    if described_in:
        short = f"{{description: See P(gpushare.kubernetes.{described_in}#role)., {', '.join(parts)}}}"
        fits = len(each.variable) + len(short) < _WIDTH - 10
        yield from [f"{each.variable}: {short}"] if fits else [f"{each.variable}:", f"  {short}"]
        return
    yield f"{each.variable}:"
    yield "  description: >-"
    yield from (f"    {line}" for line in textwrap.wrap(description(each), _WIDTH - 10, break_long_words=False, break_on_hyphens=False))
    yield from (f"  {part}" for part in parts)


def description(each: Setting) -> str:
    """What the variable is, for people."""
    return each.description or f"{each.doc[0].upper()}{each.doc[1:]}."


def _default(each: Setting) -> str:
    return f"{each.variable}: {_yaml(default(each))}"


def _value(each: Setting) -> list[str]:
    """The lines of a value of the chart."""
    return [*(f"# {line}" for line in textwrap.wrap(each.remark, _WIDTH - 2)), f"{each.chart}: {_yaml(default(each))}"]


def _yaml(value: Any) -> str:
    """A value as people write it."""
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
    text = f"{_HEAD}DAEMONS = {{{', '.join(parts)}}}\n"
    ruff = [str(Path(sys.executable).parent / "ruff"), "format", "--stdin-filename", TABLE, "-"]
    return subprocess.run(ruff, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout


def _row(each: Setting) -> str:
    least, most = (each.kind.least, each.kind.most) if isinstance(each.kind, NumberType) else (None, None)
    further = {
        "variable": each.variable,
        "hosts": None if each.hosts else False,
        "scope": each.scope if each.scope != HOST else "",
        "chart": each.chart,
        "least": least,
        "most": most,
    }
    given = "".join(f", {name}={value!r}" for name, value in further.items() if value not in ("", None))
    return f"DaemonSetting({each.name!r}, {each.key!r}, {default(each)!r}{given})"

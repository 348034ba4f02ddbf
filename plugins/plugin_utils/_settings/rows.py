# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of our daemons as the controller needs them: which variable and which value of the chart each follows.

Pure. The rows are in `table.py`, which `python tools/variables.py --write` makes from `gpushare_runtime/settings/`. The controller may have
no Python that imports the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DaemonSetting:
    """One setting. field: of the runtime's dataclass. key: in its file. default: of variable and chart, or the daemon's, None for none.

    variable: "" for none. hosts: whether the daemon's role on hosts has it. scope: where its value must be the same. chart: the value of
    the chart, "" for none. least, most: bounds of a number, None for another type.
    """

    field: str
    key: str
    default: Any
    variable: str = ""
    hosts: bool = True
    scope: str = "host"
    chart: str = ""
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class ConfiguredDaemon:
    """A daemon with a file of settings. kind: of the file's document; role: the role that runs it on hosts."""

    kind: str
    role: str
    settings: tuple[DaemonSetting, ...]

    def on_host(self, value: Callable[[str], Any], decided: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the file on a host, with its kind. value: of a variable; decided: fields that the role decides, "" for none."""
        given = {each.key: value(each.variable) for each in self.settings if each.variable and each.hosts and each.key not in decided}
        return {"kind": self.kind, **given, **{key: each for key, each in decided.items() if each not in (None, "")}}


def every(daemons: Mapping[str, ConfiguredDaemon]) -> Iterator[DaemonSetting]:
    """The settings of all daemons that follow a variable."""
    return (each for daemon in daemons.values() for each in daemon.settings if each.variable)

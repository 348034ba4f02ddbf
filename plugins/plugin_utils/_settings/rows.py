# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of our daemons as the controller needs them: which variable and which value of the chart each follows.

Pure. The rows are in `table.py`, which `python tools/variables.py --write` makes from `gpushare_runtime/settings/`. The controller may have
no Python that imports the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: In the metadata of a field: the variable that it follows, where that has another name; and the values of it for which the field is true.
VARIABLE, WORDS = "variable", "words"


@dataclass(frozen=True)
class SettingClash:
    """Values of several variables that do not go together.

    when: for each variable the values with which they clash, or a condition on an address. unless: for each those with which they do not.
    same: two numbers that are equal, or two different paths with the same file name. found: the words for it, with the variables in braces,
    "" for the values of `when` and `unless`. warns: whether they may stay.
    """

    when: Mapping[str, tuple[Any, ...] | str]
    expected: str
    cure: str
    found: str = ""
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    same: tuple[str, str] | tuple[()] = ()
    warns: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        return (*self.when, *self.unless, *self.same)


@dataclass(frozen=True)
class DaemonSetting:
    """One setting. field: of the runtime's dataclass. key: in its file. default: of variable and chart, or the daemon's, None for none.

    variable: "" for none. hosts: whether the daemon's role on hosts has it. scope: where its value must be the same. chart: the value of
    the chart, "" for none. least, most: bounds of a number, None for another type. pattern: of a text or of each in a list, "" for any.
    items: the longest list, None for another type. form: of a value, where no pattern expresses it. longest: a duration in seconds, above
    which `longer` is expected. expected: what a value must be, where it has bounds, a pattern or a form. apart: whether hosts may differ in
    it although the daemons are pods. compared: whether preflight compares it between hosts. secret: whether no value may be shown.
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
    zero: bool = False
    pattern: str = ""
    items: int | None = None
    form: str = ""
    longest: float | None = None
    longer: str = ""
    expected: str = ""
    apart: bool = False
    compared: bool = True
    secret: bool = False
    clashes: tuple[SettingClash, ...] = ()

    def fits(self, value: Any) -> bool:
        """Whether a value of the right type is within the bounds and fits the pattern."""
        if self.least is not None and self.most is not None:
            return self.least <= value <= self.most or (self.zero and value == 0)
        texts = [value] if self.items is None else value
        return not self.pattern or (
            (self.items is None or len(value) <= self.items) and all(re.fullmatch(self.pattern, str(text)) for text in texts)
        )


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


def every(daemons: Mapping[str, ConfiguredDaemon], shared: Iterable[DaemonSetting] = ()) -> Iterator[DaemonSetting]:
    """The settings of all daemons that follow a variable, and the shared ones."""
    yield from (each for daemon in daemons.values() for each in daemon.settings if each.variable)
    yield from shared


def followed(owner: type[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that follow variables. known: their values. A field without one of them is decided otherwise."""
    found = {}
    for each in fields(owner):
        variable = each.metadata.get(VARIABLE, f"gpushare_{each.name}")
        if variable in known:
            found[each.name] = known[variable] in each.metadata[WORDS] if WORDS in each.metadata else known[variable]
    return found

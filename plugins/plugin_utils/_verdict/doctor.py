# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer of gpushare-doctor on a host, read at this one place.

Pure. The root user of the host decides what the doctor answers: so the answer has this form and no other, its findings are that host's,
have codes of the doctor only, and their words are short and printable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...module_utils._formats.finding import ERROR, WARNING, Finding
from .findings import CHECKS
from .links import DOCTOR

VERSION = 1
CODES = frozenset(code for code, (severities, by) in CHECKS.items() if DOCTOR in by)
# Of one kind. It has at most one GPU more of a resource than a node may have.
_MOST = 129
_LONGEST = 1000
_OF_ANOTHER_RELEASE = (
    "run site.yml again with the collection of this verify, which installs its runtime; if that changes nothing, read what "
    "`gpushare-doctor --output json` prints on the host"
)

T = TypeVar("T")


@dataclass(frozen=True)
class DaemonReport:
    """runs: whether it does; listens, metrics: the addresses in its unit, "" for none."""

    runs: bool
    listens: str
    metrics: str


@dataclass(frozen=True)
class ExtenderReport:
    """The extender's counters. why: why they are not known, "" if they are."""

    filter_calls: int = 0
    unauthorized_calls: int = 0
    why: str = ""


@dataclass(frozen=True)
class Doctor:
    """The answer. problem: why there is none, "" if there is one. cure: for that, "" where the runtime is to be built again.

    daemons: by the names of their units. strangers: processes that listen on sockets of other device plugins, as messages. registered:
    resource to the GPUs that kubelet has recorded for it.
    """

    problem: str = ""
    cure: str = ""
    findings: tuple[Finding, ...] = ()
    daemons: Mapping[str, DaemonReport] = field(default_factory=dict)
    health: ExtenderReport = ExtenderReport(why="the extender does not run")
    strangers: tuple[str, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read(answer: Mapping[str, str], host: str) -> Doctor:
    """The answer of the host with this name in the inventory, as _evidence/daemons.py has it."""
    if answer["problem"]:
        return Doctor(problem=_words(answer["problem"]), cure=_words(answer["cure"]))
    try:
        said = json.loads(answer["answer"])
        if said["v"] != VERSION:
            raise ValueError(f"its form is {said['v']!r}"[:_LONGEST])
        return Doctor(
            findings=_several(said["findings"], lambda finding: _finding(finding, host)),
            daemons=_by_name(
                said["daemons"], lambda daemon: DaemonReport(daemon["runs"] is True, _words(daemon["listens"]), _words(daemon["metrics"]))
            ),
            health=Doctor.health if said["health"] is None else _health(said["health"]),
            strangers=_several(
                said["strangers"], lambda stranger: f"process {_count(stranger['pid'])} ({_words(stranger['process']) or 'unnamed'})"
            ),
            registered=_by_name(said["registered"], lambda gpus: _several(gpus, _words)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # Its program is whole: to build the same again would take it from the daemons for nothing.
        return Doctor(problem=f"gpushare-doctor answered in another form than {VERSION} ({_words(str(error))})", cure=_OF_ANOTHER_RELEASE)


def _finding(said: Mapping[str, Any], host: str) -> Finding:
    if said["check"] not in CODES or said["severity"] not in (ERROR, WARNING):
        raise ValueError(f"a finding {said['check']!r} of severity {said['severity']!r}")
    return Finding(said["check"], _words(said["found"]), _words(said["expected"]), _words(said["cure"]), said["severity"], host)


def _health(said: Mapping[str, Any]) -> ExtenderReport:
    return ExtenderReport(_count(said["filter_calls"]), _count(said["unauthorized_calls"]), _words(said["why"]))


def _several(values: Any, read_one: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(values, list) or len(values) > _MOST:
        raise ValueError(f"no list of at most {_MOST}")
    return tuple(map(read_one, values))


def _by_name(values: Any, read_one: Callable[[Any], T]) -> dict[str, T]:
    if not isinstance(values, dict) or len(values) > _MOST:
        raise ValueError(f"no object of at most {_MOST}")
    return {_words(name): read_one(value) for name, value in values.items()}


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("no count")
    return value


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return "".join(letter if letter.isprintable() else "?" for letter in value[:_LONGEST])

# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How reasons of preflight and findings of verify reach people, as blocks, and machines, as a file.

Private to this collection. Both kinds are a `Reason`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.reasons import Reason

#: In the first line of a block. The report has all of them.
_HOSTS_SHOWN = 8


class ReportError(Exception):
    """The file cannot be written; says so with the variable that named it."""


def blocks(reasons: Sequence[Reason], nowhere: str) -> str:
    """A block for each problem, which names all of its hosts; at the end, a line for each of those that only follow from another one.

    reasons: errors, in their order; nowhere: the word for a reason that does not belong to a single host.
    """
    causes: dict[tuple[str, str, str], list[Reason]] = {}
    for one in reasons:
        if not one.because:
            causes.setdefault((one.check, one.expected, one.cure), []).append(one)
    parts = []
    for (check, expected, cure), same in causes.items():
        lines = [f"✗ {check:<12} {_hosts((one.host for one in same), nowhere)}", *_found(same, nowhere)]
        parts.append("\n".join([*lines, f"    expected  {_flat(expected)}", f"    do        {_flat(cure)}"]))
    follow = [f"  {line}" for line in lines_of([one for one in reasons if one.because])]
    if follow:
        parts.append("\n".join(["These follow from the problems above:", *follow]))
    return "\n\n".join(parts)


def problems(reasons: Sequence[Reason]) -> int:
    """How many blocks there are of problems that do not follow from another one."""
    return len({(one.check, one.expected, one.cure) for one in reasons if not one.because})


def count(number: int, word: str) -> str:
    """The number with its word, in the plural where it must be."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def lines_of(reasons: Iterable[Reason]) -> list[str]:
    """One line for all hosts of which the same is said."""
    hosts: dict[tuple[Any, ...], tuple[Reason, list[str]]] = {}
    for one in reasons:
        said = (one.check, one.severity, one.found, one.expected, one.cure, one.because)
        hosts.setdefault(said, (one, []))[1].append(one.host)
    return [_flat(one.line(", ".join(of))) for one, of in hosts.values()]


def write(path: Path, report: Mapping[str, Any], variable: str) -> None:
    """Write the report as JSON in one step. ReportError names the variable that chose the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.new")
        staged.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        staged.replace(path)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}; name a file that can be in {variable}") from error


def _found(same: Sequence[Reason], nowhere: str) -> list[str]:
    """The facts that were found, with its hosts where it differs between them."""
    hosts: dict[str, list[str]] = {}
    for one in same:
        hosts.setdefault(one.found, []).append(one.host)
    if len(hosts) == 1:
        return [f"    found     {_flat(found)}" for found in hosts]
    return [f"    found     {_flat(found)} ({_hosts(of, nowhere)})" for found, of in hosts.items()]


def _flat(words: str) -> str:
    """On one line: a host's answer must not seem to be a block of its own."""
    return " ".join(words.split())


def _hosts(hosts: Iterable[str], nowhere: str) -> str:
    names = [host or nowhere for host in hosts]
    more = len(names) - _HOSTS_SHOWN
    return ", ".join(names[:_HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the findings of preflight and verify reach people, as blocks and lines that name all of their hosts, and machines, as a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]

from ..module_utils._formats.finding import NO_HOST, Finding, few

#: In the first line of a block. The report has all of them.
_HOSTS_SHOWN = 8
_BLOCK = ("check", "expected", "cure")


def grouped(findings: Iterable[Finding], *fields: str) -> list[list[Finding]]:
    """The findings that agree in these fields, side by side, in the order in which each was the first one."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(tuple(getattr(finding, field) for field in fields), []).append(finding)
    return list(groups.values())


def blocks(errors: Iterable[Finding]) -> str:
    """A block for each problem, which names all of its hosts; at the end, a line for each of those that only follow from another one."""
    errors = list(errors)
    parts = []
    for same in grouped((error for error in errors if not error.because), *_BLOCK):
        alike = grouped(same, "found")
        found = [f"    found     {_flat(group[0].found)}{f' ({_hosts(group)})' if len(alike) > 1 else ''}" for group in alike]
        rest = [f"    expected  {_flat(same[0].expected)}", f"    do        {_flat(same[0].cure)}"]
        parts.append("\n".join([f"✗ {same[0].check:<12} {_hosts(same)}", *found, *rest]))
    follow = lines_of(error for error in errors if error.because)
    if follow:
        parts.append("\n  ".join(["These follow from the problems above:", *follow]))
    return "\n\n".join(parts)


def problems(errors: Iterable[Finding]) -> int:
    """How many blocks there are of problems that do not follow from another one."""
    return len(grouped((error for error in errors if not error.because), *_BLOCK))


def count(number: int, word: str) -> str:
    """The number with its word, in the plural where it must be."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def lines_of(findings: Iterable[Finding]) -> list[str]:
    """One line for all hosts of which the same is said; it names the first of many."""
    groups = grouped(findings, *_BLOCK, "severity", "found", "because")
    return [_flat(same[0].line(_hosts(same))) for same in groups]


def write(path: str, report: Mapping[str, Any], variable: str) -> None:
    """Write the report as JSON in one step; "" for no report. variable: that names the file. AnsibleActionFail."""
    if not path:
        return
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_name(f".{file.name}.new")
        staged.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        staged.replace(file)
    except OSError as error:
        raise AnsibleActionFail(f"the report cannot be written: {error}; name a file that can be in {variable}") from error


def _flat(words: str) -> str:
    """On one line: a host's answer must not seem to be a block of its own."""
    return " ".join(words.split())


def _hosts(findings: Iterable[Finding]) -> str:
    return few((finding.host or NO_HOST for finding in findings), _HOSTS_SHOWN)

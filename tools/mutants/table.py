# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What became of the mutants, as tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mutants.generate import Mutant

KILLED: Final = "killed"
TIMEOUT: Final = "timeout"
SURVIVED: Final = "survived"
EQUIVALENT: Final = "equivalent"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    fate: str
    by: str = ""


def score(verdicts: Sequence[Verdict]) -> float:
    """Percent of the mutants that are not equivalent which were killed; without any, all were."""
    counted = [one for one in verdicts if one.fate != EQUIVALENT]
    return 100.0 * sum(one.fate != SURVIVED for one in counted) / len(counted) if counted else 100.0


def per_file(verdicts: Sequence[Verdict], seconds: Mapping[str, tuple[float, float]], total: Sequence[float]) -> str:
    """`seconds`: how long the tests of a file took, unmutated, and how much of a processor; `total`: of all runs of tests."""
    rows: list[tuple[str, ...]] = [("file", "mutants", "killed", "by timeout", "equivalent", "survived", "score", "tests s", "cpu s")]
    files = sorted({one.mutant.file for one in verdicts} | set(seconds))
    for file in files:
        of_file = [one for one in verdicts if one.mutant.file == file]
        rows.append(_row(file, of_file, seconds.get(file)))
    rows.append(_row("all", verdicts, total))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def _row(name: str, verdicts: Sequence[Verdict], seconds: Sequence[float] | None) -> tuple[str, ...]:
    count = {fate: sum(one.fate == fate for one in verdicts) for fate in (KILLED, TIMEOUT, EQUIVALENT, SURVIVED)}
    numbers = (len(verdicts), count[KILLED] + count[TIMEOUT], count[TIMEOUT], count[EQUIVALENT], count[SURVIVED])
    times = ("-", "-") if seconds is None else tuple(f"{one:.1f}" for one in seconds)
    return name, *(str(one) for one in numbers), f"{score(verdicts):.1f} %", *times


def survivors(verdicts: Sequence[Verdict]) -> str:
    """Markdown that `--given` reads."""
    lines = ["| where | function | was | became |", "|---|---|---|---|"]
    for verdict in sorted((one for one in verdicts if one.fate == SURVIVED), key=lambda one: (one.mutant.file, one.mutant.line)):
        one, why = verdict.mutant, f" ({verdict.by})" if verdict.by else ""
        lines.append(f"| {one.file}:{one.line} | {one.function}{why} | {_cell(one.was)} | {_cell(one.became)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("\n", " ⏎ ") + "`"

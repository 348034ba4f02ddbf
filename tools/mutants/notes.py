# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Mutants that change nothing which a caller could see: equivalent.txt, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants.generate import Mutant
from mutants.given import cells, code

FILE: Final = Path(__file__).with_name("equivalent.txt")
_CELLS: Final = 5


@dataclass(frozen=True)
class Note:
    file: str
    function: str
    was: str
    became: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return Mutant(self.file, 0, 0, self.function, "", self.was, self.became).key


def read_notes(file: Path = FILE) -> list[Note]:
    """All notes: rows of the table of survivors, and the reason as one cell more. The number of a line says nothing. ValueError."""
    found = []
    for line in file.read_text().splitlines():
        row = cells(line)
        if not line.startswith("|") or row[0] == "where" or not row[0].strip("-"):
            continue
        if len(row) != _CELLS or not all(row):
            raise ValueError(f"{file.name}: a note has a place, a function, two pieces of code and a reason; found {line}")
        where, function, was, became, reason = row
        found.append(Note(where.partition(":")[0], function.partition(" (")[0], code(was), code(became), reason))
    return found


def stale(notes: Iterable[Note], mutants: Sequence[Mutant]) -> list[str]:
    """Notes that no mutant matches, and those that say it twice."""
    keys, seen, found = {one.key for one in mutants}, set[tuple[str, str, str, str]](), []
    for note in notes:
        if note.key not in keys:
            found.append(f"no such mutant: {note.file} {note.function}: {note.was} -> {note.became}")
        if note.key in seen:
            found.append(f"noted twice: {note.file} {note.function}: {note.was} -> {note.became}")
        seen.add(note.key)
    return found

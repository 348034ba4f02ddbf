# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Mutants that change nothing which a caller could see: equivalent/*.toml, each with its reason."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants.generate import Mutant

FOLDER: Final = Path(__file__).parent / "equivalent"
_FIELDS: Final = {"function", "was", "became", "reason"}


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


def read_notes(folder: Path = FOLDER) -> list[Note]:
    """All notes: a table of the file holds those of one source, `["ledger.py"]` by its path, each a table of its own."""
    toml = importlib.import_module("tomllib")  # since Python 3.11
    found = []
    for path in sorted(folder.glob("*.toml")):
        for file, entries in toml.loads(path.read_text()).items():
            for entry in entries:
                if set(entry) != _FIELDS or not all(isinstance(value, str) and value.strip() for value in entry.values()):
                    raise ValueError(f"{path.name}: a note has {', '.join(sorted(_FIELDS))}, all of them words; found {entry}")
                found.append(Note(file, **entry))
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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The rows of versions.ini: which programs of others run in the lab and in the tests, and where newer ones are asked for."""

from __future__ import annotations

from configparser import ConfigParser
from dataclasses import dataclass
from datetime import date
from typing import Final

from .places import SOURCES

FILE: Final = SOURCES / "versions.ini"


@dataclass(frozen=True)
class Program:
    """One row, as the head of the file describes it. newest, read: what a person found where no program can ask, and when."""

    name: str
    version: str
    source: str
    line: str = ""
    pre: bool = False
    newest: str = ""
    read: date | None = None
    reason: str = ""


def parse(text: str) -> dict[str, Program]:
    """The rows by their names. ValueError where one has a key that none has, or lacks one."""
    rows = ConfigParser(interpolation=None)
    rows.read_string(text)
    programs = {}
    for name in rows.sections():
        row = rows[name]
        if strange := {"version", "from"} - set(row) or set(row) - {"version", "from", "line", "pre", "newest", "read", "reason"}:
            raise ValueError(f"{FILE.name}: [{name}]: {', '.join(sorted(strange))}: expected what the head of the file names")
        read = date.fromisoformat(row["read"]) if "read" in row else None
        words = {key: row.get(key, "") for key in ("version", "line", "newest", "reason")}
        programs[name] = Program(name, source=row["from"], pre=row.getboolean("pre", False), read=read, **words)
    return programs


PROGRAMS: Final = parse(FILE.read_text())


def version(name: str) -> str:
    """That of a row."""
    return PROGRAMS[name].version


def released(release: str) -> str:
    """The version of Kubernetes that stands for a minor release: 1.22.17 of 1.22."""
    (found,) = (one.version for one in PROGRAMS.values() if one.name.startswith("kubernetes") and one.version.startswith(f"{release}."))
    return found

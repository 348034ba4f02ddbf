# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the pages tell people to do: the commands of their blocks, the outputs that they show, the rows of their tables.

A block of commands stands below one of three marks. `run: TEST`: the test reads it and runs it as it stands. `tried: TEST`: the test
runs the same commands with other names. `not run: WHY`. An output stands below `output: TEST`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
BLOCK: Final = re.compile(
    r"(?:<!-- (?P<mark>run|tried|not run|output): (?P<text>.*?) -->\s*)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block. mark: run, tried, not run, output or "" for none; text: the test, or why not."""

    mark: str
    text: str
    kind: str
    body: str

    @property
    def commands(self) -> list[str]:
        """Its commands, without comments; a line that ends with a backslash continues on the next one."""
        lines = (re.sub(r"(^|\s+)# .*$", "", line).rstrip() for line in self.body.replace("\\\n", " ").splitlines())
        return [line for line in lines if line]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = (REPOSITORY / page).read_text()
    return [Block(one["mark"] or "", one["text"] or "", one["kind"], one["body"]) for one in BLOCK.finditer(text)]


@dataclass(frozen=True)
class Step:
    """One command of a page, and the output that the page shows for it, "" for none."""

    command: str
    output: str = ""


def steps(page: str, test: str) -> list[Step]:
    """What a page lets this test run, in order."""
    found: list[Step] = []
    for block in blocks(page):
        if block.text != test:
            continue
        if block.mark == "run":
            found += map(Step, block.commands)
        elif block.mark == "output":
            found[-1] = Step(found[-1].command, block.body)
    return found


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    text = (REPOSITORY / page).read_text()
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no section {heading}"
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables in a text, without headers."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    rules = [at for at, cells in enumerate(lines) if all(set(cell) <= {"-", " ", ":"} for cell in cells)]
    return [cells for at, cells in enumerate(lines) if at not in rules and at + 1 not in rules]


def by_column(text: str) -> dict[str, dict[str, str]]:
    """The tables of a text: header of a column to its cells, by the first cell of their row."""
    found: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        names = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
        for row in rows(table):
            for name, cell in zip(names[1:], row[1:], strict=True):
                found.setdefault(name, {})[row[0]] = cell
    return found


def codes(cell: str) -> list[str]:
    """What stands in code quotes."""
    return re.findall(r"`([^`]+)`", cell)

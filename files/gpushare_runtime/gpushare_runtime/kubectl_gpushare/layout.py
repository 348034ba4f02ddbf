# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Rows → lines of text: aligned columns, GPUs folded to the width of the terminal, colours. `rich` measures and colours only: its own
tables take half a minute for 5000 rows. It is imported where it is used: the dashboard needs the rows, and no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Final, NamedTuple

GAP: Final = "  "
ABSENT: Final = "-"
_INDENT: Final = 4
_NARROWEST: Final = 20
_MOST_LINES: Final = 4
HEADER: Final = "bold"
BAD: Final = "bold red"
WARN: Final = "yellow"
ODD: Final = "magenta"
GOOD: Final = "green"


class Cell(NamedTuple):
    """text: printable; key: what it is sorted by, itself if None. A large table has a million of them."""

    text: str
    style: str = ""
    key: float | None = None


@dataclass(frozen=True)
class Column:
    """wide: shown with -o wide only; right: aligned so; flexible: what does not fit into the terminal stands below its
    row; the last column only."""

    name: str
    right: bool = False
    wide: bool = False
    flexible: bool = False


@dataclass
class Row:
    """name: for -o name; cells: one per column; grid: cells that are folded behind the columns, one per GPU."""

    name: str
    cells: Sequence[Cell]
    grid: Sequence[Cell] = ()


@dataclass
class Table:
    """One view. grid: headers of the folded cells; legend: what is below the rows."""

    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    grid: Sequence[str] = ()
    legend: Sequence[str] = ()


class UnknownColumnError(ValueError):
    """--sort-by with a column that this view has not."""


def sort_rows(table: Table, by: str, reverse: bool) -> None:
    """In place, by the column of that name in any case. UnknownColumnError lists those that there are."""
    names = [column.name.lower() for column in table.columns]
    if by.lower() not in names:
        raise UnknownColumnError(f"found --sort-by={by[:80]!r}; expected a column of this view: {', '.join(names)}")
    at = names.index(by.lower())
    table.rows.sort(key=lambda row: _key(row.cells[at]), reverse=reverse)


def _key(cell: Cell) -> tuple[bool, float, str]:
    return cell.key is None, cell.key or 0.0, cell.text


def lines_of(table: Table, *, wide: bool = False, width: int | None = None, headers: bool = True, colours: bool = False) -> list[str]:
    """The table as lines without line ends. width: of the terminal in columns, None for no limit."""
    shown = [at for at, column in enumerate(table.columns) if wide or not column.wide]
    columns = [table.columns[at] for at in shown]
    body = [[row.cells[at] for at in shown] for row in table.rows]
    head = [Cell(column.name, HEADER) for column in columns]
    lines = [*([head] if headers else []), *body]
    sizes = [_widest(cells[at] for cells in lines) for at in range(len(columns))]
    below = len(table.rows) * [""]
    if width and columns[-1].flexible and not wide:
        room = width - sum(sizes[:-1]) - len(GAP) * (len(sizes) - 1)
        for at, cells in enumerate(body):
            if _length(cells[-1].text) > room:
                below[at], cells[-1] = cells[-1].text, Cell("")
        sizes[-1] = _widest([cells[-1] for cells in lines])
    grid = _Grid(table, sum(sizes) + len(GAP) * len(sizes), width, headers)
    aligned = (_aligned([cells[at] for cells in lines], sizes[at], column.right, colours) for at, column in enumerate(columns))
    parts = list(zip(*aligned, strict=True))
    out: list[str] = []
    if headers:
        out += _joined(parts.pop(0), grid.folded([Cell(title, HEADER) for title in table.grid]), grid, colours)
    for row, texts, more in zip(table.rows, parts, below, strict=True):
        out += _joined(texts, grid.folded(row.grid), grid, colours)
        if more:
            indent = " " * _INDENT
            out += wrap(more, max(width or 0, _NARROWEST), initial_indent=indent, subsequent_indent=indent, max_lines=_MOST_LINES,
                        placeholder=" …", break_on_hyphens=False)  # fmt: skip
    if headers and table.legend:
        out += ["", *table.legend]
    return out


class _Grid:
    """How many of the GPUs' cells fit beside the columns, and how wide each is."""

    def __init__(self, table: Table, used: int, width: int | None, headers: bool) -> None:
        titles = [Cell(title) for title in table.grid] if headers else []
        self.indent = " " * used
        self.size = _widest([*titles, *(cell for row in table.rows for cell in row.grid)])
        self.per_line = len(table.grid)
        if width and self.size:
            fitting = max(1, (width - used + len(GAP)) // (self.size + len(GAP)))
            if fitting < self.per_line:
                # GPUs come in twos, fours and eights.
                self.per_line = 1 << (fitting.bit_length() - 1)

    def folded(self, cells: Sequence[Cell]) -> list[Sequence[Cell]]:
        """In lines; those at the end on which every GPU is absent are left out, where there are several."""
        if not self.per_line:
            return []
        if self.per_line < len(cells):
            last = max((at for at, cell in enumerate(cells) if cell.text != ABSENT), default=0)
            cells = cells[: (last // self.per_line + 1) * self.per_line]
        return [cells[at : at + self.per_line] for at in range(0, len(cells), self.per_line)]


def _widest(cells: Iterable[Cell]) -> int:
    texts = [cell.text for cell in cells]
    return max(map(len if "".join(texts).isascii() else _length, texts), default=0)


def _length(text: str) -> int:
    """In columns of the terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _joined(parts: Sequence[str], grid: list[Sequence[Cell]], of: _Grid, colours: bool) -> list[str]:
    """One row, and the lines that its GPUs need besides. parts: of the columns, aligned."""
    if not grid:
        return [GAP.join(parts).rstrip()]
    first, *others = (GAP.join(_sized(cell, of.size, False, colours) for cell in cells) for cells in grid)
    return [GAP.join([*parts, first]).rstrip(), *((of.indent + more).rstrip() for more in others)]


def _aligned(cells: Sequence[Cell], size: int, right: bool, colours: bool) -> list[str]:
    """The texts of one column. A large table has a million: the usual ones without a call of ours for each."""
    texts = [cell.text for cell in cells]
    if colours or not "".join(texts).isascii():
        return [_sized(cell, size, right, colours) for cell in cells]
    return [text.rjust(size) for text in texts] if right else [text.ljust(size) for text in texts]


def _sized(cell: Cell, size: int, right: bool, colours: bool) -> str:
    if not colours and cell.text.isascii():
        return cell.text.rjust(size) if right else cell.text.ljust(size)
    blank = " " * (size - _length(cell.text))
    painted = paint(cell.text, cell.style) if colours else cell.text
    return blank + painted if right else painted + blank


def paint(text: str, style: str) -> str:
    """With the escapes of a style, in the sixteen colours that every terminal has."""
    if not style or not text:
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

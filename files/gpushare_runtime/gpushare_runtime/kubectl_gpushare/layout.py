# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Rows → lines of text: aligned columns, GPUs folded to the width of the terminal, colours. `rich` measures and colours only: its own
tables take half a minute for 5000 rows. It is imported where it is used: the dashboard needs the rows, and no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Final, NamedTuple

from gpushare_runtime.kubectl_gpushare.errors import UsageError

GAP: Final = "  "
ABSENT: Final = "-"
_INDENT: Final = 4
_NARROWEST: Final = 20
#: Of the terminal, for a column that is folded where it stands.
_ROOMY: Final = 48
_MOST_LINES: Final = 4
_EIGHTHS: Final = "▏▎▍▌▋▊▉"
_EIGHTHS_UP: Final = "▁▂▃▄▅▆▇█"
_EMPTY: Final = "·"
HEADER: Final = "bold"
PAINTED: Final = "painted"
"""Of a text that has its escapes already, with its length as its key."""
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
    """wide: shown with -o wide only. right: aligned so. flexible: what does not fit into the terminal is folded, in its column or below its
    row; the last column only. clock: it changes with the time alone."""

    name: str
    right: bool = False
    wide: bool = False
    flexible: bool = False
    clock: bool = False


@dataclass
class TableRow:
    """name: for -o name. cells: one per column. grid: cells behind the columns, one per GPU. shares: how full each GPU is, from 0 to 1,
    None for one that takes nothing. glyphs: for each GPU one letter instead, "" for one by its share."""

    name: str
    cells: Sequence[Cell]
    grid: Sequence[Cell] = ()
    shares: Sequence[float | None] = ()
    glyphs: Sequence[str] = ()


@dataclass
class Table:
    """One view. grid: headers of the cells of GPUs. marks: the meaning of the letters in these cells. glyphs: their meaning where a GPU is
    drawn as a glyph. legend: the text below the table."""

    columns: Sequence[Column]
    rows: list[TableRow] = field(default_factory=list)
    grid: Sequence[str] = ()
    legend: Sequence[str] = ()
    marks: str = ""
    glyphs: str = ""


def sort_rows(table: Table, by: str, reverse: bool) -> None:
    """In place, by the column of that name in any case. UsageError lists those that there are."""
    names = [column.name.lower() for column in table.columns]
    if by.lower() not in names:
        raise UsageError(f"found --sort-by={by[:80]!r}; expected a column of this view: {', '.join(names)}")
    at = names.index(by.lower())
    table.rows.sort(key=lambda row: _key(row.cells[at]), reverse=reverse)


def _key(cell: Cell) -> tuple[bool, float, str]:
    return cell.key is None, cell.key or 0.0, cell.text


def lines_of(
    table: Table, *, wide: bool = False, width: int | None = None, headers: bool = True, colours: bool = False, blocks: bool = False
) -> list[str]:
    """The table as lines without line ends. width: of the terminal in columns, None for no limit; blocks: whether it shows ▁ to █.

    GPUs are numbers with a bar where all of them fit beside the columns, else numbers, else one glyph each.
    """
    shown = [at for at, column in enumerate(table.columns) if wide or not column.wide]
    columns = [table.columns[at] for at in shown]
    body = [[row.cells[at] for at in shown] for row in table.rows]
    head = [Cell(column.name, HEADER) for column in columns]
    lines = [*([head] if headers else []), *body]
    sizes = [_widest(cells[at] for cells in lines) for at in range(len(columns))]
    below: list[list[str]] = [[] for _row in table.rows]
    if width and columns[-1].flexible and not wide:
        room = width - sum(sizes[:-1]) - len(GAP) * (len(sizes) - 1)
        for at, cells in enumerate(body):
            text, style, _key = cells[-1]
            if _length(text) > room:
                # Of blanks alone there is no line.
                first, *below[at] = _folded(text, width - room, width) or [""] if room >= _ROOMY else ["", *_folded(text, _INDENT, width)]
                cells[-1] = Cell(first.strip(), style)
        sizes[-1] = _widest([cells[-1] for cells in lines])
    used = sum(sizes) + len(GAP) * len(sizes)
    compact = blocks and width is not None and bool(table.grid) and _needs(table, headers, 0) > width - used
    if blocks and width is not None and _needs(table, headers, len(_bar(0.0)) + 1) <= width - used:
        table = _with_bars(table)
    grid = _Grid(_with_glyphs(table, colours) if compact else table, used, width, headers)
    aligned = (_aligned([cells[at] for cells in lines], sizes[at], column.right, colours) for at, column in enumerate(columns))
    parts = list(zip(*aligned, strict=True))
    out: list[str] = []
    if headers:
        out += _joined(parts.pop(0), grid.folded([Cell(title, HEADER) for title in grid.titles]), grid, colours)
    for row, texts, more in zip(grid.rows, parts, below, strict=True):
        out += _joined(texts, grid.folded(row.grid), grid, colours)
        out += more
    marks = table.glyphs if compact else table.marks
    legend = [*([marks] if marks else []), *table.legend]
    if headers and legend:
        out += ["", *legend]
    return out


def _folded(text: str, start: int, width: int) -> list[str]:
    """In lines that begin with so many blanks."""
    blanks = " " * start
    return wrap(text, max(width, _NARROWEST), initial_indent=blanks, subsequent_indent=blanks, max_lines=_MOST_LINES, placeholder=" …",
                break_on_hyphens=False)  # fmt: skip


def _needs(table: Table, headers: bool, more: int) -> int:
    """Columns of the terminal for all cells of GPUs in one line, each longer by so many."""
    size = _widest([*([Cell(title) for title in table.grid] if headers else []), *(cell for row in table.rows for cell in row.grid)])
    return len(table.grid) * (size + more + len(GAP)) - len(GAP)


def _bar(share: float | None) -> str:
    """Three letters wide."""
    eighths = round((share or 0.0) * 24)
    full, part = divmod(eighths, 8)
    text: str = "█" * full + ("", *_EIGHTHS)[part]
    return text.ljust(3)


def _with_bars(table: Table) -> Table:
    rows = [
        replace(row, grid=[Cell(f"{_bar(share)} {cell.text}", cell.style) for cell, share in zip(row.grid, row.shares, strict=True)])
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _with_glyphs(table: Table, colours: bool) -> Table:
    """One cell a row, with a letter for each GPU."""
    rows = []
    for row in table.rows:
        letters = [
            Cell(letter or (_EMPTY if not share else _EIGHTHS_UP[min(7, int(share * 8))]), cell.style)
            for cell, share, letter in zip(row.grid, row.shares, row.glyphs, strict=True)
        ]
        text = "".join(paint(letter.text, letter.style) if colours else letter.text for letter in letters)
        rows.append(replace(row, grid=[Cell(text, PAINTED, len(letters))]))
    return replace(table, rows=rows, grid=[f"GPU0-{len(table.grid) - 1}"])


class _Grid:
    """How many of the GPUs' cells fit beside the columns, and how wide each is."""

    def __init__(self, table: Table, used: int, width: int | None, headers: bool) -> None:
        self.titles, self.rows = table.grid, table.rows
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
    known = list(cells)
    if any(cell.style == PAINTED for cell in known):
        return max(int(cell.key or 0) if cell.style == PAINTED else _length(cell.text) for cell in known)
    texts = [cell.text for cell in known]
    return max(map(len if "".join(texts).isascii() else _length, texts), default=0)


def _length(text: str) -> int:
    """In columns of the terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _joined(parts: Sequence[str], lines: list[Sequence[Cell]], grid: _Grid, colours: bool) -> list[str]:
    """One row, and the lines that its GPUs need besides. parts: of the columns, aligned."""
    if not lines:
        return [GAP.join(parts).rstrip()]
    first, *others = (GAP.join(_sized(cell, grid.size, False, colours) for cell in cells) for cells in lines)
    return [GAP.join([*parts, first]).rstrip(), *((grid.indent + more).rstrip() for more in others)]


def _aligned(cells: Sequence[Cell], size: int, right: bool, colours: bool) -> list[str]:
    """The texts of one column. A large table has a million: the usual ones without a call of ours for each."""
    texts = [cell.text for cell in cells]
    if colours or not "".join(texts).isascii():
        return [_sized(cell, size, right, colours) for cell in cells]
    return [text.rjust(size) for text in texts] if right else [text.ljust(size) for text in texts]


def _sized(cell: Cell, size: int, right: bool, colours: bool) -> str:
    if cell.style == PAINTED:
        return cell.text + " " * (size - int(cell.key or 0))
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

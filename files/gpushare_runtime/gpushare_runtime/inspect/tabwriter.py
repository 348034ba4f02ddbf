# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Columns of text the way Go's text/tabwriter aligns them, which is how the original prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PADDING: Final = 2


def align(text: str) -> str:
    """Every tab in `text` becomes spaces so that the cells of adjacent lines stand below each other.

    A column is a run of lines that each have a tab-terminated cell there; it is as wide as its widest cell
    plus PADDING. What follows a line's last tab belongs to no column. `text` ends with a newline.
    """
    lines = [line.split("\t") for line in text.splitlines()]
    out: list[str] = []
    _format(lines, (), out)
    return "".join(out)


def _format(lines: Sequence[Sequence[str]], widths: tuple[int, ...], out: list[str]) -> None:
    """Find the runs of lines that go on to one more column than `widths` knows; print the others between them."""
    column = len(widths)
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and len(lines[end]) - 1 > column:
            end += 1
        if end == at:
            out.append(_line(lines[at], widths))
            at += 1
        else:
            run = lines[at:end]
            _format(run, (*widths, max(len(line[column]) for line in run) + PADDING), out)
            at = end


def _line(cells: Sequence[str], widths: tuple[int, ...]) -> str:
    # Here as many widths are known as the line has tab-terminated cells.
    *columns, rest = cells
    return "".join(cell.ljust(width) for cell, width in zip(columns, widths, strict=True)) + rest + "\n"

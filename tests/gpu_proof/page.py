# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The throughput of a report as a table and a picture for the docs. The proof writes both beside its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

_WIDTH, _BAR, _LEFT, _ROW, _TOP = 760, 380, 250, 22, 40
_NAMES: Final = {"mps": "MPS"}
_COLOURS: Final = {"none": "#5b6770", "mps": "#3b7d23"}


def rows_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the step about sharing has measured."""
    return [row for step in report["steps"] for row in step["values"].get("throughput", ())]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    head = "| program | isolation | programs | a second, together | of one alone | slowest of fastest |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['kind']} | `{row['isolation']}` | {row['programs']} | {row['per_second']} | {row['of_one']} "
        f"| {row['slowest_of_fastest']} |\n"
        for row in rows
    )


def picture(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """SVG: one bar a row, as long as the throughput of all programs together, of one alone."""
    longest = max((float(row["of_one"]) for row in rows), default=1.0) or 1.0
    bars = []
    for place, row in enumerate(rows):
        y, length = _TOP + place * _ROW, round(_BAR * float(row["of_one"]) / longest, 1)
        isolation = "" if row["isolation"] == "none" else f", {_NAMES.get(str(row['isolation']), row['isolation'])}"
        name = escape(f"{row['programs']} × {str(row['kind']).replace('-', ' ')}{isolation}")
        colour = _COLOURS.get(str(row["isolation"]), "#1f5fa8")
        bars.append(
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{name}</text>'
            f'<rect x="{_LEFT}" y="{y + 2}" width="{length}" height="{_ROW - 6}" fill="{colour}"/>'
            f'<text x="{_LEFT + length + 6}" y="{y + 14}">{row["of_one"]}</text>'
        )
    height = _TOP + len(rows) * _ROW + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/><text x="12" y="22" font-size="14">{escape(title)}</text>\n'
        + "\n".join(bars)
        + "\n</svg>\n"
    )


def write(report: Mapping[str, Any], file: Path) -> None:
    """Beside the report; nothing where nothing was measured."""
    if rows := rows_of(report):
        model = next((str(step["values"]["model"]) for step in report["steps"] if step["values"].get("model")), "this GPU")
        file.with_suffix(".md").write_text(table(rows))
        file.with_suffix(".svg").write_text(picture(rows, f"Throughput of all programs together, of one alone: {model}"))

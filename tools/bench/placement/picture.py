# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The picture of the figures: GPUs in use over what pods have asked for, by policy, one panel for each trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from picture import LICENCE

#: Trace to the title of its panel.
PANELS: Final = {"default": "no pod names a GPU model", "gpuspec25": "a quarter of the pods with GPUs names models"}
#: Policy to its name in the picture, its colour and its dashes.
LINES: Final = {
    "binpack": ("binpack", "#1f5f99", ""),
    "no score": ("no score at all", "#777777", "2 4"),
    "before": ("former binpack, which knew no scarce GPUs", "#c0501e", "7 4"),
}
WIDTH: Final = 960
HEIGHT: Final = 400
_LEFT, _TOP, _WIDE, _HIGH, _GAP = 60, 60, 400, 270, 70
_LOADS: Final = (80, 130)
_USED: Final = (65, 100)


def drawn(figures: Sequence[Mapping[str, Any]]) -> str:
    """The SVG. figures: of the part `filled`; others are left out."""
    panels = "\n".join(_panel(number, trace, figures) for number, trace in enumerate(PANELS))
    shown = [policy for policy in LINES if any(one["policy"] == policy and one["part"] == "filled" for one in figures)]
    legend = "\n".join(_legend(number, policy) for number, policy in enumerate(shown))
    title = "<title>Part of all GPUs that is in use, over what pods have asked for, by policy</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n{LICENCE}{title}<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f"{panels}\n{legend}\n</svg>\n"
    )


def _panel(number: int, trace: str, figures: Sequence[Mapping[str, Any]]) -> str:
    left = _LEFT + number * (_WIDE + _GAP)
    parts = [
        f'<text x="{left}" y="24" font-weight="bold">{escape(trace)}</text>',
        f'<text x="{left}" y="42">{escape(PANELS[trace])}</text>',
        f'<rect x="{left}" y="{_TOP}" width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#999999"/>',
    ]
    for used in range(_USED[0], _USED[1] + 1, 5):
        y = _y(used)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + _WIDE}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{used} %</text>')
    for load in range(_LOADS[0], _LOADS[1] + 1, 10):
        parts.append(f'<text x="{_x(left, load):.1f}" y="{_TOP + _HIGH + 18}" text-anchor="middle">{load} %</text>')
    words = "asked for, in per cent of all GPUs"
    parts.append(f'<text x="{left + _WIDE / 2:g}" y="{_TOP + _HIGH + 36}" text-anchor="middle">{words}</text>')
    for policy, (_, colour, dashes) in LINES.items():
        of = [one for one in figures if (one["part"], one["trace"], one["policy"]) == ("filled", trace, policy)]
        points = " ".join(f"{_x(left, one['load']):.1f},{_y(one['in_use']):.1f}" for one in sorted(of, key=lambda one: one["load"]))
        if points:
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
    return "\n".join(parts)


def _legend(number: int, policy: str) -> str:
    name, colour, dashes = LINES[policy]
    x, y = _LEFT + number * 300, HEIGHT - 10
    line = f'<line x1="{x}" y1="{y - 4}" x2="{x + 36}" y2="{y - 4}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
    return f'{line}<text x="{x + 44}" y="{y}">{escape(name)}</text>'


def _x(left: int, load: float) -> float:
    return left + _WIDE * (load - _LOADS[0]) / (_LOADS[1] - _LOADS[0])


def _y(used: float) -> float:
    return _TOP + _HIGH * (_USED[1] - used) / (_USED[1] - _USED[0])

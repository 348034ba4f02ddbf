# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The picture of fleets: CPU seconds of the controller for each GPU node, over the GPU nodes, a line for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from picture import LICENCE

#: Step to its colour.
LINES: Final = {
    "upgrade": "#7a3fa0",
    "first site": "#c0501e",
    "site": "#1f5f99",
    "uninstall": "#777777",
    "preflight": "#8a7500",
    "verify": "#2e7d32",
}
WIDTH: Final = 760
HEIGHT: Final = 360
_LEFT, _TOP, _WIDE, _HIGH = 60, 40, 560, 260
#: Height of the name of a line.
_NAME: Final = 15
_MOST_NODES, _MOST_SECONDS = 200, 2.0


def lines(found: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Step to (GPU nodes, CPU seconds a node), of its newest measurement with several sizes. found: the measurements of fleet.json."""
    newest: dict[str, list[tuple[int, float]]] = {}
    for one in found:
        for step in LINES:
            points = sorted((run["nodes"], run["seconds"] / run["nodes"]) for run in one["runs"] if run["step"] == step)
            if len({nodes for nodes, _seconds in points}) > 1:
                newest[step] = points
    return newest


def drawn(found: Sequence[Mapping[str, Any]]) -> str:
    """The SVG. found: the measurements of fleet.json."""
    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#999999"/>']
    for tenths in range(0, round(_MOST_SECONDS * 10) + 1, 5):
        y = _y(tenths / 10)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDE}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tenths / 10:.1f} s</text>')
    parts += [
        f'<text x="{_x(nodes):.1f}" y="{_TOP + _HIGH + 18}" text-anchor="middle">{nodes}</text>' for nodes in range(0, _MOST_NODES + 1, 25)
    ]
    parts.append(f'<text x="{_LEFT + _WIDE / 2:g}" y="{_TOP + _HIGH + 38}" text-anchor="middle">GPU nodes</text>')
    below = 0.0
    for step, points in sorted(lines(found).items(), key=lambda line: -line[1][-1][1]):
        path = " ".join(f"{_x(nodes):.1f},{_y(seconds):.1f}" for nodes, seconds in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{LINES[step]}" stroke-width="2"/>')
        parts += [f'<circle cx="{_x(nodes):.1f}" cy="{_y(seconds):.1f}" r="3" fill="{LINES[step]}"/>' for nodes, seconds in points]
        nodes, seconds = points[-1]
        below = max(_y(seconds), below + _NAME)
        words = f"{escape(step)} {seconds:.2f} s"
        parts.append(f'<text x="{_x(nodes) + 8:.1f}" y="{below + 4:.1f}" fill="{LINES[step]}">{words}</text>')
    title = "CPU seconds of the controller for each GPU node"
    text = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n{LICENCE}<title>{title}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{_LEFT}" y="24" font-weight="bold">{title}</text>\n{text}\n</svg>\n'
    )


def _x(nodes: int) -> float:
    return _LEFT + _WIDE * nodes / _MOST_NODES


def _y(seconds: float) -> float:
    return _TOP + _HIGH * (1 - seconds / _MOST_SECONDS)

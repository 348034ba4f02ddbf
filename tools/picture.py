# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The picture of the design: `python tools/picture.py` checks docs/picture.svg, `--write` draws it again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FILE: Final = Path(__file__).resolve().parent.parent / "docs/picture.svg"
WIDTH: Final = 960
HEIGHT: Final = 300
LICENCE: Final = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Copyright: gpushare.kubernetes contributors -->\n"


@dataclass(frozen=True)
class Box:
    """One box: its place and size in pixels, the lines of its text, and whether it is a part of this product."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    ours: bool = False

    def draw(self) -> str:
        fill, stroke = ("#dcecf9", "#1f5f99") if self.ours else ("#f4f4f4", "#777777")
        middle = self.y + self.height / 2 - 8 * (len(self.lines) - 1)
        rows = "".join(
            f'<text x="{self.x + self.width / 2:g}" y="{middle + 16 * number + 5:g}" text-anchor="middle">{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        )
        shape = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" fill="{fill}" stroke="{stroke}"/>'
        return shape + rows


@dataclass(frozen=True)
class Frame:
    """A dashed frame with a title, for a host."""

    x: int
    y: int
    width: int
    height: int
    title: str

    def draw(self) -> str:
        shape = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="10" fill="none" stroke="#999999"'
        return f'{shape} stroke-dasharray="6 4"/><text x="{self.x + 12}" y="{self.y + 20}" font-weight="bold">{escape(self.title)}</text>'


@dataclass(frozen=True)
class Arrow:
    """From one point to another, with a text beside its middle."""

    x1: int
    y1: int
    x2: int
    y2: int
    text: str = ""
    dx: int = 0
    dy: int = -6

    def draw(self) -> str:
        line = f'<line x1="{self.x1}" y1="{self.y1}" x2="{self.x2}" y2="{self.y2}" stroke="#333333" marker-end="url(#head)"/>'
        x, y = (self.x1 + self.x2) / 2 + self.dx, (self.y1 + self.y2) / 2 + self.dy
        words = f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-style="italic">{escape(self.text)}</text>'
        return line + (words if self.text else "")


PARTS: Final = (
    Frame(10, 60, 340, 230, "control plane"),
    Frame(490, 60, 460, 230, "GPU node"),
    Box(60, 10, 230, 34, ("pod: aliyun.com/gpu-mem: 8",)),
    Box(30, 95, 200, 44, ("kube-scheduler",)),
    Box(30, 205, 200, 60, ("gpushare-extender", "chooses the GPU"), ours=True),
    Box(260, 95, 75, 170, ("API", "server")),
    Box(510, 95, 140, 44, ("kubelet",)),
    Box(510, 205, 140, 60, ("gpushare-", "device-plugin"), ours=True),
    Box(765, 90, 170, 30, ("GPU 0: pod A, 8 GiB",)),
    Box(765, 122, 170, 30, ("pod B, 6 GiB",)),
    Box(765, 154, 170, 24, ("free, 2 GiB",)),
    Box(765, 205, 170, 60, ("GPU 1: whole,", "pod C")),
    Arrow(130, 44, 130, 93),
    Arrow(90, 139, 90, 203, "room?", -26, 4),
    Arrow(170, 203, 170, 141, "nodes", 28, 4),
    Arrow(230, 235, 258, 235),
    Arrow(335, 117, 508, 117, "pod with its GPU"),
    Arrow(580, 139, 580, 203, "which units?", 48, 4),
    Arrow(650, 117, 763, 117, "container"),
    Arrow(650, 235, 763, 235, "health"),
)


def picture() -> str:
    """The SVG."""
    size = 'markerWidth="10" markerHeight="8" refX="9" refY="4" orient="auto"'
    head = f'<defs><marker id="head" {size}><path d="M0,0 L10,4 L0,8 z"/></marker></defs>'
    title = "<title>The extender chooses the GPU, the device plugin makes kubelet allocate units of it</title>"
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    parts = "\n".join(part.draw() for part in PARTS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="14">\n{LICENCE}{title}{head}{background}\n{parts}\n</svg>\n'
    )


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(picture())
    if not FILE.is_file() or FILE.read_text() != picture():
        sys.exit("docs/picture.svg is not as tools/picture.py draws it; run `python tools/picture.py --write`")
    print("docs/picture.svg is current")


if __name__ == "__main__":
    main()

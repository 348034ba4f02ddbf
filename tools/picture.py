# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pictures of the design, wide and for a phone, light and dark: `python tools/picture.py` checks them, `--write` draws them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs/pictures"
LICENCE: Final = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Copyright: gpushare.kubernetes contributors -->\n"
TITLE: Final = "The extender chooses a GPU and binds the pod; the device plugin makes kubelet allocate units of that GPU"
FONT: Final = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
#: What happens, by its number in the picture.
STEPS: Final = ("which GPUs have room?", "one Binding, with GPU 1", "8 GiB of GPU 1 alone", "the container sees GPU 1")
#: The GPUs of the node are those of the Event in docs/use/first-pod.md: their model, and GiB.
MODEL: Final = ("NVIDIA L40S", 44)
#: Role of a colour to the colour, by theme.
THEMES: Final = {
    "light": {
        "panel": "#f6f8fa",
        "edge": "#d1d9e0",
        "text": "#1f2328",
        "faint": "#59636e",
        "box": "#ffffff",
        "ours": "#0969da",
        "on ours": "#ffffff",
        "line": "#59636e",
        "yours": "#1a7f37",
        "other": "#8250df",
        "third": "#bf8700",
        "free": "#e6eaef",
    },
    "dark": {
        "panel": "#151b23",
        "edge": "#3d444d",
        "text": "#f0f6fc",
        "faint": "#9198a1",
        "box": "#212830",
        "ours": "#1f6feb",
        "on ours": "#ffffff",
        "line": "#9198a1",
        "yours": "#3fb950",
        "other": "#a371f7",
        "third": "#d29922",
        "free": "#2a313c",
    },
}


@dataclass
class Canvas:
    """An SVG that grows. colours: those of a theme; all lengths in pixels."""

    width: int
    height: int
    colours: dict[str, str]
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, words: str, colour: str = "text", *, size: int = 14, style: str = "", anchor: str = "middle"
    ) -> None:
        where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text {where} fill="{self.colours[colour]}" font-size="{size}"{style}>{escape(words)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, fill: str, edge: str = "", radius: int = 8) -> None:
        stroke = f' stroke="{self.colours[edge]}"' if edge else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{self.colours[fill]}"{stroke}/>'
        )

    def panel(self, x: int, y: int, width: int, height: int, title: str) -> None:
        """A host or a file."""
        self.rect(x, y, width, height, "panel", "edge", 12)
        self.text(x + 16, y + 25, title, "faint", size=13, style=' font-weight="600"', anchor="start")

    def box(self, x: int, y: int, width: int, height: int, lines: Sequence[str], *, ours: bool = False, name: int = 1) -> None:
        """A program. ours: whether it is a part of this product; name: how many of its lines are its name."""
        self.rect(x, y, width, height, "ours" if ours else "box", "" if ours else "edge")
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            bold = ' font-weight="600"' if number < name else ""
            self.text(x + width / 2, first + 18 * number, line, "on ours" if ours else "text", size=14 if bold else 13, style=bold)

    def arrow(self, *points: tuple[int, int]) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        line = f'fill="none" stroke="{self.colours["line"]}" stroke-width="1.5" marker-end="url(#head)"'
        self.parts.append(f'<polyline points="{path}" {line}/>')

    def step(self, x: int, y: int, number: int) -> None:
        """The number of a step, in a circle."""
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="10" fill="{self.colours["text"]}"/>')
        self.text(x, y + 4, str(number), "panel", size=12, style=' font-weight="700"')

    def gpu(self, x: int, y: int, width: int, name: str, shares: Sequence[tuple[int, str]]) -> None:
        """shares: GiB and colour of each pod."""
        self.text(x, y - 7, name, size=13, anchor="start")
        used, most = sum(size for size, _ in shares), MODEL[1]
        self.text(x + width, y - 7, f"{used} of {most} GiB", "faint", size=12, anchor="end")
        self.rect(x, y, width, 20, "free", radius=4)
        for size, colour in shares:
            self.rect(x, y, width * size / most - 2, 20, colour, radius=4)
            x += width * size // most

    def key(self, x: int, y: int, colours: Sequence[str], words: str) -> None:
        for colour in colours:
            self.rect(x, y - 10, 12, 12, colour, radius=3)
            x += 15
        self.text(x + 3, y, words, "faint", size=12, anchor="start")

    def steps(self, x: int, y: int, width: int) -> None:
        """What the numbers mean, one line each; 162 high."""
        self.panel(x, y, width, 162, "what happens")
        x, y = x + 16, y + 53
        for number, words in enumerate(STEPS):
            self.step(x + 10, y + 28 * number, number + 1)
            self.text(x + 28, y + 5 + 28 * number, words, size=13, anchor="start")

    def svg(self) -> str:
        size = 'markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto" markerUnits="userSpaceOnUse"'
        head = f'<defs><marker id="head" {size}><path d="M0,0 L9,4 L0,8 z" fill="{self.colours["line"]}"/></marker></defs>'
        box = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="{FONT}">\n{LICENCE}<title>{TITLE}</title>{head}'
        return "\n".join([start, *self.parts, "</svg>\n"])


def pod(on: Canvas, x: int, y: int, width: int) -> None:
    """What a user writes."""
    on.panel(x, y, width, 100, "your pod")
    for number, line in enumerate(("limits:", "  aliyun.com/gpu-mem: 8")):
        style = ' font-family="ui-monospace, \'DejaVu Sans Mono\', monospace" xml:space="preserve"'
        on.text(x + 16, y + 56 + 21 * number, line, size=12, style=style, anchor="start")


def scheduler(on: Canvas, x: int, y: int) -> None:
    """The two programs that are together in either mode, and the API server; 350 wide, 270 high."""
    on.panel(x, y, 202, 270, "scheduler")
    on.box(x + 16, y + 44, 170, 56, ("kube-scheduler",))
    on.box(x + 16, y + 190, 170, 60, ("gpushare-extender", "chooses GPU 1"), ours=True)
    on.box(x + 270, y + 44, 72, 206, ("API", "server"), name=2)
    on.arrow((x + 66, y + 100), (x + 66, y + 188))
    on.step(x + 46, y + 145, 1)
    on.text(x + 74, y + 149, "room?", "faint", size=13, anchor="start")
    on.arrow((x + 136, y + 190), (x + 136, y + 102))
    on.text(x + 144, y + 149, "nodes", "faint", size=13, anchor="start")
    on.arrow((x + 186, y + 220), (x + 268, y + 220))
    on.step(x + 236, y + 200, 2)
    on.text(x + 236, y + 241, "binds", "faint", size=13)


def gpu_node(on: Canvas, x: int, y: int) -> None:
    """350 wide, 270 high."""
    on.panel(x, y, 350, 270, "GPU node")
    on.box(x + 16, y + 44, 140, 56, ("kubelet",))
    on.box(x + 16, y + 190, 140, 60, ("gpushare-", "device-plugin"), ours=True, name=2)
    on.arrow((x + 56, y + 100), (x + 56, y + 188))
    on.step(x + 36, y + 145, 3)
    on.text(x + 62, y + 149, "8 GiB?", "faint", size=13, anchor="start")
    on.arrow((x + 118, y + 190), (x + 118, y + 102))
    on.text(x + 124, y + 149, "GPU 1", "faint", size=13, anchor="start")
    on.gpu(x + 196, y + 62, 138, "GPU 0", [(24, "other"), (16, "third")])
    on.gpu(x + 196, y + 118, 138, "GPU 1", [(20, "other"), (8, "yours")])
    on.arrow((x + 156, y + 72), (x + 176, y + 72), (x + 176, y + 128), (x + 194, y + 128))
    on.step(x + 176, y + 100, 4)
    on.key(x + 196, y + 168, ["yours"], "your pod, 8 GiB")
    on.key(x + 196, y + 190, ["other", "third"], "other pods")
    on.key(x + 196, y + 212, ["free"], "free")
    on.text(x + 196, y + 241, f"2 × {MODEL[0]}", "faint", size=12, anchor="start")


#: Title of a mode, and what the programs of control plane and node are there.
LANES: Final = (
    ("as services", "by Ansible", ("your kube-scheduler,", "the extender beside it as a service"), ("the device plugin as a service",)),
    (
        "as pods",
        "by Helm",
        ("gpushare-scheduler, on a node without", "GPUs; your kube-scheduler stays as it is"),
        ("the device plugin as a DaemonSet",),
    ),
    (
        "by DRA",
        "Helm, playbook",
        ("your kube-scheduler counts claims:", "no extender, no second scheduler"),
        ("the device plugin as a DaemonSet",),
    ),
)


def wide(colours: dict[str, str]) -> str:
    """For GitHub's width."""
    on = Canvas(960, 486, colours)
    pod(on, 8, 8, 208)
    on.steps(8, 116, 208)
    scheduler(on, 232, 8)
    gpu_node(on, 602, 8)
    on.arrow((216, 80), (246, 80))
    on.arrow((574, 80), (616, 80))
    for number, (title, by, plane, node) in enumerate(LANES):
        y = 296 + 62 * number
        on.rect(8, y, 944, 54, "panel", "edge", 12)
        on.text(24, y + 24, title, size=14, style=' font-weight="600"', anchor="start")
        on.text(24, y + 42, by, "faint", size=13, anchor="start")
        for x, lines in ((248, plane), (618, node)):
            for row, line in enumerate(lines):
                on.text(x, y + 32 - 9 * (len(lines) - 1) + 18 * row, line, size=13, anchor="start")
    return on.svg()


def tall(colours: dict[str, str]) -> str:
    """For a phone."""
    on = Canvas(366, 1126, colours)
    on.steps(8, 8, 350)
    pod(on, 8, 182, 350)
    scheduler(on, 8, 302)
    gpu_node(on, 8, 592)
    on.arrow((140, 282), (140, 344))
    on.arrow((314, 552), (314, 582), (124, 582), (124, 634))
    for number, (title, by, plane, node) in enumerate(LANES):
        y = 882 + 82 * number
        on.rect(8, y, 350, 74, "panel", "edge", 12)
        on.text(20, y + 30, title, size=14, style=' font-weight="600"', anchor="start")
        on.text(20, y + 50, by, "faint", size=13, anchor="start")
        for row, line in enumerate((*plane, *node)):
            on.text(120, y + 24 + 18 * row, line, size=13, anchor="start")
    return on.svg()


def pictures() -> dict[Path, str]:
    """File to the SVG that it must be."""
    drawn = {"design": wide, "design-phone": tall}
    return {FOLDER / f"{name}-{theme}.svg": draw(colours) for name, draw in drawn.items() for theme, colours in THEMES.items()}


def main() -> None:
    made = pictures()
    if sys.argv[1:] == ["--write"]:
        for file, text in made.items():
            file.write_text(text)
    stale = [file.name for file, text in made.items() if not file.is_file() or file.read_text() != text]
    if stale:
        sys.exit(f"{', '.join(stale)} in docs/pictures: not as tools/picture.py draws it; run `python tools/picture.py --write`")
    print(f"{len(made)} pictures of the design are current")


if __name__ == "__main__":
    main()

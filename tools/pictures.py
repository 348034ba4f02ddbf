# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`make pictures`: the pictures of README and docs. `python tools/pictures.py` compares those of the terminal, `--write` draws all.

What is drawn is what the product's own programs show of the made-up cluster in six_nodes.py: a terminal as SVG, the dashboard in
Chromium as PNG. No cluster is needed, and nobody edits a picture. A diagram shows figures of docs/project/benchmarks. Afterwards
`optipng -f0 -zc9 docs/pictures/*.png` (Debian's package) takes a quarter off: the release has a bound, and no picture changes by it.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
RUNTIME: Final = ROOT / "files/gpushare_runtime"
sys.path[:0] = [str(RUNTIME), str(ROOT / "tests"), str(ROOT / "tools/lab")]

from rich.console import Console  # noqa: E402
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME  # noqa: E402
from rich.text import Text  # noqa: E402

from bench.fleet.picture import drawn as fleets  # noqa: E402
from bench.placement.picture import drawn as placement  # noqa: E402
from dashboard.browser import Browser, Loop  # noqa: E402
from dashboard.programs import Cluster, kubectl_dashboard  # noqa: E402
from gpu_proof import page as gpu_page  # noqa: E402
from gpushare_lab.versions import version  # noqa: E402
from six_nodes import WAITING, six_nodes  # noqa: E402
from unit.fakes.runtime.kube.fake_api import kubeconfig  # noqa: E402

FOLDER: Final = ROOT / "docs/pictures"
COLUMNS: Final = 110
# As wide as terminals are, so that the letters can be read on a page. Sentences take a little more, and a phone shows so many.
WIDTHS: Final = {"nodes": 80, "explain": 92, "explain-light": 92, "explain-phone": 56, "explain-phone-light": 56}
_EXPLAINED: Final = WAITING[0]
# Of `kubectl gpushare`, by the name of the picture.
_EXPLAIN: Final = ("explain", _EXPLAINED[1], "-n", _EXPLAINED[0])
TERMINAL: Final = {"nodes": (), "pods": ("pods", "-n", "research"), **{name: _EXPLAIN for name in WIDTHS if name.startswith("explain")}}
# Of the dashboard: the path in the page, the colours, width and height. The README shows it as wide as a forge's page, and as a phone.
# Its picture ends below a node, and has no controls, which nobody can use there.
_POD: Final = f"#/pod/{_EXPLAINED[0]}/{_EXPLAINED[1]}"
PAGES: Final = {
    "dashboard-light": ("#/nodes", "light", 1280, 1020),
    "dashboard-dark": (_POD, "dark", 1280, 664),
    **{f"readme-{colours}": ("#/nodes", colours, 1056, 428) for colours in ("light", "dark")},
    **{f"phone-{colours}": ("#/nodes", colours, 400, 641) for colours in ("light", "dark")},
}
# Those of the README, which have to be read at a glance: of the first nodes only, which have no trouble.
FIRST: Final = {name: 2 for name in (*TERMINAL, *PAGES) if name.startswith(("explain", "readme-", "phone-"))}
_CONTROLS: Final = ("theme", "filters", "filter-toggle")
_ALL: Final = 6
_H100: Final = "gpu-nvidia-h100-80gb-hbm3"


def throughput(report: Mapping[str, Any]) -> str:
    """Of several programs on one GPU."""
    return _COMMENT + gpu_page.picture(gpu_page.rows_of(report), "Work of all programs together, of one alone, on an H100")


# From a saved result: the picture to the name of its file, and what draws it.
DIAGRAMS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "placement": ("placement", lambda saved: placement(saved["figures"])),
    "throughput": (_H100, throughput),
    "fleets": ("fleet", fleets),
}
#: Of the README: what it says, and of what. Nothing asks another server.
BADGES: Final = {"kubernetes": ("Kubernetes", f"{version('kubernetes')}, simulated GPUs"), "licence": ("licence", "Apache-2.0, GPL-3.0")}
# The fonts of rich's export come from another server: a reader's own monospace font will do.
_FONT_FACE: Final = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_COMMENT: Final = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Copyright: gpushare.kubernetes contributors -->\n"


def files() -> list[Path]:
    """All that the command writes."""
    return [
        *(FOLDER / f"{name}.svg" for name in (*TERMINAL, *DIAGRAMS, *(f"badge-{one}" for one in BADGES))),
        *(FOLDER / f"{name}.png" for name in PAGES),
    ]


def on_a_terminal(command: list[str], columns: int = COLUMNS) -> str:
    """What a command prints on a terminal of that width, with its colours."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    environment = {**own, "TERM": "xterm-256color", "PYTHONPATH": str(RUNTIME)}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=subprocess.PIPE, env=environment)
    os.close(inner)
    printed = bytearray()
    while True:
        try:
            part = os.read(outer, 65536)
        except OSError:
            # The terminal's other end was closed.
            break
        if not part:
            break
        printed += part
    os.close(outer)
    _, errors = process.communicate(timeout=60)
    # 3: the pod of `explain` fits nowhere.
    assert process.returncode in (0, 3), errors.decode()
    assert not errors, errors.decode()
    # A terminal ends its lines with a carriage return, too, and rich draws only what follows the last one of a line.
    return printed.decode().replace("\r\n", "\n")


def printed(name: str) -> str:
    """What the command of a picture prints about its nodes, below the command itself."""
    nodes, pods = six_nodes(FIRST.get(name, _ALL))
    items = [{"kind": "Node", **one} for one in nodes] + [{"kind": "Pod", **one} for one in pods]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "six-nodes.json")
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        program = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", *TERMINAL[name], "--from-file", str(file)]
        return f"$ {command(name)}\n{on_a_terminal(program, WIDTHS.get(name, COLUMNS))}"


def command(name: str) -> str:
    """The command of a picture, as people type it."""
    return " ".join(("kubectl", "gpushare", *TERMINAL[name]))


def svg(name: str, text: str, columns: int = COLUMNS, light: bool = False) -> str:
    """The text of a terminal as a picture, which needs nothing from another server. name: no other picture of a page has it."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    # Rich cuts the picture off a little above the descenders of the last line: it is an empty one.
    console.print(Text.from_ansi(f"{text.rstrip()}\n "))
    theme = DEFAULT_TERMINAL_THEME if light else SVG_EXPORT_THEME
    drawn = console.export_svg(title="", unique_id=re.sub(r"\W+", "-", name), theme=theme)
    drawn = (
        _FONT_FACE.sub("", drawn).replace("Fira Code", "ui-monospace").replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    )
    # White would have no edge on a page.
    drawn = drawn.replace('fill="#ffffff"', 'fill="#f6f8fa"') if light else drawn
    return _COMMENT + "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


def letters(text: str) -> str:
    """The text of a terminal without colours and spaces: a line of a picture may be in several parts."""
    return "".join(_COLOUR.sub("", text).split())


def shown(drawn: str) -> str:
    """The letters that a picture of a terminal shows."""
    texts = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    return letters("".join("".join(one.itertext()) for one in texts))


def diagram(name: str) -> str:
    """The SVG of a saved result."""
    file, drawn = DIAGRAMS[name]
    return drawn(json.loads((ROOT / f"docs/project/benchmarks/{file}.json").read_text()))


def badge(name: str) -> str:
    """A label and a value side by side, in the fonts of the reader."""
    label, value = BADGES[name]
    left, right = (int(len(words) * 6.6) + 12 for words in (label, value))
    text = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle" fill="#fff"'
    return (
        f'{_COMMENT}<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {value}">\n'
        f'<rect width="{left + right}" height="20" rx="3" fill="#1f6feb"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444c56"/>\n'
        f'<g {text}><text x="{left / 2:g}" y="14">{label}</text><text x="{left + right / 2:g}" y="14">{value}</text></g>\n'
        "</svg>\n"
    )


def stale() -> list[str]:
    """The pictures of the terminal that do not show what their commands print now."""
    return [name for name in TERMINAL if letters(printed(name)) not in shown((FOLDER / f"{name}.svg").read_text())]


def draw_diagrams() -> None:
    for name in DIAGRAMS:
        (FOLDER / f"{name}.svg").write_text(diagram(name))
    for name in BADGES:
        (FOLDER / f"badge-{name}.svg").write_text(badge(name))


def draw_terminals() -> None:
    for name in TERMINAL:
        (FOLDER / f"{name}.svg").write_text(svg(command(name), printed(name), WIDTHS.get(name, COLUMNS), name.endswith("-light")))


def draw_pages(first: int) -> None:
    """The pages that show so many nodes."""
    loop = Loop()
    cluster = Cluster(loop)
    try:
        nodes, pods = six_nodes(first)
        cluster.put(*nodes, *pods)
        browser = Browser(loop)
        try:
            with tempfile.TemporaryDirectory() as folder:
                config = Path(folder, "kubeconfig")
                config.write_text(kubeconfig(cluster.api.url).replace(": here", ": training"))
                os.environ["PYTHONPATH"] = str(RUNTIME)
                for name, (path, colours, width, height) in PAGES.items():
                    if FIRST.get(name, _ALL) != first:
                        continue
                    with kubectl_dashboard("--kubeconfig", str(config)) as running, browser.page(running.url, width, height) as page:
                        page.scheme(colours)
                        least = min(len(nodes), height // 320)
                        page.until("the nodes are there", f"document.querySelectorAll('.row').length >= {least}", 60)
                        page.eval(f"location.hash = {path!r}")
                        page.until("the page is there", f"location.hash === {path!r} && document.querySelector('.row, .page') !== null")
                        page.until("it was read", "!document.getElementById('view-body').innerText.startsWith('Loading')")
                        # Without the ring around what has the focus after a change of the page.
                        page.eval("document.activeElement?.blur()")
                        if name in FIRST:
                            for control in _CONTROLS:
                                page.eval(f"document.getElementById({control!r}).style.display = 'none'")
                        assert page.errors == [], page.errors
                        page.picture(FOLDER / f"{name}.png")
        finally:
            browser.close()
    finally:
        cluster.close()
        loop.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="draw all pictures")
    parser.add_argument("--terminal", action="store_true", help="with --write: those of the terminal only, without Chromium")
    arguments = parser.parse_args()
    if not arguments.write:
        old = stale()
        for name in old:
            print(f"docs/pictures/{name}.svg does not show what `{command(name)}` prints; run python tools/pictures.py --write")
        for name in BADGES:
            if (FOLDER / f"badge-{name}.svg").read_text() != badge(name):
                old.append(name)
                print(f"docs/pictures/badge-{name}.svg is stale; run python tools/pictures.py --write --terminal")
        others = [name for name in DIAGRAMS if (FOLDER / f"{name}.svg").read_text() != diagram(name)]
        for name in others:
            result = f"docs/project/benchmarks/{DIAGRAMS[name][0]}.json"
            print(f"docs/pictures/{name}.svg does not show {result}; run python tools/pictures.py --write --terminal")
        return 1 if old or others else 0
    FOLDER.mkdir(exist_ok=True)
    draw_terminals()
    draw_diagrams()
    if not arguments.terminal:
        for first in (_ALL, *{FIRST[name] for name in PAGES if name in FIRST}):
            draw_pages(first)
    for file in files():
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024 + 1} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`make pictures`: the pictures of README and docs, made from the demo's cluster: the terminal as SVG, the dashboard by Chromium as PNG.

Nobody edits them. tests/unit/test_pictures.py says where they are used, and that what they are made from is still there.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from dashboard.browser import Browser, Loop
from dashboard.programs import kubectl_dashboard
from e2e.cluster import Cluster
from e2e.samples import TOO_LARGE
from quality.tree import REPOSITORY

FOLDER: Final = REPOSITORY / "docs/pictures"
COLUMNS: Final = 100
# Of `kubectl gpushare`, by the name of the picture.
TERMINAL: Final = {
    "nodes": ("nodes",),
    "pods": ("pods",),
    "explain": ("explain", TOO_LARGE),
}
# Of the dashboard: the path in the page, and the colours.
PAGES: Final = {
    "dashboard-light": ("#/nodes", "light"),
    "dashboard-dark": (f"#/pod/default/{TOO_LARGE}", "dark"),
}
SIZE: Final = (1000, 560)
# The fonts of rich's export come from another server: a reader's own monospace font will do.
_FONT_FACE: Final = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
_COMMENT: Final = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Copyright: gpushare.kubernetes contributors -->\n"


def files() -> list[Path]:
    """All that the command writes."""
    return [*(FOLDER / f"{name}.svg" for name in TERMINAL), *(FOLDER / f"{name}.png" for name in PAGES)]


def on_a_terminal(command: list[str]) -> str:
    """What a command prints on a terminal of that width, with its colours."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=subprocess.PIPE, env={**own, "TERM": "xterm-256color"})
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
    return printed.decode()


def svg(title: str, text: str) -> str:
    """The text of a terminal as a picture, which needs nothing from another server."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.rstrip()))
    drawn = console.export_svg(title=title, unique_id=re.sub(r"\W+", "-", title))
    drawn = (
        _FONT_FACE.sub("", drawn).replace("Fira Code", "ui-monospace").replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    )
    return _COMMENT + "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


def draw_terminals(kubeconfig: Path) -> None:
    for name, arguments in TERMINAL.items():
        program = [sys.executable, "-m", "gpushare_runtime.kubectl_gpushare.main", *arguments, "--kubeconfig", str(kubeconfig)]
        command = " ".join(["kubectl gpushare", *arguments])
        (FOLDER / f"{name}.svg").write_text(svg(command, f"$ {command}\n{on_a_terminal(program)}"))


def draw_pages(kubeconfig: Path) -> None:
    loop = Loop()
    try:
        browser = Browser(loop)
        try:
            for name, (path, colours) in PAGES.items():
                with kubectl_dashboard("--kubeconfig", str(kubeconfig)) as running, browser.page(running.url, *SIZE) as page:
                    page.scheme(colours)
                    page.until("the nodes are there", "document.querySelectorAll('.row').length > 0", 60)
                    page.eval(f"location.hash = {path!r}")
                    page.until("the page is there", f"location.hash === {path!r} && document.querySelector('.row, .page') !== null")
                    assert page.errors == [], page.errors
                    page.picture(FOLDER / f"{name}.png")
        finally:
            browser.close()
    finally:
        loop.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="demo", help="the lab with the samples (default: %(default)s)")
    cluster = Cluster(parser.parse_args().name)
    FOLDER.mkdir(exist_ok=True)
    draw_terminals(cluster.kubeconfig)
    draw_pages(cluster.kubeconfig)
    for file in files():
        print(f"{file.relative_to(REPOSITORY)}: {file.stat().st_size // 1024 + 1} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

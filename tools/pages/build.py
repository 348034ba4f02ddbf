# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The documentation as a site of its own: `make docs`, or `python -m pages.build FOLDER` in `tools`, in the environment of docs.txt.

The pages of the repository, and what antsibull-docs makes of roles and modules, become HTML that needs nothing from elsewhere. A warning
is an error.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import yaml

from tree import REPOSITORY, files

BIN: Final = Path(sys.executable).parent
#: What makes a quotation a box on a forge; here it would stand there as text.
FORGES_MARK: Final = re.compile(r"^> \[!\w+\]\n", re.MULTILINE)
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")
#: Order of the parts in the menu.
PARTS: Final = ("start", "use", "operate", "reference", "project")
INDEX: Final = "docs/README.md"
#: Labels of Ansible's own documentation, to which the pages of antsibull-docs refer: here they lead to one page of this site.
OF_ANSIBLE: Final = {
    "action_plugins": "Action plugins",
    "ansible_configuration_settings": "Configuration settings",
    "common_return_values": "Common return values",
}


def pages() -> list[str]:
    """The Markdown files that become pages."""
    outside = ("CONTRIBUTING.md", "SECURITY.md", "README.md", "README.zh-CN.md", "tools/lab/README.md", "tools/lab/nvml/README.md")
    return [
        path
        for path in files()
        if path.endswith(".md") and (path.startswith("docs/") or path in outside or re.match(r"roles/\w+/README", path))
    ]


def relinked(page: str, text: str, known: set[str], place: str = "") -> str:
    """The text with its links as the site has them. place: the file that it becomes, where that is another one.

    A folder stands for its README. A file that is not part of the site becomes plain text.
    """
    start = os.path.dirname(place or page)

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target or target.startswith("mailto:") or not target:
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        if f"{path}/README.md" in known:
            path = f"{path}/README.md"
        if path not in known:
            return words
        if path == INDEX:
            path = "index.md"
        return f"{image}[{words}]({os.path.relpath(path, start or '.')}{anchor})"

    fenced = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if at % 2 else LINK.sub(link, FORGES_MARK.sub("", part)) for at, part in enumerate(fenced))


def menu(found: list[str]) -> str:
    """The tables of contents, which only the menu shows."""
    parts = []
    for part in PARTS:
        own = [page for page in found if page.startswith(f"docs/{part}/")]
        extra = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] if part == "project" else []
        parts.append((part.capitalize(), [*own, *extra]))
    parts.append(("Roles and modules", ["collections/index", *[page for page in found if page.startswith("roles/")]]))
    lines = []
    for title, own in parts:
        lines += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *[name.removesuffix(".md") for name in own], "```"]
    return "\n".join(lines) + "\n"


def assemble(source: Path) -> None:
    """Write the sources of the site."""
    shutil.rmtree(source, ignore_errors=True)
    found = pages()
    assets = [path for path in files() if path.startswith("docs/") and not path.endswith(".md")]
    known = {*found, *assets}
    for path in assets:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / path, source / path)
    for page in found:
        text = (REPOSITORY / page).read_text()
        target = source / ("index.md" if page == INDEX else page)
        target.parent.mkdir(parents=True, exist_ok=True)
        if page == INDEX:
            target.write_text(relinked(page, text, known, "index.md") + menu(found))
        else:
            orphan = (
                "" if page.startswith(("docs/", "roles/")) or page in ("CONTRIBUTING.md", "SECURITY.md") else "---\norphan: true\n---\n"
            )
            target.write_text(orphan + relinked(page, text, known))
    shutil.copy2(Path(__file__).with_name("conf.py"), source / "conf.py")


def changelog(source: Path) -> None:
    """The changelog of a release, with the changes that are not released yet."""
    # Its packages are those of docs.txt, which the other parts of this module do not need.
    release = importlib.import_module("release")
    with tempfile.TemporaryDirectory() as scratch:
        (source / "CHANGELOG.md").write_text(release.changelog(Path(scratch), release.version(), release.commit_time()))


def reference(source: Path) -> None:
    """Roles and modules by antsibull-docs."""
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / ".collections"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    target = source / "collections"
    target.mkdir(parents=True)
    command = ["antsibull-docs", "collection", "--use-current", "--squash-hierarchy", "--fail-on-error", "--dest-dir", str(target)]
    done = subprocess.run([str(BIN / command[0]), *command[1:], "gpushare.kubernetes"], env=environment, capture_output=True, text=True)
    sections = [
        f".. _{label}:\n\n{title}\n{'-' * len(title)}\n\nAnsible's documentation has them.\n" for label, title in OF_ANSIBLE.items()
    ]
    (target / "ansible.rst").write_text("\n".join([":orphan:\n\nAnsible\n=======\n", *sections]))
    if done.returncode:
        sys.exit(f"antsibull-docs failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


class Assets(HTMLParser):
    """What a page loads: scripts, styles, images, fonts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        loads = tag in ("script", "img", "iframe", "source", "video", "audio", "embed")
        sheet = tag == "link" and (given.get("rel") or "") not in ("canonical", "next", "prev", "index", "search", "author")
        self.found += [value for value in (given.get("src") if loads else None, given.get("href") if sheet else None) if value]


def loaded_from_elsewhere(html: Path) -> Iterator[str]:
    """What pages and styles would load from other servers."""
    for path in sorted(html.rglob("*.html")):
        parser = Assets()
        parser.feed(path.read_text())
        yield from (f"{path.relative_to(html)}: {one}" for one in parser.found if re.match(r"(?:https?:)?//", one))
    for path in sorted(html.rglob("*.css")):
        yield from (f"{path.relative_to(html)}: {one}" for one in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)\"']+)", path.read_text()))


def problems(html: Path, version: str) -> Iterator[str]:
    """What the site lacks."""
    for one in loaded_from_elsewhere(html):
        yield f"loads from another server: {one}"
    if not (html / "searchindex.js").is_file() or not (html / "search.html").is_file():
        yield "has no search of its own"
    index = (html / "index.html").read_text()
    if f"gpushare.kubernetes {version}" not in index:
        yield f"does not show the version {version}"


def build(folder: Path) -> Path:
    """Build the site; its folder. Ends the process with all warnings if there is one."""
    version = str(yaml.safe_load((REPOSITORY / "galaxy.yml").read_text())["version"])
    source, html = folder / "source", folder / "html"
    assemble(source)
    changelog(source)
    reference(source)
    shutil.rmtree(html, ignore_errors=True)
    command = [str(BIN / "sphinx-build"), "-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "doctrees"), str(source), str(html)]
    done = subprocess.run(command, env={**os.environ, "GPUSHARE_VERSION": version}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"sphinx-build failed:\n{done.stdout[-4000:]}{done.stderr[-12000:]}")
    found = list(problems(html, version))
    if found:
        sys.exit("\n".join(found))
    return html


if __name__ == "__main__":
    print(f"file://{build(Path(sys.argv[1]).resolve())}/index.html")

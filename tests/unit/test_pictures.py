# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pictures of the docs are those that `make pictures` makes, are used, small and need no other server; their inputs still exist."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import pictures
from e2e.cluster import SAMPLES
from e2e.samples import TOO_LARGE
from gpushare_runtime.dashboard.server import page_files
from gpushare_runtime.kubectl_gpushare.main import _parser
from quality.tree import REPOSITORY

MOST_BYTES = 150_000
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]


def test_the_pictures_are_exactly_those_that_the_command_makes() -> None:
    assert sorted(pictures.FOLDER.iterdir()) == sorted(pictures.files())
    assert {one.name: one.stat().st_size for one in pictures.files() if one.stat().st_size > MOST_BYTES} == {}


def test_each_picture_is_used_with_words_for_those_who_cannot_see_it() -> None:
    link = re.compile(r"!\[([^\]]*)\]\((?:docs/|\.\./)?pictures/([^)]+)\)")
    used = {name: words for page in PAGES for words, name in link.findall(page.read_text())}
    assert set(used) == {file.name for file in pictures.files()}
    assert all(len(words) > 10 for words in used.values())


@pytest.mark.parametrize("name", pictures.TERMINAL)
def test_a_terminal_is_text_and_needs_no_other_server(name: str) -> None:
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    root = ElementTree.fromstring(text)
    assert "kubectl" in "".join(root.itertext())
    # The name of the format is no address that is read.
    assert re.findall(r"https?://[^\"'\s)]+", text.replace("http://www.w3.org/2000/svg", "")) == []
    assert "<script" not in text


def test_the_inputs_of_the_command_are_there() -> None:
    for arguments in pictures.TERMINAL.values():
        _parser().parse_args([*arguments, "--kubeconfig", "x"])
    assert any(f"name: {TOO_LARGE}\n" in file.read_text() for file in SAMPLES.iterdir())
    script = page_files()["/app.js"].body.decode()
    for path, colours in pictures.PAGES.values():
        assert f"`{'/'.join(path.split('/')[:2])}/" in script or f'"{path}"' in script, path
        assert colours in ("light", "dark")
    assert re.search(r"^pictures: .*\bdemo\b", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_a_terminal_is_drawn_with_its_colours_and_without_the_fonts_of_another_server() -> None:
    drawn = pictures.svg("kubectl gpushare nodes", "NAME  \x1b[31mbad\x1b[0m <b>&amp;\n")
    text = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "NAME" in text
    assert "<b>&amp;" in text
    assert "font-face" not in drawn
    assert len(set(re.findall(r"fill: (#[0-9a-f]{6})", drawn))) >= 2


def test_a_command_believes_it_is_on_a_terminal() -> None:
    command = ["python3", "-c", "import os,sys; print(sys.stdout.isatty(), os.get_terminal_size().columns)"]
    assert pictures.on_a_terminal(command).split() == ["True", str(pictures.COLUMNS)]

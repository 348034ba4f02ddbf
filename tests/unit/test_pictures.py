# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pictures of the docs show what the programs print now, are used, small, and need no other server."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

import picture
import pictures
from gpushare_runtime.dashboard.server import page_files
from six_nodes import WAITING, six_nodes
from tree import REPOSITORY

MOST_BYTES = 200_000
FILES = [*pictures.files(), *picture.pictures()]
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]


def test_the_pictures_are_exactly_those_that_the_command_makes() -> None:
    assert sorted(pictures.FOLDER.iterdir()) == sorted(FILES)
    assert {one.name: one.stat().st_size for one in FILES if one.stat().st_size > MOST_BYTES} == {}


def test_each_picture_is_used_with_words_for_those_who_cannot_see_it() -> None:
    link = re.compile(r"!\[([^\]]*)\]\((?:docs/|(?:\.\./)+)?pictures/([^)]+)\)")
    # One picture in several files: their words are those of its last one.
    several, source = re.compile(r"<picture>.*?</picture>", re.S), re.compile(r'"(?:docs|\.\.)/pictures/([^"]+)"')
    used = {}
    for page in PAGES:
        text = page.read_text()
        used.update({name: words for words, name in link.findall(text)})
        used.update(
            {name: words for one in several.findall(text) for words in re.findall('alt="([^"]+)"', one) for name in source.findall(one)}
        )
    assert set(used) == {file.name for file in FILES}
    assert all(len(words) > 10 for words in used.values())


def test_the_design_is_drawn_as_its_program_has_it() -> None:
    assert {file: file.read_text() for file in picture.pictures()} == picture.pictures()


@pytest.mark.parametrize("name", pictures.TERMINAL)
def test_a_terminal_shows_each_letter_that_its_command_prints(name: str) -> None:
    printed = pictures.printed(name)
    assert len(printed.splitlines()) > 8
    assert pictures.letters(printed) in pictures.shown((pictures.FOLDER / f"{name}.svg").read_text()), (
        "run python tools/pictures.py --write"
    )


@pytest.mark.parametrize("name", pictures.DIAGRAMS)
def test_a_diagram_shows_the_saved_result(name: str) -> None:
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.diagram(name), "run python tools/pictures.py --write --terminal"


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_words_for_the_picture_of_explain_have_its_verdict(page: str) -> None:
    (words,) = re.findall(r'alt="([^"]+)"\s+src="docs/pictures/explain-light.svg"', (REPOSITORY / page).read_text())
    assert re.sub(r"\x1b\[[\d;]*m", "", pictures.printed("explain").splitlines()[1]) in words


@pytest.mark.parametrize("name", pictures.BADGES)
def test_a_badge_says_what_the_lab_runs(name: str) -> None:
    assert (pictures.FOLDER / f"badge-{name}.svg").read_text() == pictures.badge(name), "run python tools/pictures.py --write --terminal"


@pytest.mark.parametrize("name", pictures.TERMINAL)
def test_a_terminal_needs_no_other_server(name: str) -> None:
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    # The name of the format is no address that is read.
    assert re.findall(r"https?://[^\"'\s)]+", text.replace("http://www.w3.org/2000/svg", "")) == []
    assert "<script" not in text


def test_the_nodes_have_what_the_pictures_are_for() -> None:
    nodes, pods = six_nodes()
    published = [json.loads(one["metadata"]["annotations"]["gpushare/gpus"])["gpus"] for one in nodes]
    assert [len(gpus) for gpus in published] == [8] * 6
    text = pictures.letters(pictures.printed("nodes"))
    assert f"{len(WAITING)}podspending" in text
    assert [
        sum(one["health"] != "ok" for gpus in published for one in gpus),
        sum(bool(one.get("cordoned")) for gpus in published for one in gpus),
    ] == [1, 1]
    assert sum("gpushare/held" in one["metadata"]["annotations"] for one in nodes) == 1
    assert len({(one["metadata"]["namespace"], one["metadata"]["name"]) for one in pods}) == len(pods)


def test_the_paths_of_the_command_are_there() -> None:
    script = page_files()["/app.js"].body.decode()
    for path, colours, _, _ in pictures.PAGES.values():
        assert f"`{'/'.join(path.split('/')[:2])}/" in script or f'"{path}"' in script, path
        assert colours in ("light", "dark")


def test_a_terminal_is_drawn_with_its_colours_and_without_the_fonts_of_another_server() -> None:
    drawn = pictures.svg("kubectl gpushare nodes", "NAME  \x1b[31mbad\x1b[0m <b>&amp;\n")
    text = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "NAME" in text
    assert "<b>&amp;" in text
    assert "font-face" not in drawn
    assert len(set(re.findall(r"fill: (#[0-9a-f]{6})", drawn))) >= 2


def test_the_lines_of_a_terminal_are_in_its_picture() -> None:
    printed = pictures.on_a_terminal(["python3", "-c", "print('first'); print('\\x1b[31mse\\x1b[0mcond'); print('last')"])
    assert pictures.shown(pictures.svg("three lines", printed)).endswith("firstsecondlast")


def test_a_command_believes_it_is_on_a_terminal() -> None:
    command = ["python3", "-c", "import os,sys; print(sys.stdout.isatty(), os.get_terminal_size().columns)"]
    assert pictures.on_a_terminal(command).split() == ["True", str(pictures.COLUMNS)]

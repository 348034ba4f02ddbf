# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pages in Chinese have what those in English have: headings, commands, names in code quotes, numbers, links, rows of tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from docs.pages import Block, blocks, codes, rows
from tree import REPOSITORY, files

SUFFIX = ".zh-CN.md"
PAGES = [path for path in files() if path.endswith(SUFFIX)]
#: Marks of bold words that Markdown shows as they are: they close behind a punctuation mark, and before a letter.
SHOWN_MARKS = re.compile(r"\*\*[^*\n]+[，。：；！？、）]\*\*(?=\w)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def english(path: str) -> str:
    return path.removesuffix(SUFFIX) + ".md"


def prose(text: str) -> str:
    """Without fenced blocks, comments, and the targets of links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"<!--.*?-->", "", text, flags=re.S))


def headings(text: str) -> list[int]:
    """Their levels, in order."""
    return [len(found) for found in re.findall(r"^(#+) ", prose(text), re.M)]


def numbers(text: str) -> Counter[str]:
    """How often each number stands in the text, in figures; those in code quotes are names."""
    return Counter(re.findall(r"\d[\d,.]*(?<![,.])", re.sub(r"`[^`]*`", "", prose(text))))


def targets(text: str) -> Counter[str]:
    """Where the links lead; a page may link to the other language of the same page, or of its neighbours. Headings of the page itself
    have anchors in its language."""
    return Counter(re.sub(r"^#.*", "#", target.replace(SUFFIX, ".md")) for target in LINK.findall(text))


def differences(ours: str, theirs: str) -> list[str]:
    """What a page in English has that the one in Chinese has not, and the other way round."""
    found = [] if headings(ours) == headings(theirs) else [f"headings {headings(ours)} and {headings(theirs)}"]
    sizes = [[len(row) for row in rows(text)] for text in (ours, theirs)]
    found += [] if sizes[0] == sizes[1] else ["rows of tables"]
    for what, count in (("names", lambda text: Counter(codes(prose(text)))), ("numbers", numbers), ("links", targets)):
        one, two = count(ours), count(theirs)
        if one != two:
            found.append(f"{what}: only in English {dict(one - two)}, only in Chinese {dict(two - one)}")
    return found


def without_comments(block: Block) -> str:
    return re.sub(r"(?:^|[ \t]+)# .*$", "", block.body, flags=re.M)


def test_there_are_pages_in_chinese_for_those_who_come_from_the_original() -> None:
    assert set(PAGES) == {f"README{SUFFIX}", f"docs/operate/migrate-original{SUFFIX}"}


@pytest.mark.parametrize("path", PAGES)
def test_the_languages_of_a_page_have_the_same_content(path: str) -> None:
    ours, theirs = ((REPOSITORY / page).read_text() for page in (english(path), path))
    assert differences(ours, theirs) == []
    assert [(one.kind, without_comments(one)) for one in blocks(english(path))] == [
        (one.kind, without_comments(one)) for one in blocks(path)
    ]


@pytest.mark.parametrize("path", PAGES)
def test_each_page_leads_to_the_other_language(path: str) -> None:
    for page, other in ((english(path), path), (path, english(path))):
        assert f"]({Path(other).name})" in (REPOSITORY / page).read_text()


@pytest.mark.parametrize("path", PAGES)
def test_bold_words_are_bold(path: str) -> None:
    assert SHOWN_MARKS.findall("**不对。**然后 **对**。 **对。** 然后") == ["**不对。**"]
    assert SHOWN_MARKS.findall(prose((REPOSITORY / path).read_text())) == []


def test_a_difference_between_the_languages_is_found() -> None:
    ours = "# A\n\n`make x` takes 15 minutes on 2 nodes: [b](b.md)\n\n## C\n\n| a | b |\n|---|---|\n| c | d |\n"
    assert differences(ours, ours.replace("b.md", f"b{SUFFIX}")) == []
    for change in (("15", "16"), ("`make x`", "`make y`"), ("## C", "### C"), ("b.md", "c.md"), ("| c | d |", "| c |"), ("on 2", "on two")):
        assert len(differences(ours, ours.replace(*change))) == 1, change

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which programs of others are out of date, and with which of them no release can be made."""

from __future__ import annotations

from datetime import date

import pytest

import outdated
from gpushare_lab.versions import PROGRAMS, Program, parse, released

TODAY = date(2026, 11, 29)
LISTED = ("1.37.1", "1.37.2", "1.36.9", "1.36.10", "1.38.0-beta.0", "1.38.0-alpha.3", "nonsense", "1.39")


def program(version: str = "1.37.2", line: str = "", *, pre: bool = False, reason: str = "", read: date | None = None) -> Program:
    return Program("it", version, "go:example.com/it", line, pre=pre, reason=reason, read=read)


@pytest.mark.parametrize(
    ("one", "newest"),
    [
        (program(), "1.37.2"),
        (program(line="1.36"), "1.36.10"),
        (program(line="1.38", pre=True), "1.38.0-beta.0"),
        (program(pre=True), "1.38.0-beta.0"),
    ],
)
def test_the_newest_of_a_line_is_found_by_number_and_pre_releases_count_where_they_are_asked_for(one: Program, newest: str) -> None:
    assert outdated.newest_of(one, LISTED) == newest


def test_a_line_without_a_version_is_unknown() -> None:
    with pytest.raises(outdated.Unknown, match=r"no version 1\.40"):
        outdated.newest_of(program(line="1.40"), LISTED)


def test_a_release_after_its_pre_releases_is_the_newer_one() -> None:
    assert outdated.newest_of(program(line="1.38", pre=True), [*LISTED, "1.38.0"]) == "1.38.0"
    assert outdated.following(program(line="1.38", pre=True), "1.38.0-beta.0")[0] == "1.38.0"
    assert outdated.newest_of(program(), ["2.22.0rc1", "2.21.5"]) == "2.21.5"


def test_versions_that_a_mirror_does_not_list_are_asked_for() -> None:
    assert {"1.36.6", "1.36.8"} <= set(outdated.following(program(line="1.36"), "1.36.5"))
    assert {"1.37.3", "1.38.0", "1.39.1"} <= set(outdated.following(program(), "1.37.2"))


@pytest.mark.parametrize(
    ("one", "newest", "words"),
    [
        (program(), "1.37.2", ""),
        (program(), "1.37.3", "1.37.3 is there"),
        (program(reason="kwok lacks it"), "1.37.3", ""),
        (program(read=date(2026, 8, 1)), "1.37.2", "was read 120 days ago"),
        (program(read=date(2026, 8, 1), reason="kwok lacks it"), "1.37.3", "was read 120 days ago"),
    ],
)
def test_an_older_one_needs_a_reason_and_what_was_read_gets_old(one: Program, newest: str, words: str) -> None:
    wrong = outdated.judge(one, newest, TODAY).wrong
    assert words in wrong
    assert bool(wrong) == bool(words)


def test_what_cannot_be_asked_is_no_newest_one() -> None:
    def newest(_one: Program) -> str:
        raise outdated.Unknown("403")

    (row,) = outdated.rows(newest, TODAY, [program()])
    assert row.wrong == "cannot be asked: 403"


def test_each_row_is_one_that_can_be_asked_or_was_read_by_a_person() -> None:
    for one in PROGRAMS.values():
        assert one.source.startswith(("go:", "pypi:")) or (one.source.startswith("https://") and one.read and one.newest), one
        assert one.version.startswith(f"{one.line}.") or not one.line, one
        assert outdated.order(one.version), one
    assert released("1.22") == PROGRAMS["kubernetes 1.22"].version


def test_a_row_with_a_mistake_is_rejected() -> None:
    for row in ("[x]\nversion = 1.2.3\n", "[x]\nversion = 1.2.3\nfrom = go:x\nlines = 1.2\n"):
        with pytest.raises(ValueError, match=r"\[x\]: (from|lines): expected"):
            parse(row)

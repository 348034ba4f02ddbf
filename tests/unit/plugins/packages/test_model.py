# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a wish for packages may say, and which version it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import (
    Package,
    PackageChange,
    PackageSet,
    Repository,
    by_number,
    check,
    check_minimum,
    check_steps,
    choose_all,
    last_words,
    satisfies,
    shown,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.openpgp import Key

from unit.golden import Golden

REPOSITORY = Repository("tk", "https://example.org/deb", (Key("A" * 40, b"key"),))


def wanted(*names: str, **changes: Any) -> PackageSet:
    return replace(PackageSet("owner", tuple(Package(name) for name in names)), **changes)


@pytest.mark.parametrize(
    ("installed", "minimum", "accepted"),
    [
        ("garbage", "1.17.8", False),
        ("garbage", "", True),
        ("1.17.8", "newest", True),
        ("1.17.8-1", "1.17.8", True),
        ("1.17.8", "1.17.8", True),
        ("1.17.7-1", "1.17.8", False),
        ("1.9.9-1", "1.17.8", False),
        ("1.18.0-1", "1.17.8", True),
        ("1:1.17.8-1", "1.17.8", True),
        ("2:1.17.7-1", "1.17.8", False),
        ("1.17.7-1", "", True),
        ("", "1.17.8", False),
        (None, "1.17.8", False),
        (None, "", True),
    ],
)
def test_versions_below_the_minimum_are_rejected(installed: str | None, minimum: str, accepted: bool, golden: Golden) -> None:
    versions = {"sound": "99.0-1", "tk": installed}
    if accepted:
        check_minimum(versions, minimum)
    else:
        with golden.raised(Rejected):
            check_minimum(versions, minimum)


@pytest.mark.parametrize(
    ("version", "asked", "is_it"),
    [
        (None, "", False),
        (None, "1.0", False),
        ("1.0-1", "", True),
        ("1.0-1", "1.0", True),
        ("1.0-1", "1.0-1", True),
        ("1.0-1", "1.0-2", False),
        ("3:1.0-1", "1.0", True),
        ("3:1.0-1", "1.0-1", True),
        ("3:1.0-1", "3:1.0-1", True),
        ("3:1.0-1", "4:1.0-1", False),
        ("1.0-1-1", "1.0-1", False),
        ("1:2-1", "1:2", False),
        # With an epoch it is a whole version.
        ("1:2", "1:2", True),
        ("1.01-1", "1.0", False),
        ("1.17.8~rc.1-1", "1.17.8", False),
        ("1.0_kx-1", "1.0", False),
        ("580.82.07_k6.4.0_150600.21-1", "580.82.07", True),
        ("580.82.07_k6.4.0_150600.21-1", "580.82.0", False),
    ],
)
def test_which_version_is_the_one_that_was_asked_for(version: str | None, asked: str, is_it: bool) -> None:
    assert satisfies(version, asked) is is_it


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (wanted(), "no package is named"),
        (wanted(*(f"p{number}" for number in range(201))), "201 packages are named, expected at most 200"),
        (wanted("a", "b", "a"), "a package is named twice"),
        *((wanted("a", name), "the package name") for name in ("-b", "../x", "x" * 200)),
        (wanted("a", replaces=("b c",)), "the package name"),
        (wanted("a", packages=(Package("a", "1;reboot"),)), "the version of a"),
        (wanted("a", folder="packages"), "expected an absolute path"),
        *(
            (wanted("a", repository=replace(REPOSITORY, **change)), words)
            for change, words in (
                ({"name": "T k"}, "the name of the repository"),
                *(({"url": url}, "the address of the repository") for url in ("ftp://x", "https://x/a b", "https://x/\nDeb: x")),
                ({"replaces": ("gopher://x",)}, "the address of the repository"),
                ({"version": "1 2"}, "the version of the repository"),
                ({"suite": "a b/"}, "the suite of the repository"),
                ({"modules": ("A b",)}, "a module of the repository"),
                ({"suite": "stable", "components": ("ma in",)}, "a component of the repository"),
                ({"suite": "stable", "components": ()}, "expected a path that ends in / and no component"),
                ({"suite": "./", "components": ("main",)}, "expected a path that ends in / and no component"),
                ({"keys": ()}, "the repository has no key"),
            )
        ),
    ],
)
def test_a_wish_that_cannot_be_meant_is_rejected(wish: PackageSet, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        check(wish)


def test_a_wish_as_it_should_be() -> None:
    full = replace(REPOSITORY, suite="stable", components=("main", "extra"), modules=("nvidia",), version="580.1", replaces=("file:///x",))
    for repository in (None, REPOSITORY, full):
        check(wanted(*(f"p{number}" for number in range(200)), replaces=("old",), folder="/packages", repository=repository))


def test_files_of_the_folder_go_before_the_repositories_and_the_highest_number_first(golden: Golden) -> None:
    files: Mapping[str, Mapping[str, str]] = {"a": {"1.9-1": "x", "1.10-1": "y"}}
    wish = wanted("a", "b", folder="/packages")
    assert choose_all(wish, files, lambda name: [f"{name}-2", f"{name}-1"]) == {"a": "1.10-1", "b": "b-2"}
    with golden.raised(Rejected):
        choose_all(replace(wish, packages=(Package("a", "7"),)), files, lambda _: ["7"])
    with golden.raised(Rejected):
        choose_all(wish, files, lambda _: [])
    with golden.raised(Rejected):
        choose_all(replace(wish, repository=REPOSITORY), files, lambda _: [])
    assert sorted(["1.10", "1.9", "1.9a"], key=by_number) == ["1.9", "1.9a", "1.10"]
    assert sorted(["1a", "a"], key=by_number) == ["a", "1a"]


def test_only_packages_that_may_go_may_go(golden: Golden) -> None:
    check_steps([PackageChange("old", "1", None), PackageChange("new", None, "1")], ["old"])
    with golden.raised(Rejected):
        check_steps([PackageChange("old", "1", None), PackageChange("other", "1", None)], ["old"])


def test_of_many_words_some_are_shown_and_of_long_ones_the_beginning() -> None:
    assert shown(["a", "b"], 2) == "a, b"
    assert shown(["a", "b", "c"], 2) == "a, b and 1 more"
    assert shown(["x" * 81]) == "x" * 80
    assert shown("abcdefghi") == "a, b, c, d, e, f, g, h and 1 more"


def test_of_what_a_program_printed_the_end_is_shown_without_credentials() -> None:
    assert last_words(Outcome([], 1, "a\n  b\n", "c\n")) == "a b c"
    assert last_words(Outcome([], 1, "x" * 500, "E: failed")) == "x" * 390 + " E: failed"
    assert last_words(Outcome([], 1, "", "Err:1 https://me:p@ss@example.org/deb")) == "Err:1 https://***@example.org/deb"

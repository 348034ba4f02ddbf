# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How what was found is quoted, and which texts are taken as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core import bounds
from gpushare_runtime.core.bounds import as_text, is_text, quote
from gpushare_runtime.core.ledger import UNKNOWN_SECONDS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=40,
)


@given(VALUES)
def test_any_value_is_quoted_in_80_printable_characters(value: Any) -> None:
    assert len(quote(value)) <= 80
    assert quote(value).isprintable()


@given(st.none() | st.booleans() | st.integers(-(10**50), 10**50) | st.lists(st.integers(0, 9), max_size=8) | st.text(max_size=15))
def test_what_is_short_is_quoted_as_python_writes_it(value: Any) -> None:
    assert quote(value) == repr(value)


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("x" * 78, f"'{'x' * 78}'"),
        ("x" * 79, f"'{'x' * 76}..."),
        ("x" * 10**6, f"'{'x' * 76}..."),
        ([1] * 9, "[1, 1, 1, 1, 1, 1, 1, 1, ...]"),
        ({"a": {"b": 1}}, "{'a': {'b': 1}}"),
        ({str(n): n for n in range(9)}, "{'0': 0, '1': 1, '2': 2, '3': 3, '4': 4, '5': 5, '6': 6, '7': 7, ...}"),
        ([[[[1]]]], "[[[[...]]]]"),
        ([[[[]]]], "[[[[]]]]"),
        (10**4200, f"1{'0' * 76}..."),
    ],
)
def test_how_it_is_cut(value: Any, quoted: str) -> None:
    assert quote(value) == quoted


def test_a_number_that_python_does_not_write_is_named_by_its_kind() -> None:
    assert quote(10**5000) == "int"


def test_what_is_nested_deeper_than_python_can_write_is_quoted() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    assert quote(nested) == "[[[[...]]]]"


@pytest.mark.parametrize(
    ("text", "fine"),
    [("", True), ("ü A100 \u2013", True), *((text, False) for text in ("a\tb", "a\n", "\x7f", "\x9b31m", "\ud800", "\u200f"))],
)
def test_texts_that_may_be_shown(text: str, fine: bool) -> None:
    assert is_text(text) == fine
    assert is_text(as_text(text))
    assert (as_text(text) == text) == fine


def test_a_text_is_as_long_as_it_may_be() -> None:
    assert [is_text("x" * 512), is_text("x" * 513), is_text("xx", 2), is_text("xxx", 2)] == [True, False, True, False]
    assert (as_text("x" * 600), as_text("a\nb", 2)) == ("x" * 512, "a ")


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("use/requests", f"at most {bounds.MOST_ASKED} entries and {bounds.MOST_ASKED_BYTES} characters"),
        ("use/requests", f"{bounds.MOST_CONTAINERS} containers of a pod can request"),
        ("reference/permissions", f"annotation | {bounds.MOST_ASKED} entries, {bounds.MOST_ASKED_BYTES} characters"),
        ("reference/permissions", f"request GPU resources | {bounds.MOST_CONTAINERS} |"),
        ("reference/permissions", f"cards of a node | {bounds.MOST_CARDS} |"),
        ("reference/permissions", f"| `gpushare/held` | {bounds.MOST_HELD} entries and {bounds.MOST_HELD} rejections"),
        ("reference/permissions", f"texts of a node | {bounds.MOST_TEXT} printable characters"),
        ("reference/permissions", f"at most {bounds.QUOTED} characters of an invalid input"),
        ("reference/permissions", f"for {UNKNOWN_SECONDS:.0f} s with each"),
        ("operate/failures", f"for at most {UNKNOWN_SECONDS:.0f} s."),
    ],
)
def test_the_pages_have_these_numbers(page: str, says: str) -> None:
    assert says in (Path(__file__).parents[4] / "docs" / f"{page}.md").read_text()

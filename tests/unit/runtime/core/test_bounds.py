# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How what was found is quoted, and which texts are taken as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare_runtime.core import bounds
from gpushare_runtime.core.bounds import ReportError, as_mapping, as_text, is_text, natural, quote, read_versioned, typed
from gpushare_runtime.core.ledger import UNKNOWN_SECONDS
from unit.golden import Golden

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
    # Of a text of this length every character may be written as ten.
    assume(len(repr(value)) <= bounds.QUOTED)
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
        ("use/requests", "at most {MOST_ASKED} entries and {MOST_ASKED_BYTES} characters"),
        ("use/requests", "{MOST_CONTAINERS} containers of a pod can request"),
        ("reference/permissions", "annotation | {MOST_ASKED} entries, {MOST_ASKED_BYTES} characters"),
        ("reference/permissions", "request GPU resources | {MOST_CONTAINERS} |"),
        ("reference/permissions", "GPUs of a node | {MOST_GPUS} |"),
        ("reference/permissions", "| `gpushare/held` | {MOST_HELD} entries and {MOST_HELD} rejections"),
        ("reference/permissions", "| `gpushare/evictions` | {MOST_EVICTIONS} pods"),
        ("reference/permissions", "texts of a node | {MOST_TEXT} printable characters"),
        ("reference/permissions", "at most {QUOTED} characters of an invalid input"),
        ("reference/permissions", "for {UNKNOWN_SECONDS:.0f} s with each"),
        ("operate/failures", "for at most {UNKNOWN_SECONDS:.0f} s."),
    ],
)
def test_the_pages_have_these_numbers(page: str, says: str) -> None:
    numbers = vars(bounds) | {"UNKNOWN_SECONDS": UNKNOWN_SECONDS}
    assert says.format_map(numbers) in (Path(__file__).parents[4] / "docs" / f"{page}.md").read_text()


def test_numbers_of_the_wire_are_signed_of_32_bits() -> None:
    assert bounds.MOST_UNITS == 0x7FFF_FFFF
    assert natural({"n": 0x7FFF_FFFF}, "n") == 0x7FFF_FFFF


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 50_000, "not JSON"),
        ("[]", "version 'list'"),
        ("7", "version 'int'"),
        ("{}", "version None"),
        ('{"v": 2}', "version 2"),
        ('{"v": "1"}', "version '1'"),
    ],
)
def test_what_is_no_object_of_this_version_is_rejected(text: str, found: str, golden: Golden) -> None:
    with pytest.raises(ReportError, match=found):
        read_versioned(text, 1)
    with golden.raised(ReportError):
        read_versioned('{"v": 1, "x": [7]}   ', 1, 20)
    assert read_versioned('{"v": 1, "x": [7]}', 1) == {"v": 1, "x": [7]}


@pytest.mark.parametrize(
    ("value", "kind", "fine"),
    [
        (7, int, True),
        (True, int, False),
        ("7", int, False),
        (None, int, False),
        (True, bool, True),
        (1, bool, False),
        ("x" * 512, str, True),
        ("x" * 513, str, False),
        ("\x1b[2J", str, False),
        ("", str, True),
        (7, str, False),
        (["\n"], list, True),
        ({}, list, False),
    ],
)
@pytest.mark.parametrize("where", ["", "gpus[0]"])
def test_a_member_has_its_type_and_a_text_can_be_shown(value: object, kind: type, fine: bool, where: str) -> None:
    entry = {"key": value}
    if fine:
        assert typed(entry, "key", kind, where) == value
    else:
        # The message begins with which member of what it is.
        with pytest.raises(ReportError, match=f"^{re.escape('gpus[0].key' if where else 'key')} must be"):
            typed(entry, "key", kind, where)
    for missing in ({}, *([[], None, "key"] if where else [])):
        with pytest.raises(ReportError, match=re.escape(where) or "key"):
            typed(missing, "key", kind, where)


@pytest.mark.parametrize("value", [-1, 0, 1, 9, 10, 11])
def test_a_natural_number_is_from_0_to_the_most(value: int) -> None:
    if 0 <= value <= 10:
        assert natural({"n": value}, "n", most=10) == value
        return
    for where, name in (("", "n"), ("held[3]", "held[3].n")):
        limit = "not be negative" if value < 0 else "be at most 10"
        with pytest.raises(ReportError, match=f"^{re.escape(name)} must {limit}, found {value}$"):
            natural({"n": value}, "n", where, 10)


@pytest.mark.parametrize(("value", "expected"), [({"a": 1}, {"a": 1}), (None, {}), ([], {}), ("a", {}), (1, {})])
def test_what_is_no_object_has_no_fields(value: object, expected: object) -> None:
    assert as_mapping(value) == expected

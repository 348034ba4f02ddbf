# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The annotation `gpushare/cards`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.inventory import Card, Inventory, InventoryError
from gpushare_runtime.quantity import UNITS
from unit.runtime.pods import card, inventory

# Written out from the protocol, not produced by the code.
DOCUMENTED = (
    '{"v":1,"unit":"GiB","cards":[{"index":0,"uuid":"GPU-8f6","minor":0,"pci":"0000:3b:00.0","model":"Tesla T4",'
    '"mib":15360,"units":15,"numa":0,"health":"ok","cordoned":false}]}'
)
TEXT = st.text(max_size=20)
NATURAL = st.integers(min_value=0, max_value=10**6)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    indexes = sorted(draw(st.sets(st.integers(min_value=0, max_value=64), max_size=16)))
    numa = st.none() | NATURAL
    cards = tuple(
        Card(
            i, f"GPU-{i}", draw(NATURAL), draw(TEXT), draw(TEXT), draw(NATURAL), draw(NATURAL), draw(numa), draw(TEXT), draw(st.booleans())
        )
        for i in indexes
    )
    return Inventory(draw(st.sampled_from(list(UNITS.values()))), cards)


def test_the_documented_form_is_read_and_written() -> None:
    found = Inventory.from_json(DOCUMENTED)
    assert found.by_uuid["GPU-8f6"].units == 15
    assert found.to_json() == DOCUMENTED


@given(inventories())
def test_what_is_written_is_read_back(cards: Inventory) -> None:
    assert Inventory.from_json(cards.to_json()) == cards


def test_sixteen_cards_stay_far_below_what_a_nodes_annotations_may_hold() -> None:
    many = Inventory(UNITS["MiB"], tuple(card(i, 288, uuid=f"GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a{i:02d}") for i in range(16)))
    assert len(many.to_json()) < 256 * 1024 / 32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 2}, "version 2"),
        ({"v": None}, "version None"),
        ({"unit": "GB"}, "'GB'"),
        ({"cards": {}}, "cards must be list"),
        ({"cards": [1]}, r"cards\[0\]"),
        ({"cards": [{"index": "0"}]}, r"cards\[0\].index"),
        ({"cards": [{"index": -1}]}, "negative"),
        ({"cards": [{"index": True}]}, r"cards\[0\].index"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(change: dict[str, object], says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        Inventory.from_json(json.dumps(json.loads(DOCUMENTED) | change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "7"])
def test_text_that_is_no_annotation_is_refused(text: str) -> None:
    with pytest.raises(InventoryError):
        Inventory.from_json(text)


def test_a_card_is_listed_once() -> None:
    with pytest.raises(InventoryError, match="ascending"):
        Inventory(UNITS["GiB"], (card(1, 16), card(0, 16)))
    with pytest.raises(InventoryError, match="UUID"):
        Inventory(UNITS["GiB"], (card(0, 16, uuid="GPU-x"), card(1, 16, uuid="GPU-x")))


def test_cards_of_different_size_are_counted_each() -> None:
    assert inventory(16, 24).units == 40


def test_a_bad_or_cordoned_card_takes_no_pods() -> None:
    assert not card(0, 16, health="xid 79").usable
    assert not card(0, 16, cordoned=True).usable

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The words in which a request is refused."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gpushare_runtime.inventory import Inventory
from gpushare_runtime.ledger import Ledger
from gpushare_runtime.quantity import UNITS
from gpushare_runtime.reasons import refusals
from unit.runtime.pods import card, inventory
from unit.runtime.test_ledger import holder, memory, on, whole


def test_few_nodes_are_named_each_with_its_numbers() -> None:
    ledger = Ledger()
    ledger.set_inventory("gpu1", inventory(16, 16))
    ledger.set_inventory("gpu2", inventory(16, 24))
    ledger.apply(holder("a", memory(6), on(1, 6), "gpu2"))
    assert refusals(memory(25), ledger.nodes.values()) == {
        "gpu1": "gpu1: needs 25 GiB on one card, its largest card has 16 (32 in total on 2 cards)",
        "gpu2": "gpu2: needs 25 GiB on one card, its largest card has 24 (40 in total on 2 cards)",
    }
    assert refusals(memory(20), [ledger.nodes["gpu2"]]) == {
        "gpu2": "gpu2: needs 20 GiB on one card, at most 18 are free on one (34 of 40 in total)"
    }
    assert refusals(whole(2), [ledger.nodes["gpu2"]]) == {"gpu2": "gpu2: needs 2 whole cards, 1 of 2 cards are empty"}


def test_cards_that_are_out_are_mentioned() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", Inventory(UNITS["256MiB"], (card(0, 64, health="lost"), card(1, 64))))
    assert refusals(memory(65), ledger.nodes.values()) == {
        "n": "n: needs 65 units of 256 MiB on one card, its largest card has 64 (64 in total on 1 card, 1 not usable)"
    }


def test_a_node_without_cards_says_what_is_missing() -> None:
    ledger = Ledger()
    ledger.set_inventory("bad", None, "version 2 is not known")
    ledger.apply(holder("a", memory(1), None, "bare"))
    found = refusals(memory(1), ledger.nodes.values())
    assert "version 2 is not known" in found["bad"]
    assert "gpushare-device-plugin has not run" in found["bare"]


@given(st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=4), min_size=1, max_size=60))
def test_never_more_than_ten_wordings(nodes: list[list[int]]) -> None:
    ledger = Ledger()
    for number, sizes in enumerate(nodes):
        ledger.set_inventory(f"node-{number}", inventory(*sizes))
    found = refusals(memory(81), ledger.nodes.values())
    assert set(found) == set(ledger.nodes)
    assert len(set(found.values())) <= 10
    assert all("81" in reason for reason in found.values())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The words in which a request is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from gpushare_runtime.held import NOTHING_HELD, Held, Refusal
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.ledger import Holder, Ledger, NodeRecord
from gpushare_runtime.quantity import UNITS
from gpushare_runtime.reasons import refusals
from gpushare_runtime.request import ContainerRequest, Kind, Request
from gpushare_runtime.rules import Bearer, Rules
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


def asking(units: int, several: int = 1, core: int = 0, **rules: Any) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units, core=core),), several, Rules(**rules))


def said(request: Request, *cards: Card, core: int = 0, held: Held = NOTHING_HELD, used: int = 0) -> str:
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", Inventory(UNITS["GiB"], cards, core), "", held))
    if used:
        ledger.apply(Holder("u", "default", "u", "n", asking(1, core=used), on(0, 1), (("app", "noisy"),)))
    return refusals(request, ledger.nodes.values())["n"]


def test_several_cards() -> None:
    assert said(asking(24, 3), card(0, 16), card(1, 16), card(2, 4)) == (
        "n: needs 8 GiB on each of 3 cards, 2 cards have that free (36 of 36 in total)"
    )


def test_compute() -> None:
    assert said(asking(4, core=20), card(0, 16)) == (
        "n: needs 4 GiB and 20 % of compute on one card, but its mode does not share out compute (aliyun.com/gpu-core.percentage)"
    )
    assert said(asking(4, core=60), card(0, 16), core=100, used=50) == (
        "n: needs 4 GiB and 60 % of compute on one card, at most 15 are free on one, and at most 50 % of compute beside such memory "
        "(15 of 16 in total)"
    )


def test_cards_that_have_room_and_are_not_given_are_explained() -> None:
    held = Held(refused=(Refusal("u", card(2, 16).uuid, 4, 1e9),))
    request = replace(asking(4, models=("T4",), not_with=(("app", "noisy"),)), bearer=Bearer("default", ()))
    found = said(request, card(0, 16), card(1, 16, model="A100"), card(2, 16), held=held, used=5, core=100)
    assert found == (
        "n: needs 4 GiB on one card, at most 16 are free on one (47 of 48 in total); 1 card not of a model or UUID that the pod accepts, "
        "1 card with other pods than the pods' rules allow, 1 card held back because the node refused a pod of this size there"
    )


NODES = st.tuples(st.lists(st.integers(1, 80), min_size=1, max_size=3), st.integers(0, 100), st.booleans())


@given(st.lists(NODES, min_size=11, max_size=40))
def test_never_more_than_ten_wordings_for_any_request(nodes: list[tuple[list[int], int, bool]]) -> None:
    ledger = Ledger()
    for number, (sizes, core, known) in enumerate(nodes):
        cards = tuple(card(i, size) for i, size in enumerate(sizes))
        inventories = (Inventory(UNITS["GiB"], cards, core), "") if known else (None, f"broken {core}")
        ledger.set_node(NodeRecord(f"node-{number}", *inventories))
    for request in (asking(300, 3), asking(81, core=20), asking(1, models=("H100",)), whole(4)):
        found = refusals(request, ledger.nodes.values())
        assert set(found) == set(ledger.nodes)
        assert len(set(found.values())) <= 10

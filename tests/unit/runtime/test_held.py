# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare/held: read as the protocol writes it, and what the ledger makes of it."""

from __future__ import annotations

import json
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.held import NOTHING_HELD, Held, HeldEntry, HeldError, Refusal
from gpushare_runtime.ledger import Ledger, NodeRecord
from unit.runtime.pods import inventory
from unit.runtime.test_ledger import frees, holder, memory, on, whole

CARDS = inventory(16, 16)
FIRST, SECOND = (card.uuid for card in CARDS.cards)


def told(*entries: HeldEntry, refused: tuple[Refusal, ...] = ()) -> Ledger:
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", CARDS, "", Held(entries, refused)))
    return ledger


def test_the_protocols_example() -> None:
    text = (
        '{"v":1,"cards":{"GPU-8f6":[{"pod":"ns/name","uid":"u1","units":8,"why":"leaving"}]},'
        '"refused":[{"uid":"u2","card":"GPU-8f6","units":8,"until":"2026-11-21T10:01:00Z"}]}'
    )
    held = Held.from_json(text)
    assert held == Held((HeldEntry("GPU-8f6", "u1", "ns/name", 8, "leaving"),), (Refusal("u2", "GPU-8f6", 8, 1795255260.0),))
    assert held.to_json() == text
    assert held.at(1795255259.0) is held
    assert held.at(1795255260.0).refused == ()


TEXT = st.text(min_size=1, max_size=9)
ENTRIES = st.builds(
    HeldEntry, st.sampled_from("ab"), TEXT, TEXT, st.integers(0, 99), st.sampled_from(["leaving", "unmanaged"]), st.booleans()
)
REFUSALS = st.builds(Refusal, TEXT, TEXT, st.integers(0, 99), st.integers(0, 4 * 10**9).map(float), st.booleans())


@given(st.lists(ENTRIES, max_size=4), st.lists(REFUSALS, max_size=3))
def test_what_is_written_is_read_back(entries: list[HeldEntry], refused: list[Refusal]) -> None:
    held = Held(tuple(sorted(entries, key=lambda e: [entry.card for entry in entries].index(e.card))), tuple(refused))
    assert Held.from_json(held.to_json()) == held


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ('{"v":2}', "version 2 is not known"),
        ("[]", "version 'list'"),
        ('{"v":1,"cards":[1]}', "cards must be an object"),
        (
            '{"v":1,"cards":{"GPU-1":[{"pod":"a/b","uid":"u","units":"8","why":"leaving"}]}}',
            r"cards\['GPU-1'\]\[0\].units must be int, found '8'",
        ),
        ('{"v":1,"cards":{"GPU-1":8}}', "must be an object, found int"),
        ('{"v":1,"refused":[{"uid":"u","card":"c","units":-1,"until":"2026-11-21T10:01:00Z"}]}', "must not be negative"),
        ('{"v":1,"refused":[{"uid":"u","card":"c","units":1,"until":"soon"}]}', "must be a time such as .* found 'soon'"),
    ],
)
def test_what_cannot_be_used_says_where(text: str, says: str) -> None:
    with pytest.raises(HeldError, match=says):
        Held.from_json(text)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner))


@given(ANYTHING)
def test_no_content_breaks_the_reader(content: object) -> None:
    with suppress(HeldError):
        Held.from_json(json.dumps({"v": 1, "cards": content, "refused": content}))


def test_the_processes_of_a_deleted_pod_still_hold() -> None:
    ledger = told(HeldEntry(FIRST, "gone", "x/gone", 6, "leaving"), HeldEntry(SECOND, "big", "x/big", 16, "leaving", whole=True))
    assert frees(ledger) == [10, 0]
    ledger.apply(holder("gone", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 0], "counted once while the pod is there"
    ledger.remove("gone")
    ledger.set_node(NodeRecord("n", CARDS, "", NOTHING_HELD))
    assert frees(ledger) == [16, 16]


def test_the_nodes_word_tells_the_card_of_a_pod_that_nobody_placed() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", CARDS)
    ledger.apply(holder("stray", memory(6), None))
    assert frees(ledger) == [10, 10]
    ledger.set_node(NodeRecord("n", CARDS, "", Held((HeldEntry(SECOND, "stray", "x/stray", 6, "unmanaged"),))))
    assert frees(ledger) == [16, 10]


def test_the_node_may_know_more_than_the_annotations() -> None:
    ledger = told(HeldEntry(SECOND, "moved", "x/moved", 6, "unmanaged"))
    ledger.apply(holder("moved", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 10], "until the annotation is corrected, both count"


def test_several_containers_of_one_pod_add_up() -> None:
    entries = [HeldEntry(FIRST, "u", "x/u", 3, "leaving"), HeldEntry(FIRST, "u", "x/u", 4, "leaving")]
    ledger = told(*entries)
    assert frees(ledger) == [9, 16]
    ledger.apply(holder("u", memory(5), on(0, 5)))
    assert frees(ledger) == [9, 16], "two more than the pod's annotations say"


def test_a_card_that_refused_a_size_takes_no_such_pod_until_then() -> None:
    ledger = told(refused=(Refusal("u", FIRST, 6, 100.0), Refusal("v", SECOND, 16, 50.0, whole=True)))
    node = ledger.node("n")
    assert node is not None

    def takes() -> dict[str, list[int]]:
        asks = {"5": memory(5), "6": memory(6), "whole": whole(1)}
        return {name: [state.card.index for state in node.candidates(ask)] for name, ask in asks.items()}

    assert takes() == {"5": [0, 1], "6": [1], "whole": [0]}
    assert ledger.expire(60.0, 0.0)
    assert takes() == {"5": [0, 1], "6": [1], "whole": [0, 1]}
    assert not ledger.expire(60.0, 0.0)
    assert ledger.expire(100.0, 0.0)
    assert takes()["6"] == [0, 1]


def test_a_card_that_the_node_does_not_have_is_reported() -> None:
    node = told(HeldEntry("GPU-other", "u", "x/u", 6, "leaving")).node("n")
    assert node is not None
    assert node.problems() == ["the node says that pods hold card GPU-other, which is not among its cards"]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger against a plain model of it, and what it promises case by case."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.ledger import Holder, Ledger
from gpushare_runtime.placement import Binpack
from gpushare_runtime.quantity import GIB
from gpushare_runtime.request import ContainerRequest, Kind, Request
from unit.runtime.pods import card, inventory


def memory(units: int) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units),))


def whole(cards: int) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", cards=cards),))


def holder(uid: str, request: Request, allocation: Allocation | None, node: str = "n") -> Holder:
    return Holder(uid, "default", uid, node, request, allocation)


def on(index: int, units: int) -> Allocation:
    return Allocation.of({0: {index: units}})


def frees(ledger: Ledger, node: str = "n") -> list[int]:
    found = ledger.node(node)
    assert found is not None
    return [state.free for state in found.cards]


def test_units_are_taken_from_their_card_and_given_back() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16, 24))
    ledger.apply(holder("a", memory(6), on(1, 6)))
    assert frees(ledger) == [16, 18]
    ledger.apply(holder("a", memory(6), on(1, 6)))
    assert frees(ledger) == [16, 18]
    ledger.apply(holder("a", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 24]
    ledger.remove("a")
    ledger.remove("a")
    assert frees(ledger) == [16, 24]


def test_the_same_name_again_is_another_pod() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16))
    ledger.apply(Holder("old", "default", "job", "n", memory(6), on(0, 6)))
    ledger.apply(Holder("new", "default", "job", "n", memory(6), on(0, 6)))
    assert frees(ledger) == [4]
    ledger.remove("old")
    assert frees(ledger) == [10]


def test_a_card_held_whole_has_no_memory_left_and_one_in_use_is_not_empty() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16, 16))
    ledger.apply(holder("a", whole(1), on(0, 16)))
    ledger.apply(holder("b", memory(1), on(1, 1)))
    node = ledger.node("n")
    assert node is not None
    assert [(s.free, s.empty) for s in node.cards] == [(0, False), (15, False)]
    assert node.leftover(whole(1)) is None
    assert node.leftover(memory(16)) is None


def test_a_card_held_whole_has_nothing_left_whatever_the_annotation_says_it_had() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16))
    ledger.apply(holder("a", whole(1), on(0, 10)))
    assert frees(ledger) == [0]


def test_more_compute_than_a_card_shares_out_is_reported() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", Inventory(GIB, (card(0, 16),), core=100))
    for uid in ("a", "b"):
        request = Request((ContainerRequest(Kind.APP, 0, "main", units=1, core=60),))
        ledger.apply(holder(uid, request, on(0, 1)))
    node = ledger.node("n")
    assert node is not None
    assert node.problems() == ["card 0: 120 % of its compute are held, it shares out 100 %"]
    assert node.cards[0].core == 0


def test_a_pod_without_a_known_card_counts_against_every_card_that_could_hold_it() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(4, 16, 24))
    ledger.apply(holder("a", memory(6), None))
    assert frees(ledger) == [4, 10, 18]
    ledger.apply(holder("b", whole(1), None))
    assert frees(ledger) == [0, 0, 0]


def test_pods_may_be_known_before_their_nodes_cards() -> None:
    ledger = Ledger()
    ledger.apply(holder("a", memory(6), on(0, 6)))
    assert frees(ledger) == []
    ledger.set_inventory("n", inventory(16))
    assert frees(ledger) == [10]
    ledger.set_inventory("n", None)
    ledger.set_inventory("n", inventory(16))
    assert frees(ledger) == [10]
    ledger.set_inventory("n", None)
    ledger.remove("a")
    assert ledger.node("n") is None


def test_a_binding_under_way_is_held_until_it_is_seen_or_forgotten() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16))
    ledger.assume(holder("a", memory(6), on(0, 6)))
    assert frees(ledger) == [10]
    ledger.forget("a")
    assert frees(ledger) == [16]
    ledger.assume(holder("a", memory(6), on(0, 6)))
    ledger.apply(holder("a", memory(6), on(0, 6)))
    ledger.forget("a")
    assert frees(ledger) == [10]


def test_a_fresh_list_drops_what_is_gone_and_keeps_a_binding_that_it_may_not_have_seen() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16))
    ledger.apply(holder("gone", memory(1), on(0, 1)))
    ledger.assume(holder("under way", memory(2), on(0, 2)))
    ledger.assume(holder("deleted", memory(4), on(0, 4)))
    ledger.replace([holder("seen", memory(8), on(0, 8))], {"seen", "under way"})
    assert {uid for uid in ("gone", "under way", "deleted", "seen") if ledger.holder(uid)} == {"under way", "seen"}
    assert frees(ledger) == [6]


def test_bad_and_cordoned_cards_are_not_offered_but_still_counted() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", Inventory(GIB, (card(0, 16, health="lost"), card(1, 24, cordoned=True), card(2, 8))))
    node = ledger.node("n")
    assert node is not None
    assert (node.free, node.largest_free(), node.empty_cards()) == (8, 8, 1)
    assert node.leftover(memory(9)) is None


def test_an_impossible_state_is_reported() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16, 16, 16))
    ledger.apply(holder("a", memory(10), on(0, 10)))
    ledger.apply(holder("b", memory(10), on(0, 10)))
    ledger.apply(holder("c", memory(2), on(7, 2)))
    ledger.apply(holder("d", whole(1), on(1, 16)))
    ledger.apply(holder("e", memory(1), on(1, 1)))
    node = ledger.node("n")
    assert node is not None
    assert node.overbooked() == {0: 4, 7: 2, 1: 1}
    assert frees(ledger) == [0, 0, 14], "nobody has a card 7: that pod counts against every card"
    assert [line.split(":")[0] for line in node.problems()] == ["card 0", "card 1", "card 7", "pod default/c"]


SIZES = {"a": (16, 16), "b": (16, 24), "c": (80,) * 8}
UIDS = [f"pod-{i}" for i in range(24)]


class Model(RuleBasedStateMachine):
    """Binds, confirmations, failures, deletions, card changes and relists in any order; sums are recounted plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.holding: dict[str, Holder] = {}
        self.assumed: set[str] = set()
        for name, sizes in SIZES.items():
            self.ledger.set_inventory(name, inventory(*sizes))

    @rule(uid=st.sampled_from(UIDS), node=st.sampled_from(list(SIZES)), units=st.integers(1, 30), cards=st.integers(0, 2))
    def bind(self, uid: str, node: str, units: int, cards: int) -> None:
        request = whole(cards) if cards else memory(units)
        found = self.ledger.node(node)
        assert found is not None
        allocation = Binpack().choose(request, found)
        assert (allocation is None) == (found.leftover(request) is None)
        if allocation is None or uid in self.holding:
            return
        self.holding[uid] = holder(uid, request, allocation, node)
        self.assumed.add(uid)
        self.ledger.assume(self.holding[uid])

    @precondition(lambda self: self.assumed)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.assumed)))
        self.ledger.apply(self.holding[uid])
        self.assumed.discard(uid)

    @rule(uid=st.sampled_from(UIDS))
    def fail(self, uid: str) -> None:
        self.ledger.forget(uid)
        if uid in self.assumed:
            self.assumed.discard(uid)
            del self.holding[uid]

    @rule(uid=st.sampled_from(UIDS))
    def finish(self, uid: str) -> None:
        self.ledger.remove(uid)
        self.holding.pop(uid, None)
        self.assumed.discard(uid)

    @rule(gone=st.sets(st.sampled_from(UIDS)))
    def relist(self, gone: set[str]) -> None:
        self.holding = {uid: h for uid, h in self.holding.items() if uid not in gone}
        self.assumed -= gone
        seen = [h for uid, h in self.holding.items() if uid not in self.assumed]
        self.ledger.replace(seen, set(self.holding))

    @rule(node=st.sampled_from(list(SIZES)), there=st.booleans())
    def flap(self, node: str, there: bool) -> None:
        self.ledger.set_inventory(node, None)
        self.ledger.set_inventory(node, inventory(*SIZES[node]))

    @invariant()
    def sums_are_right_and_no_card_is_overbooked(self) -> None:
        for name, sizes in SIZES.items():
            node = self.ledger.node(name)
            assert node is not None
            held = [h for h in self.holding.values() if h.node == name]
            for state in node.cards:
                of_card = [h for h in held if h.allocation is not None and state.card.index in h.allocation.by_card]
                used = sum(h.allocation.by_card[state.card.index] for h in of_card if h.allocation is not None)
                assert used <= sizes[state.card.index]
                assert state.empty == (not of_card)
                assert state.free == sizes[state.card.index] - used
                assert len(of_card) <= 1 or not any(h.whole for h in of_card)
            assert node.overbooked() == {}


TestLedgerAgainstModel = Model.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Told:
    """What is kept, with the names that it was told of."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def forget(self, name: str) -> None:
        self.names.append(name)


def test_what_is_kept_is_told_of_a_node_that_changes_and_only_then() -> None:
    ledger = Ledger()
    ledger.set_inventory("a", inventory(16))
    ledger.set_inventory("b", inventory(16))
    told = ledger.kept("key", Told)
    ledger.apply(holder("1", memory(4), on(0, 4), "a"))
    assert set(told.names) == {"a"}
    told.names.clear()
    ledger.apply(holder("1", memory(4), on(0, 4), "a"))
    assert told.names == [], "the same again is no change"
    ledger.remove("1")
    ledger.set_inventory("b", None)
    assert set(told.names) == {"a", "b"}
    assert ledger.kept("key", Told) is told


def test_only_the_keys_used_last_are_kept() -> None:
    ledger = Ledger()
    often, first = ledger.kept("often", Told), ledger.kept(0, Told)
    for number in range(1, 200):
        ledger.kept(number, Told)
        assert ledger.kept("often", Told) is often
    assert ledger.kept(0, Told) is not first

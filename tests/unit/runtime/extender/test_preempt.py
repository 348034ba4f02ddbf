# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which evictions make room on a card."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gpushare_runtime.extender.budgets import read_budget
from gpushare_runtime.extender.preempt import Preemption, Preemptor
from gpushare_runtime.extender.wire import Victims
from gpushare_runtime.ledger import Holder, Ledger, Nominee
from gpushare_runtime.placement import Placement
from gpushare_runtime.request import Request
from unit.runtime.extender.test_budgets import budget
from unit.runtime.pods import inventory
from unit.runtime.test_ledger import memory, on, whole


def world(*pods: tuple[str, int, int, int], cards: tuple[int, ...] = (16, 16), leaving: tuple[str, ...] = ()) -> Ledger:
    """pods: (UID, card, units, priority)."""
    ledger = Ledger()
    ledger.set_inventory("n", inventory(*cards))
    for uid, card, units, priority in pods:
        labels = (("app", uid),)
        ledger.apply(Holder(uid, "default", uid, "n", memory(units), on(card, units), labels, priority, uid in leaving))
    return ledger


def evicted(
    ledger: Ledger, request: Request, *proposed: str, priority: int = 10, budgets: tuple[dict[str, object], ...] = ()
) -> Victims | None:
    preemption = Preemption(ledger, Placement(), [read_budget(raw) for raw in budgets])
    return preemption.victims(Preemptor("new", priority, request), {"n": Victims(proposed, 0)}).get("n")


def test_what_the_scheduler_proposes_may_be_enough() -> None:
    ledger = world(("a", 0, 16, 0), ("b", 1, 16, 0))
    assert evicted(ledger, memory(8), "a") == Victims(("a",))


def test_victims_on_different_cards_are_not_enough_and_more_are_added() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 1), ("d", 1, 8, 2))
    assert evicted(ledger, memory(16), "a", "b") == Victims(("a", "b", "c"))


def test_of_equals_those_go_whose_card_gets_room_anyway() -> None:
    ledger = world(("a", 1, 8, 0), ("b", 1, 4, 0), ("c", 1, 4, 0), ("d", 0, 8, 0), ("e", 0, 8, 0))
    assert evicted(ledger, whole(1), "a") == Victims(("a", "b", "c"))
    assert evicted(ledger, whole(1), "e") == Victims(("e", "d"))


def test_nobody_of_equal_or_higher_priority_is_evicted() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 10), ("d", 1, 8, 11))
    assert evicted(ledger, memory(16), "a", "b") is None
    assert evicted(ledger, memory(16), "a", "b", priority=11) == Victims(("a", "b", "c"))


def test_a_node_that_evictions_cannot_help_is_left_out() -> None:
    assert evicted(world(("a", 0, 8, 0)), memory(17), "a") is None
    assert Preemption(Ledger(), Placement()).victims(Preemptor("new", 1, memory(1)), {"gone": Victims(("a",))}) == {}


def test_never_a_node_without_victims() -> None:
    assert evicted(world(), memory(8)) is None


def test_whole_cards() -> None:
    ledger = world(("a", 0, 2, 0), ("b", 0, 2, 3), ("c", 1, 2, 5))
    assert evicted(ledger, whole(1), "a") == Victims(("a", "b"))
    assert evicted(ledger, whole(2), "a") == Victims(("a", "c", "b"))


def test_who_is_leaving_already_need_not_be_named() -> None:
    ledger = world(("a", 0, 8, 0), ("going", 0, 8, 0), ("b", 1, 16, 0), leaving=("going",))
    assert evicted(ledger, memory(16), "a") == Victims(("a",))


def test_those_whose_budget_is_used_up_are_spared_where_that_is_possible() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 1), ("d", 1, 8, 2))
    used_up = budget(0, matchLabels={"app": "c"})
    assert evicted(ledger, memory(16), "a", "b", budgets=(used_up,)) == Victims(("a", "b", "d"))
    both = budget(0, matchExpressions=[{"key": "app", "operator": "In", "values": ["c", "d"]}])
    assert evicted(ledger, memory(16), "a", "b", budgets=(both,)) == Victims(("a", "b", "c"), 1)


def test_the_room_of_a_nominated_pod_that_is_not_less_is_not_given_away() -> None:
    ledger = world(("a", 0, 16, 0), ("b", 1, 16, 5))
    ledger.nominate("first", Nominee("first", "default", "first", "n", memory(16), (), 10))
    assert evicted(ledger, memory(16), "a") is None
    assert evicted(ledger, memory(16), "a", priority=11) == Victims(("a",))


def test_what_is_only_reserved_cannot_be_evicted() -> None:
    ledger = world(("a", 0, 8, 0))
    ledger.reserve(Holder("soon", "default", "soon", "n", memory(16), on(1, 16)), 1.0)
    ledger.assume(Holder("now", "default", "now", "n", memory(8), on(0, 8)))
    assert evicted(ledger, memory(16), "a") is None


PODS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 8), st.integers(0, 12)), min_size=1, max_size=6)


@given(PODS, st.integers(1, 20), st.data())
def test_the_victims_are_enough_and_none_of_those_added_is_too_many(
    pods: list[tuple[int, int, int]], units: int, data: st.DataObject
) -> None:
    ledger = world(*((f"p{i}", card, size, priority) for i, (card, size, priority) in enumerate(pods)), cards=(48, 48))
    lower = [f"p{i}" for i, (_, _, priority) in enumerate(pods) if priority < 10]
    proposed = data.draw(st.sets(st.sampled_from(lower), min_size=1)) if lower else set()
    found = evicted(ledger, memory(40 + units), *sorted(proposed))
    node = ledger.node("n")
    assert node is not None

    def fits(without: set[str]) -> bool:
        return node.supposing(without=without).leftover(memory(40 + units)) is not None

    assert (found is not None) == (bool(proposed) and fits(set(lower)))
    if found is not None:
        victims = set(found.uids)
        assert proposed <= victims <= set(lower)
        assert fits(victims)
        assert not any(fits(victims - {uid}) for uid in victims - proposed)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Binpack between the cards of a node and between nodes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.ledger import Ledger, NodeLedger
from gpushare_runtime.placement import Binpack
from gpushare_runtime.request import ContainerRequest, Kind, Request
from unit.runtime.pods import inventory
from unit.runtime.test_ledger import holder, memory, on, whole


def ledger(**nodes: list[tuple[int, int]]) -> Ledger:
    """Nodes with (size, used) per card."""
    made = Ledger()
    for name, cards in nodes.items():
        made.set_inventory(name, inventory(*[size for size, _ in cards]))
        for index, (_, used) in enumerate(cards):
            if used:
                made.apply(holder(f"{name}-{index}", memory(used), on(index, used), name))
    return made


def node(cards: list[tuple[int, int]]) -> NodeLedger:
    found = ledger(n=cards).node("n")
    assert found is not None
    return found


def test_the_fullest_card_that_fits_is_taken() -> None:
    assert Binpack().choose(memory(6), node([(16, 0), (16, 9), (16, 11), (24, 20)])) == on(1, 6)


def test_ties_go_to_the_lowest_index() -> None:
    assert Binpack().choose(memory(6), node([(24, 0), (16, 0), (16, 0)])) == on(1, 6)


def test_room_on_two_cards_together_is_no_room() -> None:
    assert Binpack().choose(memory(25), node([(16, 0), (24, 0)])) is None


def test_all_containers_of_a_pod_share_its_card() -> None:
    request = Request((ContainerRequest(Kind.APP, 0, "a", units=3), ContainerRequest(Kind.APP, 2, "b", units=4)))
    assert Binpack().choose(request, node([(16, 10), (16, 9)])) == Allocation.of({0: {1: 3}, 2: {1: 4}})


def test_whole_cards_are_empty_ones_the_smallest_first() -> None:
    request = Request((ContainerRequest(Kind.APP, 0, "a", cards=1), ContainerRequest(Kind.APP, 1, "b", cards=1)))
    found = Binpack().choose(request, node([(24, 0), (16, 1), (16, 0), (80, 0)]))
    assert found == Allocation.of({0: {2: 16}, 1: {0: 24}})
    assert Binpack().choose(whole(4), node([(24, 0), (16, 1), (16, 0), (80, 0)])) is None


def test_the_three_samples_of_six_share_one_card_and_take_another() -> None:
    cluster = ledger(gpu1=[(16, 0), (16, 0)], gpu2=[(16, 0), (24, 0)])
    places = []
    for uid in ("1", "2", "3"):
        scores = Binpack().rank(memory(6), cluster.nodes.values())
        best = max(scores, key=lambda name: scores[name])
        found = cluster.node(best)
        assert found is not None
        allocation = Binpack().choose(memory(6), found)
        assert allocation is not None
        cluster.apply(holder(uid, memory(6), allocation, best))
        places.append((best, allocation.first_card))
    assert places[0] == places[1] != places[2]


def test_the_best_node_leaves_least_and_nodes_without_room_get_nothing() -> None:
    cluster = ledger(wide=[(80, 0)], tight=[(16, 8)], full=[(16, 12)])
    scores = Binpack().rank(memory(6), cluster.nodes.values())
    assert scores["tight"] == 10
    assert 0 <= scores["wide"] < 10
    assert scores["full"] == 0


CARDS = st.lists(st.sampled_from([8, 16, 24, 80]).flatmap(lambda s: st.tuples(st.just(s), st.integers(0, s))), min_size=1, max_size=8)


@given(CARDS, st.integers(1, 81))
def test_the_choice_is_the_best_fit_by_brute_force(cards: list[tuple[int, int]], units: int) -> None:
    fits = [(size - used, index) for index, (size, used) in enumerate(cards) if size - used >= units]
    found = Binpack().choose(memory(units), node(cards))
    assert found == (on(min(fits)[1], units) if fits else None)


@given(st.dictionaries(st.sampled_from("abcdefgh"), CARDS, min_size=1), st.integers(1, 81), st.integers(0, 3), st.randoms())
def test_scores_stay_in_bounds_one_is_best_and_the_order_of_nodes_does_not_matter(
    nodes: dict[str, list[tuple[int, int]]], units: int, cards: int, random: object
) -> None:
    cluster = ledger(**nodes)
    request = whole(cards) if cards else memory(units)
    scores = Binpack().rank(request, cluster.nodes.values())
    assert scores == Binpack().rank(request, reversed(list(cluster.nodes.values())))
    fitting = {name for name, found in cluster.nodes.items() if Binpack().choose(request, found) is not None}
    assert set(scores) == set(nodes)
    assert all(0 <= score <= 10 for score in scores.values())
    assert [name for name, score in scores.items() if score == 10] == [name for name in scores if name in fitting and scores[name] == 10]
    assert sum(score == 10 for score in scores.values()) == (1 if fitting else 0)
    assert all(scores[name] == 0 for name in set(nodes) - fitting)

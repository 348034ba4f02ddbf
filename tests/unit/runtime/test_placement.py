# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The policies between the cards of a node and between nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.fragmentation import Popular, Workload, fragmentation
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.ledger import Ledger, NodeLedger, NodeRecord
from gpushare_runtime.placement import Binpack, Placement
from gpushare_runtime.quantity import GIB
from gpushare_runtime.request import ContainerRequest, Kind, Request
from gpushare_runtime.rules import Rules
from unit.runtime.pods import card, inventory
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


def asking(units: int, several: int = 1, **rules: Any) -> Request:
    """Memory on so many cards, for a pod with these rules."""
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units),), several, Rules(**rules))


def taken(request: Request, found: NodeLedger, cards: str, workload: Workload | None = None) -> list[int]:
    allocation = Placement("binpack", cards, workload).choose(request, found)
    return sorted(allocation.by_card) if allocation else []


def test_each_policy_between_the_cards_of_a_node() -> None:
    cards = [(16, 0), (16, 4), (16, 9)]
    assert taken(memory(6), node(cards), "binpack") == [2]
    assert taken(memory(6), node(cards), "spread") == [0]
    assert taken(asking(6, 2), node(cards), "binpack") == [1, 2]
    assert taken(asking(6, 2), node(cards), "spread") == [0, 1]


def test_memory_on_several_cards_needs_that_many_with_room() -> None:
    found = node([(16, 0), (16, 4), (16, 14)])
    assert Placement().choose(asking(10, 2), found) == Allocation.of({0: {0: 5, 1: 5}})
    assert found.leftover(asking(10, 2)) == (16 - 5) + (12 - 5)
    assert Placement().choose(asking(9, 3), found) is None
    assert Placement().choose(asking(6, 3), found) == Allocation.of({0: {0: 2, 1: 2, 2: 2}})


def test_between_nodes_spread_takes_the_least_used_in_proportion() -> None:
    cluster = ledger(large=[(80, 40)], small=[(16, 4)], full=[(16, 16)])
    scores = Placement("spread").rank(memory(4), cluster.nodes.values())
    assert (scores["small"], scores["full"]) == (10, 0)
    assert scores["large"] < 10


def test_the_pods_own_word_goes_before_the_nodes_and_that_before_the_clusters() -> None:
    cluster = ledger(n=[(16, 0), (16, 4)])
    found = cluster.node("n")
    assert found is not None
    assert taken(memory(4), found, "binpack") == [1]
    cluster.set_node(replace(found.record, placement="spread"))
    assert taken(memory(4), found, "binpack") == [0]
    assert taken(asking(4, placement="binpack"), found, "spread") == [1]
    cluster.set_node(replace(found.record, placement="somehow"))
    assert taken(memory(4), found, "binpack") == [1], "a label that nobody knows changes nothing"


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'best' is not known; use one of binpack, spread, fgd"):
        Placement("best")


@pytest.mark.parametrize(
    ("rules", "cards"),
    [
        ({"models": ("A100",)}, [1]),
        ({"models": ("A10", "T4")}, [0]),
        ({"models_refused": ("Tesla-T4",)}, [1]),
        ({"cards": ("GPU-00000001",)}, [1]),
        ({"cards_refused": ("GPU-00000000",)}, [1]),
        ({"models": ("H100",)}, []),
    ],
)
def test_models_and_uuids_that_a_pod_wants_or_refuses(rules: dict[str, tuple[str, ...]], cards: list[int]) -> None:
    cluster = Ledger()
    models = ("Tesla T4", "NVIDIA A100-SXM4-80GB")
    cluster.set_inventory("n", Inventory(GIB, tuple(card(i, 16, model=model) for i, model in enumerate(models))))
    found = cluster.node("n")
    assert found is not None
    assert taken(asking(4, **rules), found, "binpack") == cards


def test_the_nodes_label_names_its_cards_where_they_are_alike() -> None:
    cluster = Ledger()
    for name, models in (("alike", ("GPU-X", "GPU-X")), ("mixed", ("GPU-X", "GPU-Y"))):
        cards = tuple(card(i, 16, model=model) for i, model in enumerate(models))
        cluster.set_node(NodeRecord(name, Inventory(GIB, cards), model="Tesla-V100-SXM2-16GB"))
    assert {name: found.leftover(asking(4, models=("V100",))) for name, found in cluster.nodes.items()} == {"alike": 12, "mixed": None}


def test_fgd_spares_what_others_need() -> None:
    """The example of the paper in small: a small pod goes where large ones could not go anyway."""
    workload = Workload()
    workload.observe([memory(8)] * 9 + [memory(2)])
    # Binpack would take the last card of which 8 can be had; to lose 2 of the one with 6 costs nobody anything.
    cards = [(16, 8), (16, 10), (16, 0)]
    assert taken(memory(2), node(cards), "fgd", workload) == [1]
    # Nothing of 8 is destroyed on the card with 10: 2 of it are left over anyway.
    assert taken(memory(2), node([(16, 8), (16, 6)]), "fgd", workload) == [1]
    assert taken(memory(2), node([(16, 8), (16, 6)]), "binpack", workload) == [0]


def test_where_nothing_is_lost_fgd_fills_the_fuller_card() -> None:
    workload = Workload()
    workload.observe([memory(1)])
    assert taken(memory(2), node([(16, 6), (16, 8)]), "fgd", workload) == [1]


def test_fgd_keeps_empty_cards_together_for_whole_ones() -> None:
    workload = Workload()
    workload.observe([whole(2)] * 5 + [memory(8)] * 5)
    cluster = ledger(pair=[(16, 0), (16, 0)], odd=[(16, 16), (16, 0)])
    assert Placement("fgd", workload=workload).rank(memory(8), cluster.nodes.values())["odd"] == 10


FREES = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=6)
SOME_KINDS = st.sampled_from([(4, 1, 0), (8, 1, 0), (16, 1, 0), (5, 2, 0), (0, 0, 1), (0, 0, 3)])
KINDS = st.lists(
    st.tuples(st.sampled_from([(4, 1, 0), (8, 1, 0), (16, 1, 0), (5, 2, 0), (0, 0, 1), (0, 0, 3)]), st.integers(1, 9)), max_size=6
)


@given(FREES, KINDS)
def test_fragmentation_is_what_the_paper_defines(cards: list[tuple[int, bool]], kinds: list[tuple[tuple[int, int, int], int]]) -> None:
    expected = 0
    for (units, several, whole_cards), count in kinds:
        useful = [free for free, empty in cards if (whole_cards and empty) or (not whole_cards and free >= units)]
        lost = sum(free for free, _ in cards)
        if len(useful) >= (whole_cards or several):
            lost -= sum(useful)
        expected += count * lost
    assert fragmentation(tuple(sorted(cards)), Popular(1, tuple(kinds))) == expected


@given(CARDS, st.integers(1, 30), st.integers(1, 3), st.lists(st.integers(1, 40), max_size=20))
def test_fgds_choice_is_the_least_growth_by_brute_force(cards: list[tuple[int, int]], units: int, several: int, seen: list[int]) -> None:
    workload = Workload()
    workload.observe([memory(size) for size in seen] or [asking(units * several, several)])
    request, found = asking(units * several, several), node(cards)

    def lost(frees: list[int]) -> int:
        used = tuple(sorted((free, free == size) for free, (size, _) in zip(frees, cards, strict=True)))
        return fragmentation(used, workload.popular)

    frees = [size - used for size, used in cards]
    options = [
        lost([free - units if i in choice else free for i, free in enumerate(frees)])
        for choice in combinations(range(len(cards)), several)
        if all(frees[i] >= units for i in choice)
    ]
    allocation = Placement("binpack", "fgd", workload).choose(request, found)
    assert (allocation is None) == (not options)
    if allocation is not None:
        assert lost([free - allocation.by_card.get(i, 0) for i, free in enumerate(frees)]) == min(options)


def test_the_workload_forgets_slowly_and_changes_its_picture_seldom() -> None:
    workload = Workload()
    for _ in range(30_000):
        workload.observe([memory(1)])
    assert workload.version < 100
    for _ in range(30_000):
        workload.observe([memory(2)])
    assert workload.popular.kinds[0][0] == (2, 1, 0)


@given(st.dictionaries(st.sampled_from("abcdef"), CARDS, min_size=1), st.integers(1, 20), st.sampled_from(["binpack", "spread", "fgd"]))
def test_any_policy_names_one_best_node_and_the_same_again(nodes: dict[str, list[tuple[int, int]]], units: int, name: str) -> None:
    cluster, policy = ledger(**nodes), Placement(name)
    scores = policy.rank(memory(units), cluster.nodes.values())
    assert scores == policy.rank(memory(units), reversed(list(cluster.nodes.values())))
    fitting = {found.name for found in cluster.nodes.values() if policy.choose(memory(units), found)}
    assert sum(score == 10 for score in scores.values()) == bool(fitting)
    assert {found for found, score in scores.items() if score == 10} <= fitting

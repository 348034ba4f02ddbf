# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The policies between the GPUs of a node and between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.placement import ranking
from gpushare_runtime.core.placement.policies import Binpack, Placement
from gpushare_runtime.core.placement.ranking import NodeCost, Ranking, scores_of
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.pods import allocated_pod, gpu, inventory, memory, on, whole
from unit.golden import Golden


def ledger(**nodes: list[tuple[int, int]]) -> Ledger:
    """Nodes with (size, used) per GPU."""
    made = Ledger()
    for name, gpus in nodes.items():
        made.set_inventory(name, inventory(*[size for size, _ in gpus]))
        for index, (_, used) in enumerate(gpus):
            if used:
                made.apply(allocated_pod(f"{name}-{index}", memory(used), on(index, used), name))
    return made


def node(gpus: list[tuple[int, int]]) -> NodeLedger:
    found = ledger(n=gpus).node("n")
    assert found is not None
    return found


def test_all_containers_of_a_pod_share_its_gpu() -> None:
    request = Request((ContainerRequest(Kind.APP, 0, "a", units=3), ContainerRequest(Kind.APP, 2, "b", units=4)))
    assert Binpack().choose(request, node([(16, 10), (16, 9)])) == Allocation.of({0: {1: 3}, 2: {1: 4}})


def test_whole_gpus_are_empty_ones_the_smallest_first() -> None:
    request = Request((ContainerRequest(Kind.APP, 0, "a", whole_gpus=1), ContainerRequest(Kind.APP, 1, "b", whole_gpus=1)))
    found = Binpack().choose(request, node([(24, 0), (16, 1), (16, 0), (80, 0)]))
    assert found == Allocation.of({0: {2: 16}, 1: {0: 24}})
    assert Binpack().choose(whole(4), node([(24, 0), (16, 1), (16, 0), (80, 0)])) is None


def test_the_three_samples_of_six_share_one_gpu_and_take_another() -> None:
    cluster = ledger(gpu1=[(16, 0), (16, 0)], gpu2=[(16, 0), (24, 0)])
    places = []
    for uid in ("1", "2", "3"):
        scores = Binpack().rank(memory(6), cluster.nodes.values())
        best = max(scores, key=lambda name: scores[name])
        found = cluster.node(best)
        assert found is not None
        allocation = Binpack().choose(memory(6), found)
        assert allocation is not None
        cluster.apply(allocated_pod(uid, memory(6), allocation, best))
        places.append((best, allocation.first_gpu))
    assert places[0] == places[1] != places[2]


GPUS = st.lists(st.sampled_from([8, 16, 24, 80]).flatmap(lambda s: st.tuples(st.just(s), st.integers(0, s))), min_size=1, max_size=5)


@given(GPUS, st.integers(1, 81))
def test_the_choice_is_the_best_fit_by_brute_force(gpus: list[tuple[int, int]], units: int) -> None:
    fits = [(size - used, index) for index, (size, used) in enumerate(gpus) if size - used >= units]
    found = Binpack().choose(memory(units), node(gpus))
    assert found == (on(min(fits)[1], units) if fits else None)


@given(
    st.dictionaries(st.sampled_from("abcd"), GPUS, min_size=1),
    st.integers(1, 81),
    st.integers(0, 3),
    st.sampled_from(["binpack", "spread"]),
)
def test_scores_stay_in_bounds_one_is_best_and_the_order_of_nodes_does_not_matter(
    nodes: dict[str, list[tuple[int, int]]], units: int, gpus: int, name: str
) -> None:
    cluster, policy = ledger(**nodes), Placement(name)
    request = whole(gpus) if gpus else memory(units)
    scores = policy.rank(request, cluster.nodes.values())
    assert scores == policy.rank(request, reversed(list(cluster.nodes.values())))
    fitting = {name for name, found in cluster.nodes.items() if policy.choose(request, found) is not None}
    assert set(scores) == set(nodes)
    assert all(0 <= score <= 10 for score in scores.values())
    assert {name for name, score in scores.items() if score == 10} <= fitting
    assert sum(score == 10 for score in scores.values()) == (1 if fitting else 0)
    assert all(scores[name] == 0 for name in set(nodes) - fitting)


def asking(units: int, several: int = 1, **rules: Any) -> Request:
    """Memory on so many GPUs, for a pod with these rules."""
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units),), several, Rules(**rules))


def taken(request: Request, found: NodeLedger, gpus: str) -> list[int]:
    allocation = Placement("binpack", gpus).choose(request, found)
    return sorted(allocation.by_gpu) if allocation else []


def test_each_policy_between_the_gpus_of_a_node() -> None:
    gpus = [(16, 0), (16, 4), (16, 9)]
    assert taken(memory(6), node(gpus), "binpack") == [2]
    assert taken(memory(6), node(gpus), "spread") == [0]
    assert taken(asking(6, 2), node(gpus), "binpack") == [1, 2]
    assert taken(asking(6, 2), node(gpus), "spread") == [0, 1]
    assert taken(memory(6), node(gpus[::-1]), "spread") == [2]
    for policy in ("binpack", "spread"):
        assert taken(whole(2), node([(80, 0), (24, 0), (16, 1), (16, 0)]), policy) == [1, 3], "whole GPUs are the smallest"


def test_memory_on_several_gpus_needs_that_many_with_room() -> None:
    found = node([(16, 0), (16, 4), (16, 14)])
    assert Placement().choose(asking(10, 2), found) == Allocation.of({0: {0: 5, 1: 5}})
    assert found.remaining_after(asking(10, 2)) == (16 - 5) + (12 - 5)
    assert Placement().choose(asking(9, 3), found) is None
    assert Placement().choose(asking(6, 3), found) == Allocation.of({0: {0: 2, 1: 2, 2: 2}})


def test_between_nodes_spread_takes_the_least_used_in_proportion() -> None:
    cluster = ledger(large=[(80, 40)], small=[(16, 4)], full=[(16, 16)])
    scores = Placement("spread").rank(memory(4), cluster.nodes.values())
    assert (scores["small"], scores["full"]) == (10, 0)
    assert scores["large"] < 10
    assert Placement("spread").rank(memory(6), ledger(a=[(4, 0)], b=[(80, 60)]).nodes.values()) == {"a": 0, "b": 10}


def test_the_pods_own_word_between_nodes() -> None:
    cluster = ledger(a=[(16, 0)], b=[(16, 4)])
    for word, first in (("binpack", "b"), ("spread", "a"), ("", "b")):
        request = asking(4, placement=word)
        assert max(Placement("binpack").rank(request, cluster.nodes.values()).items(), key=lambda item: item[1]) == (first, 10)
        weights = [Placement("binpack").node_cost(request, found) for found in cluster.nodes.values()]
        assert min(weight for weight in weights if weight)[-1] == first


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


def test_an_unknown_policy_is_rejected_by_name(golden: Golden) -> None:
    with golden.raised(ValueError):
        Placement("best")


@pytest.mark.parametrize(
    ("rules", "gpus"),
    [
        ({"models": ("A100",)}, [1]),
        ({"models": ("A10", "T4")}, [0]),
        ({"models_refused": ("Tesla-T4",)}, [1]),
        ({"gpu_uuids": ("GPU-00000001",)}, [1]),
        ({"gpus_refused": ("GPU-00000000",)}, [1]),
        ({"models": ("H100",)}, []),
    ],
)
def test_models_and_uuids_that_a_pod_wants_or_rejects(rules: dict[str, tuple[str, ...]], gpus: list[int]) -> None:
    cluster = Ledger()
    models = ("Tesla T4", "NVIDIA A100-SXM4-80GB")
    cluster.set_inventory("n", Inventory(GIB, tuple(gpu(i, 16, model=model) for i, model in enumerate(models))))
    found = cluster.node("n")
    assert found is not None
    assert taken(asking(4, **rules), found, "binpack") == gpus


def test_the_nodes_label_names_its_gpus_where_they_are_alike() -> None:
    cluster = Ledger()
    for name, models in (("alike", ("GPU-X", "GPU-X")), ("mixed", ("GPU-X", "GPU-Y"))):
        gpus = tuple(gpu(i, 16, model=model) for i, model in enumerate(models))
        cluster.set_node(NodeRecord(name, Inventory(GIB, gpus), model="Tesla-V100-SXM2-16GB"))
    assert {name: found.remaining_after(asking(4, models=("V100",))) for name, found in cluster.nodes.items()} == {
        "alike": 12,
        "mixed": None,
    }


def best(name: str, request: Request, cluster: Ledger) -> str:
    scores = Placement(name).rank(request, cluster.nodes.values())
    return max(scores, key=lambda node: scores[node])


def test_nodes_that_cost_the_same() -> None:
    """binpack takes one that is in use, spread the one with more free, both then the one whose name comes first."""
    cluster = ledger(a=[(16, 0), (16, 0)], b=[(16, 8), (16, 0)], c=[(16, 8), (16, 8)])
    assert best("binpack", whole(1), cluster) == "b"
    assert best("binpack", whole(2), cluster) == "a"
    assert best("binpack", memory(8), cluster) == "b"
    assert best("binpack", memory(9), cluster) == "b", "where no other has room on a GPU in use, one of a node in use"
    assert best("binpack", whole(2), ledger(a=[(16, 0)] * 3, b=[(16, 0)] * 2)) == "b", "all of a node: nothing is broken into"
    assert best("spread", memory(4), ledger(a=[(16, 0)], b=[(80, 0)], c=[(80, 0)])) == "b"
    # Both are in use by a quarter; a rounder count would not see that the first is in use a little more.
    assert best("spread", memory(4), ledger(a=[(80, 0)], b=[(16, 0)])) == "a"
    assert best("spread", memory(4), ledger(a=[(80, 1)], b=[(16, 0)])) == "b"
    assert best("spread", memory(4), ledger(a=[(80, 8)], b=[(16, 4)])) == "a", "a tenth, there a quarter"


def test_spread_counts_thousandths() -> None:
    assert Placement("spread").node_cost(memory(1), node([(16, 15)])) == (937, -1, "n")
    assert Placement("spread").node_cost(whole(1), node([(0, 0)])) == (1000, 0, "n"), "a GPU that is smaller than one unit"


def test_spread_counts_the_usable_gpus_alone() -> None:
    cluster = ledger(a=[(16, 4), (16, 4)], b=[(16, 0), (16, 6)])
    for name, lost in (("a", 0), ("b", 0)):
        record = cluster.nodes[name].record
        assert record.inventory is not None
        gpus = [replace(one, health="lost") if one.index == lost else one for one in record.inventory.gpus]
        cluster.set_inventory(name, Inventory(GIB, tuple(gpus)))
    assert best("spread", memory(4), cluster) == "a", "4 of 16 in use, there 6 of 16"


def test_scores_fall_from_nine_to_nothing_with_the_cost() -> None:
    cluster = ledger(**{f"n{left}": [(30, 29 - left)] for left in (0, 1, 5, 9, 10)})
    assert Placement().rank(memory(1), cluster.nodes.values()) == {"n0": 10, "n1": 9, "n5": 5, "n9": 1, "n10": 0}
    assert scores_of([]) == ("", {})
    assert scores_of([(3, 0, "b"), (3, 0, "a")]) == ("a", {"a": 10}), "where all cost the same only one is named"
    assert scores_of([(0, 0, "a"), (1, 0, "b"), (2, 0, "c")], most=4) == ("a", {"a": 10, "b": 7, "c": 5})
    assert scores_of([(0, 0, "a"), (0, 1, "b"), (4, 0, "c")]) == ("a", {"a": 10, "b": 9})


def test_each_policy_remembers_each_kind_of_request_apart() -> None:
    """All asked about in turn on one node, and again: the same as on a node that nobody has asked about."""
    cluster = ledger(n=[(16, 8), (16, 4), (16, 0)])
    policies = [Placement(name) for name in ("binpack", "spread")]
    asked = [memory(2), memory(12), memory(17), asking(8, 2), whole(1), asking(2, placement="spread")]
    for _ in range(2):
        for policy in policies:
            for request in asked:
                assert policy.node_cost(request, cluster.nodes["n"]) == policy.node_cost(request, cluster.nodes["n"].simulate())


class Weighed:
    """A ranking of four nodes by what is given for each, and how often each was weighed."""

    def __init__(self, weights: dict[str, NodeCost | None]) -> None:
        self.current = dict(weights)
        self.nodes = {name: NodeLedger(name) for name in weights}
        self.asked: list[str] = []
        self.ranking = Ranking(self.nodes, self._weigh)

    def _weigh(self, found: NodeLedger) -> NodeCost | None:
        self.asked.append(found.name)
        return self.current[found.name]

    def change(self, name: str, weight: NodeCost | None) -> None:
        self.current[name] = weight
        self.ranking.forget(name)

    def check(self, names: Sequence[str]) -> None:
        """Every answer about these names against a fresh look at all of them."""
        fits = {name: weight for name in names if (weight := self.current.get(name)) is not None}
        assert self.ranking.weights(names) == [self.current.get(name) for name in names]
        for most in range(4):
            fitting, unfit = self.ranking.fitting(names, most)
            assert set(unfit) == set(names) - set(fits)
            if most and most < len(fits):
                assert list(fitting) == [weight[-1] for weight in sorted(fits.values())[:most]]
            else:
                assert list(fitting) == list(fits)
        assert list(self.ranking.fitting(names)[0]) == list(fits)
        expected = scores_of(list(fits.values()))[1]
        assert self.ranking.scores(names) == (min(fits.values())[-1] if fits else "", expected)


def some_of(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    every = tuple(names)
    return (some for count in range(len(every) + 1) for some in permutations(every, count))


@pytest.mark.parametrize("last", [(1, 9, "d"), (5, 2, "d"), None])
def test_a_ranking_says_what_a_fresh_look_says_of_any_names(last: NodeCost | None) -> None:
    """All orders of all subsets of four nodes and of one that nobody knows: at once, and after any one node has changed or gone."""
    start: dict[str, NodeCost | None] = {"a": (3, 8, "a"), "b": (5, 7, "b"), "c": None, "d": last}
    kept = Weighed(start)
    for names in some_of([*start, "nowhere"]):
        Weighed(start).check(names)
        kept.check(names)
    assert sorted(kept.asked) == ["a", "b", "c", "d"], "each was weighed once"
    for name in start:
        for weight in ((3, 0, name), (9, 0, name), None):
            kept.change(name, weight)
            kept.check(tuple(start))
            kept.asked.clear()
            kept.change(name, start[name])
            kept.change(name, start[name])
            kept.check(tuple(start))
            kept.check(tuple(start))
            assert kept.asked == [name], "only what has changed is weighed again, and once"
        gone = kept.nodes.pop(name)
        del kept.current[name]
        kept.ranking.forget(name)
        kept.check((*start, "nowhere"))
        kept.check(tuple(kept.nodes))
        kept.nodes[name], kept.current[name] = gone, start[name]
        kept.check(tuple(start))


def test_what_is_noted_of_a_node_is_kept_as_long_as_its_weight() -> None:
    kept = Weighed({"a": None, "b": None, "c": (1, 0, "c")})
    looked_at: list[str] = []

    def noted(*names: str) -> list[str]:
        """What was looked at, all of it being said."""
        looked_at.clear()
        kept.ranking.fitting(names)
        assert kept.ranking.noted(names, lambda node: (looked_at.append(node.name), node.name.upper())[1]) == {n: n.upper() for n in names}
        return list(looked_at)

    assert [noted("a", "b"), noted("b", "a"), noted("b", "c")] == [["a", "b"], [], ["c"]]
    kept.change("a", None)
    assert [noted("a", "b", "c"), noted("a", "b", "c")] == [["a"], []]
    # Of one that nobody knows nothing is kept, and nothing of one that is gone.
    assert [noted("nowhere"), noted("nowhere")] == [["nowhere"]] * 2
    node = kept.nodes.pop("b")
    kept.ranking.forget("b")
    assert [noted("b"), noted("b")] == [["b"]] * 2
    kept.nodes["b"] = node
    assert [noted("b"), noted("b")] == [["b"], []]


def test_of_thousands_of_nodes_only_those_that_score_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in order, at the first question and after any change: nothing is sorted, and what scores nothing is left out."""
    start: dict[str, NodeCost | None] = {f"n{cost}": (cost, 0, f"n{cost}") for cost in range(3)}
    start |= {f"full{number}": (90, 0, f"full{number}") for number in range(30)}
    looked_at: list[int] = []

    def counting(weights: Sequence[NodeCost], most: int | None = None) -> tuple[str, dict[str, int]]:
        looked_at.append(len(weights))
        return scores_of(weights, most)

    monkeypatch.setattr(ranking, "scores_of", counting)
    monkeypatch.setattr(ranking, "nsmallest", None)
    kept = Weighed(start)
    for cost in (0, 90, 5, 0):
        kept.change("n0", (cost, 0, "n0"))
        scores = kept.ranking.scores(list(start))
        assert scores[0] == ("n0" if cost == 0 else "n1")
        assert kept.ranking.fitting(list(start), most=2)[0] == (["n0", "n1"] if cost == 0 else ["n1", "n2"])
    assert looked_at == [3, 2, 3, 3]
    for name in start:
        kept.change(name, (7, 0, name))
    assert kept.ranking.scores(list(start)) == ("full0", {"full0": 10})
    assert looked_at[4:] == [1], "all cost the same"


def test_a_node_that_is_gone_is_unknown_also_to_who_asks_about_the_same_names_again() -> None:
    kept, names = Weighed({"a": (1, 0, "a"), "b": (2, 0, "b")}), ["a", "b"]
    for _ in range(2):
        assert kept.ranking.fitting(names) == (names, set())
    del kept.nodes["a"]
    kept.ranking.forget("a")
    assert kept.ranking.fitting(names) == (["b"], {"a"})


def test_when_all_weights_change_what_cannot_be_changed_is_weighed_anew_and_nodes_that_are_gone_are_left_out() -> None:
    kept, names = Weighed({name: (1, 0, name) for name in "abcd"}), ["a", "b", "c", "d"]
    for _ in range(2):
        kept.ranking.fitting(names)
    kept.asked.clear()
    del kept.nodes["a"]
    kept.ranking.forget("a")
    kept.change("b", (7, 0, "b"))
    kept.current["c"] = (8, 0, "c")
    kept.ranking.change(lambda node, weight: None if node.name == "c" else (weight[0] + 1, *weight[1:]))
    assert kept.ranking.fitting(names) == (["b", "c", "d"], {"a"})
    assert kept.ranking.weights(names) == [None, (7, 0, "b"), (8, 0, "c"), (2, 0, "d")]
    assert sorted(kept.asked) == ["b", "c"]


def test_a_node_that_nobody_asks_about_is_not_weighed() -> None:
    kept = Weighed({"a": (1, 0, "a"), "b": None})
    kept.ranking.forget("b")
    kept.ranking.forget("nowhere")
    assert kept.ranking.scores(["a"]) == ("a", {"a": 10})
    assert kept.asked == ["a"]
    assert kept.ranking.scores(["nowhere"]) == ("", {})
    assert kept.ranking.fitting(["b", "nowhere"]) == ([], {"b", "nowhere"})


def test_a_policys_ranking_is_kept_by_the_ledger_for_each_kind_of_request() -> None:
    cluster, policy = ledger(a=[(16, 0)], b=[(16, 4)]), Placement()
    first = policy.ranking(memory(4), cluster)
    assert policy.ranking(memory(4), cluster) is first
    assert policy.ranking(memory(5), cluster) is not first
    assert policy.ranking(asking(4, placement="spread"), cluster) is not first
    assert first.scores(["a", "b"])[0] == "b"
    assert policy.ranking(asking(4, placement="spread"), cluster).scores(["a", "b"])[0] == "a"
    cluster.apply(allocated_pod("more", memory(6), on(0, 6), "a"))
    assert first.scores(["a", "b"])[0] == "a"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Scarce GPUs: by a naive count, and that nothing changes where no pod is restricted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import example, given

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import GpuClass
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.ranking import NodeCost
from gpushare_runtime.core.placement.scarcity import PARTS, Scarcity, Surcharge
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.pods import allocated_pod, gpu, memory, on, whole

Node = Sequence[tuple[str, int, int]]
"""(model, size, used) of each GPU."""


def cluster_of(nodes: Sequence[Node], cpus: Sequence[int] = ()) -> Ledger:
    """cpus: thousandths of the first nodes; what the others have is not known."""
    made = Ledger()
    for number, gpus in enumerate(nodes):
        name, cpu = f"n{number}", cpus[number] if number < len(cpus) else 0
        made.set_inventory(name, Inventory(GIB, tuple(gpu(i, size, model=model) for i, (model, size, _) in enumerate(gpus)), cpu=cpu))
        for index, (_, _, used) in enumerate(gpus):
            if used:
                made.apply(allocated_pod(f"{name}-{index}", memory(used), on(index, used), name))
    return made


def asking(units: int, *models: str, refused: tuple[str, ...] = (), gpus: int = 0, cpu: int = 0, over: int = 1) -> Request:
    """over: as many GPUs have the units, each of them all."""
    rules = Rules(models=models, models_refused=refused)
    return Request((ContainerRequest(Kind.APP, 0, "main", units=0 if gpus else units * over, whole_gpus=gpus),), over, rules=rules, cpu=cpu)


ROOT = Path(__file__).parents[5]
MODELS = ("T4", "A100", "P100")
NODES = st.lists(
    st.lists(st.tuples(st.sampled_from(MODELS), st.just(16), st.integers(0, 16)), min_size=1, max_size=3), min_size=1, max_size=4
)
SIZES = st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from([8, 16, 24])), min_size=1, max_size=6)
ASKED = st.lists(
    st.builds(
        lambda units, models, refused, gpus, cpu, over: asking(units, *models, refused=tuple(refused), gpus=gpus, cpu=cpu, over=over),
        st.integers(1, 30),
        st.lists(st.sampled_from(MODELS), unique=True, max_size=2),
        st.lists(st.sampled_from(MODELS), unique=True, max_size=1),
        st.integers(0, 2),
        st.sampled_from([0, 1000, 8000, 70_000, 200_000]),
        st.sampled_from([1, 1, 1, 2, 3]),
    ),
    max_size=20,
)


@given(NODES, st.lists(st.integers(1, 16), max_size=20), st.integers(1, 16), st.integers(0, 2))
def test_without_restricted_pods_every_decision_is_that_of_binpack_without_scarcity(
    nodes: list[Node], seen: list[int], units: int, gpus: int
) -> None:
    cluster = cluster_of(nodes)
    scarcity = Scarcity(cluster.classes)
    scarcity.observe([memory(size) for size in seen] + [whole(1)])
    plain, knowing = Placement(scarcity=Scarcity(cluster.classes)), Placement(scarcity=scarcity)
    for request in (whole(gpus) if gpus else memory(units), asking(units, "T4", gpus=gpus)):
        assert knowing.rank(request, cluster.nodes.values()) == plain.rank(request, cluster.nodes.values())
        for node in cluster.nodes.values():
            assert knowing.node_cost(request, node) == plain.node_cost(request, node)
            assert knowing.choose(request, node) == plain.choose(request, node)


@given(SIZES, ASKED)
def test_scarcity_is_what_a_naive_count_says(gpus: list[tuple[str, int]], asked: list[Request]) -> None:
    cluster = cluster_of([[(model, size, 0)] for model, size in gpus])
    scarcity = Scarcity(cluster.classes)
    scarcity.observe(asked)
    kinds = set(gpus)
    total, wanted, cpu = Fraction(0), dict.fromkeys(kinds, Fraction(0)), dict.fromkeys(kinds, Fraction(0))
    for request in asked:
        rules, count = request.rules, request.whole_gpus
        takes = {
            (model, size)
            for model, size in kinds
            if (not rules.models or model in rules.models) and model not in rules.models_refused
            if count or size * request.gpus_per_pod >= request.units
        }
        room = sum(1 if count else size for model, size in gpus if (model, size) in takes)
        if not room:
            continue
        total += Fraction(count or request.units, sum(1 if count else size for _, size in gpus))
        if takes != kinds:
            for one in takes:
                wanted[one] += Fraction(count or request.units, room)
                most = 64_000 * (count or request.gpus_per_pod)
                cpu[one] += Fraction(min(request.cpu, most) * (1 if count else one[1]), room)
    expected = {GpuClass((model,), size): min(1.0, float(units / total)) for (model, size), units in wanted.items() if units}
    found = scarcity.picture.scarce
    assert all(abs(found.get(one, 0) - PARTS * share) <= 0.5 + 1e-9 for one, share in expected.items())
    assert set(found) <= set(expected)
    each = {GpuClass((model,), size): cpu[model, size] / units for (model, size), units in wanted.items() if units}
    assert scarcity.picture.cpu.keys() == found.keys()
    assert all(abs(each[one] - mean) <= 0.5 for one, mean in scarcity.picture.cpu.items())


def learned(cluster: Ledger, *requests: Request) -> Placement:
    scarcity = Scarcity(cluster.classes)
    scarcity.observe([*requests] * 8)
    return Placement(scarcity=scarcity)


def best(policy: Placement, request: Request, cluster: Ledger) -> str:
    scores = policy.ranking(request, cluster).scores(list(cluster.nodes))
    return scores[0]


def test_scarce_gpus_are_kept_for_those_who_name_them() -> None:
    """The T4 is the fuller one, but others have nowhere else to go."""
    cluster = cluster_of([[("T4", 16, 8)], [("A100", 16, 6)]])
    assert best(Placement(), memory(4), cluster) == "n0"
    policy = learned(cluster, asking(8, "T4"), memory(4))
    assert best(policy, memory(4), cluster) == "n1"
    assert best(policy, asking(4, "T4"), cluster) == "n0"


def test_whole_scarce_gpus_are_taken_last() -> None:
    cluster = cluster_of([[("T4", 16, 0)], [("A100", 16, 0)] * 4])
    assert best(Placement(), whole(1), cluster) == "n0"
    assert best(learned(cluster, asking(0, "T4", gpus=1), whole(1)), whole(1), cluster) == "n1"


def test_larger_gpus_are_scarce_where_pods_fit_on_nothing_smaller() -> None:
    cluster = cluster_of([[("A100", 80, 68)], [("A100", 16, 0)]])
    assert best(Placement(), memory(12), cluster) == "n0"
    policy = learned(cluster, memory(40), memory(12))
    assert best(policy, memory(12), cluster) == "n1"
    assert policy.kept_for(memory(12), cluster.nodes["n0"]) == "kept for pods of 40 units"


@pytest.mark.parametrize(("size", "step"), [(100, 8), (80, 6), (16, 1), (7, 1)])
def test_nodes_that_differ_by_less_than_a_step_cost_the_same(size: int, step: int) -> None:
    """A step is 8 % of the usual GPU, and at least a unit."""
    cluster = cluster_of([[("A100", size, 0)], [("T4", 3, 0)]])
    policy = Placement(scarcity=Scarcity(cluster.classes))
    costs = {left: weight[0] for left in range(size) if (weight := policy.node_cost(memory(size - left), cluster.nodes["n0"]))}
    assert costs == {left: left // step for left in range(size)}


def test_the_surcharge_of_one_picture_becomes_that_of_the_next_in_the_order_that_is_kept() -> None:
    nodes = [[("T4", 16, 8)], [("A100", 16, 6)], [("T4", 16, 0), ("A100", 16, 0)], [("T4", 16, 16)], [("T4", 16, 0)] * 8]
    cluster = cluster_of(nodes, [4000, 0, 8000, 0, 9000])
    scarcity = Scarcity(cluster.classes)
    policy, names, dear = Placement(scarcity=scarcity), list(cluster.nodes), asking(8, "T4", cpu=2000)
    for seen in ([memory(4)], [asking(8, "T4", cpu=1000)], [dear, memory(4)], [asking(8, "A100")] * 4, [memory(1)] * 40, [dear] * 99):
        scarcity.observe(seen * 16)
        for request in (memory(4), asking(4, "T4"), whole(1)):
            anew = [policy.node_cost(request, cluster.nodes[name].simulate()) for name in names]
            kept = policy.ranking(request, cluster)
            assert kept.weights(names) == anew
            assert kept.scores(names)[0] == min(one for one in anew if one)[-1]


def test_scarce_gpus_are_anybodys_where_no_cpu_is_left_for_those_who_name_them() -> None:
    """A pod that names T4 needs four CPUs with it. The node has 28 for eight of them."""
    cluster = cluster_of([[("T4", 16, 0)] * 8, [("A100", 16, 0)] * 8], [28_000])
    policy, request, node = learned(cluster, asking(0, "T4", gpus=1, cpu=4000), whole(1)), whole(1), cluster.nodes["n0"]

    def taken(number: int, cpu: int) -> tuple[int, str]:
        """(what one more costs there, for whom it is kept) after one pod more."""
        cluster.apply(allocated_pod(f"{number}", replace(request, cpu=cpu), on(number, 16), "n0"))
        cost = policy.node_cost(request, node)
        assert cost is not None
        return cost[0], policy.kept_for(request, node)

    surcharge = policy.node_cost(request, cluster_of([[("T4", 16, 0)]]).nodes["n0"])
    assert surcharge is not None
    full, kept = surcharge[0], "kept for pods that name T4"
    assert full == 16
    assert taken(0, 0) == (full, kept), "CPU for seven, and seven are empty"
    assert taken(1, 9000) == (full * 4 // 6, kept), "CPU for four and some more, and six are empty"
    assert taken(2, 15_001) == (0, ""), "CPU for none"
    assert best(policy, request, cluster) == "n0"
    cluster.remove("2")
    assert best(policy, request, cluster) == "n1"


@example([[("T4", 16, 0)], [("A100", 16, 0)]], [asking(8, "T4", cpu=8000)], [16_000], [])
@given(NODES, ASKED, st.lists(st.integers(0, 40_000), max_size=4), st.lists(st.integers(0, 9000), max_size=4))
def test_the_price_on_a_node_is_what_a_naive_count_says(nodes: list[Node], asked: list[Request], cpus: list[int], used: list[int]) -> None:
    cluster = cluster_of(nodes, cpus)
    for number, (cpu, _) in enumerate(zip(used, nodes, strict=False)):
        cluster.apply(allocated_pod(f"more-{number}", replace(memory(1), cpu=cpu), on(0, 1), f"n{number}"))
    scarcity = Scarcity(cluster.classes)
    scarcity.observe(asked)
    surcharge = scarcity.surcharge(memory(1))
    for number, (gpus, node) in enumerate(zip(nodes, cluster.nodes.values(), strict=True)):
        offered, pods = cpus[number] if number < len(cpus) else 0, used[number] if number < len(used) else 0
        empty = sum(not taken and not (index == 0 and number < len(used)) for index, (_, _, taken) in enumerate(gpus))
        for model in MODELS:
            gpu_class = GpuClass((model,), 16)
            price, each = surcharge.prices.get(gpu_class, 0), surcharge.cpu.get(gpu_class, 0)
            for_so_many = max(0, offered - pods) // each if each and offered else empty or 1
            assert surcharge.on(node, gpu_class) == int(Fraction(price * min(for_so_many, empty or 1), empty or 1))
        assert surcharge.on(node, None) == 0


MIXED = st.lists(
    st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from([8, 16, 40]), st.integers(0, 8)), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


def searched(request: Request, node: NodeLedger, surcharge: Surcharge) -> tuple[NodeCost, tuple[int, ...]] | None:
    """By trying all choices on this node: what the cheapest costs, and its GPUs; None where the request does not fit."""
    count = request.whole_gpus or request.gpus_per_pod
    fit = [
        state
        for state in node.gpu_states
        if not request.rules.models or state.gpu.model in request.rules.models
        if state.gpu.model not in request.rules.models_refused
        if (state.free == state.gpu.units if request.whole_gpus else state.free >= request.per_gpu)
    ]
    extra = {state.gpu.index: surcharge.on(node, node.class_of(state.gpu)) for state in fit}

    def order(chosen: tuple[GpuState, ...]) -> tuple[object, ...]:
        indexes = [state.gpu.index for state in chosen]
        prices = sum(extra[index] for index in indexes)
        if request.whole_gpus:
            return prices, sum(state.gpu.units for state in chosen), indexes
        return count * sum(state.free for state in chosen) + surcharge.step * prices, indexes

    best = min(combinations(fit, count), key=order, default=None)
    if best is None:
        return None
    left = 0 if request.whole_gpus else sum(state.free - request.per_gpu for state in best) // surcharge.step
    empty = all(state.free == state.gpu.units for state in node.gpu_states) and request.whole_gpus < len(node.gpu_states)
    indexes = tuple(state.gpu.index for state in best)
    return (left + sum(extra[index] for index in indexes) // count, empty, node.name), indexes


@given(MIXED, MIXED, ASKED, st.lists(st.integers(0, 40_000), max_size=3), st.integers(1, 3))
def test_what_a_node_costs_and_which_gpus_it_gives_are_those_of_a_search_through_all_choices(
    nodes: list[Node], later: list[Node], asked: list[Request], cpus: list[int], gpus: int
) -> None:
    """Also in the order that is kept, while scarcity changes and other GPUs become the usual ones."""
    cluster, more = cluster_of(nodes, cpus), cluster_of(later)
    scarcity = Scarcity(cluster.classes)
    policy = Placement(scarcity=scarcity)
    for number, request in enumerate(
        [*asked, replace(memory(6), gpus_per_pod=gpus), whole(gpus), memory(2), replace(memory(2), gpus_per_pod=2)]
    ):
        scarcity.observe([request] * (number + 1))
        if number == len(asked):
            for node in more.nodes.values():
                cluster.set_inventory(f"later-{node.name}", node.inventory)
        for each in (request, memory(6), whole(1)):
            surcharge, names = scarcity.surcharge(each), list(cluster.nodes)
            naive = {name: searched(each, node, surcharge) for name, node in cluster.nodes.items()}
            expected = [found and found[0] for found in naive.values()]
            assert policy.ranking(each, cluster).weights(names) == expected
            for name, found in naive.items():
                assert policy.node_cost(each, cluster.nodes[name]) == (found and found[0])
                chosen = policy.choose(each, cluster.nodes[name])
                assert (chosen and tuple(sorted(chosen.by_gpu))) == (found and found[1])
        chosen = policy.choose(request, cluster.nodes["n0"])
        if chosen is not None:
            cluster.apply(allocated_pod(f"new-{number}", request, chosen, "n0"))


def test_a_gpu_that_is_smaller_than_a_unit_is_of_no_class() -> None:
    cluster = Ledger()
    small = replace(gpu(1, 16), units=0, mib=500, model="P4")
    cluster.set_inventory("n0", Inventory(GIB, (gpu(0, 16, model="T4"), small)))
    scarcity = Scarcity(cluster.classes)
    scarcity.observe([whole(1), asking(4, refused=("P4",))] * 8)
    assert scarcity.picture.scarce == {}, "all that there is will do"


def test_nodes_that_are_alike_are_told_apart_by_a_request_that_names_a_gpu() -> None:
    cluster = Ledger()
    for name in ("n0", "n1"):
        cluster.set_inventory(name, Inventory(GIB, (replace(gpu(0, 16), uuid=f"GPU-{name}"),)))
    named = replace(memory(4), rules=Rules(gpu_uuids=("GPU-n1",)))
    assert [weight is None for weight in Placement().ranking(named, cluster).weights(["n0", "n1"])] == [True, False]


def test_spread_keeps_no_gpu_for_others_also_where_a_pod_alone_asks_for_it() -> None:
    cluster = cluster_of([[("T4", 16, 0)], [("A100", 16, 0)]])
    policy, node = learned(cluster, asking(8, "T4"), memory(4)), cluster.nodes["n0"]
    assert policy.kept_for(memory(4), node) == "kept for pods that name T4"
    assert policy.kept_for(replace(memory(4), rules=Rules(placement="spread")), node) == ""


def test_within_a_node_the_scarce_gpu_is_kept_too() -> None:
    cluster = cluster_of([[("T4", 16, 8), ("A100", 16, 6)]])
    policy = learned(cluster, asking(8, "T4"), memory(4))
    assert Placement().choose(memory(4), cluster.nodes["n0"]) == on(0, 4)
    assert policy.choose(memory(4), cluster.nodes["n0"]) == on(1, 4)


def test_gpus_that_come_or_go_or_fail_change_the_classes() -> None:
    cluster = cluster_of([[("T4", 16, 0), ("T4", 16, 0)], [("A100", 24, 0)]])
    assert cluster.classes == {GpuClass(("T4",), 16): 32, GpuClass(("A100",), 24): 24}
    cluster.set_inventory("n0", Inventory(GIB, (gpu(0, 16, model="T4"), gpu(1, 16, model="T4", health="lost"))))
    cluster.set_inventory("n1", None)
    assert cluster.classes == {GpuClass(("T4",), 16): 16}


T4, P100, A100 = (GpuClass((model,), 16) for model in ("T4", "P100", "A100"))


@pytest.mark.parametrize(("more", "parts"), [(10_000, 13), (10_001, 16)])
def test_after_20_000_requests_older_ones_count_half(more: int, parts: int) -> None:
    scarcity = Scarcity({T4: 160, A100: 160})
    t4 = asking(8, "T4", cpu=4000)
    scarcity.observe([t4] * 10_000 + [memory(8)] * 10_001)
    # From here on both count as 5000.
    scarcity.observe([memory(8)] * more)
    # One more than 20 000 halves them once more.
    scarcity.observe([t4] * 5000)
    assert (scarcity.picture.scarce, scarcity.picture.cpu) == ({T4: parts}, {T4: 8000})


@pytest.mark.parametrize(("once", "scarce"), [(1, {}), (2, {T4: 15})])
def test_what_a_single_pod_asked_for_is_forgotten_then(once: int, scarce: dict[GpuClass, int]) -> None:
    scarcity = Scarcity({T4: 160, A100: 160})
    scarcity.observe([asking(16, "T4", over=1000)] * once + [memory(1)] * (20_000 if once == 1 else 36_000))
    assert scarcity.picture.scarce == scarce


def test_at_most_1024_needs_shapes_and_surcharges_are_remembered() -> None:
    scarcity = Scarcity({T4: 160, A100: 160})
    shapes, surcharges, needs = [], [], []
    for number in range(1100):
        scarcity.observe([replace(asking(8, "A100"), containers=(ContainerRequest(Kind.APP, 0, "main", units=8, core=number + 1),))])
        shapes.append(len(scarcity._alike))
    for number in range(1100):
        scarcity.surcharge(memory(number + 1))
        surcharges.append(len(scarcity._surcharges))
    for number in range(1100):
        scarcity.observe([asking(1, f"X{number}")] * 2 + [asking(8, "T4")] * (number == 980))
        needs.append(len(scarcity._asked))
    assert (max(shapes), max(surcharges), max(needs)) == (1024, 1024, 1024)
    assert needs[needs.index(1024) + 1] == 512, "those of the most pods"
    scarcity.observe([asking(8, "T4")] * 1100)
    assert scarcity.picture.scarce == {T4: PARTS, A100: PARTS}


@pytest.mark.parametrize(("others", "scarce"), [(127, True), (128, False)])
def test_the_128_needs_that_ask_for_most_count(others: int, scarce: bool) -> None:
    scarcity = Scarcity({T4: 16, A100: 19 * 16})
    scarcity.observe([asking(15, "T4")] + [asking(16, "A100", f"X{number}") for number in range(others)])
    assert (T4 in scarcity.picture.scarce) is scarce


@pytest.mark.parametrize(("others", "scarce"), [(63, True), (64, False)])
def test_the_64_classes_of_most_units_count(others: int, scarce: bool) -> None:
    scarcity = Scarcity({T4: 16} | {GpuClass((f"X{number}",), 16): 32 for number in range(others)})
    scarcity.observe([asking(8, "T4")] * 8)
    assert (T4 in scarcity.picture.scarce) is scarce


def test_the_picture_is_another_one_when_the_counts_have_grown_by_half() -> None:
    classes = {T4: 160, A100: 160}
    scarcity, t4 = Scarcity(classes), asking(8, "T4")
    assert (scarcity.picture.scarce, scarcity.surcharge(memory(8)).prices) == ({}, {})
    for more in (8, 4, 6, 9):
        before = scarcity.picture
        scarcity.observe([t4] * (more - 1))
        assert scarcity.picture is before
        scarcity.observe([t4])
        assert scarcity.picture is not before
        assert scarcity.surcharge(memory(8)).prices == {T4: 8}
        assert scarcity.surcharge(memory(8)) is scarcity.surcharge(memory(8))
    del classes[A100]
    assert scarcity.picture.scarce == {}, "no pod has a choice any more"


def test_without_a_gpu_nothing_is_scarce() -> None:
    scarcity = Scarcity({})
    assert scarcity.surcharge(memory(8)).step == 1
    scarcity.observe([asking(8, "T4")] * 8)
    assert (scarcity.picture.scarce, scarcity.surcharge(memory(8)).step) == ({}, 1)


def test_a_request_pays_for_the_parts_and_units_that_it_takes_beyond_what_it_must_pay_anyway() -> None:
    t4, p100, a100 = (GpuClass((model,), 100) for model in ("T4", "P100", "A100"))
    scarcity = Scarcity({t4: 100, p100: 100, a100: 100})
    scarcity.observe([asking(8, "T4")] * 6 + [asking(8, "P100")] * 3 + [memory(8)] * 15)
    assert scarcity.picture.scarce == {t4: 12, p100: 6}
    for request, prices in (
        (memory(64), {t4: 6, p100: 3}),
        (asking(64, over=2), {t4: 12, p100: 6}),
        (whole(1), {t4: 9, p100: 5}),
        (asking(64, "T4", "P100"), {t4: 3}),
        (asking(64, "T4"), {}),
        (memory(101), {}),
    ):
        surcharge = scarcity.surcharge(request)
        assert (surcharge.step, surcharge.prices, surcharge.cpu) == (8, prices, dict.fromkeys(prices, 0))


@pytest.mark.parametrize(("named", "parts"), [(33, 11), (34, 12), (38, 12), (39, 13), (41, 14), (48, 16)])
def test_small_differences_leave_a_class_as_scarce_as_it_was(named: int, parts: int) -> None:
    """By less than a part. Of 96 pods each three that name T4 make it scarce by one part more."""
    scarcity, rare, t4 = Scarcity({T4: 128, A100: 128}), Scarcity({T4: 128, A100: 128}), asking(8, "T4")
    rare.observe([t4] + [memory(8)] * 95)
    assert rare.picture.scarce == {}
    scarcity.observe([t4] * 18 + [memory(8)] * 30)
    assert scarcity.picture.scarce == {T4: 12}
    scarcity.observe([t4] * (named - 18) + [memory(8)] * (66 - named))
    assert scarcity.picture.scarce == {T4: parts}


@pytest.mark.parametrize(("later", "mean"), [(8999, 8000), (9000, 9000), (7001, 8000), (7000, 7000), (20_000, 20_000)])
def test_small_differences_leave_the_cpu_that_goes_with_a_class_as_it_was(later: int, mean: int) -> None:
    scarcity = Scarcity({T4: 160, A100: 160})
    scarcity.observe([asking(16, "T4", cpu=8000)] * 8)
    assert scarcity.picture.cpu == {T4: 8000}
    # With these the mean of all sixteen is `later`.
    scarcity.observe([asking(16, "T4", cpu=2 * later - 8000)] * 8)
    assert scarcity.picture.cpu == {T4: mean}


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ([asking(8, "T4")] * 3 + [asking(8, "P100")] + [memory(8)] * 16, "kept for pods that name T4"),
        ([asking(8, "T4")] + [asking(8, "P100")] * 3 + [memory(8)] * 16, "kept for pods that name P100"),
        ([asking(8, "T4")] + [asking(8, refused=("P100", "A100"))] * 3 + [memory(8)] * 16, "kept for pods that exclude P100, A100"),
        ([asking(8, "T4")] * 3 + [asking(8, refused=("P100", "A100"))] + [memory(8)] * 16, "kept for pods that name T4"),
        ([memory(8)] * 16, ""),
    ],
)
def test_the_dearest_gpu_of_a_node_says_for_whom_most_it_is_kept(asked: list[Request], kept: str) -> None:
    cluster = cluster_of([[("T4", 16, 0), ("P100", 16, 0)], [("A100", 16, 0)]])
    scarcity = Scarcity(cluster.classes)
    scarcity.observe(asked * 8)
    assert scarcity.kept_for(memory(8), cluster.nodes["n0"], [T4, P100]) == kept


def test_a_preference_that_a_user_writes_decides_between_nodes_that_are_nearly_as_good() -> None:
    """kube-scheduler's points: ours times ten and the default weight; a preferred node affinity gives 100 times its weight 2."""
    defaults = yaml.safe_load((ROOT / "roles/scheduler/defaults/main.yml").read_text())
    weight, preferred = 10 * defaults["gpushare_extender_weight"], 2 * 100
    cluster = cluster_of([[("T4", 16, 12)], [("T4", 16, 11)], [("T4", 16, 0)]])
    _, scores = Placement().ranking(memory(4), cluster).scores(list(cluster.nodes))
    points = {name: weight * scores.get(name, 0) for name in cluster.nodes}
    assert points["n0"] > points["n1"] > points["n2"]
    assert points["n1"] + preferred > points["n0"], "nearly as good: the preference decides"
    assert points["n2"] + preferred < points["n1"], "an empty GPU is not: it is broken into for no preference"


@given(NODES, ASKED, st.booleans(), st.lists(st.integers(0, 20_000), max_size=8))
def test_nodes_that_are_alike_cost_what_each_costs_by_itself(
    nodes: list[Node], asked: list[Request], strange: bool, cpus: list[int]
) -> None:
    """What is kept for nodes that are alike is not taken for one that a rejection makes another, or one with less CPU."""
    cluster = cluster_of([*nodes, *nodes], cpus)
    if strange:
        for uid, name in (("alone", "n0"), ("twin", f"n{len(nodes)}")):
            cluster.apply(allocated_pod(uid, memory(1), on(0, 1), name))
        cluster.reject("alone")
    scarcity = Scarcity(cluster.classes)
    policy, names = Placement(scarcity=scarcity), list(cluster.nodes)
    for number, request in enumerate([*asked, replace(memory(2), gpus_per_pod=2)]):
        scarcity.observe([request])
        kept = policy.ranking(request, cluster)
        assert kept.weights(names) == [policy.node_cost(request, cluster.nodes[name]) for name in names]
        allocation = policy.choose(request, cluster.nodes[names[0]])
        if allocation is not None:
            cluster.apply(allocated_pod(f"new-{number}", request, allocation, names[0]))

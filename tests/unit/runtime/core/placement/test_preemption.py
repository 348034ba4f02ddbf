# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which evictions make room on a GPU."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.placement.budgets import Budgets, read_budget
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.preemption import Preemption, Victims
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.request import Request
from unit.fakes.runtime.core.placement.disruption_budgets import budget
from unit.fakes.runtime.pods import inventory, ledger_of, memory, on, pending, whole


def world(*pods: tuple[str, int, int, int], gpus: tuple[int, ...] = (16, 16), leaving: tuple[str, ...] = ()) -> Ledger:
    """pods: (UID, GPU, units, priority)."""
    ledger = ledger_of(inventory(*gpus))
    for uid, gpu, units, priority in pods:
        labels = (("app", uid),)
        ledger.apply(AllocatedPod(uid, "default", uid, "n", memory(units), on(gpu, units), labels, priority, uid in leaving))
    return ledger


def preemptor(request: Request, priority: int) -> PendingPod:
    return replace(pending(request), priority=priority)


def evicted(
    ledger: Ledger, request: Request, *proposed: str, priority: int = 10, budgets: tuple[dict[str, object], ...] = ()
) -> Victims | None:
    preemption = Preemption(ledger, Placement(), Budgets(map(read_budget, budgets)))
    return preemption.victims(preemptor(request, priority), {"n": Victims(proposed, 0)}).get("n")


def test_of_equals_those_go_whose_gpu_gets_room_anyway() -> None:
    ledger = world(("a", 1, 8, 0), ("b", 1, 4, 0), ("c", 1, 4, 0), ("d", 0, 8, 0), ("e", 0, 8, 0))
    assert evicted(ledger, whole(1), "a") == Victims(("a", "b", "c"))
    assert evicted(ledger, whole(1), "e") == Victims(("e", "d"))


def test_a_node_that_evictions_cannot_help_is_left_out() -> None:
    assert evicted(world(("a", 0, 8, 0)), memory(17), "a") is None
    assert Preemption(Ledger(), Placement()).victims(preemptor(memory(1), 1), {"gone": Victims(("a",))}) == {}


def test_never_a_node_without_victims() -> None:
    assert evicted(world(), memory(8)) is None


def test_a_node_that_has_room_by_its_sums_needs_the_victims_of_one_gpu() -> None:
    """As kube-scheduler proposes it from 1.38 on."""
    assert evicted(world(("a", 0, 8, 0), ("b", 1, 4, 0), ("c", 1, 4, 0)), memory(16)) == Victims(("b", "c"))
    assert evicted(world(("a", 0, 8, 20), ("b", 1, 4, 0), ("c", 1, 4, 20)), memory(16)) is None


def test_those_whose_budget_is_used_up_are_spared_where_that_is_possible() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 1), ("d", 1, 8, 2))
    used_up = budget(0, matchLabels={"app": "c"})
    assert evicted(ledger, memory(16), "a", "b", budgets=(used_up,)) == Victims(("a", "b", "d"))
    both = budget(0, matchExpressions=[{"key": "app", "operator": "In", "values": ["c", "d"]}])
    assert evicted(ledger, memory(16), "a", "b", budgets=(both,)) == Victims(("a", "b", "c"), 1)


def test_those_with_more_budgets_than_are_counted_are_spared_too_and_their_namespaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 1), ("d", 1, 8, 2))
    many = [budget(9, name=f"b{n}", matchLabels={"app": "c"}) for n in range(17)]
    asked: list[str] = []
    covering = Budgets.covering
    monkeypatch.setattr(Budgets, "covering", lambda self, pod, effort: (asked.append(pod.uid), covering(self, pod, effort))[1])
    for raws, expected, uncounted in ((many[1:], "abc", set()), (many, "abd", {"default"})):
        asked.clear()
        preemption = Preemption(ledger, Placement(), Budgets(map(read_budget, raws)))
        found = preemption.victims(preemptor(memory(16), 10), {"n": Victims(("a", "b"))})
        assert found == {"n": Victims(tuple(expected))}
        assert preemption.uncounted == uncounted
        assert sorted(asked) == ["a", "b", "c", "d"], "each once"


def test_the_room_of_a_nominated_pod_that_is_not_less_is_not_given_away() -> None:
    ledger = world(("a", 0, 16, 0), ("b", 1, 16, 5))
    ledger.nominate("first", PendingPod("first", "default", "first", memory(16), (), 10, nominated="n"))
    assert evicted(ledger, memory(16), "a") is None
    assert evicted(ledger, memory(16), "a", priority=11) == Victims(("a",))


def test_what_is_only_reserved_cannot_be_evicted() -> None:
    ledger = world(("a", 0, 8, 0))
    ledger.reserve(AllocatedPod("soon", "default", "soon", "n", memory(16), on(1, 16)), 1.0)
    ledger.assume(AllocatedPod("now", "default", "now", "n", memory(8), on(0, 8)))
    assert evicted(ledger, memory(16), "a") is None


def test_violations_are_those_that_the_scheduler_counted_and_those_of_who_is_added() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 1, 8, 0), ("c", 0, 8, 1), ("d", 1, 8, 2))
    of_two = read_budget(budget(1, matchExpressions=[{"key": "app", "operator": "In", "values": ["a", "c"]}]))
    preemption = Preemption(ledger, Placement(), Budgets([of_two]))
    found = preemption.victims(preemptor(memory(16), 10), {"n": Victims(("a", "b"), 3)})
    assert found == {"n": Victims(("a", "b", "c"), 4)}, "the first eviction has used it up"


def test_each_node_for_itself() -> None:
    ledger = world(("a", 0, 16, 0), ("b", 1, 16, 0))
    ledger.set_inventory("m", inventory(8))
    ledger.apply(AllocatedPod("c", "default", "c", "m", memory(8), on(0, 8)))
    proposed = {"m": Victims(("c",)), "n": Victims(("a",)), "empty": Victims(()), "n2": Victims(("a",))}
    assert Preemption(ledger, Placement()).victims(preemptor(memory(16), 10), proposed) == {"n": Victims(("a",))}


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    ledger = world(("a", 0, 8, 0), ("b", 0, 8, 20), ("new", 1, 16, 10))
    assert evicted(ledger, memory(16), "a") == Victims(("a",))


def test_of_those_that_may_be_spared_the_important_are_then_those_beside_no_victim_then_by_uid() -> None:
    # Either of b and c is enough beside a.
    assert evicted(world(("a", 0, 8, 0), ("b", 0, 8, 1), ("c", 0, 8, 0), gpus=(24, 1)), memory(16), "a") == Victims(("a", "c"))
    assert evicted(world(("a", 0, 8, 0), ("b", 0, 8, 0), ("c", 0, 8, 0), gpus=(24, 1)), memory(16), "a") == Victims(("a", "c"))
    # Of those that share a budget, the first by UID is the one that it lets go.
    one = budget(1, matchExpressions=[{"key": "app", "operator": "In", "values": ["b", "c"]}])
    for order in ("bc", "cb"):
        beside = world(("a", 0, 8, 0), *((uid, 0, 8, 0) for uid in order), gpus=(24, 1))
        assert evicted(beside, memory(16), "a", budgets=(one,)) == Victims(("a", "b"))
    # The victims are named with the more important first.
    assert evicted(world(("a", 0, 8, 0), ("b", 0, 8, 1), ("c", 0, 8, 2), gpus=(24, 1)), memory(24), "a") == Victims(("a", "c", "b"))


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Ledger, Request]:
    """A node of any kind of pods, some with rules, on several GPUs, of unknown GPU or held otherwise than they say, and a request."""
    ledger = Ledger()
    gpus = draw(st.lists(st.integers(4, 24), min_size=1, max_size=4))
    uuids = [gpu.uuid for gpu in inventory(*gpus).gpus]
    entries, rejected = [], []
    for number in range(draw(st.integers(1, 9))):
        uid, app = f"p{number}", draw(st.sampled_from("abc"))
        gpu, units = draw(st.integers(0, len(gpus) - 1)), draw(st.integers(1, 9))
        rules = Rules(not_with=(("app", draw(st.sampled_from("abc"))),)) if draw(st.integers(0, 5)) == 0 else Rules()
        request, allocation = Request(memory(units).containers, rules=rules), on(gpu, units)
        kind = draw(st.sampled_from(["plain"] * 5 + ["whole", "two", "unknown", "said"]))
        if kind == "whole":
            request, allocation = Request(whole(1).containers, rules=rules), on(gpu, gpus[gpu])
        elif kind == "two":
            request = Request(memory(2 * units).containers, gpus_per_pod=2, rules=rules)
            allocation = Allocation.of({0: {gpu: units, (gpu + 1) % len(gpus): units}}) if len(gpus) > 1 else None
        elif kind == "unknown":
            allocation = None
        elif kind == "said":
            entries.append(HeldEntry(draw(st.sampled_from(uuids)), uid, f"default/{uid}", units, "unmanaged"))
            allocation = draw(st.sampled_from([allocation, None]))
        priority, leaving = draw(st.integers(0, 12)), draw(st.integers(0, 9)) == 0
        ledger.apply(AllocatedPod(uid, "default", uid, "n", request, allocation, (("app", app),), priority, leaving))
    if draw(st.integers(0, 5)) == 0:
        rejected.append(Rejection("r", draw(st.sampled_from(uuids)), draw(st.integers(1, 12)), 1e9))
    ledger.set_node(NodeRecord("n", inventory(*gpus), "", Held(tuple(entries), tuple(rejected))))
    wanted = draw(st.sampled_from([memory(3), memory(8), memory(16), whole(1), whole(2), Request(memory(8).containers, gpus_per_pod=2)]))
    avoids = Rules(not_with=(("app", "a"),)) if draw(st.booleans()) else Rules()
    wanted = Request(wanted.containers, wanted.gpus_per_pod, avoids)
    return ledger, ledger.for_pod(pending(wanted, "default", (("app", draw(st.sampled_from("bc"))),)))


def naive(ledger: Ledger, request: Request, proposed: set[str]) -> set[str] | None:
    """All that are less away, then each put back where it still fits: with a fresh node for each question."""
    node = ledger.nodes["n"]

    def fits(without: set[str]) -> bool:
        return node.simulate(without=without).remaining_after(request) is not None

    gone = proposed | {"new"} | {h.uid for h in node.pods if h.terminating}
    if fits(gone):
        return proposed
    lesser = {h.uid: h for h in node.pods if h.priority < 10 and h.uid not in gone}
    if not fits(gone | lesser.keys()):
        return None
    opened = {gpu for h in node.pods if h.uid in proposed for gpu in node.gpus_of(h) or ()}
    for h in sorted(lesser.values(), key=lambda h: (-h.priority, not opened.isdisjoint(node.gpus_of(h) or ()), h.uid)):
        if fits(gone | lesser.keys() - {h.uid}):
            del lesser[h.uid]
    return proposed | lesser.keys()


@settings(max_examples=300)
@given(crowds(), st.data())
def test_whatever_is_on_the_node_the_victims_are_those_of_a_naive_count(crowd: tuple[Ledger, Request], data: st.DataObject) -> None:
    ledger, request = crowd
    node = ledger.nodes["n"]
    proposed = data.draw(st.sets(st.sampled_from(sorted(h.uid for h in node.pods if h.priority < 10) or ["none"]), min_size=1))
    found = evicted(ledger, request, *sorted(proposed))
    assert (None if found is None else set(found.uids)) == naive(ledger, request, proposed)


def test_what_a_node_says_of_a_pod_itself_does_not_go_with_the_pod() -> None:
    ledger = world(("a", 0, 8, 3), ("b", 0, 8, 1), ("c", 0, 8, 2), ("x", 1, 4, 0), gpus=(24, 4))
    said = HeldEntry(inventory(24, 4).gpus[0].uuid, "a", "default/a", 8, "unmanaged")
    ledger.set_node(NodeRecord("n", inventory(24, 4), "", Held((said,))))
    assert evicted(ledger, memory(8), "x") == Victims(("x", "b"))


def test_a_gpu_with_somebody_who_wants_no_such_neighbour_needs_another_victim() -> None:
    ledger = world(("x", 0, 8, 0), ("y", 1, 16, 0))
    wary = Request(memory(8).containers, rules=Rules(not_with=(("app", "new"),)))
    ledger.apply(AllocatedPod("wary", "default", "wary", "n", wary, on(0, 8), (), 20))
    assert evicted(ledger, ledger.for_pod(pending(memory(8), "default", (("app", "other"),))), "x") == Victims(("x",))
    assert evicted(ledger, ledger.for_pod(pending(memory(8), "default", (("app", "new"),))), "x") == Victims(("x", "y"))


def test_a_node_is_copied_as_often_however_many_pods_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler waits a second for the answer about a hundred nodes."""
    copies: list[NodeLedger] = []
    simulate = NodeLedger.simulate
    monkeypatch.setattr(NodeLedger, "simulate", lambda self, *args, **options: (copies.append(self), simulate(self, *args, **options))[1])

    def cost(count: int) -> int:
        copies.clear()
        ledger = world(*((f"p{n:03}", n % 8, 1, n % 7) for n in range(count)), gpus=(count // 8,) * 8)
        found = evicted(ledger, memory(count // 8), "p000")
        assert found is not None
        assert len(found.uids) >= count // 8
        return len(copies)

    assert cost(16) == cost(160) <= 3


def test_of_very_many_nodes_the_cheapest_by_the_schedulers_count_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare_runtime.core.placement.preemption.MOST_NODES", 2)
    ledger = Ledger()
    proposed = {}
    for name, violated in (("a", 2), ("b", 0), ("c", 1), ("small", 0), ("d", 0)):
        ledger.set_inventory(name, inventory(8 if name == "small" else 16))
        ledger.apply(AllocatedPod(name, "default", name, name, memory(8), on(0, 8)))
        proposed[name] = Victims((name,), violated)
    proposed["d"] = Victims(("d", "x"), 0)
    assert set(Preemption(ledger, Placement()).victims(preemptor(memory(16), 10), proposed)) == {"b", "d"}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the ledger promises, case by case, and every short history of one pod; longer ones are in test_ledger_model.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import GpuClass, Likeness, NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.placement.policies import Binpack, Placement
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.core.naive import NaiveLife
from unit.fakes.runtime.pods import allocated_pod, frees, gpu, inventory, ledger_of, memory, on, whole


def test_of_a_pod_nothing_is_supposed_that_was_not_said() -> None:
    pod = allocated_pod("a", memory(6), None)
    assert (pod.labels, pod.priority, pod.terminating, pod.alive) == ((), 0, False, False)
    assert GpuState(gpu(0, 16), 16, True).core == 0


def test_what_is_left_of_a_gpu_after_one_pod_more() -> None:
    before = GpuState(gpu(0, 16), 16, True, 100, 4)
    assert before.after(6, 30, False, 2) == GpuState(gpu(0, 16), 10, False, 70, 2)
    assert before.after(20, 101, False, 5) == GpuState(gpu(0, 16), 0, False, 0, 0)
    assert before.after(6, 0, True) == GpuState(gpu(0, 16), 0, False, 0, 3)


def test_what_makes_a_difference_to_what_is_held() -> None:
    pod = allocated_pod("a", memory(6), on(0, 6))
    for same in (replace(pod, priority=9), replace(pod, terminating=True), replace(pod, alive=True)):
        assert pod.counts_as(same)
    others: tuple[dict[str, Any], ...] = (
        {"node": "m"}, {"allocation": on(1, 6)}, {"allocation": None}, {"request": memory(7)}, {"labels": (("app", "a"),)},
    )  # fmt: skip
    assert not any(pod.counts_as(replace(pod, **change)) for change in others)


def test_the_same_name_again_is_another_pod() -> None:
    ledger = ledger_of(inventory(16))
    ledger.apply(AllocatedPod("old", "default", "job", "n", memory(6), on(0, 6)))
    ledger.apply(AllocatedPod("new", "default", "job", "n", memory(6), on(0, 6)))
    assert frees(ledger) == [4]
    ledger.remove("old")
    assert frees(ledger) == [10]


def test_a_gpu_held_whole_has_nothing_left_whatever_the_annotation_says_it_had() -> None:
    ledger = ledger_of(inventory(16))
    ledger.apply(allocated_pod("a", whole(1), on(0, 10)))
    assert frees(ledger) == [0]


def test_more_compute_than_a_gpu_shares_out_is_reported() -> None:
    ledger = ledger_of(Inventory(GIB, (gpu(0, 16),), core=100))
    for uid in ("a", "b"):
        request = Request((ContainerRequest(Kind.APP, 0, "main", units=1, core=60),))
        ledger.apply(allocated_pod(uid, request, on(0, 1)))
    node = ledger.nodes["n"]
    assert node.problems() == ["GPU 0: 120 % of its compute are allocated, it shares out 100 %"]
    assert node.gpu_states[0].core == 0


def test_a_pod_without_a_known_gpu_counts_against_every_gpu() -> None:
    ledger = ledger_of(inventory(5, 6, 24))
    ledger.apply(allocated_pod("a", memory(6), None))
    assert frees(ledger) == [0, 0, 18], "also where no GPU is as large: it is from days when it needed to be on none alone"
    ledger.apply(allocated_pod("b", whole(1), None))
    assert frees(ledger) == [0, 0, 0]


def test_a_pod_without_a_known_gpu_counts_with_what_its_node_says_after_some_seconds() -> None:
    """Who may set spec.nodeName and a finalizer could block all GPUs of a node with it for ever."""
    freed: list[float] = []
    ledger = Ledger(lambda by="": freed.append(clock))
    ledger.set_inventory("n", inventory(16, 16))
    assert not ledger.expire(100.0)
    ledger.apply(allocated_pod("whole", whole(1), None))
    assert not ledger.expire(101.0)
    ledger.apply(allocated_pod("giant", memory(40), on(7, 40)))
    for clock, done, free in ((102.0, False, [0, 0]), (115.9, False, [0, 0]), (116.0, True, [0, 0]), (117.0, True, [16, 16])):
        assert (ledger.expire(clock), frees(ledger)) == (done, free), clock
    assert freed == [116.0, 117.0]
    assert not ledger.expire(200.0)
    assert ledger.nodes["n"].problems() == [
        "GPU 7: 40 units are allocated beyond what it has",
        "pod default/whole: its GPU is not known; its node does not say that it holds any, so it does not count",
        "pod default/giant: no pod can have what its annotations say of GPU 7; "
        "its node does not say that it holds any, so it does not count",
    ]
    said = HeldEntry(inventory(16, 16).gpus[1].uuid, "giant", "default/giant", 5, "unmanaged")
    ledger.set_node(NodeRecord("n", inventory(16, 16), "", Held((said,))))
    assert frees(ledger) == [16, 11], "what the node says counts, also where it is only a part"
    ledger.apply(allocated_pod("giant", memory(40), on(7, 40)))
    assert frees(ledger) == [16, 11]
    ledger.remove("giant")
    ledger.remove("whole")
    ledger.set_inventory("n", inventory(16, 16))
    ledger.apply(allocated_pod("whole", whole(1), None))
    assert frees(ledger) == [0, 0], "another pod, and another time"


def test_a_pod_whose_gpu_becomes_known_in_time_is_counted_by_it() -> None:
    ledger = ledger_of(inventory(16, 16))
    ledger.apply(allocated_pod("a", memory(6), None))
    assert not ledger.expire(1.0)
    ledger.apply(allocated_pod("a", memory(6), on(1, 6)))
    assert (ledger.expire(16.0), frees(ledger)) == (False, [16, 10])
    ledger.remove("a")
    ledger.apply(allocated_pod("a", memory(6), None))
    assert (ledger.expire(17.0), frees(ledger)) == (False, [10, 10]), "its time begins anew"


def test_of_a_static_pods_copy_only_the_nodes_word_counts() -> None:
    ledger = ledger_of(inventory(16, 16))
    for allocation in (None, on(0, 6)):
        ledger.apply(replace(allocated_pod("a", memory(6), allocation), mirror=True))
        assert (frees(ledger), ledger.nodes["n"].problems()) == ([16, 16], [])
    said = HeldEntry(inventory(16, 16).gpus[1].uuid, "a", "default/a", 6, "unmanaged")
    ledger.set_node(NodeRecord("n", inventory(16, 16), "", Held((said,))))
    assert (frees(ledger), ledger.nodes["n"].overbooked()) == ([16, 10], {})


def gone(uid: str, units: int, gpu: str = "GPU-old", whole: bool = False) -> HeldEntry:
    return HeldEntry(gpu, uid, f"default/{uid}", units, "gone", whole)


def test_a_pod_whose_gpu_is_not_in_its_node_any_more_is_charged_to_no_gpu() -> None:
    """The GPU that has its index now is another one."""
    ledger = ledger_of(inventory(16, 24))
    ledger.apply(allocated_pod("a", memory(20), on(1, 20)))
    ledger.apply(allocated_pod("b", whole(1), on(0, 16)))
    assert frees(ledger) == [0, 4]
    node = ledger.nodes["n"]
    ledger.set_node(NodeRecord("n", inventory(16, 24), "", Held((gone("a", 20), gone("b", 16, "GPU-other", whole=True)))))
    assert (frees(ledger), node.empty_gpus(), node.units_of("a"), node.problems(), node.overbooked()) == ([16, 24], 2, {}, [], {})
    assert node.pods_without_gpu() == [
        "pod default/a has 20 GiB of GPU GPU-old, which is not in this node any more: delete it",
        "pod default/b has the whole GPU GPU-other, which is not in this node any more: delete it",
    ]
    ledger.apply(allocated_pod("c", memory(24), on(1, 24)))
    assert (frees(ledger), node.problems(), node.overbooked()) == ([16, 0], [], {})
    assert (ledger.expire(0.0), ledger.expire(100.0)) == (False, False)
    ledger.remove("c")
    ledger.set_node(NodeRecord("n", inventory(16, 24)))
    assert frees(ledger) == [0, 4], "it is back"


def test_what_is_said_to_be_gone_and_is_in_the_node_is_charged() -> None:
    ledger = ledger_of(inventory(16, 24))
    ledger.apply(allocated_pod("a", memory(20), on(1, 20)))
    ledger.set_node(NodeRecord("n", inventory(16, 24), "", Held((gone("a", 20, "GPU-00000001"),))))
    assert (frees(ledger), ledger.nodes["n"].gone) == ([16, 4], {})


def test_of_a_pod_with_one_gpu_that_is_gone_the_others_are_charged_by_the_nodes_word() -> None:
    """Which index they have now only the node knows."""
    ledger = ledger_of(inventory(16, 24))
    ledger.apply(allocated_pod("a", replace(memory(8), gpus_per_pod=2), Allocation.of({0: {0: 4, 1: 4}})))
    ledger.set_node(NodeRecord("n", inventory(16, 24), "", Held((gone("a", 4), gone("a", 4, "GPU-00000001")))))
    assert (frees(ledger), ledger.nodes["n"].units_of("a")) == ([16, 20], {1: 4})
    assert ledger.nodes["n"].pods_without_gpu() == ["pod default/a has 4 GiB of GPU GPU-old, which is not in this node any more: delete it"]


def test_a_node_that_lies_about_what_is_gone_harms_no_other() -> None:
    ledger = ledger_of(inventory(16))
    ledger.set_inventory("m", inventory(16))
    ledger.apply(allocated_pod("a", memory(6), on(0, 6), "m"))
    ledger.set_node(NodeRecord("n", inventory(16), "", Held(tuple(gone(uid, 1, f"GPU-{n}") for n, uid in enumerate("abcd")))))
    assert (frees(ledger), frees(ledger, "m"), ledger.nodes["n"].pods_without_gpu()) == ([16], [10], [])


@pytest.mark.parametrize("broken", [None, on(9, 6), on(0, 600)])
def test_what_a_pod_was_bound_with_counts_while_its_annotations_are_broken(broken: Allocation | None) -> None:
    """Before Kubernetes 1.30 a tenant may write on them what he likes: that neither blocks other GPUs nor gives his away."""
    ledger = ledger_of(inventory(16, 16))
    for how in (ledger.assume, ledger.apply):
        how(allocated_pod("a", memory(6), on(1, 6)))
        ledger.apply(allocated_pod("a", memory(6), broken))
        assert (frees(ledger), ledger.nodes["n"].problems()) == ([16, 10], [])
    ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 16], "a correction is believed"
    ledger.remove("a")
    ledger.reserve(allocated_pod("a", memory(6), on(1, 6)), 5.0)
    ledger.apply(allocated_pod("a", memory(6), broken))
    assert frees(ledger) == [10, 10], "somebody else has bound it: where it was only to go says nothing"


def test_a_node_has_no_say_in_what_is_held_on_another() -> None:
    ledger = Ledger()
    for name in ("n", "m"):
        ledger.set_inventory(name, inventory(16))
    ledger.apply(allocated_pod("a", memory(6), on(0, 6), "m"))
    ledger.hold_until("a", 5.0)
    ledger.set_node(SAYS_A)
    assert ledger.is_held_until("a")
    assert frees(ledger, "m") == [10]
    ledger.set_node(replace(SAYS_A, name="m"))
    assert ledger.pod("a") is None


@pytest.mark.parametrize("kinds", [50, 5000])
def test_a_node_that_does_not_change_remembers_so_many_kinds_of_requests(kinds: int) -> None:
    ledger = ledger_of(inventory(16))
    policy, node = Binpack(), ledger.nodes["n"]
    for units in range(1, kinds):
        assert (policy.node_cost(memory(units), node) is None) == (units > 16)
        node.fits_when_empty(memory(units))
    assert 0 < len(node.memo) <= 64
    assert (node.remaining_after(memory(6)), node.remaining_after(memory(17))) == (10, None)


def test_a_fault_about_a_node_is_that_nodes_alone() -> None:
    ledger = Ledger()
    for name in ("n", "odd"):
        ledger.set_inventory(name, inventory(16))
    odd = ledger.nodes["odd"]
    odd._facts.pods = {"a": 1}  # type: ignore[dict-item]  # What nobody has thought of.
    assert (odd.gpu_states, odd.remaining_after(memory(6)), odd.free) == ((), None, 0)
    assert odd.fault.startswith("AttributeError in ")
    ranking = Placement("binpack").ranking(memory(6), ledger)
    assert ranking.fitting(["n", "odd"]) == (["n"], {"odd"})
    ledger.set_inventory("odd", inventory(24))
    assert odd.fault == "", "until it changes"


def test_a_fault_is_said_with_its_place_and_in_few_words() -> None:
    node = NodeLedger("n")

    def fails() -> int:
        raise ValueError("\x1b" * 5000)

    assert (node.guarded(lambda: 1, 2), node.fault) == (1, "")
    assert node.guarded(fails, 2) == 2
    assert re.fullmatch(r"ValueError in fails, line \d+: '(\\x1b)+\.\.\.", node.fault)
    assert len(node.fault) < 150


def test_pods_may_be_known_before_their_nodes_gpus() -> None:
    ledger = Ledger()
    ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    assert frees(ledger) == []
    ledger.set_inventory("n", inventory(16))
    assert frees(ledger) == [10]
    ledger.set_inventory("n", None)
    ledger.set_inventory("n", inventory(16))
    assert frees(ledger) == [10]
    ledger.set_inventory("n", None)
    ledger.remove("a")
    assert ledger.node("n") is None


def test_a_node_whose_gpus_are_not_known_any_more_has_an_answer_to_everything() -> None:
    ledger = ledger_of(inventory(16))
    for uid, allocation in (("a", on(0, 20)), ("b", None)):
        ledger.apply(allocated_pod(uid, memory(6), allocation))
    node = ledger.nodes["n"]
    assert (list(node.unknown), node.overbooked()) == (["a", "b"], {0: 4})
    ledger.set_node(NodeRecord("n", None, "not JSON", model="T4"))
    ledger.reject("a")
    assert (list(node.unknown), node.overbooked(), node.candidates(memory(6)), node.rejections) == ([], {}, (), ())
    assert (node.remaining_after(memory(6)), node.fits_when_empty(memory(6)), node.fault) == (None, False, "")


def test_a_pod_that_failed_is_one_rejection_on_each_of_its_gpus() -> None:
    ledger = ledger_of(inventory(16, 16))
    for uid, allocation in (("a", Allocation.of({0: {0: 3, 7: 3}})), ("b", on(1, 6)), ("c", None)):
        ledger.apply(allocated_pod(uid, memory(6), allocation))
        for _ in range(2):
            ledger.reject(uid)
    found = [(one.uid, one.gpu, one.units) for one in ledger.nodes["n"].rejections]
    assert found == [("a", "GPU-00000000", 6), ("b", "GPU-00000001", 6)], "nobody knows the GPU of the last one"


def test_bad_and_cordoned_gpus_are_not_offered_but_still_counted() -> None:
    ledger = ledger_of(Inventory(GIB, (gpu(0, 16, health="lost"), gpu(1, 24, cordoned=True), gpu(2, 8))))
    node = ledger.nodes["n"]
    assert (node.free, node.largest_free(), node.empty_gpus()) == (8, 8, 1)
    assert node.remaining_after(memory(9)) is None


def test_a_node_is_like_others_where_nothing_but_free_units_tells_their_gpus_apart() -> None:
    gpus = inventory(16, 16)
    ledger, alike = ledger_of(gpus), Likeness(GpuClass(("Tesla T4",), 16), (10, 16), 1)
    ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    node = ledger.nodes["n"]
    assert node.likeness == alike
    for other in (None, inventory(16, 24), replace(gpus, clients=48), replace(gpus, isolation="mps")):
        ledger.set_inventory("n", other)
        assert (node.likeness, node.fault) == (None, "")
    ledger.set_inventory("n", gpus)
    assert node.likeness == alike
    ledger.reject("a")
    assert node.likeness is None, "it has rejected a pod"
    picky = replace(memory(6), rules=Rules(not_with=(("app", "a"),)))
    assert ledger_of(gpus).nodes["n"].simulate([allocated_pod("b", picky, on(0, 6))]).likeness is None


def test_the_units_of_usable_gpus_are_summed_up_by_class_over_all_nodes() -> None:
    ledger, small, large = ledger_of(inventory(16)), GpuClass(("Tesla T4",), 16), GpuClass(("Tesla T4",), 24)
    for gpus, classes in ((inventory(16, 24), {small: 32, large: 24}), (inventory(16), {small: 32}), (None, {small: 16})):
        ledger.set_inventory("m", gpus)
        assert dict(ledger.classes) == classes


def test_a_node_without_a_usable_gpu_has_nothing() -> None:
    ledger = ledger_of(Inventory(GIB, (gpu(0, 16, health="lost"),)))
    node = ledger.nodes["n"]
    assert (node.free, node.largest_free(), node.empty_gpus(), node.remaining_after(memory(1))) == (0, 0, 0, None)


def test_an_impossible_state_is_reported() -> None:
    ledger = ledger_of(inventory(16, 16, 16))
    ledger.apply(allocated_pod("a", memory(10), on(0, 10)))
    ledger.apply(allocated_pod("b", memory(10), on(0, 10)))
    ledger.apply(allocated_pod("c", memory(2), on(7, 2)))
    ledger.apply(allocated_pod("d", whole(1), on(1, 16)))
    ledger.apply(allocated_pod("e", memory(1), on(1, 1)))
    node = ledger.nodes["n"]
    assert node.overbooked() == {0: 4, 7: 2, 1: 1}
    assert frees(ledger) == [0, 0, 14], "nobody has a GPU 7: that pod counts against every GPU"
    assert [line.split(":")[0] for line in node.problems()] == ["GPU 0", "GPU 1", "GPU 7", "pod default/c"]


def compute(core: int, units: int = 1) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units, core=core),))


def test_all_of_a_gpus_compute_may_be_held() -> None:
    ledger = ledger_of(Inventory(GIB, (gpu(0, 16),), core=100))
    ledger.apply(allocated_pod("a", compute(60), on(0, 1)))
    ledger.apply(allocated_pod("b", compute(40), on(0, 1)))
    node = ledger.nodes["n"]
    assert (node.problems(), node.overbooked()) == ([], {})
    assert [node.remaining_after(request) for request in (compute(0), compute(5), memory(14))] == [13, None, 0]
    ledger.apply(allocated_pod("b", compute(35), on(0, 1)))
    assert [node.remaining_after(request) for request in (compute(5), compute(10))] == [13, None]


def test_two_that_hold_a_gpu_whole_are_one_too_many_however_few_units_they_name() -> None:
    ledger = ledger_of(inventory(16, 16))
    ledger.apply(allocated_pod("a", whole(1), on(0, 8)))
    node = ledger.nodes["n"]
    assert node.overbooked() == {}
    ledger.apply(allocated_pod("b", whole(1), on(0, 8)))
    assert node.overbooked() == {0: 1}
    assert node.problems() == ["GPU 0: 1 units are allocated beyond what it has"]
    ledger.apply(allocated_pod("c", whole(1), on(0, 8)))
    assert node.overbooked() == {0: 8}
    ledger.set_inventory("n", None, "broken")
    assert (node.overbooked(), node.problems(), node.gpu_states) == ({}, [], ())


def test_the_words_for_what_cannot_be() -> None:
    ledger = ledger_of(inventory(16, 16))
    ledger.apply(allocated_pod("a", memory(2), Allocation.of({0: {9: 1, 8: 1}})))
    ledger.apply(allocated_pod("b", memory(2), None))
    assert ledger.nodes["n"].problems() == [
        "GPU 8: 1 units are allocated beyond what it has",
        "GPU 9: 1 units are allocated beyond what it has",
        "pod default/a: no pod can have what its annotations say of GPU 8, 9; it counts against every GPU that could hold it",
        "pod default/b: its GPU is not known; it counts against every GPU that could hold it",
    ]


def test_what_stays_free_beside_a_pod_on_several_gpus() -> None:
    ledger = ledger_of(inventory(16, 7, 3, 5))
    asking = [Request((ContainerRequest(Kind.APP, 0, "main", units=4 * gpus),), gpus) for gpus in (1, 2, 3, 4)]
    assert [ledger.nodes["n"].remaining_after(request) for request in asking] == [1, 4, 16, None]


def test_a_pod_of_which_one_gpu_cannot_be_may_be_anywhere() -> None:
    ledger = ledger_of(inventory(16, 16))
    pod = allocated_pod("a", memory(2), Allocation.of({0: {0: 1, 9: 1}}))
    ledger.apply(pod)
    assert (ledger.nodes["n"].gpus_of(pod), frees(ledger)) == (None, [14, 14])
    pod = allocated_pod("a", memory(2), on(1, 2))
    ledger.apply(pod)
    assert (ledger.nodes["n"].gpus_of(pod), frees(ledger)) == ({1: 2}, [16, 14])
    ledger.set_inventory("n", None, "broken")
    assert ledger.nodes["n"].gpus_of(pod) is None


def test_a_pod_with_compute_alone_that_is_there_all_the_same_may_be_anywhere() -> None:
    ledger = ledger_of(Inventory(GIB, (gpu(0, 16), gpu(1, 16)), core=100))
    ledger.apply(allocated_pod("a", compute(20, units=0), None))
    assert [(state.free, state.core, state.empty) for state in ledger.nodes["n"].gpu_states] == [(16, 80, False)] * 2


def test_a_pod_may_hold_all_units_of_its_gpu() -> None:
    ledger = ledger_of(inventory(16, 16))
    ledger.apply(allocated_pod("a", memory(16), on(0, 16)))
    assert (frees(ledger), ledger.nodes["n"].problems()) == ([0, 16], [])


def test_what_a_node_could_hold_if_it_were_empty() -> None:
    ledger = Ledger()
    gpus = (gpu(0, 16), gpu(1, 24, model="A100"), gpu(2, 80, health="lost"))
    ledger.set_inventory("n", Inventory(GIB, gpus, core=50))
    ledger.apply(allocated_pod("a", whole(2), Allocation.of({0: {0: 16, 1: 24}})))
    node = ledger.nodes["n"]

    def asking(units: int, several: int = 1, **rules: tuple[str, ...]) -> Request:
        return Request((ContainerRequest(Kind.APP, 0, "main", units=units),), several, Rules(**rules))  # type: ignore[arg-type]

    could = {
        "24": memory(24), "2 x 16": asking(32, 2), "2 whole": whole(2), "half of compute": compute(50),
        "T4 16": asking(16, models=("T4",)), "A100 24": asking(24, models=("A100",)), "not T4": asking(24, models_refused=("T4",)),
    }  # fmt: skip
    cannot = {
        "25": memory(25), "2 x 17": asking(34, 2), "3 x 1": asking(3, 3), "3 whole": whole(3), "more of compute": compute(55),
        "T4 17": asking(17, models=("T4",)), "2 A100": asking(2, 2, models=("A100",)), "H100": asking(1, models=("H100",)),
    }  # fmt: skip
    assert [name for name, request in (could | cannot).items() if node.fits_when_empty(request)] == list(could)
    assert not any(node.remaining_after(request) is not None for request in could.values())
    ledger.set_inventory("n", None, "broken")
    assert [node.fits_when_empty(request) for request in could.values()] == [False] * len(could)
    ledger.set_inventory("n", inventory(80))
    assert node.fits_when_empty(memory(25)), "asked anew when the GPUs are others"


def test_what_a_node_would_be_with_others_on_it() -> None:
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", inventory(16, 16), "", Held((), (Rejection("u", gpu(1, 16).uuid, 3, 1e9),)), "T4", "spread"))
    ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    ledger.apply(allocated_pod("b", memory(5), on(1, 5)))
    node = ledger.nodes["n"]
    told = ledger.derived("key", Told)
    fussy = replace(memory(1), rules=Rules(not_with=(("app", "noisy"),)))
    other = node.simulate([allocated_pod("c", fussy, on(0, 1))], {"b", "x"})
    assert ([state.free for state in other.gpu_states], frees(ledger)) == ([9, 16], [10, 11])
    assert (other.name, other.record) == ("n", node.record)
    assert [state.gpu.index for state in other.candidates(memory(3))] == [0]
    assert told.names == [], "it is a copy"
    assert [state.free for state in node.simulate().gpu_states] == [10, 11]


def test_gpus_are_counted_once_and_pods_are_known_as_they_are() -> None:
    ledger = ledger_of(inventory(16, 24))
    node = ledger.nodes["n"]
    assert node.gpu_states is node.gpu_states
    ledger.apply(allocated_pod("a", memory(2), on(1, 2)))
    ledger.apply(replace(allocated_pod("a", memory(2), on(1, 2)), terminating=True, priority=3))
    assert [(pod.terminating, pod.priority) for pod in node.pods] == [(True, 3)], "this changes no sum"


class Told:
    """What is kept, with the names that it was told of."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def forget(self, name: str) -> None:
        self.names.append(name)


GPU_OF_N: Final = gpu(0, 16)
"""Node n has one GPU, m has none that is known."""
EVENTS: Final[dict[str, tuple[Callable[[Ledger], object], Callable[[NaiveLife], object]]]] = {
    "reserve": (lambda ledger: ledger.reserve(POD, 5.0), lambda life: life.reserve("n", 5.0)),
    "reserve for longer": (lambda ledger: ledger.reserve(POD, 8.0), lambda life: life.reserve("n", 8.0)),
    "reserve elsewhere": (lambda ledger: ledger.reserve(ELSEWHERE, 5.0), lambda life: life.reserve("m", 5.0)),
    "assume": (lambda ledger: ledger.assume(POD), lambda life: life.hold("assumed", "n")),
    "assume elsewhere": (lambda ledger: ledger.assume(ELSEWHERE), lambda life: life.hold("assumed", "m")),
    "apply": (lambda ledger: ledger.apply(POD), lambda life: life.seen("n")),
    "apply elsewhere": (lambda ledger: ledger.apply(ELSEWHERE), lambda life: life.seen("m")),
    "forget": (lambda ledger: ledger.forget("a"), lambda life: life.give_up("assumed")),
    "release": (lambda ledger: ledger.release("a"), lambda life: life.give_up("reserved")),
    "remove": (lambda ledger: ledger.remove("a"), lambda life: life.end()),
    "hold": (lambda ledger: ledger.hold_until("a", 5.0), lambda life: life.hold_until(5.0)),
    "hold for longer": (lambda ledger: ledger.hold_until("a", 8.0), lambda life: life.hold_until(8.0)),
    "listed on n": (lambda ledger: ledger.replace([POD], {"a"}), lambda life: life.listed("n", True)),
    "listed as pending": (lambda ledger: ledger.replace([], {"a"}), lambda life: life.listed("", True)),
    "not listed": (lambda ledger: ledger.replace([], set()), lambda life: life.listed("", False)),
    "its node speaks": (lambda ledger: ledger.set_node(SAYS_A), lambda life: life.node_speaks("n")),
    "time before": (lambda ledger: ledger.expire(4.9), lambda life: life.expire(4.9)),
    "time": (lambda ledger: ledger.expire(5.0), lambda life: life.expire(5.0)),
}
POD, ELSEWHERE = allocated_pod("a", memory(6), on(0, 6), "n"), allocated_pod("a", memory(6), on(0, 6), "m")
SAYS_A: Final = NodeRecord("n", inventory(16), "", Held((HeldEntry(GPU_OF_N.uuid, "a", "default/a", 6, "orphaned"),)))


@pytest.mark.parametrize("first", EVENTS)
def test_every_history_of_one_pod(first: str) -> None:
    """All sequences of three events: what is held, as what, and who is told."""
    for history in product([first], EVENTS, EVENTS):
        ledger, life, said = Ledger(), NaiveLife(), False
        ledger.set_inventory("n", inventory(16))
        told = ledger.derived("all", Told)
        for event in history:
            before = frees(ledger), set(ledger.nodes)
            told.names.clear()
            done, expected = (act(on_) for act, on_ in zip(EVENTS[event], (ledger, life), strict=True))  # type: ignore[arg-type]
            said = said or event == "its node speaks"
            assert event[:4] != "time" or done is expected, history
            found = ledger.pod("a")
            assert (found.node if found else "") == life.node, history
            assert (ledger.is_assumed("a"), ledger.is_reserved("a")) == (life.how == "assumed", life.how == "reserved"), history
            assert ledger.in_flight == ({"a"} if life.how in ("assumed", "reserved") else set()), history
            assert ledger.is_held_until("a") is ("a" in ledger.held_until) is (life.held_until is not None), history
            assert ledger.expired == life.expired, history
            assert frees(ledger) == [10 if said or life.node == "n" else 16], history
            assert set(ledger.nodes) == {"n"} | {life.node} - {""}, "a node of which nobody knows anything is not kept"
            if (frees(ledger), set(ledger.nodes)) != before:
                assert told.names, history


def test_what_was_reserved_first_and_again_later_runs_out_later() -> None:
    ledger = ledger_of(inventory(16))
    ledger.reserve(allocated_pod("a", memory(1), on(0, 1)), 10.0)
    ledger.reserve(allocated_pod("b", memory(2), on(0, 2)), 12.0)
    ledger.reserve(allocated_pod("a", memory(1), on(0, 1)), 14.0)
    assert ledger.expire(12.0)
    assert (frees(ledger), ledger.expired, ledger.in_flight) == ([15], 1, {"a"})


def test_who_is_held_is_so_until_the_time_that_was_said_first() -> None:
    ledger = ledger_of(inventory(16))
    for uid in ("a", "b"):
        ledger.apply(allocated_pod(uid, memory(1), on(0, 1)))
    ledger.hold_until("a", 5.0)
    ledger.hold_until("a", 8.0)
    ledger.hold_until("b", 6.0)
    assert [(ledger.expire(clock), set(ledger.held_until)) for clock in (4.9, 5.0, 6.0)] == [
        (False, {"a", "b"}), (True, {"b"}), (True, set()),
    ]  # fmt: skip
    assert (frees(ledger), ledger.expired) == ([16], 0), "nothing was reserved"


def test_a_list_leaves_others_as_they_are() -> None:
    ledger = ledger_of(inventory(16))
    for uid, put in {"a": ledger.apply, "b": ledger.assume, "c": lambda pod: ledger.reserve(pod, 1.0), "d": ledger.apply}.items():
        put(allocated_pod(uid, memory(1), on(0, 1)))
    ledger.hold_until("d", 9.0)
    ledger.replace([allocated_pod("e", memory(1), on(0, 1))], {"b", "c", "e"})
    assert {found.uid for found in ledger.nodes["n"].pods} == {"b", "c", "d", "e"}
    ledger.replace([], {"e"})
    assert {found.uid for found in ledger.nodes["n"].pods} == {"d"}, "neither bound any more nor under way"


def test_only_the_node_that_says_so_ends_the_doubt_about_a_pod() -> None:
    ledger = ledger_of(inventory(16))
    for uid in ("a", "b"):
        ledger.apply(allocated_pod(uid, memory(6), on(0, 6)))
    ledger.hold_until("b", 9.0)
    ledger.set_node(SAYS_A)
    assert {found.uid for found in ledger.nodes["n"].pods} == {"a", "b"}


def test_gpus_that_are_gone_or_unreadable_leave_what_else_the_node_says() -> None:
    ledger = ledger_of(None)
    assert ledger.node("n") is None
    ledger.set_node(replace(SAYS_A, model="T4", placement="spread"))
    ledger.set_inventory("n", None, "broken")
    assert ledger.nodes["n"].record == replace(SAYS_A, inventory=None, error="broken", model="T4", placement="spread")
    assert ledger.nodes["n"].inventory_error == "broken"
    ledger.set_inventory("n", inventory(16))
    assert frees(ledger) == [10]
    ledger.set_node(NodeRecord("n", None))
    assert ledger.node("n") is None


def test_rejections_of_several_nodes_end_each_at_its_time() -> None:
    ledger = Ledger()

    def rejects(name: str, until: float) -> None:
        ledger.set_node(NodeRecord(name, inventory(16), "", Held((), (Rejection("u", GPU_OF_N.uuid, 6, until),))))

    def fitting() -> set[str]:
        return {name for name, node in ledger.nodes.items() if node.remaining_after(memory(6)) is not None}

    rejects("n", 10.0)
    assert not ledger.expire(0.0)
    rejects("m", 20.0)
    assert not ledger.expire(10.0)
    assert fitting() == set()
    assert [(ledger.expire(now), fitting()) for now in (59.9, 60.0, 60.0, 70.0, 70.0)] == [
        (False, set()), (True, {"n"}), (False, {"n"}), (True, {"n", "m"}), (False, {"n", "m"}),
    ]  # fmt: skip
    rejects("n", 30.0)
    assert fitting() == {"m"}
    ledger.set_node(NodeRecord("n", None))
    assert not ledger.expire(200.0), "the node is gone"


def test_a_pod_is_nominated_to_one_node_at_most() -> None:
    ledger = Ledger()

    assert PendingPod("a", "default", "a", memory(1), nominated="n").priority == 0

    def nominated() -> dict[str, set[str]]:
        return {name: set(of) for name, of in ledger.nominees.items()}

    for uid, node in (("a", "n"), ("b", "n"), ("a", "m"), ("a", "m")):
        ledger.nominate(uid, PendingPod(uid, "default", uid, memory(1), nominated=node))
    assert nominated() == {"n": {"b"}, "m": {"a"}}
    ledger.nominate("b", None)
    assert nominated() == {"m": {"a"}}
    ledger.nominate("b", None)
    ledger.nominate("a", None)
    assert nominated() == {}


def test_what_is_kept_is_told_of_a_node_that_changes_and_only_then() -> None:
    ledger = Ledger()
    ledger.set_inventory("a", inventory(16))
    ledger.set_inventory("b", inventory(16))
    told = ledger.derived("key", Told)
    ledger.apply(allocated_pod("1", memory(4), on(0, 4), "a"))
    assert set(told.names) == {"a"}
    told.names.clear()
    ledger.apply(allocated_pod("1", memory(4), on(0, 4), "a"))
    ledger.replace([allocated_pod("1", memory(4), on(0, 4), "a")], {"1"})
    ledger.set_inventory("b", inventory(16))
    assert told.names == [], "the same again is no change"
    ledger.remove("1")
    ledger.set_inventory("b", None)
    assert set(told.names) == {"a", "b"}
    assert ledger.derived("key", Told) is told


def test_what_is_kept_is_told_when_a_node_is_there_no_more() -> None:
    ledger = Ledger()
    there: list[bool] = []

    class Looks:
        def forget(self, name: str) -> None:
            there.append(ledger.node(name) is not None)

    ledger.apply(allocated_pod("1", memory(4), on(0, 4), "a"))
    ledger.derived("key", Looks)
    ledger.remove("1")
    assert there[-1] is False


def test_only_the_keys_used_last_are_kept() -> None:
    ledger = Ledger()
    often, first = ledger.derived("often", Told), ledger.derived(0, Told)
    for number in range(1, 200):
        ledger.derived(number, Told)
        assert ledger.derived("often", Told) is often
    assert ledger.derived(0, Told) is not first


def test_32_kinds_of_answers_are_kept() -> None:
    ledger = Ledger()
    made = [ledger.derived(number, Told) for number in range(32)]
    assert [ledger.derived(number, Told) for number in range(32)] == made
    ledger.derived("one more", Told)
    assert ledger.derived(1, Told) is made[1]
    assert ledger.derived(0, Told) is not made[0]

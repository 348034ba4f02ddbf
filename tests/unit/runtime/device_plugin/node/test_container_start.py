# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a container may start with the ids that kubelet has for it."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer, parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.node import Node, ids_of, with_gpu
from unit.fakes.runtime.pods import container, inventory
from unit.golden import Golden

MEMORY, GPUS = RESOURCES
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def test_a_container_does_not_start_with_ids_that_are_another_containers(golden: Golden) -> None:
    node = Node(gpus := inventory(8))
    pods = [node.see(memory(gpus, 0, 2, name=name)) for name in ("one", "two")]
    for pod in pods:
        node.admit(pod)
    first, second = (ids_of(node, pod) for pod in pods)
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.starts.may_start(MEMORY, [min(second), "GPU-00000000-_-7"])
    assert node.state.starts.may_start(MEMORY, first)


def test_a_container_does_not_start_on_a_gpu_that_is_bad_or_gone(golden: Golden) -> None:
    node = Node(gpus := inventory(8))
    pod = node.takes(memory(gpus, 0, 4))
    ids = ids_of(node, pod)
    with_gpu(node, 0, health="XID 79")
    with golden.raised(AllocationRejected, "unhealthy"):
        node.state.starts.may_start(MEMORY, ids)
    node.state.devices.set_inventory(inventory(8, 8))
    assert node.state.starts.may_start(MEMORY, ids)
    with golden.raised(AllocationRejected, "unknown-ids"):
        node.state.starts.may_start(MEMORY, ["GPU-gone-_-0"])


def test_a_pod_whose_gpu_is_gone_counts_as_one_that_never_starts_after_five_tries(golden: Golden) -> None:
    """kubelet tries again every 10 to 15 s: within a minute a GPU that was away for a moment is back."""
    node = Node(gpus := inventory(8, 8))
    pod = node.takes(memory(gpus, 1, 4, uid="a"))
    node.state.devices.set_inventory(inventory(8))
    for tries in range(5):
        assert node.state.starts.never_start() == {}, tries
        with golden.raised(AllocationRejected, "unknown-ids"):
            node.state.starts.may_start(MEMORY, ids_of(node, pod))
    assert node.state.starts.never_start() == {"a": 1}
    node.state.devices.set_inventory(gpus)
    assert node.state.starts.may_start(MEMORY, ids_of(node, pod))
    assert node.state.starts.never_start() == {}


def test_a_container_that_got_a_pods_gpus_which_asked_for_another_number_of_them_does_not_start(golden: Golden) -> None:
    node = Node(gpus := inventory(8, 8))
    first = node.see(bound(gpus, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}, name="two"))
    second = node.see(memory(gpus, 0, 4, name="one"))
    # kubelet dropped the first one for another reason, and asks for the second: nobody can tell yet.
    assert node.admit(second)["main"][VISIBLE] == "GPU-00000000,GPU-00000001"
    ids = ids_of(node, second)
    with golden.raised(AllocationRejected, "gpu-count"):
        node.state.starts.may_start(MEMORY, ids)
    assert first


def test_a_start_before_the_gpus_were_read_is_not_rejected() -> None:
    state = NodeState(Node(inventory(4)).pods, lambda: 0.0, lambda: 0.0, FakeProcesses())
    assert not state.starts.may_start(MEMORY, ["GPU-00000000-_-0"])


def test_whole_gpus_that_are_gone_or_cordoned() -> None:
    node = Node(gpus := inventory(4, 4, 4))
    node.takes(whole(gpus, 1, 2))
    node.state.devices.set_cordon("all")
    assert node.state.starts.may_start(GPUS, ["GPU-00000001", "GPU-00000002"])
    assert not node.state.starts.may_start(GPUS, ["GPU-00000000"])
    with pytest.raises(AllocationRejected, match=r"1 of its \d ids \(GPU-00000001 …\) are those of container main of pod default/"):
        node.state.starts.may_start(GPUS, ["GPU-00000001"])
    node.state.devices.set_inventory(inventory(4))
    with pytest.raises(AllocationRejected, match=r"^aliyun.com/gpu-count: 2 of its ids are of no GPU in this node; delete the pod"):
        node.state.starts.may_start(GPUS, ["GPU-00000000", "GPU-00000001", "GPU-00000002"])


def test_of_several_bad_gpus_the_first_is_named(golden: Golden) -> None:
    node = Node(inventory(4, 4, 4))
    for index in (1, 2):
        with_gpu(node, index, health=f"XID {index}")
    with golden.raised(AllocationRejected, "unhealthy"):
        node.state.starts.may_start(GPUS, ["GPU-00000002", "GPU-00000001", "GPU-00000000"])


@pytest.mark.parametrize("alive", [True, False])
def test_a_start_with_ids_in_doubt_looks_at_the_processes_once(alive: bool, golden: Golden) -> None:
    node = Node(gpus := inventory(4))
    gone = node.takes(memory(gpus, 0, 2, phase="Running", name="gone"))
    ids = ids_of(node, gone)
    node.force_delete(gone, alive=alive)
    # The processes of the pod itself are its own; another's ids are not in doubt.
    assert node.state.starts.may_start(MEMORY, ids)
    assert not node.state.starts.may_start(MEMORY, {f"GPU-00000000-_-{slot}" for slot in range(4)} - ids)
    assert node.looks == 0
    if alive:
        with golden.raised(AllocationRejected, "in-use"):
            node.state.starts.may_start(MEMORY, [min(ids)])
    else:
        # It was told a moment ago that it may start.
        node.now += 30
        assert not node.state.starts.may_start(MEMORY, [min(ids)])
    assert node.looks == 1


def test_a_container_of_a_pod_that_the_watch_has_not_shown_may_start_on_any_number_of_gpus() -> None:
    node = Node(gpus := inventory(4, 4))
    pod = node.takes(bound(gpus, {0: {0: 1, 1: 1}}, container(mem=2), labels={"aliyun.com/gpu-count": "2"}))
    ids = ids_of(node, pod)
    assert node.state.starts.may_start(MEMORY, ids)
    unseen = NodeState(type(node.pods)(), lambda: 0.0, lambda: 0.0, FakeProcesses())
    unseen.devices.set_inventory(gpus)
    unseen.recorder.set_checkpoint(node.file)
    assert unseen.starts.may_start(MEMORY, ids)


def test_whole_gpus_and_memory_of_one_container_start_each_with_their_own_shape() -> None:
    node = Node(inventory(4, 4, 4))
    pod = node.takes(bound(None, {}, container(mem=2, count=2)))
    given = node.manager.given[pod["metadata"]["uid"]]["main"]
    assert all(node.state.starts.may_start(resource, given[resource]) for resource in RESOURCES)
    node = Node(inventory(4, 4, 4))
    pod = node.takes(bound(None, {}, container("a", count=1), container("b", mem=2), labels={"aliyun.com/gpu-count": "2"}))
    assert node.state.starts.may_start(MEMORY, node.manager.given[pod["metadata"]["uid"]]["b"][MEMORY])


# Starts that must not be.


def taken_for_over(gpus: Inventory) -> tuple[Node, set[str]]:
    """A node whose pod `slow` has gone before it had a process, long enough ago for its ids to be free; and these."""
    node = Node(gpus)
    slow = node.takes(memory(gpus, 0, 12, name="slow"))
    ids = ids_of(node, slow)
    node.pods.event("DELETED", parse_local_pod(slow))
    for _ in range(2):
        node.state.allocator.release_terminated()
        node.now += 3
    return node, ids


def test_a_start_of_a_pod_that_was_taken_for_over_holds_its_ids_again(golden: Golden) -> None:
    gpus = inventory(12)
    node, ids = taken_for_over(gpus)
    assert node.state.usage.snapshot() == {}
    assert not node.state.starts.may_start(MEMORY, ids)
    with golden.raised(AllocationRejected, "no-room"):
        node.state.allocator.prefer(GPUS, ["GPU-00000000"], [], 1)


def test_a_start_of_a_pod_that_was_taken_for_over_is_rejected_where_others_have_the_gpu_now(golden: Golden) -> None:
    gpus = inventory(12)
    node, ids = taken_for_over(gpus)
    # In one moment: kubelet's memory of it is gone only with the next container that asks.
    node.manager.active.clear()
    node.admit(node.see(whole(gpus, 0, name="all of it")))
    with golden.raised(AllocationRejected, "in-use"):
        node.state.starts.may_start(MEMORY, ids)


def test_ids_that_a_container_starts_with_and_nobody_knows_of_are_held_for_a_while(golden: Golden) -> None:
    node = Node(inventory(12))
    assert not node.state.starts.may_start(MEMORY, {f"GPU-00000000-_-{slot}" for slot in range(6)})
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.allocator.allocate(GPUS, ["GPU-00000000"])


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"gpushare.request/gpus": "GPU-00000001"}, "which its own annotations reject"),
        ({"gpushare.request/gpus-refused": "GPU-00000000"}, "which its own annotations reject"),
        ({"gpushare.request/not-with": "app=noisy"}, "beside pod default/noisy, with which it is not to be"),
        ({"gpushare.request/same-gpu-as": "app=encoder"}, "not beside pod default/encoder, with which it is to be"),
    ],
    ids=["gpus", "GPUs refused", "company", "same GPU"],
)
def test_a_pod_that_got_a_gpu_against_its_rules_does_not_start(rule: dict[str, str], why: str, golden: Golden) -> None:
    node = Node(gpus := inventory(16, 16))
    node.admit(node.see(memory(gpus, 0, 4, name="noisy", labels={"app": "noisy"}, phase="Running")))
    node.admit(node.see(memory(gpus, 1, 4, name="encoder", labels={"app": "encoder"}, phase="Running")))
    # It waits no more, which the watch is to say yet.
    node.see(memory(gpus, 0, 6, name="turned away"))
    strict = node.takes(memory(gpus, 1, 6, name="strict", annotations=rule))
    with golden.raised(AllocationRejected, "incompatible"):
        node.state.starts.may_start(MEMORY, ids_of(node, strict))


@pytest.mark.parametrize("company", ["came later", "has gone", "is still to come", "of another namespace"])
def test_a_pod_that_was_not_placed_apart_from_its_company_starts(company: str) -> None:
    node = Node(gpus := inventory(16, 16))
    encoder = {"labels": {"app": "encoder"}}
    there = memory(gpus, 0, 4, name="there", **encoder)
    if company == "of another namespace":
        there["metadata"]["namespace"] = "elsewhere"
    if company != "came later":
        node.admit(node.see(there))
    if company in ("has gone", "is still to come"):
        other = node.see(memory(gpus, 1, 4, name="other", **encoder))
        if company == "has gone":
            node.pods.event("DELETED", parse_local_pod(other))
    pod = node.see(memory(gpus, 1, 6, annotations={"gpushare.request/same-gpu-as": "app=encoder"}, **encoder))
    if company == "came later":
        node.admit(node.see(memory(gpus, 0, 4, name="later", **encoder)))
    node.admit(pod)
    assert node.state.starts.may_start(MEMORY, ids_of(node, pod))


def test_who_was_there_first_starts_again_whatever_others_wish() -> None:
    node = Node(gpus := inventory(16, 16))
    first = node.takes(memory(gpus, 0, 4, name="noisy", labels={"app": "noisy"}, phase="Running"))
    node.see(memory(gpus, 0, 6, name="turned away"))
    node.admit(node.see(memory(gpus, 1, 6, name="strict", annotations={"gpushare.request/not-with": "app=noisy"})))
    assert node.state.starts.may_start(MEMORY, ids_of(node, first))


def test_gpus_that_are_all_alike_are_not_told_apart_by_the_model_that_the_nodes_label_names() -> None:
    node = Node(gpus := inventory(16, 16))
    pod = node.takes(memory(gpus, 0, 4, annotations={"gpushare.request/models": "Company-Name-Of-It"}))
    assert node.state.starts.may_start(MEMORY, ids_of(node, pod))


def test_the_newest_answer_counts_where_the_same_ids_were_preferred_twice() -> None:
    node = Node(gpus := inventory(16))
    old = node.see(bound(gpus, {0: {0: 4}, 1: {0: 8}}, container("main", mem=4), container("more", mem=8), name="old"))
    free = sorted(node.free(MEMORY))
    ids, _ = node.state.allocator.prefer(MEMORY, free, [], 4)
    node.pods.event("DELETED", parse_local_pod(old))
    node.see(memory(gpus, 0, 4, name="new"))
    assert node.state.allocator.prefer(MEMORY, free, [], 4)[0] == ids
    assert node.state.allocator.allocate(MEMORY, ids).environment["ALIYUN_COM_GPU_MEM_POD"] == "4"


def test_an_init_container_that_only_podresources_leaves_out_starts_with_what_its_pod_has() -> None:
    node = Node(gpus := inventory(16))
    pod = node.takes(bound(gpus, {0: {0: 4}}, container(mem=4), init=[container("first", mem=2)]))
    first = ids_of(node, pod, "first")
    node.state.recorder.set_checkpoint(tuple(entry for entry in node.file if entry.container != "first"))
    node.now += 60
    uid = pod["metadata"]["uid"]
    bare = NodeState(node.pods, lambda: 0.0, lambda: 0.0, FakeProcesses())
    bare.devices.set_inventory(gpus)
    bare.recorder.set_checkpoint(tuple(entry for entry in node.file if entry.container != "first"))
    assert not bare.starts.may_start(MEMORY, first)
    with pytest.raises(AllocationRejected, match=f"are those of container main of {bare.usage.pod_name(uid)}"):
        bare.starts.may_start(MEMORY, set(sorted(ids_of(node, pod))[:3]))


def test_an_unknown_container_gets_the_shape_that_all_known_ones_of_its_size_want() -> None:
    """As when kubelet starts a container anew whose pod cannot be told from others."""
    node = Node(gpus := inventory(16, 16))
    pod = node.see(bound(gpus, {0: {0: 4, 1: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    node.state.pending.reject(node.state.pods.get(pod["metadata"]["uid"]))  # type: ignore[arg-type]
    assert node.state.pending.gpus_per_pod(MEMORY, 8, None) == 2
    node.see(memory(gpus, 0, 8))
    assert node.state.pending.gpus_per_pod(MEMORY, 8, None) == 1


def test_a_start_that_can_never_succeed_is_remembered_until_it_does_or_its_pod_is_gone() -> None:
    node = Node(gpus := inventory(16, 16))
    ids = [f"GPU-00000000-_-{slot}" for slot in range(8)]
    pod = bound(gpus, {0: {0: 4, 1: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"})
    # The plugin saw it too late.
    node.state.allocator.allocate(MEMORY, ids)
    node.see(pod)
    uid = pod["metadata"]["uid"]
    node.state.recorder.set_checkpoint((CheckpointEntry(uid, "main", MEMORY, frozenset(ids)),))
    with pytest.raises(AllocationRejected, match="has units of 1 GPUs, it needs 2 GPUs"):
        node.state.starts.may_start(MEMORY, ids)
    assert node.state.starts.never_start() == {uid: 0}
    node.state.pods.event("DELETED", parse_local_pod(pod))
    other = node.takes(memory(gpus, 1, 2))
    node.state.starts.may_start(MEMORY, ids_of(node, other))
    assert node.state.starts.never_start() == {}


def crowded() -> tuple[Node, str, str]:
    """Two ended containers of the same size without a record: the first one's GPU is full, the other one's former ids are free."""
    node = Node(gpus := inventory(8, 4))
    first, second = node.see(memory(gpus, 0, 4, phase="Running", name="first")), node.see(memory(gpus, 1, 4, name="second"))
    node.admit(second)
    node.see({**second, "status": {"phase": "Running"}})
    healthy = node.manager.healthy
    node.manager.restore([], RESOURCES)
    node.manager.healthy = healthy
    node.state.recorder.set_checkpoint(())
    node.now += 11.0
    node.state.recorder.detect_terminated()
    node.admit(node.see(memory(gpus, 0, 8, name="third")))
    return node, first["metadata"]["uid"], second["metadata"]["uid"]


def test_where_one_container_finds_nothing_another_of_its_size_starts() -> None:
    node, _, second = crowded()
    ids, container = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], 4)
    assert container is not None
    assert container.pod.uid == second
    assert {i.partition("-_-")[0] for i in ids} == {"GPU-00000001"}


def test_a_pod_whose_units_others_have_and_keep_can_never_start() -> None:
    node, first, second = crowded()
    allocator, starts = node.state.allocator, node.state.starts
    ids, _ = allocator.prefer(MEMORY, node.free(MEMORY), [], 4)
    allocator.allocate(MEMORY, ids)
    node.state.recorder.set_checkpoint((*node.file, CheckpointEntry(second, "main", MEMORY, frozenset(ids))))
    for times in range(4):
        assert (starts.never_start(), starts.shortages[first]) == ({}, times + 1)
        with pytest.raises(AllocationRejected, match="GPU 0 has 0 free"):
            allocator.prefer(MEMORY, node.free(MEMORY).difference(ids), [], 4)
    assert starts.never_start() == {first: 0}
    # It runs after all, by another's request.
    status: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    node.see({**memory(inventory(8, 4), 0, 4, uid=first, name="first"), "status": status})
    assert (starts.never_start(), starts.shortages[first]) == ({}, 0)


# The checks of the owner's own rules, on what kubelet's checkpoint lists.


def listed(node: Node, *given: tuple[dict[str, Any], set[str]]) -> None:
    """kubelet's checkpoint lists these ids of memory for the main containers of these pods."""
    entries = (CheckpointEntry(pod["metadata"]["uid"], "main", MEMORY, frozenset(ids)) for pod, ids in given)
    node.state.recorder.set_checkpoint(tuple(entries))


def slots(gpu: int, *numbers: int) -> set[str]:
    return {f"GPU-{gpu:08d}-_-{number}" for number in numbers}


def rejection(node: Node, ids: set[str]) -> str:
    """Why a container with these ids may not start; "" if it may."""
    try:
        assert node.state.starts.may_start(MEMORY, ids)
    except AllocationRejected as rejected:
        return str(rejected)
    return ""


@pytest.mark.parametrize(
    ("rules", "models", "why"),
    [
        ({"models": "A100"}, ("T4", "A100", "A100"), "which its own annotations reject"),
        ({"models": "T4"}, ("T4", "A100", "A100"), ""),
        ({"models": "T4"}, ("T4", "T4", "A100"), ""),
        ({"models-refused": "T4"}, ("T4", "A100", "A100"), "which its own annotations reject"),
        ({"models-refused": "A100"}, ("T4", "A100", "A100"), ""),
        ({"models-refused": "T4"}, ("T4", "T4", "T4"), ""),
        ({"models": "A100", "gpus": "GPU-00000001"}, ("T4", "T4", "T4"), "which its own annotations reject"),
        ({}, ("T4", "A100", "A100"), ""),
    ],
)
def test_a_pods_rules_about_gpus_count_where_its_gpus_differ(rules: dict[str, str], models: tuple[str, ...], why: str) -> None:
    node = Node(gpus := inventory(16, 16, 16))
    for index, model in enumerate(models):
        with_gpu(node, index, model=model)
    pod = node.see(memory(gpus, 0, 2, annotations={f"gpushare.request/{key}": value for key, value in rules.items()}))
    listed(node, (pod, slots(0, 0, 1)))
    assert why in rejection(node, slots(0, 0, 1))
    assert bool(why) == bool(node.state.starts.starts_never)


NOISY, QUIET = {"app": "noisy"}, {"gpushare.request/not-with": "app=noisy"}


@pytest.mark.parametrize(
    ("other", "gpu", "why"),
    [
        ({"labels": NOISY}, 0, "beside pod default/other, with which it is not to be"),
        ({"labels": NOISY}, 1, ""),
        ({"labels": {"app": "else"}}, 0, ""),
        ({"annotations": {"gpushare.request/not-with": "app=mine"}}, 0, "beside pod default/other, which is not to be with it"),
        ({"annotations": {"gpushare.request/not-with": "app=mine"}}, 1, ""),
        ({"labels": NOISY, "namespace": "elsewhere"}, 0, ""),
        ({"labels": NOISY, "unknown": True}, 0, ""),
        ({"labels": NOISY, "unreadable": True}, 0, ""),
    ],
    ids=["its rule", "another GPU", "other labels", "the other's rule", "that on another GPU", "namespace", "not shown", "no request"],
)
def test_neither_pods_rules_allow_a_start_beside_the_other(other: dict[str, Any], gpu: int, why: str) -> None:
    node = Node(gpus := inventory(16, 16))
    pod = node.see(memory(gpus, 0, 2, name="pod", labels={"app": "mine"}, annotations=QUIET))
    namespace, unknown, unreadable = (other.pop(key, "") for key in ("namespace", "unknown", "unreadable"))
    beside = memory(gpus, gpu, 2, name="other", **other)
    if namespace:
        beside["metadata"]["namespace"] = namespace
    if unreadable:
        beside["spec"]["containers"][0]["resources"] = {"limits": {MEMORY: "two"}}
    if not unknown:
        node.see(beside)
    listed(node, (beside, slots(gpu, 4, 5)), (pod, slots(0, 0, 1)))
    found = rejection(node, slots(0, 0, 1))
    assert (why in found, bool(found)) == (True, bool(why))


def test_a_pods_own_containers_are_no_company() -> None:
    node = Node(gpus := inventory(16))
    mine = {"labels": NOISY, "annotations": QUIET}
    pod = node.see(bound(gpus, {0: {0: 2}, 1: {0: 2}}, container("main", mem=2), container("more", mem=2), **mine))
    uid = pod["metadata"]["uid"]
    node.state.recorder.set_checkpoint(
        (CheckpointEntry(uid, "main", MEMORY, frozenset(slots(0, 0, 1))), CheckpointEntry(uid, "more", MEMORY, frozenset(slots(0, 2, 3))))
    )
    assert rejection(node, slots(0, 0, 1)) == ""


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ((), ""),
        (((1, 1, 4, 5),), "not beside pod default/p0, with which it is to be"),
        (((1, 1, 4, 5), (1, 1, 6, 7)), "not beside pod default/p0, with which it is to be"),
        # Its units are of this GPU, wherever it was placed; or it was placed here, wherever its units are.
        (((1, 0, 4, 5),), ""),
        (((0, 1, 4, 5),), ""),
        # It has nothing yet.
        (((1, 1),), ""),
    ],
    ids=["none", "elsewhere", "two elsewhere", "by its units", "by its place", "without units"],
)
def test_a_pod_starts_beside_its_company(others: tuple[tuple[int, ...], ...], why: str) -> None:
    node = Node(gpus := inventory(16, 16))
    given = []
    for number, (placed, gpu, *units) in enumerate(others):
        other = node.see(memory(gpus, placed, 2, name=f"p{number}", labels=NOISY))
        given += [(other, slots(gpu, *units))] if units else []
    pod = node.see(memory(gpus, 0, 2, labels=NOISY, annotations={"gpushare.request/same-gpu-as": "app=noisy"}))
    listed(node, *given, (pod, slots(0, 0, 1)))
    found = rejection(node, slots(0, 0, 1))
    assert (why in found, bool(found)) == (True, bool(why))


def test_two_pods_with_the_same_ids_in_kubelets_record() -> None:
    node = Node(gpus := inventory(16))
    first, second = (node.see(memory(gpus, 0, 2, name=name, phase="Running")) for name in ("first", "second"))
    listed(node, (first, slots(0, 0, 1)))
    listed(node, (first, slots(0, 0, 1)), (second, slots(0, 0, 1)))
    words = "kubelet's record has the same ids for pod default/first and pod default/second; delete the one that was created later"
    assert words in rejection(node, slots(0, 0, 1))


@pytest.mark.parametrize(
    ("share", "shown", "why"),
    [(30, True, ""), (50, True, "container main of pod default/pod requests 30 % of the GPU's compute and got 50 %"), (50, False, "")],
)
def test_the_share_of_the_compute_is_that_of_the_container(share: int, shown: bool, why: str) -> None:
    node = Node(gpus := inventory(16))
    parts = (container("first", mem=2, core=50), container("main", mem=2, core=30), container("last", mem=2, core=50))
    pod = bound(gpus, {0: {0: 2}, 1: {0: 2}, 2: {0: 2}}, *parts, name="pod")
    if shown:
        node.see(pod)
    listed(node, (pod, slots(0, 0, 1)))
    node.state.starts.note_share(frozenset(slots(0, 0, 1)), share)
    found = rejection(node, slots(0, 0, 1))
    assert (why in found, bool(found)) == (True, bool(why))


def test_shares_are_remembered_of_the_latest_containers() -> None:
    starts = Node(inventory(16)).state.starts
    for number in range(4096):
        starts.note_share(frozenset([str(number)]), number)
    starts.note_share(frozenset(["0"]), 7)
    starts.note_share(frozenset(["new"]), 8)
    assert len(starts.shares) == 4096
    assert frozenset(["1"]) not in starts.shares
    assert (starts.shares[frozenset(["0"])], starts.shares[frozenset(["2"])]) == (7, 2)


def test_ids_of_a_pod_that_the_watch_has_not_shown_are_its_own() -> None:
    node = Node(gpus := inventory(16))
    unseen = memory(gpus, 0, 4, name="unseen")
    listed(node, (unseen, slots(0, 0, 1, 2, 3)))
    words = f"2 of its 2 ids (GPU-00000000-_-0 …) are those of container main of the pod with UID {unseen['metadata']['uid']}"
    assert words in rejection(node, slots(0, 0, 1))


def test_a_pod_that_starts_after_all_is_no_longer_one_that_never_does() -> None:
    node = Node(gpus := inventory(16))
    pod = node.see(memory(gpus, 0, 2))
    listed(node, (pod, slots(0, 0, 1)))
    node.state.starts.starts_never[pod["metadata"]["uid"]] = 0
    assert rejection(node, slots(0, 0, 1)) == ""
    assert node.state.starts.starts_never == {}


def test_shortages_of_pods_that_are_gone_are_forgotten_and_the_first_gpu_is_named() -> None:
    node = Node(gpus := inventory(16, 16))
    starts = node.state.starts
    gone, wide = (node.see(bound(gpus, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"})) for _ in range(2))
    containers = [pod.container_devices[0] for pod in (parse_local_pod(gone), parse_local_pod(wide))]
    starts.note_shortage(PendingContainer(parse_local_pod(gone), containers[0]))
    node.pods.event("DELETED", parse_local_pod(gone))
    for _ in range(5):
        starts.note_shortage(PendingContainer(parse_local_pod(wide), containers[1]))
    assert starts.shortages == {wide["metadata"]["uid"]: 5}
    assert starts.never_start() == {wide["metadata"]["uid"]: 0}

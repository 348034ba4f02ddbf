# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every container gets the GPU that the scheduler chose, and both resources are one accounting."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import parse_request
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.node import Node, ids_of
from unit.fakes.runtime.pods import container, gpu, inventory
from unit.golden import Golden

MEMORY, GPUS = RESOURCES


def test_two_at_once_get_their_own_gpus_before_the_checkpoint_shows_the_first() -> None:
    node = Node(gpus := inventory(16, 16))
    for index in (1, 0):
        node.see(memory(gpus, index, 6))
    free = [i for i, _ in node.state.devices.reported(MEMORY)]
    for index in (1, 0):
        ids, _ = node.state.allocator.prefer(MEMORY, free, [], 6)
        assert node.state.allocator.allocate(MEMORY, ids).environment["ALIYUN_COM_GPU_MEM_IDX"] == str(index)
        free = [i for i in free if i not in ids]


def test_an_allocation_that_did_not_come_about_is_asked_again() -> None:
    node = Node(gpus := inventory(16, 16))
    pod = node.see(memory(gpus, 1, 6))
    node.manager.failing.add(pod["metadata"]["uid"])
    free = [i for i, _ in node.state.devices.reported(MEMORY)]
    for _ in range(2):
        ids, turn = node.state.allocator.prefer(MEMORY, free, [], 6)
        assert turn is not None
        assert turn.pod.uid == pod["metadata"]["uid"]
        node.state.allocator.allocate(MEMORY, ids)


def test_a_pod_with_only_the_annotations_of_the_original_gets_its_gpu() -> None:
    node = Node(gpus := inventory(16, 16))
    pod = memory(gpus, 1, 4)
    del pod["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"]
    assert node.admit(node.see(pod))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_a_pod_that_the_scheduler_did_not_place_leaves_room_for_those_it_placed() -> None:
    node = Node(gpus := inventory(16, 16))
    stray = node.see(memory(None, 0, 10))
    placed = node.see(memory(gpus, 0, 16))
    assert node.admit(stray)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    assert node.admit(placed)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


def test_a_pod_that_the_watch_has_not_shown_gets_one_gpu_with_its_own_size_as_total() -> None:
    node = Node(gpus := inventory(4, 16))
    assert node.admit(memory(gpus, 0, 6))["main"] == {
        "NVIDIA_VISIBLE_DEVICES": gpus.by_index[1].uuid,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
    }


def test_after_a_lost_checkpoint_a_pod_marked_assigned_gets_its_gpu_again() -> None:
    node = Node(gpus := inventory(16, 16))
    pod = node.see(memory(gpus, 1, 6, annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}))
    assert node.admit(pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_an_init_containers_ids_go_on_in_the_same_pod() -> None:
    node = Node(gpus := inventory(16, 16))
    other = node.see(memory(gpus, 0, 4))
    pod = node.see(bound(gpus, {0: {1: 4}}, container(mem=4), init=[container("first", mem=4)]))
    node.admit(other)
    got = node.admit(pod)
    assert got["first"]["NVIDIA_VISIBLE_DEVICES"] == got["main"]["NVIDIA_VISIBLE_DEVICES"]
    assert got["main"]["ALIYUN_COM_GPU_MEM_POD"] == "4"


def test_more_than_the_init_container_had_comes_from_its_gpu() -> None:
    node = Node(inventory(16, 16))
    pod = node.see(bound(None, {}, container(mem=8), init=[container("first", mem=4)]))
    got = node.admit(pod)
    assert got["first"]["NVIDIA_VISIBLE_DEVICES"] == got["main"]["NVIDIA_VISIBLE_DEVICES"]


def test_whole_gpus_are_those_of_the_annotation() -> None:
    node = Node(gpus := inventory(16, 24, 16))
    pod = node.see(whole(gpus, 1, 2))
    assert node.admit(pod)["main"] == {
        "NVIDIA_VISIBLE_DEVICES": f"{gpus.by_index[1].uuid},{gpus.by_index[2].uuid}",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "40",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "40",
    }


def test_units_of_two_gpus_are_rejected_with_both_numbers(golden: Golden) -> None:
    node = Node(inventory(4, 4))
    with golden.raised(AllocationRejected, "gpu-count"):
        node.state.allocator.allocate(MEMORY, ["GPU-00000000-_-0", "GPU-00000001-_-0", "GPU-00000001-_-1"])


def test_no_gpu_with_enough_room_is_said_in_numbers(golden: Golden) -> None:
    node = Node(gpus := inventory(4, 8, 4))
    node.admit(node.see(memory(gpus, 1, 3, name="first")))
    node.admit(node.see(whole(gpus, 2, name="second")))
    with golden.raised(AdmissionError):
        node.admit(node.see(memory(None, 0, 6, name="third")))


def test_a_gpu_that_does_not_answer_is_rejected(golden: Golden) -> None:
    node = Node(gpus := inventory(4))
    node.state.devices.set_inventory(Inventory(gpus.unit, (gpu(0, 4, health="lost"),)))
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.allocator.allocate(GPUS, ["GPU-00000000"])


def test_a_gpu_with_memory_in_use_is_not_given_whole_and_the_holder_is_named(golden: Golden) -> None:
    node = Node(gpus := inventory(16, 16))
    node.admit(node.see(memory(gpus, 0, 1, name="small")))
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.allocator.allocate(GPUS, [gpus.by_index[0].uuid])
    assert node.state.allocator.allocate(GPUS, [gpus.by_index[1].uuid])


def test_a_gpu_given_a_moment_ago_counts_before_the_checkpoint_shows_it(golden: Golden) -> None:
    node = Node(gpus := inventory(16))
    node.state.allocator.allocate(GPUS, [gpus.by_index[0].uuid])
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.allocator.allocate(MEMORY, ["GPU-00000000-_-0"])


@pytest.mark.parametrize("watched", [True, False], ids=["seen to go", "gone before the first list"])
def test_what_ended_pods_held_is_free_although_the_file_still_lists_it(watched: bool) -> None:
    node = Node(gpus := inventory(16))
    pod = whole(gpus, 0)
    if watched:
        node.see(pod)
    node.admit(pod)
    if watched:
        node.delete(pod)
    else:
        node.manager.active.clear()
        node.now += 60
        for _ in range(3):
            node.state.allocator.release_terminated()
            node.now += 2
    assert any(entry.pod == pod["metadata"]["uid"] for entry in node.file)
    next_pod = node.see(memory(gpus, 0, 16))
    assert node.admit(next_pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


def test_a_pod_in_the_checkpoint_that_the_watch_has_not_shown_yet_holds_its_gpu() -> None:
    node = Node(gpus := inventory(16))
    node.admit(whole(gpus, 0))
    with pytest.raises(AllocationRejected, match="allocated whole"):
        node.state.allocator.allocate(MEMORY, ["GPU-00000000-_-0"])


def test_while_the_api_server_has_not_been_reached_every_entry_counts(golden: Golden) -> None:
    node = Node(gpus := inventory(16))
    node.pods.synced = False
    node.admit(whole(gpus, 0, uid="unknown"))
    node.now += 3600
    with golden.raised(AllocationRejected, "unavailable"):
        node.state.allocator.allocate(MEMORY, ["GPU-00000000-_-0"])


# Whose ids they are.


def ids(gpu: int, *slots: int) -> set[str]:
    return {f"GPU-{gpu:08d}-_-{slot}" for slot in slots}


def test_what_was_preferred_is_given_to_whom_it_was_preferred_for_once() -> None:
    node = Node(gpus := inventory(16, 16))
    first, second = (node.see(memory(gpus, gpu, 4, name=name)) for gpu, name in enumerate(("first", "second")))
    chosen, turn = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], 4)
    # Another resource with as many ids.
    node.state.allocator.prefer(GPUS, node.free(GPUS), [], 2)
    node.pods.event("MODIFIED", parse_local_pod({**first, "status": {"phase": "Failed"}}))
    given = [node.state.allocator.allocate(MEMORY, chosen).container for _ in range(2)]
    assert given[0] == turn
    assert [turn.pod.name if turn else "" for turn in given] == ["first", "second"]
    assert second


@pytest.mark.parametrize(("others", "whose"), [(7, "first"), (8, "second")])
def test_a_few_answers_are_remembered(others: int, whose: str) -> None:
    node = Node(gpus := inventory(16, 16))
    first = node.see(memory(gpus, 0, 16, name="first"))
    node.see(memory(gpus, 1, 16, name="second"))
    chosen, _ = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], 16)
    for size in range(1, others + 1):
        node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], size)
    node.pods.event("MODIFIED", parse_local_pod({**first, "status": {"phase": "Failed"}}))
    turn = node.state.allocator.allocate(MEMORY, chosen).container
    assert turn is not None
    assert turn.pod.name == whose


def test_what_an_init_container_leaves_is_its_pods_own() -> None:
    node = Node(gpus := inventory(16, 16))
    pod = node.see(bound(gpus, {0: {1: 4}}, container(mem=4), init=[container("first", mem=2)], phase="Pending"))
    must, _ = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], 2)
    node.state.allocator.allocate(MEMORY, must)
    node.state.recorder.set_checkpoint((CheckpointEntry(pod["metadata"]["uid"], "first", MEMORY, frozenset(must)),))
    chosen, turn = node.state.allocator.prefer(MEMORY, node.free(MEMORY), must, 4)
    assert set(must) < set(chosen) <= ids(1, *range(16))
    assert turn is not None
    assert (turn.pod.uid, turn.devices.container) == (pod["metadata"]["uid"], "main")
    assert node.state.usage.dropped_by_kubelet() == set()


def test_a_pod_that_kubelet_has_forgotten_is_not_what_it_asks_for() -> None:
    node = Node(gpus := inventory(16, 16))
    old = node.takes(memory(gpus, 0, 4, phase="Running", name="old"))
    node.admit(node.see(memory(gpus, 1, 1, phase="Running")))
    node.live = {old["metadata"]["uid"]}
    node.manager.active.discard(old["metadata"]["uid"])
    node.manager.purge()
    node._write()
    chosen, turn = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], 4)
    assert turn is None
    assert ids(0, 0, 1, 2, 3).isdisjoint(chosen), "its process still has them"


# Whether anybody's end would make a difference.


@pytest.mark.parametrize(
    ("asked", "looks", "gpu"),
    [((1, 4), 0, 1), ((0, 12), 0, 0), ((0, 13), 1, 0), ((2, 16), 1, 0)],
    ids=["the chosen GPU has it", "and just so", "another GPU would be given", "no GPU is known to have it"],
)
def test_processes_are_looked_at_only_where_somebodys_end_makes_a_difference(asked: tuple[int, int], looks: int, gpu: int) -> None:
    node = Node(gpus := inventory(16, 16, 12))
    gone = node.takes(memory(gpus, 0, 4, phase="Running"))
    node.admit(node.see(memory(gpus, 1, 1, phase="Running")))
    node.force_delete(gone, alive=False)
    pod = node.see(memory(gpus, *asked) if asked[0] < 2 else memory(None, 0, 16))
    assert node.admit(pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == str(gpu)
    assert node.looks == looks


def test_ids_that_are_in_doubt_are_given_when_a_look_shows_nobody() -> None:
    for alive in (False, True):
        node = Node(gpus := inventory(16))
        gone = node.takes(memory(gpus, 0, 4, phase="Running"))
        held = ids_of(node, gone)
        node.force_delete(gone, alive=alive)
        if alive:
            with pytest.raises(AllocationRejected, match="is still used by processes of pod default/"):
                node.state.allocator.allocate(MEMORY, held)
        else:
            assert node.state.allocator.allocate(MEMORY, held)
        assert node.looks == 1


def test_a_conflict_with_pods_that_are_there_needs_no_look() -> None:
    node = Node(gpus := inventory(16))
    node.admit(node.see(whole(gpus, 0, phase="Running")))
    with pytest.raises(AllocationRejected):
        node.state.allocator.allocate(MEMORY, ids(0, 0))
    with pytest.raises(AllocationRejected):
        node.state.allocator.prefer(MEMORY, ids(0, 0), [], 1)
    assert node.looks == 0


# What is left for others.


def stray(node: Node, size: int) -> int:
    """The GPU that a pod nobody placed would get."""
    chosen, _ = node.state.allocator.prefer(MEMORY, node.free(MEMORY), [], size)
    [gpu] = {int(i[4:12]) for i in chosen}
    return gpu


def test_the_fullest_gpu_that_just_has_it_is_taken_where_nothing_is_promised() -> None:
    assert stray(Node(inventory(8, 4)), 4) == 1


def test_promises_add_up_and_end_when_they_are_kept_or_cannot_be() -> None:
    node = Node(gpus := inventory(8, 10))
    first = node.see(memory(gpus, 0, 2))
    assert stray(node, 6) == 0
    second = node.see(memory(gpus, 0, 1))
    assert stray(node, 6) == 1, "two and one"
    node.admit(second)
    node.admit(first)
    assert stray(node, 4) == 0, "they have it, nothing more is promised"
    rejected = node.see(memory(gpus, 0, 7))
    assert stray(node, 3) == 1
    with pytest.raises(AllocationRejected):
        node.state.allocator.allocate(MEMORY, [*ids(0, 1, 2, 3, 4, 5, 6), "GPU-gone"])
    assert stray(node, 3) == 0, "its time is over"
    node.see(memory(gpus, 0, 7, phase="Running"))
    assert stray(node, 3) == 0, "kubelet is past it"
    assert rejected


def test_a_promise_does_not_stand_in_the_way_of_whom_it_was_made_to() -> None:
    node = Node(gpus := inventory(5, 3, 8, 8))
    node.admit(node.see(memory(gpus, 0, 3)))
    # GPU 0 has too little now; of the others GPU 1 is the fullest, and promised to nobody else.
    pod = node.see(bound(gpus, {0: {0: 3, 1: 3}}, container(mem=6), labels={"aliyun.com/gpu-count": "2"}))
    assert node.admit(pod)["main"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-00000001,GPU-00000002"


def test_a_pod_may_have_the_gpu_that_one_like_it_has_left() -> None:
    node = Node(gpus := inventory(8, 8, 8))
    wish = {"gpushare.request/models": "T4"}
    left, asks = (node.see(memory(gpus, gpu, 6, annotations=wish)) for gpu in (2, 1))
    # kubelet gave the first one the second one's GPU.
    given = CheckpointEntry(left["metadata"]["uid"], "main", MEMORY, frozenset(ids(1, *range(6))))
    node.state.recorder.set_checkpoint((given, CheckpointEntry("x", "main", MEMORY, frozenset({"GPU-gone-_-0"}))))
    chosen, turn = node.state.allocator.prefer(MEMORY, node.free(MEMORY) - given.ids, [], 6)
    assert turn is not None
    assert turn.pod.uid == asks["metadata"]["uid"]
    assert set(chosen) <= ids(2, *range(8))


def test_a_pod_that_was_rejected_waits_no_more_until_nobody_else_can_be_meant(golden: Golden) -> None:
    node = Node(gpus := inventory(4, 16))
    node.admit(node.see(memory(gpus, 0, 4, phase="Running")))
    wish = {"gpushare.request/models": "T4"}
    with golden.raised(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 4, annotations=wish, name="rejected")))
    assert stray(node, 1) == 1
    later = node.state.pending.match(MEMORY, 4)
    assert later is None
    late = node.state.pending.match(MEMORY, 4, late=True)
    assert late is not None
    assert late.pod.name == "rejected"
    node.see(memory(gpus, 1, 4, name="new"))
    with pytest.raises(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 5, annotations=wish, name="another")))
    assert [t.pod.name if (t := node.state.pending.match(MEMORY, size)) else "" for size in (4, 5)] == ["new", ""]
    assert [t.pod.name if (t := node.state.pending.match(MEMORY, size, late=True)) else "" for size in (4, 5)] == ["new", "another"]


def test_whole_gpus_that_are_not_free_to_kubelet_are_not_preferred() -> None:
    node = Node(inventory(4, 4, 4))
    chosen, _ = node.state.allocator.prefer(GPUS, {"GPU-00000001", "GPU-00000002"}, [], 1)
    assert chosen == ["GPU-00000001"]
    with pytest.raises(AllocationRejected, match="asked for 2 whole GPUs, but GPU 0 is taken, GPU 1 is free, GPU 2 is taken"):
        node.state.allocator.prefer(GPUS, {"GPU-00000001"}, [], 2)


def test_a_pods_other_gpus_come_before_strangers_where_the_chosen_one_is_not_free() -> None:
    node = Node(gpus := inventory(4, 8, 8, 8))
    node.see(bound(gpus, {0: {1: 8}, 1: {2: 8, 3: 8}}, container("a", count=1), container("b", count=2)))
    chosen, _ = node.state.allocator.prefer(GPUS, {"GPU-00000000", "GPU-00000002", "GPU-00000003"}, [], 1)
    assert chosen == ["GPU-00000002"]


def test_what_kubelet_insists_on_is_preferred_although_processes_hold_it() -> None:
    node = Node(gpus := inventory(4))
    gone = node.takes(memory(gpus, 0, 2, phase="Running"))
    held = ids_of(node, gone)
    node.force_delete(gone, alive=True)
    must = [min(held)]
    chosen, _ = node.state.allocator.prefer(MEMORY, ids(0, 0, 1, 2, 3), must, 2)
    assert set(must) < set(chosen)
    assert set(chosen) - set(must) <= ids(0, 0, 1, 2, 3) - held


# What is rejected, in words, and what others are told of it.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["GPU-gone-_-1"], r"kubelet gives id 'GPU-gone-_-1', of no GPU in this node \(GPU 0 \(GPU-00000000\), GPU 1 \(GPU-00000001\)\);"),
        (["b", "a"], "kubelet gives id 'a' and 1 more, of no GPU"),
        (["b", "GPU-00000000-_-0", "a", "c"], "kubelet gives id 'a' and 2 more, of no GPU"),
        ([], "kubelet gives no id, of no GPU"),
    ],
)
def test_ids_of_no_gpu(given: list[str], words: str) -> None:
    with pytest.raises(AllocationRejected, match=words):
        Node(inventory(4, 4)).state.allocator.allocate(MEMORY, given)


def test_a_node_without_gpus_says_so(golden: Golden) -> None:
    for gpus in (None, inventory()):
        state = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
        state.pods.event("ADDED", parse_local_pod(memory(inventory(4), 0, 1)))
        if gpus is not None:
            state.devices.set_inventory(gpus)
        with golden.raised(AllocationRejected, "no-room"):
            state.allocator.prefer(MEMORY, [], [], 1)
        with golden.raised(AllocationRejected, "unknown-ids"):
            state.allocator.allocate(MEMORY, ["GPU-1-_-0"])
        assert state.devices.reported(MEMORY) == state.devices.reported(GPUS) == []


def test_units_of_one_gpu_are_not_enough_for_a_pod_that_spreads(golden: Golden) -> None:
    node = Node(gpus := inventory(8, 8))
    node.see(bound(gpus, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}))
    with golden.raised(AllocationRejected, "gpu-count"):
        node.state.allocator.allocate(MEMORY, ids(0, 0, 1, 2, 3))


def test_every_gpu_that_was_chosen_is_held_back_and_the_pod_is_told_who_should_have_placed_it() -> None:
    node = Node(gpus := inventory(8, 8, 8))
    for index in (0, 2):
        node.admit(node.see(memory(gpus, index, 6, phase="Running")))
    with pytest.raises(AdmissionError) as rejection:
        node.admit(node.see(bound(gpus, {0: {0: 4, 1: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}, uid="two")))
    assert "extender" not in str(rejection.value)
    assert "asked for 8 units of 1 GiB on 2 GPUs, but" in str(rejection.value)
    with pytest.raises(AllocationRejected, match="asked for 3 units of 1 GiB on one GPU, but"):
        node.state.allocator.prefer(MEMORY, [], [], 3)
    with pytest.raises(AdmissionError, match="GPU 0 has memory allocated to"):
        node.admit(node.see(whole(gpus, 0, 2, uid="whole")))
    with pytest.raises(AdmissionError, match=r"The scheduler extender has not placed pod default/stray: check that kube-scheduler"):
        node.admit(node.see(memory(None, 0, 9, name="stray")))
    gone = memory(inventory(8, 8, 8, 8), 3, 9, uid="gone")
    with pytest.raises(AdmissionError):
        node.admit(node.see(gone))
    assert [(r.uid, r.gpu, r.units, r.whole) for r in node.state.rejections.current()] == [
        ("two", "GPU-00000000", 4, False),
        ("two", "GPU-00000001", 4, False),
        ("whole", "GPU-00000000", 8, True),
        ("whole", "GPU-00000002", 8, True),
    ]


@pytest.mark.parametrize("change", ["memory", "whole", "out of use", "gone", "another GPU", "other words for it"])
def test_a_rejection_ends_when_the_gpu_is_another_or_somebody_elses(change: str) -> None:
    node = Node(gpus := inventory(4, 4, 4))
    first = node.takes((whole(gpus, 0, phase="Running")) if change == "whole" else memory(gpus, 0, 4, phase="Running"))
    for index in (1, 2):
        node.admit(node.see(memory(gpus, index, 1, phase="Running")))
    with pytest.raises(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 4)))
    assert len(node.state.rejections.current()) == 1
    if change == "another GPU":
        node.admit(node.see(memory(gpus, 1, 1)))
    elif change == "out of use":
        node.state.devices.set_cordon("0")
    elif change == "gone":
        node.state.devices.set_inventory(Inventory(gpus.unit, gpus.gpus[1:]))
    elif change == "other words for it":
        node.state.devices.set_inventory(Inventory(gpus.unit, (replace(gpus.gpus[0], model="T4"), *gpus.gpus[1:])))
    else:
        node.delete(first)
        node.state.allocator.release_terminated()
    assert len(node.state.rejections.current()) == (change in ("another GPU", "other words for it"))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]], int]:
    gpus = draw(st.lists(st.integers(2, 12), min_size=1, max_size=4))
    steps = st.one_of(
        st.tuples(st.just("memory"), st.integers(1, 6)),
        st.tuples(st.just("pair"), st.integers(1, 3)),
        st.tuples(st.just("whole"), st.integers(1, 2)),
        st.tuples(st.just("stray"), st.integers(1, 4)),
        st.tuples(st.just("admit"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 0)),
    )
    return gpus, draw(st.lists(steps, max_size=40)), draw(st.integers(0, 1000))


class Cluster:
    """A scheduler with its own ledger that places pods on one node, and a kubelet that admits them in order of arrival."""

    def __init__(self, units: list[int], seed: int) -> None:
        self.gpus = inventory(*units)
        self.node = Node(self.gpus, seed)
        self.ledger = Ledger()
        self.ledger.set_inventory("gpu1", self.gpus)
        self.waiting: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.environments: dict[str, dict[str, dict[str, str]]] = {}

    def schedule(self, *containers: dict[str, Any]) -> None:
        request = parse_request({"metadata": {}, "spec": {"containers": list(containers)}})
        assert request is not None
        node = self.ledger.nodes["gpu1"]
        allocation = Binpack().choose(request, node)
        if allocation is None:
            return
        pod = bound(self.gpus, {c: dict(gpus) for c, gpus in allocation.containers}, *containers)
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.ledger.apply(AllocatedPod(uid, "default", name, "gpu1", request, allocation))
        self.waiting.append(self.node.see(pod))

    def admit(self) -> bool | None:
        """The oldest waiting pod; whether kubelet took it."""
        if not self.waiting:
            return None
        pod = self.waiting.pop(0)
        uid = pod["metadata"]["uid"]
        try:
            self.environments[uid] = self.node.admit(pod)
        except AdmissionError:
            self.ledger.remove(uid)
            self.node.pods.event("MODIFIED", parse_local_pod({**pod, "status": {"phase": "Failed"}}))
            return False
        self.running.append(pod)
        return True

    def end(self, number: int) -> None:
        if self.running:
            pod = self.running.pop(number % len(self.running))
            self.node.delete(pod)
            self.node.now += random.Random(number).choice((0, 60))
            self.ledger.remove(pod["metadata"]["uid"])

    def check_gpus(self) -> None:
        """Of what kubelet has given: one GPU per container, no GPU in both resources, no id twice."""
        seen: set[str] = set()
        used: dict[str, set[str]] = {MEMORY: set(), GPUS: set()}
        for pod in self.running:
            for container_name, resources in self.node.manager.given.get(pod["metadata"]["uid"], {}).items():
                for resource, ids in resources.items():
                    gpus = {i.rpartition("-_-")[0] if resource == MEMORY else i for i in ids}
                    assert resource == GPUS or len(gpus) == 1
                    assert seen.isdisjoint(ids)
                    seen |= ids
                    used[resource] |= gpus
                    told = self.environments[pod["metadata"]["uid"]][container_name]["NVIDIA_VISIBLE_DEVICES"]
                    assert set(told.split(",")) == gpus
        assert used[MEMORY].isdisjoint(used[GPUS])


def run(history: tuple[list[int], list[tuple[str, int]], int]) -> tuple[Cluster, int]:
    """The cluster after the history, and how many pods kubelet rejected."""
    units, steps, seed = history
    cluster, rejected = Cluster(units, seed), 0
    for step, number in [*steps, ("admit", 100)]:
        if step == "memory":
            cluster.schedule(container(mem=number))
        elif step == "pair":
            cluster.schedule(container("a", mem=number), container("b", mem=number))
        elif step == "whole":
            cluster.schedule(container(count=number))
        elif step == "stray":
            cluster.waiting.append(cluster.node.see(memory(None, 0, number)))
        elif step == "end":
            cluster.end(number)
        elif step == "fail" and cluster.waiting:
            cluster.node.manager.failing.add(cluster.waiting[0]["metadata"]["uid"])
        elif step == "admit":
            for _ in range(number):
                rejected += cluster.admit() is False
                cluster.check_gpus()
    return cluster, rejected


@settings(max_examples=50, deadline=None)
@given(histories().map(lambda h: (h[0], [s for s in h[1] if s[0] not in ("stray", "fail")], h[2])))
def test_what_the_scheduler_placed_is_admitted_on_exactly_those_gpus(history: tuple[list[int], list[tuple[str, int]], int]) -> None:
    cluster, rejected = run(history)
    assert rejected == 0
    for pod in cluster.running:
        local = parse_local_pod(pod)
        for ask in local.container_devices:
            told = cluster.environments[local.uid][ask.container]
            assert told["NVIDIA_VISIBLE_DEVICES"] == ",".join(cluster.gpus.by_index[index].uuid for index in sorted(ask.units_by_gpu))
            assert told["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(sum(ask.units_by_gpu.values()))
            assert told["ALIYUN_COM_GPU_MEM_POD"] == pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]


@settings(max_examples=50, deadline=None)
@given(histories())
def test_never_two_gpus_and_never_both_resources_whatever_comes(history: tuple[list[int], list[tuple[str, int]], int]) -> None:
    run(history)

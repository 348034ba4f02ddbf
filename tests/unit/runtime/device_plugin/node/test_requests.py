# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every kind of request at the node, what processes still hold, and who asks after a lost record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.node import Node, ids_of, indexes_of
from unit.fakes.runtime.pods import container, inventory
from unit.golden import Golden

MEMORY, GPUS = RESOURCES
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def sidecar(name: str, **limits: int) -> dict[str, Any]:
    return container(name, **limits) | {"restartPolicy": "Always"}


# Kinds of requests.


def test_memory_on_several_gpus_is_the_same_on_each() -> None:
    node = Node(gpus := inventory(16, 16, 16))
    pod = node.see(bound(gpus, {0: {0: 4, 2: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    got = node.admit(pod)["main"]
    assert got[VISIBLE] == "GPU-00000000,GPU-00000002"
    assert (got["ALIYUN_COM_GPU_MEM_CONTAINER"], got["ALIYUN_COM_GPU_MEM_POD"], got["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "8", "16")
    ids = ids_of(node, pod)
    assert sorted(i.partition("-_-")[0] for i in ids) == ["GPU-00000000"] * 4 + ["GPU-00000002"] * 4


def test_other_gpus_where_the_chosen_have_no_room_and_never_uneven(golden: Golden) -> None:
    node = Node(gpus := inventory(8, 8, 8))
    node.admit(node.see(memory(gpus, 0, 6)))
    pod = node.see(bound(gpus, {0: {0: 3, 1: 3}}, container(mem=6), labels={"aliyun.com/gpu-count": "2"}))
    assert node.admit(pod)["main"][VISIBLE] == "GPU-00000001,GPU-00000002"
    uneven = node.see(bound(gpus, {0: {1: 2, 2: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}))
    node.state.allocator.prefer(MEMORY, [i for i, _ in node.state.devices.reported(MEMORY)], [], 4)
    with golden.raised(AllocationRejected, "gpu-count"):
        node.state.allocator.allocate(MEMORY, [f"GPU-00000001-_-{slot}" for slot in (5, 6, 7)] + ["GPU-00000002-_-7"])
    assert uneven


def test_init_containers_and_sidecars_get_the_pods_gpu_in_any_order() -> None:
    node = Node(gpus := inventory(16, 16))
    node.see(memory(gpus, 0, 3))
    pod = node.see(
        bound(
            gpus,
            {0: {1: 2}, -2: {1: 1}},
            container("main", mem=2),
            init=[container("first", mem=1), sidecar("side", mem=1), container("second", mem=2)],
        )
    )
    assert indexes_of(node.admit(pod)) == {"first": "1", "side": "1", "second": "1", "main": "1"}


@pytest.mark.parametrize("seed", range(6))
def test_whole_gpus_stay_the_pods_whichever_of_them_the_init_container_leaves(seed: int) -> None:
    gpus = inventory(8, 8, 8, 8)
    node = Node(gpus, seed)
    pod = bound(gpus, {0: {1: 8}, 1: {2: 8, 3: 8}}, container("a", count=1), container("b", count=2), init=[container("i", count=2)])
    got = node.admit(node.see(pod))
    used = sorted(uuid for name in ("a", "b") for uuid in got[name][VISIBLE].split(","))
    assert used == ["GPU-00000001", "GPU-00000002", "GPU-00000003"]


def test_a_model_that_was_asked_for_is_not_exchanged_for_room_on_another_gpu(golden: Golden) -> None:
    node = Node(gpus := inventory(8, 8))
    node.admit(node.see(memory(gpus, 0, 6)))
    with golden.raised(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 4, annotations={"gpushare.request/models": "T4"})))
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"


def test_pods_of_the_same_shape_may_have_each_others_gpus_whatever_they_asked_for() -> None:
    node = Node(gpus := inventory(8, 8))
    wish = {"gpushare.request/models": "T4"}
    first = node.see(memory(gpus, 0, 6, annotations=wish))
    second = node.see(memory(gpus, 1, 6, annotations=wish))
    # kubelet took them the other way round: a pod that arrived later went first.
    assert indexes_of(node.admit(second))["main"] == "0"
    assert indexes_of(node.admit(first))["main"] == "1"


# The containers of one pod.


def test_later_containers_follow_the_first_one_to_the_gpu_that_it_got() -> None:
    """kubelet asks for the second pod first; its first container gets the other's GPU, and its second one had its own."""
    node = Node(gpus := inventory(8, 8))
    node.see(memory(gpus, 0, 2, name="first"))
    later = node.see(bound(gpus, {0: {1: 2}, 1: {1: 1}}, container("c0", mem=2), container("c1", mem=1), name="later"))
    assert indexes_of(node.admit(later)) == {"c0": "0", "c1": "0"}


def test_where_a_pods_containers_are_on_two_gpus_the_next_one_gets_what_was_planned() -> None:
    node = Node(gpus := inventory(8, 8, 8))
    uid = node.see(bound(gpus, {place: {0: 1} for place in range(3)}, *(container(name, mem=1) for name in "abc")))["metadata"]["uid"]
    given = {"a": "GPU-00000001-_-0", "b": "GPU-00000002-_-0"}
    node.state.recorder.set_checkpoint(
        tuple(CheckpointEntry(uid, name, MEMORY, frozenset({device_id})) for name, device_id in given.items())
    )
    free = node.free(MEMORY).difference(given.values())
    assert node.state.allocator.prefer(MEMORY, sorted(free), [], 1)[0] == ["GPU-00000000-_-0"]


def test_where_containers_are_meant_for_gpus_of_their_own_each_needs_room_for_itself_alone() -> None:
    node = Node(gpus := inventory(2, 3))
    pod = node.see(bound(gpus, {0: {0: 2}, 1: {1: 3}}, container("c0", mem=2), container("c1", mem=3)))
    assert indexes_of(node.admit(pod)) == {"c0": "0", "c1": "1"}


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_a_chosen_gpu_that_has_room_for_a_part_of_the_pod_alone_gets_none_of_it(sizes: tuple[int, int]) -> None:
    """kubelet has admitted a pod that the API server had no more, with what was meant for this one."""
    node = Node(gpus := inventory(8, 8))
    first, second = sizes
    pod = node.see(bound(gpus, {0: {1: first}, 1: {1: second}}, container("c0", mem=first), container("c1", mem=second)))
    node.admit(memory(gpus, 1, 7, name="unseen"))
    unseen = {entry.pod: entry.ids for entry in node.file}
    # It may be anywhere: what counts is that one GPU has one unit left.
    [gpu_of_it] = {i.partition("-_-")[0] for ids in unseen.values() for i in ids}
    other = "1" if gpu_of_it == "GPU-00000000" else "0"
    chosen = {"0": 1, "1": 0}[other]
    pod["metadata"]["annotations"] = bound(gpus, {0: {chosen: first}, 1: {chosen: second}}, container())["metadata"]["annotations"]
    node.see(pod)
    assert indexes_of(node.admit(pod)) == {"c0": other, "c1": other}


def test_where_the_rest_of_a_pod_has_no_room_beside_its_first_container_it_is_rejected(golden: Golden) -> None:
    node = Node(gpus := inventory(2, 8))
    node.see(memory(gpus, 0, 2, name="first"))
    later = node.see(bound(gpus, {0: {1: 2}, 1: {1: 1}}, container("c0", mem=2), container("c1", mem=1), name="later"))
    with golden.raised(AdmissionError):
        node.admit(later)


@pytest.mark.parametrize(
    ("sizes", "containers", "init"),
    [((2, 16), [8], [2]), ((4, 16), [4, 4], []), ((16, 4), [4, 4], [])],
    ids=["init container first", "two alike", "larger GPU first"],
)
def test_a_pod_that_nobody_placed_gets_a_gpu_with_room_for_all_of_it(
    sizes: tuple[int, ...], containers: list[int], init: list[int]
) -> None:
    node = Node(inventory(*sizes))
    asked = [container(f"c{place}", mem=units) for place, units in enumerate(containers)]
    pod = node.see(bound(None, {}, *asked, init=[container(f"i{place}", mem=units) for place, units in enumerate(init)]))
    large = str(sizes.index(16))
    assert set(indexes_of(node.admit(pod)).values()) == {large}


# What processes hold although kubelet has freed it.


def test_what_a_force_deleted_pod_still_uses_is_avoided() -> None:
    node = Node(gpus := inventory(16, 16))
    zombie = node.takes(memory(gpus, 0, 12, phase="Running"))
    node.force_delete(zombie, alive=True)
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "0"
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match=r"GPU 0 has 0 free \(processes of pod default/p\d+ use some that kubelet has freed\)"):
        node.admit(node.see(memory(gpus, 0, 14)))
    node.live.clear()
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 12))))["main"] == "0"


def test_a_gpu_that_processes_use_is_not_given_whole_and_the_other_way_round(golden: Golden) -> None:
    node = Node(gpus := inventory(4, 4))
    for pod in (memory(gpus, 0, 2, phase="Running", name="part"), whole(gpus, 1, phase="Running", name="all")):
        node.admit(node.see(pod))
        node.force_delete(pod, alive=True)
    with golden.raised(AdmissionError):
        node.admit(node.see(whole(gpus, 0)))
    with golden.raised(AdmissionError):
        node.admit(node.see(memory(gpus, 1, 3)))


def lose(node: Node, *pods: dict[str, Any]) -> None:
    """kubelet starts anew without its file; these pods' sandboxes live."""
    node.live.update(pod["metadata"]["uid"] for pod in pods)
    node.manager.restore([], RESOURCES)
    node._write()
    for resource in RESOURCES:
        node.manager.healthy[resource] = {i for i, good in node.state.devices.reported(resource) if good}


def test_containers_that_start_again_without_kubelets_record_get_their_own_ids() -> None:
    node = Node(gpus := inventory(8, 8))
    pod = node.takes(memory(gpus, 1, 6, phase="Running"))
    before = ids_of(node, pod)
    lose(node, pod)
    node.processes.up[pod["metadata"]["uid"]] = set()
    # Another pod meanwhile: kubelet offers it everything.
    assert indexes_of(node.admit(node.see(memory(gpus, 1, 4))))["main"] == "0"
    assert indexes_of(node.admit(pod))["main"] == "1"
    assert ids_of(node, pod) == before


# A record that is lost: who asks is a guess.


def test_a_container_that_starts_again_without_a_record_does_not_get_its_living_siblings_ids() -> None:
    node = Node(gpus := inventory(16))
    pod = node.see(bound(gpus, {0: {0: 8}, 1: {0: 8}}, container("a", mem=8), container("b", mem=8), phase="Running"))
    uid = pod["metadata"]["uid"]
    node.admit(pod)
    before = ids_of(node, pod, "b")
    lose(node, pod)
    node.processes.up[uid] = {"a"}
    node.manager.pre_start_required = lambda _: False
    asyncio.run(node.manager.start(pod, pod["spec"]["containers"][1]))
    assert ids_of(node, pod, "b") == before
    with pytest.raises(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 8)))


@pytest.mark.parametrize("up", [{"main"}, None], ids=["it runs", "nobody can tell"])
def test_the_ids_of_a_container_that_may_live_are_nobodys_even_if_the_api_server_does_not_show_it_running(
    up: set[str] | None, golden: Golden
) -> None:
    node = Node(gpus := inventory(8))
    pod = node.takes(memory(gpus, 0, 6, phase="Running", name="seems down"))
    lose(node, pod)
    if up is not None:
        node.processes.up[pod["metadata"]["uid"]] = up
    with golden.raised(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 6)))


def test_a_guess_that_was_wrong_does_not_keep_the_other_from_starting() -> None:
    node = Node(gpus := inventory(8))
    down = node.takes(memory(gpus, 0, 6, phase="Running", name="down"))
    lose(node, down)
    node.processes.up[down["metadata"]["uid"]] = set()
    # Of the same size, and the plugin has not heard of it.
    stranger = memory(gpus, 0, 6, name="stranger")
    node.admit(stranger)
    node.see(stranger)
    assert node.state.starts.may_start(MEMORY, ids_of(node, stranger))
    with pytest.raises(AdmissionError):
        node.admit(down)

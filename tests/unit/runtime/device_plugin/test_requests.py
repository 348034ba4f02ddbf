# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every kind of request at the node, and what is avoided, rejected and told of GPUs that must not be given."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import Held, HeldEntry
from gpushare_runtime.device_plugin.node.allocator import LIFETIME, AllocationRejected
from gpushare_runtime.device_plugin.node.devices import is_cordoned
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import report
from unit.runtime.device_plugin.device_manager import RESOURCES, AdmissionError
from unit.runtime.device_plugin.fake_processes import FakeProcesses
from unit.runtime.device_plugin.local_pods import bound, memory, whole
from unit.runtime.device_plugin.test_allocator import Node, stopped
from unit.runtime.pods import container, gpu, inventory

MEMORY, GPUS = RESOURCES
INDEX, VISIBLE = "ALIYUN_COM_GPU_MEM_IDX", "NVIDIA_VISIBLE_DEVICES"


def gpu_uuids_of(environments: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: environment[INDEX] for name, environment in environments.items()}


def sidecar(name: str, **limits: int) -> dict[str, Any]:
    return container(name, **limits) | {"restartPolicy": "Always"}


# Kinds of requests.


def test_memory_on_several_gpus_is_the_same_on_each() -> None:
    gpus = inventory(16, 16, 16)
    node = Node(gpus)
    pod = node.see(bound(gpus, {0: {0: 4, 2: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    got = node.admit(pod)["main"]
    assert got[VISIBLE] == "GPU-00000000,GPU-00000002"
    assert (got["ALIYUN_COM_GPU_MEM_CONTAINER"], got["ALIYUN_COM_GPU_MEM_POD"], got["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "8", "16")
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    assert sorted(i.partition("-_-")[0] for i in ids) == ["GPU-00000000"] * 4 + ["GPU-00000002"] * 4


def test_other_gpus_where_the_chosen_have_no_room_and_never_uneven() -> None:
    gpus = inventory(8, 8, 8)
    node = Node(gpus)
    node.admit(node.see(memory(gpus, 0, 6)))
    pod = node.see(bound(gpus, {0: {0: 3, 1: 3}}, container(mem=6), labels={"aliyun.com/gpu-count": "2"}))
    assert node.admit(pod)["main"][VISIBLE] == "GPU-00000001,GPU-00000002"
    uneven = node.see(bound(gpus, {0: {1: 2, 2: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}))
    node.state.allocator.prefer(MEMORY, [i for i, _ in node.state.devices.reported(MEMORY)], [], 4)
    with pytest.raises(AllocationRejected, match=r"3 of GPU 1 .*, 1 of GPU 2 .*, it needs the same on each of 2 GPUs"):
        node.state.allocator.allocate(MEMORY, [f"GPU-00000001-_-{slot}" for slot in (5, 6, 7)] + ["GPU-00000002-_-7"])
    assert uneven


def test_init_containers_and_sidecars_get_the_pods_gpu_in_any_order() -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    node.see(memory(gpus, 0, 3))
    pod = node.see(
        bound(
            gpus,
            {0: {1: 2}, -2: {1: 1}},
            container("main", mem=2),
            init=[container("first", mem=1), sidecar("side", mem=1), container("second", mem=2)],
        )
    )
    assert gpu_uuids_of(node.admit(pod)) == {"first": "1", "side": "1", "second": "1", "main": "1"}


@pytest.mark.parametrize("seed", range(6))
def test_whole_gpus_stay_the_pods_whichever_of_them_the_init_container_leaves(seed: int) -> None:
    gpus = inventory(8, 8, 8, 8)
    node = Node(gpus, seed)
    pod = bound(gpus, {0: {1: 8}, 1: {2: 8, 3: 8}}, container("a", count=1), container("b", count=2), init=[container("i", count=2)])
    got = node.admit(node.see(pod))
    used = sorted(uuid for name in ("a", "b") for uuid in got[name][VISIBLE].split(","))
    assert used == ["GPU-00000001", "GPU-00000002", "GPU-00000003"]


def test_a_model_that_was_asked_for_is_not_exchanged_for_room_on_another_gpu() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    node.admit(node.see(memory(gpus, 0, 6)))
    with pytest.raises(AdmissionError, match="GPU 1 has 8 free but is not the one it was placed on"):
        node.admit(node.see(memory(gpus, 0, 4, annotations={"gpushare.request/models": "T4"})))
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"


def test_pods_of_the_same_shape_may_have_each_others_gpus_whatever_they_asked_for() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    wish = {"gpushare.request/models": "T4"}
    first = node.see(memory(gpus, 0, 6, annotations=wish))
    second = node.see(memory(gpus, 1, 6, annotations=wish))
    # kubelet took them the other way round: a pod that arrived later went first.
    assert gpu_uuids_of(node.admit(second))["main"] == "0"
    assert gpu_uuids_of(node.admit(first))["main"] == "1"


# What processes hold although kubelet has freed it.


def test_what_a_force_deleted_pod_still_uses_is_avoided() -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    zombie = node.see(memory(gpus, 0, 12, phase="Running"))
    node.admit(zombie)
    node.force_delete(zombie, alive=True)
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "0"
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match=r"GPU 0 has 0 free \(processes of pod default/p\d+ use some that kubelet has freed\)"):
        node.admit(node.see(memory(gpus, 0, 14)))
    node.live.clear()
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 12))))["main"] == "0"


def test_ids_that_processes_hold_are_rejected_where_kubelet_gives_them_all_the_same() -> None:
    gpus = inventory(4)
    node = Node(gpus)
    zombie = node.see(memory(gpus, 0, 2, phase="Running", name="zombie"))
    node.admit(zombie)
    ids = node.manager.given[zombie["metadata"]["uid"]]["main"][MEMORY]
    node.force_delete(zombie, alive=True)
    with pytest.raises(AllocationRejected, match="is still used by processes of pod default/zombie, though kubelet has freed it"):
        node.state.allocator.allocate(MEMORY, ids)
    with pytest.raises(
        AllocationRejected, match="is still used by processes of pod default/zombie, though kubelet has freed it; kubelet will retry"
    ):
        node.state.allocator.may_start(MEMORY, [*ids, "GPU-00000000-_-3"])


def test_a_gpu_that_processes_use_is_not_given_whole_and_the_other_way_round() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    for pod in (memory(gpus, 0, 2, phase="Running", name="part"), whole(gpus, 1, phase="Running", name="all")):
        node.admit(node.see(pod))
        node.force_delete(pod, alive=True)
    with pytest.raises(AdmissionError, match="GPU 0 has memory allocated to pod default/part"):
        node.admit(node.see(whole(gpus, 0)))
    with pytest.raises(AdmissionError, match="GPU 1 is allocated whole to pod default/all"):
        node.admit(node.see(memory(gpus, 1, 3)))


def test_containers_that_start_again_without_kubelets_record_get_their_own_ids() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    pod = node.see(memory(gpus, 1, 6, phase="Running"))
    node.admit(pod)
    # Its sandbox lives, the container does not.
    node.live.add(pod["metadata"]["uid"])
    node.processes.up[pod["metadata"]["uid"]] = set()
    before = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    node.manager.restore([], RESOURCES)
    node._write()
    for resource in RESOURCES:
        node.manager.healthy[resource] = {i for i, good in node.state.devices.reported(resource) if good}
    # Another pod meanwhile: kubelet offers it everything.
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 1, 4))))["main"] == "0"
    assert gpu_uuids_of(node.admit(pod))["main"] == "1"
    assert node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY] == before


# What the scheduler's side is told.


def said(state: NodeState) -> Held:
    state.allocator.release_terminated()
    return report(state)


def test_on_the_normal_path_there_is_nothing_to_say() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 4, phase="Running"))
    node.admit(pod)
    assert said(node.state) == Held()
    node.delete(pod)
    assert said(node.state) == Held()


def test_units_of_pods_that_are_gone_are_leaving_until_their_processes_are() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    part, all_of_it = node.see(memory(gpus, 0, 4, phase="Running", name="part")), node.see(whole(gpus, 1, phase="Running", name="all"))
    for pod in (part, all_of_it):
        node.admit(pod)
        node.force_delete(pod, alive=True)
    assert said(node.state).entries == (
        HeldEntry("GPU-00000000", part["metadata"]["uid"], "default/part", 4, "orphaned"),
        HeldEntry("GPU-00000001", all_of_it["metadata"]["uid"], "default/all", 8, "orphaned", whole=True),
    )
    node.live.clear()
    assert said(node.state) == Held()


def test_a_static_pod_is_unmanaged() -> None:
    gpus = inventory(8)
    node = Node(gpus)
    copy = memory(None, 0, 3, uid="of-the-copy", name="static", annotations={"kubernetes.io/config.mirror": 32 * "a"})
    node.see(copy)
    node.admit({**copy, "metadata": {**copy["metadata"], "uid": 32 * "a"}})
    assert said(node.state).entries == (HeldEntry("GPU-00000000", "of-the-copy", "default/static", 3, "unmanaged"),)


def test_a_false_copy_of_a_static_pod_has_no_turn_and_no_promise() -> None:
    """Everybody may write the annotation; kubelet makes a true copy only after it has admitted the pod."""
    gpus = inventory(8, 8)
    node = Node(gpus)
    false = memory(gpus, 0, 3, uid="false", name="false", annotations={"kubernetes.io/config.mirror": 32 * "a"})
    node.see(false)
    node.see(memory(gpus, 0, 8, uid="copy", name="another", annotations={"kubernetes.io/config.mirror": 32 * "b"}))
    victim = node.see(memory(gpus, 1, 3, name="victim"))
    assert node.state.candidates._reserved_for_others(None) == {1: 3}
    assert gpu_uuids_of(node.admit(victim))["main"] == "1"
    known = node.pods.get(32 * "a")
    assert known is not None
    assert known.allocation is None, "no scheduler chooses for a file"


def test_a_static_pod_that_has_begun_has_its_turn() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    node.admit(node.see(memory(gpus, 0, 1)))
    copy = bound(None, {}, container("a", mem=2), container("b", mem=3), name="static", uid="copy")
    copy["metadata"]["annotations"] = {"kubernetes.io/config.mirror": 32 * "a"}
    node.see(copy)
    node.see(memory(gpus, 1, 3, name="other"))
    pod = {**copy, "metadata": {**copy["metadata"], "uid": 32 * "a"}}
    node.admit({**pod, "spec": {"containers": pod["spec"]["containers"][:1]}})
    turn = node.state.pending.match(MEMORY, 3)
    assert turn is not None
    assert str(turn) == "default/static container b"
    node.admit(pod)
    assert len({i.partition("-_-")[0] for of in node.manager.given[32 * "a"].values() for i in of[MEMORY]}) == 1


def test_a_rejection_is_told_until_its_time_is_over_or_the_gpu_has_changed() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    holder = node.see(memory(gpus, 0, 6, phase="Running"))
    node.admit(holder)
    node.admit(node.see(memory(gpus, 1, 6, phase="Running")))
    for _ in range(2):
        late = node.see(memory(gpus, 0, 4))
        with pytest.raises(AdmissionError):
            node.admit(late)
    rejected = said(node.state).rejected
    assert [(r.gpu, r.units, r.whole, r.until - 1_774_000_000 - node.now) for r in rejected] == [("GPU-00000000", 4, False, LIFETIME)] * 2
    node.now += LIFETIME
    assert said(node.state).rejected == ()
    with pytest.raises(AdmissionError):
        node.admit(node.see(memory(gpus, 0, 4)))
    assert said(node.state).rejected
    node.delete(holder)
    assert said(node.state).rejected == ()


# GPUs that must not be given.


def with_gpu(node: Node, index: int, **changes: Any) -> None:
    read = node.state.devices.inventory
    assert read is not None
    node.state.devices.set_inventory(Inventory(read.unit, tuple(replace(c, **changes) if c.index == index else c for c in read.gpus)))


def healthy(node: Node, resource: str) -> set[str]:
    return {device_id for device_id, good in node.state.devices.reported(resource) if good}


def test_of_a_bad_gpu_free_ids_go_at_once_and_held_ones_as_they_are_released() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 3, phase="Running"))
    node.admit(pod)
    held = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    key = node.state.devices.reported_key(MEMORY)
    with_gpu(node, 0, health="XID 79")
    assert node.state.devices.reported_key(MEMORY) != key
    assert healthy(node, MEMORY) == held | {f"GPU-00000001-_-{slot}" for slot in range(4)}
    # kubelet's sum: 7 healthy, 3 of them taken, so 4 left, which is what the good GPU has.
    assert healthy(node, GPUS) == {"GPU-00000001"}
    node.pods.event("DELETED", parse_local_pod(stopped(pod)))
    node.state.allocator.release_terminated()
    assert healthy(node, MEMORY) == {f"GPU-00000001-_-{slot}" for slot in range(4)}
    with_gpu(node, 0, health="ok")
    assert (len(healthy(node, MEMORY)), len(healthy(node, GPUS))) == (8, 2)


def test_a_bad_gpu_that_is_held_whole_stays_in_kubelets_sum_of_whole_gpus() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    node.admit(node.see(whole(gpus, 0, phase="Running")))
    with_gpu(node, 0, health="XID 79")
    assert healthy(node, GPUS) == {"GPU-00000000", "GPU-00000001"}
    assert healthy(node, MEMORY) == {f"GPU-00000001-_-{slot}" for slot in range(4)}


def test_other_words_for_the_same_trouble_are_no_new_list() -> None:
    node = Node(inventory(4))
    with_gpu(node, 0, health="XID 79")
    key = node.state.devices.reported_key(MEMORY)
    with_gpu(node, 0, health="lost")
    assert node.state.devices.reported_key(MEMORY) == key


@pytest.mark.parametrize(
    ("text", "named"),
    [("", set()), ("1", {1}), ("0, 1", {0, 1}), ("GPU-00000001", {1}), ("all", {0, 1}), ("10", set()), ("1;0", set()), (",", set())],
)
def test_an_administrator_names_gpus_by_index_or_uuid(text: str, named: set[int]) -> None:
    assert {index for index in (0, 1) if is_cordoned(text, gpu(index, 4))} == named


def test_a_cordoned_gpu_takes_no_new_pods_and_those_on_it_may_start_again() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    running = node.see(memory(gpus, 0, 4, phase="Running"))
    node.admit(running)
    node.state.devices.set_cordon("0")
    assert node.state.devices.inventory is not None
    assert [c.cordoned for c in node.state.devices.inventory.gpus] == [True, False]
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match="GPU 0 is cordoned"):
        node.admit(node.see(memory(gpus, 0, 8)))
    assert node.state.allocator.may_start(MEMORY, node.manager.given[running["metadata"]["uid"]]["main"][MEMORY])
    node.state.devices.set_cordon("")
    assert gpu_uuids_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "0"


def test_gpus_that_are_read_again_are_told_of_only_when_they_differ() -> None:
    node = Node(inventory(4, 8))
    changes = node.state.changes
    before = changes.count
    assert node.state.devices.set_inventory(inventory(4, 8)) is False
    node.state.devices.set_cordon("")
    assert changes.count == before
    assert node.state.devices.set_inventory(inventory(4, 9))
    assert changes.count == before + 1
    assert [i for i, _ in node.state.devices.reported(GPUS)] == ["GPU-00000000", "GPU-00000001"]
    ids = [f"GPU-{index:08d}-_-{slot}" for index, units in enumerate((4, 9)) for slot in range(units)]
    assert [i for i, _ in node.state.devices.reported(MEMORY)] == ids
    assert {i: c.index for i, c in node.state.devices.gpu_of(MEMORY).items()} == {i: int(i[4:12]) for i in ids}
    assert {i: c.index for i, c in node.state.devices.gpu_of(GPUS).items()} == {"GPU-00000000": 0, "GPU-00000001": 1}


def test_a_cordon_outlives_a_reading_and_what_was_read_as_cordoned_stays_so() -> None:
    node = Node(inventory(4, 4))
    node.state.devices.set_inventory(Inventory(inventory().unit, (gpu(0, 4, cordoned=True), gpu(1, 4))))
    node.state.devices.set_cordon("1")
    assert [c.cordoned for c in node.state.devices.gpu_of(GPUS).values()] == [True, True]
    node.state.devices.set_inventory(inventory(4, 4, 4))
    assert [c.cordoned for c in node.state.devices.gpu_of(GPUS).values()] == [False, True, False]
    empty = NodeState(node.pods, lambda: 0.0, lambda: 0.0, FakeProcesses())
    empty.devices.set_cordon("0")
    assert (empty.devices.gpu_of(GPUS), empty.devices.gpu_of(MEMORY), empty.devices.reported_key(MEMORY)) == ({}, {}, ((), frozenset()))
    empty.devices.set_inventory(inventory(4))
    assert [c.cordoned for c in empty.devices.gpu_of(GPUS).values()] == [True]


def test_the_list_for_kubelet_is_a_new_one_exactly_when_it_has_changed() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    pods = [node.see(memory(gpus, 0, size, phase="Running")) for size in (1, 2)]
    for pod in pods:
        node.admit(pod)
    seen: dict[Any, list[tuple[str, bool]]] = {}

    def look() -> None:
        for resource in RESOURCES:
            devices = node.state.devices.reported(resource)
            key = (resource, node.state.devices.reported_key(resource))
            assert seen.setdefault(key, devices) == devices
            assert [other for other, of in seen.items() if of == devices] == [key]

    def admit() -> None:
        node.admit(node.see(memory(gpus, 1, 1)))

    look()
    for change in (
        admit,
        lambda: with_gpu(node, 0, health="XID 79"),
        admit,
        lambda: node.delete(pods[0]),
        lambda: node.force_delete(pods[1], alive=True),
        lambda: node.state.devices.set_cordon("1"),
        lambda: node.state.devices.set_inventory(inventory(4, 5)),
        lambda: node.state.devices.set_inventory(inventory(4, 5, 6)),
    ):
        change()
        node.state.allocator.release_terminated()
        look()
    assert len(seen) > 6


def test_units_of_a_bad_gpu_that_kubelet_has_freed_do_not_come_back() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    pods = [node.see(memory(gpus, 0, 1, phase="Running")) for _ in range(2)]
    for pod in pods:
        node.admit(pod)
    gone, stays = (node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY] for pod in pods)
    with_gpu(node, 0, health="XID 79")
    assert healthy(node, MEMORY) == gone | stays | {f"GPU-00000001-_-{slot}" for slot in range(4)}
    node.force_delete(pods[0], alive=True)
    node.state.allocator.release_terminated()
    assert healthy(node, MEMORY) == stays | {f"GPU-00000001-_-{slot}" for slot in range(4)}


# Starts.


def test_a_container_starts_with_what_kubelet_recorded() -> None:
    gpus = inventory(8)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 4))
    node.admit(pod)
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    assert node.state.allocator.may_start(MEMORY, ids)
    free = node.state.devices.reported(MEMORY)[-2:]
    assert not node.state.allocator.may_start(MEMORY, [i for i, _ in free])


def test_a_container_does_not_start_with_ids_that_are_another_containers() -> None:
    gpus = inventory(8)
    node = Node(gpus)
    pods = [node.see(memory(gpus, 0, 2, name=name)) for name in ("one", "two")]
    for pod in pods:
        node.admit(pod)
    first, second = (node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY] for pod in pods)
    with pytest.raises(AllocationRejected, match=r"1 of its 2 ids .* are those of container main of pod default/two by kubelet's record"):
        node.state.allocator.may_start(MEMORY, [min(second), "GPU-00000000-_-7"])
    assert node.state.allocator.may_start(MEMORY, first)


def test_a_container_does_not_start_on_a_gpu_that_is_bad_or_gone() -> None:
    gpus = inventory(8)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 4))
    node.admit(pod)
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    with_gpu(node, 0, health="XID 79")
    with pytest.raises(AllocationRejected, match=r"GPU 0 .* is not usable \(XID 79\); kubelet will retry"):
        node.state.allocator.may_start(MEMORY, ids)
    node.state.devices.set_inventory(inventory(8, 8))
    assert node.state.allocator.may_start(MEMORY, ids)
    with pytest.raises(AllocationRejected, match="1 of its ids are of no GPU in this node"):
        node.state.allocator.may_start(MEMORY, ["GPU-gone-_-0"])


def test_a_container_that_got_a_pods_gpus_which_asked_for_another_number_of_them_does_not_start() -> None:
    gpus = inventory(8, 8)
    node = Node(gpus)
    first = node.see(bound(gpus, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}, name="two"))
    second = node.see(memory(gpus, 0, 4, name="one"))
    # kubelet dropped the first one for another reason, and asks for the second: nobody can tell yet.
    assert node.admit(second)["main"][VISIBLE] == "GPU-00000000,GPU-00000001"
    ids = node.manager.given[second["metadata"]["uid"]]["main"][MEMORY]
    with pytest.raises(AllocationRejected, match="container main of pod default/one has units of 2 GPUs, it needs one GPU; delete the pod"):
        node.state.allocator.may_start(MEMORY, ids)
    assert first


def test_a_start_before_the_gpus_were_read_is_not_rejected() -> None:
    state = NodeState(Node(inventory(4)).pods, lambda: 0.0, lambda: 0.0, FakeProcesses())
    assert not state.allocator.may_start(MEMORY, ["GPU-00000000-_-0"])


def test_whole_gpus_that_are_gone_or_cordoned() -> None:
    gpus = inventory(4, 4, 4)
    node = Node(gpus)
    pod = node.see(whole(gpus, 1, 2))
    node.admit(pod)
    node.state.devices.set_cordon("all")
    assert node.state.allocator.may_start(GPUS, ["GPU-00000001", "GPU-00000002"])
    assert not node.state.allocator.may_start(GPUS, ["GPU-00000000"])
    with pytest.raises(AllocationRejected, match=r"1 of its \d ids \(GPU-00000001 …\) are those of container main of pod default/"):
        node.state.allocator.may_start(GPUS, ["GPU-00000001"])
    node.state.devices.set_inventory(inventory(4))
    with pytest.raises(AllocationRejected, match=r"^aliyun.com/gpu-count: 2 of its ids are of no GPU in this node; delete the pod"):
        node.state.allocator.may_start(GPUS, ["GPU-00000000", "GPU-00000001", "GPU-00000002"])


def test_of_several_bad_gpus_the_first_is_named() -> None:
    node = Node(inventory(4, 4, 4))
    for index in (1, 2):
        with_gpu(node, index, health=f"XID {index}")
    with pytest.raises(AllocationRejected, match=r"GPU 1 .* is not usable \(XID 1\)"):
        node.state.allocator.may_start(GPUS, ["GPU-00000002", "GPU-00000001", "GPU-00000000"])


@pytest.mark.parametrize("alive", [True, False])
def test_a_start_with_ids_in_doubt_looks_at_the_processes_once(alive: bool) -> None:
    gpus = inventory(4)
    node = Node(gpus)
    gone = node.see(memory(gpus, 0, 2, phase="Running", name="gone"))
    node.admit(gone)
    ids = node.manager.given[gone["metadata"]["uid"]]["main"][MEMORY]
    node.force_delete(gone, alive=alive)
    # The processes of the pod itself are its own; another's ids are not in doubt.
    assert node.state.allocator.may_start(MEMORY, ids)
    assert not node.state.allocator.may_start(MEMORY, {f"GPU-00000000-_-{slot}" for slot in range(4)} - ids)
    assert node.looks == 0
    if alive:
        with pytest.raises(AllocationRejected, match="is still used by processes of pod default/gone"):
            node.state.allocator.may_start(MEMORY, [min(ids)])
    else:
        # It was told a moment ago that it may start.
        node.now += 30
        assert not node.state.allocator.may_start(MEMORY, [min(ids)])
    assert node.looks == 1


def test_a_container_of_a_pod_that_the_watch_has_not_shown_may_start_on_any_number_of_gpus() -> None:
    gpus = inventory(4, 4)
    node = Node(gpus)
    pod = node.see(bound(gpus, {0: {0: 1, 1: 1}}, container(mem=2), labels={"aliyun.com/gpu-count": "2"}))
    node.admit(pod)
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    assert node.state.allocator.may_start(MEMORY, ids)
    unseen = NodeState(type(node.pods)(), lambda: 0.0, lambda: 0.0, FakeProcesses())
    unseen.devices.set_inventory(gpus)
    unseen.usage.set_checkpoint(node.file)
    assert unseen.allocator.may_start(MEMORY, ids)


def test_whole_gpus_and_memory_of_one_container_start_each_with_their_own_shape() -> None:
    gpus = inventory(4, 4, 4)
    node = Node(gpus)
    pod = node.see(bound(None, {}, container(mem=2, count=2)))
    node.admit(pod)
    given = node.manager.given[pod["metadata"]["uid"]]["main"]
    assert all(node.state.allocator.may_start(resource, given[resource]) for resource in RESOURCES)
    node = Node(inventory(4, 4, 4))
    pod = node.see(bound(None, {}, container("a", count=1), container("b", mem=2), labels={"aliyun.com/gpu-count": "2"}))
    node.admit(pod)
    assert node.state.allocator.may_start(MEMORY, node.manager.given[pod["metadata"]["uid"]]["b"][MEMORY])


# A record that is lost: who asks is a guess.


def lose(node: Node, *pods: dict[str, Any]) -> None:
    """kubelet starts anew without its file; these pods' sandboxes live."""
    node.live.update(pod["metadata"]["uid"] for pod in pods)
    node.manager.restore([], RESOURCES)
    node._write()
    for resource in RESOURCES:
        node.manager.healthy[resource] = {i for i, good in node.state.devices.reported(resource) if good}


def ids_of(node: Node, pod: dict[str, Any], name: str = "main") -> set[str]:
    return node.manager.given[pod["metadata"]["uid"]][name][MEMORY]


def test_a_container_that_starts_again_without_a_record_does_not_get_its_living_siblings_ids() -> None:
    gpus = inventory(16)
    node = Node(gpus)
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
def test_the_ids_of_a_container_that_may_live_are_nobodys_even_if_the_api_server_does_not_show_it_running(up: set[str] | None) -> None:
    gpus = inventory(8)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 6, phase="Running", name="seems down"))
    node.admit(pod)
    lose(node, pod)
    if up is not None:
        node.processes.up[pod["metadata"]["uid"]] = up
    with pytest.raises(AdmissionError, match="processes of pod default/seems down use some"):
        node.admit(node.see(memory(gpus, 0, 6)))


def test_a_guess_that_was_wrong_does_not_keep_the_other_from_starting() -> None:
    gpus = inventory(8)
    node = Node(gpus)
    down = node.see(memory(gpus, 0, 6, phase="Running", name="down"))
    node.admit(down)
    lose(node, down)
    node.processes.up[down["metadata"]["uid"]] = set()
    # Of the same size, and the plugin has not heard of it.
    stranger = memory(gpus, 0, 6, name="stranger")
    node.admit(stranger)
    node.see(stranger)
    assert node.state.allocator.may_start(MEMORY, ids_of(node, stranger))
    with pytest.raises(AdmissionError):
        node.admit(down)


# The containers of one pod.


def test_later_containers_follow_the_first_one_to_the_gpu_that_it_got() -> None:
    """kubelet asks for the second pod first; its first container gets the other's GPU, and its second one had its own."""
    gpus = inventory(8, 8)
    node = Node(gpus)
    node.see(memory(gpus, 0, 2, name="first"))
    later = node.see(bound(gpus, {0: {1: 2}, 1: {1: 1}}, container("c0", mem=2), container("c1", mem=1), name="later"))
    assert gpu_uuids_of(node.admit(later)) == {"c0": "0", "c1": "0"}


def test_where_containers_are_meant_for_gpus_of_their_own_each_needs_room_for_itself_alone() -> None:
    gpus = inventory(2, 3)
    node = Node(gpus)
    pod = node.see(bound(gpus, {0: {0: 2}, 1: {1: 3}}, container("c0", mem=2), container("c1", mem=3)))
    assert gpu_uuids_of(node.admit(pod)) == {"c0": "0", "c1": "1"}


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_a_chosen_gpu_that_has_room_for_a_part_of_the_pod_alone_gets_none_of_it(sizes: tuple[int, int]) -> None:
    """kubelet has admitted a pod that the API server had no more, with what was meant for this one."""
    gpus = inventory(8, 8)
    node = Node(gpus)
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
    assert gpu_uuids_of(node.admit(pod)) == {"c0": other, "c1": other}


def test_where_the_rest_of_a_pod_has_no_room_beside_its_first_container_it_is_rejected() -> None:
    gpus = inventory(2, 8)
    node = Node(gpus)
    node.see(memory(gpus, 0, 2, name="first"))
    later = node.see(bound(gpus, {0: {1: 2}, 1: {1: 1}}, container("c0", mem=2), container("c1", mem=1), name="later"))
    with pytest.raises(AdmissionError, match=r"GPU 0 has 0 free, GPU 1 has 8 free but is not the one it was placed on"):
        node.admit(later)


@pytest.mark.parametrize(
    ("sizes", "containers", "init"),
    [((2, 16), [8], [2]), ((4, 16), [4, 4], []), ((16, 4), [4, 4], [])],
    ids=["init container first", "two alike", "larger GPU first"],
)
def test_a_pod_that_nobody_placed_gets_a_gpu_with_room_for_all_of_it(
    sizes: tuple[int, ...], containers: list[int], init: list[int]
) -> None:
    gpus = inventory(*sizes)
    node = Node(gpus)
    asked = [container(f"c{place}", mem=units) for place, units in enumerate(containers)]
    pod = node.see(bound(None, {}, *asked, init=[container(f"i{place}", mem=units) for place, units in enumerate(init)]))
    large = str(sizes.index(16))
    assert set(gpu_uuids_of(node.admit(pod)).values()) == {large}


# Starts that must not be.


def taken_for_over(gpus: Inventory) -> tuple[Node, set[str]]:
    """A node whose pod `slow` has gone before it had a process, long enough ago for its ids to be free; and these."""
    node = Node(gpus)
    slow = node.see(memory(gpus, 0, 12, name="slow"))
    node.admit(slow)
    ids = ids_of(node, slow)
    node.pods.event("DELETED", parse_local_pod(slow))
    for _ in range(2):
        node.state.allocator.release_terminated()
        node.now += 3
    return node, ids


def test_a_start_of_a_pod_that_was_taken_for_over_holds_its_ids_again() -> None:
    gpus = inventory(12)
    node, ids = taken_for_over(gpus)
    assert node.state.usage.snapshot() == {}
    assert not node.state.allocator.may_start(MEMORY, ids)
    with pytest.raises(AllocationRejected, match="has memory allocated to pod default/slow"):
        node.state.allocator.prefer(GPUS, ["GPU-00000000"], [], 1)


def test_a_start_of_a_pod_that_was_taken_for_over_is_rejected_where_others_have_the_gpu_now() -> None:
    gpus = inventory(12)
    node, ids = taken_for_over(gpus)
    # In one moment: kubelet's memory of it is gone only with the next container that asks.
    node.manager.active.clear()
    node.admit(node.see(whole(gpus, 0, name="all of it")))
    with pytest.raises(AllocationRejected, match=r"GPU 0 .* is allocated to pod default/all of it"):
        node.state.allocator.may_start(MEMORY, ids)


def test_ids_that_a_container_starts_with_and_nobody_knows_of_are_held_for_a_while() -> None:
    gpus = inventory(12)
    node = Node(gpus)
    assert not node.state.allocator.may_start(MEMORY, {f"GPU-00000000-_-{slot}" for slot in range(6)})
    with pytest.raises(AllocationRejected, match="has memory allocated to a pod admitted just now"):
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
def test_a_pod_that_got_a_gpu_against_its_rules_does_not_start(rule: dict[str, str], why: str) -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    node.admit(node.see(memory(gpus, 0, 4, name="noisy", labels={"app": "noisy"}, phase="Running")))
    node.admit(node.see(memory(gpus, 1, 4, name="encoder", labels={"app": "encoder"}, phase="Running")))
    # It waits no more, which the watch is to say yet.
    node.see(memory(gpus, 0, 6, name="turned away"))
    strict = node.see(memory(gpus, 1, 6, name="strict", annotations=rule))
    node.admit(strict)
    with pytest.raises(AllocationRejected, match=f"container main of pod default/strict has GPU 0 .*, {why}; delete the pod"):
        node.state.allocator.may_start(MEMORY, ids_of(node, strict))


@pytest.mark.parametrize("company", ["came later", "has gone", "is still to come", "of another namespace"])
def test_a_pod_that_was_not_placed_apart_from_its_company_starts(company: str) -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
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
    assert node.state.allocator.may_start(MEMORY, ids_of(node, pod))


def test_who_was_there_first_starts_again_whatever_others_wish() -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    first = node.see(memory(gpus, 0, 4, name="noisy", labels={"app": "noisy"}, phase="Running"))
    node.admit(first)
    node.see(memory(gpus, 0, 6, name="turned away"))
    node.admit(node.see(memory(gpus, 1, 6, name="strict", annotations={"gpushare.request/not-with": "app=noisy"})))
    assert node.state.allocator.may_start(MEMORY, ids_of(node, first))


def test_gpus_that_are_all_alike_are_not_told_apart_by_the_model_that_the_nodes_label_names() -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    pod = node.see(memory(gpus, 0, 4, annotations={"gpushare.request/models": "Company-Name-Of-It"}))
    node.admit(pod)
    assert node.state.allocator.may_start(MEMORY, ids_of(node, pod))


def test_the_newest_answer_counts_where_the_same_ids_were_preferred_twice() -> None:
    gpus = inventory(16)
    node = Node(gpus)
    old = node.see(bound(gpus, {0: {0: 4}, 1: {0: 8}}, container("main", mem=4), container("more", mem=8), name="old"))
    free = sorted(node.free(MEMORY))
    ids, _ = node.state.allocator.prefer(MEMORY, free, [], 4)
    node.pods.event("DELETED", parse_local_pod(old))
    node.see(memory(gpus, 0, 4, name="new"))
    assert node.state.allocator.prefer(MEMORY, free, [], 4)[0] == ids
    assert node.state.allocator.allocate(MEMORY, ids).environment["ALIYUN_COM_GPU_MEM_POD"] == "4"


def test_an_init_container_that_only_podresources_leaves_out_starts_with_what_its_pod_has() -> None:
    gpus = inventory(16)
    node = Node(gpus)
    pod = node.see(bound(gpus, {0: {0: 4}}, container(mem=4), init=[container("first", mem=2)]))
    node.admit(pod)
    first = ids_of(node, pod, "first")
    node.state.usage.set_checkpoint(tuple(entry for entry in node.file if entry.container != "first"))
    node.now += 60
    uid = pod["metadata"]["uid"]
    bare = NodeState(node.pods, lambda: 0.0, lambda: 0.0, FakeProcesses())
    bare.devices.set_inventory(gpus)
    bare.usage.set_checkpoint(tuple(entry for entry in node.file if entry.container != "first"))
    assert not bare.allocator.may_start(MEMORY, first)
    with pytest.raises(AllocationRejected, match=f"are those of container main of {bare.usage.pod_name(uid)}"):
        bare.allocator.may_start(MEMORY, set(sorted(ids_of(node, pod))[:3]))


def test_an_unknown_container_gets_the_shape_that_all_known_ones_of_its_size_want() -> None:
    """As when kubelet starts a container anew whose pod cannot be told from others."""
    gpus = inventory(16, 16)
    node = Node(gpus)
    pod = node.see(bound(gpus, {0: {0: 4, 1: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    node.state.pending.reject(node.state.pods.get(pod["metadata"]["uid"]))  # type: ignore[arg-type]
    assert node.state.pending.gpus_per_pod(MEMORY, 8, None) == 2
    node.see(memory(gpus, 0, 8))
    assert node.state.pending.gpus_per_pod(MEMORY, 8, None) == 1


def test_a_start_that_can_never_succeed_is_remembered_until_it_does_or_its_pod_is_gone() -> None:
    gpus = inventory(16, 16)
    node = Node(gpus)
    ids = [f"GPU-00000000-_-{slot}" for slot in range(8)]
    pod = bound(gpus, {0: {0: 4, 1: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"})
    # The plugin saw it too late.
    node.state.allocator.allocate(MEMORY, ids)
    node.see(pod)
    uid = pod["metadata"]["uid"]
    node.state.usage.set_checkpoint((CheckpointEntry(uid, "main", MEMORY, frozenset(ids)),))
    with pytest.raises(AllocationRejected, match="has units of 1 GPUs, it needs 2 GPUs"):
        node.state.allocator.may_start(MEMORY, ids)
    assert node.state.allocator.starts_never == {uid: 0}
    node.state.pods.event("DELETED", parse_local_pod(pod))
    other = node.see(memory(gpus, 1, 2))
    node.admit(other)
    node.state.allocator.may_start(MEMORY, node.manager.given[other["metadata"]["uid"]]["main"][MEMORY])
    assert node.state.allocator.starts_never == {}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the scheduler's side and kubelet are told: rejections, what processes hold, and GPUs that must not be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import Held, HeldEntry
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.node.devices import is_cordoned
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import LIFETIME
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import report
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.node import Node, ids_of, indexes_of, stopped, with_gpu
from unit.fakes.runtime.pods import container, gpu, inventory

MEMORY, GPUS = RESOURCES


# What the scheduler's side is told.


def said(state: NodeState) -> Held:
    state.allocator.release_terminated()
    return report(state)


def test_on_the_normal_path_there_is_nothing_to_say() -> None:
    node = Node(gpus := inventory(8, 8))
    pod = node.takes(memory(gpus, 0, 4, phase="Running"))
    assert said(node.state) == Held()
    node.delete(pod)
    assert said(node.state) == Held()


def test_units_of_pods_that_are_gone_are_leaving_until_their_processes_are() -> None:
    node = Node(gpus := inventory(8, 8))
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


def exchanged(node: Node, *uuids: str) -> Inventory:
    """The GPUs of the node are others now, in the same places."""
    read = node.state.devices.inventory
    assert read is not None
    made = replace(read, gpus=tuple(replace(one, uuid=uuid) for one, uuid in zip(read.gpus, uuids, strict=True)))
    node.state.devices.set_inventory(made)
    return made


def test_what_pods_have_of_gpus_that_are_not_in_the_node_any_more_is_gone() -> None:
    node = Node(gpus := inventory(8, 8, 8))
    one, all_of_it = node.takes(memory(gpus, 0, 3, name="one", uid="one")), node.takes(whole(gpus, 1, name="whole", uid="whole"))
    node.takes(memory(gpus, 2, 2, name="stays", uid="stays"))
    assert (said(node.state), node.state.devices.gone()) == (Held(), {})
    exchanged(node, "GPU-new0", "GPU-new1", "GPU-00000002")
    assert said(node.state).entries == (
        HeldEntry("GPU-00000000", "one", "default/one", 3, "gone"),
        HeldEntry("GPU-00000001", "whole", "default/whole", 8, "gone", whole=True),
    )
    assert node.state.devices.gone() == {"one": {"GPU-00000000"}, "whole": {"GPU-00000001"}}
    # kube-scheduler goes on counting them for their pods, so kubelet's total has them; for others there are all units of the GPUs.
    healthy = {resource: {i for i, good in node.state.devices.reported(resource) if good} for resource in RESOURCES}
    assert (len(healthy[MEMORY]), len(healthy[GPUS])) == (3 * 8 + 3, 3 + 1)
    assert healthy[MEMORY] > ids_of(node, one)
    node.manager.healthy |= healthy
    new = node.takes(memory(node.state.devices.inventory, 0, 8, name="new"))
    assert {i.partition("-_-")[0] for i in ids_of(node, new)} == {"GPU-new0"}
    for pod in (one, all_of_it):
        node.delete(pod)
    assert (said(node.state), node.state.devices.gone()) == (Held(), {})
    assert len(node.state.devices.reported(MEMORY)) == 3 * 8


def test_of_a_pod_with_one_gpu_that_is_gone_all_is_said() -> None:
    node = Node(gpus := inventory(8, 8))
    node.takes(bound(gpus, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}, name="two", uid="two"))
    exchanged(node, "GPU-new", "GPU-00000001")
    assert said(node.state).entries == (
        HeldEntry("GPU-00000000", "two", "default/two", 2, "gone"),
        HeldEntry("GPU-00000001", "two", "default/two", 2, "gone"),
    )
    exchanged(node, "GPU-00000000", "GPU-00000001")
    assert said(node.state) == Held(), "it is back"


def test_what_is_listed_of_gpus_that_are_gone_never_makes_kubelets_list_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(gpus := inventory(4))
    node.takes(memory(gpus, 0, 4, name="one"))
    exchanged(node, "GPU-new")
    all_of_them = node.state.devices.reported(MEMORY)
    size = pb.ListAndWatchResponse(devices=[pb.Device(ID=i, health="Unhealthy") for i, _ in all_of_them]).ByteSize()
    for most, listed in ((2 * size, 8), (size, 7), (1, 4)):
        monkeypatch.setattr("gpushare_runtime.device_plugin.node.devices.KUBELET_MESSAGE_BYTES", most)
        assert len(node.state.devices.reported(MEMORY)) == listed


def test_ids_that_are_not_of_our_form_are_of_no_gpu_that_is_gone() -> None:
    """Another device plugin's, which has given them before."""
    node = Node(gpus := inventory(8))
    node.see(memory(gpus, 0, 2, name="old", uid="old"))
    node.state.recorder.set_checkpoint((CheckpointEntry("old", "main", MEMORY, frozenset({"unit-1", "place/7"})),))
    assert (said(node.state), node.state.devices.gone()) == (Held(), {})
    # The original's ids are of our form, but it has given the GPU by its index.
    node.state.recorder.set_checkpoint((CheckpointEntry("old", "main", MEMORY, frozenset({"GPU-x-_-1", "GPU-x-_-2"}), 0),))
    assert node.state.devices.gone() == {}


def test_a_static_pod_is_unmanaged() -> None:
    node = Node(inventory(8))
    copy = memory(None, 0, 3, uid="of-the-copy", name="static", annotations={"kubernetes.io/config.mirror": 32 * "a"})
    node.see(copy)
    node.admit({**copy, "metadata": {**copy["metadata"], "uid": 32 * "a"}})
    assert said(node.state).entries == (HeldEntry("GPU-00000000", "of-the-copy", "default/static", 3, "unmanaged"),)


def test_a_false_copy_of_a_static_pod_has_no_turn_and_no_promise() -> None:
    """Everybody may write the annotation; kubelet makes a true copy only after it has admitted the pod."""
    node = Node(gpus := inventory(8, 8))
    false = memory(gpus, 0, 3, uid="false", name="false", annotations={"kubernetes.io/config.mirror": 32 * "a"})
    node.see(false)
    node.see(memory(gpus, 0, 8, uid="copy", name="another", annotations={"kubernetes.io/config.mirror": 32 * "b"}))
    victim = node.see(memory(gpus, 1, 3, name="victim"))
    assert node.state.candidates._reserved_for_others(None) == {1: 3}
    assert indexes_of(node.admit(victim))["main"] == "1"
    known = node.pods.get(32 * "a")
    assert known is not None
    assert known.allocation is None, "no scheduler chooses for a file"


def test_a_static_pod_that_has_begun_has_its_turn() -> None:
    node = Node(gpus := inventory(8, 8))
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
    node = Node(gpus := inventory(8, 8))
    holder = node.takes(memory(gpus, 0, 6, phase="Running"))
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


def healthy(node: Node, resource: str) -> set[str]:
    return {device_id for device_id, good in node.state.devices.reported(resource) if good}


def test_of_a_bad_gpu_free_ids_go_at_once_and_held_ones_as_they_are_released() -> None:
    node = Node(gpus := inventory(4, 4))
    pod = node.takes(memory(gpus, 0, 3, phase="Running"))
    held = ids_of(node, pod)
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
    node = Node(gpus := inventory(4, 4))
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
    node = Node(gpus := inventory(8, 8))
    running = node.takes(memory(gpus, 0, 4, phase="Running"))
    node.state.devices.set_cordon("0")
    assert node.state.devices.inventory is not None
    assert [c.cordoned for c in node.state.devices.inventory.gpus] == [True, False]
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match="GPU 0 is cordoned"):
        node.admit(node.see(memory(gpus, 0, 8)))
    assert node.state.starts.may_start(MEMORY, ids_of(node, running))
    node.state.devices.set_cordon("")
    assert indexes_of(node.admit(node.see(memory(gpus, 0, 4))))["main"] == "0"


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
    node = Node(gpus := inventory(4, 4))
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
    node = Node(gpus := inventory(4, 4))
    pods = [node.see(memory(gpus, 0, 1, phase="Running")) for _ in range(2)]
    for pod in pods:
        node.admit(pod)
    gone, stays = (ids_of(node, pod) for pod in pods)
    with_gpu(node, 0, health="XID 79")
    assert healthy(node, MEMORY) == gone | stays | {f"GPU-00000001-_-{slot}" for slot in range(4)}
    node.force_delete(pods[0], alive=True)
    node.state.allocator.release_terminated()
    assert healthy(node, MEMORY) == stays | {f"GPU-00000001-_-{slot}" for slot in range(4)}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Usage while the API server is not heard, while containers start, and while kubelet's file lacks something."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import parse_local_pod
from gpushare_runtime.device_plugin.node.pod_state import START_GRACE
from unit.fakes.runtime.device_plugin.id_usage import BURST, MAKING, NODE, WATCH_GRACE, Case, entry, units
from unit.fakes.runtime.device_plugin.local_pods import memory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"

# While the API server is not heard.


def test_a_pod_that_the_watch_could_not_show_is_held_for_as_long_as_the_watch_is_interrupted(case: Case) -> None:
    case.heard = False
    case.record(entry("pulls its image", 0))
    case.wait(600)
    assert case.release() == {"pulls its image"}
    assert (case.still_in_use(MEMORY), case.looks) == ({}, 0)
    case.heard = True
    assert case.release() == {"pulls its image"}, "what the watch brings now is taken in first"
    case.add("pulls its image", phase="Pending")
    case.wait(BURST + START_GRACE)
    assert case.release() == {"pulls its image"}


def test_what_an_old_file_lists_and_the_first_list_does_not_is_over_at_once(case: Case) -> None:
    case.recorder.set_checkpoint((entry("gone before the start", 0),), age=WATCH_GRACE + 1)
    for held in ({"gone before the start"}, {"gone before the start"}, set()):
        assert case.release() == held
        case.wait(BURST)


def test_kubelets_own_offer_ends_it_at_once_whether_the_api_server_is_heard_or_not(case: Case) -> None:
    case.heard = False
    case.record(entry("unseen", 0))
    case.recorder.observe_available(MEMORY, units(0))
    assert case.release() == {"unseen"}
    case.wait(START_GRACE)
    assert case.release() == set()


def test_what_a_lost_file_listed_is_held_without_a_process_for_as_long_as_the_api_server_shows_the_pod(case: Case) -> None:
    pod = case.add("pulls its image", phase="Pending")
    case.record(entry("pulls its image", 0))
    case.record()
    case.wait(600)
    assert case.release() == {"pulls its image"}
    case.delete(pod)
    case.release()
    case.wait(START_GRACE)
    assert case.release() == set()


def test_what_a_pod_had_is_forgotten_when_kubelet_and_its_processes_are_done_with_it(case: Case) -> None:
    case.add("a")
    pod = case.add("b")
    case.record(entry("a", 0), entry("b", 1))
    case.delete(pod)
    case.live = {"b"}
    case.record(entry("a", 0))
    assert case.release() == {"a", "b"}
    assert (case.usage.was_allocated("b"), case.usage.keys_of("b")) == (True, [DeviceKey("b", "main", MEMORY)])
    case.live = set()
    assert case.release() == {"a"}
    assert (case.usage.was_allocated("b"), case.usage.keys_of("b")) == (False, [])
    assert case.usage.keys_of("a") == [DeviceKey("a", "main", MEMORY)]


def test_memory_and_whole_gpus_of_one_pod_are_told_apart(case: Case) -> None:
    case.record(entry("a", 0, 1), CheckpointEntry("a", "second", GPUS, frozenset({"GPU-00000001"})), entry("b", 7))
    assert case.usage.memory_of("a") == {"GPU-00000000": 2}
    assert case.usage.units_by_pod(NODE) == {("a", "GPU-00000000"): 2, ("a", "GPU-00000001"): 16, ("b", "GPU-00000000"): 1}
    assert case.usage.containers_with(MEMORY, units(0, 1)) == [DeviceKey("a", "main", MEMORY)]
    assert case.usage.containers_with(GPUS, units(0, 1)) == []
    assert case.usage.containers_with(MEMORY, units(0)) == []


def test_a_pod_is_called_by_the_best_that_is_known_of_it(case: Case) -> None:
    case.add("a")
    case.record(entry("a", 0), entry("unseen", 1))
    assert case.usage.pod_name("a") == "pod default/a"
    assert "UID unseen" in case.usage.pod_name("unseen")
    assert "just now" in case.usage.pod_name("")


def test_what_another_device_plugin_gave_shifts_units_between_gpus(case: Case) -> None:
    """By the ids that kubelet chose they have GPU 0; by its index they have another GPU's memory."""
    case.usage.gpus_by_index = NODE.by_index
    first, second = (gpu.uuid for gpu in NODE.gpus)
    pods = {uid: case.add(uid) for uid in ("moved", "same", "ours")}
    moved, same = (
        CheckpointEntry(uid, "main", MEMORY, ids, index) for uid, ids, index in (("moved", units(0, 1), 1), ("same", units(2), 0))
    )
    case.record(moved, same, entry("ours", 3))
    keys = [DeviceKey("gone", "main", MEMORY), DeviceKey("ours", "main", MEMORY), DeviceKey("moved", "main", MEMORY)]
    assert [case.usage.given_index(keys), case.usage.given_index(keys[:2]), case.usage.given_index([])] == [1, None, None]
    assert (case.usage.displaced(), case.usage.displaced(orphaned=True)) == ({first: -2, second: 2}, {})
    assert case.usage.units_by_gpu(NODE) == {first: 2, second: 2}
    case.live = {"moved"}
    case.delete(pods["moved"])
    case.release()
    assert case.usage.displaced(orphaned=True) == {first: -2, second: 2}
    assert case.usage.units_by_gpu(NODE, orphaned=True) == {first: 0, second: 2}
    case.live = set()
    case.release()
    assert (case.usage.displaced(), case.usage.displaced(orphaned=True)) == ({}, {})


# Starts.


def test_a_start_that_was_asked_for_is_waited_for(case: Case) -> None:
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"waiting": {}}, "containerID": "run://1"}]}
    pod = case.add("a")
    case.pods.event("MODIFIED", parse_local_pod({**pod, "status": status}))
    case.record(entry("a", 0))
    case.recorder.record_start([DeviceKey("a", "main", MEMORY)])
    case.delete({**pod, "status": status})
    assert case.release() == {"a"}, "its container may be in the making"
    case.wait(MAKING - 1)
    assert case.release() == {"a"}
    case.live = {"a"}
    assert case.release() == {"a"}
    case.live = set()
    assert case.release() == set(), "it has come and gone"


def test_a_start_of_a_pod_that_the_watch_has_not_shown_is_waited_for(case: Case) -> None:
    case.record(entry("a", 0))
    case.recorder.record_start([DeviceKey("a", "main", MEMORY)])
    assert case.usage.is_starting(DeviceKey("a", "main", MEMORY))
    case.wait(MAKING)
    assert not case.usage.is_starting(DeviceKey("a", "main", MEMORY))


def test_a_start_that_was_reported_is_not_waited_for(case: Case) -> None:
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0))
    case.recorder.record_start([DeviceKey("a", "main", MEMORY)])
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": "run://1"}]}
    case.delete({**pod, "status": running})
    assert case.release() == set()


def test_a_start_of_one_of_two_with_the_same_ids_is_reported_by_either(case: Case) -> None:
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0, container="first"), entry("a", 0))
    case.recorder.record_start([DeviceKey("a", "first", MEMORY), DeviceKey("a", "main", MEMORY)])
    assert case.usage.is_starting(DeviceKey("a", "main", MEMORY))
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": "run://1"}]}
    case.delete({**pod, "status": running})
    assert not case.usage.is_starting(DeviceKey("a", "first", MEMORY))
    assert case.release() == set()


def test_a_start_of_what_was_released_holds_it_again(case: Case) -> None:
    case.delete(case.add("a"))
    case.record(entry("a", 0))
    case.wait(MAKING)
    assert case.release() == set()
    case.recorder.record_start([DeviceKey("a", "main", MEMORY)])
    assert case.release() == {"a"}
    assert case.still_in_use(MEMORY) == {min(units(0)): "a"}
    assert case.usage.is_starting(DeviceKey("a", "main", MEMORY))
    case.wait(MAKING)
    assert not case.usage.is_starting(DeviceKey("a", "main", MEMORY))
    assert case.release() == set()


# What kubelet's file should list.


@pytest.mark.parametrize("known", ["lost with the file", "never had ids", "lost while no plugin looked"])
def test_a_pod_that_runs_and_is_in_no_record_is_a_lost_record_when_both_have_had_time_to_agree(known: str, case: Case) -> None:
    pod = case.add("crash loop without a sandbox")
    if known == "lost with the file":
        case.record(entry("crash loop without a sandbox", 0))
    elif known == "lost while no plugin looked":
        case.recorder.restore({DeviceKey("crash loop without a sandbox", "main", MEMORY): units(0)}, {})
    case.record()
    for more, lost in ((0, False), (WATCH_GRACE, False), (1, True)):
        case.wait(more)
        case.release()
        assert case.usage.any_record_lost(MEMORY) == lost
    assert not case.usage.any_record_lost(GPUS)
    assert case.usage.dropped_by_kubelet() == set()
    case.heard = False
    assert not case.usage.any_record_lost(MEMORY)
    case.heard = True
    case.pods.event("MODIFIED", parse_local_pod({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}))
    case.release()
    assert not case.usage.any_record_lost(MEMORY)


@pytest.mark.parametrize(
    ("container", "started"),
    [({"containerID": "containerd://1", "state": {"waiting": {}}}, True), ({"state": {"waiting": {}}}, False)],
    ids=["its init container was started", "nothing was started"],
)
def test_a_pod_that_is_not_past_its_init_containers_is_a_lost_record_when_one_was_started(
    container: dict[str, Any], started: bool, case: Case
) -> None:
    pod = case.add("a", phase="Pending")
    pod["status"]["initContainerStatuses"] = [{"name": "first", **container}]
    case.pods.event("MODIFIED", parse_local_pod(pod))
    case.record()
    for _ in range(2):
        case.release()
        case.wait(WATCH_GRACE + 1)
    assert case.usage.any_record_lost(MEMORY) is started


def test_a_pod_that_kubelet_has_forgotten_before_the_watch_shows_its_end_is_no_lost_record(case: Case) -> None:
    pod = case.add("a")
    case.record(entry("a", 0), entry("other", 1))
    case.record(entry("other", 1))
    case.release()
    case.wait(WATCH_GRACE)
    case.delete(pod)
    case.wait(1)
    case.release()
    assert not case.usage.any_record_lost(MEMORY)


def test_of_a_lost_record_only_what_no_other_container_has_is_a_containers_own(case: Case) -> None:
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0, 1, container="first"), entry("a", 0, 1), entry("a", 5, container="side"))
    case.record()
    assert (case.former_ids("a"), case.usage.former_ids(DeviceKey("a", "side", MEMORY))) == (set(), units(5))


@pytest.mark.parametrize(("phase", "patience"), [("Running", WATCH_GRACE), ("Pending", 90.0)])
def test_an_offer_ends_an_active_pod_only_when_the_api_server_has_been_silent(phase: str, patience: float) -> None:
    """A pod that waits for its image has no process that would show that it lives."""
    for heard in (True, False):
        case = Case()
        case.add("a", phase)
        case.record(entry("a", 0))
        case.heard = heard
        case.recorder.observe_available(MEMORY, units(0))
        case.wait(patience - 0.1)
        assert case.release() == {"a"}
        assert case.usage.recorded_ids("a", MEMORY) == units(0)
        case.wait(0.1)
        assert case.release() == ({"a"} if heard or phase == "Pending" else set())
        assert (case.usage.recorded_ids("a", MEMORY) == units(0)) is heard


def test_an_offer_of_before_says_nothing_of_what_was_listed_or_granted_since(case: Case) -> None:
    pod = case.add("a")
    before = case.usage.moment
    case.record(entry("a", 0))
    case.recorder.record_grant(MEMORY, units(1), None)
    case.delete(pod)
    case.recorder.observe_available(MEMORY, units(0, 1), before)
    assert case.usage.dropped_by_kubelet() == set()
    assert case.usage.counted_ids(MEMORY) == units(0, 1)
    case.recorder.observe_available(MEMORY, units(0, 1))
    assert case.usage.dropped_by_kubelet() == {"a"}
    assert case.usage.counted_ids(MEMORY) == frozenset()


def test_ids_that_kubelets_record_has_twice_are_of_the_pod_that_had_them_first(case: Case) -> None:
    for uid in "abc":
        case.add(uid)
    case.record(entry("a", 0, 1))
    case.record(entry("a", 0, 1), entry("b", 1, 2), entry("c", 0, 1))
    twice = {uid: case.usage.recorded_twice(DeviceKey(uid, "main", MEMORY)) for uid in "abc"}
    # Of the same ids nobody can tell whose start kubelet asks about.
    assert twice == {"a": "c", "b": "a", "c": "a"}
    case.pods.event("MODIFIED", parse_local_pod(memory(NODE, 0, 2, uid="a", name="a", phase="Succeeded")))
    assert case.usage.recorded_twice(DeviceKey("b", "main", MEMORY)) is None


def test_of_a_container_without_a_process_nothing_is_kept_when_it_gets_other_ids() -> None:
    for running, kept in ((frozenset({"main"}), units(0, 3)), (frozenset(), units(3)), (None, units(0, 3))):
        case = Case()
        case.add("a")
        case.live = {"a"}
        case.running = lambda _, names=running: names  # type: ignore[misc]
        case.record(entry("a", 0), entry("a", 5, container="side"))
        case.record(entry("a", 5, container="side"))
        case.record(entry("a", 3), entry("a", 5, container="side"))
        case.release()
        assert case.usage.ids_of(MEMORY, ["GPU-00000000"]) == kept | units(5)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [("", "run://1", units(0, 3)), ("run://1", "run://1", units(0, 3)), ("run://1", "run://2", units(3)), ("", "", units(0, 3))],
)
def test_a_container_keeps_what_it_had_until_the_next_one_of_its_name_runs(
    before: str, after: str, kept: frozenset[str], case: Case
) -> None:
    """The first id that the API server tells, where none was known, is that of the container that has them."""

    def heard(container_id: str) -> None:
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": container_id}]}
        case.pods.event("MODIFIED", parse_local_pod({**pod, "status": status}))
        case.release()

    pod = case.add("a")
    case.live = {"a"}
    case.running = lambda _: frozenset({"main"})  # type: ignore[misc]
    heard(before)
    case.record(entry("a", 0), entry("a", 5, container="side"))
    case.record(entry("a", 5, container="side"))
    case.record(entry("a", 3), entry("a", 5, container="side"))
    heard(after)
    assert case.usage.ids_of(MEMORY, ["GPU-00000000"]) == kept | units(5)


def test_after_a_restart_a_containers_gpu_is_the_recorded_one_and_what_it_runs_with_is_in_use_besides(case: Case) -> None:
    key = DeviceKey("a", "main", MEMORY)
    case.add("a")
    case.recorder.restore({key: units(3, gpu=1)}, {}, {key: (units(0), None)})
    case.record(entry("a", 3, gpu=1))
    assert case.usage.gpu_uuids() == {key: {"GPU-00000001"}}
    assert case.usage.ids_of(MEMORY, ["GPU-00000000", "GPU-00000001"]) == units(0) | units(3, gpu=1)


def test_what_kubelet_starts_of_a_pod_that_has_just_gone_is_its_own_until_no_process_can_come(case: Case) -> None:
    """Its request had waited, and kubelet had not yet heard of the end: it asks nobody before such a start."""
    case.delete(case.add("gone"))
    case.record(entry("gone", 0, 1))
    assert case.release() == {"gone"}
    case.wait(MAKING)
    assert case.release() == set()


def test_what_runs_of_a_pod_that_was_gone_at_its_start_stays_its_own(case: Case) -> None:
    case.delete(case.add("gone"))
    case.record(entry("gone", 0, 1))
    case.live.add("gone")
    case.wait(MAKING)
    case.recorder.observe_available(MEMORY, units(0, 1, 2))
    assert case.release() == {"gone"}
    assert case.still_in_use(MEMORY) == {"GPU-00000000-_-0": "gone", "GPU-00000000-_-1": "gone"}


@pytest.mark.parametrize("known", ["recorded before", "by its process", "not at all"])
def test_a_pod_that_kubelet_has_admitted_and_not_started_is_a_lost_record_as_well(known: str, case: Case) -> None:
    """kubelet requires nothing for a resource that is not registered yet, and then starts no container for want of a record."""
    case.add("new", phase="Pending")
    if known == "recorded before":
        case.record(entry("new", 0, 1))
        case.record()
    case.release()
    case.wait(WATCH_GRACE + 0.1)
    if known == "by its process":
        case.live.add("new")
    case.release()
    assert case.usage.any_record_lost(MEMORY) == (known != "not at all")
    case.record(entry("new", 0, 1))
    case.release()
    assert not case.usage.any_record_lost(MEMORY)


def test_what_an_init_container_passed_on_goes_with_the_ids_that_its_container_is_left_with(case: Case) -> None:
    """Two containers of one size start without a record, and the first one gets what the other one had."""
    case.add("a")
    init = {"name": "first", "resources": {"limits": {MEMORY: "1"}}}
    case.add("b", init=[init])
    case.running = lambda _: frozenset()
    case.record(entry("a", 0, 1), entry("b", 2, 3, gpu=1), entry("b", 2, gpu=1, container="first"))
    case.record()
    case.wait(WATCH_GRACE + 0.1)
    case.release()
    case.record(entry("a", 2, 3, gpu=1))
    assert case.usage.snapshot() == {
        DeviceKey("a", "main", MEMORY): units(2, 3, gpu=1),
        DeviceKey("b", "main", MEMORY): units(0, 1),
        DeviceKey("b", "first", MEMORY): units(0),
    }

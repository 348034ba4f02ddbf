# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ids are free when their pod is over and has no process left, whatever kubelet's record has become."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer, PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.usage import START_GRACE, Usage
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.pods import inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
# For so long the watch may be behind kubelet; for so long what was given may be missing in kubelet's file.
WATCH_GRACE, GRANT_LIFETIME = 10.0, 30.0
# For so long what the watch brings after an interruption; for so long a container is in the making.
BURST, MAKING = 2.0, 30.0
NODE = inventory(16, 16)


def units(*slots: int, gpu: int = 0) -> frozenset[str]:
    return frozenset(f"GPU-{gpu:08d}-_-{slot}" for slot in slots)


def entry(pod: str, *slots: int, gpu: int = 0, container: str = "main") -> CheckpointEntry:
    return CheckpointEntry(pod, container, MEMORY, units(*slots, gpu=gpu))


def whole(pod: str, gpu: int) -> CheckpointEntry:
    return CheckpointEntry(pod, "main", GPUS, frozenset({f"GPU-{gpu:08d}"}))


class Case:
    """Usage of one node. live: UIDs with a process; looks: how often that was asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.live: set[str] = set()
        self.looks = 0
        self.heard = True
        self.pods = PodTable(lambda: self.now if self.heard else None)
        self.pods.replace([])
        self.usage = Usage(self.pods, lambda: self.now)

    def add(self, uid: str, phase: str = "Running", **changes: Any) -> dict[str, Any]:
        pod = memory(NODE, 0, 2, uid=uid, name=uid, phase=phase, **changes)
        self.pods.event("ADDED", parse_local_pod(pod))
        return pod

    def record(self, *entries: CheckpointEntry) -> None:
        self.usage.set_checkpoint(entries)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def delete(self, pod: dict[str, Any]) -> None:
        self.pods.event("DELETED", parse_local_pod(pod))

    def still_in_use(self, resource: str) -> dict[str, str]:
        """id → UID of the pod that still uses it although kubelet may offer it."""
        return {i: key[0] for key, ids in self.usage.still_in_use(resource).items() for i in ids}

    def former_ids(self, uid: str, resource: str = MEMORY) -> frozenset[str]:
        return self.usage.former_ids((uid, "main", resource))

    def pending(self, uid: str) -> PendingContainer:
        pod = self.pods.get(uid)
        assert pod is not None
        return PendingContainer(pod, pod.container_devices[0])

    def release(self) -> set[str]:
        """The UIDs of the pods that use something then."""

        def scan(uids: Set[str]) -> set[str]:
            self.looks += 1
            return self.live & uids

        self.usage.release_terminated(scan)
        return {uid for uids in self.usage.gpu_users().memory.values() for uid in uids}


def test_on_the_normal_path_nobody_looks_at_processes() -> None:
    case = Case()
    case.add("a")
    case.record(entry("a", 0, 1))
    assert case.release() == {"a"}
    assert (case.looks, case.still_in_use(MEMORY)) == (0, {})


@pytest.mark.parametrize("how", ["dropped from the file", "gone from the API", "offered again", "Failed in the API"])
def test_what_processes_hold_stays_held(how: str) -> None:
    case = Case()
    pod = case.add("a")
    case.usage.set_checkpoint((entry("a", 0, 1), entry("b", 5)))
    case.add("b")
    case.live = {"a"}
    if how == "dropped from the file":
        case.usage.set_checkpoint((entry("b", 5),))
    elif how == "gone from the API":
        case.pods.event("DELETED", parse_local_pod(pod))
    elif how == "offered again":
        # Of a pod that the API server shows as active that says nothing, as long as the API server is heard.
        case.usage.observe_available(MEMORY, {"GPU-00000000-_-1"})
        case.heard = False
        case.wait(WATCH_GRACE)
    else:
        case.pods.event("MODIFIED", parse_local_pod({**pod, "status": {"phase": "Failed"}}))
    assert case.release() == {"a", "b"}
    assert case.still_in_use(MEMORY) == {"GPU-00000000-_-0": "a", "GPU-00000000-_-1": "a"}
    assert case.usage.orphaned() == {("a", MEMORY): frozenset({"GPU-00000000-_-0", "GPU-00000000-_-1"})}
    case.live = set()
    assert case.release() == {"b"}
    assert (case.still_in_use(MEMORY), case.usage.orphaned()) == ({}, {})


def test_a_container_that_was_being_made_may_still_get_a_process() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.usage.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.release() == {"a"}
    case.now += START_GRACE / 2
    case.live = {"a"}
    assert case.release() == {"a"}
    case.live = set()
    assert case.release() == set()


def test_a_pod_that_is_gone_without_a_process_is_free_after_the_grace() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.usage.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    case.release()
    case.now += START_GRACE
    assert case.release() == set()


def test_a_pod_that_comes_again_holds_again() -> None:
    case = Case()
    pod = case.add("a")
    case.usage.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.release() == set()
    # A static pod keeps its UID, and its ids where only the API's copy of it was made anew.
    case.add("a")
    assert case.release() == {"a"}
    case.usage.set_checkpoint((entry("a", 1),))
    assert case.release() == {"a"}


def test_a_lost_record_is_told_from_a_forgotten_pod() -> None:
    case = Case()
    for uid in ("a", "b"):
        case.add(uid)
    case.live = {"a", "b"}
    case.usage.set_checkpoint((entry("a", 0), entry("b", 1)))
    case.usage.set_checkpoint((entry("b", 1),))
    case.release()
    assert case.usage.dropped_by_kubelet() == {"a"}
    assert (case.still_in_use(MEMORY), case.former_ids("a")) == ({"GPU-00000000-_-0": "a"}, set())
    assert not case.usage.any_record_lost(MEMORY)
    case.usage.set_checkpoint(())
    case.release()
    assert case.usage.any_record_lost(MEMORY)
    assert case.still_in_use(MEMORY) == {"GPU-00000000-_-0": "a", "GPU-00000000-_-1": "b"}
    assert (case.former_ids("a"), case.former_ids("b")) == (set(), units(1)), "its own again, of the one whose record was lost"
    case.usage.set_checkpoint((entry("b", 2),))
    assert case.release() == {"a", "b"}
    assert case.usage.snapshot() == {("a", "main", MEMORY): frozenset({"GPU-00000000-_-0"}), ("b", "main", MEMORY): entry("b", 2).ids}


def test_the_next_process_knows_what_this_one_knew() -> None:
    case = Case()
    case.add("a")
    case.record(entry("a", 0, 1))
    after = Case()
    after.usage.restore(case.usage.snapshot(), case.usage.names())
    assert after.usage.gpu_users().memory == {"GPU-00000000": {"a"}}
    after.usage.set_checkpoint((entry("b", 3),))
    after.add("b")
    after.live = {"a", "b"}
    assert after.release() == {"a", "b"}
    assert after.usage.name("a") == "default/a"
    after.live = {"b"}
    assert after.release() == {"b"}


# Who is over.


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_kubelets_word_that_all_containers_have_ended_needs_no_look_at_processes(kind: str) -> None:
    case = Case()
    pod = case.add("a")
    case.record(entry("a", 0), entry("other", 1))
    case.live = {"a"}
    ended = {**pod, "status": {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}}
    case.pods.event(kind, parse_local_pod(ended))
    assert (case.release(), case.looks) == ({"other"}, 0)
    # Nor is it left behind when kubelet's file drops it.
    case.record(entry("other", 1))
    assert case.still_in_use(MEMORY) == {}
    assert (case.release(), case.looks, case.still_in_use(MEMORY)) == ({"other"}, 0, {})


def test_a_container_that_has_started_again_holds_although_its_pod_was_deleted_between_two_runs_by_the_api_server() -> None:
    """kubelet has told of the end of the first run, and not yet of the second, when the pod is deleted by force."""
    case = Case()
    pod = case.add("a")
    case.record(entry("a", 0))
    case.live = {"a"}
    told = {**pod, "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}}
    told["metadata"] = {**pod["metadata"], "deletionTimestamp": "2026-11-21T11:00:00Z"}
    for kind in ("MODIFIED", "DELETED"):
        case.pods.event(kind, parse_local_pod(told))
        assert case.release() == {"a"}
    case.record()
    assert case.release() == {"a"}
    case.live = set()
    assert case.release() == set()


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_a_pod_that_nobody_has_seen_is_over_when_the_watch_must_have_shown_it(synced: bool, runs: bool) -> None:
    case = Case()
    case.add("seen")
    case.pods.synced = synced
    case.live = {"unseen"} if runs else set()
    case.record(entry("unseen", 0), entry("seen", 2))
    case.wait(WATCH_GRACE - 1)
    # A later file does not make it younger.
    case.record(entry("unseen", 0), entry("later", 1), entry("seen", 2))
    for more, over in ((1, False), (0.1, False), (BURST, False), (START_GRACE, synced)):
        case.wait(more)
        assert case.release() == ({"later", "seen"} if over and not runs else {"unseen", "later", "seen"})
    assert case.still_in_use(MEMORY) == ({min(units(0)): "unseen"} if synced and runs else {})


def test_where_all_pods_are_unseen_time_alone_brings_a_change() -> None:
    case = Case()
    case.record(entry("unseen", 0))
    assert case.release() == {"unseen"}
    case.wait(WATCH_GRACE + 1)
    assert case.release() == {"unseen"}, "the watch may just be bringing it"
    for held in ({"unseen"}, set()):
        case.wait(BURST)
        assert case.release() == held


def test_a_pod_that_had_no_process_yet_when_it_went_is_waited_for_from_then_on() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0))
    case.release()
    case.now += 60
    case.delete(pod)
    for more, held in ((0, {"a"}), (START_GRACE / 2, {"a"}), (START_GRACE / 2, set())):
        case.now += more
        assert case.release() == held


@pytest.mark.parametrize("age", [1, WATCH_GRACE])
def test_a_pod_that_kubelet_took_back_before_anybody_saw_it_may_still_get_a_process(age: float) -> None:
    case = Case()
    case.record(entry("unseen", 0))
    case.wait(age)
    case.usage.observe_available(MEMORY, units(0))
    for more, held in ((0, {"unseen"}), (START_GRACE, set())):
        case.wait(more)
        assert case.release() == held


def test_a_pod_that_ran_has_no_process_still_to_come() -> None:
    case = Case()
    pod = case.add("a", phase="Running")
    case.record(entry("a", 0))
    case.delete(pod)
    assert case.release() == set()


def test_what_was_held_before_the_start_by_pods_that_nobody_knows_gets_the_same_grace() -> None:
    case = Case()
    case.usage.restore({("old", "main", MEMORY): units(0)}, {"old": "default/old"})
    case.record(entry("other", 5))
    for more, held in ((0, {"old"}), (START_GRACE - 0.1, {"old"}), (0.1, set())):
        case.now += more
        assert case.release() - {"other"} == held


def test_only_those_that_were_doubtful_before_the_look_are_decided_by_it() -> None:
    case = Case()
    pods = {uid: case.add(uid) for uid in "ab"}
    case.record(entry("a", 0), entry("b", 1))
    case.delete(pods["a"])
    terminated = case.usage.terminated_pods()
    assert terminated == {"a"}
    # While somebody looks, another one goes.
    case.delete(pods["b"])
    case.live = {"b"}
    assert case.usage.terminated_pods() == {"a", "b"}
    case.usage.apply_process_scan(terminated, set())
    assert case.still_in_use(MEMORY) == {min(units(1)): "b"}
    assert case.release() == {"b"}
    # A look without it says nothing of it.
    case.usage.apply_process_scan(frozenset(), set())
    assert case.release() == {"b"}


def test_a_pod_that_came_back_and_goes_again_is_looked_at_afresh() -> None:
    case = Case()
    pod = case.add("static", phase="Pending")
    case.record(entry("static", 0))
    case.live = {"static"}
    case.delete(pod)
    assert case.release() == {"static"}
    case.add("static", phase="Pending")
    assert (case.release(), case.still_in_use(MEMORY)) == ({"static"}, {})
    case.live = set()
    case.delete(pod)
    assert case.release() == {"static"}, "its container may be about to start"
    case.now += START_GRACE
    assert case.release() == set()


def test_each_change_of_who_holds_is_counted_once() -> None:
    case = Case()

    def counted() -> int:
        before = case.usage.changes.count
        case.release()
        return case.usage.changes.count - before

    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0))
    assert counted() == 0
    case.delete(pod)
    # Over, running after all, ended.
    for live in (set(), {"a"}, set()):
        case.live = live
        assert counted() > 0
        assert counted() == 0


# What kubelet says.


def test_kubelet_gives_ids_to_a_pod_whose_end_was_seen_so_that_its_processes_count_again() -> None:
    case = Case()
    case.record(entry("a", 0))
    case.delete(case.add("a"))
    assert case.release() == set()
    case.live = {"a"}
    case.record(entry("a", 1))
    assert case.release() == {"a"}


def test_the_same_record_again_changes_nothing_and_new_ids_say_that_kubelet_counts_the_pod() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0))
    case.usage.observe_available(MEMORY, units(0))
    case.heard = False
    case.wait(WATCH_GRACE)
    case.release()
    assert case.usage.dropped_by_kubelet() == {"a"}
    case.record(entry("a", 0))
    assert case.usage.dropped_by_kubelet() == {"a"}
    case.record(entry("a", 0), entry("a", 3, container="second"))
    assert (case.usage.dropped_by_kubelet(), case.release()) == (set(), {"a"})
    assert case.still_in_use(MEMORY) == {}


def test_ids_of_another_resource_and_other_ids_say_nothing_of_a_pod_when_they_are_offered() -> None:
    case = Case()
    case.add("a", "Succeeded")
    case.record(entry("a", 0))
    case.usage.observe_available(GPUS, units(0))
    case.usage.observe_available(MEMORY, units(1))
    assert case.usage.dropped_by_kubelet() == set()
    case.usage.observe_available(MEMORY, units(0, 1))
    assert case.usage.dropped_by_kubelet() == {"a"}


def test_a_pod_that_loses_one_container_of_its_record_keeps_its_ids_until_its_processes_end() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.record(entry("a", 0))
    case.release()
    assert case.still_in_use(MEMORY) == {min(units(1)): "a"}
    assert case.usage.snapshot() == {("a", "main", MEMORY): units(0), ("a", "second", MEMORY): units(1)}
    assert case.usage.dropped_by_kubelet() == set(), "kubelet counts the pod"
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.release()
    assert (case.still_in_use(MEMORY), case.usage.dropped_by_kubelet()) == ({}, set())


def test_a_record_that_is_lost_twice_is_lost_twice() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0))
    case.usage.observe_available(MEMORY, units(0))
    for _ in range(2):
        case.record()
        # Not before it is known that it runs.
        assert not case.usage.any_record_lost(MEMORY)
        case.release()
        assert case.usage.any_record_lost(MEMORY)
        assert case.usage.dropped_by_kubelet() == set(), "kubelet will ask for it again"
        case.record(entry("a", 0))
        case.release()
        assert not case.usage.any_record_lost(MEMORY)
    case.record(entry("other", 5))
    assert case.usage.dropped_by_kubelet() == {"a"}, "this time it was dropped alone"


def test_a_record_that_is_back_was_never_lost() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    for entries in ((entry("a", 0, 1),), (entry("a", 0, 1), entry("b", 5))):
        case.record(*entries)
        case.record()
        case.release()
        assert case.usage.record_lost("a")
        # The same ids again: nothing else says that kubelet counts it.
        case.record(*entries)
        assert not case.usage.record_lost("a")
        assert case.release() >= {"a"}
        assert (case.still_in_use(MEMORY), case.usage.dropped_by_kubelet()) == ({}, set())


def test_of_a_lost_record_a_container_may_run_that_has_a_process_or_is_about_to() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    main, second = ("a", "main", MEMORY), ("a", "second", MEMORY)
    case.record(entry("a", 0), entry("a", 1, container="second"))

    def may_run(running: Set[str] | None) -> list[bool]:
        return [case.usage.may_run(key, lambda uid: {"a": running}[uid]) for key in (main, second)]

    # kubelet counts it, or has forgotten it: then any process may be of any of its containers.
    assert [may_run({"main"}), may_run(set()), may_run(None)] == [[True, True]] * 3
    case.record()
    case.release()
    assert [may_run({"main"}), may_run(set()), may_run(None)] == [[True, False], [False, False], [True, True]]
    case.usage.record_start([second])
    assert may_run({"main"}) == [True, True]
    case.wait(MAKING)
    assert may_run(set()) == [False, False]


@pytest.mark.parametrize("end", ["processes", "phase"])
def test_a_lost_record_is_no_loss_when_the_pod_has_ended(end: str) -> None:
    case = Case()
    pod = case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0))
    case.record()
    case.release()
    if end == "processes":
        case.live = set()
    else:
        case.pods.event("MODIFIED", parse_local_pod({**pod, "status": {"phase": "Failed"}}))
    case.release()
    assert not case.usage.any_record_lost(MEMORY)


def test_a_pod_whose_record_was_lost_may_have_its_own_ids_again_and_nobody_elses() -> None:
    case = Case()
    for uid in ("a", "b"):
        case.add(uid)
    case.live = {"a", "b"}
    case.record(entry("a", 0), whole("a", 1), entry("b", 4))
    case.record()
    case.release()
    assert case.still_in_use(MEMORY) == {min(units(0)): "a", min(units(4)): "b"}
    assert (case.former_ids("a"), case.former_ids("b")) == (units(0), units(4))
    assert (case.former_ids("a", GPUS), case.former_ids("b", GPUS)) == ({"GPU-00000001"}, set())


# What was given a moment ago.


@pytest.mark.parametrize(
    ("end", "still"),
    [
        (lambda case: case.record(entry("older", 9), entry("new", 0, 1)), False),
        (lambda case: case.record(entry("older", 9), entry("new", 0, 1, 2)), False),
        (lambda case: case.record(entry("older", 9), entry("new", 0)), True),
        (lambda case: case.record(entry("older", 9), CheckpointEntry("new", "main", GPUS, units(0, 1))), True),
        (lambda case: case.usage.observe_available(MEMORY, units(1, 5)), False),
        (lambda case: case.usage.observe_available(MEMORY, units(5)), True),
        (lambda case: case.usage.observe_available(GPUS, units(0, 1)), True),
        (lambda case: case.wait(1), False),
    ],
    ids=[
        "recorded",
        "recorded with more",
        "recorded for less",
        "recorded for whole GPUs",
        "offered",
        "others offered",
        "another resource offered",
        "time",
    ],
)
def test_what_was_given_counts_until_kubelet_records_it_or_offers_it_or_time_is_over(end: Callable[[Case], None], still: bool) -> None:
    case = Case()
    case.usage.record_grant(MEMORY, units(0, 1), None)
    case.wait(GRANT_LIFETIME - 1)
    # A file from before it.
    case.record(entry("older", 9))
    assert "" in case.usage.gpu_users().memory["GPU-00000000"]
    end(case)
    assert ("" in case.usage.gpu_users().memory["GPU-00000000"]) == still


def test_what_was_given_is_of_the_pod_that_it_was_given_to() -> None:
    case = Case()
    case.add("a")
    case.usage.record_grant(MEMORY, units(0, 1), case.pending("a"))
    case.usage.record_grant(GPUS, frozenset({"GPU-00000001"}), None)
    users = case.usage.gpu_users()
    assert (users.memory, users.whole) == ({"GPU-00000000": {"a"}}, {"GPU-00000001": ""})
    key = ("a", "main", MEMORY)
    assert case.usage.allocated() == {key}
    assert case.usage.gpu_uuids() == {key: {"GPU-00000000"}}
    assert case.usage.ids_of(MEMORY, ["GPU-00000001"]) == units(0, 1), "whatever was given just now"
    assert case.usage.ids_of(MEMORY, ["GPU-00000001"], orphaned=True) == set()
    assert case.usage.snapshot() == {}, "kubelet may reject the pod yet"
    case.now += GRANT_LIFETIME
    assert (case.usage.allocated(), case.usage.gpu_uuids()) == (set(), {})


# Who holds what.


def test_all_questions_about_pods_that_run_outlive_or_are_gone() -> None:
    case = Case()
    pods = {uid: case.add(uid) for uid in ("runs", "outlives", "done", "gpu")}
    case.live = {"outlives"}
    case.record(entry("runs", 0, 1), entry("outlives", 3, gpu=1), entry("done", 4), whole("gpu", 1))
    for uid in ("outlives", "done"):
        case.delete(pods[uid])
    case.release()
    usage = case.usage
    users = usage.gpu_users()
    assert users.memory == {"GPU-00000000": {"runs"}, "GPU-00000001": {"outlives"}}
    assert users.whole == {"GPU-00000001": "gpu"}
    assert usage.still_in_use(MEMORY) == {("outlives", "main", MEMORY): units(3, gpu=1)}
    assert usage.still_in_use(GPUS) == {}
    assert usage.orphaned() == {("outlives", MEMORY): units(3, gpu=1)}
    assert usage.ids_of(MEMORY, ["GPU-00000000"]) == units(0, 1)
    assert usage.ids_of(MEMORY, ["GPU-00000001"]) == units(3, gpu=1)
    assert usage.ids_of(GPUS, ["GPU-00000001"]) == {"GPU-00000001"}
    assert usage.ids_of(MEMORY, ["GPU-00000000", "GPU-00000001"], orphaned=True) == units(3, gpu=1)
    assert usage.units_by_gpu(NODE) == {"GPU-00000000": 2, "GPU-00000001": 16}
    assert usage.units_by_gpu(NODE, orphaned=True) == {"GPU-00000000": 0, "GPU-00000001": 1}
    assert usage.units_by_gpu(None) == {}
    assert usage.units_by_pod(NODE) == {("runs", "GPU-00000000"): 2, ("outlives", "GPU-00000001"): 1, ("gpu", "GPU-00000001"): 16}
    assert usage.units_by_pod(None) == {}
    assert usage.recorded_ids("runs", MEMORY) == units(0, 1)
    assert usage.recorded_ids("gpu", GPUS) == {"GPU-00000001"}
    nothing = [("runs", GPUS), ("outlives", MEMORY), ("done", MEMORY), ("nobody", MEMORY)]
    assert {usage.recorded_ids(uid, resource) for uid, resource in nothing} == {frozenset()}
    assert usage.gpu_uuids() == {
        ("runs", "main", MEMORY): {"GPU-00000000"},
        ("outlives", "main", MEMORY): {"GPU-00000001"},
        ("gpu", "main", GPUS): {"GPU-00000001"},
    }
    assert usage.snapshot() == {
        ("runs", "main", MEMORY): units(0, 1),
        ("outlives", "main", MEMORY): units(3, gpu=1),
        ("gpu", "main", GPUS): {"GPU-00000001"},
    }
    assert usage.allocated() == {*usage.snapshot(), ("done", "main", MEMORY)}, "kubelet's file still has it"
    assert usage.names() == {uid: f"default/{uid}" for uid in ("runs", "outlives", "gpu")}
    assert [usage.name(uid) for uid in ("runs", "outlives", "done", "nobody")] == ["default/runs", "default/outlives", "default/done", ""]


def test_orphaned_containers_of_one_pod_are_one_answer() -> None:
    case = Case()
    pod = case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.delete(pod)
    case.release()
    assert case.usage.orphaned() == {("a", MEMORY): units(0, 1)}
    assert case.usage.ids_of(MEMORY, ["GPU-00000000"], orphaned=True) == units(0, 1)


def test_a_container_that_has_other_ids_now_is_on_their_gpu() -> None:
    case = Case()
    case.add("a")
    case.record(entry("a", 0))
    case.record(entry("a", 5, gpu=1))
    assert case.usage.gpu_users().memory == {"GPU-00000001": {"a"}}


def test_a_name_is_kept_as_long_as_something_is_held_under_it() -> None:
    case = Case()
    case.record(entry("a", 0))
    assert case.usage.names() == {}
    pod = case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0, 1))
    case.delete(pod)
    case.release()
    # More pods come and go than are remembered.
    case.now += 60
    for number in range(1001):
        case.pods.event("DELETED", replace(parse_local_pod(pod), uid=f"u{number}"))
    assert case.pods.removed("a") is None
    assert (case.usage.name("a"), case.usage.names()) == ("default/a", {"a": "default/a"})
    case.live = set()
    case.release()
    assert case.usage.names() == {}


# While the API server is not heard.


def test_a_pod_that_the_watch_could_not_show_is_held_for_as_long_as_the_watch_is_interrupted() -> None:
    case = Case()
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


def test_what_an_old_file_lists_and_the_first_list_does_not_is_over_at_once() -> None:
    case = Case()
    case.usage.set_checkpoint((entry("gone before the start", 0),), age=WATCH_GRACE + 1)
    for held in ({"gone before the start"}, {"gone before the start"}, set()):
        assert case.release() == held
        case.wait(BURST)


def test_kubelets_own_offer_ends_it_at_once_whether_the_api_server_is_heard_or_not() -> None:
    case = Case()
    case.heard = False
    case.record(entry("unseen", 0))
    case.usage.observe_available(MEMORY, units(0))
    assert case.release() == {"unseen"}
    case.wait(START_GRACE)
    assert case.release() == set()


def test_what_a_lost_file_listed_is_held_without_a_process_for_as_long_as_the_api_server_shows_the_pod() -> None:
    case = Case()
    pod = case.add("pulls its image", phase="Pending")
    case.record(entry("pulls its image", 0))
    case.record()
    case.wait(600)
    assert case.release() == {"pulls its image"}
    case.delete(pod)
    case.release()
    case.wait(START_GRACE)
    assert case.release() == set()


def test_what_a_pod_had_is_forgotten_when_kubelet_and_its_processes_are_done_with_it() -> None:
    case = Case()
    case.add("a")
    pod = case.add("b")
    case.record(entry("a", 0), entry("b", 1))
    case.delete(pod)
    case.live = {"b"}
    case.record(entry("a", 0))
    assert case.release() == {"a", "b"}
    assert (case.usage.was_allocated("b"), case.usage.keys_of("b")) == (True, [("b", "main", MEMORY)])
    case.live = set()
    assert case.release() == {"a"}
    assert (case.usage.was_allocated("b"), case.usage.keys_of("b")) == (False, [])
    assert case.usage.keys_of("a") == [("a", "main", MEMORY)]


def test_memory_and_whole_gpus_of_one_pod_are_told_apart() -> None:
    case = Case()
    case.record(entry("a", 0, 1), CheckpointEntry("a", "second", GPUS, frozenset({"GPU-00000001"})), entry("b", 7))
    assert case.usage.memory_of("a") == {"GPU-00000000": 2}
    assert case.usage.units_by_pod(NODE) == {("a", "GPU-00000000"): 2, ("a", "GPU-00000001"): 16, ("b", "GPU-00000000"): 1}
    assert case.usage.containers_with(MEMORY, units(0, 1)) == [("a", "main", MEMORY)]
    assert case.usage.containers_with(GPUS, units(0, 1)) == []
    assert case.usage.containers_with(MEMORY, units(0)) == []


def test_a_pod_is_called_by_the_best_that_is_known_of_it() -> None:
    case = Case()
    case.add("a")
    case.record(entry("a", 0), entry("unseen", 1))
    assert case.usage.pod_name("a") == "pod default/a"
    assert "UID unseen" in case.usage.pod_name("unseen")
    assert "just now" in case.usage.pod_name("")


def test_what_another_device_plugin_gave_shifts_units_between_gpus() -> None:
    """By the ids that kubelet chose they have GPU 0; by its index they have another GPU's memory."""
    case = Case()
    case.usage.gpus_by_index = lambda: NODE.by_index
    first, second = (gpu.uuid for gpu in NODE.gpus)
    pods = {uid: case.add(uid) for uid in ("moved", "same", "ours")}
    moved, same = (
        CheckpointEntry(uid, "main", MEMORY, ids, index) for uid, ids, index in (("moved", units(0, 1), 1), ("same", units(2), 0))
    )
    case.record(moved, same, entry("ours", 3))
    keys = [("gone", "main", MEMORY), ("ours", "main", MEMORY), ("moved", "main", MEMORY)]
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


def test_a_start_that_was_asked_for_is_waited_for() -> None:
    case = Case()
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"waiting": {}}, "containerID": "run://1"}]}
    pod = case.add("a")
    case.pods.event("MODIFIED", parse_local_pod({**pod, "status": status}))
    case.record(entry("a", 0))
    case.usage.record_start([("a", "main", MEMORY)])
    case.delete({**pod, "status": status})
    assert case.release() == {"a"}, "its container may be in the making"
    case.wait(MAKING - 1)
    assert case.release() == {"a"}
    case.live = {"a"}
    assert case.release() == {"a"}
    case.live = set()
    assert case.release() == set(), "it has come and gone"


def test_a_start_of_a_pod_that_the_watch_has_not_shown_is_waited_for() -> None:
    case = Case()
    case.record(entry("a", 0))
    case.usage.record_start([("a", "main", MEMORY)])
    assert case.usage.is_starting(("a", "main", MEMORY))
    case.wait(MAKING)
    assert not case.usage.is_starting(("a", "main", MEMORY))


def test_a_start_that_was_reported_is_not_waited_for() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0))
    case.usage.record_start([("a", "main", MEMORY)])
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": "run://1"}]}
    case.delete({**pod, "status": running})
    assert case.release() == set()


def test_a_start_of_one_of_two_with_the_same_ids_is_reported_by_either() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0, container="first"), entry("a", 0))
    case.usage.record_start([("a", "first", MEMORY), ("a", "main", MEMORY)])
    assert case.usage.is_starting(("a", "main", MEMORY))
    running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "containerID": "run://1"}]}
    case.delete({**pod, "status": running})
    assert not case.usage.is_starting(("a", "first", MEMORY))
    assert case.release() == set()


def test_a_start_of_what_was_released_holds_it_again() -> None:
    case = Case()
    case.delete(case.add("a"))
    case.record(entry("a", 0))
    assert case.release() == set()
    case.usage.record_start([("a", "main", MEMORY)])
    assert case.release() == {"a"}
    assert case.still_in_use(MEMORY) == {min(units(0)): "a"}
    assert case.usage.is_starting(("a", "main", MEMORY))
    case.wait(MAKING)
    assert not case.usage.is_starting(("a", "main", MEMORY))
    assert case.release() == set()


# What kubelet's file should list.


@pytest.mark.parametrize("known", ["lost with the file", "never had ids", "lost while no plugin looked"])
def test_a_pod_that_runs_and_is_in_no_record_is_a_lost_record_when_both_have_had_time_to_agree(known: str) -> None:
    case = Case()
    pod = case.add("crash loop without a sandbox")
    if known == "lost with the file":
        case.record(entry("crash loop without a sandbox", 0))
    elif known == "lost while no plugin looked":
        case.usage.restore({("crash loop without a sandbox", "main", MEMORY): units(0)}, {})
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
def test_a_pod_that_is_not_past_its_init_containers_is_a_lost_record_when_one_was_started(container: dict[str, Any], started: bool) -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    pod["status"]["initContainerStatuses"] = [{"name": "first", **container}]
    case.pods.event("MODIFIED", parse_local_pod(pod))
    case.record()
    for _ in range(2):
        case.release()
        case.wait(WATCH_GRACE + 1)
    assert case.usage.any_record_lost(MEMORY) is started


def test_a_pod_that_kubelet_has_forgotten_before_the_watch_shows_its_end_is_no_lost_record() -> None:
    case = Case()
    pod = case.add("a")
    case.record(entry("a", 0), entry("other", 1))
    case.record(entry("other", 1))
    case.release()
    case.wait(WATCH_GRACE)
    case.delete(pod)
    case.wait(1)
    case.release()
    assert not case.usage.any_record_lost(MEMORY)


def test_of_a_lost_record_only_what_no_other_container_has_is_a_containers_own() -> None:
    case = Case()
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0, 1, container="first"), entry("a", 0, 1), entry("a", 5, container="side"))
    case.record()
    assert (case.former_ids("a"), case.usage.former_ids(("a", "side", MEMORY))) == (set(), units(5))


@pytest.mark.parametrize(("phase", "patience"), [("Running", WATCH_GRACE), ("Pending", 90.0)])
def test_an_offer_ends_an_active_pod_only_when_the_api_server_has_been_silent(phase: str, patience: float) -> None:
    """A pod that waits for its image has no process that would show that it lives."""
    for heard in (True, False):
        case = Case()
        case.add("a", phase)
        case.record(entry("a", 0))
        case.heard = heard
        case.usage.observe_available(MEMORY, units(0))
        case.wait(patience - 0.1)
        assert case.release() == {"a"}
        assert case.usage.recorded_ids("a", MEMORY) == units(0)
        case.wait(0.1)
        assert case.release() == ({"a"} if heard or phase == "Pending" else set())
        assert (case.usage.recorded_ids("a", MEMORY) == units(0)) is heard


def test_an_offer_of_before_says_nothing_of_what_was_listed_or_granted_since() -> None:
    case = Case()
    pod = case.add("a")
    before = case.usage.moment
    case.record(entry("a", 0))
    case.usage.record_grant(MEMORY, units(1), None)
    case.delete(pod)
    case.usage.observe_available(MEMORY, units(0, 1), before)
    assert case.usage.dropped_by_kubelet() == set()
    assert case.usage.counted_ids(MEMORY) == units(0, 1)
    case.usage.observe_available(MEMORY, units(0, 1))
    assert case.usage.dropped_by_kubelet() == {"a"}
    assert case.usage.counted_ids(MEMORY) == frozenset()


def test_ids_that_kubelets_record_has_twice_are_of_the_pod_that_had_them_first() -> None:
    case = Case()
    for uid in "abc":
        case.add(uid)
    case.record(entry("a", 0, 1))
    case.record(entry("a", 0, 1), entry("b", 1, 2), entry("c", 0, 1))
    twice = {uid: case.usage.recorded_twice((uid, "main", MEMORY)) for uid in "abc"}
    # Of the same ids nobody can tell whose start kubelet asks about.
    assert twice == {"a": "c", "b": "a", "c": "a"}
    case.pods.event("MODIFIED", parse_local_pod(memory(NODE, 0, 2, uid="a", name="a", phase="Succeeded")))
    assert case.usage.recorded_twice(("b", "main", MEMORY)) is None


def test_of_a_container_without_a_process_nothing_is_kept_when_it_gets_other_ids() -> None:
    for running, kept in ((frozenset({"main"}), units(0, 3)), (frozenset(), units(3)), (None, units(0, 3))):
        case = Case()
        case.add("a")
        case.live = {"a"}
        case.usage.running = lambda _, names=running: names  # type: ignore[misc]
        case.record(entry("a", 0), entry("a", 5, container="side"))
        case.record(entry("a", 5, container="side"))
        case.record(entry("a", 3), entry("a", 5, container="side"))
        case.release()
        assert case.usage.ids_of(MEMORY, ["GPU-00000000"]) == kept | units(5)

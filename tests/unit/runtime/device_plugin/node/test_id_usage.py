# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ids are free when their pod is over and has no process left, whatever kubelet's record has become."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

import pytest

from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import parse_local_pod
from gpushare_runtime.device_plugin.node.pod_state import START_GRACE
from unit.fakes.runtime.device_plugin.id_usage import BURST, GRANT_LIFETIME, MAKING, NODE, WATCH_GRACE, Case, entry, units, whole

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def test_on_the_normal_path_nobody_looks_at_processes(case: Case) -> None:
    case.add("a")
    case.record(entry("a", 0, 1))
    assert case.release() == {"a"}
    assert (case.looks, case.still_in_use(MEMORY)) == (0, {})


@pytest.mark.parametrize("how", ["dropped from the file", "gone from the API", "offered again", "Failed in the API"])
def test_what_processes_hold_stays_held(how: str, case: Case) -> None:
    pod = case.add("a")
    case.recorder.set_checkpoint((entry("a", 0, 1), entry("b", 5)))
    case.add("b")
    case.live = {"a"}
    if how == "dropped from the file":
        case.recorder.set_checkpoint((entry("b", 5),))
    elif how == "gone from the API":
        case.pods.event("DELETED", parse_local_pod(pod))
    elif how == "offered again":
        # Of a pod that the API server shows as active that says nothing, as long as the API server is heard.
        case.recorder.observe_available(MEMORY, {"GPU-00000000-_-1"})
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


def test_a_container_that_was_being_made_may_still_get_a_process(case: Case) -> None:
    pod = case.add("a", phase="Pending")
    case.recorder.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.release() == {"a"}
    case.now += START_GRACE / 2
    case.live = {"a"}
    assert case.release() == {"a"}
    case.live = set()
    assert case.release() == set()


def test_a_pod_that_is_gone_without_a_process_is_free_after_the_grace(case: Case) -> None:
    pod = case.add("a", phase="Pending")
    case.recorder.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    case.release()
    case.now += START_GRACE
    assert case.release() == set()


def test_a_pod_that_comes_again_holds_again(case: Case) -> None:
    pod = case.add("a")
    case.recorder.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.release() == set()
    # A static pod keeps its UID, and its ids where only the API's copy of it was made anew.
    case.add("a")
    assert case.release() == {"a"}
    case.recorder.set_checkpoint((entry("a", 1),))
    assert case.release() == {"a"}


def test_a_lost_record_is_told_from_a_forgotten_pod(case: Case) -> None:
    for uid in ("a", "b"):
        case.add(uid)
    case.live = {"a", "b"}
    case.recorder.set_checkpoint((entry("a", 0), entry("b", 1)))
    case.recorder.set_checkpoint((entry("b", 1),))
    case.release()
    assert case.usage.dropped_by_kubelet() == {"a"}
    assert (case.still_in_use(MEMORY), case.former_ids("a")) == ({"GPU-00000000-_-0": "a"}, set())
    assert not case.usage.any_record_lost(MEMORY)
    case.recorder.set_checkpoint(())
    case.release()
    assert case.usage.any_record_lost(MEMORY)
    assert case.still_in_use(MEMORY) == {"GPU-00000000-_-0": "a", "GPU-00000000-_-1": "b"}
    assert (case.former_ids("a"), case.former_ids("b")) == (set(), units(1)), "its own again, of the one whose record was lost"
    case.recorder.set_checkpoint((entry("b", 2),))
    assert case.release() == {"a", "b"}
    assert case.usage.snapshot() == {
        DeviceKey("a", "main", MEMORY): frozenset({"GPU-00000000-_-0"}),
        DeviceKey("b", "main", MEMORY): entry("b", 2).ids,
    }


def test_the_next_process_knows_what_this_one_knew(case: Case) -> None:
    case.add("a")
    case.record(entry("a", 0, 1))
    after = Case()
    after.recorder.restore(case.usage.snapshot(), case.usage.names())
    assert after.usage.gpu_users().memory == {"GPU-00000000": {"a"}}
    after.recorder.set_checkpoint((entry("b", 3),))
    after.add("b")
    after.live = {"a", "b"}
    assert after.release() == {"a", "b"}
    assert after.usage.name("a") == "default/a"
    after.live = {"b"}
    assert after.release() == {"b"}


# Who is over.


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_kubelets_word_that_all_containers_have_ended_needs_no_look_at_processes(kind: str, case: Case) -> None:
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


def test_a_container_that_has_started_again_holds_although_its_pod_was_deleted_between_two_runs_by_the_api_server(case: Case) -> None:
    """kubelet has told of the end of the first run, and not yet of the second, when the pod is deleted by force."""
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
def test_a_pod_that_nobody_has_seen_is_over_when_the_watch_must_have_shown_it(synced: bool, runs: bool, case: Case) -> None:
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


def test_where_all_pods_are_unseen_time_alone_brings_a_change(case: Case) -> None:
    case.record(entry("unseen", 0))
    assert case.release() == {"unseen"}
    case.wait(WATCH_GRACE + 1)
    assert case.release() == {"unseen"}, "the watch may just be bringing it"
    for held in ({"unseen"}, set()):
        case.wait(BURST)
        assert case.release() == held


def test_a_pod_that_had_no_process_yet_when_it_went_is_waited_for_from_then_on(case: Case) -> None:
    pod = case.add("a", phase="Pending")
    case.record(entry("a", 0))
    case.release()
    case.now += 60
    case.delete(pod)
    for more, held in ((0, {"a"}), (START_GRACE / 2, {"a"}), (START_GRACE / 2, set())):
        case.now += more
        assert case.release() == held


@pytest.mark.parametrize("age", [1, WATCH_GRACE])
def test_a_pod_that_kubelet_took_back_before_anybody_saw_it_may_still_get_a_process(age: float, case: Case) -> None:
    case.record(entry("unseen", 0))
    case.wait(age)
    case.recorder.observe_available(MEMORY, units(0))
    for more, held in ((0, {"unseen"}), (START_GRACE, set())):
        case.wait(more)
        assert case.release() == held


def test_a_pod_that_ran_has_no_process_still_to_come(case: Case) -> None:
    pod = case.add("a", phase="Running")
    case.record(entry("a", 0))
    case.delete(pod)
    assert case.release() == set()


def test_what_was_held_before_the_start_by_pods_that_nobody_knows_gets_the_same_grace(case: Case) -> None:
    case.recorder.restore({DeviceKey("old", "main", MEMORY): units(0)}, {"old": "default/old"})
    case.record(entry("other", 5))
    for more, held in ((0, {"old"}), (START_GRACE - 0.1, {"old"}), (0.1, set())):
        case.now += more
        assert case.release() - {"other"} == held


@pytest.mark.parametrize(("age", "held"), [(WATCH_GRACE + 1, set()), (WATCH_GRACE - 1, {"old"})])
def test_a_pod_of_the_process_before_has_gone_if_the_first_list_lacks_it_and_is_late_enough(age: float, held: set[str], case: Case) -> None:
    # The API server says nothing after its first list, and kubelet has forgotten all pods at once.
    listed = case.now
    case.pods.last_contact = lambda: listed
    case.recorder.restore({DeviceKey("old", "main", MEMORY): units(0)}, {}, age=age)
    case.record()
    for seconds in (0.0, BURST, START_GRACE):
        case.wait(seconds)
        left = case.release()
    assert left == held


def test_only_those_that_were_doubtful_before_the_look_are_decided_by_it(case: Case) -> None:
    pods = {uid: case.add(uid) for uid in "ab"}
    case.record(entry("a", 0), entry("b", 1))
    case.delete(pods["a"])
    terminated = case.recorder.detect_terminated()
    assert terminated == {"a"}
    # While somebody looks, another one goes.
    case.delete(pods["b"])
    case.live = {"b"}
    assert case.recorder.detect_terminated() == {"a", "b"}
    case.recorder.apply_process_scan(terminated, set())
    assert case.still_in_use(MEMORY) == {min(units(1)): "b"}
    assert case.release() == {"b"}
    # A look without it says nothing of it.
    case.recorder.apply_process_scan(frozenset(), set())
    assert case.release() == {"b"}


def test_a_pod_that_came_back_and_goes_again_is_looked_at_afresh(case: Case) -> None:
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


def test_each_change_of_who_holds_is_counted_once(case: Case) -> None:
    def counted() -> int:
        before = case.pods.changes.count
        case.release()
        return case.pods.changes.count - before

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


def test_kubelet_gives_ids_to_a_pod_whose_end_was_seen_so_that_its_processes_count_again(case: Case) -> None:
    case.record(entry("a", 0))
    case.delete(case.add("a"))
    assert case.release() == set()
    case.live = {"a"}
    case.record(entry("a", 1))
    assert case.release() == {"a"}


def test_the_same_record_again_changes_nothing_and_new_ids_say_that_kubelet_counts_the_pod(case: Case) -> None:
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0))
    case.recorder.observe_available(MEMORY, units(0))
    case.heard = False
    case.wait(WATCH_GRACE)
    case.release()
    assert case.usage.dropped_by_kubelet() == {"a"}
    case.record(entry("a", 0))
    assert case.usage.dropped_by_kubelet() == {"a"}
    case.record(entry("a", 0), entry("a", 3, container="second"))
    assert (case.usage.dropped_by_kubelet(), case.release()) == (set(), {"a"})
    assert case.still_in_use(MEMORY) == {}


def test_ids_of_another_resource_and_other_ids_say_nothing_of_a_pod_when_they_are_offered(case: Case) -> None:
    case.add("a", "Succeeded")
    case.record(entry("a", 0))
    case.recorder.observe_available(GPUS, units(0))
    case.recorder.observe_available(MEMORY, units(1))
    assert case.usage.dropped_by_kubelet() == set()
    case.recorder.observe_available(MEMORY, units(0, 1))
    assert case.usage.dropped_by_kubelet() == {"a"}


def test_a_pod_that_loses_one_container_of_its_record_keeps_its_ids_until_its_processes_end(case: Case) -> None:
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.record(entry("a", 0))
    case.release()
    assert case.still_in_use(MEMORY) == {min(units(1)): "a"}
    assert case.usage.snapshot() == {DeviceKey("a", "main", MEMORY): units(0), DeviceKey("a", "second", MEMORY): units(1)}
    assert case.usage.dropped_by_kubelet() == set(), "kubelet counts the pod"
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.release()
    assert (case.still_in_use(MEMORY), case.usage.dropped_by_kubelet()) == ({}, set())


def test_a_record_that_is_lost_twice_is_lost_twice(case: Case) -> None:
    case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0))
    case.recorder.observe_available(MEMORY, units(0))
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


def test_a_record_that_is_back_was_never_lost(case: Case) -> None:
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


def test_of_a_lost_record_a_container_may_run_that_has_a_process_or_is_about_to(case: Case) -> None:
    case.add("a")
    case.live = {"a"}
    main, second = DeviceKey("a", "main", MEMORY), DeviceKey("a", "second", MEMORY)
    case.record(entry("a", 0), entry("a", 1, container="second"))

    def may_run(running: Set[str] | None) -> list[bool]:
        return [case.usage.may_run(key, lambda uid: {"a": running}[uid]) for key in (main, second)]

    # kubelet counts it, or has forgotten it: then any process may be of any of its containers.
    assert [may_run({"main"}), may_run(set()), may_run(None)] == [[True, True]] * 3
    case.record()
    case.release()
    assert [may_run({"main"}), may_run(set()), may_run(None)] == [[True, False], [False, False], [True, True]]
    case.recorder.record_start([second])
    assert may_run({"main"}) == [True, True]
    case.wait(MAKING)
    assert may_run(set()) == [False, False]


@pytest.mark.parametrize("end", ["processes", "phase"])
def test_a_lost_record_is_no_loss_when_the_pod_has_ended(end: str, case: Case) -> None:
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


def test_a_pod_whose_record_was_lost_may_have_its_own_ids_again_and_nobody_elses(case: Case) -> None:
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
        (lambda case: case.recorder.observe_available(MEMORY, units(1, 5)), False),
        (lambda case: case.recorder.observe_available(MEMORY, units(5)), True),
        (lambda case: case.recorder.observe_available(GPUS, units(0, 1)), True),
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
def test_what_was_given_counts_until_kubelet_records_it_or_offers_it_or_time_is_over(
    end: Callable[[Case], None], still: bool, case: Case
) -> None:
    case.recorder.record_grant(MEMORY, units(0, 1), None)
    case.wait(GRANT_LIFETIME - 1)
    # A file from before it.
    case.record(entry("older", 9))
    assert "" in case.usage.gpu_users().memory["GPU-00000000"]
    end(case)
    assert ("" in case.usage.gpu_users().memory["GPU-00000000"]) == still


def test_what_was_given_is_of_the_pod_that_it_was_given_to(case: Case) -> None:
    case.add("a")
    case.recorder.record_grant(MEMORY, units(0, 1), case.pending("a"))
    case.recorder.record_grant(GPUS, frozenset({"GPU-00000001"}), None)
    users = case.usage.gpu_users()
    assert (users.memory, users.whole) == ({"GPU-00000000": {"a"}}, {"GPU-00000001": ""})
    key = DeviceKey("a", "main", MEMORY)
    assert case.usage.allocated() == {key}
    assert case.usage.gpu_uuids() == {key: {"GPU-00000000"}}
    assert case.usage.ids_of(MEMORY, ["GPU-00000001"]) == units(0, 1), "whatever was given just now"
    assert case.usage.ids_of(MEMORY, ["GPU-00000001"], orphaned=True) == set()
    assert case.usage.snapshot() == {}, "kubelet may reject the pod yet"
    case.now += GRANT_LIFETIME
    assert (case.usage.allocated(), case.usage.gpu_uuids()) == (set(), {})


# Who holds what.


def test_all_questions_about_pods_that_run_outlive_or_are_gone(case: Case) -> None:
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
    assert usage.still_in_use(MEMORY) == {DeviceKey("outlives", "main", MEMORY): units(3, gpu=1)}
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
        DeviceKey("runs", "main", MEMORY): {"GPU-00000000"},
        DeviceKey("outlives", "main", MEMORY): {"GPU-00000001"},
        DeviceKey("gpu", "main", GPUS): {"GPU-00000001"},
    }
    assert usage.snapshot() == {
        DeviceKey("runs", "main", MEMORY): units(0, 1),
        DeviceKey("outlives", "main", MEMORY): units(3, gpu=1),
        DeviceKey("gpu", "main", GPUS): {"GPU-00000001"},
    }
    assert usage.allocated() == {*usage.snapshot(), DeviceKey("done", "main", MEMORY)}, "kubelet's file still has it"
    assert usage.names() == {uid: f"default/{uid}" for uid in ("runs", "outlives", "gpu")}
    assert [usage.name(uid) for uid in ("runs", "outlives", "done", "nobody")] == ["default/runs", "default/outlives", "default/done", ""]


def test_orphaned_containers_of_one_pod_are_one_answer(case: Case) -> None:
    pod = case.add("a")
    case.live = {"a"}
    case.record(entry("a", 0), entry("a", 1, container="second"))
    case.delete(pod)
    case.release()
    assert case.usage.orphaned() == {("a", MEMORY): units(0, 1)}
    assert case.usage.ids_of(MEMORY, ["GPU-00000000"], orphaned=True) == units(0, 1)


def test_a_container_that_has_other_ids_now_is_on_their_gpu(case: Case) -> None:
    case.add("a")
    case.record(entry("a", 0))
    case.record(entry("a", 5, gpu=1))
    assert case.usage.gpu_users().memory == {"GPU-00000001": {"a"}}


def test_a_name_is_kept_as_long_as_something_is_held_under_it(case: Case) -> None:
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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ids are free when their pod is over and has no process left, whatever kubelet's record has become."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.holders import START_GRACE, Holders
from gpushare_runtime.device_plugin.pods import PodTable, parse_local_pod
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.pods import inventory

MEMORY = "aliyun.com/gpu-mem"
NODE = inventory(16, 16)


def entry(pod: str, *slots: int, card: int = 0) -> Entry:
    return Entry(pod, "main", MEMORY, frozenset(f"GPU-{card:08d}-_-{slot}" for slot in slots))


class Case:
    """Holders of one node. live: UIDs with a process; looks: how often that was asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.live: set[str] = set()
        self.looks = 0
        self.pods = PodTable()
        self.pods.replace([])
        self.holders = Holders(self.pods, lambda: self.now)

    def add(self, uid: str, phase: str = "Running", **changes: Any) -> dict[str, Any]:
        pod = memory(NODE, 0, 2, uid=uid, name=uid, phase=phase, **changes)
        self.pods.event("ADDED", parse_local_pod(pod))
        return pod

    def settle(self) -> set[str]:
        """The UIDs of the pods that hold something then."""

        def look() -> set[str]:
            self.looks += 1
            return self.live

        self.holders.settle(look)
        return {uid for uids in self.holders.held().memory.values() for uid in uids}


def test_on_the_normal_path_nobody_looks_at_processes() -> None:
    case = Case()
    case.add("a")
    case.holders.set_checkpoint((entry("a", 0, 1),))
    assert case.settle() == {"a"}
    assert (case.looks, case.holders.leaving(MEMORY)) == (0, {})


@pytest.mark.parametrize("how", ["dropped from the file", "gone from the API", "offered again", "Failed in the API"])
def test_what_processes_hold_stays_held(how: str) -> None:
    case = Case()
    pod = case.add("a")
    case.holders.set_checkpoint((entry("a", 0, 1), entry("b", 5)))
    case.add("b")
    case.live = {"a"}
    if how == "dropped from the file":
        case.holders.set_checkpoint((entry("b", 5),))
    elif how == "gone from the API":
        case.pods.event("DELETED", parse_local_pod(pod))
    elif how == "offered again":
        case.holders.free(MEMORY, {"GPU-00000000-_-1"})
    else:
        case.pods.event("MODIFIED", parse_local_pod({**pod, "status": {"phase": "Failed"}}))
    assert case.settle() == {"a", "b"}
    assert case.holders.leaving(MEMORY) == {"GPU-00000000-_-0": "a", "GPU-00000000-_-1": "a"}
    assert case.holders.outlived() == {("a", MEMORY): frozenset({"GPU-00000000-_-0", "GPU-00000000-_-1"})}
    case.live = set()
    assert case.settle() == {"b"}
    assert (case.holders.leaving(MEMORY), case.holders.outlived()) == ({}, {})


def test_a_container_that_was_being_made_may_still_get_a_process() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.holders.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.settle() == {"a"}
    case.now += START_GRACE / 2
    case.live = {"a"}
    assert case.settle() == {"a"}
    case.live = set()
    assert case.settle() == set()


def test_a_pod_that_is_gone_without_a_process_is_free_after_the_grace() -> None:
    case = Case()
    pod = case.add("a", phase="Pending")
    case.holders.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    case.settle()
    case.now += START_GRACE
    assert case.settle() == set()


def test_a_pod_that_comes_again_holds_again() -> None:
    case = Case()
    pod = case.add("a")
    case.holders.set_checkpoint((entry("a", 0),))
    case.pods.event("DELETED", parse_local_pod(pod))
    assert case.settle() == set()
    # A static pod keeps its UID.
    case.add("a")
    case.holders.set_checkpoint((entry("a", 1),))
    assert case.settle() == {"a"}


def test_a_lost_record_is_told_from_a_forgotten_pod() -> None:
    case = Case()
    for uid in ("a", "b"):
        case.add(uid)
    case.live = {"a", "b"}
    case.holders.set_checkpoint((entry("a", 0), entry("b", 1)))
    case.holders.set_checkpoint((entry("b", 1),))
    case.settle()
    assert case.holders.forgotten() == {"a"}
    assert not case.holders.record_lost()
    case.holders.set_checkpoint(())
    case.settle()
    assert case.holders.record_lost()
    assert case.holders.leaving(MEMORY, but="b") == {"GPU-00000000-_-0": "a"}
    case.holders.set_checkpoint((entry("b", 2),))
    assert case.settle() == {"a", "b"}
    assert case.holders.snapshot() == {("a", "main", MEMORY): frozenset({"GPU-00000000-_-0"}), ("b", "main", MEMORY): entry("b", 2).ids}


def test_the_next_process_knows_what_this_one_knew() -> None:
    case = Case()
    case.add("a")
    case.holders.set_checkpoint((entry("a", 0, 1),))
    after = Case()
    after.holders.restore(case.holders.snapshot(), case.holders.names())
    after.holders.set_checkpoint((entry("b", 3),))
    after.add("b")
    after.live = {"a", "b"}
    assert after.settle() == {"a", "b"}
    assert after.holders.name("a") == "default/a"
    after.live = {"b"}
    assert after.settle() == {"b"}

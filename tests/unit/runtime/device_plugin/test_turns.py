# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""This node's pods, and which of their containers kubelet is asking for."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.device_plugin.pods import Ask, PodTable, parse_local_pod
from gpushare_runtime.device_plugin.turns import find_turn
from unit.runtime.device_plugin.local_pods import bound, memory
from unit.runtime.pods import container, inventory

MEMORY, CARDS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 16)


def table(*pods: dict[str, Any]) -> PodTable:
    made = PodTable()
    made.replace([])
    for pod in pods:
        made.event("ADDED", parse_local_pod(pod))
    return made


def names(pods: PodTable) -> list[str]:
    return [pod.name for pod in pods]


def asked(pods: PodTable, size: int, *served: tuple[str, str, str], late: bool = False) -> str | None:
    turn = find_turn(pods, served, MEMORY, size, late=late)
    return f"{turn.pod.name}/{turn.ask.container}" if turn else None


def test_the_order_is_that_of_arrival_also_through_changes() -> None:
    pods = table(memory(NODE, 0, 1, name="b"), memory(NODE, 0, 1, name="a"))
    pods.event("MODIFIED", parse_local_pod(memory(NODE, 0, 1, name="b", uid=next(iter(pods)).uid, phase="Running")))
    assert names(pods) == ["b", "a"]


def test_a_list_is_taken_by_age_and_what_is_known_keeps_its_place() -> None:
    known = memory(NODE, 0, 1, name="known", created="2026-11-21T12:00:00Z")
    pods = table(known, memory(NODE, 0, 1, name="gone"))
    younger = memory(NODE, 0, 1, name="younger", created="2026-11-21T11:00:00Z")
    older = memory(NODE, 0, 1, name="older", created="2026-11-21T10:00:00Z")
    pods.replace([parse_local_pod(pod) for pod in (younger, older, known)])
    assert names(pods) == ["known", "older", "younger"]


def test_a_static_pod_has_kubelets_uid() -> None:
    pod = parse_local_pod(memory(None, 0, 1, annotations={"kubernetes.io/config.mirror": "abc"}))
    assert (pod.uid, pod.static) == ("abc", True)


def test_init_containers_are_asked_for_first_and_the_allocation_is_of_containers() -> None:
    pod = parse_local_pod(bound(NODE, {0: {1: 2}, -1: {1: 1}}, container("main", mem=2), init=[container("first", mem=3)]))
    assert pod.asks == (Ask("first", MEMORY, 3, {1: 3}), Ask("main", MEMORY, 2, {1: 2}))


def test_both_resources_in_one_container_are_two_questions() -> None:
    pod = parse_local_pod(bound(None, {}, container(mem=2, count=1)))
    assert [(ask.resource, ask.size) for ask in pod.asks] == [(MEMORY, 2), (CARDS, 1)]
    assert find_turn([pod], [], CARDS, 1) is not None
    assert find_turn([pod], [(pod.uid, "main", MEMORY)], CARDS, 1) is not None


@pytest.mark.parametrize("annotation", ["{", '{"0":{"1":-2}}', '{"x":{"1":2}}'])
def test_an_allocation_that_cannot_be_read_is_no_allocation(annotation: str) -> None:
    pod = parse_local_pod(memory(NODE, 1, 2, annotations={"scheduler.framework.gpushare.allocation": annotation}))
    assert pod.allocation is None
    assert [ask.cards for ask in pod.asks] == [{}]


def test_the_first_that_asks_for_this_size() -> None:
    pods = table(memory(NODE, 0, 2, name="two"), memory(NODE, 0, 3, name="three"), memory(NODE, 0, 2, name="another"))
    assert (asked(pods, 3), asked(pods, 2), asked(pods, 4)) == ("three/main", "two/main", None)


def test_what_has_its_ids_is_passed() -> None:
    pods = table(memory(NODE, 0, 2, name="one", uid="1"), memory(NODE, 0, 2, name="two"))
    assert asked(pods, 2, ("1", "main", MEMORY)) == "two/main"


def test_a_later_container_waits_for_its_turn() -> None:
    pods = table(bound(NODE, {0: {0: 1}, 1: {0: 2}}, container("a", mem=1), container("b", mem=2), name="pair", uid="1"))
    assert (asked(pods, 2), asked(pods, 2, ("1", "a", MEMORY))) == (None, "pair/b")


def test_a_pod_that_is_half_served_comes_before_older_ones() -> None:
    pair = bound(NODE, {0: {0: 2}, 1: {0: 2}}, container("a", mem=2), container("b", mem=2), name="pair", uid="1")
    pods = table(memory(NODE, 0, 2, name="older"), pair)
    assert asked(pods, 2, ("1", "a", MEMORY)) == "pair/b"


def test_finished_pods_are_out_and_running_or_assigned_ones_come_last() -> None:
    assigned = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    pods = table(
        memory(NODE, 0, 2, name="failed", phase="Failed"),
        memory(NODE, 0, 2, name="running", phase="Running"),
        memory(NODE, 0, 3, name="assigned", annotations=assigned),
    )
    assert (asked(pods, 2), asked(pods, 3)) == (None, None)
    assert (asked(pods, 2, late=True), asked(pods, 3, late=True)) == ("running/main", "assigned/main")
    pods.event("ADDED", parse_local_pod(memory(NODE, 0, 2, name="new")))
    assert asked(pods, 2, late=True) == "new/main"


@pytest.mark.parametrize(
    ("phase", "states", "deleted", "stopped"),
    [
        ("Running", ["terminated"], False, False),
        ("Running", ["terminated"], True, True),
        ("Succeeded", ["terminated", "terminated"], False, True),
        ("Failed", ["terminated", "running"], False, False),
        ("Failed", [], False, False),
    ],
    ids=["between two runs", "deleted", "done", "one goes on", "never started"],
)
def test_kubelets_word_that_no_container_runs_any_more(phase: str, states: list[str], deleted: bool, stopped: bool) -> None:
    pod = memory(NODE, 0, 1)
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": str(i), "state": {state: {}}} for i, state in enumerate(states)]}
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    assert parse_local_pod(pod).stopped is stopped

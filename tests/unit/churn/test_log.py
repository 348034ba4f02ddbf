# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the API server and the nodes say becomes one log, and that log what the model of the original is fed."""

from __future__ import annotations

from typing import Any

from e2e.churn_log import REJECTED, Given, Log, Plan
from e2e.churn_original import original_errors
from unit.fakes.churn.logs import GPUS, Story, annotations


def seen(phase: str, *, node: str = "", started: str = "", **status: Any) -> dict[str, Any]:
    state = {"running": {}} if started else {"waiting": {}}
    statuses = [{"state": state, **({"containerID": f"containerd://{started}"} if started else {})}] if node else []
    return {
        "metadata": {"uid": "u", "name": "n", "annotations": {**annotations({0: {0: 4}}), "another": "x"} if node else {}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def test_a_pods_life() -> None:
    log = Log(GPUS)
    # The watch may be faster than the answer to the request.
    log.api_says("ADDED", seen("Pending"), 1.2)
    pod = log.made(Plan("n", (4,)), {"metadata": {"uid": "u"}}, 1.0)
    log.api_says("MODIFIED", seen("Pending", node="gpu2"), 2.0)
    log.api_says("MODIFIED", seen("Pending", node="gpu2"), 3.0)
    log.api_says("MODIFIED", seen("Running", node="gpu2", started="abc"), 4.0)
    log.api_says("DELETED", seen("Running", node="gpu2", started="abc"), 5.0)
    assert (pod.created, pod.bound, pod.running, pod.gone) == (1.0, 2.0, 4.0, 5.0)
    assert (pod.node, pod.containers, pod.rejected) == ("gpu2", {"abc"}, False)
    assert "another" not in pod.annotations


def test_a_pod_that_a_list_lacked_is_there_when_the_watch_shows_it() -> None:
    log = Log(GPUS)
    pod = log.made(Plan("n", (4,)), {"metadata": {"uid": "u"}}, 1.0)
    pod.gone = 2.0
    log.api_says("MODIFIED", seen("Pending", node="gpu2"), 3.0)
    assert pod.gone is None


def test_a_rejected_pod() -> None:
    log = Log(GPUS)
    log.made(Plan("n", (4,)), {"metadata": {"uid": "u"}}, 1.0)
    pod = log.api_says("MODIFIED", seen("Failed", node="gpu2", reason=REJECTED, message="why"), 3.0)
    assert (pod.rejected, pod.reached, pod.failed, pod.message) == (True, False, 3.0, "why")


def test_what_a_node_says() -> None:
    log = Log(GPUS)
    log.node_says("gpu2", {"event": "given", "t": 1.0, "uid": "u", "container": "c0", "ids": ["GPU-a-_-0"]})
    start = {"uid": "u", "id": "abc", "container": "c0", "devices": ["nvidia0"], "environment": {"X": "1"}}
    log.node_says("gpu2", {"event": "start", "t": 2.0, **start})
    assert log.given == [Given(1.0, "gpu2", "u", "c0", ("GPU-a-_-0",))]
    assert [container.id for container in log.alive("u")] == ["abc"]
    log.node_says("gpu2", {"event": "end", "t": 3.0, "id": "abc"})
    assert log.alive("u") == []
    assert log.containers["abc"].end == 3.0


# The same log, as the original would have answered.


def test_in_order_the_original_is_right() -> None:
    story = Story(minor=1)
    story.pod(Plan("a", (4,)), {0: 4}, at=1, assumed=1)
    story.pod(Plan("b", (4,)), {1: 4}, at=2, assumed=2)
    assert original_errors(story.log).wrong == 0


def test_two_of_a_size_admitted_the_other_way_round_are_swapped() -> None:
    story = Story(minor=1)
    first = story.pod(Plan("a", (4,)), {0: 4}, at=1, assumed=1)
    story.pod(Plan("b", (4,)), {1: 4}, at=2, assumed=2)
    story.log.given = [
        Given(3.0 if entry.uid == first.uid else 2.5, entry.node, entry.uid, entry.container, entry.ids) for entry in story.log.given
    ]
    for pod in story.log.pods.values():
        pod.running = 4.0
    assert original_errors(story.log).other == 2


def test_minors_are_what_the_original_calls_an_index() -> None:
    story = Story()
    # GPU 1 has minor 5, which the annotation does not say: there is no device 1.
    story.pod(Plan("a", (4,)), {1: 4})
    assert original_errors(story.log).none == 1


def test_a_pod_that_waited_here_starts_there_beside_the_survivor() -> None:
    story = Story()
    survivor = story.pod(Plan("a", (12,), stubborn=True), {0: 12}, at=0, end=20.0)
    survivor.asked_away, survivor.forced, survivor.gone = 10.0, True, 10.1
    other = story.pod(Plan("full", (24,)), {1: 24}, at=0)
    again = story.pod(Plan("a", (12,), room=False), {0: 12}, at=20.5, slots=0)
    again.created = 10.2
    assert other.gone is None
    assert original_errors(story.log).with_orphans == 1
    story.log.containers[f"{survivor.uid}-0"].end = 10.15
    assert original_errors(story.log).with_orphans == 0

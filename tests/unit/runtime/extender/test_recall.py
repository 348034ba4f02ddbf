# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod that was refused a moment too early is brought back to the scheduler, one at a time and never without need."""

from __future__ import annotations

import asyncio

import pytest

from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.pods import FinishedPod, NodeRecord, PendingPod
from gpushare_runtime.extender.recall import Recall
from gpushare_runtime.extender.service import Service
from gpushare_runtime.extender.wire import Arguments
from gpushare_runtime.kube.client import KubeError
from gpushare_runtime.placement import Binpack
from unit.runtime.pods import container, inventory, pod
from unit.runtime.test_ledger import holder, memory, on


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def full(*waiting: str) -> tuple[Cluster, Recall, Service]:
    """One card of 16, held by "old"; the waiting pods ask for 6 each and were refused in this order."""
    cluster = Cluster()
    recall = Recall(cluster, Clock())
    cluster.on_room = recall.room
    service = Service(cluster.ledger, Binpack(), recall.refused)
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    cluster.pod_event("ADDED", holder("old", memory(16), on(0, 16)))
    for uid in waiting:
        cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(6)))
        ask(service, uid)
    return cluster, recall, service


def ask(service: Service, uid: str) -> list[str]:
    return service.filter(Arguments(pod(container(mem=6), uid=uid), ["n"])).names


def test_the_longest_waiting_that_fits_is_recalled_once_for_this_room() -> None:
    cluster, recall, _ = full("first", "second")
    cluster.pod_event("DELETED", holder("old", memory(16), on(0, 16)))
    assert [recall.next(), recall.next(), recall.next()] == [cluster.pending["first"], cluster.pending["second"], None]


def test_nobody_is_recalled_who_does_not_fit_or_has_been_asked_about_since() -> None:
    cluster, recall, service = full("waiting")
    assert recall.next() is None
    cluster.pod_event("MODIFIED", FinishedPod("old"))
    assert ask(service, "waiting") == ["n"]
    cluster.pod_event("ADDED", holder("other", memory(16), on(0, 16)))
    assert ask(service, "waiting") == []
    assert recall.next() is None


def test_who_is_gone_or_bound_is_forgotten() -> None:
    cluster, recall, _ = full("gone", "bound")
    cluster.pod_event("DELETED", holder("old", memory(16), on(0, 16)))
    cluster.pod_event("DELETED", cluster.pending["gone"])
    cluster.pod_event("MODIFIED", holder("bound", memory(6), on(0, 6)))
    assert recall.next() is None


def test_a_card_that_comes_is_room_as_well() -> None:
    cluster, recall, _ = full("waiting")
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16, 16)))
    assert recall.next() == cluster.pending["waiting"]


def test_the_end_of_a_pod_that_held_nothing_wakes_nobody() -> None:
    cluster, _, _ = full("waiting")
    woken = []
    cluster.on_room = lambda: woken.append(True)
    cluster.pod_event("DELETED", PendingPod("x", "default", "x", memory(1)))
    assert woken == []


class Server:
    """Takes patches; the first one fails."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, object]] = []

    async def patch(self, path: str, body: object, *, kind: str) -> None:
        self.patches.append((path, body))
        if len(self.patches) == 1:
            raise KubeError(409, "Conflict", "the UID in the precondition does not match")


def test_the_pending_pod_is_touched_and_nothing_but_an_annotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare_runtime.extender.recall.LATE_SECONDS", 0.0)

    async def scenario() -> list[tuple[str, object]]:
        cluster, recall, _ = full("first", "second")
        server = Server()
        task = asyncio.create_task(recall.run(server))  # type: ignore[arg-type]
        cluster.pod_event("DELETED", holder("old", memory(16), on(0, 16)))
        for _ in range(1000):
            await asyncio.sleep(0)
        task.cancel()
        return server.patches

    patches = asyncio.run(scenario())
    assert [path for path, _ in patches] == ["/api/v1/namespaces/default/pods/first", "/api/v1/namespaces/default/pods/second"]
    for (_, body), uid in zip(patches, ("first", "second"), strict=True):
        assert isinstance(body, dict)
        assert body["metadata"]["uid"] == uid
        assert list(body["metadata"]["annotations"]) == ["gpushare/recalled"]
        assert list(body) == ["metadata"]

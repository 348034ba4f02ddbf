# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Lists and events → ledger and pending pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.extender.cluster import LINGER_SECONDS, UNSEEN_SECONDS, Cluster
from gpushare_runtime.extender.pods import FinishedPod, NodeRecord, PendingPod
from gpushare_runtime.held import Held, HeldEntry
from gpushare_runtime.ledger import Holder
from gpushare_runtime.request import ContainerRequest, Kind, Request
from unit.runtime.pods import inventory

REQUEST = Request((ContainerRequest(Kind.APP, 0, "main", units=8),))


def pending(uid: str) -> PendingPod:
    return PendingPod(uid, "default", uid, REQUEST)


def holder(uid: str, node: str = "n") -> Holder:
    return Holder(uid, "default", uid, node, REQUEST, Allocation.of({0: {0: 8}}))


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.replace_nodes([NodeRecord("n", inventory(16)), NodeRecord("plain", None)])
    return cluster


def free(cluster: Cluster) -> int:
    node = cluster.ledger.node("n")
    assert node is not None
    return node.free


def test_from_pending_to_gone(cluster: Cluster) -> None:
    cluster.pod_event("ADDED", pending("a"))
    assert set(cluster.pending) == {"a"}
    cluster.pod_event("MODIFIED", holder("a"))
    assert not cluster.pending
    assert free(cluster) == 8
    cluster.pod_event("MODIFIED", FinishedPod("a"))
    assert free(cluster) == 16
    cluster.pod_event("DELETED", FinishedPod("a"))


def test_deleted_while_running(cluster: Cluster) -> None:
    cluster.pod_event("ADDED", holder("a"))
    cluster.pod_event("DELETED", holder("a"))
    assert free(cluster) == 16


def test_a_list_that_is_older_than_a_pod_does_not_take_what_was_just_bound() -> None:
    now = 0.0
    cluster = Cluster(now=lambda: now, clock=lambda: now)
    cluster.replace_nodes([NodeRecord("n", inventory(16, 16))])
    for uid in ("a", "b"):
        # Bound before the watch has ever shown them.
        cluster.ledger.assume(replace(holder(uid), allocation=Allocation.of({0: {"ab".index(uid): 8}})))
    cluster.replace_pods([])
    assert free(cluster) == 16
    cluster.pod_event("ADDED", pending("a"))
    cluster.pod_event("MODIFIED", holder("a"))
    now = UNSEEN_SECONDS
    cluster.expire()
    assert (cluster.ledger.holder("a"), cluster.ledger.holder("b")) == (holder("a"), None), "the other was deleted in the gap"


def test_a_binding_that_fails_is_forgotten_also_when_a_list_came_between(cluster: Cluster) -> None:
    cluster.ledger.assume(holder("a"))
    cluster.replace_pods([])
    assert cluster.ledger.is_assumed("a")
    cluster.ledger.forget("a")
    assert free(cluster) == 16


def test_the_processes_of_a_pod_deleted_by_force_may_be_alive_until_its_node_has_spoken() -> None:
    now = 0.0
    cluster = Cluster(now=lambda: now, clock=lambda: now)
    cluster.replace_nodes([NodeRecord("n", inventory(16))])
    for uid in ("a", "b"):
        alive = replace(holder(uid), alive=True)
        cluster.pod_event("ADDED", alive)
        cluster.pod_event("DELETED", alive)
        assert free(cluster) == 8
        cluster.replace_pods([])
        assert free(cluster) == 8
        if uid == "a":
            # It says so, and later that they have ended.
            entry = HeldEntry(inventory(16).cards[0].uuid, "a", "default/a", 8, "leaving")
            cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), "", Held((entry,))))
            assert (free(cluster), cluster.ledger.holder("a")) == (8, None)
            cluster.node_event("MODIFIED", NodeRecord("n", inventory(16)))
            assert free(cluster) == 16
    # Of the other it says nothing.
    told: list[bool] = []
    cluster.on_room = lambda: told.append(True)
    now = LINGER_SECONDS - 0.1
    cluster.expire()
    assert (free(cluster), told) == (8, [])
    now = LINGER_SECONDS
    cluster.expire()
    assert (free(cluster), told) == (16, [True])


def test_an_event_from_before_the_binding_does_not_take_the_assumption(cluster: Cluster) -> None:
    cluster.ledger.assume(holder("a"))
    cluster.pod_event("MODIFIED", pending("a"))
    assert free(cluster) == 8


def test_a_fresh_list_removes_what_went_in_the_gap_and_keeps_what_is_under_way(cluster: Cluster) -> None:
    cluster.pod_event("ADDED", holder("gone"))
    cluster.pod_event("ADDED", pending("gone-too"))
    cluster.ledger.assume(holder("under-way"))
    same = cluster.pending
    cluster.replace_pods([pending("under-way"), pending("new"), FinishedPod("done")])
    assert set(cluster.pending) == {"under-way", "new"}
    assert cluster.pending is same
    assert free(cluster) == 8
    cluster.replace_pods([pending("new")])
    assert free(cluster) == 16


def test_nodes_come_change_and_go(cluster: Cluster) -> None:
    assert set(cluster.ledger.nodes) == {"n"}
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16, 16)))
    assert free(cluster) == 32
    cluster.node_event("MODIFIED", NodeRecord("n", None, "version 2 is not known"))
    assert free(cluster) == 0
    cluster.pod_event("ADDED", holder("a"))
    cluster.node_event("DELETED", NodeRecord("n", None))
    # Its pods are not gone yet, and it may come back.
    assert "n" in cluster.ledger.nodes
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    assert free(cluster) == 8
    cluster.replace_nodes([])
    cluster.pod_event("DELETED", holder("a"))
    assert not cluster.ledger.nodes


def test_only_what_matters_is_a_change(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.changed.clear()
    caplog.set_level("INFO")
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16)))
    cluster.node_event("MODIFIED", NodeRecord("plain", None))
    assert not cluster.changed.is_set()
    assert not caplog.records
    cluster.node_event("MODIFIED", NodeRecord("n", None, "broken"))
    assert cluster.changed.is_set()
    assert "node n: its cards are not known: broken" in caplog.text

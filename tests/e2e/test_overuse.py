# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod that uses more than its units is evicted through the real Eviction API: the right one, when its budgets allow, and by nobody
whose token is stolen from a node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from e2e.api import Api, ApiError, Json
from e2e.clients import DRY, forbidden, own_token, somebody, with_token
from e2e.cluster import CONTROL_PLANE, Cluster, annotations_of
from e2e.manifests import pod
from e2e.running import NODE, gpu, uses

pytestmark = pytest.mark.suite("gpus")

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVICTIONS = "gpushare/evictions"
EVICTION = "/api/v1/namespaces/default/pods/{}/eviction"


@pytest.fixture(scope="module")
def evicting(cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster with gpushare_overuse=evict; afterwards as it was."""
    cluster.clear()
    cluster.playbook("-e", "gpushare_overuse=evict", "-e", "gpushare_overuse_grace=10")
    yield cluster
    cluster.playbook()


@pytest.fixture
def token_of_node(evicting: Cluster) -> Api:
    return with_token(evicting, own_token(evicting, NODE, "gpushare-device-plugin"))


@pytest.fixture
def used(evicting: Cluster) -> Iterator[list[tuple[int, str]]]:
    """Processes that the test put on GPUs: they leave them with it."""
    processes: list[tuple[int, str]] = []
    yield processes
    for index, pid in processes:
        gpu(evicting, "process", index, pid, 0, "trainer")


def reasons(cluster: Cluster, name: str) -> set[str]:
    return {event["reason"] for event in cluster.events(name)}


def eviction(name: str) -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}


def test_the_pod_that_exceeds_is_evicted_as_soon_as_its_budget_allows(evicting: Cluster, used: list[tuple[int, str]]) -> None:
    greedy, modest = pod("greedy", memory=4, node=NODE), pod("modest", memory=4, node=NODE)
    greedy["metadata"]["labels"] = {"app": "greedy"}
    budget: Json = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "greedy"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "greedy"}}},
    }
    evicting.api.create(BUDGETS, budget)
    try:
        for made in (greedy, modest):
            evicting.create(made)
        evicting.until_running("greedy", "modest")
        uid = evicting.pod("modest")["metadata"]["uid"]
        uses(evicting, used, "greedy", 5000)
        uses(evicting, used, "modest", 4096)
        evicting.until("the budget keeps the pod, and an Event says so", lambda: "GPUShareNotEvicted" in reasons(evicting, "greedy"), 120)
        assert "deletionTimestamp" not in evicting.pod("greedy")["metadata"]
    finally:
        evicting.api.delete(f"{BUDGETS}/greedy")

    def gone() -> bool:
        try:
            return "deletionTimestamp" in evicting.pod("greedy")["metadata"]
        except ApiError as error:
            return error.status == 404

    evicting.until("the pod is evicted", gone, 180)
    assert evicting.pod("modest")["metadata"]["uid"] == uid
    assert reasons(evicting, "modest").isdisjoint({"GPUShareEvicted", "GPUShareNotEvicted", "GPUShareMemoryExceeded"})
    evicting.clear()


def requesting(*uids: str) -> Json:
    """The node's annotation with requests for these pods, on its first GPU, for as long as requests count."""
    pods = [{"uid": uid, "gpu": 0, "used": 5000, "requested": 1024, "seconds": 60} for uid in uids]
    return {"metadata": {"annotations": {EVICTIONS: json.dumps({"v": 1, "until": int(time.time()) + 90, "pods": pods})}}}


def test_the_token_of_a_node_evicts_nobody_and_asks_for_its_own_pods_only(evicting: Cluster, token_of_node: Api) -> None:
    other = "gpu2" if NODE == "gpu1" else "gpu1"
    evicting.create(pod("here", memory=1, node=NODE))
    evicting.create(pod("there", memory=1, node=other))
    evicting.until_running("here", "there")
    for name in ("here", "there"):
        with pytest.raises(ApiError) as rejected:
            token_of_node.create(EVICTION.format(name), eviction(name))
        assert rejected.value.status == 403
    assert "cannot patch" in forbidden(lambda: token_of_node.patch(f"/api/v1/nodes/{other}/status", requesting(), **DRY))
    since = evicting.on(CONTROL_PLANE, "date", "+@%s").strip()
    wanted = requesting(evicting.pod("there")["metadata"]["uid"])

    def rejected_by_the_extender() -> bool:
        # The device plugin withdraws within seconds what it has not asked for itself.
        token_of_node.patch(f"/api/v1/nodes/{NODE}/status", wanted)
        log = evicting.on(CONTROL_PLANE, "journalctl", "-o", "cat", "-u", "gpushare-extender", "--since", since)
        return f"pod default/there on node {other} is not evicted: it is on node {other}, and node {NODE} requests it" in log

    evicting.until("the extender says that it does not follow", rejected_by_the_extender, 60)
    assert "deletionTimestamp" not in evicting.pod("there")["metadata"]
    evicting.clear()


def test_a_request_of_a_node_that_keeps_it_no_longer_ends(evicting: Cluster, token_of_node: Api) -> None:
    token_of_node.patch(f"/api/v1/nodes/{NODE}/status", {"metadata": {"annotations": {EVICTIONS: "{}"}}})
    evicting.until("the device plugin withdraws what is not due", lambda: EVICTIONS not in annotations_of(evicting.node(NODE)), 60)


def test_tenants_neither_request_nor_withdraw_an_eviction(evicting: Cluster) -> None:
    path, request = f"/api/v1/nodes/{NODE}", requesting("u")
    administrator = somebody(evicting, "admin", "system:masters")
    anybody = somebody(evicting, "system:serviceaccount:kube-system:anybody", "system:masters")
    assert "only gpushare sets" in forbidden(lambda: anybody.patch(path, request, **DRY))
    administrator.patch(path, request, **DRY)

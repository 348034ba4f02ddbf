# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What kube-scheduler asks the extender and what it answers: the verbs, the ledger behind them, and who may look into it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from e2e.api import Json
from e2e.cluster import GPU_NODES, Cluster, allocation, annotations_of
from e2e.extender import VERBS, ask, bound, filtered, ledger, verb
from e2e.fake_nodes import NODES, PODS, fake_nodes, fake_pod, inventory, placed, remove, until_placed, until_unschedulable, uuid, where
from e2e.manifests import pod

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def node(empty: Cluster) -> Iterator[str]:
    """A fake node with two GPUs of 16 units."""
    with fake_nodes(empty, {"fake": (16, 16)}):
        yield "fake"


def test_unresolvable_is_only_where_no_eviction_helps(empty: Cluster, node: str) -> None:
    for name in ("first", "second"):
        placed(empty, fake_pod(name, 16))
    waiting, hopeless = (empty.create(fake_pod(f"asks-{size}", size, scheduler="nobody")) for size in (8, 17))
    answer = filtered(empty, waiting, [node])
    assert (answer["NodeNames"], answer["Error"]) == ([], "")
    assert "at most 0 are free on one" in answer["FailedNodes"][node]
    assert answer["FailedAndUnresolvableNodes"] == {}
    answer = filtered(empty, hopeless, [node, "no-such-node"])
    # Schedulers up to 1.21 know the first map only.
    assert set(answer["FailedNodes"]) == set(answer["FailedAndUnresolvableNodes"]) == {node, "no-such-node"}
    assert "its largest GPU has 16" in answer["FailedAndUnresolvableNodes"][node]


def test_node_objects_instead_of_names(empty: Cluster, node: str) -> None:
    wanted = empty.create(fake_pod("objects", 20, scheduler="nobody"))
    nodes = {"items": [empty.node(name) for name in (node, "gpu2")]}
    answer = verb(empty, "filter", {"Pod": wanted, "Nodes": nodes, "NodeNames": None})
    assert answer["NodeNames"] is None
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["gpu2"]
    scores = verb(empty, "prioritize", {"Pod": wanted, "Nodes": nodes, "NodeNames": None})
    assert {"Host": "gpu2", "Score": 10} in scores


def test_one_node_is_best(empty: Cluster) -> None:
    wanted = empty.create(fake_pod("scored", 16, scheduler="nobody"))
    scores = {s["Host"]: s["Score"] for s in verb(empty, "prioritize", {"Pod": wanted, "NodeNames": list(GPU_NODES)})}
    # Both have a GPU of which nothing would be left.
    assert sorted(scores.values())[-1] == 10
    assert all(score <= 9 for score in sorted(scores.values())[:-1])
    again = verb(empty, "prioritize", {"Pod": wanted, "NodeNames": list(reversed(GPU_NODES))})
    assert {s["Host"]: s["Score"] for s in again if s["Score"] == 10} == {h: s for h, s in scores.items() if s == 10}


def test_at_most_ten_wordings_reach_the_pod(empty: Cluster) -> None:
    with fake_nodes(empty, {f"fake-{size}": (size, size) for size in range(11, 22)}):
        reason = until_unschedulable(empty, fake_pod("large", 22))
    assert "11 no node has 22 GiB on one GPU" in reason or "11 no node has 22 units on one GPU" in reason, reason
    assert "fake-1" not in reason


def test_what_is_prioritized_is_reserved_and_expires(empty: Cluster, node: str) -> None:
    first, second = (empty.create(fake_pod(name, 16, scheduler="nobody", labels={"n": name})) for name in ("first", "second"))
    placed(empty, fake_pod("neighbour", 16))
    assert filtered(empty, first, [node])["NodeNames"] == [node]
    assert {p["name"]: p["state"] for p in ledger(empty, node)["pods"]}["first"] == "reserved"
    # The one GPU that is left is as good as taken, but not for the pod itself.
    assert filtered(empty, second, [node])["NodeNames"] == []
    assert filtered(empty, first, [node])["NodeNames"] == [node]
    empty.until("the reservation is over", lambda: filtered(empty, second, [node])["NodeNames"] == [node], 60)


def test_room_made_for_a_pod_is_kept_for_it(empty: Cluster, node: str) -> None:
    placed(empty, fake_pod("neighbour", 16))
    nominated, other = (empty.create(fake_pod(name, 10, scheduler="nobody")) for name in ("nominated", "other"))
    path = f"{PODS}/nominated/status"
    empty.api.patch(path, {"status": {"nominatedNodeName": node}})
    empty.until("the ledger knows the nomination", lambda: [n["name"] for n in ledger(empty, node)["nominated"]] == ["nominated"], 30)
    assert filtered(empty, other, [node])["NodeNames"] == []
    assert filtered(empty, nominated, [node])["NodeNames"] == [node]
    remove(empty, "nominated")
    empty.until("the room is free for others", lambda: filtered(empty, other, [node])["NodeNames"] == [node], 30)


@pytest.fixture
def high(empty: Cluster) -> Iterator[str]:
    """A priority above all others."""
    name = "gpushare-test-high"
    empty.api.create(PRIORITIES, {"metadata": {"name": name}, "value": 1000})
    yield name
    empty.api.delete(f"{PRIORITIES}/{name}")


def test_preemption_frees_a_gpu_and_spares_those_whose_budget_is_used_up(empty: Cluster, node: str, high: str) -> None:
    protected = {"app": "protected"}
    budget = {"metadata": {"name": "protected"}, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": protected}}}
    empty.api.create(BUDGETS, budget)
    try:
        # 4 units are left on each GPU: with one pod less the total is enough, and no GPU is.
        gpus = {name: where(placed(empty, fake_pod(name, 6)))[1] for name in ("a-1", "a-2")}
        gpus |= {name: where(placed(empty, fake_pod(name, 6, labels=protected)))[1] for name in ("b-1", "b-2")}
        assert gpus == {"a-1": {0: 6}, "a-2": {0: 6}, "b-1": {1: 6}, "b-2": {1: 6}}
        empty.until("the budget allows nothing", lambda: empty.api.get(f"{BUDGETS}/protected")["status"].get("observedGeneration"), 30)
        wanted = fake_pod("urgent", 14)
        wanted["spec"]["priorityClassName"] = high
        urgent = placed(empty, wanted, seconds=60)
        assert where(urgent) == (node, {0: 14})
        assert {p["metadata"]["name"] for p in empty.pods()} == {"b-1", "b-2", "urgent"}
    finally:
        empty.api.delete(f"{BUDGETS}/protected")


def test_a_bind_to_another_node_names_the_real_one(empty: Cluster, node: str) -> None:
    found = placed(empty, fake_pod("placed", 4))
    assert bound(empty, found, "gpu1") == f"pod default/placed is already bound to node {node}; it cannot be bound to node gpu1"
    assert bound(empty, found, node) == ""
    assert where(empty.pod("placed")) == (node, {0: 4})
    other = {**found, "metadata": {**found["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    assert "is gone: it was deleted, or another pod has its name now" in bound(empty, other, node)


def test_a_bind_that_finds_no_room_leaves_the_ledger_as_it_was(empty: Cluster, node: str) -> None:
    placed(empty, fake_pod("neighbour", 10))
    before = ledger(empty, node)
    wanted = empty.create(fake_pod("late", 17, scheduler="nobody"))
    assert "needs 17 GiB on one GPU, its largest GPU has 16" in bound(empty, wanted, node)
    assert ledger(empty, node) == before
    assert "nodeName" not in empty.pod("late")["spec"]


def test_a_pod_of_the_same_name_is_another_pod(empty: Cluster) -> None:
    with fake_nodes(empty, {"fake": (16,)}):
        old = placed(empty, fake_pod("same", 10))
        empty.api.delete(f"{PODS}/same", gracePeriodSeconds="0")
        new = placed(empty, fake_pod("same", 12))
        assert old["metadata"]["uid"] != new["metadata"]["uid"]
        assert where(new) == ("fake", {0: 12})
        (held,) = ledger(empty, "fake")["pods"]
        assert (held["uid"], held["by_gpu"]) == (new["metadata"]["uid"], {"0": 12})
        assert "is gone" in bound(empty, old, "fake") or "already bound" in bound(empty, old, "fake")


def test_the_binding_replaces_annotations_that_were_there_before(empty: Cluster, node: str) -> None:
    forged = {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "99",
        "ALIYUN_COM_GPU_MEM_POD": "1",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":1}}',
    }
    found = annotations_of(placed(empty, fake_pod("forged", 6, annotations=forged)))
    assert found["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] != "1"
    assert {name: found[name] for name in forged if name != "ALIYUN_COM_GPU_MEM_ASSUME_TIME"} == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "scheduler.framework.gpushare.allocation": '{"0":{"0":6}}',
    }


def by_hand(cluster: Cluster, name: str, memory: int, node: str, annotations: dict[str, str] | None = None) -> None:
    """A pod that nobody asked the scheduler about."""
    wanted = fake_pod(name, memory, annotations=annotations)
    wanted["spec"]["nodeName"] = node
    uid = cluster.create(wanted)["metadata"]["uid"]
    cluster.until("the ledger has the pod", lambda: uid in {p["uid"] for p in ledger(cluster, node)["pods"]}, 30)


def test_the_originals_five_annotations_are_enough(empty: Cluster, node: str) -> None:
    five = {"IDX": "1", "DEV": "16", "POD": "6", "ASSIGNED": "true", "ASSUME_TIME": "1700000000000000000"}
    by_hand(empty, "migrated", 6, node, {f"ALIYUN_COM_GPU_MEM_{key}": value for key, value in five.items()})
    (held,) = ledger(empty, node)["pods"]
    assert held["by_gpu"] == {"1": 6}
    assert where(placed(empty, fake_pod("neighbour", 10))) == (node, {1: 10})


def test_a_pod_without_a_known_gpu_counts_against_each(empty: Cluster, node: str) -> None:
    by_hand(empty, "unknown", 6, node)
    assert "at most 10 are free on one" in until_unschedulable(empty, fake_pod("large", 12))
    assert where(placed(empty, fake_pod("small", 10)))[0] == node
    (problem,) = ledger(empty, node)["problems"]
    assert "pod default/unknown: its GPU is not known" in problem
    # This node has no device plugin that would say what it has.
    assert where(until_placed(empty, "large", seconds=75))[0] == node
    assert "so it does not count" in "".join(ledger(empty, node)["problems"])


def test_an_allocation_that_cannot_be_is_not_computed_with(empty: Cluster, node: str) -> None:
    _, gpus = where(placed(empty, fake_pod("forged", 6)))
    (index,) = gpus
    empty.annotate(f"{PODS}/forged", {"scheduler.framework.gpushare.allocation": '{"0":{"0":999}}'})
    assert where(placed(empty, fake_pod("later", 11))) == (node, {1 - index: 11}), "it keeps what it was bound with"
    assert [gpu["free"] for gpu in ledger(empty, node)["gpus"]][index] == 10


def held(gpus: dict[str, list[Json]] | None = None, rejections: list[Json] | None = None) -> dict[str, str | None]:
    return {"gpushare/held": json.dumps({"v": 1, "gpus": gpus or {}, "rejected": rejections or []})}


def test_what_the_node_says_is_held_is_held(empty: Cluster, node: str) -> None:
    placed(empty, fake_pod("first", 2))
    entry = {"pod": "default/gone", "uid": "gone", "units": 10, "why": "orphaned"}
    empty.annotate(f"{NODES}/{node}", held({uuid(node, 0): [entry]}))
    empty.until("the ledger has it", lambda: ledger(empty, node)["held"], 30)
    assert [gpu["free"] for gpu in ledger(empty, node)["gpus"]] == [4, 16]
    assert where(placed(empty, fake_pod("second", 6))) == (node, {1: 6})
    empty.annotate(f"{NODES}/{node}", {"gpushare/held": None})
    empty.until("the ledger has forgotten it", lambda: [gpu["free"] for gpu in ledger(empty, node)["gpus"]] == [14, 10], 30)


def test_a_gpu_that_rejected_a_pod_is_held_back_for_that_size_and_a_while(empty: Cluster, node: str) -> None:
    placed(empty, fake_pod("first", 2))
    until = datetime.fromtimestamp(time.time() + 10, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    empty.annotate(f"{NODES}/{node}", held(None, [{"uid": "x", "gpu": uuid(node, 0), "units": 8, "until": until}]))
    empty.until("the ledger has it", lambda: ledger(empty, node)["rejected"], 30)
    # The fullest GPU that has room would be 0.
    assert where(placed(empty, fake_pod("same-size", 8))) == (node, {1: 8})
    only = {"gpushare.request/gpus": uuid(node, 0)}
    assert where(placed(empty, fake_pod("smaller", 4, annotations=only))) == (node, {0: 4})
    assert where(placed(empty, fake_pod("rest", 8))) == (node, {1: 8})
    assert "held back because the node rejected a pod of this size there" in until_unschedulable(empty, fake_pod("again", 8))
    # A minute from when it was seen, whatever the node wrote.
    assert where(until_placed(empty, "again", seconds=90)) == (node, {0: 8})


def test_a_node_whose_gpus_are_not_known_takes_no_pod_until_they_are(empty: Cluster, node: str) -> None:
    empty.annotate(f"{NODES}/{node}", {"gpushare/gpus": None})
    empty.until("the ledger has forgotten its GPUs", lambda: not ledger(empty, node).get("gpus"), 30)
    assert "no annotation gpushare/gpus on the node" in until_unschedulable(empty, fake_pod("waits", 8))
    empty.annotate(f"{NODES}/{node}", {"gpushare/gpus": inventory(node, (8, 24))})
    assert where(until_placed(empty, "waits", seconds=60)) == (node, {0: 8})


@pytest.mark.parametrize("path", ["/inspect", "/inspect/gpu1", "/ledger"])
def test_who_is_not_the_scheduler_sees_nothing_of_the_ledger(cluster: Cluster, path: str) -> None:
    status, text = ask(cluster, f"{VERBS}{path}", certificate=False)
    assert status == 403
    assert "no client certificate" in text
    assert "gpu2" not in text


def test_version_and_health_are_open(cluster: Cluster) -> None:
    versions = {ask(cluster, path, certificate=shown)[1].strip() for path in ("/version",) for shown in (True, False)}
    assert versions == {ask(cluster, f"{VERBS}/version")[1].strip()}
    assert ask(cluster, f"{VERBS}/version", certificate=False)[0] == 403
    status, text = ask(cluster, "/healthz", certificate=False)
    assert (status, json.loads(text)["synced"]) == (200, True)


def test_inspect_as_the_original_answers_it(empty: Cluster) -> None:
    empty.create(pod("inspected", memory=6, node="gpu1"))
    (found,) = empty.until_running("inspected")
    gpu = min(allocation(found))
    (of_node,) = json.loads(ask(empty, f"{VERBS}/inspect/gpu1")[1])["nodes"]
    assert (of_node["name"], of_node["totalGPU"], of_node["usedGPU"]) == ("gpu1", 32, 6)
    assert of_node["devs"][gpu] == {
        "id": gpu,
        "totalGPU": 16,
        "usedGPU": 6,
        "pods": [{"name": "inspected", "namespace": "default", "usedGPU": 6}],
    }
    every = json.loads(ask(empty, f"{VERBS}/inspect")[1])["nodes"]
    assert [n["name"] for n in every] == list(GPU_NODES)
    assert every[0] == of_node
    nobody = json.loads(ask(empty, f"{VERBS}/inspect/nowhere")[1])
    assert nobody == {"nodes": [], "error": "node nowhere has no GPUs that are known; nodes with GPUs: gpu1, gpu2"}
    (held_by,) = ledger(empty, "gpu1")["pods"]
    assert (held_by["name"], held_by["state"], held_by["by_gpu"]) == ("inspected", "bound", {str(gpu): 6})

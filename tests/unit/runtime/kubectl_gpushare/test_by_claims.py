# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare` of a cluster whose own scheduler counts GPU memory: the same views, from ResourceSlices and ResourceClaims."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.dra.pods import ClaimedPods
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kubectl_gpushare.api import fill, find_scope, may_follow_claims
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.explain import explain, headline
from gpushare_runtime.kubectl_gpushare.inspect_usage import read_usage
from gpushare_runtime.kubectl_gpushare.status import StatusEvidence, judge
from gpushare_runtime.kubectl_gpushare.used import published, published_peaks
from gpushare_runtime.kubectl_gpushare.views import Selection, document
from gpushare_runtime.kubectl_gpushare.watcher import Watcher
from unit.fakes.runtime.dra.claims import A30, T4, claim, node, pod, slices_of, whole
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving, status, until
from unit.golden import Golden

PUT: Mapping[str, Callable[[Cluster, Mapping[str, Any]], object]] = {
    "Node": Cluster.set_node,
    "Pod": Cluster.set_pod,
    "ResourceSlice": Cluster.set_slice,
    "ResourceClaim": Cluster.set_claim,
}


def read(*objects: dict[str, Any]) -> Cluster:
    """The cluster of these objects, as they come."""
    cluster = Cluster()
    for raw in objects:
        PUT[raw["kind"]](cluster, json.loads(json.dumps(raw)))
    cluster.settle()
    return cluster


def frees(cluster: Cluster, name: str = "gpu1") -> list[int]:
    return [state.free for state in cluster.ledger.nodes[name].gpu_states]


def has(cluster: Cluster, uid: str) -> Mapping[int, int] | None:
    """GPU index → units of a pod on its node."""
    return cluster.ledger.nodes["gpu1"].units_of(uid)


BASE = (node(), *slices_of())


def test_a_pod_has_the_gpu_of_its_claim_whatever_comes_first() -> None:
    parts = (node(), *slices_of(), claim("c", [(A30, "6Gi")], pods=["p"]), pod("p", {"gpushare-m6": "c"}))
    for order in permutations(parts):
        cluster = read(*order)
        assert frees(cluster) == [15, 18]
        assert has(cluster, "p") == {1: 6}
        assert cluster.problems() == []


@pytest.mark.parametrize("first", ["node", "slices"])
def test_what_a_device_plugin_left_behind_closes_no_node_with_slices(first: str) -> None:
    """kubelet keeps its resource with 0, where a cluster has changed from the extender to this back end."""
    left = node()
    left["status"]["allocatable"] = {**left["status"].get("allocatable", {}), "aliyun.com/gpu-mem": "0"}
    cluster = read(*((left, *slices_of()) if first == "node" else (*slices_of(), left)), pod("p", {"gpushare-m6": ""}, on=None))
    (verdict,) = explain(cluster, cluster.waiting["p"].pod)
    assert (verdict.node, verdict.gpus, verdict.reason) == ("gpu1", [0], "")
    assert next(entry.found for entry in judge(cluster, StatusEvidence()) if entry.check == "nodes").split()[0] == "1"


@pytest.mark.parametrize(("hours", "known"), [(0, True), (7, True), (7.1, False), (1000, False)])
def test_what_a_node_with_slices_publishes_of_its_use_counts_as_long_as_it_is_renewed(hours: float, known: bool) -> None:
    """No other sign is left of a plugin that went away, or that publishes nothing."""
    raw = node()
    raw["metadata"]["annotations"] = {
        "gpushare/use": UseReport(1000, {0: GpuUse(14000, 99)}, {("p", 1): PodUse(7, 0, 900, 7, 60)}).to_json()
    }
    cluster = read(raw, *slices_of(), claim("c", [(A30, "6Gi")], pods=["p"]), pod("p", {"gpushare-m6": "c"}))
    cluster.now = lambda: 1000 + hours * 3600
    used = published(cluster)
    assert (used.by_gpu, used.by_pod, used.idle) == (({T4.uuid: 14000}, {"p": 7}, {"p": 900.0}) if known else ({}, {}, {}))
    assert bool(published_peaks(cluster).by_pod) == known


def test_memory_on_two_gpus_and_a_whole_gpu() -> None:
    two = claim("c2", [(T4, "4Gi"), (A30, "4Gi")], "gpushare-m4-x2", pods=["two"])
    cluster = read(*BASE, two, pod("two", {"gpushare-m4-x2": "c2"}))
    assert has(cluster, "two") == {0: 4, 1: 4}
    assert cluster.ledger.pod("two").request.gpus_per_pod == 2  # type: ignore[union-attr]
    cluster = read(*BASE, claim("c1", [(T4, "15Gi")], "", pods=["one"]), whole("one", 1, "c1"))
    assert cluster.ledger.pod("one").whole  # type: ignore[union-attr]
    assert frees(cluster) == [0, 24]


def test_all_memory_of_a_gpu_by_a_limit_is_not_a_whole_gpu() -> None:
    cluster = read(*BASE, claim("c", [(T4, "15Gi")], "gpushare-m15", pods=["p"]), pod("p", {"gpushare-m15": "c"}))
    assert not cluster.ledger.pod("p").whole  # type: ignore[union-attr]
    assert has(cluster, "p") == {0: 15}


def test_several_claims_of_a_pod_are_added_up() -> None:
    first, second = claim("a", [(T4, "2Gi")], "", pods=["p"]), claim("b", [(T4, "3Gi"), (A30, "24Gi")], "", pods=["p"])
    raw = pod("p", {"one": "a", "other": "b"})
    assert has(read(*BASE, first, second, raw), "p") == {0: 5, 1: 24}


def test_a_device_that_a_claim_of_another_class_gives_back_is_free() -> None:
    raw = claim("c", [(T4, "6Gi")], "", pods=[])
    raw["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "any-gpu"
    cluster = read(*BASE, raw)
    assert frees(cluster) == [9, 24]
    cluster.set_claim({**raw, "status": {}})
    cluster.settle()
    assert frees(cluster) == [15, 24]


def test_a_claim_of_two_pods_counts_once() -> None:
    shared = claim("c", [(T4, "6Gi")], "", pods=["p", "q"])
    cluster = read(*BASE, shared, pod("q", {"x": "c"}), pod("p", {"x": "c"}))
    assert frees(cluster) == [9, 24]
    assert has(cluster, "p") == {0: 6}
    assert cluster.ledger.pod("q") is None
    assert cluster.claims.shared(pod("q", {"x": "c"})) == "c"
    assert cluster.claims.shared(pod("p", {"x": "c"})) == ""


def test_an_allocated_claim_without_a_pod_on_a_node_is_in_use_until_its_pod_comes() -> None:
    waits = pod("p", {"gpushare-m6": "c"}, on=None)
    cluster = read(*BASE, claim("c", [(T4, "6Gi")], pods=["p"]), waits)
    assert frees(cluster) == [9, 24]
    assert cluster.claims.reserved("p") == {"gpu1": [0]}
    cluster.set_pod(pod("p", {"gpushare-m6": "c"}))
    cluster.settle()
    assert frees(cluster) == [9, 24]
    assert [found.uid for found in cluster.ledger.nodes["gpu1"].pods] == ["p"]
    cluster.remove_claim(("default", "c"))
    cluster.remove_pod("p")
    cluster.settle()
    assert frees(cluster) == [15, 24]


def test_what_users_write_about_gpus_in_annotations_does_not_count() -> None:
    lies = {"scheduler.framework.gpushare.allocation": '{"0":{"1":20}}', "ALIYUN_COM_GPU_MEM_IDX": "1", "gpushare.request/models": "H100"}
    cluster = read(*BASE, claim("c", [(T4, "6Gi")], pods=["p"]), pod("p", {"gpushare-m6": "c"}, annotations=lies))
    assert has(cluster, "p") == {0: 6}
    assert cluster.ledger.pod("p").request.rules == Rules()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "units", "gpus", "rules"),
    [
        ("gpushare-m6", 6, 1, Rules()),
        ("gpushare-m4-x2", 8, 2, Rules()),
        ("gpushare-m6--is-a100--is-tesla-v100", 6, 1, Rules(models=("a100", "tesla-v100"))),
        ("gpushare-m6--not-t4", 6, 1, Rules(models_refused=("t4",))),
        (f"gpushare-m6--on-{T4.uuid.lower()}", 6, 1, Rules(gpu_uuids=(T4.uuid,))),
        (f"gpushare-m6--off-{A30.uuid.lower()}", 6, 1, Rules(gpus_refused=(A30.uuid,))),
        ("gpushare-m6--by-driver", 6, 1, Rules(isolation="driver")),
    ],
)
def test_a_waiting_pod_asks_for_what_the_name_of_its_claim_says(name: str, units: int, gpus: int, rules: Rules) -> None:
    wait = read(*BASE, pod("p", {name: ""}, on=None, annotations={"gpushare.request/models": "K80"})).waiting["p"]
    assert isinstance(wait.pod, PendingPod)
    assert (wait.pod.request.units, wait.pod.request.gpus_per_pod, wait.pod.request.rules) == (units, gpus, rules)


def of_its_own(**exactly: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A claim that a user has written, and its pod, which waits."""
    made = claim("c", [], "")
    made["spec"]["devices"]["requests"][0]["exactly"] |= exactly
    made["status"] = {}
    raw = pod("p", {"mine": ""}, on=None)
    raw["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "c"}]
    return made, raw


def test_a_claim_that_a_user_has_written_asks_for_its_devices(golden: Golden) -> None:
    wait = read(*BASE, *of_its_own(count=2)).waiting["p"].pod
    assert isinstance(wait, PendingPod)
    assert wait.request.whole_gpus == 2
    wait = read(*BASE, *of_its_own(count=2, capacity={"requests": {"memory": "2560Mi"}})).waiting["p"].pod
    assert isinstance(wait, PendingPod)
    assert (wait.request.units, wait.request.gpus_per_pod) == (6, 2)
    wait = read(*BASE, *of_its_own(selectors=[{"cel": {"expression": "true"}}])).waiting["p"].pod
    assert isinstance(wait, InvalidPod)
    golden(wait.error)


def test_the_drivers_name_before_the_capacity_means_the_same() -> None:
    wait = read(*BASE, *of_its_own(capacity={"requests": {"gpushare.kubernetes/memory": "7Gi"}})).waiting["p"].pod
    assert isinstance(wait, PendingPod)
    assert wait.request.units == 7
    given = claim("c", [(T4, "6Gi")], pods=["p"])
    given["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"gpushare.kubernetes/memory": "6Gi"}
    assert has(read(*BASE, given, pod("p", {"gpushare-m6": "c"})), "p") == {0: 6}


def test_what_is_known_of_claims_does_not_grow_with_the_pods_that_come_and_go() -> None:
    claims = ClaimedPods()
    for uid in ("p", "q"):
        claims.pod(pod(uid, {"gpushare-m6": f"c-{uid}"}))
        claims.forget(uid)
    # No view shows what is kept of pods that are gone.
    assert claims._by_claim == claims._pods == {}


def test_claims_of_other_drivers_are_none_of_ours() -> None:
    foreign = claim("c", [(T4, "6Gi")], "", pods=["p"])
    foreign["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    foreign["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    for on in ("gpu1", None):
        cluster = read(node(), foreign, pod("p", {"x": "c"}, on=on))
        assert not cluster.claims.in_use
        assert not cluster.waiting
        assert cluster.ledger.pod("p") is None


def test_gpus_that_fail_or_are_cordoned_say_so(golden: Golden) -> None:
    lost = "XID 79: it has fallen off the bus"
    bad = (replace(T4, health=lost), replace(A30, cordoned=True))
    cluster = read(node(), *slices_of(*bad), claim("c", [(A30, "6Gi")], pods=["p"]), pod("p", {"gpushare-m6": "c"}))
    gpus = [state.gpu for state in cluster.ledger.nodes["gpu1"].gpu_states]
    assert [(gpu.health, gpu.cordoned) for gpu in gpus] == [(lost, False), ("ok", True)]
    found = {entry.where: entry.found for entry in judge(cluster, StatusEvidence()) if entry.check == "gpus" and entry.where}
    golden("\n".join(found.values()))


def test_slices_that_cannot_be_read_are_the_nodes_fault() -> None:
    (broken,) = slices_of()
    broken["spec"]["devices"][0]["capacity"]["memory"]["value"] = "none"
    cluster = read(node(), broken)
    assert next(entry.found for entry in judge(cluster, StatusEvidence()) if entry.check == "nodes").startswith("its ResourceSlices cannot")
    cluster.set_slice(slices_of()[0])
    assert frees(cluster) == [15, 24]
    cluster.remove_slice("gpu1-gpushare.kubernetes-0")
    assert "gpu1" not in cluster.ledger.nodes


def test_a_claim_that_cannot_be_read_is_left_out_with_a_warning() -> None:
    broken = claim("c", [(T4, "much")], pods=["p"])
    cluster = read(*BASE, broken, pod("p", {"gpushare-m6": "c"}))
    assert any("default/c" in problem and "'much'" in problem for problem in cluster.problems())


def verdict(cluster: Cluster, uid: str) -> str:
    wait = cluster.waiting[uid]
    assert isinstance(wait.pod, PendingPod)
    return headline(wait.pod, explain(cluster, wait.pod), wait.reported, cluster.largest(), wait.scheduler)


def said(raw: dict[str, Any], message: str) -> dict[str, Any]:
    raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    return raw


NO_ROOM = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 cannot allocate all claims. still not schedulable"


def full(*waiting: dict[str, Any], priority: int = 0) -> Cluster:
    """gpu1 with 3 units free on GPU 0 and 4 on GPU 1."""
    holders: Iterable[dict[str, Any]] = (pod("a", {"gpushare-m12": "ca"}), pod("b", {"gpushare-m20": "cb"}))
    taken = claim("ca", [(T4, "12Gi")], "gpushare-m12", pods=["a"]), claim("cb", [(A30, "20Gi")], "gpushare-m20", pods=["b"])
    for raw in waiting:
        raw["spec"]["priority"] = priority
    return read(*BASE, *taken, *holders, *waiting)


def test_explain_has_the_numbers_that_kube_scheduler_does_not_report(golden: Any) -> None:
    def waits(name: str) -> dict[str, Any]:
        return said(pod("w", {name: ""}, on=None), NO_ROOM)

    for cluster in (
        full(waits("gpushare-m6")),
        full(waits("gpushare-m25")),
        full(waits("gpushare-m2--is-h100")),
        full(waits("gpushare-m6"), priority=10),
        full(waits("gpushare-m2")),
        full(said(pod("w", {"gpushare-m2": ""}, on=None), 'pod "default/w": ResourceClaim not created yet')),
    ):
        golden(verdict(cluster, "w"))
    wait = full(waits("gpushare-m6")).waiting["w"].pod
    assert isinstance(wait, PendingPod)
    (found,) = explain(full(waits("gpushare-m6")), wait)
    golden(found.words)
    golden("; ".join(cure.text for cure in found.cures))


def test_the_gpu_that_is_named_is_the_first_with_room_as_kube_scheduler_takes_it() -> None:
    """The extender's default would take the fullest, which is GPU 1."""
    cluster = read(*BASE, claim("ca", [(A30, "20Gi")], "gpushare-m20", pods=["a"]), pod("a", {"gpushare-m20": "ca"}))
    cluster.set_pod(pod("w", {"gpushare-m3": ""}, on=None))
    wait = cluster.waiting["w"].pod
    assert isinstance(wait, PendingPod)
    assert [verdict.gpus for verdict in explain(cluster, wait)] == [[0]]


def test_status_has_no_words_about_an_extender() -> None:
    found = judge(full(), StatusEvidence())
    assert not [entry for entry in found if entry.check in ("extender", "scheduler")]
    assert not [entry for entry in found if entry.severity == "error"]


def test_views_and_inspect_say_the_same_as_with_annotations() -> None:
    parts = [claim("c", [(A30, "6Gi")], pods=["p"]), claim("d", [(T4, "15Gi")], "", pods=["q"])]
    pods = [pod("p", {"gpushare-m6": "c"}), whole("q", 1, "d")]
    cluster = read(*BASE, *parts, *pods)
    (shown,) = document(cluster, "nodes", Selection())["nodes"]
    assert [(gpu["index"], gpu["minor"], gpu["free"]) for gpu in shown["gpus"]] == [(0, 3, 0), (1, 0, 18)]
    usage = read_usage([node()], pods, [*slices_of(), *parts])
    (one,) = usage.nodes
    assert (one.total, one.by_gpu, one.strategy) == (39, {0: 15, 1: 6}, "cdi")
    assert {found.name: found.by_gpu for found in one.pods} == {"p": {1: 6}, "q": {0: 15}}
    assert usage.warnings == []


ROOT = "/apis/resource.k8s.io/v1"
OBJECTS = {
    "/api/v1/nodes/gpu1": node(),
    "/api/v1/namespaces/default/pods/p": pod("p", {"gpushare-m6": "c"}),
    f"{ROOT}/resourceslices/gpu1-gpushare.kubernetes-0": slices_of()[0],
    f"{ROOT}/namespaces/default/resourceclaims/c": claim("c", [(A30, "6Gi")], pods=["p"]),
}


@asynccontextmanager
async def cluster_of_claims(folder: Path) -> AsyncIterator[tuple[FakeApi, KubeClient]]:
    async with serving(FakeApi()) as api:
        for path, value in OBJECTS.items():
            # A list has no kinds of its items.
            await api.put(path, {key: copy.deepcopy(part) for key, part in value.items() if key != "kind"})
        async with connected(api, folder) as client:
            yield api, client


async def test_the_command_reads_slices_and_claims(tmp_path: Path) -> None:
    async with cluster_of_claims(tmp_path) as (_, client):
        cluster = Cluster()
        await fill(client, cluster, "", "default")
    assert frees(cluster) == [15, 18]
    assert has(cluster, "p") == {1: 6}
    assert cluster.complete


async def test_who_may_read_no_slices_sees_his_pods_by_the_names_of_their_claims(tmp_path: Path) -> None:
    async with cluster_of_claims(tmp_path) as (api, client):

        async def but_claims(request: Any) -> Any:
            if request.path.endswith(("/nodes", "/resourceslices")) or request.path == "/api/v1/pods":
                api.faults.insert(0, but_claims)
                return status(403, "Forbidden", "planned")
            api.faults.insert(0, but_claims)
            return None

        api.faults = [but_claims]
        cluster = Cluster()
        assert await fill(client, cluster, "", "default") == "default"
    assert not cluster.complete
    assert not cluster.knows_nodes
    found = cluster.ledger.pod("p")
    assert found is not None
    assert found.request.units == 6


async def passed(_: Any) -> None:
    """No fault of the API server."""


async def test_a_dashboard_that_starts_before_the_device_plugins_sees_their_slices(tmp_path: Path) -> None:
    """Its account may list them; with the back end extender it may not."""
    async with cluster_of_claims(tmp_path) as (api, client):
        for path in OBJECTS:
            await api.remove(path)
        cluster = Cluster()
        assert await find_scope(client, cluster, "default") == ""
        assert not cluster.claims.in_use
        assert await may_follow_claims(client)
        watcher = Watcher(client, cluster, "", by_claims=True)
        task = asyncio.ensure_future(watcher.run())
        await until(lambda: watcher.synced)
        for path, value in OBJECTS.items():
            await api.put(path, {key: copy.deepcopy(part) for key, part in value.items() if key != "kind"})
        await until(lambda: "gpu1" in cluster.ledger.nodes and has(cluster, "p") == {1: 6})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for code, reason in ((403, "Forbidden"), (404, "NotFound")):
            # Of the first list, and of the second one.
            api.faults = [fail(code, reason)]
            assert not await may_follow_claims(client)
            api.faults = [passed, fail(code, reason)]
            assert not await may_follow_claims(client)
        api.faults.append(fail(500))
        with pytest.raises(KubeError):
            await may_follow_claims(client)


def test_a_warning_comes_once_however_often_the_cluster_is_looked_at() -> None:
    cluster = Cluster()
    for one in slices_of(A30):
        cluster.set_slice(one)
    cluster.set_claim(claim("c", [(T4, "6Gi")], pods=("p",)))
    for _ in range(3):
        cluster.settle()
    for _ in range(3):
        cluster.set_pod(pod("p", {"gpushare-m6": "c"}))
    assert [text.partition(" has a GPU that node gpu1 does not have")[0] for text in cluster.warnings] == ["pod default/c", "pod default/p"]


async def test_a_watch_follows_slices_and_claims(tmp_path: Path) -> None:
    async with cluster_of_claims(tmp_path) as (api, client):
        cluster = Cluster()
        await fill(client, cluster, "", "default")
        watcher = Watcher(client, cluster, "")
        task = asyncio.ensure_future(watcher.run())
        await until(lambda: watcher.synced)
        await api.put(f"{ROOT}/namespaces/default/resourceclaims/c", claim("c", [(A30, "7Gi")], pods=["p"]))
        await until(lambda: has(cluster, "p") == {1: 7})
        (changed,) = slices_of(T4, replace(A30, cordoned=True))
        await api.put(f"{ROOT}/resourceslices/gpu1-gpushare.kubernetes-0", changed)
        await until(lambda: cluster.ledger.nodes["gpu1"].gpu_states[1].gpu.cordoned)
        await api.remove("/api/v1/namespaces/default/pods/p")
        await api.remove(f"{ROOT}/namespaces/default/resourceclaims/c")
        await until(lambda: not cluster.claims.claims)
        cluster.settle()
        assert frees(cluster) == [15, 24]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

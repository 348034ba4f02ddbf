# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs that fail, and GPUs that pods which are gone still use, by kubelet's, kube-scheduler's and kube-controller-manager's own word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from cluster_mode.in_cluster import NAMESPACE
from cluster_mode.installs import SECONDS, gpushare
from dra.shares import SLICES, allocated, check_not_over_booked, check_shares, gpus_by_device
from e2e.api import Json
from e2e.cluster import Cluster, is_running
from e2e.manifests import pod
from e2e.running import NODE, gpu

pytestmark = pytest.mark.suite("dra")

PLUGIN = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpushare-device-plugin"
SETTINGS = "gpushare.kubernetes/settings"


def device_of(cluster: Cluster, name: str) -> str:
    """The device of a pod with memory on one GPU."""
    (share,) = allocated(cluster)[cluster.pod(name)["metadata"]["uid"]]
    return share.device


def taints(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Device of the node → value and effect of its taint, of those that have one."""
    slices = [one["spec"] for one in cluster.api.items(SLICES) if one["spec"]["nodeName"] == NODE]
    tainted = [(device["name"], taint) for one in slices for device in one["devices"] for taint in device.get("taints", ())]
    return {name: (taint["value"], taint["effect"]) for name, taint in tainted}


def health(cluster: Cluster, name: str) -> dict[str, str]:
    """Device → its health, in the status that kubelet has written of a pod."""
    statuses = cluster.pod(name)["status"].get("containerStatuses") or []
    found = [one for status in statuses for one in status.get("allocatedResourcesStatus") or []]
    # kubelet names a device by the first of its CDI devices.
    return {one["resourceID"].rpartition("=")[2].lower(): one["health"] for each in found for one in each["resources"]}


@dataclass(frozen=True)
class Two:
    """The devices of the pods `bad` and `good`, each with more than half of a GPU of one node, and the index of the first one."""

    bad: str
    good: str
    index: int


@pytest.fixture
def two(empty: Cluster) -> Iterator[Two]:
    """Afterwards the node's GPUs are well."""
    for name in ("bad", "good"):
        empty.create(pod(name, memory=9, node=NODE))
        empty.until_running(name)
    bad, good = (device_of(empty, name) for name in ("bad", "good"))
    assert bad != good
    found = Two(bad, good, gpus_by_device(empty)[NODE, bad].index)
    yield found
    mend(empty, found)


def fail(cluster: Cluster, two: Two) -> None:
    """Lost first: one that answers after its XID is well again after some checks."""
    gpu(cluster, "lost", two.index)
    gpu(cluster, "xid", two.index, 79)


def mend(cluster: Cluster, two: Two) -> None:
    gpu(cluster, "back", two.index)
    cluster.until("no GPU has a taint", lambda: taints(cluster) == {}, 60)


def test_kubelet_says_in_the_pods_status_that_its_gpu_has_failed_and_no_pod_is_placed_there(empty: Cluster, two: Two) -> None:
    for name, device in (("bad", two.bad), ("good", two.good)):
        empty.until(f"kubelet has the health of the GPU of {name}", lambda: health(empty, name) == {device: "Healthy"}, 60)  # noqa: B023
    fail(empty, two)
    empty.until("the GPU has failed by kubelet's word", lambda: health(empty, "bad") == {two.bad: "Unhealthy"}, 60)
    assert health(empty, "good") == {two.good: "Healthy"}
    assert taints(empty) == {two.bad: ("unhealthy", "NoSchedule")}
    # By default its pods stay.
    assert is_running(empty.pod("bad"))
    empty.create(pod("more", memory=7, node=NODE))
    empty.until_running("more")
    assert device_of(empty, "more") == two.good
    empty.create(pod("waits", memory=7, node=NODE))
    assert "cannot allocate all claims" in empty.until_unschedulable("waits")
    mend(empty, two)
    empty.until("it is well by kubelet's word", lambda: health(empty, "bad") == {two.bad: "Healthy"}, 60)
    empty.until_running("waits")
    assert device_of(empty, "waits") == two.bad
    assert check_not_over_booked(empty) == []


@pytest.fixture
def evicting(cluster: Cluster) -> Iterator[None]:
    """The device plugins with `unhealthy: evict`; afterwards as they were."""

    def put(before: str, after: str) -> None:
        annotations = cluster.api.get(PLUGIN)["spec"]["template"]["metadata"]["annotations"]
        assert before in annotations[SETTINGS]
        changed = {SETTINGS: annotations[SETTINGS].replace(before, after)}
        cluster.api.patch(PLUGIN, {"spec": {"template": {"metadata": {"annotations": changed}}}})
        rollout = ("rollout", "status", "-n", NAMESPACE, "daemonset/gpushare-device-plugin", f"--timeout={SECONDS:g}s")
        cluster.kubectl(*rollout, seconds=SECONDS + 20)

    report, evict = 'unhealthy: "report"', 'unhealthy: "evict"'
    put(report, evict)
    yield
    put(evict, report)


def deployment(name: str, memory: int) -> Json:
    made = pod(name, memory=memory, node=NODE)
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {**made["spec"], "terminationGracePeriodSeconds": 1}}
    template["spec"].pop("restartPolicy", None)
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_with_evict_kubernetes_ends_the_pods_of_a_gpu_that_fails_and_the_next_one_has_another_gpu(
    evicting: None, empty: Cluster, two: Two
) -> None:
    empty.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(deployment("server", 6)))

    def server() -> Json | None:
        found = [one for one in empty.pods() if one["metadata"]["name"].startswith("server") and is_running(one)]
        return found[0] if len(found) == 1 and "deletionTimestamp" not in found[0]["metadata"] else None

    def device() -> str:
        return device_of(empty, empty.until("one server runs", server, 60)["metadata"]["name"])

    assert device() == two.bad
    kept = empty.pod("good")["status"]["containerStatuses"][0]["containerID"]
    fail(empty, two)
    empty.until("its pods are gone", lambda: "bad" not in {one["metadata"]["name"] for one in empty.pods()}, 90)
    assert taints(empty) == {two.bad: ("unhealthy", "NoExecute")}
    empty.until("the next server has the other GPU", lambda: server() is not None and device() == two.good, 90)
    assert empty.pod("good")["status"]["containerStatuses"][0]["containerID"] == kept
    mend(empty, two)
    assert check_not_over_booked(empty) == []


def test_a_gpu_takes_no_pods_while_one_that_is_gone_runs_there(empty: Cluster) -> None:
    """kubelet is away, and somebody deletes the pod by force: kube-scheduler gives its memory away, and the container runs."""
    for name, memory in (("gone", 16), ("stays", 9)):
        empty.create(pod(name, memory=memory, node=NODE))
        empty.until_running(name)
    device, uid = device_of(empty, "gone"), empty.pod("gone")["metadata"]["uid"]
    empty.on(NODE, "systemctl", "stop", "kubelet")
    try:
        empty.api.delete("/api/v1/namespaces/default/pods/gone", gracePeriodSeconds="0")
        empty.until("its claim is gone", lambda: uid not in allocated(empty), 60)
        empty.until("its GPU is closed", lambda: taints(empty) == {device: ("in-use", "NoSchedule")}, 60)
        empty.create(pod("next", memory=16, node=NODE))
        empty.create(pod("beside", memory=7, node=NODE))
        empty.until("kube-scheduler has placed the small one", lambda: empty.pod("beside")["spec"].get("nodeName"), 30)
        assert device_of(empty, "beside") == device_of(empty, "stays")
        assert "cannot allocate all claims" in empty.until_unschedulable("next")
        assert "processes of pods that are gone use its memory" in gpushare(empty, "status")
    finally:
        empty.on(NODE, "systemctl", "start", "kubelet")
    # kubelet ends what it has no pod for.
    running = empty.until_running("stays", "beside", "next", seconds=120)
    assert device_of(empty, "next") == device
    assert taints(empty) == {}
    assert check_shares(empty, running, {"stays": 9, "beside": 7, "next": 16}) == []
    assert check_not_over_booked(empty) == []

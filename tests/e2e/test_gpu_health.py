# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs that fail, are kept back, are exchanged, and come back; and drivers that go away or are upgraded under running pods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest

from e2e.api import ApiError
from e2e.checks import check_devices, check_follows, check_runs, check_totals, check_unschedulable
from e2e.cluster import CONTROL_PLANE, GPUS, MEMORY, Cluster, allocation, annotations_of
from e2e.manifests import pod
from e2e.running import NODE, PLUGIN, NodeState, Say, check_untouched, container, gpu, node_state

pytestmark = pytest.mark.suite("gpus")

UNHEALTHY = f"/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-{NODE}"
ALL = {MEMORY: 32, GPUS: 2}


@dataclass(frozen=True)
class Held:
    """Both GPUs are in use: `good` has 12 of its 16 units taken by the pod `most`, `bad` 5 by the pod `some`."""

    good: int
    bad: int
    before: NodeState


@pytest.fixture
def held(empty: Cluster) -> Iterator[Held]:
    """Pods on both GPUs of a node; afterwards its GPUs are well again."""
    for name, memory in (("most", 12), ("some", 5)):
        empty.create(pod(name, memory=memory, node=NODE))
        empty.until_running(name)
    (good,), (bad,) = allocation(empty.pod("most")), allocation(empty.pod("some"))
    assert good != bad
    yield Held(good, bad, node_state(empty))
    gpu(empty, "driver", "ok")
    for index in (good, bad):
        gpu(empty, "back", index)
    empty.annotate(f"/api/v1/nodes/{NODE}", {"gpushare/cordon": None})
    empty.clear()
    assert check_follows(empty, NODE) == []
    with suppress(ApiError):
        empty.api.delete(UNHEALTHY)


def health(cluster: Cluster) -> dict[int, str]:
    """GPU → "ok", or what is wrong with it, as the device plugin has published it."""
    found = json.loads(annotations_of(cluster.node(NODE))["gpushare/gpus"])["gpus"]
    return {c["index"]: "cordoned" if c["health"] == "ok" and c.get("cordoned") else c["health"] for c in found}


def listed(cluster: Cluster) -> str | None:
    """The GPUs in the map for the original's extender; None without it."""
    try:
        return str((cluster.api.get(UNHEALTHY).get("data") or {}).get("gpus", ""))
    except ApiError:
        return None


def allocatable(cluster: Cluster) -> dict[str, int]:
    found = cluster.node(NODE)["status"]["allocatable"]
    return {resource: int(found.get(resource, 0)) for resource in (MEMORY, GPUS)}


def reported(cluster: Cluster, name: str) -> bool:
    """Whether an Event of the pod or node reports an unusable GPU; those of a former pod of the name do not count."""
    uid = name if name == NODE else cluster.pod(name)["metadata"]["uid"]
    return any((event["reason"], event["involvedObject"].get("uid")) == ("GPUShareGPUUnusable", uid) for event in cluster.events(name))


def follow(cluster: Cluster, say: Say, what: str, since: float, wanted: Mapping[str, int]) -> None:
    """Wait until kubelet has so many healthy ids, and until its node status, which it sends every 10 s, says so."""
    cluster.until(f"kubelet has {wanted}", lambda: dict(node_state(cluster).registered) == wanted, 25)
    say(f"{what}: known to kubelet", time.monotonic() - since)
    cluster.until(f"allocatable is {wanted}", lambda: allocatable(cluster) == wanted, 25)
    say(f"{what}: allocatable in the node's status", time.monotonic() - since)


# What befalls one GPU, and what ends it.


def befall(cluster: Cluster, kind: str, index: int) -> None:
    if kind == "cordon":
        cluster.annotate(f"/api/v1/nodes/{NODE}", {"gpushare/cordon": str(index)})
        return
    if kind == "xid_79":
        gpu(cluster, "xid", index, 79)
    gpu(cluster, "lost", index)


def mend(cluster: Cluster, kind: str, index: int) -> None:
    if kind == "cordon":
        cluster.annotate(f"/api/v1/nodes/{NODE}", {"gpushare/cordon": None})
    else:
        gpu(cluster, "back", index)


@pytest.mark.parametrize("kind", ["lost", "xid_79", "cordon"])
def test_a_gpu_is_out_of_use_and_back(empty: Cluster, held: Held, say: Say, kind: str) -> None:
    since = time.monotonic()
    befall(empty, kind, held.bad)
    empty.until("the extender's inventory says so", lambda: health(empty)[held.bad] != "ok", 25)
    say(f"GPU {kind}: published", time.monotonic() - since)
    assert health(empty)[held.good] == "ok"
    if kind != "cordon":
        for name in ("some", NODE):
            empty.until(f"an event of {name} reports it", partial(reported, empty, name), 25)
        assert not reported(empty, "most")
    empty.until("the map for the original's extender has the GPU", lambda: listed(empty) == str(held.bad), 25)
    # Free ids first; what is held goes with its pod. The whole GPU is gone at once, since nobody has it whole.
    follow(empty, say, f"GPU {kind}", since, {MEMORY: 16 + 5, GPUS: 1})
    assert check_untouched(held.before, node_state(empty)) == []
    # The good GPU goes on taking pods, and the other takes none.
    empty.create(pod("more", memory=4, node=NODE))
    assert check_runs(empty, "more") == []
    assert list(allocation(empty.pod("more"))) == [held.good]
    empty.create(pod("waits", memory=8, node=NODE))
    empty.create(pod("waits-whole", gpus=1, node=NODE))
    assert check_unschedulable(empty, "waits") == []
    assert check_unschedulable(empty, "waits-whole") == []
    since = time.monotonic()
    empty.delete("some")
    follow(empty, say, f"GPU {kind}: its last pod deleted", since, {MEMORY: 16, GPUS: 1})
    since = time.monotonic()
    mend(empty, kind, held.bad)
    empty.until("the GPU is offered again", lambda: health(empty)[held.bad] == "ok", 60)
    say(f"GPU {kind}: usable again after its end", time.monotonic() - since)
    empty.until("the map has none", lambda: listed(empty) == "", 25)
    # Both were waiting for that GPU: one of them gets it now.
    empty.delete("waits-whole")
    assert check_runs(empty, "waits", seconds=60) == []
    assert list(allocation(empty.pod("waits"))) == [held.bad]
    follow(empty, say, f"GPU {kind}: ended", since, ALL)
    assert check_devices(empty, map(empty.pod, ("most", "more", "waits"))) == []
    assert check_totals(empty) == []


def test_an_error_of_the_application_changes_nothing(empty: Cluster, held: Held) -> None:
    published = annotations_of(empty.node(NODE))["gpushare/gpus"]
    since = time.time()
    gpu(empty, "xid", held.bad, 31)

    def heard() -> bool:
        return "the GPU stays usable: XID 31" in empty.on(NODE, "journalctl", "-u", PLUGIN, "--since", f"@{int(since)}")

    empty.until("the device plugin has heard of it", heard, 25)
    # Whatever it makes of it, it has made before it answers the next admission.
    empty.create(pod("more", memory=8, node=NODE))
    assert check_runs(empty, "more") == []
    assert list(allocation(empty.pod("more"))) == [held.bad]
    assert annotations_of(empty.node(NODE))["gpushare/gpus"] == published
    assert dict(node_state(empty).registered) == allocatable(empty) == ALL
    assert check_untouched(held.before, node_state(empty)) == []


def test_an_error_of_the_gpu_takes_it_out_until_it_passes_its_checks(empty: Cluster, held: Held, say: Say) -> None:
    """XID 48, an uncorrectable memory error, of a GPU that goes on answering."""
    since = time.monotonic()
    gpu(empty, "xid", held.bad, 48)
    empty.until("the GPU is out of use", lambda: "XID 48" in health(empty)[held.bad], 25)
    say("XID 48: published", time.monotonic() - since)
    empty.until("the GPU is offered again", lambda: health(empty)[held.bad] == "ok", 60)
    say("XID 48: usable again after three checks", time.monotonic() - since)
    assert check_untouched(held.before, node_state(empty)) == []


# What kubelet's own status says of a lost GPU (allocatedResourcesStatus, Kubernetes 1.36).


def resource_health(cluster: Cluster, name: str) -> set[str]:
    """What the pod's status has of the health of its ids; empty before kubelet has reported it."""
    statuses = cluster.pod(name)["status"].get("containerStatuses") or []
    found = (resource for status in statuses for resource in status.get("allocatedResourcesStatus") or [])
    return {one["health"] for resource in found for one in resource["resources"]}


def test_kubelet_calls_a_lost_gpu_healthy_and_its_restart_ends_no_pod_there(empty: Cluster, held: Held) -> None:
    """Were its ids unhealthy, kubelet would fail each pod there whose init container has had some, and the good GPU would lose as many."""
    prepared = pod("prepared", memory=6, node=NODE)
    prepared["spec"]["initContainers"] = [container("prepare", 6, "true")]
    empty.create(prepared)
    assert check_runs(empty, "prepared", seconds=60) == []
    assert list(allocation(empty.pod("prepared"))) == [held.bad]
    empty.until("kubelet reports the health of its ids", lambda: resource_health(empty, "prepared"), 60)
    before = node_state(empty)
    gpu(empty, "lost", held.bad)
    empty.until("an event of the pod reports it", partial(reported, empty, "prepared"), 25)
    left = {MEMORY: 16 + 5 + 6, GPUS: 1}
    empty.until(f"allocatable is {left}", lambda: allocatable(empty) == left, 25)
    empty.on(NODE, "systemctl", "restart", "kubelet")
    empty.until("kubelet has the ids again", lambda: dict(node_state(empty).registered) == left, 60)
    # kubelet admits the pods again before it says that it is there; each of its reports is newer than that.
    for name in ("some", "prepared"):
        assert resource_health(empty, name) == {"Healthy"}
        assert empty.pod(name)["status"]["phase"] == "Running"
    assert check_untouched(before, node_state(empty)) == []


# Other GPUs in the same places.


def shown(cluster: Cluster, *words: str) -> str:
    """What `kubectl gpushare` prints, whatever its exit status."""
    command = " ".join(["kubectl", "gpushare", *words])
    return cluster.on(CONTROL_PLANE, "sh", "-c", f"KUBECONFIG=/etc/kubernetes/admin.conf {command} 2>&1 || true")


def exchange(cluster: Cluster) -> None:
    """As on a virtual machine that has moved to another host: as many GPUs of the same size in the same places, with other UUIDs."""
    cluster.on(NODE, "/usr/local/sbin/gpushare-lab-gpu", "set", "--gpus", "2x16", "--node", "elsewhere", "--seed", "exchanged")


@pytest.fixture
def exchangeable(empty: Cluster) -> Iterator[Cluster]:
    """Afterwards the node has its own GPUs."""
    yield empty
    empty.lab("gpu", NODE, "--gpus", "2x16")


def test_pods_whose_gpus_are_not_in_the_node_any_more(held: Held, exchangeable: Cluster, say: Say) -> None:
    cluster, old = exchangeable, {gpu.index: gpu.uuid for gpu in exchangeable.gpus(NODE)}
    since = time.monotonic()
    exchange(cluster)
    for name in ("most", "some", NODE):
        cluster.until(f"an event of {name} reports it", partial(reported, cluster, name), 25)
    say("GPUs exchanged: told to their pods", time.monotonic() - since)
    assert f"Its GPU {old[held.bad]} is not in node {NODE} any more" in " ".join(event["message"] for event in cluster.events("some"))
    # What the pods have is on no GPU, and takes nothing from kube-scheduler's count of the node either.
    left = {MEMORY: 32 + 12 + 5, GPUS: 2}
    cluster.until(f"allocatable is {left}", lambda: allocatable(cluster) == left, 25)
    say("GPUs exchanged: allocatable in the node's status", time.monotonic() - since)
    pods = shown(cluster, "pods", "-n", "default")
    assert pods.count("bound, GPU gone") == 2, pods
    assert f"5 GiB of GPU {old[held.bad]}, which is not in this node any more" in pods
    gpus = shown(cluster, "gpus", NODE)
    assert gpus.count("gone: not in this node any more") == 2, gpus
    assert f"GPU {old[held.bad]} is not in this node any more; pods: default/some" in shown(cluster, "status")
    assert f"has 5 GiB of GPU {old[held.bad]}, which is not in this node any more" in shown(cluster, "explain", "some")
    doctor = cluster.on(NODE, "sh", "-c", "/opt/gpushare/current/bin/gpushare-doctor || true")
    assert "gpu_gone" in doctor, doctor
    # The GPUs that are there now are empty.
    cluster.create(pod("new", memory=16, node=NODE))
    cluster.create(pod("new-whole", gpus=1, node=NODE))
    assert check_runs(cluster, "new") == check_runs(cluster, "new-whole") == []
    assert check_devices(cluster, map(cluster.pod, ("new", "new-whole"))) == []
    # A container that ends cannot start again; a restart of kubelet, which needs that pod no more, does not change that.
    cluster.on(NODE, "kill", "-9", str(node_state(cluster).containers["some/main"].pid))

    def waits() -> str:
        (status,) = cluster.pod("some")["status"]["containerStatuses"]
        return str((status["state"].get("waiting") or {}).get("message", ""))

    cluster.until("kubelet says why it does not start", lambda: "of its ids are of no GPU in this node" in waits(), 60)
    cluster.delete("most", "some")
    left = {MEMORY: 32, GPUS: 2}
    cluster.until(f"allocatable is {left}", lambda: allocatable(cluster) == left, 25)
    assert "gone" not in shown(cluster, "gpus", NODE)
    assert "is not in this node any more" not in shown(cluster, "status")
    assert check_totals(cluster) == []


# The driver.


@pytest.mark.parametrize("kind", ["gone", "upgraded"])
def test_the_driver_goes_away_under_running_pods(empty: Cluster, held: Held, say: Say, kind: str) -> None:
    """Gone: the module is unloaded. Upgraded: the library on disk is a new one, the module in the kernel is not."""
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    since = time.monotonic()
    if kind == "gone":
        gpu(empty, "driver", "gone")
    else:
        gpu(empty, "driver", "mismatch")
        empty.on(NODE, "sh", "-c", f"f=$(readlink -f {library}) && cp -p $f $f.new && mv $f.new $f")
    # Without a driver no GPU is known to be well: nothing is offered but what pods hold, and after a new start of the plugin nothing.
    left = {MEMORY: 12 + 5, GPUS: 0} if kind == "gone" else {MEMORY: 0, GPUS: 0}
    empty.until(f"allocatable is {left}", lambda: allocatable(empty) == left, 25)
    say(f"driver {kind}: allocatable in the node's status", time.monotonic() - since)
    cure = "modprobe nvidia" if kind == "gone" else "after a driver upgrade: reboot the host"
    empty.until("the plugin's status says what to do", lambda: cure in empty.on(NODE, "systemctl", "show", "-p", "StatusText", PLUGIN), 25)
    assert check_untouched(held.before, node_state(empty)) == []
    empty.create(pod("waits", memory=3, node=NODE))
    assert check_unschedulable(empty, "waits", MEMORY) == []
    since = time.monotonic()
    gpu(empty, "driver", "ok")
    assert check_runs(empty, "waits", seconds=60) == []
    say(f"driver {kind}: a waiting pod runs after its return", time.monotonic() - since)
    empty.until("all is offered again", lambda: allocatable(empty) == ALL, 60)
    say(f"driver {kind}: allocatable is back", time.monotonic() - since)
    assert check_devices(empty, map(empty.pod, ("most", "some", "waits"))) == []
    assert check_untouched(held.before, node_state(empty)) == []

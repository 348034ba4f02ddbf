# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A burst of GPU pods that all wait and are let go at once, the room for them, and what became of them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from e2e.api import ApiError, Json
from e2e.checks import check_devices, check_totals
from e2e.cluster import GPU_NODES, GPUS, MEMORY, Cluster, allocation, annotations_of, asked, is_running, unschedulable
from e2e.manifests import pod
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.quantity import GIB

T = TypeVar("T")

PODS = "/api/v1/namespaces/default/pods"
# Nodes that no kubelet serves: a real one would need minutes for so many pods on one machine.
NODES, NODE_GPUS, GPU_UNITS = 24, 4, 16
# On so many of them a good third of the pods finds room.
FIRST = 8
# A pod waits for a node with this label: "gpu" once the burst may begin.
_GATE, _REAL, _MADE = "gpushare-test/burst", "real", "made"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 40
# The real nodes' 32 and 40 units to the last one, and 1316 of the other nodes' 1536: three sizes, so that order matters.
_SIZES = {_REAL: [4] * 18, _MADE: [2, 4, 8] * 94}


@dataclass(frozen=True)
class Fall:
    """What one kill of the leader has cost. Seconds after the kill; conflicts: of units booked twice, or rejected by a node."""

    way: str
    former: str
    leader: str
    bound_before: int
    bound_after: int
    opened_s: float
    first_bound_s: float
    last_bound_s: float
    told_to_wait: int
    conflicts: int

    def __str__(self) -> str:
        return (
            f"{self.way:9} of {self.former}, then {self.leader}: {self.bound_before} pods bound before and {self.bound_after} after; "
            f"extender answers after {self.opened_s:.1f} s, first pod bound after {self.first_bound_s:.1f} s, the last after "
            f"{self.last_bound_s:.1f} s; {self.told_to_wait} pods told to wait; {self.conflicts} conflicts"
        )


class Room:
    """Nodes with GPUs beside the two real ones, alive as long as this is: their leases are renewed here."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.names = [f"made-{number:02}" for number in range(NODES)]
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Room:
        at_once(self.cluster, self._make_node, self.names, done_already=409)
        at_once(self.cluster, self._make_lease, self.names, done_already=409)
        self._renewing.start()
        at_once(self.cluster, self._make_ready, self.names)
        self.cluster.until("the made nodes take pods", lambda: not self._tainted(), 120)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._renewing.join()
        at_once(self.cluster, lambda name: self.cluster.api.delete(f"/api/v1/nodes/{name}"), self.names, done_already=404)
        at_once(self.cluster, lambda name: self._label(name, None), GPU_NODES)

    def open_a_third(self) -> None:
        """Let as many pods go as the first nodes take."""
        self._open([*GPU_NODES, *self.names[:FIRST]])

    def open(self) -> None:
        """Let the others go, too."""
        self._open(self.names[FIRST:])

    def _open(self, names: Iterable[str]) -> None:
        at_once(self.cluster, lambda name: self._label(name, _REAL if name in GPU_NODES else _MADE), names)

    def close(self) -> None:
        """Keep new pods waiting."""
        at_once(self.cluster, lambda name: self._label(name, None), [*self.names, *GPU_NODES])

    def _make_node(self, name: str) -> None:
        gpus = tuple(
            Gpu(i, f"GPU-{int(name[-2:]):08x}-0000-0000-0000-{i:012x}", i, f"0000:{i:02x}:00.0", "Tesla T4", GPU_UNITS * 1024, GPU_UNITS)
            for i in range(NODE_GPUS)
        )
        annotations = {"gpushare/gpus": Inventory(GIB, gpus).to_json()}
        labels = {"kubernetes.io/hostname": name, "gpushare": "true"}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        # Schedulers that are pods must not go where nothing runs them.
        spec = {"taints": [{"key": _GATE, "effect": "NoSchedule"}]}
        self.cluster.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})

    def _make_lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": _time()}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        self.cluster.api.create(_LEASES, lease)

    def _make_ready(self, name: str) -> None:
        amounts = {MEMORY: str(NODE_GPUS * GPU_UNITS), GPUS: str(NODE_GPUS), "cpu": "64", "memory": "512Gi", "pods": "250"}
        conditions = [{"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": _time()}]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
        self.cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _renew(self) -> None:
        while not self._ended.wait(_LEASE_SECONDS / 8):
            for name in self.names:
                try:
                    self.cluster.api.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": _time()}})
                except (ApiError, OSError):
                    # A control plane is gone: the lease lasts until the next time.
                    break

    def _tainted(self) -> list[str]:
        return [
            node["metadata"]["name"]
            for node in self.cluster.nodes()
            if len(node["spec"].get("taints", ())) > 1 and node["metadata"]["name"] in self.names
        ]

    def _label(self, node: str, value: str | None) -> None:
        self.cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {_GATE: value}}})


def manifests(seed: int) -> list[Json]:
    """The pods of a burst, 300, in an order of its own."""
    made = []
    for kind, sizes in _SIZES.items():
        for number, size in enumerate(sizes):
            one = pod(f"burst-{kind}-{number:03}", memory=size)
            one["spec"]["nodeSelector"] = {_GATE: kind}
            one["spec"]["automountServiceAccountToken"] = False
            one["spec"]["tolerations"] = [{"key": _GATE, "operator": "Exists"}]
            made.append(one)
    random.Random(seed).shuffle(made)
    return made


def until_all_wait(cluster: Cluster, count: int) -> None:
    """Until the scheduler has looked at each pod and placed none."""

    def wait() -> bool:
        found = cluster.pods()
        assert not any(one["spec"].get("nodeName") for one in found)
        return sum(1 for one in found if unschedulable(one)) == count

    cluster.until(f"{count} pods wait", wait, 180)


def bound(cluster: Cluster) -> list[Json]:
    """The pods that have a node."""
    return cluster.api.items(PODS, fieldSelector="spec.nodeName!=")


def settled(cluster: Cluster, real: set[str]) -> list[Json] | None:
    """All bound pods, once those on real nodes, by their names, run or were rejected."""
    found = bound(cluster)
    done = {one["metadata"]["name"] for one in found if is_running(one) or one["status"].get("phase") == "Failed"}
    return found if real <= done else None


def chosen_at(one: Json) -> float:
    """When the extender chose the GPU, in seconds since the epoch."""
    return int(annotations_of(one)["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]) / 1e9


def clear(cluster: Cluster) -> None:
    """Delete all pods; no kubelet would confirm those on nodes that have none."""
    others = ",".join(f"spec.nodeName!={name}" for name in GPU_NODES)
    cluster.api.delete(PODS, fieldSelector=others, gracePeriodSeconds="0")
    cluster.clear()


def conflicts(cluster: Cluster, pods: Iterable[Json]) -> list[str]:
    """What was given away twice: by annotations on all nodes, by device nodes on the real ones, or a pod that its node rejected."""
    pods = list(pods)
    booked = Counter((one["spec"]["nodeName"], gpu) for one in pods for gpu, units in allocation(one).items() for _ in range(units))
    real = [one for one in pods if one["spec"]["nodeName"] in GPU_NODES]
    rejected = [one for one in real if one["status"].get("phase") == "Failed"]
    return [
        *(f"{one['metadata']['name']} has no GPU in its annotations" for one in pods if not allocation(one)),
        *(f"{units} of {GPU_UNITS} units of GPU {c} of {n} are booked" for (n, c), units in booked.items() if _too_many(n, c, units)),
        *(f"{one['metadata']['name']} was rejected by its node: {one['status'].get('message')}" for one in rejected),
        *check_totals(cluster),
        *check_devices(cluster, real),
        *_by_device_nodes(cluster, real),
    ]


def _too_many(node: str, gpu: int, units: int) -> bool:
    return node not in GPU_NODES and (units > GPU_UNITS or gpu >= NODE_GPUS)


def _by_device_nodes(cluster: Cluster, pods: Iterable[Json]) -> list[str]:
    """The GPUs that containers really have, against what the driver says; annotations are not asked."""
    sizes = {(node, f"nvidia{gpu.minor}"): gpu.mib // 1024 for node in GPU_NODES for gpu in cluster.gpus(node)}
    held: Counter[tuple[str, str]] = Counter()
    for container in cluster.containers(pods):
        for device in container.devices:
            held[container.pod["spec"]["nodeName"], device] += asked(container.spec, MEMORY)
    found = [
        f"containers with /dev/{d} of {n} ask for {held[n, d]} units, the GPU has {size}"
        for (n, d), size in sizes.items()
        if held[n, d] > size
    ]
    return found if held else ["no container on the real nodes has a GPU"]


def at_once(cluster: Cluster, work: Callable[[T], object], items: Iterable[T], done_already: int = 0) -> None:
    """Do the work on all items, eight at a time, each again while the API server does not answer.

    done_already: the status by which it says that an attempt whose answer did not come has done it.
    """

    def insist(item: T) -> None:
        def done() -> bool:
            try:
                work(item)
            except ApiError as error:
                if error.status != done_already:
                    raise
            return True

        cluster.until("the API server takes a request", done, 60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insist, items))


def _time() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

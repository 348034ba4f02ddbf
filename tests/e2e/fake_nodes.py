# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Nodes that are objects in the API and no machines: pods are placed there, which nobody starts.

GPUs, labels and what the node says of itself are whatever a test needs, and a pod is placed in a moment and gone in another. Their leases
are renewed, or else kube-controller-manager would call them not ready within a minute, which a busy machine takes for one test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from e2e.api import Api, ApiError, Json
from e2e.cluster import CORE, GPUS, MEMORY, Cluster, allocation
from e2e.manifests import pod

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_SECONDS = 10
FAKE_NODE = "gpushare-fake-node"
T4 = "Tesla T4"

Gpu = int | tuple[int, str]
"""GiB, or GiB and model."""


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def inventory(node: str, gpus: Sequence[Gpu], core: int = 0) -> str:
    """The annotation gpushare/gpus. core: per cent of each GPU's compute that is shared out."""
    listed = []
    for index, gpu in enumerate(gpus):
        units, model = gpu if isinstance(gpu, tuple) else (gpu, T4)
        size = {"model": model, "mib": units * 1024, "units": units, "numa": None, "health": "ok", "cordoned": False}
        listed.append({"index": index, "uuid": uuid(node, index), "minor": index, "pci": f"0000:{index:02x}:00.0", **size})
    return json.dumps({"v": 1, "unit": "GiB", **({"core": core} if core else {}), "gpus": listed})


@contextmanager
def fake_nodes(
    cluster: Cluster, nodes: Mapping[str, Sequence[Gpu]], *, core: int = 0, labels: Mapping[str, str] | None = None
) -> Iterator[None]:
    """These nodes more for a while, each with its GPUs; afterwards no pod of `fake_pod` is left either."""
    try:
        for name, gpus in nodes.items():
            _create(cluster, name, gpus, core, labels or {})
        with _renewed(cluster.api, nodes):
            cluster.until("the GPUs of the nodes are known", lambda: set(nodes) <= cluster.nodes_with_gpus(), 30)
            yield
    finally:
        remove(cluster, *(p["metadata"]["name"] for p in cluster.pods() if FAKE_NODE in p["metadata"].get("labels", {})))
        for name in nodes:
            cluster.api.delete(f"{NODES}/{name}")
        # The next ones may have the same names.
        cluster.until("the nodes and their pods are forgotten", lambda: not set(nodes) & cluster.nodes_with_gpus(), 60)


@contextmanager
def _renewed(api: Api, names: Iterable[str]) -> Iterator[None]:
    """The lease of each node, which its kubelet would renew."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            for name in names:
                # A control plane may restart under a test.
                with suppress(ApiError, OSError):
                    api.patch(f"{LEASES}/{name}", {"spec": {"renewTime": _now()}})

    for name in names:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
        api.create(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec})
    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for name in names:
            with suppress(ApiError):
                api.delete(f"{LEASES}/{name}")


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _create(cluster: Cluster, name: str, gpus: Sequence[Gpu], core: int, labels: Mapping[str, str]) -> None:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, FAKE_NODE: "", **labels}}
    cluster.api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    cluster.publish_gpus(name, inventory(name, gpus, core))
    units = sum(gpu[0] if isinstance(gpu, tuple) else gpu for gpu in gpus)
    has = {"cpu": "8", "memory": "8Gi", "pods": "100", MEMORY: str(units), GPUS: str(len(gpus))}
    has |= {CORE: str(core * len(gpus))} if core else {}
    cluster.api.patch(f"{NODES}/{name}/status", {"status": {"capacity": has, "allocatable": has}})


def fake_pod(
    name: str,
    memory: int | None = None,
    *,
    gpus: int | None = None,
    core: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "",
) -> Json:
    """A pod for one fake node, or for any. scheduler: another than the cluster's; "nobody" leaves it to the test."""
    wanted = pod(name, memory=memory, gpus=gpus)
    wanted["metadata"] |= {"labels": {FAKE_NODE: "", **(labels or {})}, "annotations": dict(annotations or {})}
    spec = wanted["spec"]
    if core is not None:
        spec["containers"][0]["resources"]["limits"][CORE] = str(core)
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), FAKE_NODE: ""}
    # Nobody reports such a node ready, and nobody would end its pods.
    spec |= {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    if scheduler:
        spec["schedulerName"] = scheduler
    return wanted


def placed(cluster: Cluster, wanted: Json, seconds: float = 30) -> Json:
    """The pod, created and bound by the scheduler."""
    name = cluster.create(wanted)["metadata"]["name"]
    return until_placed(cluster, name, seconds)


def until_placed(cluster: Cluster, name: str, seconds: float = 30) -> Json:
    def probe() -> Json | None:
        found = cluster.pod(name)
        return found if found["spec"].get("nodeName") else None

    return cluster.until(f"{name} is placed", probe, seconds, name)


def where(found: Json) -> tuple[str, dict[int, int]]:
    """Node, and units by GPU, of a pod that is placed."""
    return found["spec"]["nodeName"], allocation(found)


def until_unschedulable(cluster: Cluster, wanted: Json) -> str:
    """The reason that the scheduler gives for the pod, which is created and stays."""
    name = cluster.create(wanted)["metadata"]["name"]
    return cluster.until_unschedulable(name)


def remove(cluster: Cluster, *names: str) -> None:
    """Delete pods at once, as nobody on their nodes would."""
    for name in names:
        cluster.api.delete(f"{PODS}/{name}", gracePeriodSeconds="0")
    cluster.until(f"{', '.join(names)} are gone", lambda: not {p["metadata"]["name"] for p in cluster.pods()} & set(names), 30)

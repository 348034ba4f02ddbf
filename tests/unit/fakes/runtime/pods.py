# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods, GPUs and inventories for the tests, written as users and the device plugin write them."""

from __future__ import annotations

from typing import Any

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request


def container(name: str = "main", **limits: object) -> dict[str, Any]:
    """mem=, count=, core= become limits of the extended resources."""
    names = {"mem": "aliyun.com/gpu-mem", "count": "aliyun.com/gpu-count", "core": "aliyun.com/gpu-core.percentage"}
    return {"name": name, "resources": {"limits": {names[key]: str(value) for key, value in limits.items()}}}


def pod(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **metadata: Any) -> dict[str, Any]:
    """A v1.Pod with these containers and metadata (labels=, annotations=, uid=, …)."""
    spec: dict[str, Any] = {"containers": list(containers)}
    if init:
        spec["initContainers"] = init
    return {"metadata": {"name": "p", "namespace": "default", **metadata}, "spec": spec}


def gpu(index: int, units: int, **changes: Any) -> Gpu:
    """A healthy GPU of `units` GiB."""
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08d}",
        "minor": index,
        "pci": f"0000:{index:02x}:00.0",
        "model": "Tesla T4",
        "mib": units * 1024,
        "units": units,
    }
    return Gpu(**(fields | changes))


def inventory(*units: int) -> Inventory:
    """Healthy GPUs 0, 1, … of these sizes in GiB."""
    return Inventory(GIB, tuple(gpu(i, u) for i, u in enumerate(units)))


def pending(request: Request, namespace: str = "default", labels: tuple[tuple[str, str], ...] = (), uid: str = "new") -> PendingPod:
    """A pod on no node with this request."""
    return PendingPod(uid, namespace, uid, request, labels)


def memory(units: int) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units),))


def whole(gpus: int) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", whole_gpus=gpus),))


def allocated_pod(uid: str, request: Request, allocation: Allocation | None, node: str = "n") -> AllocatedPod:
    return AllocatedPod(uid, "default", uid, node, request, allocation)


def on(index: int, units: int) -> Allocation:
    return Allocation.of({0: {index: units}})


def ledger_of(gpus: Inventory | None) -> Ledger:
    """One that knows the node n with these."""
    ledger = Ledger()
    ledger.set_inventory("n", gpus)
    return ledger


def frees(ledger: Ledger, node: str = "n") -> list[int]:
    found = ledger.node(node)
    assert found is not None
    return [state.free for state in found.gpu_states]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The nodes and pods of the benchmark, made through the API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.protocol import ANNOTATION_GPUS, RESOURCE_GPUS, RESOURCE_MEMORY
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.kube.client import KubeClient

GPUS: Final = 8
UNITS: Final = 16
PODS: Final = "/api/v1/namespaces/default/pods"
_AT_ONCE: Final = 64


async def make_nodes(client: KubeClient, count: int, gpus: int = GPUS) -> dict[str, Inventory]:
    """Nodes of so many GPUs, as the device plugin and kubelet would have published them; their GPUs by name."""
    resources = {"cpu": "64", "memory": "512Gi", "pods": "250", RESOURCE_MEMORY: str(gpus * UNITS), RESOURCE_GPUS: str(gpus)}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    inventories = {f"node-{number:05d}": Inventory(GIB, _gpus(number, gpus)) for number in range(count)}

    async def make(name: str, inventory: Inventory) -> None:
        annotations = {ANNOTATION_GPUS: inventory.to_json(), "kwok.x-k8s.io/node": "fake"}
        labels = {"kubernetes.io/hostname": name, "gpushare": "true"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": annotations}}
        await client.create("/api/v1/nodes", node)
        await client.patch(f"/api/v1/nodes/{name}/status", {"status": status}, kind="merge")

    await all_of(make(name, inventory) for name, inventory in inventories.items())
    return inventories


def _gpus(node: int, count: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(i, f"GPU-{node:08x}-0000-0000-0000-{i:012x}", i, f"0000:{i:02x}:00.0", "Tesla T4", UNITS * 1024, UNITS) for i in range(count)
    )


def pending(number: int) -> dict[str, Any]:
    """A pod of one to eight units."""
    container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: str(1 + number % 8)}}}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}


async def make_pod(client: KubeClient, pod: Mapping[str, Any]) -> None:
    await client.create(PODS, pod)


async def all_of(works: Iterable[Awaitable[None]]) -> None:
    """Do all of these, some at a time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Awaitable[None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in works))

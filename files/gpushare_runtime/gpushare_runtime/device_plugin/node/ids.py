# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Device ids: the GPUs that they belong to, and the allocation of the pod whose containers have them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, allocation_of
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.request import ContainerRequest, Request
from gpushare_runtime.core.unit_ids import gpu_of_unit

AllocatedIds = Mapping[tuple[str, str], Collection[str]]
"""(container, resource) → the ids that it has."""


class DeviceKey(NamedTuple):
    """A container and a resource of which it has ids. pod: its UID."""

    pod: str
    container: str
    resource: str


@dataclass(frozen=True)
class CheckpointEntry:
    """The ids of one resource that one container has.

    index: NVML index of the GPU that another device plugin gave the container, whatever its ids; None where the ids name the GPU.
    """

    pod: str  # UID; kubelet's own for a static pod, not the API server's
    container: str
    resource: str
    ids: frozenset[str]
    index: int | None = None


def actual_allocation(
    request: Request, allocated: AllocatedIds, inventory: Inventory, elsewhere: Mapping[tuple[str, str], int] | None = None
) -> Allocation | None:
    """The allocation of a pod with these ids; None until every requesting container has its ids, all of GPUs in the inventory.

    elsewhere: as `allocated`, the GPU (NVML index) of containers whose ids do not name it.
    """
    own: dict[int, dict[int, int]] = {}
    kept: set[str] = set()
    of_init: dict[str, tuple[str, int | None]] = {}
    for container in request.containers:
        for resource in _resources(container):
            ids = allocated.get((container.name, resource))
            if ids is None:
                return None
            index = (elsewhere or {}).get((container.name, resource))
            if container.keeps:
                units = _units_by_gpu(ids, resource, inventory, index)
                if units is None:
                    return None
                own.setdefault(container.key, {}).update(units)
                kept.update(ids)
            else:
                of_init.update(dict.fromkeys(ids, (resource, index)))
    extra: dict[int, int] = {}
    for device_id, (resource, index) in of_init.items():
        if device_id not in kept:
            units = _units_by_gpu([device_id], resource, inventory, index)
            if units is None:
                return None
            for index, more in units.items():
                extra[index] = extra.get(index, 0) + more
    return allocation_of(request, own, extra)


def _resources(container: ContainerRequest) -> Iterable[str]:
    if container.units:
        yield protocol.RESOURCE_MEMORY
    if container.whole_gpus:
        yield protocol.RESOURCE_GPUS


def _units_by_gpu(ids: Collection[str], resource: str, inventory: Inventory, index: int | None) -> dict[int, int] | None:
    if index is not None:
        return {index: len(ids)} if index in inventory.by_index else None
    units: dict[int, int] = {}
    for device_id in ids:
        memory = resource == protocol.RESOURCE_MEMORY
        gpu = inventory.by_uuid.get(gpu_of_unit(device_id) if memory else device_id)
        if gpu is None:
            return None
        units[gpu.index] = units.get(gpu.index, 0) + (1 if memory else gpu.units)
    return units

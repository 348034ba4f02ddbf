# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The response to Allocate: the environment and the access to its GPUs that a container gets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.core.mps import client_access
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer
from gpushare_runtime.device_plugin.node.strategy import GpuAccess, access_to


@dataclass(frozen=True)
class AllocateResult:
    """The response to Allocate. access: what makes the container runtime hand over the GPUs."""

    environment: Mapping[str, str]
    access: GpuAccess
    gpus: tuple[Gpu, ...]
    container: PendingContainer | None
    as_planned: bool | None  # whether these are the GPUs that the scheduler planned; None if it planned none


def allocate_response(
    resource: str,
    ids: Collection[str],
    gpus: tuple[Gpu, ...],
    container: PendingContainer | None,
    strategy: str = protocol.STRATEGY_ENVIRONMENT,
    unit_mib: int = 0,
    isolation: str = "",
    cdi_kind: str = protocol.CDI_KIND,
) -> AllocateResult:
    """gpus: those of the ids, by index. strategy: of protocol.STRATEGIES. unit_mib: size of a unit. isolation, cdi_kind: of this node."""
    units = len(ids) if resource == protocol.RESOURCE_MEMORY else sum(gpu.units for gpu in gpus)
    pod_units, as_planned = units, None
    if container is not None:
        planned = container.devices.units_by_gpu
        if container.pod.allocation is not None:
            pod_units = container.pod.allocation.units
            if resource == protocol.RESOURCE_GPUS:
                # Other GPUs than the planned ones may have another size.
                pod_units += units - (sum(planned.values()) or units)
        elif container.pod.request is not None and resource == protocol.RESOURCE_MEMORY:
            pod_units = container.pod.request.units
        as_planned = set(planned) == {gpu.index for gpu in gpus} if planned else None
    access = access_to(strategy, gpus, cdi_kind)
    environment = {
        protocol.ENV_VISIBLE_DEVICES: access.visible,
        protocol.ENV_INDEX: str(gpus[0].index),
        protocol.ENV_GPU_UNITS: str(gpus[0].units),
        protocol.ENV_CONTAINER_UNITS: str(units),
        protocol.ENV_POD_UNITS: str(pod_units),
    }
    if isolation == protocol.ISOLATION_MPS and len(gpus) == 1:
        # Whole GPUs have no limits. Several of them have no common control daemon: one process may use each.
        mib = units * unit_mib if resource == protocol.RESOURCE_MEMORY else None
        client = client_access(gpus[0].uuid, mib, core_of(container))
        environment.update(client.environment)
        access = replace(access, mounts=(*access.mounts, *client.mounts))
    return AllocateResult(environment, access, gpus, container, as_planned)


def core_of(container: PendingContainer | None) -> int:
    """Per cent of the GPU's compute that the container requests; 0 without a request."""
    request = container.pod.request if container is not None else None
    return next((c.core for c in request.containers if c.name == container.devices.container), 0) if container and request else 0

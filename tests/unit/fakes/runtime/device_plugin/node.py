# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The state of a node under kubelet's device manager, one request after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses

MEMORY, GPUS = RESOURCES


class Node:
    """The plugin's state under kubelet's device manager, without sockets. `now` is the clock; looks: how often it asked for processes."""

    def __init__(self, gpus: Inventory, seed: int = 0) -> None:
        self.now = 1000.0
        self.pods = PodTable(lambda: self.now)
        self.pods.replace([])
        self.processes = FakeProcesses()
        self.live = self.processes.live
        self.state = NodeState(self.pods, lambda: self.now, lambda: 1_774_000_000.0 + self.now, self.processes)
        self.state.devices.set_inventory(gpus)
        self.manager = DeviceManager(None, self._prefer, self._allocate, seed)
        self.file: tuple[CheckpointEntry, ...] = ()
        self.manager.write = self._write  # type: ignore[method-assign]
        for resource in RESOURCES:
            self.manager.healthy[resource] = {i for i, good in self.state.devices.reported(resource) if good}

    @property
    def looks(self) -> int:
        return self.processes.looks

    def free(self, resource: str) -> set[str]:
        """The ids that kubelet could give."""
        return self.manager.healthy[resource] - self.manager.allocated.get(resource, set())

    def _write(self) -> None:
        self.file = tuple(
            CheckpointEntry(e["PodUID"], e["ContainerName"], e["ResourceName"], frozenset(e["DeviceIDs"]["-1"]))
            for e in self.manager.entries()
        )
        self.state.recorder.set_checkpoint(self.file)

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        try:
            return self.state.allocator.prefer(resource, available, must, size)[0]
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        try:
            return dict(self.state.allocator.allocate(resource, ids).environment)
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    def see(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The watch shows the pod."""
        self.pods.event("MODIFIED", parse_local_pod(pod))
        return pod

    def takes(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The plugin sees the pod, and kubelet admits it."""
        self.admit(self.see(pod))
        return pod

    def admit(self, pod: dict[str, Any]) -> dict[str, dict[str, str]]:
        return asyncio.run(self.manager.admit(pod))

    def delete(self, pod: dict[str, Any]) -> None:
        """The pod ended, kubelet forgot it and the API server removed it."""
        self.manager.active.discard(pod["metadata"]["uid"])
        self.pods.event("DELETED", parse_local_pod(stopped(pod)))

    def force_delete(self, pod: dict[str, Any], *, alive: bool) -> None:
        """The pod object goes at once, and with it kubelet's memory of it; its processes may stay."""
        self.manager.active.discard(pod["metadata"]["uid"])
        if alive:
            self.live.add(pod["metadata"]["uid"])
        self.pods.event("DELETED", parse_local_pod(pod))


def stopped(pod: dict[str, Any]) -> dict[str, Any]:
    """As kubelet reports it before it lets go of a pod."""
    return {**pod, "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {}}}]}}


def ids_of(node: Node, pod: dict[str, Any], name: str = "main") -> set[str]:
    return node.manager.given[pod["metadata"]["uid"]][name][MEMORY]


def indexes_of(environments: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: environment["ALIYUN_COM_GPU_MEM_IDX"] for name, environment in environments.items()}


def with_gpu(node: Node, index: int, **changes: Any) -> None:
    read = node.state.devices.inventory
    assert read is not None
    node.state.devices.set_inventory(Inventory(read.unit, tuple(replace(c, **changes) if c.index == index else c for c in read.gpus)))

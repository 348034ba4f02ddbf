# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The two plugins that the churn is run through: ours, and the original's way of finding the pod that kubelet asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpushare_runtime.core.quantity import unit_id
from gpushare_runtime.device_plugin.node.allocator import AllocationRejected
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.node.usage import Processes
from gpushare_runtime.device_plugin.publish.node_annotations import report
from gpushare_runtime.device_plugin.publish.pod_annotations import allocation_in, annotations_due
from gpushare_runtime.extender.cache import FORCED_SECONDS
from unit.runtime.device_plugin.churn import UNIX, Churn
from unit.runtime.device_plugin.device_manager import AdmissionError, StartError


class Ours:
    """NodeState and what the plugin does around it. processes: None for those of the world."""

    holds_for = FORCED_SECONDS

    def __init__(self, world: Churn, state: Any, processes: Processes | None = None) -> None:
        self._world = world
        self.node = NodeState(PodTable(lambda: world.heard), lambda: world.clock, lambda: UNIX + world.clock, processes or world)
        if state is not None:
            self.node.usage.restore(*state)
        self.node.devices.set_inventory(world.gpus)

    def devices(self, resource: str) -> set[str]:
        return {device_id for device_id, good in self.node.devices.reported(resource) if good}

    def prefer(self, resource: str, available: list[str], must: list[str], size: int, more: Callable[[], bool]) -> list[str]:
        while self.node.pending.match(resource, size) is None and more():
            pass
        try:
            return self.node.allocator.prefer(resource, available, must, size)[0]
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    def allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        try:
            return dict(self.node.allocator.allocate(resource, ids).environment)
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    def start(self, resource: str, ids: list[str]) -> None:
        try:
            self.node.allocator.may_start(resource, ids)
        except AllocationRejected as rejection:
            raise StartError(str(rejection)) from None

    def asks_before_start(self, resource: str) -> bool:
        return not self.node.usage.any_record_lost(resource)

    def see(self, kind: str, pod: dict[str, Any]) -> None:
        self.node.pods.event(kind, parse_local_pod(pod))

    def listed(self, pods: list[dict[str, Any]]) -> None:
        self.node.pods.replace([parse_local_pod(pod) for pod in pods])

    def checkpoint(self, entries: list[dict[str, Any]]) -> None:
        self.node.usage.set_checkpoint(
            tuple(CheckpointEntry(e["PodUID"], e["ContainerName"], e["ResourceName"], frozenset(e["DeviceIDs"]["-1"])) for e in entries)
        )

    def settle(self) -> None:
        self.node.allocator.release_terminated()
        self._world.state = self.node.usage.snapshot(), dict(self.node.usage.names())

    def patches(self) -> Iterator[tuple[str, dict[str, str]]]:
        assert self.node.devices.inventory is not None
        for pod in self.node.pods:
            actual = None if pod.finished else allocation_in(pod, self.node.usage.entries_of(pod.uid), self.node.devices.inventory)
            due = annotations_due(pod, actual, self.node.devices.inventory, 1) if actual else {}
            if due:
                yield pod.uid, due

    def held(self, now: float) -> tuple[dict[int, int], set[tuple[int, int]]]:
        assert self.node.devices.inventory is not None
        said, by_uuid = report(self.node), self.node.devices.inventory.by_uuid
        units: dict[int, int] = {}
        for entry in said.entries:
            units[by_uuid[entry.gpu].index] = units.get(by_uuid[entry.gpu].index, 0) + entry.units
        return units, {(by_uuid[r.gpu].index, r.units) for r in said.rejected if r.until > now}


class Original:
    """Its Allocate: of the pods that are assumed and not assigned, the one assumed first whose total is the number of ids.

    No preferred ids (kubelet takes any), no memory of processes, no word to the scheduler. Whole GPUs it does not have: they
    are given by their ids here.
    """

    holds_for = 0.0

    def __init__(self, world: Churn, _: Any) -> None:
        self._world = world
        self._assigned: list[str] = []

    def devices(self, resource: str) -> set[str]:
        gpus = self._world.gpus.gpus
        if resource == "aliyun.com/gpu-count":
            return {gpu.uuid for gpu in gpus}
        return {unit_id(gpu.uuid, slot) for gpu in gpus for slot in range(gpu.units)}

    def prefer(self, resource: str, available: list[str], must: list[str], size: int, more: Callable[[], bool]) -> list[str]:
        return []

    def allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        if resource == "aliyun.com/gpu-count":
            return {"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(ids))}
        candidates = []
        # It lists the pods at the API server.
        for pod in self._world.api.values():
            annotations = pod.object["metadata"].get("annotations") or {}
            if pod.object["status"]["phase"] == "Pending" and annotations.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "false":
                candidates.append((int(annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]), pod))
        for _, pod in sorted(candidates, key=lambda item: item[0]):
            annotations = pod.object["metadata"]["annotations"]
            # It adds up spec.containers alone.
            if sum(c.units for c in pod.request.containers if c.index >= 0 and c.kind.name == "APP") == len(ids):
                annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
                return {"NVIDIA_VISIBLE_DEVICES": self._world.gpus.by_index[int(annotations["ALIYUN_COM_GPU_MEM_IDX"])].uuid}
        return {"NVIDIA_VISIBLE_DEVICES": f"no-gpu-has-{len(ids)}GiB-to-run"}

    def start(self, resource: str, ids: list[str]) -> None: ...

    def asks_before_start(self, resource: str) -> bool:
        return False

    def see(self, kind: str, pod: dict[str, Any]) -> None: ...

    def listed(self, pods: list[dict[str, Any]]) -> None: ...

    def checkpoint(self, entries: list[dict[str, Any]]) -> None: ...

    def settle(self) -> None: ...

    def patches(self) -> Iterator[tuple[str, dict[str, str]]]:
        return iter(())

    def held(self, now: float) -> tuple[dict[int, int], set[tuple[int, int]]]:
        return {}, set()

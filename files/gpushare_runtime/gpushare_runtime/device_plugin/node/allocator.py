# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Two decisions for kubelet: which ids it should allocate, and whether a container gets what it allocated.

kubelet requests devices for one container after another, and knows which ids of a resource are free. The plugin decides what kubelet
cannot: both resources share the same GPUs, the scheduler planned a GPU, processes may still use ids. No I/O: clocks are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.core.reasons import RejectionReason
from gpushare_runtime.core.unit_ids import gpu_uuids_of
from gpushare_runtime.device_plugin.node.allocate_response import AllocateResult, allocate_response, core_of
from gpushare_runtime.device_plugin.node.container_start import ContainerStarts
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Processes, Usage
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer
from gpushare_runtime.device_plugin.node.preferred_ids import CandidateGpu, Candidates
from gpushare_runtime.device_plugin.node.rejections import DELETE_POD, AllocationRejected, Rejections
from gpushare_runtime.device_plugin.node.requesting_container import PendingContainers
from gpushare_runtime.device_plugin.node.sentences import gpu_name, requested, unavailable, used_by_others

# kubelet requests devices for a few containers at a time, and allocates what it prefers immediately.
_REMEMBERED: Final = 8
# Each one takes about a millisecond.
_MOST_TRIED: Final = 16


@dataclass(frozen=True)
class Allocator:
    """The allocations of the node, for one event loop only."""

    devices: Devices
    usage: Usage
    recorder: UsageRecorder
    pending: PendingContainers
    candidates: Candidates
    rejections: Rejections
    starts: ContainerStarts
    processes: Processes  # of this host; scanned only if a pod may run without a record of kubelet
    preferred: dict[str, OrderedDict[frozenset[str], PendingContainer | None]] = field(default_factory=dict)
    """Resource → ids that the plugin preferred → the container that they were for."""

    def release_terminated(self) -> None:
        """Release the ids of terminated pods without a process. Scans processes if there are terminated pods."""
        self.recorder.release_terminated(self.processes.pods)

    # GetPreferredAllocation.

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int, moment: int | None = None
    ) -> tuple[list[str], PendingContainer | None]:
        """The ids that kubelet should allocate, and the container that the request seems to be for.

        It raises AllocationRejected if the GPUs lack them. available: all ids that kubelet has free, with `must_include`, which kubelet
        kept from an init container of the same pod. moment: the usage's, when the request came; None for now.
        """
        free, required = set(available), set(must_include)
        self.recorder.observe_available(resource, free.difference(required) if required else free, moment)
        doubtful = self.recorder.detect_terminated()
        container = self.pending.match(resource, size)
        admitted = container is None
        if admitted:
            container = self.pending.match(resource, size, late=True)
        ids, candidates = self.candidates.choose(resource, free, required, size, container)
        if doubtful and (ids is None or not self.candidates.as_planned(resource, ids, container)):
            # A scan takes time: only where released ids would make a difference.
            self.release_terminated()
            ids, candidates = self.candidates.choose(resource, free, required, size, container)
        if ids is None and admitted and container is not None:
            self.starts.note_shortage(container)
            ids, container = self._for_another(resource, free, required, size, container)
        if ids is None:
            raise self._reject(container, self._shortage(resource, size, candidates, container), "no-room")
        remembered = self.preferred.setdefault(resource, OrderedDict())
        remembered[frozenset(ids)] = container
        remembered.move_to_end(frozenset(ids))
        if len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        return ids, container

    def _for_another(
        self, resource: str, free: Collection[str], must_include: Collection[str], size: int, lacking: PendingContainer
    ) -> tuple[list[str] | None, PendingContainer]:
        """The ids for another container of this size that kubelet may be starting, where `lacking` finds none."""
        tried = {lacking.key}
        while len(tried) < _MOST_TRIED and (other := self.pending.match(resource, size, late=True, not_for=tried)) is not None:
            ids, _ = self.candidates.choose(resource, free, must_include, size, other)
            if ids is not None:
                return ids, other
            tried.add(other.key)
        return None, lacking

    # Allocate.

    def allocate(self, resource: str, ids: Collection[str]) -> AllocateResult:
        """The response for a container with these ids. It raises AllocationRejected if it must not have one of their GPUs."""
        given = frozenset(ids)
        doubtful = self.recorder.detect_terminated()
        remembered = self.preferred.get(resource, OrderedDict())
        # Without a preceding request for a preference kubelet reuses the ids of an init container of the pod that it admits.
        container = remembered.pop(given) if given in remembered else self.pending.match(resource, len(given))
        gpus = self._gpus_of(resource, given, container)
        conflict = self._conflict(resource, given, gpus, container)
        if conflict and doubtful:
            self.release_terminated()
            conflict = self._conflict(resource, given, gpus, container)
        if conflict:
            raise self._reject(container, f"{resource}: {conflict}; {DELETE_POD}", "unavailable")
        self.recorder.record_grant(resource, given, container)
        if container is not None:
            self.starts.forget_failures(container.pod.uid)
        if self.devices.isolation == protocol.ISOLATION_MPS and resource == protocol.RESOURCE_MEMORY:
            self.starts.note_share(given, core_of(container))
        unit = self.devices.inventory.unit.mib if self.devices.inventory else 0
        devices = self.devices
        return allocate_response(resource, given, gpus, container, devices.strategy, unit, devices.isolation, devices.cdi_kind)

    def _gpus_of(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> tuple[Gpu, ...]:
        known = self.devices.gpu_of(resource)
        unknown = sorted(i for i in ids if i not in known)
        if unknown or not ids:
            found = f"id {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") if unknown else "no id"
            gpus = ", ".join(gpu_name(gpu) for gpu in self.devices.gpus)
            text = f"{resource}: kubelet gives {found}, of no GPU in this node ({gpus or 'which has none'}); {DELETE_POD}"
            raise self._reject(container, text, "unknown-ids")
        units: dict[Gpu, int] = {}
        for i in ids:
            units[known[i]] = units.get(known[i], 0) + 1
        needed = self.pending.gpus_per_pod(resource, len(ids), container)
        if resource == protocol.RESOURCE_MEMORY and (len(units) != needed or len(set(units.values())) != 1):
            parts = ", ".join(f"{units[gpu]} of {gpu_name(gpu)}" for gpu in sorted(units, key=lambda c: c.index))
            needs = "one GPU" if needed == 1 else f"the same on each of {needed} GPUs"
            text = f"{resource}: kubelet gives one container units of {len(units)} GPUs ({parts}), it needs {needs}; {DELETE_POD}"
            raise self._reject(container, text, "gpu-count")
        return tuple(sorted(units, key=lambda gpu: gpu.index))

    def _conflict(self, resource: str, ids: frozenset[str], gpus: Collection[Gpu], container: PendingContainer | None) -> str:
        """Why these ids are not available now; "" if they are."""
        users = self.usage.gpu_users()
        for gpu in gpus:
            why = unavailable(resource, gpu, users, self.usage.pod_name)
            if why:
                return f"{gpu_name(gpu)} {why}"
        if uid := self.usage.allocated_to_others(resource, ids, container):
            return f"kubelet gives ids that {self.usage.pod_name(uid)} has"
        return used_by_others(resource, ids, {container.key} if container else set(), self.usage, self.processes)

    # Why something is not available.

    def _shortage(self, resource: str, size: int, candidates: Collection[CandidateGpu], container: PendingContainer | None) -> str:
        inventory, memory = self.devices.inventory, resource == protocol.RESOURCE_MEMORY
        if inventory is None or not inventory.gpus:
            return f"{resource}: this node has no GPUs that answer; see the status of gpushare-device-plugin on it"
        orphaned: dict[str, set[str]] = {}
        for (uid, _, _), ids in self.usage.still_in_use(resource).items():
            for uuid in gpu_uuids_of(resource, ids):
                orphaned.setdefault(uuid, set()).add(self.usage.pod_name(uid))
        users, by_uuid = self.usage.gpu_users(), {candidate.gpu.uuid: candidate for candidate in candidates}
        gpus = []
        for gpu in inventory.gpus:
            candidate = by_uuid.get(gpu.uuid)
            free = len(candidate.ids) if candidate else 0
            has = f"has {free} free" if memory else "is free" if free else "is taken"
            if candidate and not candidate.fallback:
                has += " but is not the one it was placed on"
            if gpu.uuid in orphaned:
                has += f" (processes of {', '.join(sorted(orphaned[gpu.uuid]))} use some that kubelet has freed)"
            gpus.append(f"GPU {gpu.index} {unavailable(resource, gpu, users, self.usage.pod_name) or has}")
        asked = requested(resource, size, container.devices.gpus_per_pod if container else 1, inventory)
        return f"{resource}: asked for {asked}, but {', '.join(gpus)}; {DELETE_POD}"

    def _reject(self, container: PendingContainer | None, text: str, reason: RejectionReason) -> AllocationRejected:
        if container is None:
            return AllocationRejected(text, reason)
        self.pending.reject(container.pod)
        whole, inventory = container.devices.resource == protocol.RESOURCE_GPUS, self.devices.inventory
        for index, units in container.devices.units_by_gpu.items():
            gpu = inventory.by_index.get(index) if inventory else None
            if gpu is not None:
                self.rejections.add(container.pod.uid, gpu.uuid, units, whole=whole)
        if container.pod.allocation is None:
            text += f". The scheduler extender has not placed pod {container.pod}: check that kube-scheduler is configured to call it"
        return AllocationRejected(text, reason)

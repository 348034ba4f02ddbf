# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which of the free ids a container gets: those of the planned GPU, else those of the best other GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.core.unit_ids import gpu_uuids_of
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.id_usage import Processes, Usage
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import ContainerDevices, LocalPod, PendingContainer, PodTable
from gpushare_runtime.device_plugin.node.requesting_container import PendingContainers
from gpushare_runtime.device_plugin.node.sentences import unavailable


@dataclass(frozen=True)
class CandidateGpu:
    """A GPU with ids that may be allocated."""

    gpu: Gpu
    ids: Sequence[str]  # best first; for whole GPUs: its UUID
    reserved_for_others: int = 0  # units that the scheduler planned for pods without ids
    fallback: bool = True  # it may replace the planned GPU


def choose_planned(
    candidates: Sequence[CandidateGpu], size: int, must_include: Collection[str], planned: Mapping[int, int], room: int = 0
) -> list[str] | None:
    """`size` unit ids with `must_include` among them, as planned (GPU index → units); None if the GPUs lack them.

    room: units that must be free on each of the GPUs, for the other containers of the pod.
    """
    if not planned or sum(planned.values()) != size:
        return None
    by_index = {candidate.gpu.index: candidate for candidate in candidates}
    parts = [(by_index.get(index), units) for index, units in planned.items()]
    ids = [i for found, units in parts if found and len(found.ids) >= max(units, room) for i in _take(found.ids, units, must_include)]
    return ids if len(ids) == size and set(must_include) <= set(ids) else None


def choose_units(
    candidates: Sequence[CandidateGpu],
    size: int,
    must_include: Collection[str],
    planned: Mapping[int, int],
    gpus_per_pod: int = 1,
    room: int = 0,
) -> list[str] | None:
    """`size` unit ids with `must_include` among them; None if the GPUs lack them.

    Tries the plan first (GPU index → units), then the best `gpus_per_pod` other GPUs, with the same number of units each. It
    prefers GPUs with `room` for all containers of the pod, then GPUs that keep what is reserved for others, then the fullest.
    """
    chosen = choose_planned(candidates, size, must_include, planned, room)
    if chosen is not None:
        return chosen
    if gpus_per_pod < 1 or size % gpus_per_pod:
        return None
    each, required = size // gpus_per_pod, set(must_include)

    def rank(candidate: CandidateGpu) -> tuple[bool | int, ...]:
        free = len(candidate.ids)
        crowds_out = free - candidate.reserved_for_others < max(each, room)
        return required.isdisjoint(candidate.ids), free < room, crowds_out, free, candidate.gpu.index

    ranked = sorted((c for c in candidates if c.fallback and len(c.ids) >= each), key=rank)
    ids = [i for candidate in ranked[:gpus_per_pod] for i in _take(candidate.ids, each, must_include)]
    return ids if len(ids) == size and required <= set(ids) else None


def choose_gpus(
    candidates: Sequence[CandidateGpu], size: int, must_include: Collection[str], planned: Mapping[int, int], of_pod: Collection[int] = ()
) -> list[str] | None:
    """`size` GPU UUIDs with `must_include` among them; None if there are fewer.

    Prefers GPUs planned for the container (index), then its pod's others (`of_pod`), then GPUs with nothing reserved, smallest
    first. kubelet picks at random which of an init container's GPUs a later container gets.
    """

    def rank(candidate: CandidateGpu) -> tuple[bool | int, ...]:
        gpu, reserved = candidate.gpu, candidate.reserved_for_others > 0
        return gpu.uuid not in must_include, gpu.index not in planned, gpu.index not in of_pod, reserved, gpu.units, gpu.index

    of_plan = {*planned, *of_pod}
    allowed = (c for c in candidates if c.fallback or c.gpu.index in of_plan or c.gpu.uuid in must_include)
    chosen = [candidate.gpu.uuid for candidate in sorted(allowed, key=rank)[:size]]
    return chosen if len(chosen) == size and set(must_include) <= set(chosen) else None


def _take(ids: Sequence[str], count: int, must_include: Collection[str]) -> list[str]:
    if not must_include:
        return list(ids[:count])
    first = [i for i in ids if i in must_include]
    return (first + [i for i in ids if i not in must_include])[:count]


def allowed_gpus(
    container: PendingContainer | None, pods: Collection[LocalPod], has: Mapping[DeviceKey, Collection[int]]
) -> Collection[int] | None:
    """The GPUs (NVML index) that may replace the planned ones; None for any GPU with room.

    Where the plan depended on more than room, only a GPU that another pod of the same shape left for a different one.
    has: the GPUs that containers really have.
    """
    if container is None or container.pod.request is None or not container.devices.units_by_gpu:
        return None
    request = container.pod.request
    particular = request.core or request.rules.about_gpus or request.rules.about_pods
    if not particular and not any(pod.request and pod.request.rules.about_pods for pod in pods):
        return None
    allowed = set(container.devices.units_by_gpu)
    for pod in pods:
        same = pod.request is not None and pod.request.shape == request.shape and pod.labels == container.pod.labels
        if pod.uid == container.pod.uid or not same or pod.namespace != container.pod.namespace:
            continue
        for devices in pod.container_devices:
            gpus = has.get(DeviceKey(pod.uid, devices.container, devices.resource))
            if gpus is not None and devices.units_by_gpu:
                allowed |= set(devices.units_by_gpu) - set(gpus)
    return allowed


@dataclass(frozen=True)
class Candidates:
    """Chooses ids by the state of this node: its GPUs, the usage, and the plans for its pods."""

    pods: PodTable
    devices: Devices
    usage: Usage
    pending: PendingContainers
    processes: Processes

    def choose(
        self, resource: str, free: Collection[str], must_include: Collection[str], size: int, container: PendingContainer | None
    ) -> tuple[list[str] | None, list[CandidateGpu]]:
        """The best ids for the container, None if the GPUs lack them; and all candidates, if it had to consider them."""
        planned = self._planned(container.pod, container.devices) if container else {}
        of_pod = container.pod.allocation.by_gpu if container and container.pod.allocation else {}
        if resource == protocol.RESOURCE_GPUS:
            candidates = self._candidates(resource, free, must_include, container)
            return choose_gpus(candidates, size, must_include, planned, of_pod), candidates
        # Before the first container of a pod has any units, all must be free that its containers need on a GPU.
        request = container.pod.request if container and not self.usage.was_allocated(container.pod.uid) else None
        room = request.per_gpu if request else 0
        if container and planned:
            # Usually the planned GPUs have the ids, and the other GPUs need not be considered.
            on_planned = max((of_pod.get(index, 0) for index in container.devices.units_by_gpu), default=0) if request else 0
            candidates = self._candidates(resource, free, must_include, container, planned)
            chosen = choose_planned(candidates, size, must_include, planned, on_planned)
            if chosen is not None:
                return chosen, []
        candidates = self._candidates(resource, free, must_include, container)
        return choose_units(candidates, size, must_include, planned, self.pending.gpus_per_pod(resource, size, container), room), candidates

    def as_planned(self, resource: str, ids: Collection[str], container: PendingContainer | None) -> bool:
        """Whether these ids are of exactly the GPUs that the container should get."""
        if container is None:
            return False
        gpus = {self.devices.by_uuid[uuid].index for uuid in gpu_uuids_of(resource, ids)}
        return gpus == self._planned(container.pod, container.devices).keys()

    def _planned(self, pod: LocalPod, devices: ContainerDevices) -> Mapping[int, int]:
        """GPU index → units that this container should get: by the scheduler's plan, or where its pod has its GPUs instead."""
        moved = self._moved_to(pod, devices)
        return dict.fromkeys(sorted(moved), devices.size // devices.gpus_per_pod) if moved else devices.units_by_gpu

    def _moved_to(self, pod: LocalPod, devices: ContainerDevices) -> Collection[int]:
        """The GPUs (index) that the pod's other containers have instead of the planned ones; none if the plan stands.

        All containers of a pod share its GPUs. They differ from the plan if kubelet admits pods in another order than they were seen,
        or if there was no plan.
        """
        if devices.resource != protocol.RESOURCE_MEMORY:
            return ()
        plans = {(request.container, request.resource): request.units_by_gpu for request in pod.container_devices}
        # Ids that an init container got again after a lost record, long after it ended, move no pod.
        ended = () if pod.waiting else pod.ordinary_init
        others = {
            key: frozenset(gpus)
            for key, gpus in self._gpu_indexes().items()
            if key.pod == pod.uid
            and key.resource == devices.resource
            and key.container not in {devices.container, *ended}
            and len(gpus) == devices.gpus_per_pod
        }
        moved = [gpus for key, gpus in others.items() if gpus != (plans.get(key[1:]) or {}).keys()]
        return moved[0] if moved and all(gpus == moved[0] for gpus in moved) else ()

    def _candidates(
        self,
        resource: str,
        free: Collection[str],
        must_include: Collection[str],
        container: PendingContainer | None,
        only: Collection[int] = (),
    ) -> list[CandidateGpu]:
        """only: these GPUs (index), without what ranks them among others; () for all GPUs."""
        users = self.usage.gpu_users()
        former = self._former_ids(container)
        # kubelet may list as free what it has just given: it computes what is free, and other workers continue while it asks.
        taken = self.usage.counted_ids(resource).union(*self.usage.still_in_use(resource).values()).difference(former, must_include)
        reserved = {} if only else self._reserved_for_others(container)
        allowed = None if only else self._allowed(container)
        # Ids that kubelet has free, of memory that a container has whose ids are another GPU's.
        displaced = self.usage.displaced() if resource == protocol.RESOURCE_MEMORY else {}
        candidates = []
        for gpu in self.devices.gpus:
            if (only and gpu.index not in only) or unavailable(resource, gpu, users, self.usage.pod_name):
                continue
            all_ids = self.devices.ids_of(resource, gpu.uuid)
            ids = [i for i in all_ids if i in free and i not in taken] if taken else [i for i in all_ids if i in free]
            if former:
                # Its own former ids first: other containers of this size may have lost theirs.
                ids.sort(key=lambda i: i not in former)
            ids = ids[: max(0, len(ids) - max(0, displaced.get(gpu.uuid, 0)))]
            if ids:
                candidates.append(CandidateGpu(gpu, ids, reserved.get(gpu.index, 0), allowed is None or gpu.index in allowed))
        return candidates

    def _former_ids(self, container: PendingContainer | None) -> frozenset[str]:
        """The ids that the container had before kubelet lost its record, if the container cannot be using them."""
        former = self.usage.former_ids(container.key) if container else frozenset()
        running = former and container and self.usage.may_run(container.key, self.processes.containers)
        return frozenset() if running else former

    def _allowed(self, container: PendingContainer | None) -> Collection[int] | None:
        moved = self._moved_to(container.pod, container.devices) if container else ()
        return moved or allowed_gpus(container, list(self.pods), self._gpu_indexes())

    def _reserved_for_others(self, container: PendingContainer | None) -> dict[int, int]:
        """GPU index → units planned for other containers that have no ids yet."""
        reserved: dict[int, int] = {}
        for pod, devices in self.pending.planned(container):
            for index, units in self._planned(pod, devices).items():
                reserved[index] = reserved.get(index, 0) + units
        return reserved

    def _gpu_indexes(self) -> dict[DeviceKey, Collection[int]]:
        by_uuid = self.devices.by_uuid
        return {key: [by_uuid[c].index for c in gpus if c in by_uuid] for key, gpus in self.usage.gpu_uuids().items()}

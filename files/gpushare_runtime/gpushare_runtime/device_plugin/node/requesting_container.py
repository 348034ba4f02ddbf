# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container kubelet requests devices for: a request has only a resource and a size, but kubelet goes in a known order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpushare_runtime.device_plugin.node.id_usage import Processes, Usage
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import ContainerDevices, LocalPod, PendingContainer, PodTable


def next_requests(pod: LocalPod, allocated: Collection[DeviceKey], *, admitted: bool) -> list[ContainerDevices]:
    """The requests that kubelet may make next for this pod: for the first container that lacks something, in no known order.

    admitted: for any container that has ended, likeliest first: ordinary init containers run again only in a new sandbox.
    kubelet requests nothing for a container that runs, even if it lost its record.
    """
    left = [
        request
        for request in pod.container_devices
        if (pod.uid, request.container, request.resource) not in allocated and request.container not in pod.running
    ]
    if admitted:
        return sorted(left, key=lambda request: request.container in pod.ordinary_init)
    return [request for request in left if request.container == left[0].container]


def match_request(
    pods: Iterable[LocalPod],
    allocated: Collection[DeviceKey],
    resource: str,
    size: int,
    *,
    rejected: Collection[str] = (),
    late: bool = False,
) -> PendingContainer | None:
    """The first container, in admission order, that requests `size` of `resource` and is next in its pod.

    A pod of which some containers have their ids comes first: kubelet admits it now. late: also consider pods that kubelet should
    have admitted already (assigned, running, rejected) but does not record, as after a lost checkpoint.
    """
    best: tuple[int, PendingContainer] | None = None
    for pod in pods:
        past = not pod.waiting or pod.uid in rejected
        if pod.finished or (past and not late):
            continue
        devices = next(
            (request for request in next_requests(pod, allocated, admitted=past) if request.resource == resource and request.size == size),
            None,
        )
        if devices is None:
            continue
        begun = any((pod.uid, request.container, request.resource) in allocated for request in pod.container_devices)
        rank = (2 if past else 0) + (not begun)
        if best is None or rank < best[0]:
            best = rank, PendingContainer(pod, devices)
    return best[1] if best else None


@dataclass
class PendingContainers:
    """Matches kubelet's requests to the containers of this node that have no ids yet."""

    pods: PodTable
    usage: Usage
    processes: Processes
    rejected: set[str] = field(default_factory=set)  # UIDs

    def match(self, resource: str, size: int, *, late: bool = False, not_for: Collection[DeviceKey] = ()) -> PendingContainer | None:
        """The container that a request for `size` ids is for; None if no such pod is known (yet). not_for: it is none of these.

        Of containers without a record one comes first whose former ids are free: the others could not start now.
        """
        gone = self.usage.dropped_by_kubelet()
        known = [pod for pod in self.pods if pod.uid not in gone and self._may_be_requested(pod)]
        found = self._match(known, resource, size, not_for, late=late)
        if found is None and late:
            # The report of the API server may be old: the processes of these pods say whether they run.
            shown = [pod for pod in known if pod.running and self.usage.record_lost(pod.uid)]
            lost = [
                replace(pod, running=frozenset(c for c in pod.running if not self.usage.lost(DeviceKey(pod.uid, c, resource))))
                for pod in shown
            ]
            found = self._match(lost, resource, size, not_for, late=True)
        return found

    def _match(
        self, known: Collection[LocalPod], resource: str, size: int, not_for: Collection[DeviceKey], *, late: bool
    ) -> PendingContainer | None:
        allocated, other = self.usage.allocated().union(not_for), None
        while found := match_request(known, allocated, resource, size, rejected=self.rejected, late=late):
            # kubelet requests nothing for a container that lost its record and runs.
            if not self.usage.lost(found.key):
                return other or found
            if not self.usage.may_run(found.key, self.processes.containers):
                if len(self.usage.former_ids(found.key)) == size:
                    return found
                other = other or found
            allocated.add(found.key)
        return other

    def may_request(self) -> set[str]:
        """UIDs of the pods for which kubelet may request something at this moment: to admit them, or to start an ended container."""
        over, allocated = self.usage.dropped_by_kubelet(), self.usage.allocated()
        left = (
            (pod.uid, request)
            for pod in self.pods
            if pod.active and pod.uid not in over
            for request in next_requests(pod, allocated, admitted=True)
        )
        return {
            uid
            for uid, request in left
            if not self.usage.record_lost(uid)
            or not self.usage.may_run(DeviceKey(uid, request.container, request.resource), self.processes.containers)
        }

    def gpus_per_pod(self, resource: str, size: int, container: PendingContainer | None) -> int:
        """Of how many GPUs the container gets the same: if it is unknown, as all containers want it that lack such ids."""
        if container is not None:
            return container.devices.gpus_per_pod
        allocated = self.usage.allocated()
        shapes = {
            request.gpus_per_pod
            for pod in self.pods
            for request in pod.container_devices
            if pod.active
            and (request.resource, request.size) == (resource, size)
            and (pod.uid, request.container, resource) not in allocated
        }
        return shapes.pop() if len(shapes) == 1 else 1

    def reject(self, pod: LocalPod) -> None:
        """kubelet fails this pod and requests nothing more for it."""
        self.rejected = {other.uid for other in self.pods if other.uid in self.rejected or other.uid == pod.uid}

    def planned(self, other_than: PendingContainer | None) -> Iterator[tuple[LocalPod, ContainerDevices]]:
        """The ids that kubelet has yet to request for waiting pods, except for one container."""
        allocated = self.usage.allocated()
        for pod in self.pods:
            for devices in pod.container_devices if pod.waiting and pod.uid not in self.rejected and self._may_be_requested(pod) else ():
                key = pod.uid, devices.container, devices.resource
                if key not in allocated and not (other_than and other_than.key == key):
                    yield pod, devices

    def _may_be_requested(self, pod: LocalPod) -> bool:
        """kubelet creates the copy of a static pod, which anybody may forge, only after its request."""
        return not pod.static or self.usage.was_allocated(pod.uid)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pods of this node as the API server reports them, in the order in which kubelet admits them."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, read_allocation, wanted
from gpushare_runtime.core.request import Request, parse_request
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.errors import GpushareError

log = logging.getLogger(__name__)

# Many times more than a node has at once.
_REMEMBERED: Final = 1000
# kubelet identifies a static pod by a hash of its file, which an annotation of the API server's copy repeats. Anybody may write it;
# the API server's own UIDs have another form.
_STATIC_UID: Final = re.compile("[0-9a-f]{32}")
_MOST_TIME: Final = 40
# A file may have a UID, which kubelet then keeps.
_MOST_UID: Final = 64
UNREADABLE: Final = "it cannot be read; the log of gpushare-device-plugin has the reason"
_OURS: Final = (
    protocol.ANNOTATION_INDEX,
    protocol.ANNOTATION_GPU_UNITS,
    protocol.ANNOTATION_POD_UNITS,
    protocol.ANNOTATION_ASSIGNED,
    protocol.ANNOTATION_ASSUME_TIME,
    protocol.ANNOTATION_ALLOCATION,
)


@dataclass(frozen=True)
class ContainerDevices:
    """The request of kubelet for one container: `size` ids of `resource`."""

    container: str
    resource: str
    size: int
    units_by_gpu: Mapping[int, int] = field(default_factory=dict)  # NVML index → units, as planned by the scheduler; {} without a plan
    gpus_per_pod: int = 1  # the memory comes from so many GPUs, the same from each


class Deletion(NamedTuple):
    """at: Unix time of the API server at which it is over. seconds: that the pod has from its beginning on."""

    at: float
    seconds: int


@dataclass(frozen=True)
class LocalPod:
    """A pod of this node."""

    uid: str  # as kubelet knows it
    namespace: str
    name: str
    created: str
    phase: str
    static: bool = False  # from a file on the node: the API server has only a copy
    request: Request | None = None  # None without a valid request for our resources
    allocation: Allocation | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)  # only ours
    labels: Mapping[str, str] = field(default_factory=dict)
    running: frozenset[str] = frozenset()  # names of the containers that kubelet reported as running
    stopped: bool = False  # kubelet reported that all containers ended for good
    container_ids: Mapping[str, str] = field(default_factory=dict)  # container name → last ID that kubelet reported
    terminating: bool = False  # has a deletionTimestamp
    deletion: Deletion | None = None  # when kubelet kills what is left of it; None where that cannot be read
    container_devices: tuple[ContainerDevices, ...] = ()  # in the order in which kubelet requests them: init containers first
    problem: str = ""  # why request or allocation are missing
    mirror_uid: str = ""  # of a static pod: the UID of the API server's copy
    claims: str = ""  # the static pod's UID by the same annotation, if that could be another pod's

    @property
    def finished(self) -> bool:
        return self.phase in protocol.FINISHED_PHASES

    @property
    def active(self) -> bool:
        """Whether kubelet should run it, as far as the API server knows."""
        return not self.finished and not self.terminating

    @property
    def ordinary_init(self) -> frozenset[str]:
        """Init containers that end before the next one starts, and pass their ids on."""
        return frozenset(c.name for c in self.request.containers if not c.keeps) if self.request is not None else frozenset()

    def container_named(self, container_id: str) -> str:
        """The name of its container with this ID, "" for none."""
        return next((name for name, known in self.container_ids.items() if known.rpartition("//")[2] == container_id), "")

    @property
    def assigned(self) -> bool:
        """Whether a device plugin has confirmed that the containers have their GPUs."""
        return self.annotations.get(protocol.ANNOTATION_ASSIGNED) == "true"

    @property
    def placed_at(self) -> int:
        """When the scheduler chose its GPUs, Unix time in nanoseconds; 0 if unknown."""
        text = self.annotations.get(protocol.ANNOTATION_ASSUME_TIME, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0

    @property
    def annotatable(self) -> bool:
        """Whether annotations can report its GPUs: kubelet owns the copy of a static pod, and some requests have no annotation."""
        return not self.static and self.request is not None and not (self.request.units and self.request.whole_gpus)

    @property
    def waiting(self) -> bool:
        """Whether kubelet has yet to admit it, with all of its containers, as far as the API server knows."""
        return self.phase == "Pending" and not self.assigned and not any(self.container_ids.values())

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class PendingContainer:
    """A container for which kubelet requests these devices now."""

    pod: LocalPod
    devices: ContainerDevices

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.pod.uid, self.devices.container, self.devices.resource)

    def __str__(self) -> str:
        return f"{self.pod} container {self.devices.container}"


def parse_local_pod(pod: Mapping[str, Any]) -> LocalPod:
    """From a v1.Pod as JSON. Logs and omits a request or an allocation that it cannot read."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    identity = unreadable_local_pod(pod)
    request, allocation, problem = None, None, ""
    states = dict(_states(pod.get("status") or {}))
    try:
        request = parse_request(pod, bound=True)
        # No scheduler places a static pod, and anybody may forge its copy.
        allocation = read_allocation(annotations, request) if request and not identity.static else None
    except GpushareError as error:
        log.warning("pod %s: %s", identity, error, extra=about(identity))
        problem = str(error)
    return replace(
        identity,
        request=request,
        allocation=allocation,
        annotations={key: annotations[key] for key in _OURS if key in annotations},
        labels=metadata.get("labels") or {},
        running=frozenset(name for name, (state, _) in states.items() if "running" in state),
        stopped=_stopped(pod, [state for state, _ in states.values()]),
        container_ids={name: container_id for name, (_, container_id) in states.items()},
        container_devices=tuple(_container_devices(request, allocation)) if request else (),
        problem=problem,
    )


def unreadable_local_pod(pod: Mapping[str, Any]) -> LocalPod:
    """For a pod that parse_local_pod fails on: identity and phase, and nothing of what was known of it before."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    hash_of_file = _hash_of_file(annotations)
    return LocalPod(
        uid=hash_of_file or metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        phase=status.get("phase") or "Pending",
        static=bool(hash_of_file),
        mirror_uid=metadata["uid"] if hash_of_file else "",
        claims="" if hash_of_file else str(annotations.get(protocol.ANNOTATION_MIRROR, ""))[:_MOST_UID],
        terminating="deletionTimestamp" in metadata,
        deletion=_deletion(metadata),
        problem=UNREADABLE,
    )


def _deletion(metadata: Mapping[str, Any]) -> Deletion | None:
    text, seconds = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if not isinstance(text, str) or len(text) > _MOST_TIME or type(seconds) is not int:
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
    return Deletion(at, max(seconds, 0))


def _hash_of_file(annotations: Mapping[str, str]) -> str:
    """Of a static pod's copy; "" for every other pod."""
    text = str(annotations.get(protocol.ANNOTATION_MIRROR, ""))
    return text if _STATIC_UID.fullmatch(text) else ""


def _container_devices(request: Request, allocation: Allocation | None) -> Iterator[ContainerDevices]:
    for container in request.containers:
        planned = wanted(request, allocation, container) if allocation else {}
        if container.units:
            # A plan with another number of GPUs than the pod's label requires is a mistake.
            fitting = planned if len(planned) == request.gpus_per_pod else {}
            yield ContainerDevices(container.name, protocol.RESOURCE_MEMORY, container.units, fitting, request.gpus_per_pod)
        if container.whole_gpus:
            yield ContainerDevices(container.name, protocol.RESOURCE_GPUS, container.whole_gpus, planned)


def _states(status: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Mapping[str, Any], str]]]:
    """Each container's name, state and ID, as kubelet last reported them."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            yield container.get("name", ""), (container.get("state") or {}, str(container.get("containerID") or ""))


def _stopped(pod: Mapping[str, Any], seen: Collection[Mapping[str, Any]]) -> bool:
    """Whether all containers have ended and none will start again.

    A deletionTimestamp is not enough: containers have also ended between two runs, and kubelet may not have reported the next run yet.
    """
    finished = (pod.get("status") or {}).get("phase") in protocol.FINISHED_PHASES
    return finished and bool(seen) and all("terminated" in state for state in seen)


class PodTable:
    """This node's pods by kubelet's UID. Iterates in kubelet's admission order: by arrival, pods of one list by age.

    kubelet watches the same pods through the same API: it admits bound pods as they arrive, and sorts a list by creation.

    last_contact: when the API server last sent something, on the usage's clock; None for never.
    changes: counts the changes of this node's state: pods, devices, rejections, and usage once kubelet has recorded it.
    """

    def __init__(self, last_contact: Callable[[], float | None] = lambda: None) -> None:
        self.changes = Changes()
        self.last_contact = last_contact
        self.recorded: Set[str] = frozenset()
        """UIDs of the pods that kubelet's checkpoint lists."""
        self.synced = False
        self._pods: dict[str, LocalPod] = {}
        self._removed: OrderedDict[str, LocalPod] = OrderedDict()

    def __iter__(self) -> Iterator[LocalPod]:
        return iter(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid)

    def removed(self, uid: str) -> LocalPod | None:
        """A pod that the API server removed recently, as it was last seen."""
        return None if uid in self._pods else self._removed.get(uid)

    def seen(self) -> Iterator[LocalPod]:
        """The pods of this node, and those that the API server removed recently."""
        yield from self
        yield from (pod for uid, pod in self._removed.items() if uid not in self._pods)

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._removed[uid] = pod
            self._removed.move_to_end(uid)
            while len(self._removed) > _REMEMBERED:
                self._removed.popitem(last=False)

    def _is_another(self, pod: LocalPod) -> bool:
        """Whether another object already is the copy of this static pod."""
        known = self._pods.get(pod.uid)
        return known is not None and known.mirror_uid != pod.mirror_uid

    def _identified(self, pod: LocalPod, uids: Collection[str]) -> LocalPod:
        """The pod with the UID that its file has, if kubelet has a pod with this UID and the API server (`uids`) has not."""
        if not pod.claims or pod.claims in uids or pod.claims not in self.recorded:
            return pod
        return replace(pod, uid=pod.claims, static=True, allocation=None, mirror_uid=pod.uid)

    def replace(self, pods: Iterable[LocalPod]) -> None:
        """Take a fresh list of all pods of this node. Pods that are known keep their place."""
        listed: dict[str, LocalPod] = {}
        fresh = list(pods)
        uids = {pod.uid for pod in fresh}
        for pod in sorted((self._identified(pod, uids) for pod in fresh), key=lambda pod: pod.created):
            if pod.uid not in listed or not self._is_another(pod):
                listed[pod.uid] = pod
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._remove(uid)
        self._pods = {uid: listed.pop(uid) for uid in self._pods if uid in listed}
        self._pods.update(listed)
        self.synced = True
        self.changes.notify()

    def event(self, kind: str, pod: LocalPod) -> None:
        """Take an event: "ADDED", "MODIFIED" or "DELETED"."""
        if pod.claims:
            pod = self._identified(pod, {uid for uid, known in self._pods.items() if not known.static})
        if self._is_another(pod):
            return
        if pod.mirror_uid:
            # kubelet's record may not have had it before.
            self._pods.pop(pod.mirror_uid, None)
        self._pods[pod.uid] = pod
        if kind == "DELETED":
            self._remove(pod.uid)
        self.changes.notify()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pods of this node as the API server shows them, in the order in which kubelet learns of them."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, read_allocation, wanted
from gpushare_runtime.core.request import Request, RequestError, parse_request
from gpushare_runtime.daemon.sync import Changes

log = logging.getLogger(__name__)

# More than a node has at once, many times over.
_REMEMBERED: Final = 1000
# On the API's copy of a static pod: the UID that kubelet knows the pod by, a hash of the file. Everybody may write it, and the
# API server's own UIDs are of another form.
_STATIC: Final = "kubernetes.io/config.mirror"
_STATIC_UID: Final = re.compile("[0-9a-f]{32}")
UNREADABLE: Final = "it cannot be read; the log of gpushare-device-plugin says why"
_OURS: Final = (
    protocol.ANNOTATION_INDEX,
    protocol.ANNOTATION_CARD_UNITS,
    protocol.ANNOTATION_POD_UNITS,
    protocol.ANNOTATION_ASSIGNED,
    protocol.ANNOTATION_ASSUME_TIME,
    protocol.ANNOTATION_ALLOCATION,
)


@dataclass(frozen=True)
class Ask:
    """What kubelet asks for one container: `size` ids of `resource`.

    cards: NVML card index → units that the scheduler chose, empty if it chose nothing; spread: over how many cards the
    memory is to go, the same on each.
    """

    container: str
    resource: str
    size: int
    cards: Mapping[int, int] = field(default_factory=dict)
    spread: int = 1


@dataclass(frozen=True)
class LocalPod:
    """A pod of this node.

    uid: as kubelet knows it; static: from a file on the node, the API has only a copy, with `copy` as its UID; request: None if
    it asks for nothing of ours, or in a way that cannot be meant (problem: why); annotations: only ours; running: names of
    containers that run, stopped: all have ended for good, containers: name → the ID of the last one, all by kubelet's word;
    deleting: it is marked for that; asks: in the order in which kubelet asks (init containers first).
    """

    uid: str
    namespace: str
    name: str
    created: str
    phase: str
    static: bool = False
    request: Request | None = None
    allocation: Allocation | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    stopped: bool = False
    containers: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    asks: tuple[Ask, ...] = ()
    problem: str = ""
    copy: str = ""

    @property
    def finished(self) -> bool:
        return self.phase in protocol.FINISHED_PHASES

    @property
    def active(self) -> bool:
        """Whether kubelet is to run it, as far as the API server knows."""
        return not self.finished and not self.deleting

    @property
    def assigned(self) -> bool:
        """Whether a device plugin has said that the containers have their cards."""
        return self.annotations.get(protocol.ANNOTATION_ASSIGNED) == "true"

    @property
    def placed(self) -> int:
        """When the scheduler chose its cards, Unix time in nanoseconds; 0 if it is not said."""
        said = self.annotations.get(protocol.ANNOTATION_ASSUME_TIME, "")
        return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else 0

    @property
    def sayable(self) -> bool:
        """Whether its annotations can say what it has: the API's copy of a static pod is kubelet's, and some requests have no form."""
        return not self.static and self.request is not None and not (self.request.units and self.request.cards)

    @property
    def waiting(self) -> bool:
        """Whether kubelet is still to admit it, as far as the API server knows."""
        return self.phase == "Pending" and not self.assigned

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse_local_pod(pod: Mapping[str, Any]) -> LocalPod:
    """From a v1.Pod as JSON. What cannot be read in request or allocation is logged and left out."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    where = f"{metadata['namespace']}/{metadata['name']}"
    request, allocation, problem = None, None, ""
    states = dict(_states(pod.get("status") or {}))
    hash_of_file = _hash_of_file(annotations)
    static = bool(hash_of_file)
    try:
        request = parse_request(pod, bound=True)
        # No scheduler places a static pod, and anybody may forge the copy of one.
        allocation = read_allocation(annotations, request) if request and not static else None
    except (RequestError, AllocationError) as error:
        log.warning("pod %s: %s", where, error)
        problem = str(error)
    return LocalPod(
        uid=hash_of_file if static else metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        phase=(pod.get("status") or {}).get("phase") or "Pending",
        static=static,
        copy=metadata["uid"] if static else "",
        request=request,
        allocation=allocation,
        annotations={key: annotations[key] for key in _OURS if key in annotations},
        labels=metadata.get("labels") or {},
        running=frozenset(name for name, (state, _) in states.items() if "running" in state),
        stopped=_stopped(pod, [state for state, _ in states.values()]),
        containers={name: container for name, (_, container) in states.items()},
        deleting="deletionTimestamp" in metadata,
        asks=tuple(_asks(request, allocation)) if request else (),
        problem=problem,
    )


def unreadable_local_pod(pod: Mapping[str, Any]) -> LocalPod:
    """For a pod that parse_local_pod cannot bear: whether it is there and counts, and nothing of what was known of it before."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    hash_of_file = _hash_of_file(metadata.get("annotations") or {})
    return LocalPod(
        uid=hash_of_file or metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        phase=status.get("phase") or "Pending",
        static=bool(hash_of_file),
        copy=metadata["uid"] if hash_of_file else "",
        deleting="deletionTimestamp" in metadata,
        problem=UNREADABLE,
    )


def _hash_of_file(annotations: Mapping[str, str]) -> str:
    """Of a static pod's copy, "" for every other pod."""
    said = str(annotations.get(_STATIC, ""))
    return said if _STATIC_UID.fullmatch(said) else ""


def _asks(request: Request, allocation: Allocation | None) -> Iterator[Ask]:
    for container in request.containers:
        cards = wanted(request, allocation, container) if allocation else {}
        if container.units:
            # Other numbers of cards than the pod's label says are somebody's mistake.
            fitting = cards if len(cards) == request.cards_per_pod else {}
            yield Ask(container.name, protocol.RESOURCE_MEMORY, container.units, fitting, request.cards_per_pod)
        if container.cards:
            yield Ask(container.name, protocol.RESOURCE_CARDS, container.cards, cards)


def _states(status: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Mapping[str, Any], str]]]:
    """Each container's name, state and ID, as kubelet last reported them."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            yield container.get("name", ""), (container.get("state") or {}, str(container.get("containerID") or ""))


def _stopped(pod: Mapping[str, Any], seen: Collection[Mapping[str, Any]]) -> bool:
    """Whether all containers have ended and none will start again.

    That a pod is being deleted is not enough: between two runs they have ended as well, and of the run that has begun since kubelet
    may not have got to tell.
    """
    over = (pod.get("status") or {}).get("phase") in protocol.FINISHED_PHASES
    return over and bool(seen) and all("terminated" in state for state in seen)


class PodTable:
    """This node's pods by kubelet's UID. Iterates in kubelet's admission order: by arrival, those of one list by age.

    kubelet watches the same pods through the same API: it takes bound pods as they arrive, and sorts a list by creation.

    heard: when the API server was last heard, on the clock of those who ask; None for never.
    """

    def __init__(self, heard: Callable[[], float | None] = lambda: None) -> None:
        self.changes = Changes()
        self.heard = heard
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
        """A pod that the API server had not long ago and has no more, as it was last seen."""
        return None if uid in self._pods else self._removed.get(uid)

    def seen(self) -> Iterator[LocalPod]:
        """Those that there are, and those that the API server had not long ago."""
        yield from self
        yield from (pod for uid, pod in self._removed.items() if uid not in self._pods)

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._removed[uid] = pod
            self._removed.move_to_end(uid)
            while len(self._removed) > _REMEMBERED:
                self._removed.popitem(last=False)

    def _another(self, pod: LocalPod) -> bool:
        """Whether it gives itself out for the copy of a static pod whose copy is known already, and is another object."""
        known = self._pods.get(pod.uid)
        return known is not None and known.copy != pod.copy

    def replace(self, pods: Iterable[LocalPod]) -> None:
        """A fresh list of all pods of this node. Those known before keep their place."""
        listed: dict[str, LocalPod] = {}
        for pod in sorted(pods, key=lambda pod: pod.created):
            if pod.uid not in listed or not self._another(pod):
                listed[pod.uid] = pod
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._remove(uid)
        self._pods = {uid: listed.pop(uid) for uid in self._pods if uid in listed}
        self._pods.update(listed)
        self.synced = True
        self.changes.notify()

    def event(self, kind: str, pod: LocalPod) -> None:
        """A pod was "ADDED", "MODIFIED" or "DELETED"."""
        if self._another(pod):
            return
        self._pods[pod.uid] = pod
        if kind == "DELETED":
            self._remove(pod.uid)
        self.changes.notify()

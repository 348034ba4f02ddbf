# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""v1.Pod and v1.Node as the API server sends them → the little that the extender keeps of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.core.constraints import Labels, labels_of
from gpushare_runtime.core.inventory import Inventory, InventoryError
from gpushare_runtime.core.ledger import Holder, NodeRecord, Nominee
from gpushare_runtime.core.node_report import NOTHING_HELD, Held, HeldError
from gpushare_runtime.core.request import Request, RequestError, parse_request

T = TypeVar("T")

__all__ = [
    "FinishedPod",
    "NodeRecord",
    "PendingPod",
    "PodReader",
    "PodRecord",
    "priority_of",
    "read_node",
    "unreadable_node",
    "unreadable_pod",
]

log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000
_SHARED_TEXT: Final = 4096
"""Characters of what is kept once for many pods; what is longer is one pod's own."""
_ALL_SHARED_TEXT: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class PendingPod:
    """A pod that is on no node yet. request: None when it asks in a way that cannot be meant, for the reason `error`.

    nominated: the node that kube-scheduler has made room on for it, "" if none; failure: a number for what its last failed attempt
    has said, 0 for none.
    """

    uid: str
    namespace: str
    name: str
    request: Request | None
    error: str = ""
    labels: Labels = ()
    priority: int = 0
    nominated: str = ""
    failure: int = 0

    @property
    def nominee(self) -> Nominee | None:
        """As the ledger keeps it, None if it is nominated to no node."""
        if not self.nominated or self.request is None or self.request.unsupported is not None:
            return None
        return Nominee(self.uid, self.namespace, self.name, self.nominated, self.request, self.labels, self.priority)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class FinishedPod:
    """A pod that has ended and holds nothing any more, or of which only its node can say what it holds.

    alive: containers may run all the same: by its status, since kubelet before 1.22 fails a pod first and ends them then, or because
    the pod cannot be read. What it held it keeps for the moment that its node takes to say so.
    """

    uid: str
    alive: bool = False


PodRecord = Holder | PendingPod | FinishedPod
"""What is kept of a pod that asks for something of ours."""


class PodReader:
    """v1.Pod as JSON → `PodRecord`, None for a pod that asks for nothing of ours.

    Equal requests and allocations become one object, since most pods of a cluster are alike; each complaint is logged once.
    """

    def __init__(self) -> None:
        self._same: dict[object, object] = {}
        self._text = 0
        self._said: set[tuple[str, str]] = set()

    def __call__(self, pod: Mapping[str, Any]) -> PodRecord | None:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        uid, namespace, name = metadata["uid"], metadata["namespace"], metadata["name"]
        node = spec.get("nodeName")
        try:
            request = parse_request(pod, bound=bool(node))
        except RequestError as error:
            if not node:
                return PendingPod(uid, namespace, name, None, str(error), labels_of(metadata), priority_of(pod))
            self._complain(uid, f"pod {namespace}/{name} on node {node} is left out of the ledger: {error}")
            # Not None: it may have been waiting until now, or have held something, of which its node has a moment to say so.
            status = pod.get("status") or {}
            return FinishedPod(uid, _runs(status) if status.get("phase") in protocol.FINISHED_PHASES else _alive(status))
        if request is None:
            return None
        if (pod.get("status") or {}).get("phase") in protocol.FINISHED_PHASES:
            return FinishedPod(uid, _runs(pod["status"]))
        request, labels, priority = self._shared(request), self._shared(labels_of(metadata)), priority_of(pod)
        if not node:
            status = pod.get("status") or {}
            nominated = str(status.get("nominatedNodeName") or "")
            return PendingPod(uid, namespace, name, request, "", labels, priority, nominated, _failure(status))
        # Of the copy of a static pod only its node can say what it has: anybody may make one, and write what he likes on it.
        mirror = protocol.ANNOTATION_MIRROR in (metadata.get("annotations") or {})
        allocation = None if mirror else self._allocation(metadata, node, request)
        leaving, alive = bool(metadata.get("deletionTimestamp")), _alive(pod.get("status") or {})
        return Holder(uid, namespace, name, node, request, allocation, labels, priority, leaving, alive, mirror)

    def _allocation(self, metadata: Mapping[str, Any], node: str, request: Request) -> Allocation | None:
        try:
            allocation = read_allocation(metadata.get("annotations") or {}, request)
        except AllocationError as error:
            self._complain(
                metadata["uid"],
                f"pod {metadata['namespace']}/{metadata['name']} on node {node}: {error}; what it was bound with counts, or else what its "
                "node says that it has",
            )
            return None
        return None if allocation is None else self._shared(allocation)

    def _shared(self, value: T) -> T:
        same: T | None = self._same.get(value)  # type: ignore[assignment]
        if same is not None:
            return same
        size = len(repr(value))
        if size <= _SHARED_TEXT:
            if len(self._same) >= _REMEMBERED or self._text > _ALL_SHARED_TEXT:
                self._same.clear()
                self._text = 0
            self._same[value] = value
            self._text += size
        return value

    def _complain(self, uid: str, text: str) -> None:
        if (uid, text) not in self._said:
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said.add((uid, text))
            log.warning("%s", text)


def _states(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of all containers of which kubelet has said something."""
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return [one.get("state") or {} for one in statuses]


def _alive(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has not said that all containers have ended. Before its first word it may be admitting the pod all the same."""
    states = _states(status)
    return not states or any("terminated" not in state for state in states)


def _runs(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has said of a container that it runs."""
    return any("running" in state for state in _states(status))


def _failure(status: Mapping[str, Any]) -> int:
    """Of the condition that kube-scheduler sets when an attempt has come to nothing; its message may be long."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return hash((condition.get("reason"), condition.get("message"))) or 1
    return 0


def priority_of(pod: Mapping[str, Any]) -> int:
    """As kube-scheduler counts it: 0 where none was resolved."""
    priority = (pod.get("spec") or {}).get("priority")
    return priority if isinstance(priority, int) else 0


def read_node(node: Mapping[str, Any]) -> NodeRecord:
    """A v1.Node as JSON, or its metadata alone."""
    metadata = node["metadata"]
    name, annotations, labels = metadata["name"], metadata.get("annotations") or {}, metadata.get("labels") or {}
    text = annotations.get(protocol.ANNOTATION_CARDS)
    inventory, held, error = None, NOTHING_HELD, ""
    try:
        if text is not None:
            inventory = Inventory.from_json(text)
            held = _held(annotations)
    except InventoryError as found:
        error = str(found)
    except HeldError as found:
        # Somebody holds something there, and nobody knows what.
        inventory, error = None, f"{protocol.ANNOTATION_HELD}: {found}"
    return NodeRecord(name, inventory, error, held, labels.get(protocol.LABEL_MODEL, ""), labels.get(protocol.LABEL_PLACEMENT, ""))


def unreadable_pod(pod: Mapping[str, Any]) -> PodRecord | None:
    """For a pod that PodReader cannot bear: it holds what its node says of it, and what was known of it before is over in a moment."""
    return FinishedPod(str(pod["metadata"]["uid"]), alive=True)


def unreadable_node(node: Mapping[str, Any]) -> NodeRecord | None:
    """For a node that read_node cannot bear: nothing can be placed there."""
    return NodeRecord(str(node["metadata"]["name"]), None, "its metadata cannot be read; the log of gpushare-extender says why")


def _held(annotations: Mapping[str, str]) -> Held:
    text = annotations.get(protocol.ANNOTATION_HELD)
    return Held.from_json(text) if text else NOTHING_HELD

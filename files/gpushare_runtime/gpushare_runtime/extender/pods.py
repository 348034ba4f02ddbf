# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods and nodes as the API server sends them → the little that the extender keeps of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gpushare_runtime import protocol
from gpushare_runtime.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.held import NOTHING_HELD, Held, HeldError
from gpushare_runtime.inventory import Inventory, InventoryError
from gpushare_runtime.ledger import Holder, NodeRecord, Nominee
from gpushare_runtime.request import Request, RequestError, parse_request
from gpushare_runtime.rules import Labels, labels_of

T = TypeVar("T")

__all__ = ["FinishedPod", "NodeRecord", "PendingPod", "PodReader", "PodRecord", "priority_of", "read_node"]

log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class PendingPod:
    """A pod that is on no node yet. request: None when it asks in a way that cannot be meant, for the reason `error`.

    nominated: the node that kube-scheduler has made room on for it, "" if none.
    """

    uid: str
    namespace: str
    name: str
    request: Request | None
    error: str = ""
    labels: Labels = ()
    priority: int = 0
    nominated: str = ""

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
    """A pod that has ended and holds nothing any more."""

    uid: str


PodRecord = Holder | PendingPod | FinishedPod
"""What is kept of a pod that asks for something of ours."""


class PodReader:
    """v1.Pod as JSON → `PodRecord`, None for a pod that asks for nothing of ours.

    Equal requests and allocations become one object, since most pods of a cluster are alike; each complaint is logged once.
    """

    def __init__(self) -> None:
        self._same: dict[object, object] = {}
        self._said: set[tuple[str, str]] = set()

    def __call__(self, pod: Mapping[str, Any]) -> PodRecord | None:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        uid, namespace, name = metadata["uid"], metadata["namespace"], metadata["name"]
        node = spec.get("nodeName")
        labels, priority = self._shared(labels_of(metadata)), priority_of(pod)
        try:
            request = parse_request(pod, bound=bool(node))
        except RequestError as error:
            if not node:
                return PendingPod(uid, namespace, name, None, str(error), labels, priority)
            self._complain(uid, f"pod {namespace}/{name} on node {node} is left out of the ledger: {error}")
            return None
        if request is None:
            return None
        if (pod.get("status") or {}).get("phase") in protocol.FINISHED_PHASES:
            return FinishedPod(uid)
        request = self._shared(request)
        if not node:
            nominated = str((pod.get("status") or {}).get("nominatedNodeName") or "")
            return PendingPod(uid, namespace, name, request, "", labels, priority, nominated)
        allocation = self._allocation(metadata, node, request)
        leaving, alive = bool(metadata.get("deletionTimestamp")), _alive(pod.get("status") or {})
        return Holder(uid, namespace, name, node, request, allocation, labels, priority, leaving, alive)

    def _allocation(self, metadata: Mapping[str, Any], node: str, request: Request) -> Allocation | None:
        try:
            allocation = read_allocation(metadata.get("annotations") or {}, request)
        except AllocationError as error:
            self._complain(
                metadata["uid"],
                f"pod {metadata['namespace']}/{metadata['name']}: {error}; until it is gone it counts against every card of "
                f"node {node} that could hold it",
            )
            return None
        return None if allocation is None else self._shared(allocation)

    def _shared(self, value: T) -> T:
        if len(self._same) > _REMEMBERED:
            self._same.clear()
        same: T = self._same.setdefault(value, value)  # type: ignore[assignment]
        return same

    def _complain(self, uid: str, text: str) -> None:
        if (uid, text) not in self._said:
            if len(self._said) > _REMEMBERED:
                self._said.clear()
            self._said.add((uid, text))
            log.warning("%s", text)


def _alive(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has not said that all containers have ended. Before its first word it may be admitting the pod all the same."""
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return not statuses or any("terminated" not in (one.get("state") or {}) for one in statuses)


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


def _held(annotations: Mapping[str, str]) -> Held:
    text = annotations.get(protocol.ANNOTATION_HELD)
    return Held.from_json(text) if text else NOTHING_HELD

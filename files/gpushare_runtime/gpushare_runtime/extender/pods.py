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
from gpushare_runtime.inventory import Inventory, InventoryError
from gpushare_runtime.ledger import Holder
from gpushare_runtime.request import Request, RequestError, parse_request

T = TypeVar("T")

log = logging.getLogger(__name__)

_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class PendingPod:
    """A pod that is on no node yet. request: None when it asks in a way that cannot be meant, for the reason `error`."""

    uid: str
    namespace: str
    name: str
    request: Request | None
    error: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class FinishedPod:
    """A pod that has ended and holds nothing any more."""

    uid: str


PodRecord = Holder | PendingPod | FinishedPod
"""What is kept of a pod that asks for something of ours."""


@dataclass(frozen=True)
class NodeRecord:
    """A node's cards; None with error "" when no device plugin has published any."""

    name: str
    inventory: Inventory | None
    error: str = ""


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
        try:
            request = parse_request(pod, bound=bool(node))
        except RequestError as error:
            if not node:
                return PendingPod(uid, namespace, name, None, str(error))
            self._complain(uid, f"pod {namespace}/{name} on node {node} is left out of the ledger: {error}")
            return None
        if request is None:
            return None
        if (pod.get("status") or {}).get("phase") in protocol.FINISHED_PHASES:
            return FinishedPod(uid)
        request = self._shared(request)
        if not node:
            return PendingPod(uid, namespace, name, request)
        return Holder(uid, namespace, name, node, request, self._allocation(metadata, node, request))

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


def read_node(node: Mapping[str, Any]) -> NodeRecord:
    """A v1.Node as JSON, or its metadata alone."""
    metadata = node["metadata"]
    text = (metadata.get("annotations") or {}).get(protocol.ANNOTATION_CARDS)
    if text is None:
        return NodeRecord(metadata["name"], None)
    try:
        return NodeRecord(metadata["name"], Inventory.from_json(text))
    except InventoryError as error:
        return NodeRecord(metadata["name"], None, str(error))

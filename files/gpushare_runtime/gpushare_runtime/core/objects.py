# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""v1.Pod and v1.Node as the API server sends them → the little that is kept of each. Pure; complaints go to a callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.core.bounds import MOST_TEXT, ReportError, shared
from gpushare_runtime.core.constraints import RULES_PREFIX, labels_of
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import NOTHING_HELD, Held
from gpushare_runtime.core.overuse import NO_EVICTIONS, Evictions
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, InvalidPod, PendingPod, PodRecord
from gpushare_runtime.core.request import Request, RequestError, parse_request
from gpushare_runtime.core.reservation import group_of, seconds_to_bind

T = TypeVar("T")

ALLOCATED: Final = (protocol.ANNOTATION_ALLOCATION, protocol.ANNOTATION_INDEX, protocol.ANNOTATION_GPU_UNITS, protocol.ANNOTATION_POD_UNITS)
"""The annotations that say which GPUs a pod has."""
_REMEMBERED: Final = 10_000
_SHARED_TEXT: Final = 4096
"""Characters of what is kept once for many pods; what is longer is one pod's own."""
_ALL_SHARED_TEXT: Final = 16 * 1024 * 1024
_RESOURCES: Final = protocol.RESOURCE_MEMORY.removesuffix("mem")
"""The beginning of the name of each of our resources."""
_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
_MOST_PRIORITY: Final = 2**31
"""The API has int32; a file may have any number."""


def read_pending(pod: Mapping[str, Any]) -> PendingPod | InvalidPod | None:
    """A v1.Pod as JSON that is on no node; None if it requests no GPUs."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    uid, namespace, name = metadata.get("uid", ""), metadata.get("namespace", ""), metadata.get("name", "")
    try:
        request = parse_request(pod)
    except RequestError as error:
        return InvalidPod(uid, namespace, name, str(error))
    if request is None:
        return None
    labels, nominated = labels_of(metadata), str(status.get("nominatedNodeName") or "")
    group, version = group_of(namespace, spec, labels), str(metadata.get("resourceVersion") or "")
    seconds, priority = seconds_to_bind(spec, group), _priority_of(spec)
    return PendingPod(uid, namespace, name, request, labels, priority, nominated, _failure(status), seconds, version, group)


class PodReader:
    """v1.Pod as JSON → `PodRecord`, None for a pod that asks for nothing of ours.

    Equal requests and allocations become one object, since most pods of a cluster are alike; each complaint is logged once.
    """

    def __init__(self, complain: Callable[[str], None] = lambda text: None) -> None:
        self._complaints = complain
        self._same: dict[object, object] = {}
        self._text = 0
        self._said: set[tuple[str, str]] = set()

    def __call__(self, pod: Mapping[str, Any]) -> PodRecord | None:
        metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        node, finished = spec.get("nodeName"), status.get("phase") in protocol.FINISHED_PHASES
        if not node:
            pending = read_pending(pod)
            if finished and isinstance(pending, PendingPod):
                return FinishedPod(pending.uid, _runs(status))
            return self._shared_parts(pending) if isinstance(pending, PendingPod) else pending
        uid, namespace, name = metadata["uid"], shared(metadata["namespace"]), metadata["name"]
        annotations = metadata.get("annotations") or {}
        asked = _asked(spec, metadata, annotations)
        if asked is None:
            return None
        try:
            request = self._request(pod, asked)
        except RequestError as error:
            self._complain(uid, f"pod {namespace}/{name} on node {node} is left out of the ledger: {error}")
            # Not None: it may have been pending until now, or allocated; its node has a moment to report that.
            return FinishedPod(uid, _runs(status) if finished else _alive(metadata, status))
        if request is None:
            return None
        if finished:
            return FinishedPod(uid, _runs(status), _rejected(status))
        labels = self._shared(labels_of(metadata))
        # Of the copy of a static pod only its node can say what it has: anybody may make one, and write what he likes on it.
        mirror = protocol.ANNOTATION_MIRROR in annotations
        allocation = None if mirror else self._allocation(metadata, annotations, node, request, asked)
        terminating = bool(metadata.get("deletionTimestamp"))
        priority, alive = _priority_of(spec), _alive(metadata, status)
        return AllocatedPod(uid, namespace, name, shared(node), request, allocation, labels, priority, terminating, alive, mirror)

    def _request(self, pod: Mapping[str, Any], asked: str) -> Request | None:
        """Of a pod on a node, read once for all pods that ask in the same words. RequestError."""
        known: Request | None = self._same.get(asked)  # type: ignore[assignment]
        if known is not None:
            return known
        request = parse_request(pod, bound=True)
        if request is not None:
            request = self._shared(request)
            self._keep(asked, request)
        return request

    def _shared_parts(self, pod: PendingPod) -> PendingPod:
        return replace(pod, request=self._shared(pod.request), labels=self._shared(pod.labels))

    def _allocation(
        self, metadata: Mapping[str, Any], annotations: Mapping[str, Any], node: str, request: Request, asked: str
    ) -> Allocation | None:
        texts = asked, *map(annotations.get, ALLOCATED)
        known: Allocation | None = self._same.get(texts)  # type: ignore[assignment]
        if known is not None:
            return known
        try:
            allocation = read_allocation(annotations, request)
        except AllocationError as error:
            self._complain(
                metadata["uid"],
                f"pod {metadata['namespace']}/{metadata['name']} on node {node}: {error}; what it was bound with counts, or else what its "
                "node says that it has",
            )
            return None
        if allocation is None:
            return None
        allocation = self._shared(allocation)
        self._keep(texts, allocation)
        return allocation

    def _shared(self, value: T) -> T:
        same: T | None = self._same.get(value)  # type: ignore[assignment]
        if same is not None:
            return same
        self._keep(value, value)
        return value

    def _keep(self, key: object, value: object) -> None:
        size = len(repr(key))
        if size <= _SHARED_TEXT:
            if len(self._same) >= _REMEMBERED or self._text > _ALL_SHARED_TEXT:
                self._same.clear()
                self._text = 0
            self._same[key] = value
            self._text += size

    def _complain(self, uid: str, text: str) -> None:
        if (uid, text) not in self._said:
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said.add((uid, text))
            self._complaints(text)


def _asked(spec: Mapping[str, Any], metadata: Mapping[str, Any], annotations: Mapping[str, Any]) -> str | None:
    """All that `parse_request` reads of a pod, as text; None if it surely asks for nothing of ours."""
    text = repr([(container.get("name"), container.get("resources")) for container in spec.get("containers") or ()])
    before = spec.get("initContainers")
    if before:
        text += repr([(container.get("name"), container.get("resources"), container.get("restartPolicy")) for container in before])
    if _RESOURCES not in text:
        return None
    label = (metadata.get("labels") or {}).get(protocol.LABEL_GPUS_PER_POD)
    rules = {name: annotations[name] for name in annotations if name.startswith(RULES_PREFIX)}
    whole_pod = [spec[name] for name in ("resources", "overhead") if name in spec]
    return f"{text} {label!r} {rules!r} {whole_pod!r}" if rules or whole_pod or label is not None else text


def _states(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of all containers of which kubelet has said something."""
    return [container.get("state") or {} for kind in _STATUSES for container in status.get(kind) or ()]


def _alive(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether an unfinished pod may have processes.

    It has none once kubelet ends it and has said that all containers have ended. Before its end kubelet starts again what has ended,
    and says so later. Before its first word it may be admitting the pod although that is deleted.
    """
    if not metadata.get("deletionTimestamp"):
        return True
    silent = True
    # It is asked for every pod of a cluster: no list.
    for kind in _STATUSES:
        for container in status.get(kind) or ():
            if "terminated" not in (container.get("state") or {}):
                return True
            silent = False
    return silent


def _runs(status: Mapping[str, Any]) -> bool:
    """Whether kubelet has said of a container that it runs."""
    return any("running" in state for state in _states(status))


def _rejected(status: Mapping[str, Any]) -> bool:
    """Whether kubelet failed the pod since the node lacks what the scheduler counted on; not because no plugin answered at that moment.

    kubelet's message has the plugin's error, which begins with the resource, or its own.
    """
    message = str(status.get("message") or "")[:MOST_TEXT]
    return status.get("reason") == "UnexpectedAdmissionError" and any(
        words + _RESOURCES in message for words in ("code = FailedPrecondition desc = ", "requested number of devices unavailable for ")
    )


def _failure(status: Mapping[str, Any]) -> int:
    """Of the condition that kube-scheduler sets when an attempt has come to nothing; its message may be long."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return hash((condition.get("reason"), condition.get("message"))) or 1
    return 0


def _priority_of(spec: Mapping[str, Any]) -> int:
    """As kube-scheduler counts it: 0 where none was resolved."""
    priority = spec.get("priority")
    return priority if isinstance(priority, int) and abs(priority) <= _MOST_PRIORITY else 0


@dataclass(frozen=True)
class NodeTexts:
    """The part of a node's metadata that is ours, before it is read: reading takes longer than all else that is done for an event.

    GPUs, `held`, evictions: the annotations, None without; error: why it cannot be read, "" if it may be. record: where it has been read.
    """

    name: str
    gpus: str | None = None
    held: str | None = None
    model: str = ""
    placement: str = ""
    evictions: str | None = None
    error: str = ""
    record: NodeRecord | None = None

    def read(self) -> NodeRecord:
        """The node's report; of annotations that cannot be used the reason."""
        inventory, held, error, place = None, NOTHING_HELD, self.error, protocol.ANNOTATION_GPUS
        try:
            if self.gpus is not None:
                inventory, place = Inventory.from_json(self.gpus), protocol.ANNOTATION_HELD
                held = Held.from_json(self.held) if self.held else NOTHING_HELD
        except ReportError as found:
            # Without `gpushare/held` it is unknown how much of its GPUs is in use.
            inventory, error = None, f"annotation {place} cannot be used: {found}"
        return NodeRecord(self.name, inventory, error, held, self.model, self.placement, _evictions(self.evictions))


def node_texts(node: Mapping[str, Any]) -> NodeTexts:
    """Of a v1.Node as JSON, or of its metadata alone."""
    metadata = node["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    return NodeTexts(
        metadata["name"],
        annotations.get(protocol.ANNOTATION_GPUS),
        annotations.get(protocol.ANNOTATION_HELD),
        labels.get(protocol.LABEL_MODEL, ""),
        labels.get(protocol.LABEL_PLACEMENT, ""),
        annotations.get(protocol.ANNOTATION_EVICTIONS),
    )


def read_node(node: Mapping[str, Any]) -> NodeRecord:
    """A v1.Node as JSON, or its metadata alone."""
    return node_texts(node).read()


def unreadable_pod(pod: Mapping[str, Any]) -> PodRecord | None:
    """For a pod on which PodReader fails: it has what its node reports of it, and what was known of it before is over in a moment."""
    return FinishedPod(str(pod["metadata"]["uid"]), alive=True)


def unreadable_node(node: Mapping[str, Any]) -> NodeTexts:
    """For a node on which `node_texts` fails: nothing can be placed there."""
    return unreadable_texts(str(node["metadata"]["name"]))


def unreadable_texts(name: str) -> NodeTexts:
    """For the node of that name, if its texts cannot be read."""
    return NodeTexts(name, error="metadata cannot be read; the log of gpushare-extender has the error")


def _evictions(text: str | None) -> Evictions:
    """In spite of an error here, pods are placed on the node."""
    try:
        return Evictions.from_json(text) if text else NO_EVICTIONS
    except ReportError as error:
        return Evictions(error=f"annotation {protocol.ANNOTATION_EVICTIONS} cannot be used: {error}")

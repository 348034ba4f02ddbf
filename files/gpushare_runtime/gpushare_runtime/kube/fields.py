# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""JSON of nodes, pods, slices and claims → only the fields that extender and kubectl read. A pod of the API server has ten times as
much, such as managedFields, and most of the time and memory that 50,000 of them need went into building fields that are never read.

An object that does not have the types below is parsed whole, so its reader finds what is wrong with it, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypedDict

import msgspec
import orjson

from gpushare_runtime.errors import GpushareError

# The errors that msgspec raises for JSON that is broken, too deep, or not of these types.
_Other: Final = (ValueError, RecursionError)


class _Metadata(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    labels: Any
    annotations: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    ownerReferences: Any
    resourceVersion: Any


class _Container(TypedDict, total=False):
    name: Any
    image: Any
    resources: Any
    restartPolicy: Any


class _Volume(TypedDict, total=False):
    persistentVolumeClaim: Any
    ephemeral: Any


class _Spec(TypedDict, total=False):
    nodeName: Any
    schedulerName: Any
    unschedulable: Any
    priority: Any
    resources: Any
    overhead: Any
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    volumes: list[_Volume] | None
    resourceClaims: Any
    schedulingGroup: Any
    workloadRef: Any
    # Of ResourceSlices and ResourceClaims.
    driver: Any
    pool: Any
    devices: Any


class _ContainerStatus(TypedDict, total=False):
    name: Any
    state: Any
    lastState: Any


class _Condition(TypedDict, total=False):
    type: Any
    status: Any
    reason: Any
    message: Any
    lastTransitionTime: Any


class _Status(TypedDict, total=False):
    phase: Any
    reason: Any
    message: Any
    nominatedNodeName: Any
    conditions: list[_Condition] | None
    containerStatuses: list[_ContainerStatus] | None
    initContainerStatuses: list[_ContainerStatus] | None
    addresses: Any
    allocatable: Any
    resourceClaimStatuses: Any
    extendedResourceClaimStatus: Any
    # Of ResourceClaims.
    allocation: Any
    reservedFor: Any


class _Object(TypedDict, total=False):
    kind: Any
    metadata: _Metadata
    spec: _Spec | None
    status: _Status | None


class _List(TypedDict, total=False):
    kind: Any
    metadata: Any
    items: list[msgspec.Raw]


class _Change(TypedDict, total=False):
    type: Any
    object: msgspec.Raw


_EVENT: Final = msgspec.json.Decoder(_Change)
_OBJECT: Final = msgspec.json.Decoder(_Object)
_LIST: Final = msgspec.json.Decoder(_List)


class NoListError(GpushareError, ValueError):
    """JSON that is not a list of Kubernetes objects, nor one of them."""


def read_page(data: bytes) -> Any:
    """A page of a list, as the API server sends it; its items are made one after the other. orjson.JSONDecodeError if it is not JSON."""
    try:
        page = _LIST.decode(data)
    except _Other:
        return orjson.loads(data)
    return {"metadata": page.get("metadata"), "items": map(_read_object, page.get("items", ()))}


def read_event(data: bytes) -> Any:
    """An event of a watch; an error whole. orjson.JSONDecodeError if it is not JSON."""
    try:
        event = _EVENT.decode(data)
    except _Other:
        return orjson.loads(data)
    if event.get("type") == "ERROR" or "object" not in event:
        return orjson.loads(data)
    return {"type": event.get("type"), "object": _read_object(event["object"])}


def read_objects(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, object) of each in a list, one after the other, or of the only one. NoListError; orjson.JSONDecodeError if it is not JSON."""
    try:
        found = _LIST.decode(data)
    except _Other:
        found = {}
    items: Iterable[Any]
    if "items" in found:
        kind, items = found.get("kind"), map(_read_object, found["items"])
    else:
        value = orjson.loads(data)
        if not isinstance(value, dict) or not isinstance(value.get("items", []), list):
            raise NoListError
        kind, items = value.get("kind"), value.get("items", [value])
    of_list = str(kind or "").removesuffix("List")
    for item in items:
        if not isinstance(item, dict):
            raise NoListError
        yield str(item.get("kind") or of_list), item


def _read_object(raw: msgspec.Raw) -> Any:
    try:
        return _OBJECT.decode(raw)
    except _Other:
        return orjson.loads(memoryview(raw))

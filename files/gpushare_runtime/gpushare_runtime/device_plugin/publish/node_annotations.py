# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Publishes the node's annotations `gpushare/gpus` and `gpushare/held`: writes them whenever they differ, even if others changed them.

The same watch delivers `gpushare/cordon`, which an administrator writes, `gpushare/evictions` (eviction_requests.py) and `gpushare/use`
(use_reports.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_UNITS, as_text
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import GONE, Held, HeldEntry
from gpushare_runtime.core.quantity import parse_cpu
from gpushare_runtime.core.unit_ids import gpu_of_unit
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.reflector import Reflector

OTHERS_IDS: Final = "ids-of-another-device-plugin"
"""In the place of a pod's UID."""
log = logging.getLogger(__name__)
# A node has at most 110 pods unless it is told otherwise; so many are a third of what the annotation may have.
_MOST_GONE: Final = 128
# At most one PATCH in this time, even if another client keeps writing another value.
_PAUSE_SECONDS: Final = 0.25
# One PATCH covers the changes within this time.
_TOGETHER_SECONDS: Final = 0.05
# Rejections expire without a change.
_RECHECK_SECONDS: Final = 5.0


def report(node: NodeState) -> Held:
    """The units that orphaned and unmanaged pods use, the pods with GPUs that are gone, and which allocations the plugin rejected; normally
    empty."""
    if node.devices.inventory is None:
        return Held()
    inventory = node.devices.inventory
    entries = [*_orphaned(node.usage, inventory), *_unmanaged(node.usage, node.pods, inventory), *_displaced(node.usage, inventory)]
    entries += _gone(node, inventory)
    return Held(tuple(sorted(entries, key=lambda e: (e.gpu, e.uid))), tuple(node.rejections.current()))


def _orphaned(usage: Usage, inventory: Inventory) -> Iterator[HeldEntry]:
    for (uid, resource), ids in usage.orphaned().items():
        if resource == protocol.RESOURCE_MEMORY and usage.given_index(usage.keys_of(uid)) is not None:
            for uuid, units in usage.memory_of(uid).items():
                if uuid in inventory.by_uuid:
                    yield HeldEntry(uuid, uid, usage.name(uid), units, "orphaned")
        else:
            yield from _entries(usage, inventory, uid, resource, ids, "orphaned")


def _unmanaged(usage: Usage, pods: PodTable, inventory: Inventory) -> Iterator[HeldEntry]:
    """For pods whose annotations cannot report their GPUs."""
    for pod in pods:
        if pod.finished or pod.annotatable:
            continue
        for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS):
            for entry in _entries(usage, inventory, pod.uid, resource, usage.recorded_ids(pod.uid, resource), "unmanaged"):
                # The extender knows only the copy of a static pod, and would count two UIDs twice.
                yield replace(entry, uid=pod.mirror_uid) if pod.mirror_uid else entry


def _displaced(usage: Usage, inventory: Inventory) -> Iterator[HeldEntry]:
    """Units that no pod can get although no pod has them: kubelet has given their ids to containers with memory of other GPUs."""
    for uuid, shift in usage.displaced().items():
        if shift < 0 and uuid in inventory.by_uuid:
            yield HeldEntry(uuid, OTHERS_IDS, "(ids of pods that another device plugin started)", -shift, "unmanaged")


def _gone(node: NodeState, inventory: Inventory) -> list[HeldEntry]:
    """Of each pod with a GPU that is gone: what it had of that one, and all that it has of the others, since the indexes in its annotations
    may name other GPUs by now. Pods beyond _MOST_GONE are as their annotations have it."""
    entries: list[HeldEntry] = []
    for uid, uuids in sorted(node.devices.gone().items()):
        pod = node.pods.get(uid)
        if pod is None or pod.finished or len(entries) >= _MOST_GONE:
            continue
        if pod.annotatable:
            for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS):
                entries += _entries(node.usage, inventory, uid, resource, node.usage.recorded_ids(uid, resource), GONE)
        planned = pod.allocation.by_gpu if pod.allocation is not None else {}
        memory, wholes = node.usage.memory_of(uid), node.usage.recorded_ids(uid, protocol.RESOURCE_GPUS)
        for uuid in sorted(uuids):
            units = sum(planned.values()) // len(planned) if uuid in wholes and planned else memory.get(uuid, 0)
            entries.append(HeldEntry(as_text(uuid), pod.mirror_uid or uid, str(pod), units, GONE, whole=uuid in wholes))
    return entries


def _entries(usage: Usage, inventory: Inventory, uid: str, resource: str, ids: Collection[str], why: str) -> Iterator[HeldEntry]:
    name = usage.name(uid)
    if resource == protocol.RESOURCE_GPUS:
        for gpu in inventory.gpus:
            if gpu.uuid in ids:
                yield HeldEntry(gpu.uuid, uid, name, gpu.units, why, whole=True)
        return
    units: dict[str, int] = {}
    for device_id in ids:
        uuid = gpu_of_unit(device_id)
        units[uuid] = units.get(uuid, 0) + 1
    for uuid in units:
        if uuid in inventory.by_uuid:
            yield HeldEntry(uuid, uid, name, units[uuid], why)


@dataclass(frozen=True)
class _OwnNode:
    """annotations: those of ours. cpu: thousandths of a CPU that the node has for pods, 0 before kubelet has said so."""

    annotations: Mapping[str, str]
    cpu: int


class NodePublisher:
    """Writes nothing before the first reading of the GPUs: a node whose NVML does not answer keeps its annotations."""

    def __init__(self, node: NodeState, client: KubeClient, name: str) -> None:
        self._node = node
        self._client = client
        self._name = name
        self._published: Mapping[str, str] | None = None
        self._cpu = 0

    def reflector(self) -> Reflector[_OwnNode]:
        """The watch of this node; run it beside `run`."""
        return Reflector(
            self._client,
            path("api/v1", "nodes"),
            on_replace=lambda nodes: self._observe(nodes[0] if nodes else None),
            on_event=lambda kind, node: self._observe(None if kind == "DELETED" else node),
            field_selector=f"metadata.name={self._name}",
            transform=_own_node,
        )

    @property
    def published(self) -> Mapping[str, str] | None:
        """The node's annotations that are ours; None if the node does not exist, or has not been seen yet."""
        return self._published

    async def write(self, values: Mapping[str, str | None]) -> None:
        """None removes an annotation. KubeError."""
        body = {"metadata": {"annotations": values}}
        # The plugin has permission only for the status of its node.
        await self._client.patch(path("api/v1", "nodes", self._name, "status"), body, kind="merge", within=10.0)
        left = {**(self._published or {}), **values}
        self._published = {name: value for name, value in left.items() if value is not None}

    def _observe(self, node: _OwnNode | None) -> None:
        """node: None if it does not exist."""
        annotations = node.annotations if node is not None else None
        self._published, self._cpu = annotations, node.cpu if node is not None else 0
        self._node.devices.set_cordon((annotations or {}).get(protocol.ASK_CORDON, ""))
        self._node.changes.notify()

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff, changes = Backoff(), self._node.changes
        while True:
            seen, due = changes.count, self._due()
            if not due:
                await changes.after(seen, _RECHECK_SECONDS)
                await asyncio.sleep(_TOGETHER_SECONDS)
                continue
            names = " and ".join(due)
            try:
                await self.write(due)
            except KubeError as error:
                wait = backoff.wait()
                log.warning(
                    "annotation %s of node %s cannot be written, trying again in %.1f s: %s",
                    names,
                    self._name,
                    wait,
                    error,
                    extra=about(node=self._name),
                )
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            for name, value in due.items():
                log.info("annotation %s of node %s: %s", name, self._name, value or "removed", extra=about(node=self._name))
            await asyncio.sleep(_PAUSE_SECONDS)

    def _due(self) -> dict[str, str | None]:
        """Annotation → the value to write, None to remove it; {} if nothing is due."""
        inventory = self._node.devices.settled
        if inventory is None or self._published is None:
            return {}
        held = report(self._node)
        wanted = {
            protocol.ANNOTATION_GPUS: replace(inventory, cpu=self._cpu).to_json(),
            protocol.ANNOTATION_HELD: held.to_json() if held != Held() else None,
        }
        return {name: value for name, value in wanted.items() if value != self._published.get(name)}


def _own_node(node: dict[str, Any]) -> _OwnNode:
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    ours = (protocol.ANNOTATION_GPUS, protocol.ANNOTATION_HELD, protocol.ANNOTATION_EVICTIONS, protocol.ANNOTATION_USE, protocol.ASK_CORDON)
    try:
        cpu = parse_cpu(((node.get("status") or {}).get("allocatable") or {}).get("cpu"), MOST_UNITS)
    except ValueError:
        cpu = 0
    return _OwnNode({name: str(annotations[name]) for name in ours if name in annotations}, cpu)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keep the node's annotations `gpushare/cards` and `gpushare/held` true: written when they differ, also when others changed
them. The same watch brings what an administrator wrote in `gpushare/cordon`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import Held, HeldEntry
from gpushare_runtime.daemon.sync import Changes, any_after
from gpushare_runtime.device_plugin.node.allocator import NodeState
from gpushare_runtime.device_plugin.node.ids import card_of_unit
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.usage import Holders
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.reflector import Reflector


def report(node: NodeState) -> Held:
    """What pods hold that are gone or were never placed, and what was refused; empty on the normal path."""
    if node.inventory is None:
        return Held()
    entries = [*_leaving(node.holders, node.inventory), *_unmanaged(node.holders, node.pods, node.inventory)]
    return Held(tuple(sorted(entries, key=lambda e: (e.card, e.uid))), tuple(node.refusals.current()))


def _leaving(holders: Holders, inventory: Inventory) -> Iterator[HeldEntry]:
    for (uid, resource), ids in holders.outlived().items():
        yield from _entries(holders, inventory, uid, resource, ids, "leaving")


def _unmanaged(holders: Holders, pods: PodTable, inventory: Inventory) -> Iterator[HeldEntry]:
    """Of pods whose annotations cannot say it."""
    for pod in pods:
        if pod.finished or pod.sayable:
            continue
        for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_CARDS):
            for entry in _entries(holders, inventory, pod.uid, resource, holders.recorded(pod.uid, resource), "unmanaged"):
                # The scheduler's side knows a static pod by its copy alone, and would count it twice under two UIDs.
                yield replace(entry, uid=pod.copy) if pod.copy else entry


def _entries(holders: Holders, inventory: Inventory, uid: str, resource: str, ids: Collection[str], why: str) -> Iterator[HeldEntry]:
    name = holders.name(uid)
    if resource == protocol.RESOURCE_CARDS:
        for card in inventory.cards:
            if card.uuid in ids:
                yield HeldEntry(card.uuid, uid, name, card.units, why, whole=True)
        return
    units: dict[str, int] = {}
    for device_id in ids:
        uuid = card_of_unit(device_id)
        units[uuid] = units.get(uuid, 0) + 1
    for uuid in units:
        if uuid in inventory.by_uuid:
            yield HeldEntry(uuid, uid, name, units[uuid], why)


log = logging.getLogger(__name__)

# Against somebody who keeps writing something else: never more than one PATCH in this time.
_PAUSE_SECONDS: Final = 0.25
_TOGETHER_SECONDS: Final = 0.05
# Refusals end by time.
_LOOK_AGAIN_SECONDS: Final = 5.0


class NodePublisher:
    """Writes nothing before the cards were read once: a node whose NVML does not answer keeps what it had."""

    def __init__(self, node: NodeState, client: KubeClient, name: str) -> None:
        self._node = node
        self._client = client
        self._name = name
        self._published: Mapping[str, str] | None = None
        self._changes = Changes()

    def reflector(self) -> Reflector[Mapping[str, str]]:
        """The watch of this node's own annotations; run it beside `run`."""
        return Reflector(
            self._client,
            path("api/v1", "nodes"),
            on_replace=lambda values: self._see(values[0] if values else None),
            on_event=lambda kind, value: self._see(None if kind == "DELETED" else value),
            field_selector=f"metadata.name={self._name}",
            transform=_annotations,
            metadata_only=True,
        )

    def _see(self, annotations: Mapping[str, str] | None) -> None:
        """annotations: None for no node."""
        self._published = annotations
        self._node.set_cordon((annotations or {}).get(protocol.ASK_CORDON, ""))
        self._changes.notify()

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        node = self._node
        sources = (self._changes, node.inventory_changes, node.holders.changes, node.refusals.changes, node.pods.changes)
        while True:
            seen = [(changes, changes.count) for changes in sources]
            due = self._due()
            if not due:
                await any_after(*seen, timeout=_LOOK_AGAIN_SECONDS)
                # What changes together is looked at once.
                await asyncio.sleep(_TOGETHER_SECONDS)
                continue
            names = " and ".join(due)
            try:
                body = {"metadata": {"annotations": due}}
                # Through the status: that is all this plugin may patch of its node.
                await self._client.patch(path("api/v1", "nodes", self._name, "status"), body, kind="merge", within=10.0)
            except KubeError as error:
                wait = backoff.wait()
                log.warning("annotation %s of node %s cannot be written, trying again in %.1f s: %s", names, self._name, wait, error)
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            for name, value in due.items():
                log.info("annotation %s of node %s: %s", name, self._name, value or "removed, there is nothing to say")
            left = {**(self._published or {}), **due}
            self._published = {name: value for name, value in left.items() if value is not None}
            await asyncio.sleep(_PAUSE_SECONDS)

    def _due(self) -> dict[str, str | None]:
        """Annotation → what to write, None to remove it; {} if all is as it should be."""
        if self._node.inventory is None or self._published is None:
            return {}
        held = report(self._node)
        wanted = {
            protocol.ANNOTATION_CARDS: self._node.inventory.to_json(),
            protocol.ANNOTATION_HELD: held.to_json() if held != Held() else None,
        }
        return {name: value for name, value in wanted.items() if value != self._published.get(name)}


def _annotations(node: dict[str, Any]) -> Mapping[str, str]:
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    ours = (protocol.ANNOTATION_CARDS, protocol.ANNOTATION_HELD, protocol.ASK_CORDON)
    return {name: str(annotations[name]) for name in ours if name in annotations}

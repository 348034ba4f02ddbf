# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger and the pending pods, kept equal to the API server by two watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.extender.pods import FinishedPod, NodeRecord, PendingPod, PodReader, PodRecord, read_node
from gpushare_runtime.kube.client import KubeClient, path
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.ledger import Holder, Ledger

log = logging.getLogger(__name__)

_PODS: Final = path("api/v1", "pods")
_NODES: Final = path("api/v1", "nodes")


class Cluster:
    """What the extender knows.

    `changed` is set when a pod is new or a node's cards are others; on_room is called when a card may have more room.
    """

    def __init__(self) -> None:
        self.ledger: Final = Ledger()
        self.changed: Final = asyncio.Event()
        self.on_room: Callable[[], None] = lambda: None
        self._pending: dict[str, PendingPod] = {}

    @property
    def pending(self) -> Mapping[str, PendingPod]:
        """Pods on no node that ask for something of ours, by UID."""
        return self._pending

    def replace_pods(self, records: list[PodRecord]) -> None:
        """All unfinished pods, from a fresh list."""
        self._pending.clear()
        self._pending.update((record.uid, record) for record in records if isinstance(record, PendingPod))
        holders = [record for record in records if isinstance(record, Holder)]
        existing = {record.uid for record in records if not isinstance(record, FinishedPod)}
        self.ledger.replace(holders, existing)
        self.changed.set()
        self.on_room()
        log.info("listed the pods: %d hold cards, %d wait", len(holders), len(self._pending))

    def pod_event(self, kind: str, record: PodRecord) -> None:
        """One pod was "ADDED", "MODIFIED" or "DELETED"."""
        if kind == "DELETED" or isinstance(record, FinishedPod):
            self._pending.pop(record.uid, None)
            if self.ledger.holder(record.uid):
                self.ledger.remove(record.uid)
                self.on_room()
        elif isinstance(record, Holder):
            self._pending.pop(record.uid, None)
            self.ledger.apply(record)
        else:
            # Its Binding may be under way: what is assumed of it stays.
            self._pending[record.uid] = record
            self.changed.set()

    def replace_nodes(self, records: list[NodeRecord]) -> None:
        """All nodes, from a fresh list."""
        names = {record.name for record in records}
        for name in [name for name in self.ledger.nodes if name not in names]:
            self.ledger.set_inventory(name, None)
        for record in records:
            self._set(record)
        log.info("listed the nodes: %d of %d have cards", sum(1 for r in records if r.inventory), len(records))

    def node_event(self, kind: str, record: NodeRecord) -> None:
        """One node was "ADDED", "MODIFIED" or "DELETED"."""
        self._set(record if kind != "DELETED" else NodeRecord(record.name, None))

    def _set(self, record: NodeRecord) -> None:
        node = self.ledger.node(record.name)
        before = (node.inventory, node.inventory_error) if node else (None, "")
        if before == (record.inventory, record.error):
            return
        self.ledger.set_inventory(record.name, record.inventory, record.error)
        self.changed.set()
        self.on_room()
        if record.inventory:
            usable = sum(card.usable for card in record.inventory.cards)
            log.info("node %s: %d cards of %d units, %d usable", record.name, len(record.inventory.cards), record.inventory.units, usable)
        else:
            log.warning("node %s: its cards are not known: %s", record.name, record.error or "the annotation is gone")

    def watches(self, client: KubeClient) -> tuple[Reflector[NodeRecord], Reflector[PodRecord]]:
        """What keeps this up to date, to be run."""
        nodes = Reflector(
            client,
            _NODES,
            on_replace=self.replace_nodes,
            on_event=self.node_event,
            transform=read_node,
            metadata_only=True,
        )
        pods = Reflector(
            client,
            _PODS,
            on_replace=self.replace_pods,
            on_event=self.pod_event,
            transform=PodReader(),
            # A pod that ends leaves the watch as if it were deleted.
            field_selector=protocol.UNFINISHED,
        )
        return nodes, pods

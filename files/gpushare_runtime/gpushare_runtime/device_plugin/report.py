# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What only this node knows of its cards, for the node annotation `gpushare/held`. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.holders import Holders
from gpushare_runtime.device_plugin.node import NodeState
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.shares import card_of_unit
from gpushare_runtime.held import Held, HeldEntry
from gpushare_runtime.inventory import Inventory


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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An Event on each pending pod that can never run, in words that say what to write instead.

kube-scheduler rejects a request that exceeds every node's total before it asks an extender, so filter cannot say it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.core.request import Request, explain_size
from gpushare_runtime.extender.cache import Cluster
from gpushare_runtime.kube.events import EventRecorder, ObjectReference

_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Largest:
    """The largest of what the cluster has. card: units of its largest card, in `unit`; cards: of its node with most cards."""

    unit: Unit
    card: int
    cards: int


def largest_of(inventories: Iterable[Inventory]) -> Largest | None:
    """None while no cards are known. Health does not count: a card that is out today may be back tomorrow."""
    unit, mib, card, cards = None, 0, 0, 0
    for inventory in inventories:
        cards = max(cards, len(inventory.cards))
        for one in inventory.cards:
            if one.units * inventory.unit.mib > mib:
                unit, mib, card = inventory.unit, one.units * inventory.unit.mib, one.units
    return Largest(unit, card, cards) if unit else None


def advise(pod: PendingPod | InvalidPod, largest: Largest | None) -> tuple[str, str] | None:
    """(reason, message) of the Event, None when the pod could run on an empty cluster, or when nobody can tell yet."""
    if isinstance(pod, InvalidPod):
        return protocol.EVENT_INVALID, pod.error
    if pod.request.unsupported is not None:
        return protocol.EVENT_UNSUPPORTED, pod.request.unsupported
    message = too_large(pod.request, largest) if largest else None
    return (protocol.EVENT_TOO_LARGE, message) if message else None


def too_large(request: Request, largest: Largest) -> str | None:
    """Why no card (or no node) is large enough even when empty, and what to write; None if one is."""
    if request.cards > largest.cards:
        return (
            f"{request.cards} whole cards of one node are asked for ({protocol.RESOURCE_CARDS}); "
            f"the largest node has {largest.cards}; write at most {largest.cards}"
        )
    if request.cards_per_pod > 1:
        return _too_large_for_several(request, largest)
    several = len(request.containers) > 1
    for container in request.containers:
        text = explain_size(container, largest.unit, largest.card)
        if text is not None:
            return f"container {container.name!r}: {text}" if several else text
    if request.units > largest.card:
        return (
            f"the pod's containers ask for {request.units} units of {largest.unit} together, which must be on one card; "
            f"the largest card has {largest.card}; write at most {largest.card} in total"
        )
    return None


def _too_large_for_several(request: Request, largest: Largest) -> str | None:
    label = f"the pod label {protocol.LABEL_CARDS_PER_POD}: {str(request.cards_per_pod)!r}"
    if request.cards_per_pod > largest.cards:
        return f"{label} asks for memory on so many cards of one node; the largest node has {largest.cards}; write at most {largest.cards}"
    if request.per_card > largest.card:
        most = largest.card * request.cards_per_pod
        return (
            f"{label} spreads {request.units} units of {largest.unit}, {request.per_card} on each card; the largest card has "
            f"{largest.card}; write at most {most} in total, or more cards"
        )
    return None


class Advisor:
    """Looks at the pending pods whenever the cluster has changed, at most once a second. Once per pod and wording."""

    def __init__(self, cluster: Cluster, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._said: dict[str, tuple[str, str]] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it. Start it when both caches are complete."""
        while True:
            await self._cluster.changed.wait()
            self._cluster.changed.clear()
            self.review()
            await asyncio.sleep(_SETTLE_SECONDS)

    def review(self) -> None:
        """Emit what has not been said yet."""
        pending = self._cluster.pending
        largest = largest_of(node.inventory for node in self._cluster.ledger.nodes.values() if node.inventory)
        self._said = {uid: said for uid, said in self._said.items() if uid in pending}
        for pod in pending.values():
            advice = advise(pod, largest)
            if advice is not None and self._said.get(pod.uid) != advice:
                self._said[pod.uid] = advice
                reason, message = advice
                self._events.emit(ObjectReference("Pod", pod.name, pod.uid, pod.namespace), "Warning", reason, message)

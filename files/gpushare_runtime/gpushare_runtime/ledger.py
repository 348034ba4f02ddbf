# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds what on which card. Built from pods and inventories; pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.request import Request


@dataclass(frozen=True)
class Holder:
    """A pod that is bound to a node and not finished. allocation None: its card is not known."""

    uid: str
    namespace: str
    name: str
    node: str
    request: Request
    allocation: Allocation | None

    @property
    def whole(self) -> bool:
        """Whether its cards are held whole, with no memory left for others."""
        return self.request.cards > 0


@dataclass(frozen=True)
class CardState:
    """One card and what is left of it. free: units, never negative; empty: nobody holds any of it."""

    card: Card
    free: int
    empty: bool


class NodeLedger:
    """One node's cards and holders. Changed only through `Ledger`, read by placement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inventory: Inventory | None = None
        self.inventory_error = ""
        self._holders: dict[str, Holder] = {}
        self._states: tuple[CardState, ...] | None = None
        self._memo: dict[tuple[int, int], int | None] = {}
        self._sum: tuple[int, int, int] | None = None

    @property
    def holders(self) -> Collection[Holder]:
        return self._holders.values()

    @property
    def cards(self) -> tuple[CardState, ...]:
        """Every card of the inventory by index, with what is left of it; () without an inventory."""
        if self._states is None:
            self._states = tuple(self._compute()) if self.inventory else ()
        return self._states

    @property
    def usable(self) -> Iterator[CardState]:
        """The cards that may take new pods."""
        return (state for state in self.cards if state.card.usable)

    @property
    def free(self) -> int:
        """Units free on all usable cards together."""
        return self._totals[0]

    def largest_free(self) -> int:
        """Units free on the usable card that has most free."""
        return self._totals[1]

    def empty_cards(self) -> int:
        """Usable cards that nobody holds any of."""
        return self._totals[2]

    def overbooked(self) -> dict[int, int]:
        """Card index → units held beyond what it has, or by pods beside a whole holder. {} when the ledger is sound."""
        excess: dict[int, int] = {}
        if self.inventory is None:
            return excess
        used, whole, _ = self._sums()
        for index, units in used.items():
            card = self.inventory.by_index.get(index)
            over = units - (card.units if card else 0)
            if index in whole and whole[index] > 1:
                over = max(over, 1)
            if over > 0:
                excess[index] = over
        return excess

    def leftover(self, request: Request) -> int | None:
        """Units that stay free on the fullest card that takes the request; for whole cards, empty cards that stay.

        None if it does not fit. Remembered per size until the node changes: filter and prioritize ask for every node.
        """
        key = (request.units, request.cards)
        try:
            return self._memo[key]
        except KeyError:
            pass
        left: int | None
        if request.cards:
            left = self.empty_cards() - request.cards
            left = left if left >= 0 else None
        else:
            left = min((s.free - request.units for s in self.usable if s.free >= request.units), default=None)
        self._memo[key] = left
        return left

    @property
    def _totals(self) -> tuple[int, int, int]:
        # Remembered until the node changes: prioritize compares all nodes by them, and reasons name them.
        if self._sum is None:
            usable = list(self.usable)
            frees = [state.free for state in usable]
            self._sum = sum(frees), max(frees, default=0), sum(state.empty for state in usable)
        return self._sum

    def _sums(self) -> tuple[dict[int, int], dict[int, int], list[Holder]]:
        used: dict[int, int] = {}
        whole: dict[int, int] = {}
        unknown = []
        for holder in self._holders.values():
            if holder.allocation is None:
                unknown.append(holder)
                continue
            for index, units in holder.allocation.by_card.items():
                used[index] = used.get(index, 0) + units
            if holder.whole:
                for index in holder.allocation.by_card:
                    whole[index] = whole.get(index, 0) + 1
        return used, whole, unknown

    def _compute(self) -> Iterator[CardState]:
        assert self.inventory is not None
        used, whole, unknown = self._sums()
        for card in self.inventory.cards:
            free = 0 if card.index in whole else max(0, card.units - used.get(card.index, 0))
            empty = card.index not in used
            # A pod whose card is not known counts against every card that could hold it.
            for holder in unknown:
                if holder.whole:
                    free, empty = 0, False
                elif holder.request.units <= card.units:
                    free, empty = max(0, free - holder.request.units), False
            yield CardState(card, free, empty)

    def _changed(self) -> None:
        self._states = self._sum = None
        self._memo.clear()


class Ledger:
    """All nodes and all pods that hold something, by UID; the only writer of its `NodeLedger`s.

    A binding that is under way is assumed first, and confirmed when the pod is seen bound.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeLedger] = {}
        self._node_of: dict[str, str] = {}
        self._assumed: set[str] = set()

    @property
    def nodes(self) -> Mapping[str, NodeLedger]:
        return self._nodes

    def node(self, name: str) -> NodeLedger | None:
        return self._nodes.get(name)

    def set_inventory(self, name: str, inventory: Inventory | None, error: str = "") -> None:
        """Replace a node's cards; None: it has none that can be used, for the reason `error`. Holders stay."""
        node = self._ensure(name)
        if node.inventory != inventory or node.inventory_error != error:
            node.inventory, node.inventory_error = inventory, error
            node._changed()
        self._drop_if_idle(name)

    def apply(self, holder: Holder) -> None:
        """A pod was seen bound: it holds this, whatever was assumed or known of it before."""
        self._put(holder)
        self._assumed.discard(holder.uid)

    def assume(self, holder: Holder) -> None:
        """A Binding of this pod is about to be sent."""
        self._put(holder)
        self._assumed.add(holder.uid)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def forget(self, uid: str) -> None:
        """The assumed Binding did not happen. Without effect when the pod was seen bound meanwhile."""
        if uid in self._assumed:
            self.remove(uid)

    def remove(self, uid: str) -> None:
        """The pod is finished or gone."""
        self._assumed.discard(uid)
        name = self._node_of.pop(uid, None)
        if name is not None:
            node = self._nodes[name]
            del node._holders[uid]
            node._changed()
            self._drop_if_idle(name)

    def replace(self, holders: Iterable[Holder], existing: Collection[str]) -> None:
        """A fresh list of all pods: `holders` hold, `existing` are the UIDs of every unfinished pod, bound or not.

        What is assumed stays while its pod exists: the list may be older than the Binding.
        """
        current = {holder.uid: holder for holder in holders}
        for uid in list(self._node_of):
            if uid not in current and not (uid in self._assumed and uid in existing):
                self.remove(uid)
        for holder in current.values():
            self.apply(holder)

    def holder(self, uid: str) -> Holder | None:
        name = self._node_of.get(uid)
        return self._nodes[name]._holders[uid] if name is not None else None

    def _put(self, holder: Holder) -> None:
        before = self._node_of.get(holder.uid)
        if before is not None:
            if self._nodes[before]._holders[holder.uid] == holder:
                return
            if before != holder.node:
                self.remove(holder.uid)
        node = self._ensure(holder.node)
        node._holders[holder.uid] = holder
        node._changed()
        self._node_of[holder.uid] = holder.node

    def _ensure(self, name: str) -> NodeLedger:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeLedger(name)
        return node

    def _drop_if_idle(self, name: str) -> None:
        node = self._nodes[name]
        if node.inventory is None and not node.inventory_error and not node.holders:
            del self._nodes[name]

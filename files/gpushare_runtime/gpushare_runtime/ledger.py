# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds what on which card. Built from pods and inventories; pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Protocol, TypeVar, cast

from gpushare_runtime.holding import CardState, Holder, NodeRecord
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.node_ledger import NodeLedger
from gpushare_runtime.request import Request
from gpushare_runtime.rules import Bearer, Labels, selects

__all__ = ["CardState", "Holder", "Ledger", "NodeLedger", "NodeRecord", "Nominee"]


_KEPT: Final = 32
"""Kinds of answers that are kept of all nodes: 5000 nodes are half a MiB of each."""


class Kept(Protocol):
    """Something about all nodes that is kept until they change."""

    def forget(self, name: str) -> None:
        """A node has changed."""


K = TypeVar("K", bound=Kept)


@dataclass(frozen=True)
class Nominee:
    """A pending pod that kube-scheduler has made room for on a node, by evicting others."""

    uid: str
    namespace: str
    name: str
    node: str
    request: Request
    labels: Labels = ()
    priority: int = 0


class Ledger:
    """All nodes and all pods that hold something, by UID; the only writer of its `NodeLedger`s.

    A pod whose Binding is likely to come is reserved for, one whose Binding is under way is assumed, and confirmed when the
    pod is seen bound.
    """

    def __init__(self) -> None:
        self.expired = 0
        """Reservations that ran out since the start."""
        self._nodes: dict[str, NodeLedger] = {}
        self._node_of: dict[str, str] = {}
        self._assumed: set[str] = set()
        self._reserved: dict[str, float] = {}
        self._lingering: dict[str, float] = {}
        self._nominees: dict[str, dict[str, Nominee]] = {}
        self._refusing: set[str] = set()
        self._with_rules: set[str] = set()
        self._kept: dict[Hashable, Kept] = {}

    def kept(self, key: Hashable, make: Callable[[], K]) -> K:
        """What `make` has made for this key, told of every node that changes since. Those used last are kept.

        For what is asked of every node for one pod after the other, of which each changes one node.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = make()
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = kept
        return cast(K, kept)

    def _changed(self, name: str) -> None:
        for kept in self._kept.values():
            kept.forget(name)

    @property
    def nodes(self) -> Mapping[str, NodeLedger]:
        return self._nodes

    def node(self, name: str) -> NodeLedger | None:
        return self._nodes.get(name)

    def set_node(self, record: NodeRecord) -> None:
        """What a node says of itself has become this. Its holders stay."""
        self._ensure(record.name).set_record(record)
        for entry in record.held.entries:
            if entry.uid in self._lingering:
                self.remove(entry.uid)
        if record.held.refused:
            self._refusing.add(record.name)
        self._drop_if_idle(record.name)

    def set_inventory(self, name: str, inventory: Inventory | None, error: str = "") -> None:
        """Replace a node's cards; None: it has none that can be used, for the reason `error`. Holders stay."""
        node = self._nodes.get(name)
        before = node.record if node is not None else NodeRecord(name, None)
        self.set_node(replace(before, inventory=inventory, error=error))

    def expire(self, now: float, clock: float) -> bool:
        """Forget what is over: nodes' refusals, and reservations; whether there was any.

        now: Unix time in seconds; clock: as in `reserve`.
        """
        refusals = [name for name in self._refusing if self._expire_refusals(name, now)]
        reservations = _until(self._reserved, clock)
        self.expired += len(reservations)
        over = [*reservations, *(uid for uid, until in self._lingering.items() if until <= clock)]
        for uid in over:
            self.remove(uid)
        return bool(refusals or over)

    def _expire_refusals(self, name: str, now: float) -> bool:
        node = self._nodes.get(name)
        held = node.record.held.at(now) if node is not None else None
        if node is None or held is None or not held.refused:
            self._refusing = self._refusing - {name}
        if node is None or held is None or held is node.record.held:
            return False
        node.set_record(replace(node.record, held=held))
        return True

    def apply(self, holder: Holder) -> None:
        """A pod was seen bound: it holds this, whatever was assumed or known of it before."""
        self._put(holder)
        self._assumed.discard(holder.uid)
        self._reserved.pop(holder.uid, None)
        self._lingering.pop(holder.uid, None)

    def assume(self, holder: Holder) -> None:
        """A Binding of this pod is about to be sent."""
        self._put(holder)
        self._assumed.add(holder.uid)
        self._reserved.pop(holder.uid, None)

    def reserve(self, holder: Holder, until: float) -> None:
        """This pod will probably be bound there, before `until` (seconds of any clock, not before earlier reservations').

        Without effect when it holds something for good or is being bound.
        """
        if holder.uid not in self._node_of or holder.uid in self._reserved:
            self._put(holder)
            self._reserved.pop(holder.uid, None)
            self._reserved[holder.uid] = until

    def linger(self, uid: str, until: float) -> None:
        """Nobody can say any more whether the pod holds: it does until then, or until its node or its watch has spoken.

        until: seconds of the same clock as in `reserve`.
        """
        if uid in self._node_of:
            self._lingering.setdefault(uid, until)

    @property
    def under_way(self) -> Set[str]:
        """UIDs of the pods that are assumed or reserved for."""
        return self._assumed | self._reserved.keys()

    @property
    def lingering(self) -> Set[str]:
        """UIDs of the pods of which nobody can say whether they hold."""
        return self._lingering.keys()

    def is_lingering(self, uid: str) -> bool:
        return uid in self._lingering

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def is_reserved(self, uid: str) -> bool:
        return uid in self._reserved

    def forget(self, uid: str) -> None:
        """The assumed Binding did not happen. Without effect when the pod was seen bound meanwhile."""
        if uid in self._assumed:
            self.remove(uid)

    def release(self, uid: str) -> None:
        """What was only reserved is free again. Without effect when more is known of the pod."""
        if uid in self._reserved:
            self.remove(uid)

    def remove(self, uid: str) -> None:
        """The pod is finished or gone."""
        self._assumed.discard(uid)
        self._reserved.pop(uid, None)
        self._lingering.pop(uid, None)
        self._with_rules.discard(uid)
        name = self._node_of.pop(uid, None)
        if name is not None:
            self._nodes[name].drop(uid)
            self._drop_if_idle(name)

    @property
    def nominees(self) -> Mapping[str, Mapping[str, Nominee]]:
        """By node and UID; usually there are none."""
        return self._nominees

    def nominate(self, uid: str, nominee: Nominee | None) -> None:
        """The pod with this UID is nominated to a node now; None: to none (any more)."""
        for name in [name for name, of in self._nominees.items() if uid in of]:
            del self._nominees[name][uid]
            if not self._nominees[name]:
                del self._nominees[name]
        if nominee is not None:
            self._nominees.setdefault(nominee.node, {})[uid] = nominee

    def replace(self, holders: Iterable[Holder], existing: Collection[str]) -> None:
        """A fresh list of all pods: `holders` hold, `existing` are the UIDs of every unfinished pod, bound or not.

        What is assumed or reserved stays while its pod exists: the list may be older than the Binding.
        """
        current = {holder.uid: holder for holder in holders}
        for uid in list(self._node_of):
            under_way = (uid in self._assumed or uid in self._reserved) and uid in existing
            if uid not in current and not under_way and uid not in self._lingering:
                self.remove(uid)
        for holder in current.values():
            self.apply(holder)

    def holder(self, uid: str) -> Holder | None:
        """What this pod holds, also where that is only reserved or assumed."""
        name = self._node_of.get(uid)
        return self._nodes[name].holder(uid) if name is not None else None

    def asked_by(self, request: Request, namespace: str, labels: Labels) -> Request:
        """The request with its pod named, where somebody's rules about neighbours make that matter; else as it is."""
        rules = request.rules
        if not rules.about_pods and not self._with_rules:
            return request.asked_by(None)
        first = False
        if rules.same_card_as and selects(rules.same_card_as, labels):
            first = not any(
                holder.namespace == namespace and selects(rules.same_card_as, holder.labels)
                for node in self._nodes.values()
                for holder in node.holders
            )
        return request.asked_by(Bearer(namespace, labels, first))

    def _put(self, holder: Holder) -> None:
        before = self._node_of.get(holder.uid)
        if before is not None and before != holder.node:
            self.remove(holder.uid)
        self._ensure(holder.node).put(holder)
        self._node_of[holder.uid] = holder.node
        if holder.request.rules.not_with:
            self._with_rules.add(holder.uid)

    def _ensure(self, name: str) -> NodeLedger:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeLedger(name, self._changed)
        return node

    def _drop_if_idle(self, name: str) -> None:
        node = self._nodes[name]
        if node.inventory is None and not node.inventory_error and not node.holders:
            del self._nodes[name]
            self._changed(name)


def _until(kept: Mapping[str, float], clock: float) -> list[str]:
    """The UIDs that are over. All are kept equally long: the oldest comes first."""
    return list(takewhile(lambda uid: kept[uid] <= clock, kept))

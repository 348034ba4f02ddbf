# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger and the pending pods, kept equal to the API server by two watches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import Final, NoReturn

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader, read_node, unreadable_node, unreadable_pod
from gpushare_runtime.core.placement.fragmentation import Workload
from gpushare_runtime.core.placement.preemption import Budget, read_budget
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, InvalidPod, PendingPod, PodRecord
from gpushare_runtime.kube.client import KubeClient, path
from gpushare_runtime.kube.reflector import Reflector

log = logging.getLogger(__name__)

EXPIRY_SECONDS: Final = 1.0
FORCED_SECONDS: Final = 3.0
"""A device plugin sees within a second that processes have outlived their pod, and then says so in gpushare/held."""
UNSEEN_SECONDS: Final = 30.0
"""By then a pod that exists has come through the watch; one that has not was deleted before the list that lacked it."""
_SENT_SECONDS: Final = 600.0
"""What we have bound is no foreign binding, however late the watch is with it."""

_MOST_LINES: Final = 10

_PODS: Final = path("api/v1", "pods")
_NODES: Final = path("api/v1", "nodes")
_BUDGETS: Final = path("apis/policy/v1", "poddisruptionbudgets")


class Cluster:
    """What the extender knows.

    `changed` is set when a pod is new or a node's cards are others; on_room is called when a card may have more room,
    on_foreign_binding for a pod that is seen bound with cards, and not by us, or not with these.
    clock: of reservations, monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.ledger: Final = Ledger(self._capacity_freed)
        self.workload: Final = Workload()
        self.changed: Final = asyncio.Event()
        self.on_capacity_freed: Callable[[], None] = lambda: None
        self.on_foreign_binding: Callable[[AllocatedPod], None] = lambda holder: None
        self._pending: dict[str, PendingPod | InvalidPod] = {}
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._sent: dict[str, tuple[AllocatedPod, float]] = {}

    def _capacity_freed(self) -> None:
        # Who is told is set after the ledger is there.
        self.on_capacity_freed()

    @property
    def pending(self) -> Mapping[str, PendingPod | InvalidPod]:
        """Pods on no node that ask for something of ours, by UID."""
        return self._pending

    @property
    def budgets(self) -> Collection[Budget]:
        """The disruption budgets; none while nobody watches them."""
        return self._budgets.values()

    def replace_budgets(self, budgets: list[Budget]) -> None:
        """All of them, from a fresh list."""
        self._budgets = {(budget.namespace, budget.name): budget for budget in budgets}

    def budget_event(self, kind: str, budget: Budget) -> None:
        """One was "ADDED", "MODIFIED" or "DELETED"."""
        if kind == "DELETED":
            self._budgets.pop((budget.namespace, budget.name), None)
        else:
            self._budgets[budget.namespace, budget.name] = budget

    def replace_pods(self, records: list[PodRecord]) -> None:
        """All pods, from a fresh list."""
        self._learn(records)
        for uid in self._pending:
            self.ledger.nominate(uid, None)
        seen = set(self._pending)
        self._pending.clear()
        self._pending.update((record.uid, record) for record in records if isinstance(record, (PendingPod, InvalidPod)))
        holders = [record for record in records if isinstance(record, AllocatedPod)]
        existing = {record.uid for record in records if not isinstance(record, FinishedPod)}
        # The scheduler may have had us bind a pod that is younger than this list; the watch that follows will show it.
        younger = self.ledger.in_flight - seen - existing
        finished = {record.uid for record in records if isinstance(record, FinishedPod) and not record.alive}
        self.ledger.replace(holders, existing | younger, finished, self._clock() + FORCED_SECONDS)
        for holder in holders:
            self._sent.pop(holder.uid, None)
        for uid in younger:
            if self.ledger.is_assumed(uid):
                self.ledger.hold_until(uid, self._clock() + UNSEEN_SECONDS)
        for pod in self._pending.values():
            if isinstance(pod, PendingPod) and pod.nominated:
                self.ledger.nominate(pod.uid, pod.nominee)
        self.changed.set()
        self.on_capacity_freed()
        log.info("listed the pods: %d hold cards, %d wait", len(holders), len(self._pending))

    def pod_event(self, kind: str, record: PodRecord) -> None:
        """One pod was "ADDED", "MODIFIED" or "DELETED"."""
        if kind == "ADDED":
            self._learn([record])
        known = self._pending.get(record.uid)
        if (isinstance(known, PendingPod) and known.nominated) or (isinstance(record, PendingPod) and record.nominated):
            self.ledger.nominate(record.uid, record.nominee if isinstance(record, PendingPod) and kind != "DELETED" else None)
        if kind == "DELETED" or isinstance(record, FinishedPod):
            self._pending.pop(record.uid, None)
            self._end(record)
        elif isinstance(record, AllocatedPod):
            self._pending.pop(record.uid, None)
            if self._is_foreign_binding(record):
                self.on_foreign_binding(record)
            self.ledger.apply(record)
        else:
            if isinstance(known, PendingPod) and isinstance(record, PendingPod) and record.failure not in (0, known.failure):
                # The scheduler has given up what it had chosen; where it says the same as before, time tells.
                self.ledger.release(record.uid)
            # Its Binding may be under way: what is assumed of it stays.
            self._pending[record.uid] = record
            self.changed.set()

    def _is_foreign_binding(self, record: AllocatedPod) -> bool:
        """Whether somebody else gave it its cards. That they are reserved for it, or other ones assumed, makes them no less so."""
        sent, _ = self._sent.pop(record.uid, (None, 0.0))
        seen = self.ledger.pod(record.uid) and not (self.ledger.is_reserved(record.uid) or self.ledger.is_assumed(record.uid))
        if seen or record.allocation is None:
            return False
        if sent is None or sent.allocation is None:
            return True
        return (sent.node, sent.allocation.by_card) != (record.node, record.allocation.by_card)

    def assume(self, holder: AllocatedPod) -> None:
        """A Binding of this pod is about to be sent."""
        self.ledger.assume(holder)
        self._sent[holder.uid] = holder, self._clock() + _SENT_SECONDS

    def forget(self, uid: str) -> None:
        """That Binding did not happen."""
        self.ledger.forget(uid)
        self._sent.pop(uid, None)

    def unknown_end(self, uid: str) -> None:
        """A pod whose Binding may have happened is gone: it holds until the watch, or at the latest that time, has told."""
        self.ledger.hold_until(uid, self._clock() + UNSEEN_SECONDS)

    def _end(self, record: PodRecord) -> None:
        if not self.ledger.pod(record.uid):
            return
        if isinstance(record, (AllocatedPod, FinishedPod)) and record.alive:
            # Deleted by force, or failed before its containers were ended. Whether its processes live on is for its node to say,
            # which takes a moment.
            self.ledger.hold_until(record.uid, self._clock() + FORCED_SECONDS)
            return
        self.ledger.remove(record.uid)

    def _learn(self, records: list[PodRecord]) -> None:
        """What pods ask for, each pod once, for the policy that wants to know."""
        fresh = (
            r for r in records if isinstance(r, (AllocatedPod, PendingPod)) and r.uid not in self._pending and not self.ledger.pod(r.uid)
        )
        self.workload.observe(r.request for r in fresh)

    def replace_nodes(self, records: list[NodeRecord]) -> None:
        """All nodes, from a fresh list."""
        names = {record.name for record in records}
        for name in [name for name in self.ledger.nodes if name not in names]:
            self.ledger.set_node(NodeRecord(name, None))
        for record in records:
            self._set(record)
        log.info("listed the nodes: %d of %d have cards", sum(1 for r in records if r.inventory), len(records))

    def node_event(self, kind: str, record: NodeRecord) -> None:
        """One node was "ADDED", "MODIFIED" or "DELETED"."""
        self._set(record if kind != "DELETED" else NodeRecord(record.name, None))

    async def expire_for_ever(self) -> NoReturn:
        """`expire` whatever else is waiting or busy. Never returns; cancel it."""
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self.expire()

    def expire(self) -> None:
        """Forget what is over: refusals, reservations, pods of unknown card."""
        clock = self._clock()
        self.ledger.expire(clock)
        over = [uid for uid, (_, until) in self._sent.items() if until <= clock and not self.ledger.is_assumed(uid)]
        for uid in over:
            del self._sent[uid]

    def _set(self, record: NodeRecord) -> None:
        node = self.ledger.node(record.name)
        before = node.record if node is not None else NodeRecord(record.name, None)
        if before == record or (node is None and record.inventory is None and not record.error):
            return
        self.ledger.set_node(record)
        self.changed.set()
        self.on_capacity_freed()
        if record.held.refused != before.held.refused:
            for refusal in islice((r for r in record.held.refused if r not in before.held.refused), _MOST_LINES):
                log.warning("node %s refused pod UID %s: %d units of card %s", record.name, refusal.uid, refusal.units, refusal.card)
        if (before.inventory, before.error) == (record.inventory, record.error):
            return
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
            unreadable=unreadable_node,
            metadata_only=True,
        )
        pods = Reflector(
            client,
            _PODS,
            on_replace=self.replace_pods,
            on_event=self.pod_event,
            # Finished pods too: with a selector for the others, a pod that ends and one that is deleted by force look the same.
            transform=PodReader(partial(log.warning, "%s")),
            unreadable=unreadable_pod,
        )
        return nodes, pods

    def budget_watch(self, client: KubeClient) -> Reflector[Budget]:
        """What keeps the budgets up to date, where the preempt verb is offered: needs list and watch of them."""
        return Reflector(client, _BUDGETS, on_replace=self.replace_budgets, on_event=self.budget_event, transform=read_budget)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger and the pending pods, kept equal to the API server by two watches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NoReturn

from gpushare_runtime.core.ledger import CapacityFreed, Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import NodeTexts, PodReader, node_texts, unreadable_node, unreadable_pod
from gpushare_runtime.core.overuse import NO_EVICTIONS, Evictions
from gpushare_runtime.core.placement.budgets import Budget, Budgets, read_budget
from gpushare_runtime.core.placement.gpu_sizes import GpuSizes, sizes_of
from gpushare_runtime.core.placement.scarcity import Scarcity
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, InvalidPod, PendingPod, PodRecord
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender.node_states import NodeStates, condensed
from gpushare_runtime.kube.client import KubeClient, path
from gpushare_runtime.kube.fields import read_event, read_page
from gpushare_runtime.kube.reflector import Decoders, Reflector

log = logging.getLogger(__name__)

EXPIRY_SECONDS: Final = 1.0
FORCED_SECONDS: Final = 3.0
"""Within a second a device plugin detects the processes of an orphaned pod, and then publishes them in gpushare/held."""
UNSEEN_SECONDS: Final = 30.0
"""By then the watch has shown a pod that exists. Any other was deleted before the list that lacked it."""
_SENT_SECONDS: Final = 600.0
"""A pod that this process bound is not a foreign binding within this time, however late its watch event."""

NODES_SECONDS: Final = 0.2
"""Nodes of a large cluster write all the time, and what they write may be so late: it is not what a pod waits for that was just deleted."""
PODS_SECONDS: Final = 0.2
"""Changes of pods may be so late while none is pending. A new pod that needs a GPU which was freed in this time is tried again after it."""

_MOST_LINES: Final = 10

_PODS: Final = path("api/v1", "pods")
_NODES: Final = path("api/v1", "nodes")
_BUDGETS: Final = path("apis/policy/v1", "poddisruptionbudgets")


STALE_SECONDS: Final = 300.0
"""The API server sends each watch a bookmark about every minute."""


def incomplete(watches: Mapping[str, Reflector[Any]]) -> str:
    """Why the caches are not up to date with the API server; "" if they are. watches: by resource."""
    missing = [what for what, watch in watches.items() if not watch.synced.is_set()]
    if missing:
        why = f"not synced yet: the list of {' and of '.join(missing)} from the API server is not complete"
        return f"{why}; the scheduler tries again by itself"
    old = [f"{what} ({watch.age:.0f} s)" for what, watch in watches.items() if watch.age > STALE_SECONDS]
    if old:
        return (
            f"not up to date: the API server has sent nothing for more than {STALE_SECONDS:.0f} s about {' and '.join(old)}; "
            "expected it to answer, and the right to list and watch them (role extender gives it): the log says how each try ended"
        )
    return ""


class ClusterCache:
    """The extender's cache.

    changed: set when a pod is new or the GPUs of a node changed. on_capacity_freed: called when a GPU may have more free
    units. on_foreign_binding: called with a pod that the watch shows with GPUs that this process did not give it.
    clock: monotonic seconds, for reservations.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.ledger: Final = Ledger(self._capacity_freed)
        self.scarcity: Final = Scarcity(self.ledger.classes)
        self.budgets: Final = Budgets()
        self.node_states: Final = NodeStates(self.node_event)
        self.changed: Final = asyncio.Event()
        self.on_capacity_freed: CapacityFreed = lambda by="": None
        self.on_foreign_binding: Callable[[AllocatedPod], None] = lambda pod: None
        self._pending: dict[str, PendingPod | InvalidPod] = {}
        self._evictions: dict[str, Evictions] = {}
        self._sent: dict[str, tuple[AllocatedPod, float]] = {}
        self._sizes: tuple[int, GpuSizes | None] = 0, None

    def _capacity_freed(self, by: str = "") -> None:
        # It is set after the ledger exists.
        self.on_capacity_freed(by)

    @property
    def pending(self) -> Mapping[str, PendingPod | InvalidPod]:
        """Pods without a node that request our resources, by UID."""
        return self._pending

    @property
    def evictions(self) -> Mapping[str, Evictions]:
        """The evictions that nodes request, by node."""
        return self._evictions

    @property
    def sizes(self) -> GpuSizes | None:
        """The sizes of the GPUs of all nodes, None while no GPUs are known."""
        if self._sizes[0] != (changes := self.ledger.inventory_changes):
            # All nodes of a large cluster are too many for every question.
            self._sizes = changes, sizes_of([node.inventory for node in self.ledger.nodes.values() if node.inventory])
        return self._sizes[1]

    def bound(self, uid: str) -> AllocatedPod | None:
        """The pod that the watch has shown on a node with GPUs, and not its end."""
        unseen = uid in self.ledger.in_flight or self.ledger.is_held_until(uid)
        return None if unseen else self.ledger.pod(uid)

    def replace_pods(self, records: list[PodRecord]) -> None:
        """All pods, from a fresh list."""
        self._observe_requests(records)
        for uid in self._pending:
            self.ledger.nominate(uid, None)
        seen = set(self._pending)
        self._pending.clear()
        self._pending.update((record.uid, record) for record in records if isinstance(record, (PendingPod, InvalidPod)))
        allocated = [record for record in records if isinstance(record, AllocatedPod)]
        existing = {record.uid for record in records if not isinstance(record, FinishedPod)}
        # The scheduler may have had us bind a pod that is younger than this list; the watch that follows will show it.
        younger = self.ledger.in_flight - seen - existing
        finished = {record.uid for record in records if isinstance(record, FinishedPod) and not record.alive}
        for record in records:
            self._observe_rejection(record)
        self.ledger.replace(allocated, existing | younger, finished, self._clock() + FORCED_SECONDS)
        for record in allocated:
            self._sent.pop(record.uid, None)
        for uid in younger:
            if self.ledger.is_assumed(uid):
                self.ledger.hold_until(uid, self._clock() + UNSEEN_SECONDS)
        for pod in self._pending.values():
            if isinstance(pod, PendingPod) and pod.nominated:
                self.ledger.nominate(pod.uid, pod.nominee)
        self.changed.set()
        self.on_capacity_freed()
        log.info("listed the pods: %d have GPUs, %d are pending", len(allocated), len(self._pending))

    def pod_event(self, kind: str, record: PodRecord) -> None:
        """One pod was "ADDED", "MODIFIED" or "DELETED"."""
        if kind == "ADDED":
            self._observe_requests([record])
        known = self._pending.get(record.uid)
        if (isinstance(known, PendingPod) and known.nominated) or (isinstance(record, PendingPod) and record.nominated):
            self.ledger.nominate(record.uid, record.nominee if isinstance(record, PendingPod) and kind != "DELETED" else None)
        if kind == "DELETED" or isinstance(record, FinishedPod):
            self._pending.pop(record.uid, None)
            self._observe_rejection(record)
            self._remove(record)
        elif isinstance(record, AllocatedPod):
            self._pending.pop(record.uid, None)
            if self._is_foreign_binding(record):
                self.on_foreign_binding(record)
            self.ledger.apply(record)
        else:
            if isinstance(known, PendingPod) and isinstance(record, PendingPod) and record.failure not in (0, known.failure):
                # The scheduler failed to bind it, and reports a new failure: the reservation ends. Otherwise it expires.
                self.ledger.release(record.uid)
            if (
                isinstance(record, PendingPod)
                and record.nominated
                and not (isinstance(known, PendingPod) and known.nominated == record.nominated)
            ):
                self.ledger.going(record.uid, record.nominated, self._clock() + record.seconds_to_bind)
            # Its Binding may be under way: an assumed allocation stays.
            self._pending[record.uid] = record
            self.changed.set()

    def _is_foreign_binding(self, record: AllocatedPod) -> bool:
        """Whether another scheduler allocated its GPUs, even if the same ones are reserved or others assumed for it here."""
        sent, _ = self._sent.pop(record.uid, (None, 0.0))
        seen = self.ledger.pod(record.uid) and not (self.ledger.is_reserved(record.uid) or self.ledger.is_assumed(record.uid))
        if seen or record.allocation is None:
            return False
        if sent is None or sent.allocation is None:
            return True
        return (sent.node, sent.allocation.by_gpu) != (record.node, record.allocation.by_gpu)

    def assume(self, pod: AllocatedPod) -> None:
        """A Binding of this pod is about to be sent."""
        self.ledger.assume(pod)
        self._sent[pod.uid] = pod, self._clock() + _SENT_SECONDS

    def forget(self, uid: str) -> None:
        """The Binding of this pod did not happen."""
        self.ledger.forget(uid)
        self._sent.pop(uid, None)

    def keep_until_seen(self, uid: str) -> None:
        """A pod is gone whose Binding may have happened: keep its allocation until the watch shows the pod, or this time is over."""
        self.ledger.hold_until(uid, self._clock() + UNSEEN_SECONDS)

    def _remove(self, record: PodRecord) -> None:
        if not self.ledger.pod(record.uid):
            return
        if isinstance(record, (AllocatedPod, FinishedPod)) and record.alive:
            # It was deleted by force, or failed before its containers ended. Its node reports within seconds whether processes remain.
            self.ledger.hold_until(record.uid, self._clock() + FORCED_SECONDS)
            return
        self.ledger.remove(record.uid)

    def _observe_rejection(self, record: PodRecord) -> None:
        """A node's device plugin that cannot reach the API server rejects pods all the same, and a controller makes the next one."""
        if isinstance(record, FinishedPod) and record.rejected:
            self.ledger.reject(record.uid)

    def _observe_requests(self, records: list[PodRecord]) -> None:
        """Pass each new pod's request once to what the policies learn from."""
        fresh = [
            r.request
            for r in records
            if isinstance(r, (AllocatedPod, PendingPod)) and r.uid not in self._pending and not self.ledger.pod(r.uid)
        ]
        self.scarcity.observe(fresh)

    def replace_nodes(self, records: list[NodeRecord]) -> None:
        """All nodes, from a fresh list."""
        names = {record.name for record in records}
        self._evictions.clear()
        for name in [name for name in self.ledger.nodes if name not in names]:
            self.ledger.set_node(NodeRecord(name, None))
        for record in records:
            self._set(record)
        log.info("listed the nodes: %d of %d have GPUs", sum(1 for r in records if r.inventory), len(records))

    def node_event(self, kind: str, record: NodeRecord) -> None:
        """One node was "ADDED", "MODIFIED" or "DELETED"."""
        self._set(record if kind != "DELETED" else NodeRecord(record.name, None))

    async def expire_for_ever(self) -> NoReturn:
        """`expire` whatever else is waiting or busy. Never returns; cancel it."""
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            for _ in self.node_states.end_of_second():
                # The scheduler does not wait for all of them.
                await asyncio.sleep(0)
            self.expire()

    def expire(self) -> None:
        """Remove what has expired: rejections, reservations, pods of unknown GPU."""
        for uid in list(self.ledger.held_until):
            # Such a pod waits for its node's word, which may have come.
            pod = self.ledger.pod(uid)
            if pod is not None:
                self.node_states.take_waiting(pod.node)
        clock = self._clock()
        self.ledger.expire(clock)
        over = [uid for uid, (_, until) in self._sent.items() if until <= clock and not self.ledger.is_assumed(uid)]
        for uid in over:
            del self._sent[uid]

    def _set(self, record: NodeRecord) -> None:
        self._evictions.pop(record.name, None)
        if record.evictions != NO_EVICTIONS:
            self._evictions[record.name] = record.evictions
        node = self.ledger.node(record.name)
        before = node.record if node is not None else NodeRecord(record.name, None)
        if before == record or (node is None and record.inventory is None and not record.error):
            return
        self.ledger.set_node(record)
        self.changed.set()
        self.on_capacity_freed()
        if record.held.rejected != before.held.rejected:
            for rejection in islice((r for r in record.held.rejected if r not in before.held.rejected), _MOST_LINES):
                log.warning(
                    "node %s rejected pod UID %s: %d units of GPU %s",
                    record.name,
                    rejection.uid,
                    rejection.units,
                    rejection.gpu,
                    extra=about(self.ledger.pod(rejection.uid) or "", record.name, rejection.gpu),
                )
        if (before.inventory, before.error) == (record.inventory, record.error):
            return
        if record.inventory:
            usable = sum(gpu.usable for gpu in record.inventory.gpus)
            log.info(
                "node %s: %d GPUs of %d units, %d usable",
                record.name,
                len(record.inventory.gpus),
                record.inventory.units,
                usable,
                extra=about(node=record.name),
            )
        else:
            log.warning(
                "node %s: its GPUs are not known: %s", record.name, record.error or "the annotation is gone", extra=about(node=record.name)
            )

    def watches(self, client: KubeClient) -> tuple[Reflector[NodeTexts], Reflector[PodRecord]]:
        """The watches that keep this up to date; run them."""
        nodes = Reflector(
            client,
            _NODES,
            on_replace=lambda listed: self.replace_nodes(self.node_states.replace(listed)),
            on_event=self.node_states.event,
            transform=node_texts,
            unreadable=unreadable_node,
            metadata_only=True,
            condense=condensed,
            pause=lambda: NODES_SECONDS,
        )
        pods = Reflector(
            client,
            _PODS,
            on_replace=self.replace_pods,
            on_event=self.pod_event,
            # Also finished pods: with a selector for the others, a pod that ends and one that is deleted by force are the same.
            transform=PodReader(partial(log.warning, "%s")),
            unreadable=unreadable_pod,
            decode=Decoders(read_page, read_event),
            pause=lambda: 0.0 if self._pending else PODS_SECONDS,
        )
        return nodes, pods

    def budget_watch(self, client: KubeClient) -> Reflector[Budget]:
        """The watch that keeps the budgets up to date, for preempt. Needs permission to list and watch them."""
        return Reflector(client, _BUDGETS, on_replace=self.budgets.replace, on_event=self.budgets.event, transform=read_budget)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Requeue: have kube-scheduler retry a pod for which filter found no node a moment too early.

The scheduler's own watch shows it the end of a pod, and it retries immediately. If our watch is later, filter still answers from
the old ledger. Capacity that is freed without a pod's end (a reservation, a Binding that did not happen) is invisible to the
scheduler. Then it retries only with its flush after five minutes. So this module remembers unschedulable pods. When capacity is
free for one and the scheduler does not retry it, the pod gets an annotation: any update puts it back into the scheduler's queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.view import seen_by
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender.cache import UNSEEN_SECONDS, ClusterCache
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

LATE_SECONDS: Final = 1.0
"""If the scheduler's own watch shows it the free capacity, it retries within this time."""
SAMPLED_FROM: Final = 100
"""With fewer nodes kube-scheduler asks about all of them (minFeasibleNodesToFind), with more about a sample."""
MOST_UNSCHEDULABLE: Final = 10_000
"""Beyond so many, entries of deleted pods are removed whenever the number has doubled, because capacity may not be freed for long."""
_PATCH_SECONDS: Final = 5.0
_MOST_NAMES: Final = 200_000


@dataclass(frozen=True)
class _Unschedulable:
    """at: of the clock; nodes: those that filter tried, None if unknown."""

    at: float
    nodes: frozenset[str] | None


class Requeue:
    """Requeues one pod at a time, the longest waiting first: it may take the capacity, and the others need not be tried.

    active: whether this extender is the leader, because a former leader leaves the pods to the new one; clock: seconds, monotonic.
    """

    def __init__(
        self,
        cluster: ClusterCache,
        policy: Policy,
        *,
        active: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._active = active
        self._clock = clock
        self._unschedulable: dict[str, _Unschedulable] = {}
        self._limit = MOST_UNSCHEDULABLE
        self._requeued: dict[str, float] = {}
        self._nodes: dict[frozenset[str], frozenset[str]] = {}
        self._freed_at = self._freed_else_at = 0.0
        self._freed_by = ""
        self._freed = asyncio.Event()

    def on_filter(self, uid: str, nodes_tried: Collection[str]) -> None:
        """filter answered about this pod just now. nodes_tried: all nodes of the call if the pod fits on none; empty if it fits."""
        # A pod that was tried goes to the end.
        before = self._unschedulable.pop(uid, None)
        if not nodes_tried:
            return
        nodes = frozenset(nodes_tried)
        if before is not None and before.nodes is not None and len(nodes) >= SAMPLED_FROM:
            # Perhaps a sample: the next one will be another.
            nodes |= before.nodes
        self._unschedulable[uid] = _Unschedulable(self._clock(), self._shared(nodes))
        if len(self._unschedulable) > self._limit:
            self._forget_gone()

    def on_capacity_freed(self, by: str = "") -> None:
        """The ledger may have more free capacity than before. by: the group of which only a reservation has ended."""
        if by != self._freed_by:
            self._freed_by, self._freed_else_at = by, self._freed_at
        self._freed_at = self._clock()
        self._freed.set()

    def _freed_for(self, pod: PendingPod | InvalidPod) -> float:
        """When capacity was freed last that is news for this pod.

        Room that its own group had reserved is none: a group that fits nowhere would be tried again and again.
        """
        own = isinstance(pod, PendingPod) and pod.group is not None and pod.group.name == self._freed_by
        return self._freed_else_at if own else self._freed_at

    def next(self) -> PendingPod | InvalidPod | None:
        """A pod that was unschedulable before capacity was freed, fits now, and was not requeued for it yet."""
        pending: Mapping[str, PendingPod | InvalidPod] = self._cluster.pending
        self._forget_gone()
        fits: dict[Hashable, bool] = {}
        for uid, failure in self._unschedulable.items():
            pod = pending.get(uid)
            freed_at = self._freed_for(pod) if pod is not None else 0.0
            if pod is None or failure.at > freed_at or self._requeued.get(uid) == freed_at:
                continue
            # The result of an assumed pod's Binding is to come, and may free capacity again.
            if not self._cluster.ledger.is_assumed(uid) and self._fits(pod, failure.nodes, fits):
                self._requeued[uid] = freed_at
                return pod
        return None

    def _forget_gone(self) -> None:
        pending = self._cluster.pending
        # The scheduler's watch may be ahead of ours: a pod that ours has not shown yet is not deleted.
        unseen = self._clock() - UNSEEN_SECONDS
        self._unschedulable = {uid: failure for uid, failure in self._unschedulable.items() if uid in pending or failure.at > unseen}
        self._requeued = {uid: at for uid, at in self._requeued.items() if uid in self._unschedulable}
        self._limit = max(MOST_UNSCHEDULABLE, 2 * len(self._unschedulable))

    def _fits(self, pod: PendingPod | InvalidPod, nodes: frozenset[str] | None, known: dict[Hashable, bool]) -> bool:
        """known: results of this call, because most waiting pods are alike."""
        if isinstance(pod, InvalidPod):
            return False
        ledger = self._cluster.ledger
        request = ledger.for_pod(pod)
        # A nominated pod sees the capacity reserved for it; other pods that of nominees with lower priority.
        alike = request.key, nodes, (pod.uid if pod.nominated else "", pod.priority) if ledger.nominees else None
        if alike not in known:
            found = ledger.nodes.values() if nodes is None else filter(None, map(ledger.node, nodes))
            known[alike] = any(node.guarded(partial(self._takes, pod, request, node), False) for node in found)
        return known[alike]

    def _takes(self, pod: PendingPod, request: Request, node: NodeLedger) -> bool:
        return seen_by(self._cluster.ledger, self._policy, node, pod).remaining_after(request) is not None

    def _shared(self, nodes: frozenset[str]) -> frozenset[str] | None:
        """One object for equal ones. Where samples differ too much for that, only a bounded number of names is kept."""
        if nodes not in self._nodes and sum(map(len, self._nodes)) + len(nodes) > _MOST_NAMES:
            self._nodes = {failure.nodes: failure.nodes for failure in self._unschedulable.values() if failure.nodes is not None}
            if sum(map(len, self._nodes)) + len(nodes) > _MOST_NAMES:
                return None
        return self._nodes.setdefault(nodes, nodes)

    async def run(self, client: KubeClient) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            await self._freed.wait()
            await asyncio.sleep(LATE_SECONDS)
            if not self._active():
                continue
            pod = self.next()
            if pod is None:
                self._freed.clear()
                continue
            log.info("requeue %s: it fits now, and the scheduler has not retried it", pod, extra=about(pod))
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            # Through the status: permission to patch the pod itself would allow a change of its images.
            where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name, "status")
            body = {"metadata": {"uid": pod.uid, "annotations": {protocol.ANNOTATION_REQUEUED: now}}}
            try:
                await client.patch(where, body, kind="merge", within=_PATCH_SECONDS)
            except KubeError as error:
                log.warning("requeue %s: %s", pod, error, extra=about(pod))
                if not error.status or error.status == 429 or error.status >= 500:
                    self._retry(pod.uid)
                    await asyncio.sleep(backoff.wait())
            else:
                backoff.reset()

    def _retry(self, uid: str) -> None:
        """The annotation was not written: try this pod again after the others."""
        failure = self._unschedulable.pop(uid, None)
        if failure is not None:
            self._unschedulable[uid] = failure
            self._requeued.pop(uid, None)

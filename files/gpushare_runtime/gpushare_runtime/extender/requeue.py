# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Have kube-scheduler ask again about a pod that it asked about a moment too early.

The scheduler hears of a pod's end by its own watch and asks at once. Where our watch is a little later, we refuse from the
ledger as it still is; and of what is given back without a pod's end (a reservation, a Binding that did not happen) it never
hears. Then nothing makes the scheduler ask again before its flush after five minutes. So what was refused is remembered, and
when room comes up for it that the scheduler does not ask for by itself, the pending pod gets an annotation: any update of it
puts it back into the scheduler's queue.
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
from gpushare_runtime.core.placement.preemption import seen_by
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.extender.cache import UNSEEN_SECONDS, Cluster
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

LATE_SECONDS: Final = 1.0
"""The scheduler, when it has heard of the room by itself, has asked by then."""
SAMPLED_FROM: Final = 100
"""kube-scheduler looks for so many nodes at least (minFeasibleNodesToFind) before it asks about a sample of them."""
MOST_UNSCHEDULABLE: Final = 10_000
"""Beyond so many, those of pods that are gone are looked for whenever they have doubled: there may be no room for long."""
_PATCH_SECONDS: Final = 5.0
_MOST_NAMES: Final = 200_000


@dataclass(frozen=True)
class _Unschedulable:
    """at: of the clock; nodes: those that the scheduler asked about, None where it is not known which."""

    at: float
    nodes: frozenset[str] | None


class Requeue:
    """One pod at a time, the longest waiting first: it may take the room, and the others need not be woken.

    active: whether this extender answers the scheduler now: a former leader leaves the pods to the new one; clock: seconds, monotonic.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        active: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._active = active
        self._clock = clock
        self._refused: dict[str, _Unschedulable] = {}
        self._many = MOST_UNSCHEDULABLE
        self._requeued: dict[str, float] = {}
        self._nodes: dict[frozenset[str], frozenset[str]] = {}
        self._room_at = 0.0
        self._room = asyncio.Event()

    def asked(self, uid: str, refused: Collection[str]) -> None:
        """filter was asked about this pod just now. refused: the nodes it was asked about, where it fits on none; empty where it fits."""
        # Whoever has had a turn goes to the end.
        before = self._refused.pop(uid, None)
        if not refused:
            return
        nodes = frozenset(refused)
        if before is not None and before.nodes is not None and len(nodes) >= SAMPLED_FROM:
            # Perhaps a sample: the next one will be another.
            nodes |= before.nodes
        self._refused[uid] = _Unschedulable(self._clock(), self._shared(nodes))
        if len(self._refused) > self._many:
            self._forget_gone()

    def on_capacity_freed(self) -> None:
        """The ledger may have room that it had not before."""
        self._room_at = self._clock()
        self._room.set()

    def next(self) -> PendingPod | InvalidPod | None:
        """The pod that fits by now where it was refused, was so before there was room, and was not requeued for this room yet."""
        pending: Mapping[str, PendingPod | InvalidPod] = self._cluster.pending
        self._forget_gone()
        fits: dict[Hashable, bool] = {}
        for uid, refusal in self._refused.items():
            pod = pending.get(uid)
            if pod is None or refusal.at > self._room_at or self._requeued.get(uid) == self._room_at:
                continue
            # What is assumed has an answer to come; when it does, there is room again.
            if not self._cluster.ledger.is_assumed(uid) and self._fits(pod, refusal.nodes, fits):
                self._requeued[uid] = self._room_at
                return pod
        return None

    def _forget_gone(self) -> None:
        pending = self._cluster.pending
        # The scheduler's watch may be faster than ours: a pod that we have not seen yet is not gone.
        unseen = self._clock() - UNSEEN_SECONDS
        self._refused = {uid: refusal for uid, refusal in self._refused.items() if uid in pending or refusal.at > unseen}
        self._requeued = {uid: at for uid, at in self._requeued.items() if uid in self._refused}
        self._many = max(MOST_UNSCHEDULABLE, 2 * len(self._refused))

    def _fits(self, pod: PendingPod | InvalidPod, nodes: frozenset[str] | None, known: dict[Hashable, bool]) -> bool:
        """known: answers of this moment, since most pods that wait are alike."""
        if isinstance(pod, InvalidPod):
            return False
        ledger = self._cluster.ledger
        request = ledger.for_pod(pod)
        # Who is nominated sees its own room, the others that of those who are less.
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
            self._nodes = {refusal.nodes: refusal.nodes for refusal in self._refused.values() if refusal.nodes is not None}
            if sum(map(len, self._nodes)) + len(nodes) > _MOST_NAMES:
                return None
        return self._nodes.setdefault(nodes, nodes)

    async def run(self, client: KubeClient) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            await self._room.wait()
            await asyncio.sleep(LATE_SECONDS)
            if not self._active():
                continue
            pod = self.next()
            if pod is None:
                self._room.clear()
                continue
            log.info("requeue %s: it fits by now, and the scheduler has not asked again", pod)
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            # Through the status, because whoever may patch the pod itself may change its images.
            where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name, "status")
            body = {"metadata": {"uid": pod.uid, "annotations": {protocol.ANNOTATION_RECALLED: now}}}
            try:
                await client.patch(where, body, kind="merge", within=_PATCH_SECONDS)
            except KubeError as error:
                log.warning("requeue %s: %s", pod, error)
                if not error.status or error.status == 429 or error.status >= 500:
                    self._once_more(pod.uid)
                    await asyncio.sleep(backoff.wait())
            else:
                backoff.reset()

    def _once_more(self, uid: str) -> None:
        """It has not heard; the others have their turn first."""
        refusal = self._refused.pop(uid, None)
        if refusal is not None:
            self._refused[uid] = refusal
            self._requeued.pop(uid, None)

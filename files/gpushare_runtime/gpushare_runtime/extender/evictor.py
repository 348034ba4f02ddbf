# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Evicts the pods of which their nodes request it, through the Eviction API: disruption budgets decide when.

A node can request this of its own pods only, see core/overuse.py. So that no other pod is hit, the Eviction carries the pod's UID.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import Final, NoReturn, Protocol

from prometheus_client.core import Metric

from gpushare_runtime.core import protocol
from gpushare_runtime.core.overuse import STATIC, EvictionRequest, Evictions
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.daemon.exposition import family
from gpushare_runtime.daemon.listener import RateLimit
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError

log = logging.getLogger(__name__)
# A node may write other requests as often as it likes.
rejections = logging.getLogger(f"{__name__}.rejections")
rejections.addFilter(RateLimit(most=20))

INTERVAL_SECONDS: Final = 1.0
FIRST_WAIT: Final = 5.0
LONGEST_WAIT: Final = 60.0
_WITHIN: Final = 5.0
# The cause in that answer, which 429 for other reasons has not; and the API server's words for a pod that it never evicts.
_BUDGET: Final = "DisruptionBudget"
_TWO_BUDGETS: Final = "more than one PodDisruptionBudget"

EVICTED: Final = "evicted"
BLOCKED: Final = "blocked"
FAILED: Final = "failed"
RESULTS: Final = (EVICTED, BLOCKED, FAILED)


def budget_of(error: KubeError) -> str:
    """The API server's message about the disruption budgets that keep a pod, "" for any other error."""
    if _BUDGET in error.causes:
        return error.causes[_BUDGET] or error.message
    return error.message if error.status == 500 and _TWO_BUDGETS in error.message else ""


class Events(Protocol):
    """Where a pod's Events go: reason and message."""

    def __call__(self, pod: AllocatedPod, reason: str, message: str) -> None: ...


def rejected(pod: AllocatedPod, node: str, request: EvictionRequest) -> str:
    """Why a node's request is not followed; "" if it is."""
    if pod.node != node:
        return f"it is on node {pod.node}, and node {node} requests it"
    if pod.mirror:
        return STATIC
    if pod.whole and request.reason == "":
        return "it has whole GPUs, which it does not share"
    if pod.allocation is not None and request.gpu not in pod.allocation.by_gpu:
        return f"it has nothing of GPU {request.gpu}"
    return ""


class Evictor:
    """One Eviction at a time. active: whether this extender is the leader. now: Unix time. clock: monotonic seconds.

    pause: seconds from one pod that was evicted to the next.
    """

    def __init__(
        self,
        cluster: ClusterCache,
        emit: Events,
        *,
        active: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        pause: float = 0.0,
    ) -> None:
        self._cluster = cluster
        self._emit = emit
        self._active = active
        self._now = now
        self._clock = clock
        self._pause = pause
        self._next = 0.0
        self._waits: dict[str, tuple[float, Backoff]] = {}
        self._said: Set[str] = set()
        self._results: Counter[str] = Counter()

    async def run(self, client: KubeClient) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            if self._active():
                for uid in self.due():
                    # Those before it may have taken minutes: meanwhile another leads, or the node has withdrawn its request.
                    if self._clock() < self._next or not self._active():
                        break
                    if uid in (now_due := self.due()):
                        await self._evict(client, *now_due[uid])
            await asyncio.sleep(INTERVAL_SECONDS)

    def due(self) -> dict[str, tuple[AllocatedPod, EvictionRequest]]:
        """The pods to evict now, by UID. Requests that are not followed are logged once."""
        followed: dict[str, tuple[AllocatedPod, EvictionRequest]] = {}
        said: dict[str, dict[str, dict[str, str]]] = {}
        for node, evictions in self._cluster.evictions.items():
            why = self._unusable(evictions)
            if why:
                said[f"node {node} requests evictions, and they are not followed: {why}"] = about(node=node)
                continue
            for request in evictions.requests:
                pod = self._cluster.bound(request.uid)
                if pod is None or pod.terminating:
                    continue
                why = rejected(pod, node, request)
                if why:
                    said[f"pod {pod.namespace}/{pod.name} on node {pod.node} is not evicted: {why}"] = about(pod, pod.node)
                else:
                    followed[pod.uid] = pod, request
        for text in sorted(said.keys() - self._said):
            rejections.warning("%s", text, extra=said[text])
        self._said = said.keys()
        self._waits = {uid: wait for uid, wait in self._waits.items() if uid in followed}
        return {uid: found for uid, found in followed.items() if uid not in self._waits or self._clock() >= self._waits[uid][0]}

    def _unusable(self, evictions: Evictions) -> str:
        now = self._now()
        if evictions.error or evictions.in_force(now):
            return evictions.error
        when = "ended" if evictions.until <= now else "end only"
        return f"they {when} at {evictions.until} (Unix time); check the device plugin there, and the clocks of both hosts"

    async def _evict(self, client: KubeClient, pod: AllocatedPod, request: EvictionRequest) -> None:
        name = f"{pod.namespace}/{pod.name}"
        # Also after a success: until the watch shows that the pod ends, nothing more is to be done.
        backoff = self._waits[pod.uid][1] if pod.uid in self._waits else Backoff(FIRST_WAIT, LONGEST_WAIT)
        self._waits[pod.uid] = self._clock() + backoff.wait(), backoff
        try:
            await client.evict(pod.namespace, pod.name, pod.uid, within=_WITHIN)
        except KubeError as error:
            if error.status in (404, 409):
                log.info("pod %s on node %s is gone already", name, pod.node, extra=about(pod, pod.node))
                return
            budget = budget_of(error)
            self._results[BLOCKED if budget else FAILED] += 1
            log.warning(
                "pod %s on node %s cannot be evicted now, it is tried again: %s",
                name,
                pod.node,
                budget or error,
                extra=about(pod, pod.node),
            )
            cause = f"a disruption budget does not allow it: {budget}" if budget else f"the API server did not do it: {error.message}"
            self._emit(pod, protocol.EVENT_NOT_EVICTED, f"It is to be evicted, because {request.cause}. But {cause}")
            return
        self._results[EVICTED] += 1
        self._next = self._clock() + self._pause
        log.warning("evicted pod %s on node %s: %s", name, pod.node, request, extra=about(pod, pod.node))
        self._emit(pod, protocol.EVENT_EVICTED, f"It is evicted, because {request}; {request.advice}")

    def families(self) -> Iterator[Metric]:
        """Its metrics."""
        values = [(self._results[result], {"result": result}) for result in RESULTS]
        yield family("gpushare_extender_evictions_total", "counter", "Evictions that nodes requested, by result.", values)

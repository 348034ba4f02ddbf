# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An Event on each pending pod that can never run, with what to write instead.

kube-scheduler rejects a request that exceeds every node's total before it calls an extender, so filter cannot report it.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.placement.explain import Largest, too_large
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.kube.events import EventRecorder, ObjectReference

_SETTLE_SECONDS: Final = 1.0


def advise(pod: PendingPod | InvalidPod, largest: Largest | None) -> tuple[str, str] | None:
    """(reason, message) of the Event; None if the pod could run on an empty cluster, or if no GPUs are known yet."""
    if isinstance(pod, InvalidPod):
        return protocol.EVENT_INVALID, pod.error
    if pod.request.unsupported is not None:
        return protocol.EVENT_UNSUPPORTED, pod.request.unsupported
    found = too_large(pod.request, largest) if largest else None
    return (protocol.EVENT_TOO_LARGE, found.words) if found else None


class Advisor:
    """Reviews the pending pods after each change of the cluster, at most once a second. One Event per pod and message."""

    def __init__(self, cluster: ClusterCache, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._emitted: dict[str, tuple[str, str]] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it. Start it when both caches are complete."""
        while True:
            await self._cluster.changed.wait()
            self._cluster.changed.clear()
            self.review()
            await asyncio.sleep(_SETTLE_SECONDS)

    def review(self) -> None:
        """Emit the Events that were not emitted yet."""
        pending = self._cluster.pending
        sizes = self._cluster.sizes
        largest = sizes.largest if sizes else None
        self._emitted = {uid: advice for uid, advice in self._emitted.items() if uid in pending}
        for pod in pending.values():
            advice = advise(pod, largest)
            if advice is not None and self._emitted.get(pod.uid) != advice:
                self._emitted[pod.uid] = advice
                reason, message = advice
                self._events.emit(ObjectReference("Pod", pod.name, pod.uid, pod.namespace), "Warning", reason, message)

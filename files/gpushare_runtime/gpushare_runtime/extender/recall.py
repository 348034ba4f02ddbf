# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Have kube-scheduler ask again about a pod that it asked about a moment too early.

The scheduler hears of a pod's end by its own watch and asks at once. Where our watch is a little later, we refuse from the
ledger as it still is, and nothing makes the scheduler ask again before its flush after five minutes. So what was refused is
remembered, and when room comes up for it that the scheduler does not ask for by itself, the pending pod gets an annotation:
any update of it puts it back into the scheduler's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Final, NoReturn

from gpushare_runtime import protocol
from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.pods import PendingPod
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

LATE_SECONDS: Final = 1.0
"""The scheduler, when it has heard of the room by itself, has asked by then."""
_TICK_SECONDS: Final = 1.0


class Recall:
    """One pod at a time, the longest waiting first: it may take the room, and the others need not be woken.

    clock: seconds, monotonic.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._recalled: dict[str, float] = {}
        self._room_at = 0.0
        self._room = asyncio.Event()

    def refused(self, uid: str) -> None:
        """filter found no node for this pod just now."""
        self._refused[uid] = self._clock()

    def room(self) -> None:
        """The ledger may have room that it had not before."""
        self._room_at = self._clock()
        self._room.set()

    def next(self) -> PendingPod | None:
        """The pod that fits by now, was refused before there was room, and was not recalled for this room yet."""
        pending: Mapping[str, PendingPod] = self._cluster.pending
        self._refused = {uid: at for uid, at in self._refused.items() if uid in pending}
        self._recalled = {uid: at for uid, at in self._recalled.items() if uid in pending}
        for uid, at in self._refused.items():
            pod = pending[uid]
            if at > self._room_at or self._recalled.get(uid) == self._room_at or pod.request is None:
                continue
            request = pod.request
            request = self._cluster.ledger.asked_by(request, pod.namespace, pod.labels)
            if any(node.leftover(request) is not None for node in self._cluster.ledger.nodes.values()):
                self._recalled[uid] = self._room_at
                return pod
        return None

    async def run(self, client: KubeClient) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            await self._wait_for_room()
            await asyncio.sleep(LATE_SECONDS)
            pod = self.next()
            if pod is None:
                self._room.clear()
                continue
            log.info("recall %s: it fits by now, and the scheduler has not asked again", pod)
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name)
            body = {"metadata": {"uid": pod.uid, "annotations": {protocol.ANNOTATION_RECALLED: now}}}
            try:
                await client.patch(where, body, kind="merge")
            except KubeError as error:
                log.warning("recall %s: %s", pod, error)

    async def _wait_for_room(self) -> None:
        while not self._room.is_set():
            # Room also comes by time alone.
            self._cluster.expire()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._room.wait(), _TICK_SECONDS)

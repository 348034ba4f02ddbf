# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keeps the ConfigMap with the sizes of the GPUs, which every user may read: see core/placement/gpu_sizes.py.

The installation makes the ConfigMap, because RBAC cannot limit by name what an account creates. The leader alone writes into it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 600.0
"""Then it is written again in any case: somebody may have changed it, and the API server ignores what is the same."""
CONFIG_MAP: Final = path("api/v1", "namespaces", protocol.PUBLIC_NAMESPACE, "configmaps", protocol.SIZES)


class SizesWriter:
    """active: whether this extender is the leader. clock: monotonic seconds."""

    def __init__(self, cluster: ClusterCache, *, active: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._active = active
        self._clock = clock
        self._tried = ""
        self._tried_at = 0.0
        self._problem = ""

    async def run(self, client: KubeClient) -> NoReturn:
        """Never returns; cancel it. Start it when the caches are complete."""
        while True:
            await self.review(client)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def review(self, client: KubeClient) -> None:
        """Write them if they have changed. While no GPU is known, what was known stays."""
        if not self._active():
            # Another leader may write something else meanwhile.
            self._tried = ""
            return
        sizes = self._cluster.sizes
        text, now = sizes.to_json() if sizes else "", self._clock()
        if not text or (text == self._tried and now - self._tried_at < AGAIN_SECONDS):
            return
        self._tried, self._tried_at = text, now
        try:
            await client.patch(CONFIG_MAP, {"data": {protocol.SIZES_KEY: text}}, kind="merge")
            self._problem = ""
        except KubeError as error:
            self._failed(error)

    def _failed(self, error: KubeError) -> None:
        """A missing object or right stays for long, anything else is tried again soon. One warning for a problem."""
        if error.status not in (403, 404):
            self._tried = ""
        problem, self._problem = self._problem, f"{error.status} {error.reason}"
        words = "users who see no nodes do not see the sizes of GPUs: install this release again (site.yml, cluster.yml or the chart)"
        level = logging.DEBUG if problem == self._problem else logging.WARNING
        log.log(level, "ConfigMap %s/%s cannot be written: %s; %s", protocol.PUBLIC_NAMESPACE, protocol.SIZES, error, words)

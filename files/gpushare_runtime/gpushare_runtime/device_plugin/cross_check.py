# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Compare kubelet's checkpoint with its podresources API, and stand on the latter where the former cannot be read.

Beside the answers to kubelet, never within them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.device_plugin.checkpoint import CheckpointFile
from gpushare_runtime.device_plugin.counters import Counters
from gpushare_runtime.device_plugin.node import NodeState
from gpushare_runtime.device_plugin.podresources import PodResourcesError, Said, ask
from gpushare_runtime.device_plugin.records import Difference, differences, entries_of

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
# kubelet writes its checkpoint a moment after it has taken note: only what stays is a difference.
_AGAIN_SECONDS: Final = 5.0
# Without a checkpoint this is all there is.
_ALONE_SECONDS: Final = 1.0


class CrossCheck:
    """refresh: brings `checkpoint` and the node's state up to the file; socket: of podresources; scale: of all pauses."""

    def __init__(
        self,
        node: NodeState,
        checkpoint: CheckpointFile,
        refresh: Callable[[], None],
        socket: Path,
        resources: Collection[str],
        counters: Counters,
        scale: float = 1.0,
    ) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._refresh = refresh
        self._socket = socket
        self._resources = resources
        self._counters = counters
        self._scale = scale
        self._seen: frozenset[Difference] = frozenset()
        self._told: frozenset[Difference] = frozenset()
        self._silent = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            pause = await self._look()
            await asyncio.sleep(pause * self._scale)

    async def _look(self) -> float:
        """How long to wait before the next look."""
        self._refresh()
        alone = bool(self._checkpoint.problem)
        if not self._node.pods.synced or not (self._node.holders.entries or alone):
            return _AGAIN_SECONDS
        try:
            said = await ask(self._socket, self._resources)
        except PodResourcesError as error:
            if str(error) != self._silent:
                self._silent = str(error)
                log.warning("kubelet's podresources API on %s does not answer, its checkpoint is not compared: %s", self._socket, error)
            return INTERVAL_SECONDS
        self._silent = ""
        self._refresh()
        if self._checkpoint.problem:
            self._stand_in(said)
            return _ALONE_SECONDS
        found = frozenset(differences(self._node.holders.entries, said, self._node.pods))
        self._tell(found & self._seen)
        self._seen = found
        return _AGAIN_SECONDS if found - self._told else INTERVAL_SECONDS

    def _stand_in(self, said: Said) -> None:
        holders = self._node.holders
        entries = entries_of(said, self._node.pods, holders.entries)
        if set(entries) != set(holders.entries):
            log.info("by kubelet's podresources API %d containers have ids, while its checkpoint cannot be read", len(entries))
            holders.set_checkpoint(entries)

    def _tell(self, staying: frozenset[Difference]) -> None:
        """staying: seen twice in a row."""
        for difference in staying - self._told:
            self._counters.record_mismatches += 1
            log.error(
                "kubelet's checkpoint and its podresources API differ: %s. This plugin goes by the checkpoint: "
                "delete the pod, and restart kubelet if it happens again",
                difference,
            )
        self._told = staying

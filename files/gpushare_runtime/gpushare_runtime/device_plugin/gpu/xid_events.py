# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Receives the driver's XID errors, and triggers a reading of the GPUs if an error makes a GPU unhealthy."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError, XidEvents
from gpushare_runtime.device_plugin.gpu.health import GpuHealth, describe

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 2.0


class XidListener:
    """read_now: triggers a reading of the GPUs; retry: seconds between two subscriptions."""

    def __init__(
        self, nvml: Nvml, health: GpuHealth, counts: Counter[tuple[str, int]], read_now: Callable[[], None], retry: float = _RETRY_SECONDS
    ) -> None:
        self._nvml = nvml
        self._health = health
        self._counts = counts
        self._read_now = read_now
        self._retry = retry
        self._problem = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it. While NVML does not answer, only readings detect a failed GPU."""
        while True:
            try:
                await self._listen(await in_thread(self._nvml.xid_events))
            except NvmlError as error:
                # A lost GPU repeatedly ends the subscription for all GPUs: the plugin subscribes again for the others.
                log.log(logging.DEBUG if self._problem == str(error) else logging.INFO, "subscribing to XID errors again: %s", error)
                self._problem = str(error)
                self._read_now()
            await asyncio.sleep(self._retry)

    async def _listen(self, events: XidEvents) -> NoReturn:
        try:
            while True:
                event = await in_thread(lambda events=events: events.wait(_WAIT_SECONDS))  # type: ignore[misc]
                # Not right after the subscription: if no GPU supports XID events, only the wait fails.
                self._problem = ""
                if event is not None:
                    self._on_xid(*event)
                elif events.partial:
                    # Subscribe again before closing, so that no event is lost.
                    events, before = await in_thread(self._nvml.xid_events), events
                    while (late := await in_thread(lambda before=before: before.wait(0))) is not None:  # type: ignore[misc]
                        self._on_xid(*late)
                    await in_thread(before.close)
        except NvmlError:
            # Not when the process ends: a thread may still wait in it.
            await in_thread(events.close)
            raise

    def _on_xid(self, uuid: str, number: int) -> None:
        self._counts[uuid, number] += 1
        if self._health.xid(uuid, number):
            log.error("GPU %s: the GPU is unhealthy now: %s", uuid, describe(number), extra=about(gpu=uuid))
            self._read_now()
        else:
            log.warning("GPU %s: the GPU stays usable: %s", uuid, describe(number), extra=about(gpu=uuid))

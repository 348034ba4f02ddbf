# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hear the driver's XID errors as they come, and have the cards read at once when one takes a card out of use."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError, XidEvents
from gpushare_runtime.device_plugin.gpu.health import CardHealth

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 2.0


class XidFollower:
    """read_now: have the cards read without waiting for the next turn; retry: seconds between attempts to listen."""

    def __init__(
        self, nvml: Nvml, health: CardHealth, counts: Counter[tuple[str, int]], read_now: Callable[[], None], retry: float = _RETRY_SECONDS
    ) -> None:
        self._nvml = nvml
        self._health = health
        self._counts = counts
        self._read_now = read_now
        self._retry = retry
        self._told = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it. While NVML does not answer the cards are watched by reading them alone."""
        while True:
            try:
                await self._listen(await in_thread(self._nvml.xid_events))
            except NvmlError as error:
                # A lost card ends the waiting for all, again and again: the others are listened to anew.
                log.log(logging.DEBUG if self._told == str(error) else logging.INFO, "listening for XID errors anew: %s", error)
                self._told = str(error)
                self._read_now()
            await asyncio.sleep(self._retry)

    async def _listen(self, events: XidEvents) -> NoReturn:
        try:
            while True:
                event = await in_thread(lambda events=events: events.wait(_WAIT_SECONDS))  # type: ignore[misc]
                # Not as soon as it is made: where no card reports XIDs each one fails only when it is waited for.
                self._told = ""
                if event is not None:
                    self._hear(*event)
                elif events.partial:
                    # The next one before the end of this one, so that nothing is missed.
                    events, before = await in_thread(self._nvml.xid_events), events
                    while (late := await in_thread(lambda before=before: before.wait(0))) is not None:  # type: ignore[misc]
                        self._hear(*late)
                    await in_thread(before.close)
        except NvmlError:
            # Not at the end of the process, when a thread may still wait in it.
            await in_thread(events.close)
            raise

    def _hear(self, uuid: str, number: int) -> None:
        self._counts[uuid, number] += 1
        if self._health.xid(uuid, number):
            log.error("card %s: XID %d, it is taken out of use", uuid, number)
            self._read_now()
        else:
            log.warning("card %s: XID %d, an error of the application that ran on it", uuid, number)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A counter of changes that coroutines can wait on without missing one."""

from __future__ import annotations

import asyncio


class Changes:
    """Counts changes of something; belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        self.count += 1
        self._event.set()
        self._event.clear()

    async def after(self, seen: int, timeout: float | None = None) -> bool:
        """Wait until `count` differs from `seen`; False when `timeout` seconds pass first."""
        if self.count != seen:
            return True
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except asyncio.TimeoutError:
            return self.count != seen
        return True


async def any_after(*watched: tuple[Changes, int], timeout: float | None = None) -> None:
    """Wait until one of these has changed since it was seen, or `timeout` seconds pass."""
    tasks = [asyncio.ensure_future(changes.after(seen)) for changes, seen in watched]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()

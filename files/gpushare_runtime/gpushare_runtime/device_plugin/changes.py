# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A counter of changes that coroutines can wait on without missing one."""

from __future__ import annotations

import asyncio
from typing import Any


class Changes:
    """Counts changes of something; belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[Any]] = set()

    def notify(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            _wake(future)

    async def after(self, seen: int, timeout: float | None = None) -> bool:
        """Wait until `count` differs from `seen`; False when `timeout` seconds pass first."""
        await any_after((self, seen), timeout=timeout)
        return self.count != seen


async def any_after(*watched: tuple[Changes, int], timeout: float | None = None) -> None:
    """Wait until one of these has changed since it was seen, or `timeout` seconds pass."""
    if any(changes.count != seen for changes, seen in watched):
        return
    loop = asyncio.get_running_loop()
    # One future in all of them: a task for each would cost more than most of what is done between two waits.
    future: asyncio.Future[Any] = loop.create_future()
    timer = loop.call_later(timeout, _wake, future) if timeout is not None else None
    for changes, _ in watched:
        changes._waiting.add(future)
    try:
        await future
    finally:
        if timer is not None:
            timer.cancel()
        for changes, _ in watched:
            changes._waiting.discard(future)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)

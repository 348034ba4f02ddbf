# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A counter of changes that coroutines wait on without missing one, and threads for calls that may hang when the process ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")
_idle: Final[list[_Worker]] = []


class Changes:
    """Counts changes of something; belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        # Woken in this order, so that a run in virtual time repeats itself.
        self._waiting: dict[asyncio.Future[Any], None] = {}

    def notify(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, {}
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
        changes._waiting[future] = None
    try:
        await future
    finally:
        if timer is not None:
            timer.cancel()
        for changes, _ in watched:
            changes._waiting.pop(future, None)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


class _Worker:
    """A thread that does one call after the other: starting one for each would hold up the loop until it runs."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, name="blocking calls", daemon=True).start()

    def do(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            _idle.append(self)


async def in_thread(function: Callable[[], T]) -> T:
    """The function's result or exception. One that never returns costs its thread, and no other call waits for it."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def call() -> None:
        try:
            value, error = function(), None
        except BaseException as caught:
            value, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.do(call)
    return await result

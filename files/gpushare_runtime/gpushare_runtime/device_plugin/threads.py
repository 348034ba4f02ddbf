# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Blocking calls beside the event loop, in threads that do not hold up the end of the process if they hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")

_idle: Final[list[_Worker]] = []


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

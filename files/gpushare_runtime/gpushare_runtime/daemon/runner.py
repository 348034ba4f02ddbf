# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Run the parts of a daemon until one ends or it is to stop, and report readiness, life and status to systemd (sd_notify)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, NoReturn

_BEAT_SECONDS: Final = 10.0


class FatalError(Exception):
    """The daemon cannot go on as it was started; the text says what to change. restart: the same in a new process is enough."""

    def __init__(self, text: str, *, restart: bool = False) -> None:
        super().__init__(text)
        self.restart = restart


def notify(state: str) -> bool:
    """Send e.g. "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=…", without ever waiting. False when nobody takes it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)
    except OSError:
        # systemd is away for a moment, or does not come after: nothing that would be a reason to end.
        return False
    return True


def watchdog_interval() -> float | None:
    """Seconds between two WATCHDOG=1 that keep us alive with room to spare, None when there is no watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID")
    if not usec or (pid and int(pid) != os.getpid()):
        return None
    return int(usec) / 1_000_000 / 3


async def keep_alive(ready: Callable[[], bool]) -> NoReturn:
    """Feed the watchdog for as long as the event loop runs; with each beat readiness again, in case its first message was lost."""
    interval = watchdog_interval()
    while True:
        lines = [*(["WATCHDOG=1"] if interval else []), *(["READY=1"] if ready() else [])]
        if lines:
            notify("\n".join(lines))
        await asyncio.sleep(interval or _BEAT_SECONDS)


ENDING_SECONDS: Final = 3.0
"""What a part that is cancelled has for finishing what is under way; after that it is cancelled again."""


async def run_all(
    parts: Sequence[Coroutine[Any, Any, None]],
    stop: asyncio.Event | None = None,
    *,
    base: Sequence[Coroutine[Any, Any, None]] = (),
    ending_seconds: float = ENDING_SECONDS,
) -> None:
    """Run all until `stop` is set, this is cancelled or the first of them ends; then none of them runs any more.

    base: what the parts stand on; it goes on until they have ended. Raises what a part raised; RuntimeError for one that ended
    without that, since none may.
    """
    above = {asyncio.ensure_future(part) for part in parts}
    below = {asyncio.ensure_future(part) for part in base}
    tasks = above | below
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
            raise RuntimeError(f"{task.get_coro()!r} ended by itself")
    finally:
        for stage in ({stopping}, above, below):
            await _end(stage, ending_seconds)
        # So that nobody complains of an exception that was not looked at.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(tasks: Collection[asyncio.Future[Any]], seconds: float) -> None:
    left = set(tasks)
    while left:
        # Again, because asyncio.wait_for may swallow a cancellation that comes together with what it waits for; but not before
        # a part could do what it does at its end: that is what a second cancellation would cut short.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds)


log = logging.getLogger(__name__)


class Status:
    """Each part of the plugin says how it is; what changes is told. needed: the parts that must be well to be ready."""

    def __init__(self, needed: Collection[str]) -> None:
        self._needed = frozenset(needed)
        self._parts: dict[str, tuple[bool, str]] = {}
        self.ready = False

    def good(self, part: str, text: str) -> None:
        self._set(part, True, text)

    def bad(self, part: str, text: str) -> None:
        """text: what is wrong and what to do."""
        self._set(part, False, text)

    def _set(self, part: str, well: bool, text: str) -> None:
        if self._parts.get(part) == (well, text):
            return
        self._parts[part] = well, text
        log.log(logging.INFO if well else logging.ERROR, "%s: %s", part, text)
        # What is wrong comes first: systemctl shows one line.
        parts = sorted(self._parts.items(), key=lambda item: item[1][0])
        lines = [f"STATUS={'; '.join(f'{name}: {words}' for name, (_, words) in parts)}"]
        if not self.ready and all(self._parts.get(name, (False, ""))[0] for name in self._needed):
            self.ready = True
            lines.insert(0, "READY=1")
        notify("\n".join(lines))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tell systemd about readiness and life (sd_notify), when it started us with Type=notify."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final, NoReturn

_BEAT_SECONDS: Final = 10.0


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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A listening socket that bounds what callers cost before they have shown who they are: descriptors, time and lines of the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

_WAITING: Final = 128


class Listener(socket.socket):
    """To be given to asyncio, which calls `accept`. A connection is a stranger until `welcome`.

    most: strangers at a time; where one more comes, the oldest has to go. seconds: that a connection may stay a stranger; a TLS
    handshake counts. port 0: any. OSError when the address cannot be had.
    """

    def __init__(self, host: str, port: int, *, most: int, seconds: float) -> None:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        super().__init__(family, socket.SOCK_STREAM)
        self._most = most
        self._seconds = seconds
        # By descriptor, the oldest first.
        self._strangers: dict[int, tuple[socket.socket, float]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.bind((host, port))
            self.listen(_WAITING)
            self.setblocking(False)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        # Of those that have ended, the descriptor is closed, or another's by now.
        self._strangers = {number: found for number, found in self._strangers.items() if found[0].fileno() == number}
        self._strangers[connection.fileno()] = connection, time.monotonic() + self._seconds
        if len(self._strangers) > self._most:
            _hang_up(self._strangers.pop(next(iter(self._strangers)))[0])
        if self._sweeping is None:
            self._sweep_after(self._seconds)
        return connection, address

    def welcome(self, transport: asyncio.BaseTransport) -> None:
        """Whoever is at the other end has shown that they may stay."""
        self._strangers.pop(transport.get_extra_info("socket").fileno(), None)

    def _sweep_after(self, seconds: float) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        now, self._sweeping = time.monotonic(), None
        for number, (connection, until) in list(self._strangers.items()):
            if until > now:
                self._sweep_after(until - now)
                return
            del self._strangers[number]
            _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    """Whatever asyncio does with it by now meets its end, and closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Seldom(logging.Filter):
    """For what strangers cause: lets `most` records pass in `seconds`, and says with the next one how many it has kept back."""

    def __init__(self, most: int = 5, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._since = clock()
        self._passed = self._kept = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._since >= self._seconds:
            if self._kept:
                record.msg, record.args = f"{record.getMessage()} (and {self._kept} more like this before)", ()
            self._since, self._passed, self._kept = now, 0, 0
        if self._passed >= self._most:
            self._kept += 1
            return False
        self._passed += 1
        return True

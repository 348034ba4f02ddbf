# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A listening socket that bounds what callers cost before they have shown who they are: descriptors, time and lines of the log.

Under systemd it is one that a .socket unit of the service holds: no other process gets its address while the daemon restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

log = logging.getLogger(__name__)

# Connections that the kernel keeps for us while the event loop has other work.
_WAITING: Final = 1024
# Connections accepted in one turn of the event loop: the loop reads their requests before many newer ones are there.
_AT_ONCE: Final = 16
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_SECONDS: Final = 1.0
# systemd passes descriptors from this number on.
_FIRST_PASSED: Final = 3
_MOST_PASSED: Final = 16


class Listener(socket.socket):
    """A listening socket that serves on any event loop: uvloop's own servers accept without asking the socket.

    A connection is unverified until `verified` is called for it.

    most: maximum number of unverified connections; one more closes the oldest of the address that has the most, so that a caller who
    connects without end closes its own. seconds: that a connection may stay unverified, with its TLS handshake. port 0: any. OSError if
    the address is not available. The socket is systemd's, if it has passed one for this address.
    """

    def __init__(self, host: str, port: int, *, most: int, seconds: float) -> None:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        held = _held(host, port)
        super().__init__(family, socket.SOCK_STREAM, fileno=held)
        self._most = most
        self._seconds = seconds
        # By descriptor, the oldest first, with the time at which it has to go, and its caller.
        self._unverified: dict[int, tuple[socket.socket, float, str]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._serving = False
        try:
            if held is None:
                self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                self.bind((host, port))
            self.listen(_WAITING)
            self.setblocking(False)
        except OSError:
            self.close()
            raise

    @property
    def connecting(self) -> int:
        """Connections whose TLS handshake is under way."""
        return len(self._connecting)

    def start(self, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None = None) -> None:
        """Accept connections until `stop`, each with a protocol of its own. context: None for plain TCP."""
        self._serving = True
        self._accept_all(protocol, context)

    def stop(self) -> None:
        """Accept no more. The accepted connections continue."""
        if self._serving:
            self._serving = False
            asyncio.get_running_loop().remove_reader(self.fileno())
            self.close()

    def _accept_all(self, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None) -> None:
        if self._serving:
            asyncio.get_running_loop().add_reader(self.fileno(), self._accept_waiting, protocol, context)

    def _accept_waiting(self, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("no connection can be accepted, trying again in %.0f s: %s", _EXHAUSTED_SECONDS, error)
                loop.remove_reader(self.fileno())
                loop.call_later(_EXHAUSTED_SECONDS, self._accept_all, protocol, context)
                return
            connection.setblocking(False)
            task = loop.create_task(_serve(protocol, connection, context))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        # Of those that have ended, the descriptor is closed, or another's by now.
        self._unverified = {number: found for number, found in self._unverified.items() if found[0].fileno() == number}
        self._unverified[connection.fileno()] = connection, time.monotonic() + self._seconds, _caller(address[0])
        if len(self._unverified) > self._most:
            _hang_up(self._unverified.pop(self._oldest_of_most())[0])
        if self._sweeping is None:
            self._sweep_after(self._seconds)
        return connection, address

    def _oldest_of_most(self) -> int:
        numbers = Counter(caller for _, _, caller in self._unverified.values())
        most = max(numbers.values())
        return next(number for number, (_, _, caller) in self._unverified.items() if numbers[caller] == most)

    def verified(self, transport: asyncio.BaseTransport) -> None:
        """The peer has authenticated itself: the connection may stay open."""
        self._unverified.pop(transport.get_extra_info("socket").fileno(), None)

    def _sweep_after(self, seconds: float) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        now, self._sweeping = time.monotonic(), None
        for number, (connection, until, _) in list(self._unverified.items()):
            if until > now:
                self._sweep_after(until - now)
                return
            del self._unverified[number]
            _hang_up(connection)


async def _serve(protocol: Callable[[], asyncio.BaseProtocol], connection: socket.socket, context: ssl.SSLContext | None) -> None:
    # Strangers fail in a handshake all the time: no line of the log.
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection, ssl=context)


def _caller(address: str) -> str:
    """The name by which connections count. A user of this host may call from any address of 127.0.0.0/8."""
    return "loopback" if address == "::1" or address.startswith("127.") else address


def _hang_up(connection: socket.socket) -> None:
    """The event loop reads the end of the connection, and closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _passed() -> list[socket.socket]:
    """Copies of the TCP sockets that systemd has passed to this process (sd_listen_fds): they may be closed, the originals stay."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return []
    found = []
    for number in range(_FIRST_PASSED, _FIRST_PASSED + min(int(count[:4]), _MOST_PASSED)):
        with contextlib.suppress(OSError):
            found.append(socket.socket(fileno=os.dup(number)))
    return [sock for sock in found if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6)]


def _held(host: str, port: int) -> int | None:
    """The descriptor of a copy of systemd's socket for this address, None without one."""
    held = None
    for sock in _passed():
        with sock:
            bound = sock.getsockname()
            if held is None and (ip_address(bound[0]), bound[1]) == (ip_address(host), port):
                held = sock.detach()
    return held


def hang_up_on_waiting() -> None:
    """At the end of a process that has failed: who waits at systemd's sockets learns it now, and does not start the service again."""
    for sock in _passed():
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            for _ in range(_WAITING):
                sock.accept()[0].close()


class RateLimit(logging.Filter):
    """For log records that anybody can cause: passes `most` records in `seconds`, and appends the number of suppressed ones to the next."""

    def __init__(self, most: int = 5, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._since = clock()
        self._passed = self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._since >= self._seconds:
            if self._suppressed:
                record.msg, record.args = f"{record.getMessage()} (and {self._suppressed} more like this before)", ()
            self._since, self._passed, self._suppressed = now, 0, 0
        if self._passed >= self._most:
            self._suppressed += 1
            return False
        self._passed += 1
        return True

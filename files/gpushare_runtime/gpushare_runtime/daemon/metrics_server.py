# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /metrics of a daemon over plain HTTP on one address, and /healthz of one that has it; beyond loopback only with a bearer token."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from gpushare_runtime.daemon.listener import Listener, RateLimit
from gpushare_runtime.daemon.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)
# Anybody who reaches the address can cause these records.
_at_requests: Final = log.getChild("requests")
_at_requests.addFilter(RateLimit())

_REQUEST_SECONDS: Final = 10.0
# Connections without a valid request yet.
_UNVERIFIED: Final = 64
# Responses at a time: a cluster has a handful of scrapers.
_MOST: Final = 16
_RETRY_SECONDS: Final = 30.0
_LARGEST_REQUEST: Final = 16 * 1024
_HEALTHZ: Final = "/healthz"


@dataclass(frozen=True)
class MetricsAddress:
    """Where metrics are served. token_file: bearer token that a scraper must send; None disables authentication (loopback only)."""

    host: str
    port: int
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if self.token_file is None and not ipaddress.ip_address(self.host).is_loopback:
            raise ValueError(f"metrics on {self.host} would be open to the network: give --metrics-token-file as well, or 127.0.0.1")

    @classmethod
    def parse(cls, text: str, token_file: Path | None = None) -> MetricsAddress:
        """From "127.0.0.1:9440" or "[::1]:9440". ValueError with what was found and an example."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(host)
            if not 0 < int(port) < 65536:
                raise ValueError(port)
        except ValueError:
            raise ValueError(f"{text!r} is not an address and port, such as 127.0.0.1:9440") from None
        return cls(host, int(port), token_file)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that both daemons have."""
    parser.add_argument("--metrics-listen", metavar="ADDRESS:PORT", help="serve metrics there, such as 127.0.0.1:9440; default: nowhere")
    parser.add_argument("--metrics-token-file", type=Path, help="bearer token of scrapers; any address beyond loopback requires it")


def from_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> MetricsAddress | None:
    """Their address; None without a metrics page. Ends the process with a message if they are invalid."""
    if not given.metrics_listen:
        return None
    try:
        return MetricsAddress.parse(given.metrics_listen, given.metrics_token_file)
    except ValueError as error:
        parser.error(f"--metrics-listen: {error}")


Health = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the state of each part in a line of its own."""


def parts(
    address: MetricsAddress | None, pieces: Callable[[], Iterable[str]], health: Health | None = None
) -> list[Coroutine[Any, Any, None]]:
    """The part of a daemon that serves its metrics; none without an address. health: for /healthz, None for a daemon without it."""
    return [MetricsServer(address, pieces, health).run()] if address else []


class MetricsServer:
    """pieces: the page in pieces, each made in about a millisecond; other tasks may run between two of them."""

    def __init__(self, address: MetricsAddress, pieces: Callable[[], Iterable[str]], health: Health | None = None) -> None:
        self._address = address
        self._pieces = pieces
        self._health = health
        self._answering = 0
        self.port = address.port

    async def run(self) -> NoReturn:
        """Never returns; cancel it. Retries an address that is not available, because nothing else depends on it."""
        while True:
            try:
                listener = Listener(self._address.host, self._address.port, most=_UNVERIFIED, seconds=_REQUEST_SECONDS)
            except OSError as error:
                log.error("metrics are not served, trying again in %.0f s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            server = await asyncio.start_server(partial(self._answer, listener), sock=listener, limit=_LARGEST_REQUEST)
            self.port = server.sockets[0].getsockname()[1]
            async with server:
                await server.serve_forever()

    async def _answer(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The listener closes a connection that sends nothing.
            request = await reader.readuntil(b"\r\n\r\n")
            text = request.decode("latin-1")
            rejection = self._rejection(text)
            if rejection is not None:
                await _send(writer, *rejection)
            else:
                listener.verified(writer.transport)
                self._answering += 1
                try:
                    await _send(writer, *(self._report() if _path(text) == _HEALTHZ else await self._page()))
                finally:
                    self._answering -= 1
        writer.close()

    def _report(self) -> tuple[str, bytes]:
        well, text = self._health() if self._health else (True, "")
        return "200 OK" if well else "503 Service Unavailable", f"{text}\n".encode()

    async def _page(self) -> tuple[str, bytes]:
        page = bytearray()
        try:
            for piece in self._pieces():
                page += piece.encode()
                # kubelet and kube-scheduler go first: a large cluster's page takes a second.
                await asyncio.sleep(0)
        except Exception:
            _at_requests.exception("the metrics could not be made")
            return "500 Internal Server Error", b"the metrics could not be made, see the log\n"
        return "200 OK", bytes(page)

    def _rejection(self, request: str) -> tuple[str, bytes] | None:
        """Status and body for a request that gets no metrics."""
        line, *headers = request.split("\r\n")
        pages = ["/metrics", *([_HEALTHZ] if self._health else [])]
        if not line.startswith("GET ") or _path(request) not in pages:
            return "404 Not Found", f"only GET {' and '.join(pages)} is here\n".encode()
        if self._address.token_file is not None:
            try:
                token = self._address.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                _at_requests.error("metrics are not served: the token cannot be read: %s", error)
                return "503 Service Unavailable", b"the token cannot be read, see the log\n"
            given = next((h.partition(":")[2].strip() for h in headers if h.lower().startswith("authorization:")), "")
            if not token or not hmac.compare_digest(given.encode("latin-1"), f"Bearer {token}".encode()):
                return "401 Unauthorized", b"the bearer token of --metrics-token-file is expected\n"
        if self._answering >= _MOST:
            return "503 Service Unavailable", b"too many at a time, try again later\n"
        return None


def _path(request: str) -> str:
    target = request.partition("\r\n")[0].partition(" ")[2]
    return target.partition(" ")[0].partition("?")[0]


async def _send(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)

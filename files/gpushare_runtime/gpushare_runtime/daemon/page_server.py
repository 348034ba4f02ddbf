# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A few pages of a daemon over plain HTTP on one address, with a bearer token where one is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.daemon.exposition import CONTENT_TYPE
from gpushare_runtime.daemon.listener import Listener, RateLimit

log = logging.getLogger(__name__)
# Anybody who reaches the address can cause these records.
_at_requests: Final = log.getChild("requests")
_at_requests.addFilter(RateLimit())

_REQUEST_SECONDS: Final = 10.0
# Connections without a valid request yet.
UNVERIFIED: Final = 64
# Responses at a time: a cluster has a handful of callers.
MOST: Final = 16
_RETRY_SECONDS: Final = 30.0
_LARGEST_REQUEST: Final = 16 * 1024
# The kernel takes so much without a reader: nothing is to be waited for.
_SMALL: Final = 16 * 1024

Answer = tuple[str, bytes]
"""Status and body."""
Page = Callable[[], Awaitable[Answer]]


def parse_address(text: str, example: str) -> tuple[str, int]:
    """From "127.0.0.1:9440" or "[::1]:9440". ValueError with what was found and the example."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
            raise ValueError(port)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not an address and port, such as {example}") from None
    return host, int(port)


class PageServer:
    """`what`: these pages, in messages. pages: by path. token_file: of the bearer token that a caller must send, None for none."""

    def __init__(self, host: str, port: int, what: str, pages: Mapping[str, Page], token_file: Path | None = None) -> None:
        self._host = host
        self._what = what
        self._pages = pages
        self._token_file = token_file
        self._answering = 0
        self.port = port

    async def run(self) -> NoReturn:
        """Never returns; cancel it. Retries an address that is not available, because nothing else depends on it."""
        while True:
            try:
                listener = Listener(self._host, self.port, most=UNVERIFIED, seconds=_REQUEST_SECONDS)
            except OSError as error:
                log.error("%s not served, trying again in %.0f s: %s", self._what, _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self.port = listener.getsockname()[1]
            listener.start(partial(self._protocol, listener))
            try:
                await asyncio.Event().wait()
            finally:
                listener.stop()

    def _protocol(self, listener: Listener) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(_LARGEST_REQUEST), partial(self._answer, listener))

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
                    await _send(writer, *await self._page(_path(text)))
                finally:
                    self._answering -= 1
        writer.close()

    async def _page(self, path: str) -> Answer:
        try:
            return await self._pages[path]()
        except Exception:
            _at_requests.exception("%s could not be made", path)
            return "500 Internal Server Error", f"{path} could not be made, see the log\n".encode()

    def _rejection(self, request: str) -> Answer | None:
        """Status and body for a request that gets no page."""
        line, *headers = request.split("\r\n")
        if not line.startswith("GET ") or _path(request) not in self._pages:
            return "404 Not Found", f"only GET {' and '.join(self._pages)} is here\n".encode()
        if self._token_file is not None:
            try:
                token = self._token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                _at_requests.error("%s not served: the token cannot be read: %s", self._what, error)
                return "503 Service Unavailable", b"the token cannot be read, see the log\n"
            given = next((h.partition(":")[2].strip() for h in headers if h.lower().startswith("authorization:")), "")
            if not token or not hmac.compare_digest(given.encode("latin-1"), f"Bearer {token}".encode()):
                return "401 Unauthorized", b"the bearer token of --metrics-token-file is expected\n"
        if self._answering >= MOST:
            return "503 Service Unavailable", b"too many at a time, try again later\n"
        return None


def _path(request: str) -> str:
    target = request.partition("\r\n")[0].partition(" ")[2]
    return target.partition(" ")[0].partition("?")[0]


async def _send(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    if writer.transport.is_closing():
        # The caller is gone; uvloop raises RuntimeError for what would be written now.
        return
    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    if len(body) > _SMALL:
        await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)

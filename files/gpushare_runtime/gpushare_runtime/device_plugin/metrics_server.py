# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /metrics over plain HTTP on one address, and nothing else; off this host only with a bearer token."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

_REQUEST_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 30.0
_LARGEST_REQUEST: Final = 16 * 1024


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:9440" or "[::1]:9440". ValueError says what is missing."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        if not 0 < int(port) < 65536:
            raise ValueError(port)
    except ValueError:
        raise ValueError(f"{text!r} is no address and port, such as 127.0.0.1:9440") from None
    return host, int(port)


class MetricsServer:
    """address: as parse_address gives it; text: what a scrape gets; token_file: whose content a scraper must show, None for nobody."""

    def __init__(self, address: tuple[str, int], text: Callable[[], str], token_file: Path | None) -> None:
        if token_file is None and not ipaddress.ip_address(address[0]).is_loopback:
            raise ValueError(f"metrics on {address[0]} would be open to the network: give --metrics-token-file as well, or 127.0.0.1")
        self._address = address
        self._text = text
        self._token_file = token_file
        self.port = address[1]

    async def run(self) -> NoReturn:
        """Never returns. An address that cannot be had is tried again: nothing else depends on it."""
        while True:
            try:
                server = await asyncio.start_server(self._answer, *self._address, limit=_LARGEST_REQUEST)
            except OSError as error:
                log.error("metrics are not served, trying again in %.0f s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self.port = server.sockets[0].getsockname()[1]
            async with server:
                await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_SECONDS)
            status, body = self._reply(request.decode("latin-1"))
            head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await asyncio.wait_for(writer.drain(), _REQUEST_SECONDS)
        writer.close()

    def _reply(self, request: str) -> tuple[str, bytes]:
        line, *headers = request.split("\r\n")
        if line.split(" ")[:2] != ["GET", "/metrics"]:
            return "404 Not Found", b"only GET /metrics is here\n"
        if self._token_file is not None:
            try:
                token = self._token_file.read_text().strip()
            except OSError as error:
                log.error("metrics are not served: the token cannot be read: %s", error)
                return "503 Service Unavailable", b"the token cannot be read, see the log\n"
            given = next((h.partition(":")[2].strip() for h in headers if h.lower().startswith("authorization:")), "")
            if not token or not hmac.compare_digest(given.encode("latin-1"), f"Bearer {token}".encode()):
                return "401 Unauthorized", b"the bearer token of --metrics-token-file is expected\n"
        return "200 OK", self._text().encode()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""POST over HTTP/1.1 to one server, for Bindings by the hundred a second: no session or framework between a request and its socket.

Each request has a connection to itself. Connections stay open for the next requests.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httptools
from aiohappyeyeballs import AddrInfoType, start_connection

from gpushare_runtime.errors import GpushareError

_IDLE_SECONDS: Final = 60.0
"""A connection that was idle for longer is not used: the server may be closing it."""
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""Where a server has several addresses, the next one is tried after this time."""
_FIRST_OF_ANSWERS: Final = 200
"""A status below says that the answer is still to come."""
_END: Final = "\r\n"


class NotSentError(GpushareError, OSError):
    """There is no connection: the server has not seen the request."""


class PostAnswer(NamedTuple):
    """retry_after: the header's value, "" without."""

    status: int
    body: bytes
    retry_after: str


class Destination(NamedTuple):
    """url: http or https, with its base path. context: None for http. name: to expect in its certificate, None for the URL's host."""

    url: str
    context: ssl.SSLContext | None
    name: str | None


class Poster:
    """The connections to a server. make_socket: a TCP socket for an address."""

    def __init__(self, make_socket: Callable[[AddrInfoType], socket.socket]) -> None:
        self._make_socket = make_socket
        self._server: Destination | None = None
        self._idle: list[_PostConnection] = []
        self._open: set[_PostConnection] = set()

    async def post(
        self, server: Destination, target: str, headers: Mapping[str, str], body: bytes, *, connect_within: float, within: float
    ) -> PostAnswer:
        """The server's answer, whatever it is. target: path and query.

        connect_within: seconds after which the request is not sent any more. within: seconds for all. It raises NotSentError,
        asyncio.TimeoutError if the request was sent and no answer came in time, and another OSError where the connection was lost.
        """
        began = time.monotonic()
        if server != self._server:
            # Connections with other certificates serve no new request.
            self._server = server
            while self._idle:
                self._idle.pop().abort()
        connection = self._take()
        if connection is None:
            try:
                connection = await asyncio.wait_for(self._connect(server), min(connect_within, within))
            except asyncio.TimeoutError:
                raise NotSentError("no connection in time") from None
            except (OSError, RuntimeError) as error:
                # uvloop raises both.
                raise NotSentError(str(error) or type(error).__name__) from error
        parts = urlsplit(server.url)
        lines = {"Host": parts.netloc.rpartition("@")[2], **headers, "Content-Length": str(len(body))}
        head = f"POST {parts.path.rstrip('/')}{target} HTTP/1.1\r\n{''.join(f'{name}: {value}' + _END for name, value in lines.items())}"
        return await connection.exchange(f"{head}{_END}".encode("latin-1") + body, within - (time.monotonic() - began))

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.abort()

    def _take(self) -> _PostConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.used_at < _IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self, server: Destination) -> _PostConnection:
        loop, parts = asyncio.get_running_loop(), urlsplit(server.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        connected = await start_connection(
            addresses, happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS, loop=loop, socket_factory=self._make_socket
        )
        connection = _PostConnection(server, self._returned, self._lost)
        try:
            await loop.create_connection(
                lambda: connection,
                sock=connected,
                ssl=server.context,
                server_hostname=(server.name or parts.hostname) if server.context is not None else None,
            )
        except BaseException:
            connected.close()
            raise
        self._open.add(connection)
        return connection

    def _returned(self, connection: _PostConnection) -> None:
        """It has had its answer, and may have another request."""
        if connection.server == self._server:
            self._idle.append(connection)
        else:
            connection.abort()

    def _lost(self, connection: _PostConnection) -> None:
        """It has no request any more."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _PostConnection(asyncio.Protocol):
    """One request at a time. returned: called when the next one may come; lost: when none may any more."""

    def __init__(self, server: Destination, returned: Callable[[_PostConnection], None], lost: Callable[[_PostConnection], None]) -> None:
        self.server: Final = server
        self._returned = returned
        self._lost = lost
        self._transport: Any = None
        self._answer: asyncio.Future[PostAnswer] | None = None
        self.used_at = time.monotonic()

    async def exchange(self, request: bytes, within: float) -> PostAnswer:
        """As `Poster.post`."""
        if self._transport.is_closing():
            raise NotSentError("the server has closed the connection")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PostAnswer] = loop.create_future()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._retry_after = ""
        overdue = loop.call_later(max(0.0, within), self._overdue)
        self._transport.write(request)
        try:
            return await answer
        finally:
            overdue.cancel()
            if not answer.done() or answer.cancelled() or answer.exception() is not None:
                # Its answer may still come, and would be taken for that to the next request.
                self.abort()

    def abort(self) -> None:
        self._lost(self)
        self._transport.abort()

    def _overdue(self) -> None:
        self._fail(asyncio.TimeoutError())

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            # No request was sent.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        self._fail(ConnectionError(str(exc or "") or "the server closed the connection without an answer"))

    # Of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _FIRST_OF_ANSWERS and self._answer is not None:
            return
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            self.abort()
            return
        self.used_at = time.monotonic()
        answer.set_result(PostAnswer(status, b"".join(self._body), self._retry_after))
        if self._parser.should_keep_alive():
            self._returned(self)
        else:
            self.abort()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""HTTP/1.1 for a handler that mostly answers at once: no task, stream or framework between the socket and the answer."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httptools

from gpushare_runtime.daemon.listener import Listener, RateLimit

log = logging.getLogger(__name__)
# Anybody who reaches the address can cause these records.
_malformed: Final = log.getChild("malformed")
_malformed.addFilter(RateLimit())

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_MOST_OF_HEAD: Final = 64 * 1024
_IDLE_SECONDS: Final = 3600.0
"""kube-scheduler keeps its connections; one that we close meanwhile costs it a failed call."""
_LINGER_SECONDS: Final = 2.0
"""So long what still comes is read and dropped after a last answer: a socket that is closed before that loses the answer."""
_DRAIN_SECONDS: Final = 10.0
_KEPT_IDLE: Final = 2
"""Go's client closes a connection whose answer comes while it has so many idle ones, and a later request needs a new handshake."""
_HELD_SECONDS: Final = 0.05
"""An answer waits so long at most for a request that makes one of the idle connections busy."""
_PROMPT_SECONDS: Final = 0.5
"""One that took longer does not wait: its caller may soon give up (`httpTimeout`)."""
_CLOSE: Final = "Connection: close\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpRequest(NamedTuple):
    """path: as it was sent, without the query. verified: the connection is plain, or the caller has shown a certificate.

    body: None where it was not read, because the caller is not verified or it is larger than `most`.
    """

    method: str
    path: str
    body: bytes | None
    verified: bool


class HttpResponse(NamedTuple):
    """after: called once it is on its way, while the caller reads it."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    after: Callable[[], None] | None = None


_FAILED: Final = HttpResponse(b"this failed, see the log\n", 500, TEXT)
Handler = Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]


class _Held(NamedTuple):
    """An answer that waits. until: as time.monotonic()."""

    until: float
    connection: _HttpConnection
    response: HttpResponse


class HttpServer:
    """Connections of one address. most: bytes of a body; context: None for plain http."""

    def __init__(self, handler: Handler, listener: Listener, context: ssl.SSLContext | None, most: int) -> None:
        self.handler, self.listener, self.most = handler, listener, most
        self.connections: set[_HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._context = context
        self._held: deque[_Held] = deque()
        self._overdue: asyncio.TimerHandle | None = None
        self.port = int(listener.getsockname()[1])

    def start(self) -> None:
        self.listener.start(lambda: _HttpConnection(self), self._context)

    async def close(self) -> None:
        """Listen no more, complete what is being answered, within ten seconds, and close the connections."""
        self.listener.stop()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_DRAIN_SECONDS)
        while self._held:
            self.busier()
        for connection in list(self.connections):
            connection.close()

    def deliver(self, connection: _HttpConnection, response: HttpResponse, took: float) -> None:
        """Send an answer that took so many seconds; a moment later, while the client has enough idle connections to keep.

        A connection that is being made is soon idle as well: the client needed it a moment ago, and perhaps uses another one now.
        """
        idle = sum(connection.idle for connection in self.connections) + self.listener.connecting
        if took > _PROMPT_SECONDS or idle < _KEPT_IDLE:
            connection.finish(response)
            return
        self._held.append(_Held(time.monotonic() + _HELD_SECONDS, connection, response))
        if self._overdue is None:
            self._overdue = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._release)

    def busier(self) -> None:
        """A request that takes time has come on one of them: one more answer can go."""
        if self._held:
            held = self._held.popleft()
            held.connection.finish(held.response)

    def _release(self) -> None:
        """Send the answers that have waited long enough."""
        self._overdue = None
        now = time.monotonic()
        while self._held and self._held[0].until <= now:
            self.busier()
        if self._held:
            self._overdue = asyncio.get_running_loop().call_later(self._held[0].until - now, self._release)


class _State(Enum):
    """OPEN: requests are read. DROPPING: what still comes is dropped, unparsed. ENDED: nothing is read."""

    OPEN, DROPPING, ENDED = range(3)


class _HttpConnection(asyncio.Protocol):
    """Its requests are answered one after the other, also where the next ones are there already.

    Without a certificate there is one request, soon after the connection was made: the listener sees to the time.
    """

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._used_at = time.monotonic()
        self._verified = False
        self._state = _State.OPEN
        self._in_head = True
        self._head_bytes = 0
        # Requests, and answers that are known already.
        self._waiting: deque[HttpRequest | HttpResponse] = deque()
        self._answering = self._paused = self._lingers = False
        self._writable = True

    @property
    def idle(self) -> bool:
        """Whether its client may send a request on it, as far as we know."""
        return self._verified and not self._answering

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._verified = transport.get_extra_info("sslcontext") is None or bool(transport.get_extra_info("peercert"))
        self._known = False
        self._server.connections.add(self)
        self._close_after(_IDLE_SECONDS, self._close_if_idle)

    def data_received(self, data: bytes) -> None:
        if self._state is not _State.OPEN:
            # The parser would keep a header without an end.
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request itself has its answer.
            self._state = _State.ENDED
        except httptools.HttpParserError as error:
            self._reject(400, str(error))
        if self._in_head and self._head_bytes > _MOST_OF_HEAD:
            self._reject(431, f"more than {_MOST_OF_HEAD} bytes before a body")
        self._next()
        if self._waiting and not self._paused:
            # One who sends many at once waits for the first of them.
            self._paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.ENDED
        self._waiting.clear()
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    # Of httptools.

    def on_message_begin(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0
        self._expects = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == len(b"expect") and name.lower() == b"expect":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._state is not _State.OPEN:
            return
        if not self._verified:
            self._ask(None)
        elif self._expects:
            self._transport.write(_CONTINUE)

    def on_chunk_header(self) -> None:
        # Behind the last chunk there are trailers, which the parser keeps as it does a head.
        self._in_head, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._in_head = False
        self._size += len(body)
        if self._state is not _State.OPEN:
            return
        if self._size > self._server.most:
            self._body.clear()
            self._ask(None)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._state is _State.OPEN:
            self._ask(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        else:
            self._state = _State.ENDED

    # Ours.

    def _ask(self, body: bytes | None) -> None:
        """The request that was read. body: None if the rest of it is dropped."""
        if self._verified and not self._known:
            self._known = True
            self._server.listener.verified(self._transport)
        if body is None:
            self._state = _State.DROPPING
        elif not self._parser.should_keep_alive():
            self._state = _State.ENDED
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._waiting.append(HttpRequest(self._parser.get_method().decode("latin-1"), path, body, self._verified))

    def _reject(self, status: int, why: str) -> None:
        """Answer bytes that are not a request, after the requests before them. Once."""
        if self._state is _State.OPEN:
            _malformed.warning("a connection is closed, because it brought something else than HTTP/1.1: %r", why[:80])
            self._state = _State.DROPPING
            self._waiting.append(HttpResponse(f"{why[:80]}\n".encode(), status, TEXT))

    def _next(self) -> None:
        """Answer what waits, as far as that is possible now."""
        while self._waiting and self._writable and not self._answering:
            item = self._waiting.popleft()
            answer = self._answer(item) if isinstance(item, HttpRequest) else item
            if isinstance(answer, HttpResponse):
                self._write(answer, not isinstance(item, HttpRequest) or item.method != "HEAD")
                continue
            self._answering = True
            self._server.busier()
            task = asyncio.ensure_future(self._later(answer))
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)
        if self._waiting or self._answering or self._transport.is_closing():
            return
        if self._state is _State.ENDED:
            self._transport.close()
        elif self._state is _State.DROPPING and not self._lingers:
            self._lingers = True
            self._close_after(_LINGER_SECONDS, self.close)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _answer(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        try:
            return self._server.handler(request)
        except Exception:
            log.exception("%s could not be answered", request.path[:80])
            return _FAILED

    async def _later(self, answer: Awaitable[HttpResponse]) -> None:
        began = time.monotonic()
        try:
            response = await answer
        except Exception:
            log.exception("a request could not be answered")
            response = _FAILED
        self._server.deliver(self, response, time.monotonic() - began)

    def finish(self, response: HttpResponse) -> None:
        """This answers the request that took time; the next one may be answered."""
        self._answering = False
        self._write(response)
        self._next()

    def _write(self, response: HttpResponse, with_body: bool = True) -> None:
        self._used_at = time.monotonic()
        if self._transport.is_closing():
            return
        last = self._state is not _State.OPEN and not self._waiting
        head = (
            f"HTTP/1.1 {_status(response.status)}\r\nContent-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n"
            f"Date: {_date(int(time.time()))}\r\n{_CLOSE if last else ''}\r\n"
        )
        self._transport.write(head.encode() + (response.body if with_body else b""))
        if response.after is not None:
            try:
                response.after()
            except Exception:
                log.exception("what was to follow an answer failed")

    def _close_after(self, seconds: float, close: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, close)

    def _close_if_idle(self) -> None:
        left = self._used_at + _IDLE_SECONDS - time.monotonic()
        if self._answering or left > 0:
            self._close_after(max(left, 1.0), self._close_if_idle)
        else:
            self.close()

    def close(self) -> None:
        """The written answers are still sent."""
        self._transport.close()


@lru_cache(maxsize=32)
def _status(number: int) -> str:
    return f"{number} {HTTPStatus(number).phrase}"


@lru_cache(maxsize=1)
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)

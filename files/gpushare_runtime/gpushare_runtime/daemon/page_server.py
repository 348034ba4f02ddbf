# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A few pages of a daemon over plain HTTP on one address, with a bearer token where one is wanted."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpushare_runtime.daemon.exposition import CONTENT_TYPE
from gpushare_runtime.daemon.listener import Listener, RateLimit

log = logging.getLogger(__name__)
# Anybody who reaches the address can cause these records.
_at_requests: Final = log.getChild("requests")
# A request that is not HTTP gets a 400, and no line.
_at_requests.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
_at_requests.addFilter(RateLimit())

_REQUEST_SECONDS: Final = 10.0
# Connections without a valid request yet.
UNVERIFIED: Final = 64
# Responses at a time: a cluster has a handful of callers.
MOST: Final = 16
_RETRY_SECONDS: Final = 30.0

Address = tuple[str, int]
"""IP address and port."""
Answer = tuple[int, bytes]
"""Status and body."""
Page = Callable[[], Awaitable[Answer]]


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
            # Unread bodies of requests are not waited for.
            listener.start(web.Server(partial(self._answer, listener), logger=_at_requests, access_log=None, lingering_time=0.0))
            try:
                await asyncio.Event().wait()
            finally:
                listener.stop()

    async def _answer(self, listener: Listener, request: web.BaseRequest) -> web.StreamResponse:
        rejection = self._rejection(request)
        if rejection is not None:
            return _response(*rejection)
        assert request.transport is not None, "a request that is being answered has one"
        listener.verified(request.transport)
        self._answering += 1
        try:
            response = _response(*await self._page(request.path))
            await response.prepare(request)
            # aiohttp waits for a caller who does not read as long as that takes.
            await asyncio.wait_for(response.write_eof(), _REQUEST_SECONDS)
        except (ConnectionError, asyncio.TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._answering -= 1
        return response

    async def _page(self, path: str) -> Answer:
        try:
            return await self._pages[path]()
        except Exception:
            _at_requests.exception("%s could not be made", path)
            return 500, f"{path} could not be made, see the log\n".encode()

    def _rejection(self, request: web.BaseRequest) -> Answer | None:
        """Status and body for a request that gets no page."""
        if request.method != "GET" or request.path not in self._pages:
            return 404, f"only GET {' and '.join(self._pages)} is here\n".encode()
        if self._token_file is not None:
            try:
                token = self._token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                _at_requests.error("%s not served: the token cannot be read: %s", self._what, error)
                return 503, b"the token cannot be read, see the log\n"
            given = request.headers.get("Authorization", "")
            if not token or not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode()):
                return 401, b"the bearer token of metricsTokenFile is expected\n"
        if self._answering >= MOST:
            return 503, b"too many at a time, try again later\n"
        return None


def _response(status: int, body: bytes) -> web.Response:
    response = web.Response(status=status, body=body, headers={"Content-Type": CONTENT_TYPE, "Server": "gpushare"})
    response.force_close()
    return response

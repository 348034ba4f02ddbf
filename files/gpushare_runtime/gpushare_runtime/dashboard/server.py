# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard over HTTP: the page and its parts for everybody who reaches it, data only with the token.

GET /api/state is the whole, /api/events the differences since a version as server-sent events. /api/nodes/NAME, /api/pods/NAMESPACE/NAME,
/api/pods/NAMESPACE/NAME/events, /api/namespaces/NAME, /api/verdicts/UID and /api/history are what the page shows beside them; /healthz is
for probes.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import unquote

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpushare_runtime import __version__
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.daemon.listener import Listener, RateLimit
from gpushare_runtime.dashboard import visible
from gpushare_runtime.dashboard.access import AccessError, Hosts
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.history import HistoryError, Prometheus
from gpushare_runtime.dashboard.lookups import Lookups
from gpushare_runtime.dashboard.pods import Verdicts, pod_page
from gpushare_runtime.dashboard.rows import node_page
from gpushare_runtime.dashboard.viewers import Access, Viewer
from gpushare_runtime.dashboard.visible import Namespaces

log = logging.getLogger(__name__)
# Anybody who reaches the address can cause these records.
_at_requests: Final = log.getChild("requests")
_at_requests.addFilter(RateLimit())

MOST_STREAMS: Final = 64
HEARTBEAT_SECONDS: Final = 10.0
_UNVERIFIED: Final = 64
_UNVERIFIED_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 30.0
_MOST_BODY: Final = 1024
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HEADERS: Final = {
    # No script, style, picture or connection that is not of this server, no inline script, and no HTML made from text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = Callable[[web.Request, Viewer], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class File:
    """One file of the page."""

    body: bytes
    content_type: str


def page_files() -> dict[str, File]:
    """By path."""
    found = {
        f"/{entry.name}": File(entry.read_bytes(), kind)
        for entry in files(__package__).joinpath("static").iterdir()
        for suffix, kind in _TYPES.items()
        if entry.name.endswith(suffix)
    }
    return {**found, "/": found["/index.html"]}


class Dashboard:
    """All requests.

    title: of the cluster, for people with several; prometheus: None for the samples of this process.
    """

    def __init__(self, feed: Feed, access: Access, hosts: Hosts, *, title: str = "", prometheus: Prometheus | None = None) -> None:
        self.on_verified: Callable[[asyncio.BaseTransport], None] = lambda transport: None
        """Called for the connection of a caller who has shown the token: it may stay open."""
        self._feed = feed
        self._access = access
        self._hosts = hosts
        self._title = title
        self._prometheus = prometheus
        self._lookups = Lookups()
        self._files = page_files()
        self._streams = 0
        self._explaining = asyncio.Lock()
        self._verdicts = Verdicts()
        self._packing = asyncio.Lock()
        self._packed: tuple[str, bytes] | None = None
        self._api: dict[str, Answer] = {"/api/state": self._whole, "/api/events": self._events, "/api/history": self._history}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every path; the routes of aiohttp would decode and redirect."""
        if request.method not in ("GET", "HEAD"):
            return _text(405, f"found {quote(request.method)}; this server takes GET")
        if not self._hosts.accepts(request.headers.get("Host")):
            found = quote(request.headers.get("Host", ""))
            return _text(
                421,
                f"found Host {found}; expected one of {self._hosts.expected()}. Another name belongs into hostNames of gpushare-dashboard",
            )
        file = self._files.get(request.path)
        if file is not None:
            return web.Response(body=file.body, content_type=file.content_type, charset="utf-8")
        if request.path == "/healthz":
            return _text(200, "ok") if self._feed.synced else _text(503, "the cluster is not read yet")
        if not request.path.startswith("/api/"):
            return _text(404, "found no page of that name; expected /")
        try:
            viewer = await self._access.viewer(request.headers.get("Authorization"))
        except AccessError as error:
            _at_requests.error("%s", error)
            return _text(503, "the server cannot check your token now; its log has the reason")
        if viewer is None:
            return _text(401, f"found no valid token; expected {self._access.expected}")
        if request.transport is not None:
            self.on_verified(request.transport)
        handler = self._api.get(request.path) or self._part(request)
        return await handler(request, viewer) if handler else _text(404, "found no data of that name")

    def _part(self, request: web.Request) -> Answer | None:
        """The paths with names in them."""
        # It is decoded after the split: a name may have a slash, in a file at least.
        kind, *names = map(unquote, request.rel_url.raw_path.removeprefix("/api/").split("/"))
        if not all(names) or any(len(name) > 253 for name in names):
            return None
        if kind == "nodes" and len(names) == 1:
            return lambda _, viewer: self._node(names[0], viewer)
        if kind == "verdicts" and len(names) == 1:
            return lambda _, viewer: self._verdict(names[0], viewer)
        if kind == "pods" and len(names) == 2:
            return lambda _, viewer: self._pod(names[0], names[1], viewer)
        if kind == "pods" and len(names) == 3 and names[2] == "events":
            return lambda _, viewer: self._events_of(names[0], names[1], viewer)
        if kind == "namespaces" and len(names) == 1:
            return lambda _, viewer: self._namespace(names[0], viewer)
        return None

    async def _whole(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        if not self._feed.synced:
            nodes, pods = len(self._feed.cluster.infos), sum(len(node.pods) for node in self._feed.cluster.ledger.nodes.values())
            return _json(orjson.dumps({"synced": False, "nodes": nodes, "pods": pods}))
        packs = "gzip" in request.headers.get("Accept-Encoding", "")
        if viewer.namespaces is not None:
            async with self._packing:
                return await self._whole_of(viewer.namespaces, packs)
        if not packs:
            return _json(self._head(self._feed.state.whole()))
        async with self._packing:
            version = self._feed.state.version
            if self._packed is None or self._packed[0] != version:
                body = self._head(self._feed.state.whole())
                # In a thread: of a large cluster it takes a tenth of a second, in which zlib lets others run.
                self._packed = version, await asyncio.to_thread(gzip.compress, body, 1)
        response = _json(self._packed[1])
        response.headers["Content-Encoding"] = "gzip"
        return response

    async def _whole_of(self, namespaces: Namespaces, packs: bool) -> web.StreamResponse:
        """Of one person's namespaces: it is not kept."""
        body = self._head(await asyncio.to_thread(visible.state, self._feed.state.whole(), namespaces))
        if not packs:
            return _json(body)
        response = _json(await asyncio.to_thread(gzip.compress, body, 1))
        response.headers["Content-Encoding"] = "gzip"
        return response

    def _head(self, whole: bytes) -> bytes:
        return orjson.dumps({"synced": True, "release": __version__, "title": self._title})[:-1] + b"," + whole[1:]

    async def _node(self, name: str, viewer: Viewer) -> web.StreamResponse:
        found = node_page(self._feed.cluster, name)
        if found is not None and viewer.namespaces is not None:
            found = visible.node(found, viewer.namespaces)
        return _text(404, "found no node of that name") if found is None else _json(orjson.dumps(found))

    async def _pod(self, namespace: str, name: str, viewer: Viewer) -> web.StreamResponse:
        return _json(orjson.dumps({"pods": await pod_page(self._feed.cluster, namespace, name, self._explaining, viewer)}))

    async def _events_of(self, namespace: str, name: str, viewer: Viewer) -> web.StreamResponse:
        return _json(orjson.dumps(await self._lookups.events(viewer.get, namespace, name)))

    async def _namespace(self, name: str, viewer: Viewer) -> web.StreamResponse:
        return _json(orjson.dumps(await self._lookups.quotas(viewer.get, name)))

    async def _verdict(self, uid: str, viewer: Viewer) -> web.StreamResponse:
        return _json(orjson.dumps(await self._verdicts.of(self._feed.cluster, uid, viewer)))

    async def _history(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        problem = ""
        if self._prometheus is not None:
            try:
                return _json(orjson.dumps(await self._prometheus.read()))
            except HistoryError as error:
                problem = str(error)
                _at_requests.warning("%s", problem)
        return _json(orjson.dumps({**self._feed.samples.to_json(), "problem": problem}))

    async def _events(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        if self._streams >= MOST_STREAMS:
            return _text(503, f"found {MOST_STREAMS} open pages; expected fewer. Close one")
        response = web.StreamResponse(headers=HEADERS)
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        self._streams += 1
        try:
            await response.prepare(request)
            await self._stream(response, request.query.get("since", "")[:64], viewer, request.headers.get("Authorization"))
        except (ConnectionError, asyncio.TimeoutError, AccessError):
            # The page is gone or does not read, or its rights are not known any more: it comes back with its version.
            pass
        finally:
            self._streams -= 1
        return response

    async def _stream(self, response: web.StreamResponse, version: str, viewer: Viewer, header: str | None) -> None:
        feed, namespaces = self._feed, viewer.namespaces
        while True:
            news = asyncio.ensure_future(feed.news())
            try:
                now = await self._access.viewer(header)
                if now is None:
                    return
                differences = feed.state.since(version)
                if differences is None or now.namespaces != namespaces:
                    await _write(response, b"event: reset\ndata: {}\n\n")
                    return
                for data in differences:
                    await _write(
                        response, b"event: change\ndata: %b\n\n" % (data if namespaces is None else visible.state(data, namespaces))
                    )
                if differences:
                    version = orjson.loads(differences[-1])["version"]
                await _write(response, b"event: status\ndata: %b\n\n" % orjson.dumps({"age": round(feed.age(), 1)}))
                # `wait`, which raises no timeout.
                await asyncio.wait({news}, timeout=HEARTBEAT_SECONDS)
            finally:
                news.cancel()


async def _write(response: web.StreamResponse, data: bytes) -> None:
    await asyncio.wait_for(response.write(data), _WRITE_SECONDS)


def _text(status: int, text: str) -> web.Response:
    return web.Response(text=f"{text}\n", status=status)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _one_line(record: logging.LogRecord) -> bool:
    """For a request that is not HTTP, one line without a traceback: it is not a fault of the dashboard."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args, record.exc_info = "a request is not HTTP: %s", (quote(str(error)),), None
    return True


_at_requests.addFilter(_one_line)


async def listen(
    dashboard: Callable[[int], Dashboard], host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Start serving; `cleanup()` of the runner stops. The port, of the kernel's choice for 0. OSError if the address is not available.

    dashboard: of the port.
    """
    listener = Listener(host, port, most=_UNVERIFIED, seconds=_UNVERIFIED_SECONDS)
    served = dashboard(int(listener.getsockname()[1]))
    served.on_verified = listener.verified

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request failed")
            response = _text(500, "the dashboard failed; its log has the reason")
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def stop(_app: web.Application) -> None:
        listener.stop()

    app = web.Application(middlewares=[guard], client_max_size=_MOST_BODY)
    app.on_shutdown.append(stop)
    app.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(app, access_log=None, logger=_at_requests, shutdown_timeout=1.0, keepalive_timeout=75.0)
    await runner.setup()
    assert runner.server is not None, "setup has made it"
    listener.start(runner.server, context)
    return runner, int(listener.getsockname()[1])

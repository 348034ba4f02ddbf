# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verbs over HTTP/1.1: a thin layer without routing table, middleware or access log, for the scheduler's hot path.

Over TLS, a caller without a client certificate gets /healthz and /version only.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

import orjson
from prometheus_client.core import Metric

from gpushare_runtime import __version__
from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.protocol import EXTENDER_PREFIX
from gpushare_runtime.daemon.exposition import single
from gpushare_runtime.daemon.listener import Listener, RateLimit
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender import extender_v1, inspect_json
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.http_protocol import TEXT, HttpRequest, HttpResponse, HttpServer
from gpushare_runtime.extender.leadership import Leadership
from gpushare_runtime.extender.metrics import ERROR, OK, UNSCHEDULABLE, Meters
from gpushare_runtime.extender.verbs import Verbs

log = logging.getLogger(__name__)
# Any user of this host can cause these records.
_at_callers: Final = log.getChild("callers")
_at_callers.addFilter(RateLimit())

MOST_BYTES: Final = 64 * 1024 * 1024
"""5000 names are 150 kB; 5000 whole node objects, for a scheduler without nodeCacheCapable, some 50 MB."""
_REMEMBERED_BYTES: Final = 1024 * 1024
# kube-scheduler opens one connection for each bind, and far fewer than this at a time. So the oldest of 256 connections without a finished
# handshake is not its own, even while others connect as fast as they can. Each takes a quarter of a MiB.
UNVERIFIED: Final = 256
UNVERIFIED_SECONDS: Final = 10.0
_INSPECT: Final = f"{EXTENDER_PREFIX}/inspect"
_LEDGER: Final = f"{EXTENDER_PREFIX}/ledger"
_VERB_AT: Final = len(EXTENDER_PREFIX) + 1
_OPEN: Final = ("/healthz", "/version")


class VerbAnswer(NamedTuple):
    """result: of metrics.RESULTS; after: as of `HttpResponse`."""

    body: bytes
    result: str
    after: Callable[[], None] | None = None


class Endpoints:
    """One handler for all paths.

    not_ready: returns why no verb may be answered yet, "" if it may; leadership: None if one extender runs alone.
    """

    def __init__(
        self, cluster: ClusterCache, verbs: Verbs, binder: Binder, not_ready: Callable[[], str], leadership: Leadership | None = None
    ) -> None:
        self.meters: Final = Meters()
        self._last_filter_call: datetime | None = None
        self._cluster = cluster
        self._verbs = verbs
        self._binder = binder
        self._not_ready = not_ready
        self._leadership = leadership
        self._read: tuple[bytes, extender_v1.Arguments] | None = None
        # The probable arguments of the next prioritize, and its answer.
        self._ahead: tuple[extender_v1.Arguments, bytes] | None = None
        self._handlers: dict[str, Callable[[bytes], VerbAnswer | Awaitable[VerbAnswer]]] = {
            f"{EXTENDER_PREFIX}/filter": self._filter,
            f"{EXTENDER_PREFIX}/prioritize": self._prioritize,
            f"{EXTENDER_PREFIX}/preempt": self._preempt,
            f"{EXTENDER_PREFIX}/bind": self._bind,
        }

    def handle(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        """Answer every request. A verb's failure is a 200 with `Error`: of any other status users see only the number."""
        if request.path not in _OPEN and not request.verified:
            return self._unauthorized(request)
        verb = self._handlers.get(request.path)
        if verb is None:
            return self._other(request)
        if request.method != "POST":
            return _text(405, f"{request.path} takes POST, not {request.method}")
        if request.body is None:
            error = f"the body is larger than {MOST_BYTES // 1024 // 1024} MiB; set nodeCacheCapable: true, so that only names are sent"
            return HttpResponse(_failure(request.path, error))
        began = perf_counter()
        try:
            answer = verb(request.body)
        except Exception as error:
            answer = self._failed(request.path, error)
        return self._response(request.path, answer, began) if isinstance(answer, VerbAnswer) else self._later(request.path, answer, began)

    async def _later(self, path: str, answer: Awaitable[VerbAnswer], began: float) -> HttpResponse:
        try:
            made = await answer
        except Exception as error:
            made = self._failed(path, error)
        return self._response(path, made, began)

    def _response(self, path: str, answer: VerbAnswer, began: float) -> HttpResponse:
        self.meters.took(path[_VERB_AT:], answer.result, perf_counter() - began)
        return HttpResponse(answer.body, after=answer.after)

    def _failed(self, path: str, error: Exception) -> VerbAnswer:
        if isinstance(error, extender_v1.WireError):
            _at_callers.warning("%s: %s", path, error)
            return VerbAnswer(_failure(path, str(error)), ERROR)
        log.error("%s failed", path, exc_info=error)
        return VerbAnswer(_failure(path, f"gpushare-extender failed ({type(error).__name__}: {error}); its log has more"), ERROR)

    def health(self) -> tuple[bool, dict[str, object]]:
        """(whether the caches are complete and the token works, the body of /healthz)."""
        why = self._not_ready()
        nodes = self._cluster.ledger.nodes.values()
        count = self.meters.count
        return not why, {
            "synced": not why,
            "not_ready": why,
            "leadership": self._leadership.problem() if self._leadership else "",
            "version": __version__,
            "nodes": sum(1 for node in nodes if node.inventory),
            "pods": sum(len(node.pods) for node in nodes),
            "pending": len(self._cluster.pending),
            "filter_calls": count("filter"),
            "last_filter_call": self._last_filter_call,
            "prioritize_calls": count("prioritize"),
            "preempt_calls": count("preempt"),
            "binds": count("bind", OK),
            "bind_failures": count("bind", UNSCHEDULABLE, ERROR),
            "unauthorized_calls": self.meters.unauthorized_callers,
        }

    def families(self) -> Iterator[Metric]:
        """Metrics of the verbs, and whether they may be answered."""
        yield single("gpushare_extender_ready", "gauge", "1 if the caches are complete and the token works.", not self._not_ready())
        yield from self.meters.families()
        yield from self._leadership.families() if self._leadership else ()

    def _closed(self) -> str:
        """Why no verb may be answered now; "" if it may."""
        return self._not_ready() or (self._leadership.problem_now() if self._leadership else "")

    def _filter(self, body: bytes) -> VerbAnswer:
        self._last_filter_call = datetime.now(timezone.utc)
        why = self._closed()
        if why:
            return VerbAnswer(extender_v1.write_filter_error(why), ERROR)
        args, self._ahead = self._arguments(body), None
        filtered = self._verbs.filter(args)
        result = ERROR if filtered.error else OK if filtered.names else UNSCHEDULABLE
        # With one node the scheduler does not call prioritize. Large arguments are not kept.
        ahead = len(filtered.names) > 1 and self._read is not None
        after = partial(self._look_ahead, extender_v1.Arguments(args.pod, filtered.names)) if ahead else None
        return VerbAnswer(extender_v1.write_filtered(args, filtered), result, after)

    def _look_ahead(self, args: extender_v1.Arguments) -> None:
        """Answer prioritize while the scheduler reads the answer to filter: it waits for one after the other."""
        self._ahead = args, extender_v1.write_scores(self._verbs.prioritize(args))

    def _arguments(self, body: bytes) -> extender_v1.Arguments:
        """If every node fits, the scheduler sends the same body to prioritize as to filter: it is parsed once."""
        if self._read is not None and self._read[0] == body:
            return self._read[1]
        args = extender_v1.read_arguments(body)
        self._read = (body, args) if len(body) <= _REMEMBERED_BYTES else None
        return args

    def _prioritize(self, body: bytes) -> VerbAnswer:
        args = self._arguments(body)
        ahead, self._ahead = self._ahead, None
        if self._closed():
            return VerbAnswer(extender_v1.write_scores({}), ERROR)
        if ahead is not None and ahead[0].names == args.names and ahead[0].pod == args.pod:
            return VerbAnswer(ahead[1], OK)
        return VerbAnswer(extender_v1.write_scores(self._verbs.prioritize(args)), OK)

    def _preempt(self, body: bytes) -> VerbAnswer:
        args = extender_v1.read_preempt(body)
        # An incomplete ledger does not show which evictions help.
        if self._closed():
            return VerbAnswer(extender_v1.write_preempted({}), ERROR)
        helped = self._verbs.preempt(args)
        return VerbAnswer(extender_v1.write_preempted(helped), OK if helped else UNSCHEDULABLE)

    async def _bind(self, body: bytes) -> VerbAnswer:
        args = extender_v1.read_bind(body)
        why = self._closed()
        try:
            if why:
                raise BindError(why, "not-ready")
            await self._binder.bind(args)
        except BindError as error:
            self.meters.not_bound(error.reason)
            log.warning("bind %s to node %s: %s", args, args.node, error, extra=about(args, args.node))
            return VerbAnswer(extender_v1.write_bound(str(error)), ERROR if why else UNSCHEDULABLE)
        return VerbAnswer(extender_v1.write_bound(""), OK)

    def _unauthorized(self, request: HttpRequest) -> HttpResponse:
        self.meters.unauthorized_callers += 1
        why = (
            f"{request.path[:80]!r} is for kube-scheduler, and the caller has shown no client certificate; expected the one of this host: "
            "`tlsConfig` of the extender's entry in KubeSchedulerConfiguration names certFile and keyFile (scheduler/tls.crt and "
            "scheduler/tls.key of the certificates' folder)"
        )
        _at_callers.warning("unauthorized: %s", why)
        return _text(403, why)

    def _other(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/healthz":
            ready, health = self.health()
            return _json(health, 200 if ready else 503)
        if request.path in ("/version", f"{EXTENDER_PREFIX}/version"):
            return _text(200, __version__)
        why = self._not_ready()
        view = self._view(request.path)
        if view is None:
            others = f"/healthz, /version, {_INSPECT}, {_INSPECT}/NODE, {_LEDGER}"
            return _text(404, f"{request.path} is not known; verbs are {', '.join(self._handlers)}; others are {others}")
        if request.method != "GET":
            return _text(405, f"{request.path} takes GET, not {request.method}")
        if why:
            return _text(503, why)
        return _json(view())

    def _view(self, path: str) -> Callable[[], dict[str, Any]] | None:
        """The part to show of the ledger at a path."""
        ledger = self._cluster.ledger
        if path == _LEDGER:
            return lambda: ledger_json(ledger, self._leadership.problems() if self._leadership else [], self._cluster.pending.values())
        if path == _INSPECT:
            return lambda: inspect_json.inspect(ledger)
        head, _, node = path.rpartition("/")
        return (lambda: inspect_json.inspect(ledger, node)) if head == _INSPECT and node else None


def listen(endpoints: Endpoints, host: str, port: int, context: ssl.SSLContext | None = None) -> HttpServer:
    """Start serving; `close()` of the result stops. OSError if the address is not available. context: None for plain http."""
    listener = Listener(host, port, most=UNVERIFIED, seconds=UNVERIFIED_SECONDS)
    server = HttpServer(endpoints.handle, listener, context, MOST_BYTES)
    server.start()
    return server


def _failure(path: str, error: str) -> bytes:
    if path.endswith("/filter"):
        return extender_v1.write_filter_error(error)
    if path.endswith("/bind"):
        return extender_v1.write_bound(error)
    if path.endswith("/preempt"):
        return extender_v1.write_preempted({})
    # HostPriorityList has no place for an error; without a score every node is as good.
    return extender_v1.write_scores({})


def _json(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(orjson.dumps(value, option=orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS), status)


def _text(status: int, text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n".encode(), status, TEXT)

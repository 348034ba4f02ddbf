# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Requests to the Kubernetes API as raw JSON, with a bound on each and an error that says what the server said."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from yarl import URL

from gpushare_runtime import __version__
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.credentials import Credentials, CredentialsError
from gpushare_runtime.kube.http_post import Destination, NotSentError, Poster

JSON: Final = "application/json"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header: only the metadata of an object (a node's is a tenth of the whole)."""
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

PAGE: Final = 500
Decode = Callable[[bytes], Any]
"""Of an answer's bytes; orjson.JSONDecodeError where they are no JSON."""
LOST_SECONDS: Final = 30.0
# A budget answers 429. Such a request is not repeated at once: the budget changes when another pod is ready.
_SAME_CLOCK_SECONDS: Final = 3.0
_EVICTION_WITHIN: Final = 1.0

# Why a request got no answer; `KubeError.reason` when `KubeError.status` is 0.
UNREACHABLE: Final = "Unreachable"
TIMEOUT: Final = "Timeout"
LOST: Final = "ConnectionLost"

_OUTSIDE: Final = "KubeClient is used outside of `async with`"
_PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class KubeError(GpushareError):
    """A request that failed.

    status: the HTTP status, 0 when no answer came. reason: the API's word ("NotFound", "Conflict", "Expired", …),
    or UNREACHABLE, TIMEOUT, LOST. message: in the server's words. causes: of its Status, reason → message.
    """

    def __init__(self, status: int, reason: str, message: str, causes: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else f"{message} ({reason})")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes: Mapping[str, str] = causes or {}

    @property
    def ambiguous(self) -> bool:
        """Whether a write may have happened all the same: no answer came, or the server failed while it worked."""
        return (self.status == 0 and self.reason != UNREACHABLE) or self.status >= 500


def path(*segments: str) -> str:
    """An API path of these segments, each quoted: path("api/v1", "namespaces", ns, "pods", name).

    Only the first may contain slashes. ValueError for a segment that would lead elsewhere.
    """
    first, *rest = segments
    for segment in rest:
        if segment in ("", ".", ".."):
            raise ValueError(f"{segment!r} cannot be part of an API path")
    return "/".join(["", first.strip("/"), *map(_quoted, rest)])


@lru_cache(maxsize=1024)
def _quoted(segment: str) -> str:
    return quote(segment, safe="")


class KubeClient:
    """One pool of connections to the API server; an async context manager. It sets no rate limit of its own.

    user_agent: the component's name, as it shows in the audit log. timeout: seconds for one request. lost_after: seconds after
    which the kernel gives up a connection whose peer does not acknowledge what was sent.
    """

    def __init__(
        self, credentials: Credentials, *, user_agent: str = "gpushare", timeout: float = 30.0, lost_after: float = LOST_SECONDS
    ) -> None:
        self._credentials = credentials
        self._timeout = timeout
        self._lost_after = lost_after
        self._user_agent = f"{user_agent}/{__version__}"
        self._session: aiohttp.ClientSession | None = None
        self._poster: Poster | None = None
        self._dated = "", 0.0

    def now(self) -> float:
        """Unix time by the API server's clock, as far as its last answer tells; a person's computer may be wrong by hours."""
        date, at = self._dated
        try:
            ahead = parsedate_to_datetime(date).timestamp() - at
        except (TypeError, ValueError, OverflowError):
            ahead = 0.0
        # The header has whole seconds, and an answer takes some: less does not show that the clocks differ.
        return time.time() + (ahead if abs(ahead) > _SAME_CLOCK_SECONDS else 0.0)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._credentials.server

    def of_user(self, token: str) -> KubeClient:
        """Another client of the same API server, with this token alone. CredentialsError if it would go there in clear text."""
        return KubeClient(self._credentials.of_user(token), user_agent=self._user_agent.partition("/")[0], timeout=self._timeout)

    async def __aenter__(self) -> KubeClient:
        # Every bind under way has its own connection, and those stay open for the next ones.
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=60, socket_factory=lambda address: _socket(address, self._lost_after)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": self._user_agent, "Accept": JSON, "Accept-Encoding": "identity"},
        )
        self._poster = Poster(lambda address: _socket(address, self._lost_after))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._poster is not None:
            self._poster.close()
            self._poster = None

    async def get(self, path: str, *, accept: str = JSON, within: float | None = None, most: int = 0, **params: object) -> dict[str, Any]:
        """One object, or a list as one piece. within: seconds for this request; most: bytes of the answer, 0 for any number."""
        return await self._request("GET", path, params, headers={"Accept": accept}, within=within, most=most)

    async def create(
        self, path: str, body: Mapping[str, Any], *, within: float | None = None, send_within: float = math.inf, **params: object
    ) -> dict[str, Any]:
        """POST; the object as the server keeps it, or its Status. send_within: seconds after which it is not sent any more."""
        return await self._request("POST", path, params, body=orjson.dumps(body), within=within, send_within=send_within)

    async def evict(self, namespace: str, name: str, uid: str, *, within: float | None = None, dry_run: bool = False) -> None:
        """An Eviction of the pod with exactly this UID. KubeError with status 429 where a disruption budget does not allow it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}, **({"dryRun": ["All"]} if dry_run else {})},
        }
        where = path("api/v1", "namespaces", namespace, "pods", name, "eviction")
        await self.create(where, body, within=within, send_within=_EVICTION_WITHIN)

    async def patch(
        self,
        path: str,
        body: object,
        *,
        kind: Literal["merge", "strategic", "json", "apply"],
        within: float | None = None,
        **params: object,
    ) -> dict[str, Any]:
        """PATCH of that kind; "apply" wants fieldManager=… (and force=True to take fields from others)."""
        headers = {"Content-Type": _PATCH_TYPES[kind]}
        return await self._request("PATCH", path, params, body=orjson.dumps(body), headers=headers, within=within)

    async def delete(
        self, path: str, body: Mapping[str, Any] | None = None, *, within: float | None = None, **params: object
    ) -> dict[str, Any]:
        """DELETE; body: DeleteOptions."""
        return await self._request("DELETE", path, params, body=orjson.dumps(body) if body else None, within=within)

    async def list_pages(
        self, path: str, *, limit: int = PAGE, accept: str = JSON, decode: Decode = orjson.loads, **params: object
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The pages of a list, as the server sends them. The first is read with the newest resourceVersion, and while a page is used the
        server makes the next one.

        decode: of a page. It may leave out what its caller does not read, and raises orjson.JSONDecodeError where there is no JSON.
        KubeError 410 in the middle: the list has become too old to be continued. Begin again; limit=0 asks for one piece.
        """

        def ask(token: str) -> asyncio.Future[dict[str, Any]]:
            query = {**params, **({"limit": limit} if limit else {}), **({"continue": token} if token else {})}
            return asyncio.ensure_future(self._request("GET", path, query, headers={"Accept": accept}, decode=decode))

        coming: asyncio.Future[dict[str, Any]] | None = ask("")
        try:
            while coming is not None:
                page = await coming
                token = (page.get("metadata") or {}).get("continue") or ""
                coming = ask(token) if token else None
                if coming is not None:
                    # The request leaves before the page is used, which gives the loop no turn.
                    await asyncio.sleep(0)
                yield page
        finally:
            if coming is not None:
                coming.cancel()

    async def watch(
        self,
        path: str,
        resource_version: str,
        *,
        accept: str = JSON,
        timeout_seconds: int = 300,
        read_timeout: float = 100.0,
        pause: Callable[[], float] | None = None,
        decode: Decode = orjson.loads,
        **params: object,
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """(type, object) for each change after that resourceVersion, BOOKMARKs too, until the server ends the watch.

        timeout_seconds: when the server ends it; read_timeout: seconds of silence after which the connection counts as
        lost (the server sends a bookmark about every minute). pause: after each read, seconds to the next one. The kernel
        keeps what comes meanwhile, because most of what an event costs is to be woken for it. decode: of an event, as for
        `list_pages`. KubeError 410 when the resourceVersion is too old.
        """
        query = {
            **params,
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=read_timeout)
        try:
            authorization = self._credentials.authorization()
            async with self._send("GET", path, query, {"Accept": accept}, None, timeout, authorization) as response:
                if response.status >= 400:
                    raise _error(response.status, await response.read())
                async for line in _lines(response, pause):
                    yield _event(line, decode)
        except (asyncio.TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._no_answer("GET", path, error) from None

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, object],
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within: float | None = None,
        send_within: float = math.inf,
        decode: Decode = orjson.loads,
        most: int = 0,
    ) -> dict[str, Any]:
        began = time.monotonic()
        deadline, send_by = began + (self._timeout if within is None else within), began + send_within
        sent = {**(headers or {}), **({"Content-Type": JSON} if body is not None and "Content-Type" not in (headers or {}) else {})}
        reloaded = False
        while True:
            now = time.monotonic()
            timeout = aiohttp.ClientTimeout(
                total=max(0.01, deadline - now), connect=max(0.01, send_by - now) if send_within < math.inf else None
            )
            authorization = self._credentials.authorization()
            try:
                if method == "POST" and body is not None and self._credentials.proxy is None:
                    status, data, wait = await self._post(path, params, sent, body, send_by - now, deadline - now, authorization)
                else:
                    async with self._send(method, path, params, sent, body, timeout, authorization) as response:
                        status, data = response.status, await (_at_most(response, most) if most else response.read())
                        wait = response.headers.get("Retry-After", "1")
                        self._dated = response.headers.get("Date", "")[:64], time.time()
            except (asyncio.TimeoutError, aiohttp.ClientError, OSError) as error:
                raise self._no_answer(method, path, error) from None
            if status == 401 and not reloaded and time.monotonic() < send_by and self._reload(authorization):
                reloaded = True
                continue
            # 429: the server has not touched the request and asks to come back later.
            pause = float(wait) if wait.isdigit() else 1.0
            if status == 429 and time.monotonic() + pause < min(deadline, send_by):
                await asyncio.sleep(pause)
                continue
            if status >= 400:
                raise _error(status, data)
            return _object(data, decode)

    async def _post(
        self,
        path: str,
        params: Mapping[str, object],
        headers: Mapping[str, str],
        body: bytes,
        connect_within: float,
        within: float,
        authorization: str | None,
    ) -> tuple[int, bytes, str]:
        """(status, body, Retry-After). As `Poster.post`."""
        if self._poster is None:
            raise RuntimeError(_OUTSIDE)
        server = Destination(self._credentials.server, self._credentials.ssl(), self._credentials.tls_server_name)
        own = {"User-Agent": self._user_agent, "Accept": JSON, **({"Authorization": authorization} if authorization else {})}
        answer = await self._poster.post(
            server, f"{path}{_query(params)}", {**own, **headers}, body, connect_within=connect_within, within=within
        )
        return answer.status, answer.body, answer.retry_after or "1"

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, object],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: aiohttp.ClientTimeout,
        authorization: str | None,
    ) -> Any:
        if self._session is None:
            raise RuntimeError(_OUTSIDE)
        return self._session.request(
            method,
            URL(f"{self._credentials.server}{path}{_query(params)}", encoded=True),
            data=body,
            headers={**headers, **({"Authorization": authorization} if authorization else {})},
            timeout=timeout,
            ssl=self._credentials.ssl() or True,
            server_hostname=self._credentials.tls_server_name,
            proxy=self._credentials.proxy,
            allow_redirects=False,
        )

    def _reload(self, unauthorized: str | None) -> bool:
        try:
            self._credentials.reload(unauthorized)
        except CredentialsError:
            return False
        return True

    def _no_answer(self, method: str, path: str, error: Exception) -> KubeError:
        what = f"{method} {path} at {self._credentials.server}"
        self._credentials.unanswered()
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return KubeError(0, UNREACHABLE, f"{what}: {error.certificate_error}")
        if isinstance(error, aiohttp.ClientConnectorError):
            return KubeError(0, UNREACHABLE, f"{what}: {error.os_error}")
        if isinstance(error, (aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL, NotSentError)):
            return KubeError(0, UNREACHABLE, f"{what}: {error}")
        if isinstance(error, asyncio.TimeoutError):
            return KubeError(0, TIMEOUT, f"{what}: no answer in time")
        return KubeError(0, LOST, f"{what}: {error or type(error).__name__}")


def _socket(address: aiohttp.AddrInfoType, lost_after: float) -> socket.socket:
    """A TCP socket on which a peer that vanished without a word is noticed within half a minute, and sooner by what is sent to it."""
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(lost_after * 1000))
    return sock


async def _at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > most:
            raise KubeError(0, LOST, f"the API server's answer is longer than {most} bytes")
    return bytes(data)


async def _lines(response: aiohttp.ClientResponse, pause: Callable[[], float] | None) -> AsyncGenerator[bytes, None]:
    """The lines of an answer, however long they are and however they are cut into chunks. pause: as of `KubeClient.watch`."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        end = chunk.rfind(b"\n")
        if end < 0:
            rest += chunk
            continue
        rest += chunk[:end]
        lines = bytes(rest).split(b"\n")
        rest = bytearray(chunk[end + 1 :])
        for line in lines:
            if line:
                yield line
        if pause is not None and (seconds := pause()):
            await _unread(response, seconds)


async def _unread(response: aiohttp.ClientResponse, seconds: float) -> None:
    """Nothing is read for so long. Afterwards all that came is read: over TLS each event is a record of its own, and a stream that stopped
    at a small buffer would get one of them for each pause, later and later.
    """
    transport = response.connection.transport if response.connection is not None else None
    if transport is not None:
        transport.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        if transport is not None:
            transport.resume_reading()


def _event(line: bytes, decode: Decode) -> tuple[str, dict[str, Any]]:
    event = _object(line, decode)
    kind, value = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(value, dict):
        raise KubeError(0, LOST, f"a watch sent {line[:200]!r}; expected an object with type and object")
    if kind == "ERROR":
        raise _status_error(int(value.get("code") or 500), value)
    return kind, value


def _object(data: bytes, decode: Decode) -> dict[str, Any]:
    try:
        value = decode(data)
    except orjson.JSONDecodeError as error:
        raise KubeError(0, LOST, f"the API server sent no JSON ({error}): {data[:200]!r}") from None
    if not isinstance(value, dict):
        raise KubeError(0, LOST, f"the API server sent {data[:200]!r}; expected a JSON object")
    return value


def _error(status: int, data: bytes) -> KubeError:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict) and value.get("kind") == "Status":
        return _status_error(status, value)
    return KubeError(status, "", data[:500].decode(errors="replace").strip() or "the server gave no reason")


def _status_error(status: int, value: Mapping[str, Any]) -> KubeError:
    details = value.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    listed = [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
    found = {str(cause.get("reason") or ""): str(cause.get("message") or "") for cause in listed}
    return KubeError(status, str(value.get("reason") or ""), str(value.get("message") or "the server gave no reason"), found)


def _query(params: Mapping[str, object]) -> str:
    """With its question mark; "" without parameters."""
    given = {name: _text(value) for name, value in params.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

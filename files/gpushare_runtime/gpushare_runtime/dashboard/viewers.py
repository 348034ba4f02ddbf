# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The person behind a request, and whose pods he may see: all with the dashboard's one token, or what his own token may list.

A token of a person goes to the API server that the dashboard itself reads, and nowhere else: not to the log, not to a disk. The dashboard
remembers for a minute what the API server said of it, and for a day that it was good: by a keyed hash. It has the token itself no longer
than the request has it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Protocol

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.dashboard.access import AccessError, RequiredToken, is_authorized
from gpushare_runtime.dashboard.lookups import Get
from gpushare_runtime.dashboard.visible import Namespaces
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.credentials import CredentialsError

KNOWN_SECONDS: Final = 60.0
"""After that the API server is asked again: rights are withdrawn, and tokens end."""
REMEMBERED_SECONDS: Final = 86_400.0
"""A token that was good so long ago at most may be asked about while those that nobody knows have to wait."""
MOST_KNOWN: Final = 256
MOST_NAMESPACES: Final = 500
"""Of one person, that are asked for."""
MOST_REJECTED: Final = 20
REJECTED_SECONDS: Final = 10.0
"""More tokens than these that the API server does not know are not sent there."""
_AT_ONCE: Final = 8
_SECONDS: Final = 10.0
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_BEARER: Final = re.compile(r"Bearer ([\x21-\x7e]{16,8000})")


@dataclass(frozen=True)
class Viewer:
    """namespaces: whose pods he sees, None for all. get: of the API server, with his rights; None where the cluster is a file."""

    namespaces: Namespaces | None = None
    get: Get | None = None

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Access(Protocol):
    """The check of who may read. expected: for the person whose token is none of these."""

    expected: str

    async def viewer(self, header: str | None) -> Viewer | None:
        """Of a request with this Authorization header; None without a valid token. AccessError if that cannot be found out."""


class OneToken:
    """Everybody with the token sees everything. get: of the API server."""

    expected = "the one that the dashboard was started with"

    def __init__(self, token: RequiredToken, get: Get | None = None) -> None:
        self._token = token
        self._viewer = Viewer(None, get)

    async def viewer(self, header: str | None) -> Viewer | None:
        return self._viewer if is_authorized(header, self._token) else None


@dataclass
class _Known:
    """The API server's word on one token. allowed: by namespace; every: the pods of all namespaces."""

    until: float
    every: bool = False
    allowed: dict[str, bool] = field(default_factory=dict)

    def unknown(self, namespaces: Callable[[], Iterable[str]]) -> list[str]:
        if self.every or len(self.allowed) >= MOST_NAMESPACES:
            return []
        return sorted(name for name in namespaces() if name not in self.allowed)[: MOST_NAMESPACES - len(self.allowed)]


class OwnTokens:
    """Everybody has a token of his own for the cluster, and sees the pods that it may list.

    client: of the API server with that token, and with nothing of the dashboard's own identity. namespaces: those that have pods to show;
    every request calls it, and every open page at each change.
    """

    expected = "one of your own for this cluster, such as `kubectl create token NAME -n NAMESPACE` prints"

    def __init__(
        self,
        client: Callable[[str], AbstractAsyncContextManager[KubeClient]],
        namespaces: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespaces = namespaces
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, _Known] = {}
        self._rejected: deque[float] = deque(maxlen=MOST_REJECTED)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def viewer(self, header: str | None) -> Viewer | None:
        found = _BEARER.fullmatch(header or "")
        if found is None:
            return None
        token = found[1]
        known = await self._ask(token)
        if known is None:
            return None

        async def get(path: str, **parameters: Any) -> dict[str, Any]:
            async with self._client(token) as client:
                return await client.get(path, **parameters)

        return Viewer(None if known.every else frozenset(name for name, allowed in known.allowed.items() if allowed), get)

    async def _ask(self, token: str) -> _Known | None:
        digest = blake2b(token.encode(), key=self._secret, digest_size=32).digest()
        if not self._is_complete(digest):
            async with self._turns:
                # Another request with this token may have asked meanwhile.
                if not self._is_complete(digest):
                    known = await self._reviewed(token, self._current(digest), self._was_good(digest))
                    self._known.pop(digest, None)
                    if known is None:
                        return None
                    while len(self._known) >= MOST_KNOWN:
                        del self._known[next(iter(self._known))]
                    self._known[digest] = known
        return self._known.get(digest)

    def _current(self, digest: bytes) -> _Known | None:
        known = self._known.get(digest)
        return known if known is not None and self._clock() < known.until else None

    def _was_good(self, digest: bytes) -> bool:
        known = self._known.get(digest)
        return known is not None and self._clock() < known.until + REMEMBERED_SECONDS

    def _is_complete(self, digest: bytes) -> bool:
        known = self._current(digest)
        return known is not None and not known.unknown(self._namespaces)

    async def _reviewed(self, token: str, known: _Known | None, was_good: bool) -> _Known | None:
        """With what was not known yet; None for a token that the API server does not accept. AccessError."""
        now = self._clock()
        if not was_good and len(self._rejected) == MOST_REJECTED and now - self._rejected[0] < REJECTED_SECONDS:
            raise AccessError(
                f"found {MOST_REJECTED} tokens in {REJECTED_SECONDS:g} s that the API server rejected; the next one has to wait"
            )
        try:
            async with self._client(token) as client:
                if known is None:
                    known = _Known(now + KNOWN_SECONDS, await _may_list_pods(client, ""))
                wanted = known.unknown(self._namespaces)
                for at in range(0, len(wanted), _AT_ONCE):
                    some = wanted[at : at + _AT_ONCE]
                    known.allowed.update(zip(some, await asyncio.gather(*(_may_list_pods(client, name) for name in some)), strict=True))
        except CredentialsError as error:
            raise AccessError(str(error)) from None
        except KubeError as error:
            if error.status == 401:
                self._rejected.append(now)
                return None
            raise AccessError(f"the API server does not say what a token may list: {quote(error.message)}") from None
        return known


async def _may_list_pods(client: KubeClient, namespace: str) -> bool:
    """namespace: "" for all. The API server answers for the token that asks."""
    attributes = {"verb": "list", "resource": "pods", "group": "", "version": "v1", "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    answer = await client.create(_REVIEWS, body, within=_SECONDS)
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True

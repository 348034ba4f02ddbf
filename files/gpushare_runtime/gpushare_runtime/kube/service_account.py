# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon's ServiceAccount: a bound token of its own, requested with an initial one and renewed for ever; and the client that sends it.

The API server verifies tokens. Here a token is only parsed, for its times and its account.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NoReturn, Protocol

import orjson

from gpushare_runtime.daemon.files import replace_files
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import LOST_SECONDS, KubeClient, KubeError, path
from gpushare_runtime.kube.credentials import load

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_FAR: Final = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()
_SUBJECT: Final = "system:serviceaccount:"
_EXPECTED: Final = "expected the token of a service account, as `kubectl create token` prints it"
log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 5.0
_FIRST_WAIT: Final = 10.0
_LONGEST_WAIT: Final = 300.0
_CURE: Final = "the next run of the playbook site.yml for this host writes a new seed"


class TokenError(GpushareError):
    """A token that cannot be used; the text has what was found and expected, never the token."""


@dataclass(frozen=True)
class Token:
    """text: as sent. issued, expires: seconds since 1970. account: its service account's name."""

    text: str
    issued: float
    expires: float
    namespace: str
    account: str

    @property
    def due(self) -> float:
        """When it should be renewed: a third of its life is over then."""
        return self.issued + (self.expires - self.issued) / 3

    def expired(self, now: float) -> bool:
        return self.expires <= now

    @property
    def ends(self) -> str:
        """When it expires: 2027-02-19T10:00:00Z."""
        return f"{datetime.fromtimestamp(self.expires, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"

    def __repr__(self) -> str:
        return f"<token of {self.namespace}/{self.account} until {self.ends}>"


def parse_token(text: str) -> Token:
    """The token with its JWT's claims. TokenError if it is not of a service account."""
    text = text.strip()
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenError(f"{len(text)} characters that are not a token; {_EXPECTED}")
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        subject, issued, expires = claims["sub"], int(claims["iat"]), int(claims["exp"])
        if not subject.startswith(_SUBJECT):
            raise TokenError(f"a token of {subject!r}; {_EXPECTED}")
        namespace, account = subject.removeprefix(_SUBJECT).split(":")
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(account) and 0 <= issued < expires < _FAR):
            raise ValueError
    except KeyError as error:
        raise TokenError(f"a token without the claim {error}, such as the one of a Secret; {_EXPECTED}") from None
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise TokenError(f"a token whose claims cannot be read; {_EXPECTED}") from None
    return Token(text, issued, expires, namespace, account)


def read_token(path: Path) -> Token:
    """The token in a file. TokenError if the file has none."""
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        raise TokenError("is missing") from None
    except OSError as error:
        raise TokenError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenError(f"holds no text; {_EXPECTED}") from None
    try:
        return parse_token(text)
    except TokenError as error:
        raise TokenError(f"holds {error}") from None


def best(tokens: Iterable[Token], unauthorized: frozenset[str], now: float) -> Token | None:
    """The token to send: the newest that should work; if none should, the newest that has not expired, because the API server decides."""

    def rank(token: Token) -> tuple[bool, bool, float]:
        alive = not token.expired(now)
        return alive and token.text not in unauthorized, alive, token.issued

    return max(tokens, key=rank, default=None)


class TokenSettings(Protocol):
    """A daemon's settings about its token."""

    @property
    def seed_token_file(self) -> Path | None: ...

    @property
    def token_file(self) -> Path | None: ...

    @property
    def token_seconds(self) -> int: ...


@dataclass(frozen=True)
class TokenFiles:
    """seed: written by the installer. own: written by the daemon. seconds: lifetime of a token."""

    seed: Path
    own: Path
    seconds: int

    @classmethod
    def of(cls, settings: TokenSettings) -> TokenFiles | None:
        """None for a daemon without files."""
        seed, own = settings.seed_token_file, settings.token_file
        return cls(seed, own, settings.token_seconds) if seed and own else None


class TokenRenewer:
    """The token to send, and its renewal.

    clock: Unix time, for the times in tokens. since: monotonic seconds, for waits, because a person may set the clock.
    tick: seconds between two readings of the files.
    """

    def __init__(
        self,
        files: TokenFiles,
        *,
        clock: Callable[[], float] = time.time,
        since: Callable[[], float] = time.monotonic,
        tick: float = _TICK_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._since = since
        self._tick = tick
        self._backoff = backoff or Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        self._found: dict[Path, Token | str] = {}
        self._states: object = None
        self._unsaved: Token | None = None
        self._unauthorized: frozenset[str] = frozenset()
        self._token: Token | None = None
        self._retry_at = -math.inf
        self._failure = ""
        self._reported: tuple[bool, str] | None = None
        self._read_files()

    def authorization(self) -> str | None:
        """The value of the Authorization header, None while there is no token at all."""
        return f"Bearer {self._token.text}" if self._token else None

    @property
    def expires(self) -> float | None:
        """When the token in use expires, Unix time in seconds; None while there is no token at all."""
        return self._token.expires if self._token else None

    def unauthorized(self, authorization: str | None) -> None:
        """The API server rejected this header (401): send the other token if there is one."""
        for token in self._tokens():
            if authorization == f"Bearer {token.text}" and token.text not in self._unauthorized:
                self._unauthorized |= {token.text}
                log.warning("the API server rejects the token that expires at %s (401)", token.ends)
        self._choose()

    def problem(self) -> str:
        """Why no token can work; "" if one should."""
        now = self._clock()
        if any(self._invalid_reason(token, now) == "" for token in self._tokens()):
            return ""
        why = {
            file: self._invalid_reason(found, now) if isinstance(found, Token) else found
            for file, found in ((file, self._found[file]) for file in (self._files.own, self._files.seed))
        }
        return f"no token works: {self._files.own} {why[self._files.own]}; the seed {self._files.seed} {why[self._files.seed]}; {_CURE}"

    async def run(self, client: KubeClient, report: Callable[[bool, str], None]) -> NoReturn:
        """Renew the token in time, retry a failed renewal, and use what the installer writes into the files.

        report: called first, and after each change, with whether a token works and a sentence.
        """
        while True:
            self._read_files()
            if not self._is_due():
                self._failure = ""
            elif self._since() >= self._retry_at:
                await self._try(client)
            self._report_changes(report)
            await asyncio.sleep(self._tick)

    async def _try(self, client: KubeClient) -> None:
        try:
            if self._unsaved is None or self._stale(self._unsaved):
                self._unsaved = await self._request(client)
                self._choose()
            await asyncio.to_thread(replace_files, {self._files.own: f"{self._unsaved.text}\n".encode()}, {self._files.own: 0o600})
        except KubeError as error:
            if error.status not in (0, 401) and self._token is not None:
                # Any other answer means that the server knows the account: the 401 was temporary.
                self._unauthorized -= {self._token.text}
            cure = (
                " (its Role should let it create serviceaccounts/token of its own name: site.yml sees to it)" if error.status == 403 else ""
            )
            self._fail(f"the request for a new token failed: {error}{cure}")
        except TokenError as error:
            self._fail(f"the API server answered the request for a new token with {error}")
        except OSError as error:
            self._fail(f"the new token cannot be kept in {self._files.own}: {error.strerror}; make the folder writable, or free space")
        else:
            log.info("a new token, until %s", self._unsaved.ends)
            self._unsaved = None
            self._failure = ""
            self._backoff.reset()
            self._read_files()

    async def _request(self, client: KubeClient) -> Token:
        """TokenRequest on the own name. KubeError, TokenError."""
        assert self._token is not None
        where = path("api/v1", "namespaces", self._token.namespace, "serviceaccounts", self._token.account, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": self._files.seconds}}
        answer = await client.create(where, body)
        text = (answer.get("status") or {}).get("token")
        if not isinstance(text, str):
            raise TokenError("an object without status.token; expected a TokenRequest")
        token = parse_token(text)
        if token.expired(self._clock()):
            raise TokenError(
                f"a token that ended at {token.ends}; expected one for the future: compare this host's clock with the server's"
            )
        return token

    def _fail(self, words: str) -> None:
        wait = self._backoff.wait()
        self._retry_at = self._since() + wait
        self._failure = words
        log.warning("%s; next try in %.0f s", words, wait)

    def _is_due(self) -> bool:
        """Whether to request a new token with the one in use."""
        token = self._token
        if token is None:
            return False
        return self._unsaved is not None or token != self._found[self._files.own] or self._stale(token)

    def _stale(self, token: Token) -> bool:
        return token.text in self._unauthorized or token.due <= self._clock()

    def _read_files(self) -> None:
        """Read the files again if they have changed."""
        files = (self._files.own, self._files.seed)
        states = [_file_state(file) for file in files]
        if states != self._states:
            self._states = states
            for file in files:
                try:
                    self._found[file] = read_token(file)
                except TokenError as error:
                    self._found[file] = str(error)
        self._choose()

    def _choose(self) -> None:
        tokens = self._tokens()
        self._unauthorized &= {token.text for token in tokens}
        token = best(tokens, self._unauthorized, self._clock())
        if token != self._token:
            self._token = token
            # A request that failed with the other token may succeed with this one.
            self._retry_at = -math.inf

    def _tokens(self) -> list[Token]:
        return [token for token in (self._unsaved, *self._found.values()) if isinstance(token, Token)]

    def _invalid_reason(self, token: Token, now: float) -> str:
        if token.expired(now):
            return f"has expired at {token.ends}"
        return "is rejected by the API server (401)" if token.text in self._unauthorized else ""

    def _report_changes(self, report: Callable[[bool, str], None]) -> None:
        problem = self.problem()
        words = problem or self._failure or f"good until {self._token.ends if self._token else ''}"
        current = (not problem and not self._failure, words)
        if current != self._reported:
            self._reported = current
            report(*current)


@asynccontextmanager
async def connect(
    kubeconfig: str | None, tokens: TokenFiles | None, user_agent: str, *, lost_after: float = LOST_SECONDS
) -> AsyncIterator[tuple[KubeClient, TokenRenewer | None]]:
    """A daemon's client, and the renewer of its token: None if the kubeconfig has the credentials. CredentialsError."""
    renewer = TokenRenewer(tokens) if tokens else None
    async with KubeClient(load(kubeconfig, tokens=renewer), user_agent=user_agent, lost_after=lost_after) as client:
        yield client, renewer


def _file_state(file: Path) -> object:
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_ino, status.st_size

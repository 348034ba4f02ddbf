# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The one token of a dashboard that each request for data must have, and the names that the server answers to.

The token is never a cookie: cookies of 127.0.0.1 reach every port of it, and so the servers of other users of the machine. A page of
another site cannot send the header, and its request has another Host if its name was rebound to this address.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Protocol

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.errors import GpushareError

LEAST_TOKEN: Final = 16
MOST_TOKEN: Final = 4096


class AccessError(GpushareError):
    """A token that cannot be used; the text has what was found, what was expected and what to do."""


class RequiredToken(Protocol):
    """The token that a request must have."""

    def current(self) -> str:
        """AccessError if there is none."""


class FixedToken:
    """A token that this process has made."""

    def __init__(self, text: str) -> None:
        self._text = text

    def current(self) -> str:
        return self._text


class TokenFile:
    """The token in a file, read again whenever the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: object = None
        self._text = ""

    def current(self) -> str:
        try:
            found = os.stat(self._path)
            state = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
            if state != self._state:
                self._text = self._read(found)
                self._state = state
        except OSError as error:
            raise AccessError(f"cannot read the token file {self._path}: {error.strerror}") from None
        return self._text

    def _read(self, found: os.stat_result) -> str:
        if found.st_mode & stat.S_IRWXO:
            raise AccessError(
                f"found the token file {self._path} with mode {stat.S_IMODE(found.st_mode):04o}, open to every user; "
                f"run chmod o= {self._path}"
            )
        with self._path.open("rb") as file:
            data = file.read(MOST_TOKEN + 1)
        text = data.decode("latin-1").strip()
        if not LEAST_TOKEN <= len(text) <= MOST_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
            raise AccessError(
                f"found {len(text)} characters in the token file {self._path}; expected {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII "
                f"characters without spaces: openssl rand -hex 32 > {self._path}"
            )
        return text


def is_authorized(header: str | None, token: RequiredToken) -> bool:
    """Whether an Authorization header has the token. AccessError where there is no token."""
    expected = f"Bearer {token.current()}".encode()
    return hmac.compare_digest((header or "").encode("utf-8", "surrogateescape"), expected)


class Hosts:
    """The Host headers of requests that are meant for this server. names: further ones, such as that of a proxy in front."""

    def __init__(self, address: str, port: int, names: Iterable[str] = ()) -> None:
        own = ip_address(address)
        hosts = {f"[{own}]" if own.version == 6 else str(own), *(name.lower().rstrip(".") for name in names)}
        if own.is_loopback:
            hosts |= {"localhost", "127.0.0.1", "[::1]"}
        self._port = port
        self._hosts = frozenset(hosts)
        # A proxy sends the port that people use.
        self._any_port = frozenset(name.lower().rstrip(".") for name in names)

    def accepts(self, header: str | None) -> bool:
        """Whether the header names this server."""
        host, port = _split((header or "").strip().lower())
        return host in self._any_port or (host in self._hosts and (port == str(self._port) or (not port and self._port in (80, 443))))

    def expected(self) -> str:
        """For the message."""
        return quote(", ".join(sorted(f"{host}:{self._port}" for host in self._hosts)))


def _split(header: str) -> tuple[str, str]:
    head, colon, tail = header.rpartition(":")
    if not colon or "]" in tail:
        return header, ""
    return head.rstrip("."), tail

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A service account's bound token: what it says about itself, and which of two to use. Nothing is verified here: the API server does."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import orjson

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_FAR: Final = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()
_SUBJECT: Final = "system:serviceaccount:"
_EXPECTED: Final = "expected the token of a service account, as `kubectl create token` prints it"


class TokenError(Exception):
    """A token that cannot be used; says what was found and expected, never the token."""


@dataclass(frozen=True)
class Token:
    """text: as sent; issued, expires: seconds since 1970; account: its service account's name."""

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
    """What a JWT's claims say. TokenError if it is none of a service account."""
    text = text.strip()
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenError(f"{len(text)} characters that are no token; {_EXPECTED}")
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
    """The token in a file. TokenError says what is wrong with the file."""
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


def best(tokens: Iterable[Token], refused: frozenset[str], now: float) -> Token | None:
    """The one to send: the newest of those that should work; if none should, the newest that lives: the API server has the last word."""

    def rank(token: Token) -> tuple[bool, bool, float]:
        alive = not token.expired(now)
        return alive and token.text not in refused, alive, token.issued

    return max(tokens, key=rank, default=None)

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens of ServiceAccounts: what one says of itself, whether a daemon can go on with it, and whether the API server takes it.

Nothing here verifies a signature: only the API server can.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional
from urllib.parse import urlsplit

from .._formats.answers import ModuleAnswer
from .._host.files import read_state
from .kubeconfig import where

#: A daemon renews its token when a third of its life is over; one that has less than this left has failed to for long.
LEAST_LEFT = 0.25
#: The token that a daemon gets to start with lives this long (seconds); the API server grants nothing shorter than ten minutes.
SEED_SECONDS = 3600
#: The year 9999: no time after it is one.
_FAR = 253370764800
# (URL of the API server, its certificate authority as PEM, token) to whether the token is taken; None: no answer.
Ask = Callable[[str, str, str], Optional[bool]]
SECONDS = 5.0


@dataclass(frozen=True)
class TokenClaims:
    """The claims of a bound token. issued, expires: Unix time in seconds. uid: of the ServiceAccount.

    accepted: whether the API server takes it; None if it was not asked or did not answer.
    """

    subject: str
    uid: str
    issued: int
    expires: int
    accepted: Optional[bool] = None

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TokenClaims":
        """The opposite of as_dict. TypeError if it is not such a result."""
        token = cls(**values)
        texts, times = (token.subject, token.uid), (token.issued, token.expires)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(time, int) for time in times):
            raise TypeError("subject and uid must be texts, issued and expires integers")
        return token


@dataclass(frozen=True)
class OwnToken(ModuleAnswer):
    """The answer of gpushare_daemon about the daemon's own token, None without one that can be read."""

    own: Optional[TokenClaims]


def subject(namespace: str, account: str) -> str:
    """The claim `sub` of a ServiceAccount's tokens."""
    return f"system:serviceaccount:{namespace}:{account}"


def read_token(text: Optional[str]) -> Optional[TokenClaims]:
    """The claims of a token as it stands in a file; None for anything that is not a bound token of a ServiceAccount."""
    try:
        payload = (text or "").strip().split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        account = claims["kubernetes.io"]["serviceaccount"]
        issued, expires = int(claims["iat"]), int(claims["exp"])
        # A host says what is in its file: JSON knows Infinity, numbers of any length, and lists as deep as it likes.
        if not 0 <= issued < expires < _FAR:
            return None
        return TokenClaims(str(claims["sub"]), str(account["uid"]), issued, expires)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def why_seed(own: Optional[TokenClaims], wanted: str, uid: Optional[str], now: float) -> str:
    """Why a daemon cannot continue with its own token and needs a seed, as a message; "" if it can.

    wanted: the subject that it must have. uid: of the live ServiceAccount, None if there is none yet. now: Unix time.
    """
    if own is None:
        return "it has no token of its own yet"
    if own.subject != wanted:
        return f"its token is that of {own.subject}"
    if own.uid != uid:
        return "its token is that of a ServiceAccount that is gone"
    if own.expires <= now:
        return "its token has expired"
    if own.accepted is False:
        return "the API server rejects its token"
    left = (own.expires - now) / max(1, own.expires - own.issued)
    if left < LEAST_LEFT:
        return f"its token has {left:.0%} of its life left: the daemon has not renewed it"
    return ""


def taken(own: Optional[TokenClaims], seed: TokenClaims) -> bool:
    """Whether a daemon has swapped this seed for a token of its own."""
    return own is not None and (own.subject, own.uid) == (seed.subject, seed.uid) and own.issued >= seed.issued


def own_token(token_path: str, kubeconfig_path: str, ask: Ask) -> Optional[TokenClaims]:
    """The claims of the token in the file, None if there is none, and what the API server of the kubeconfig says of it."""
    text, config = _text(token_path), _text(kubeconfig_path)
    found, server = read_token(text), where(config)
    if found is None or text is None or server is None:
        return found
    return replace(found, accepted=ask(server[0], server[1], text.strip()))


def ask_api_server(url: str, ca: str, token: str) -> Optional[bool]:
    """Whether the API server takes the token: it answers 401 to one that it does not know, whatever is asked for."""
    try:
        address = urlsplit(url)
        context = ssl.create_default_context(cadata=ca)
        connection = http.client.HTTPSConnection(address.hostname or "", address.port or 443, timeout=SECONDS, context=context)
        try:
            connection.request("GET", "/version", headers={"Authorization": "Bearer " + token})
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return None if status >= 500 else status != 401


def _text(path: str) -> Optional[str]:
    state = read_state(path)
    return None if state is None else state.content.decode("utf-8", "replace")

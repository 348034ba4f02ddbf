# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Service account tokens like the API server's, unsigned (nobody but it looks at the signature), and one that gives them."""

from __future__ import annotations

import base64
import json
from typing import Any

from aiohttp import web

from unit.fakes.runtime.kube.fake_api import FakeApi, status

START = 1_800_000_000.0
ACCOUNT = "gpushare-extender"
TOKEN_PATH = f"/api/v1/namespaces/kube-system/serviceaccounts/{ACCOUNT}/token"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def jwt(issued: float, expires: float, *, account: str = ACCOUNT, **claims: object) -> str:
    """The text of a token of kube-system/<account>. Claims given as None are left out."""
    all_claims = {"sub": f"system:serviceaccount:kube-system:{account}", "iat": int(issued), "exp": int(expires)} | claims
    return ".".join([_part({"alg": "RS256"}), _part({key: value for key, value in all_claims.items() if value is not None}), "c2ln"])


class TokenApi(FakeApi):
    """An API server that knows who may speak, and gives tokens by its own clock. good: the texts that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.good: set[str] = set()
        self.asked: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.good:
            return status(401, "Unauthorized", "Unauthorized")
        if request.path != TOKEN_PATH:
            return await super().handle(request)
        if self.faults:
            answer = await self.faults.pop(0)(request)
            if answer is not None:
                return answer
        self.asked.append(json.loads(await request.read()))
        text = self.give(self.asked[-1]["spec"]["expirationSeconds"])
        return web.json_response({"kind": "TokenRequest", "status": {"token": text}}, status=201)

    def give(self, seconds: float) -> str:
        """A good token, from now."""
        text = jwt(self.now, self.now + seconds, jti=len(self.good))
        self.good.add(text)
        return text

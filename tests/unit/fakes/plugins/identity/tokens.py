# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tokens as an API server makes them, but for the signature."""

from __future__ import annotations

import base64
import json
from typing import Any

NOW = 1_000_000
WEEK = 604_800
SUBJECT = "system:serviceaccount:kube-system:gpushare-extender"


def jwt(claims: Any) -> str:
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", json.dumps(claims).encode(), b"signature"))


def claims(**changes: Any) -> dict[str, Any]:
    account = {"namespace": "kube-system", "serviceaccount": {"name": "gpushare-extender", "uid": "u1"}}
    return {"sub": SUBJECT, "iat": NOW, "exp": NOW + WEEK, "kubernetes.io": account, **changes}

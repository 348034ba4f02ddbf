# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Clients of a lab's API server other than the administrator, and what the server answers them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from e2e.api import Api, ApiError, Json
from e2e.cluster import Cluster

DRY: dict[str, str] = {"dryRun": "All"}
"""A request with it passes authorization and admission, and changes nothing."""


def with_token(cluster: Cluster, token: str) -> Api:
    """A client with this token."""
    return Api(cluster.kubeconfig, {"Authorization": f"Bearer {token}"}, certificate=False)


def own_token(cluster: Cluster, node: str, unit: str) -> str:
    """The token that a daemon on that node has got for itself."""
    return cluster.on(node, "cat", f"/var/lib/{unit}/token").strip()


def somebody(cluster: Cluster, user: str, group: str = "system:authenticated") -> Api:
    """A user of that name in that group, as whom the administrator may pretend to be."""
    return Api(cluster.kubeconfig, {"Impersonate-User": user, "Impersonate-Group": group})


def forbidden(call: Callable[[], object]) -> str:
    """The words with which the API server forbids it; an AssertionError if it does not."""
    try:
        call()
    except ApiError as error:
        if error.status == 403:
            return str(error)
        raise AssertionError(f"expected 403, got: {error}") from error
    raise AssertionError("expected 403, but it was allowed")


def claims(token: str) -> Json:
    """What a token says of itself."""
    payload = token.split(".")[1]
    found: Json = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def unsigned(says: Json) -> str:
    """A token with these claims that nobody has signed."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, says)]
    return ".".join([*parts, "AAAA"])

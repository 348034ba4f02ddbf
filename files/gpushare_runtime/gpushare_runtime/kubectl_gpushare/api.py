# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads the nodes and pods of a cluster once, as raw JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.credentials import Credentials

Objects = list[dict[str, Any]]

_TIMEOUT_SECONDS: Final = 15.0
_EXPIRED: Final = 410


async def read_cluster(credentials: Credentials, names: Sequence[str]) -> tuple[Objects, Objects]:
    """(all nodes, the unfinished bound pods: of the node if `names` has one, else of all). KubeError if that fails."""
    bound = f"spec.nodeName={names[0]}" if len(names) == 1 else "spec.nodeName!="
    async with KubeClient(credentials, user_agent="kubectl-inspect-gpushare", timeout=_TIMEOUT_SECONDS) as client:
        nodes, pods = await asyncio.gather(_list(client, "/api/v1/nodes"), _list(client, "/api/v1/pods", f"{protocol.UNFINISHED},{bound}"))
    return nodes, pods


async def _list(client: KubeClient, path: str, selector: str = "") -> Objects:
    """In pages, so that no answer becomes huge; in one piece if the pages expire before the last was read."""
    try:
        return [item async for page in client.list_pages(path, fieldSelector=selector) for item in page.get("items") or ()]
    except KubeError as error:
        if error.status != _EXPIRED:
            raise
    return (await client.get(path, fieldSelector=selector)).get("items") or []

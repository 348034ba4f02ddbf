# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An extender behind real HTTP, in front of an API server behind real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gpushare_runtime.core import protocol
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.http_server import Endpoints, listen
from gpushare_runtime.extender.verbs import Verbs
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving
from unit.fakes.runtime.pods import inventory

VERBS = protocol.EXTENDER_PREFIX


class Extender:
    """The extender's URL and what is behind it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, cluster: ClusterCache, api: FakeApi) -> None:
        self.url, self.session, self.cluster, self.api = url, session, cluster, api

    async def verb(self, name: str, body: object) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}{VERBS}/{name}", data=data) as response:
            assert response.status == 200
            assert response.content_type == "application/json"
            return await response.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}") as response:
            return response.status, await response.text()


@asynccontextmanager
async def extending(directory: Path) -> AsyncIterator[Extender]:
    """An extender on two nodes, like the lab's, whose watches run."""
    async with serving(FakeApi()) as api, connected(api, directory) as client, aiohttp.ClientSession() as session:
        for name, gpus in {"gpu1": (16, 16), "gpu2": (16, 24)}.items():
            annotations = {protocol.ANNOTATION_GPUS: inventory(*gpus).to_json()}
            await api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "annotations": annotations}})
        cluster, policy = ClusterCache(), Binpack()
        nodes, pods = cluster.watches(client)

        def not_ready() -> str:
            return "" if nodes.synced.is_set() and pods.synced.is_set() else "not synced yet"

        endpoints = Endpoints(cluster, Verbs(cluster.ledger, policy), Binder(client, cluster, policy), not_ready)
        server = listen(endpoints, "127.0.0.1", 0)
        tasks = [asyncio.create_task(watch.run()) for watch in (nodes, pods)]
        try:
            yield Extender(f"http://127.0.0.1:{server.port}", session, cluster, api)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.close()


async def synced(extender: Extender) -> None:
    async with asyncio.timeout(5):
        while (await extender.get("/healthz"))[0] != 200:  # noqa: ASYNC110 - the condition is on the other side of HTTP
            await asyncio.sleep(0.01)

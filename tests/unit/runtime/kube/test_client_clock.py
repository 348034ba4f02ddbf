# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The clock of the API server, by the header of its answers."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web

from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving


@pytest.mark.parametrize(("date", "ahead"), [(3600.0, 3600), (-7200.0, -7200), (1.0, 0), ("never", 0), ("", 0), (99 * "9", 0)])
def test_the_servers_clock_counts_where_it_differs_from_ours(date: float | str, ahead: int, tmp_path: Path) -> None:
    async def dated(_: web.Request) -> web.StreamResponse:
        text = date if isinstance(date, str) else formatdate(time.time() + date, usegmt=True)
        return web.json_response({"items": []}, headers={"Date": text})

    async def go() -> float:
        async with serving(FakeApi()) as api, connected(api, tmp_path) as client:
            assert abs(client.now() - time.time()) < 5
            api.faults = [dated]
            await client.get("/api/v1/nodes")
            return client.now() - time.time()

    assert asyncio.run(go()) == pytest.approx(ahead, abs=30)

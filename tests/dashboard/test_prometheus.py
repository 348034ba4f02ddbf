# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The history of the dashboard from a real Prometheus that scrapes a real extender."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gpushare_runtime.dashboard import history
from gpushare_runtime.dashboard.history import HistoryError
from monitoring.scene import scene
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import admitted


def test_prometheus_has_what_is_allocated_and_what_waits(tmp_path: Path) -> None:
    async def read(url: str) -> dict[str, Any]:
        # Not kept for half a minute.
        try:
            return await history.Prometheus(url, hours=0.1).read()
        except HistoryError:
            return {}

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            await admitted(here.it, memory(here.it.inventory, 0, 6))
            await here.wait("large", 15)

            async def complete() -> dict[str, Any]:
                found = await read(server.url)
                return found if found and (found["allocated"][-1], found["pending"][-1]) == (6, 1) else {}

            found = await server.until("the history has the pod", complete, 90)
            assert (found["source"], found["unit"], found["total"][-1]) == ("Prometheus", "units", 32)
            assert found["time"] == sorted(found["time"])
            assert len(found["time"]) == len(found["total"]) == len(found["allocated"]) == len(found["pending"])

    asyncio.run(run())

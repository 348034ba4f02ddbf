# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An extender and a device plugin that a real Prometheus scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from gpushare_runtime.core import protocol
from gpushare_runtime.settings.common import Address
from monitoring.prometheus import EXTENDER, PLUGIN, RULES, Prometheus, rules_that_fire_at_once, serving
from unit.fakes.runtime.device_plugin.plugin import World, world
from unit.fakes.runtime.extender.process import free_port, start
from unit.fakes.runtime.kube.fake_api import FakeApi, status
from unit.fakes.runtime.kube.tokens import TOKEN_PATH, TokenApi
from unit.fakes.runtime.pods import container, pod

MIB_OF_GPU: Final = 16 * 1024

MIB: Final = 1024 * 1024

DAY: Final = 86400


class Scene:
    """An extender in a process of its own and a device plugin with two GPUs of 16 GiB, on one API server, both scraped.

    api: of the extender, if it has one of its own; more: its further options; plugin_port: of the device plugin's metrics.
    """

    def __init__(self, folder: Path, it: World, plugin_port: int, more: Sequence[str] = (), api: FakeApi | None = None) -> None:
        self.it, self.plugin_port = it, plugin_port
        self._api, self._more = api or it.api, more
        self.port, self.metrics_port = free_port(), free_port()
        self._folder = folder
        self._extender: Process | None = None

    async def start_extender(self) -> None:
        more = ["--lease", "none", "--metrics-listen", f"127.0.0.1:{self.metrics_port}", *self._more]
        self._extender = await start(self._folder, self._api, self.port, more)

    async def stop_extender(self) -> None:
        if self._extender is not None:
            process, self._extender = self._extender, None
            process.terminate()
            await process.communicate()

    def signal(self, number: signal.Signals) -> None:
        """To the extender."""
        assert self._extender is not None
        self._extender.send_signal(number)

    async def wait(self, name: str, units: int) -> dict[str, Any]:
        """A pod that waits for so many units."""
        raw = pod(container(mem=units), name=name, uid=name)
        return await self.it.api.put(f"/api/v1/namespaces/default/pods/{name}", raw)

    async def filter(self, raw: dict[str, Any]) -> None:
        """kube-scheduler's call."""
        url = f"http://127.0.0.1:{self.port}{protocol.EXTENDER_PREFIX}/filter"
        async with aiohttp.ClientSession() as session:
            # It may still be starting.
            with contextlib.suppress(aiohttp.ClientConnectionError):
                await session.post(url, json={"Pod": raw, "NodeNames": ["gpu1"]})

    def uses(self, gpu: int, uid: str, mib: int) -> None:
        self.it.host.processes[7] = 7, uid
        self.it.nvml.using[self.it.inventory.by_index[gpu].uuid] = [(7, mib * MIB)]


@asynccontextmanager
async def going_on(step: Callable[[], Awaitable[object]], pause: float) -> AsyncIterator[None]:
    """`step` again and again, so long after each other. Its error comes out at the end."""

    async def steps() -> None:
        while True:
            await step()
            await asyncio.sleep(pause)

    task = asyncio.create_task(steps())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def tick(*apis: FakeApi) -> None:
    """Each change brings a bookmark to every watch. A real API server sends one about every minute, and no daemon takes it for silent."""
    for api in apis:
        await api.put("/api/v1/namespaces/default/configmaps/tick", {"metadata": {"name": "tick"}})


@asynccontextmanager
async def scene(
    folder: Path, *more: str, api: FakeApi | None = None, rules: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Scene, Prometheus]]:
    """more, api: of Scene; rules: their text, None for those of the repository; settings: of the plugin."""
    plugin_port = free_port()
    async with world(MIB_OF_GPU, MIB_OF_GPU, metrics_listen=Address("127.0.0.1", plugin_port), **settings) as it:
        await it.registered()
        made = Scene(folder, it, plugin_port, more, api)
        targets = {EXTENDER: [f"127.0.0.1:{made.metrics_port}"], PLUGIN: [f"127.0.0.1:{plugin_port}"]}
        try:
            await made.start_extender()
            # What counts over minutes counts over seconds here, so that an alert also clears in sight.
            quick = re.sub(r"\[\d+m\]", "[10s]", rules_that_fire_at_once(RULES.read_text() if rules is None else rules))
            ticks = going_on(partial(tick, it.api, *([api] if api else [])), 1)
            async with ticks, serving(folder, targets, free_port(), quick) as server:
                # Before that no alert can fire.
                seen = "count(up == 1) == 2 and on () count(gpu:gpushare_memory_bytes) == 2"
                await server.until("both jobs are scraped and recorded", partial(server.query, seen), 180)
                yield made, server
        finally:
            await made.stop_extender()


async def exactly(server: Prometheus, *names: str, seconds: float = 180) -> None:
    """These alerts fire, and no other, and each says what it is about. seconds: the deadline."""

    async def holds() -> bool:
        return set(await server.firing()) == set(names)

    await server.until(f"exactly {names} fire", holds, seconds)
    for name, alert in (await server.firing()).items():
        summary = alert["annotations"]["summary"]
        assert "<no value>" not in summary, (name, summary)
        assert "error calling" not in summary, (name, summary)


class Refusing(TokenApi):
    """It gives no token while it refuses."""

    refuses = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.refuses and request.path == TOKEN_PATH:
            return status(403, "Forbidden", "planned")
        return await super().handle(request)

    def give_old(self) -> str:
        """A token that was given 6 days ago for 7; it is now for the server as well."""
        self.now = time.time() - 6 * DAY
        text = self.give(7 * DAY)
        self.now = time.time()
        return text

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A real Prometheus scrapes both daemons: each query of the dashboard returns data, and alerts fire and clear with their causes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.metrics_server import MetricsAddress
from gpushare_runtime.device_plugin.gpu import pod_memory
from monitoring import dashboard
from monitoring.prometheus import EXTENDER, PLUGIN, RULES, Prometheus, rules_that_fire_at_once, serving
from unit.runtime.device_plugin.device_manager import AdmissionError
from unit.runtime.device_plugin.fake_nvml import facts
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.device_plugin.plugin import World, path_of, world
from unit.runtime.device_plugin.test_pod_limits import admitted
from unit.runtime.extender.test_main import free_port, start
from unit.runtime.extender.test_tls import NOW, make, options
from unit.runtime.kube.fake_api import FakeApi, status, until
from unit.runtime.kube.fake_api import serving as serving_api
from unit.runtime.kube.tokens import TOKEN_PATH, TokenApi
from unit.runtime.pods import container, pod

MIB_OF_GPU: Final = 16 * 1024
MIB: Final = 1024 * 1024
PANELS: Final = {"row", "stat", "gauge", "timeseries", "bargauge", "table"}
DAY: Final = 86400


def test_the_file_is_what_the_list_of_panels_makes() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "write it with: python -m monitoring.dashboard --write"


def test_the_dashboard_needs_no_plugin_and_no_panel_covers_another() -> None:
    board = json.loads(dashboard.FILE.read_text())
    assert {one["type"] for one in board["panels"]} <= PANELS
    assert {one["datasource"]["type"] for one in board["panels"] if one["type"] != "row"} == {"prometheus"}
    cells = [
        (x, y)
        for place in (one["gridPos"] for one in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == dashboard.COLUMNS - 1
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])


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
    async with world(MIB_OF_GPU, MIB_OF_GPU, metrics=MetricsAddress("127.0.0.1", plugin_port), **settings) as it:
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


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.2)


def test_each_query_of_the_dashboard_returns_data(tmp_path: Path) -> None:
    queries = dashboard.expressions(json.loads(dashboard.FILE.read_text()))
    assert len(queries) > 20

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            uid = await admitted(it, memory(it.inventory, 0, 6))
            await admitted(it, memory(it.inventory, 1, 8))
            here.uses(0, uid, 2048)
            it.nvml.report(1, 31)
            waiting = await here.wait("large", 15)

            async def missing() -> dict[str, str]:
                await here.filter(waiting)
                found = {}
                for name, expression in queries.items():
                    values = [value for _, value in await server.query(expression)]
                    # A verb that nobody has called has no quantile.
                    if all(map(math.isnan, values)):
                        found[name] = f"{expression}: {values}"
                return found

            for _ in range(180):
                if not (left := await missing()):
                    break
                await asyncio.sleep(0.5)
            assert left == {}
            # There may have been data before all of this was in it.
            whole = "cluster:gpushare_memory_used_bytes:sum == 2 * 1024 ^ 3 and on () sum(gpushare_extender_pods_waiting_room) == 1"
            await server.until("all of it is recorded", partial(server.query, whole), 180)
            values = {name: [value for _, value in await server.query(expression)] for name, expression in queries.items()}
            assert values["Allocated A"] == [14 / 32]
            assert values["Used A"] == [2 / 32]
            assert values["Allocated and idle A"] == [12 / 14]
            assert values["Memory of all GPUs A"] == [32 * 1024 * MIB]
            assert sorted(values["Pods that use most of what they have A"]) == [0, pytest.approx(1 / 3)]
            assert values["Pods that wait for room A"].count(1) == 1
            # kubectl gpushare has the same from the same server.
            command = ["-m", "gpushare_runtime.kubectl_gpushare.main", "pods", "-A", "-o", "json"]
            options = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--prometheus", server.url]
            process = await asyncio.create_subprocess_exec(sys.executable, *command, *options, stdout=PIPE, stderr=PIPE)
            out, err = await process.communicate()
            assert process.returncode == 0, err
            (node,) = json.loads(out)["nodes"]
            assert {one["uid"]: one["used_mib"] for one in node["pods"]}[uid] == 2048
            assert [one["used_mib"] for one in node["gpus"]] == [2048, 0]

    asyncio.run(run())


async def exactly(server: Prometheus, *names: str, seconds: float = 180) -> None:
    """These alerts fire, and no other, and each says what it is about. seconds: the deadline."""

    async def holds() -> bool:
        return set(await server.firing()) == set(names)

    await server.until(f"exactly {names} fire", holds, seconds)
    for name, alert in (await server.firing()).items():
        summary = alert["annotations"]["summary"]
        assert "<no value>" not in summary, (name, summary)
        assert "error calling" not in summary, (name, summary)


def test_alerts_fire_with_their_cause_and_clear_after_it(tmp_path: Path) -> None:
    """Their waits are left out here; test_rules.py has them."""

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            uid = await admitted(it, memory(it.inventory, 0, 6))

            fires = partial(exactly, server)
            await until(lambda: it.plugin.status.ready)
            await fires()
            here.uses(0, uid, 7 * 1024)
            await fires("GPUShareMemoryExceeded")
            assert (await server.firing())["GPUShareMemoryExceeded"]["annotations"]["summary"].startswith("pod default/p")
            here.uses(0, uid, 1024)
            await fires()
            # 10 and 16 units are free.
            await here.wait("large", 20)
            await fires("GPUShareMemoryFragmented")
            await here.wait("small", 16)
            await fires("GPUShareMemoryFragmented", "GPUSharePodsWaitWithRoom")
            await it.api.remove("/api/v1/namespaces/default/pods/large")
            await it.api.remove("/api/v1/namespaces/default/pods/small")
            await here.wait("impossible", 0)
            raw = pod(
                {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-count": "1"}}}, name="x", uid="x"
            )
            await it.api.put("/api/v1/namespaces/default/pods/x", raw)
            await fires("GPUSharePodsInvalid")
            await it.api.remove("/api/v1/namespaces/default/pods/x")
            await fires()
            it.nvml.lost = {1}
            await fires("GPUShareGPUUnhealthy", "GPUShareDevicePluginDegraded")
            it.nvml.lost = set()
            it.nvml.gpus[1] = facts(1, MIB_OF_GPU)
            await fires()
            await here.stop_extender()
            await fires("GPUShareExtenderDown", "GPUShareNoActiveExtender")
            await here.start_extender()
            await fires()

    asyncio.run(run())


def test_alerts_about_what_should_never_be_fire_with_their_cause_and_clear_after_it(tmp_path: Path) -> None:
    """A ledger with more than there is, memory of pods that are gone, admissions that are rejected, calls that fail."""

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            fires = partial(exactly, server)
            await until(lambda: it.plugin.status.ready)
            await fires()

            # Somebody binds two pods to one GPU, past the extender, and kubelet does not know them.
            both = [memory(it.inventory, 0, 10) for _ in range(2)]
            for raw in both:
                await it.bind(raw)
            await fires("GPUShareLedgerOverbooked", "GPUShareLedgerInconsistent")
            await it.api.remove(path_of(both[1]))
            await fires()
            await it.api.remove(path_of(both[0]))

            # Processes that outlive their pod.
            raw = memory(it.inventory, 1, 6)
            uid = await admitted(it, raw)
            it.live.add(uid)
            it.kubelet.manager.active.discard(uid)
            await it.api.remove(path_of(raw))
            await fires("GPUShareDrift")
            it.live.clear()
            await fires()

            # kubelet admits pods that no scheduler gave a GPU.
            for _ in range(5):
                with contextlib.suppress(AdmissionError):
                    await it.kubelet.manager.admit(memory(it.inventory, 0, 17))
            await fires("GPUShareAdmissionRejections")
            await fires()

            url = f"http://127.0.0.1:{here.port}{protocol.EXTENDER_PREFIX}/filter"
            async with aiohttp.ClientSession() as session:

                async def broken() -> bool:
                    async with session.post(url, data=b"no JSON") as response:
                        assert response.status >= 400 or (await response.json())["Error"]
                    return "GPUShareVerbErrors" in await server.firing()

                await server.until("calls of filter fail", broken, 90)
            await fires()

    asyncio.run(run())


def test_an_alert_about_a_certificate_fires_and_clears_with_a_new_one(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    # Made 80 days ago for 90 days; nobody has renewed it since.
    files = make(pki, NOW - timedelta(days=80))

    async def run() -> None:
        async with scene(tmp_path, *options(files)["more"]) as (here, server):
            await exactly(server, "GPUShareCertificateExpires")
            assert " expires in 9d " in (await server.firing())["GPUShareCertificateExpires"]["annotations"]["summary"]
            make(pki)
            here.signal(signal.SIGHUP)
            await exactly(server)

    asyncio.run(run())


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


def test_an_alert_about_a_token_fires_while_no_new_one_is_given_and_clears_with_it(tmp_path: Path) -> None:
    seed, own = tmp_path / "seed", tmp_path / "token"

    async def run() -> None:
        api = Refusing()
        async with serving_api(api):
            seed.write_text(text := api.give_old())
            own.write_text(text)
            async with scene(tmp_path, "--seed-token-file", str(seed), "--token-file", str(own), api=api) as (_, server):
                await exactly(server, "GPUShareTokenExpires")
                assert api.asked == []
                api.refuses = False
                # The daemon asks after 10 s, and later less often.
                await exactly(server, seconds=600)
                assert own.read_text().strip() in api.good - {text}

    asyncio.run(run())

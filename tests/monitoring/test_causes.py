# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Alerts fire from their real cause and clear after it, with a real Prometheus: those whose cause takes more than a line to bring about."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import count
from pathlib import Path

import aiohttp

from gpushare_runtime.core import protocol
from gpushare_runtime.settings.extender import DEFAULT_LEASE
from monitoring.prometheus import RULES, Prometheus
from monitoring.scene import MIB_OF_GPU, Refusing, Scene, exactly, going_on, scene, tick
from unit.fakes.runtime.device_plugin import cdi_folder
from unit.fakes.runtime.device_plugin.command import start as start_plugin
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import NODE, admitted
from unit.fakes.runtime.extender.process import free_port, start
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, until
from unit.fakes.runtime.kube.fake_api import serving as serving_api
from unit.fakes.runtime.pods import container, pod


def test_a_gpu_that_was_replaced_by_a_smaller_one_under_its_pods(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it, fires = here.it, partial(exactly, server)
            await admitted(it, memory(it.inventory, 0, 12))
            await until(lambda: it.plugin.status.ready)
            await fires()
            it.nvml.gpus[0] = facts(0, MIB_OF_GPU // 2)
            await fires("GPUShareGPUOverbooked", "GPUShareLedgerOverbooked", "GPUShareLedgerInconsistent")
            summary = (await server.firing())["GPUShareGPUOverbooked"]["annotations"]["summary"]
            assert summary.startswith("GPU 0 (GPU-00000000-")
            assert " has 12 allocated units" in summary
            it.nvml.gpus[0] = facts(0, MIB_OF_GPU)
            await fires()

    asyncio.run(run())


def test_a_cdi_spec_that_no_longer_fits_a_gpu(tmp_path: Path) -> None:
    cdi = cdi_folder.made(tmp_path)
    cdi_folder.write(cdi, 0, 1)

    async def run() -> None:
        async with scene(tmp_path, strategy="cdi", cdi_folders=(str(cdi),)) as (here, server):
            fires = partial(exactly, server)
            await until(lambda: here.it.plugin.status.ready)
            await fires()
            cdi_folder.write(cdi, 0)
            await fires("GPUShareCDISpecUnusable", "GPUShareDevicePluginDegraded")
            summary = (await server.firing())["GPUShareCDISpecUnusable"]["annotations"]["summary"]
            assert summary.startswith("no CDI spec fits GPU 1 (GPU-00000001-")
            # Its own failure says more.
            here.it.nvml.lost = {1}
            await fires("GPUShareGPUUnhealthy", "GPUShareDevicePluginDegraded")
            here.it.nvml.lost = set()
            await fires("GPUShareCDISpecUnusable", "GPUShareDevicePluginDegraded")
            cdi_folder.write(cdi, 0, 1)
            await fires()

    asyncio.run(run())


async def active(server: Prometheus) -> None:
    """The extender may bind pods, and Prometheus knows it."""
    await server.until("an active extender", partial(server.query, "gpushare_extender_active == 1"), 120)


def test_a_second_scheduler_with_an_extender_of_its_own_that_no_lease_keeps_from_binding(tmp_path: Path) -> None:
    namespace, _, name = DEFAULT_LEASE.partition("/")
    lease = {"metadata": {"uid": "lease", "name": name}, "spec": {"holderIdentity": "one_1", "leaseTransitions": 0}}
    numbers = count()

    async def binds(here: Scene, port: int) -> None:
        """A pod comes, the scheduler at that extender binds it, and it ends."""
        api, pod_name = here.it.api, f"pod-{next(numbers)}"
        where = f"/api/v1/namespaces/default/pods/{pod_name}"
        await api.put(where, pod(container(mem=1), name=pod_name, uid=pod_name))
        asked = {"PodName": pod_name, "PodNamespace": "default", "PodUID": pod_name, "Node": "gpu1"}

        async def until_bound() -> None:
            async with aiohttp.ClientSession() as session:
                # Both extenders wait for the Bindings of whoever was before them.
                while "nodeName" not in api.objects[where]["spec"]:
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        await session.post(f"http://127.0.0.1:{port}{protocol.EXTENDER_PREFIX}/bind", json=asked)
                    await asyncio.sleep(0.2)

        try:
            await asyncio.wait_for(until_bound(), 120)
        finally:
            await api.remove(where)

    def told(here: Scene) -> set[str]:
        events = [value for path, value in here.it.api.objects.items() if "/events/" in path]
        return {one["involvedObject"]["name"] for one in events if one["reason"] == protocol.EVENT_SECOND_SCHEDULER}

    async def run() -> None:
        async with scene(tmp_path, "--lease", DEFAULT_LEASE, "--scheduler-host", "one") as (here, server):
            it, fires = here.it, partial(exactly, server)
            await it.api.put(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", lease)
            await until(lambda: it.plugin.status.ready)
            await active(server)
            # Its own scheduler binds.
            await binds(here, here.port)
            await fires()
            (tmp_path / "second").mkdir()
            port = free_port()
            second = await start(tmp_path / "second", it.api, port, ["--lease", "none"])
            try:
                async with going_on(partial(binds, here, port), 1):
                    await fires("GPUShareSecondScheduler")
            finally:
                second.terminate()
                await second.communicate()
            await until(lambda: told(here))
            assert "pod-0" not in told(here)
            await fires()

    asyncio.run(run())


def test_calls_that_name_more_nodes_than_can_be_answered_in_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as (here, server), aiohttp.ClientSession() as session:
            fires, raw = partial(exactly, server), pod(container(mem=1), uid="p")
            url = f"http://127.0.0.1:{here.port}{protocol.EXTENDER_PREFIX}/filter"
            nodes, calls = 1, 0

            async def call() -> None:
                nonlocal calls
                names = ["gpu1", *(f"other-{number:07d}" for number in range(1, nodes))]
                async with session.post(url, json={"Pod": raw, "NodeNames": names}) as response:
                    answer = await response.json()
                    assert not answer["Error"], answer["Error"]
                    assert answer["NodeNames"] == ["gpu1"]
                calls += 1

            await active(server)
            async with going_on(call, 0.2):
                await until(lambda: calls > 20)
                await fires()

            async def slow() -> bool:
                nonlocal nodes, calls
                if calls >= 3:
                    # A body has at most 64 MiB.
                    nodes, calls = min(nodes * 2, 3_000_000), 0
                return "GPUShareVerbSlow" in await server.firing()

            nodes, calls = 50_000, 0
            # A scrape waits as long as such a call takes: time for those is left between.
            async with going_on(call, 2):
                await server.until("calls of filter are slow", slow, 300)
                await fires("GPUShareVerbSlow")
            assert (await server.firing())["GPUShareVerbSlow"]["annotations"]["summary"].startswith("1 % of the calls of filter on ")
            await fires()

    asyncio.run(run())


class Relay:
    """TCP to one server, and back unless that is withheld: then nothing arrives, and no connection ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()

    def withhold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer, back=True))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool = False) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if back:
                    await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def test_an_api_server_whose_words_no_longer_arrive(tmp_path: Path) -> None:
    text = RULES.read_text()
    sooner = text.replace("gpushare_extender_watch_age_seconds > 180", "gpushare_extender_watch_age_seconds > 10")
    assert sooner != text

    async def run() -> None:
        async with serving_api(FakeApi()) as api:
            relay = Relay(int(api.url.rpartition(":")[2]))
            server_of_relay = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
            api.url = f"http://127.0.0.1:{server_of_relay.sockets[0].getsockname()[1]}"
            async with scene(tmp_path, api=api, rules=sooner) as (here, server):
                fires = partial(exactly, server)
                await until(lambda: here.it.plugin.status.ready)
                await active(server)
                await fires()
                relay.withhold()
                await fires("GPUShareWatchStale")
                summary = (await server.firing())["GPUShareWatchStale"]["annotations"]["summary"]
                assert " has heard nothing about " in summary
                relay.release()
                await fires()
            server_of_relay.close()

    asyncio.run(run())


def test_a_device_plugin_that_is_given_no_new_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as (here, server), serving_api(Refusing()) as api, going_on(partial(tick, api), 1):
            assert isinstance(api, Refusing)
            fires = partial(exactly, server)
            await until(lambda: here.it.plugin.status.ready)
            await active(server)
            await fires()
            await here.it.stop()
            await fires("GPUShareDevicePluginDown")
            # A process of its own, in its place.
            await api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
            seed, own = tmp_path / "seed", tmp_path / "token"
            seed.write_text(text := api.give_old())
            own.write_text(text)
            root = here.it.kubelet.directory.parent
            (root / "kubeconfig").write_text(kubeconfig(api.url))
            options = ["--seed-token-file", str(seed), "--token-file", str(own), "--metrics-listen", f"127.0.0.1:{here.plugin_port}"]
            process = start_plugin(root, *options)
            try:
                # Each try that fails makes its part of the plugin a degraded one.
                await fires("GPUShareTokenExpires", "GPUShareDevicePluginDegraded")
                summary = (await server.firing())["GPUShareTokenExpires"]["annotations"]["summary"]
                assert summary.startswith("the token of gpushare-device-plugin on 127.0.0.1:")
                assert api.asked == []
                api.refuses = False
                # It asks after 10 s, and later less often.
                await fires(seconds=600)
                assert own.read_text().strip() in api.good - {text}
            finally:
                process.kill()
                process.communicate()

    asyncio.run(run())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole plugin limits pods: as kubelet asks, as it is told to, over the ends of its processes. Which pods: test_limited_pods.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.main import DevicePlugin
from gpushare_runtime.device_plugin.options import PluginSettings
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.local_pods import bound, memory
from unit.fakes.runtime.device_plugin.plugin import NODE, World, admitted, metric, path_of, reported, start, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import container

GIB = 1024
BYTES = 1024**3


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERVAL_SECONDS", "_UNKNOWN_SECONDS"):
        monkeypatch.setattr(pod_limits, name, 0.05)


@asynccontextmanager
async def next_process(it: World, **settings: Any) -> AsyncIterator[None]:
    """The plugin's process ends, what happens in the body happens meanwhile, and another one starts."""
    await it.stop()
    yield
    root = it.kubelet.directory.parent
    known = PluginSettings("gpu1", device_plugins_dir=it.kubelet.directory, state=root / "state", **settings)
    it.plugin = DevicePlugin(known, it.nvml, it.plugin._client, gpu_interval=0.05, processes=it.processes, host=it.host)
    it.task = asyncio.ensure_future(it.plugin.run())


def stored(it: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((it.kubelet.directory.parent / "state" / "held.json").read_bytes())
    return found


def group(it: World, uid: str) -> str:
    return f"{it.host.root}/kubepods/pod{uid}"


def limits(it: World, uid: str) -> dict[int, int]:
    """GPU index → units, of the pod's limits in the driver."""
    index = {gpu.uuid: index for index, gpu in enumerate(it.nvml.gpus)}
    return {index[gpu]: most // BYTES for (gpu, of), most in it.nvml.limits.items() if of == group(it, uid)}


async def test_a_pod_is_limited_to_its_units_before_its_first_container_starts() -> None:
    async with world(16 * GIB, 16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 1, 6)
        uid = await admitted(it, pod)
        assert limits(it, uid) == {}
        await start(it, pod)
        assert limits(it, uid) == {1: 6}
        it.nvml.used[it.inventory.by_index[1].uuid, group(it, uid)] = 3 * BYTES
        await until(lambda: [float(line.rpartition(" ")[2]) for line in metric(it, "pod_memory_used_bytes")] == [3 * BYTES])
        assert metric(it, "memory_limits ") == ["gpushare_device_plugin_memory_limits 1.0"]
        assert metric(it, "pods_unlimited") == ["gpushare_device_plugin_pods_unlimited 0.0"]


async def test_the_node_publishes_whether_it_limits_pods() -> None:
    async with world(16 * GIB, isolation="auto") as it:

        def published() -> bool:
            return '"isolation":"driver"' in it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus", "")

        await until(published)
        it.nvml.gpus.append(facts(1, 16 * GIB))
        it.nvml.unlimited = NvmlError("not this GPU", unable=True)
        await until(lambda: len(it.inventory.gpus) == 2 and not published())
        it.nvml.unlimited = None
        await until(published)


async def test_containers_of_a_pod_share_one_limit_of_all_their_units() -> None:
    async with world(16 * GIB, isolation="driver") as it:
        pod = bound(it.inventory, {0: {0: 3}, 1: {0: 5}}, container("a", mem=3), container("b", mem=5))
        uid = await admitted(it, pod)
        await start(it, pod, 1)
        assert limits(it, uid) == {0: 8}, "before the other one starts, too"


async def test_a_pod_of_before_is_limited_if_the_administrator_wants_it() -> None:
    async with world(16 * GIB, isolation="auto", limit_running_pods=True, registered=False) as it:
        it.nvml.unlimited = NvmlError("the driver has no such call", unable=True)
        await it.registered()
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        await start(it, pod)
        await reported(it, pod)
        assert (limits(it, uid), metric(it, "memory_limits ")) == ({}, ["gpushare_device_plugin_memory_limits 0.0"])
        it.nvml.unlimited = None
        await until(lambda: limits(it, uid) == {0: 6})


async def test_while_kubelet_does_not_ask_a_pod_is_limited_as_soon_as_it_has_a_group() -> None:
    """A kubelet that has lost a record is told not to ask."""
    async with world(16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        await start(it, pod)
        await reported(it, pod)
        it.live.add(uid)
        await it.kubelet.stop()
        (it.kubelet.directory / "kubelet_internal_checkpoint").unlink()
        await until(lambda: it.plugin.node.usage.any_record_lost("aliyun.com/gpu-mem"))
        it.kubelet.registrations.clear()
        it.kubelet.lists.clear()
        await it.kubelet.start()
        await it.registered()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pod_limits, "INTERVAL_SECONDS", 3600.0)
            await it.stays(lambda: limits(it, uid) == {0: 6})
            new = memory(it.inventory, 0, 2)
            other = await admitted(it, new)
            await until(lambda: limits(it, other) == {0: 2})
        assert metric(it, "limit_corrections_total") == ["gpushare_device_plugin_limit_corrections_total 0.0"]


async def test_the_next_process_sets_a_limit_that_is_lost() -> None:
    async with world(16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        await start(it, pod)
        await reported(it, pod)
        await until(lambda: list(stored(it)["limited"]) == [uid])
        async with next_process(it, isolation="auto"):
            it.nvml.limits.clear()
        await until(lambda: limits(it, uid) == {0: 6})
        await it.api.remove(path_of(pod))
        await until(lambda: uid not in stored(it)["limited"])


async def test_the_drivers_limits_are_left_without_pods_only() -> None:
    async with world(16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        await start(it, pod)
        it.live.add(uid)
        await until(lambda: list(stored(it)["limited"]) == [uid])
        async with next_process(it, isolation="none"):
            pass
        with pytest.raises(FatalError, match=rf"limits the memory of 1 pods \(UID {uid}\), this plugin should use none"):
            await asyncio.wait_for(it.task, 60)
        assert limits(it, uid) == {0: 6}
        it.live.clear()
        async with next_process(it, isolation="none"):
            pass
        await until(lambda: '"isolation":"none"' in it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus", ""))

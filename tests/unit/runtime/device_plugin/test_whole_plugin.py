# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The plugin as a whole: bad GPUs, cordons, processes that stay, lost records of kubelet, rejections, later processes, metrics."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import Held
from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.daemon.metrics_server import MetricsServer
from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.device_plugin.node.turns import ORDER_SECONDS
from unit.fakes.runtime.device_plugin.device_manager import StartError
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, GPUS, MEMORY, NODE, RESOURCES, World, health, healthy, path_of, running_pod, world
from unit.fakes.runtime.kube.fake_api import fail, until

UNHEALTHY = "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-gpu1"


def held(it: World) -> Held:
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/held")
    return Held.from_json(text) if text else Held()


def told(it: World) -> list[str]:
    """The reasons of the Events, each once, as they came."""
    events = "/api/v1/namespaces/default/events/"
    return list(dict.fromkeys(value["reason"] for path, value in it.api.objects.items() if path.startswith(events)))


async def test_an_xid_takes_the_gpu_out_of_use_in_one_list_and_it_recovers() -> None:
    async with world(4 * GIB, 4 * GIB) as it:
        await until(lambda: health(it, 1) == "ok")
        it.nvml.report(1, 31)
        it.nvml.gpus[1] = facts(1, 4 * GIB, unfit="reset it")
        it.nvml.report(1, 79)
        await until(lambda: health(it, 1).startswith("XID 79"))
        assert it.plugin.counters.xids == {(it.inventory.gpus[1].uuid, 31): 1, (it.inventory.gpus[1].uuid, 79): 1}
        await until(lambda: it.api.objects.get(UNHEALTHY, {}).get("data") == {"gpus": "1"})
        # A GPU that is well again before its failure has settled is no news.
        await until(lambda: told(it) == ["GPUShareGPUUnusable"])
        it.nvml.gpus[1] = facts(1, 4 * GIB)
        await until(lambda: healthy(it) == 8 and healthy(it, GPUS) == 2)
        assert [sum(v == "Healthy" for v in sent.values()) for sent in it.kubelet.lists[MEMORY]] == [8, 4, 8]
        assert [sum(v == "Healthy" for v in sent.values()) for sent in it.kubelet.lists[GPUS]] == [2, 1, 2]
        await until(lambda: health(it, 1) == "ok" and not it.api.objects[UNHEALTHY]["data"])
        await until(lambda: told(it) == ["GPUShareGPUUnusable", "GPUShareGPUUsable"])


async def test_a_configmap_that_may_not_be_written_holds_up_nothing() -> None:
    async with world(4 * GIB) as it:
        await until(lambda: health(it, 0) == "ok")
        it.api.faults += [fail(403, "Forbidden") for _ in range(3)]
        it.nvml.lost = {0}
        await until(lambda: healthy(it) == 0)
        it.api.faults.clear()
        await until(lambda: health(it, 0) != "ok")


def published_cpu(it: World) -> object:
    """None where the GPUs are published without."""
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus")
    return Inventory.from_json(text).cpu if text else None


async def test_the_cpu_that_the_node_has_for_pods_is_published_as_it_changes() -> None:
    """Of what is no amount of CPU nothing is said, and the GPUs are published all the same."""
    async with world(24 * GIB, registered=False) as it:
        await until(lambda: published_cpu(it) == 0)
        for written, published in (("31850m", 31850), ("16", 16_000), ("many", 0), ("2", 2000), (["1"], 0)):
            annotations = it.api.objects[NODE]["metadata"]["annotations"]
            await it.api.put(NODE, {"metadata": {"name": "gpu1", "annotations": annotations}, "status": {"allocatable": {"cpu": written}}})
            await until(lambda published=published: published_cpu(it) == published)


async def test_a_cordon_on_the_node_takes_a_gpu_from_new_pods() -> None:
    async with world(4 * GIB, 4 * GIB) as it:
        await it.api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {"gpushare/cordon": "1"}}})
        await until(lambda: healthy(it) == 4)
        await until(lambda: [gpu.cordoned for gpu in it.inventory.gpus] == [False, True])
        await until(lambda: '"cordoned":true' in it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus", ""))
        await it.api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
        await until(lambda: healthy(it) == 8)


def asks_before_start(it: World) -> dict[str, bool]:
    return {resource: options.pre_start_required for resource, options in it.kubelet.options.items()}


async def force_delete(it: World, pod: dict[str, object]) -> None:
    it.kubelet.manager.active.discard(pod["metadata"]["uid"])  # type: ignore[index]
    await it.api.remove(path_of(pod))


async def test_surviving_processes_are_published_and_forgotten_when_they_end() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        pod = await running_pod(it, name="zombie")
        await force_delete(it, pod)
        await until(lambda: [(e.pod, e.units, e.why) for e in held(it).entries] == [("default/zombie", 6, "orphaned")])
        next_pod = await it.bind(memory(it.inventory, 1, 4))
        assert (await it.kubelet.manager.admit(next_pod))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        it.live.clear()
        await until(lambda: "gpushare/held" not in it.api.objects[NODE]["metadata"]["annotations"])


async def test_the_next_process_of_the_plugin_still_knows_what_processes_hold() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        pod = await running_pod(it, name="zombie")
        await until(lambda: b"zombie" in (it.kubelet.directory.parent / "state" / "held.json").read_bytes())
        await it.stop()
        await force_delete(it, pod)
        # kubelet writes its record without the pod while nobody looks.
        it.kubelet.manager.purge()
        it.kubelet.manager.write()
        await until(lambda: not any(it.kubelet.manager.healthy.values()))
        it.start()
        await it.registered()
        await until(lambda: [e.pod for e in held(it).entries] == ["default/zombie"])
        assert (await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 1, 4))))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


async def test_a_rejection_is_published_with_its_end() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        await running_pod(it)
        await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 0, 6)))
        late = await it.bind(memory(it.inventory, 1, 3))
        with pytest.raises(Exception, match=r"FAILED_PRECONDITION: aliyun.com/gpu-mem: asked for 3 units of 1 GiB on one GPU"):
            await it.kubelet.manager.admit(late)
        assert it.plugin.counters.rejections == 1
        await until(lambda: [(r.uid, r.units) for r in held(it).rejected] == [(late["metadata"]["uid"], 3)])


async def test_a_start_is_asked_for_and_rejected_on_a_bad_gpu() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        pod = await running_pod(it)
        container = pod["spec"]["containers"][0]  # type: ignore[index]
        assert (await it.kubelet.manager.start(pod, container))["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        it.nvml.lost = {1}
        await until(lambda: not it.inventory.gpus[1].usable)
        with pytest.raises(StartError, match=r"FAILED_PRECONDITION: .* GPU 1 .* is not usable \(the GPU is lost\)"):
            await it.kubelet.manager.start(pod, container)
        assert it.plugin.counters.start_rejections == 1


async def test_after_a_lost_checkpoint_containers_start_again_on_their_gpu() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        pod = await running_pod(it)
        async with it.kubelet_starts_anew() as record:
            record.unlink()
            await until(lambda: it.plugin.node.usage.any_record_lost(MEMORY))
        assert asks_before_start(it) == {MEMORY: False, GPUS: True}
        it.processes.up[pod["metadata"]["uid"]] = set()  # type: ignore[index]
        waiting = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"waiting": {}}}]}
        await it.bind({**pod, "status": waiting})
        await until(lambda: not it.plugin.node.pods.get(pod["metadata"]["uid"]).running)  # type: ignore[index, union-attr]
        assert (await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 1, 4))))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        # Just after an admission its request would have to fail.
        await asyncio.sleep(ORDER_SECONDS)
        again = await it.kubelet.manager.start(pod, pod["spec"]["containers"][0])  # type: ignore[index]
        assert again["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        # Its record is whole again: starts are asked for as before once it restarts, and until then it keeps its plugin.
        await until(lambda: not it.plugin.node.usage.any_record_lost(MEMORY))
        it.kubelet.options.clear()
        await it.kubelet.restart()
        await it.registered()
        assert {options.pre_start_required for options in it.kubelet.options.values()} == {True}


async def test_a_record_that_kubelet_cannot_read_takes_no_unit_away_while_it_admits_what_runs() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        await running_pod(it)
        async with it.kubelet_starts_anew() as record:
            record.write_bytes(record.read_bytes()[:100])
            it.kubelet.manager.given = {}
        await until(lambda: it.plugin.node.usage.any_record_lost(MEMORY))
        assert sorted(resource for resource, _ in it.kubelet.registrations) == sorted(RESOURCES)
        assert {options.pre_start_required for options in it.kubelet.options.values()} == {True}
        # Once that is over, it is told not to ask for what it cannot, and keeps the plugin that it has then.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gpushare_runtime.device_plugin.kubelet.registration.SETTLED_SECONDS", 0.0)
            await until(lambda: asks_before_start(it) == {MEMORY: False, GPUS: True})
            await until(lambda: len(it.kubelet.manager.healthy[MEMORY]) == 16)
        # kubelet has dropped the former one.
        await until(lambda: it.kubelet.reading <= len(RESOURCES))
        assert len(it.kubelet.manager.healthy[MEMORY]) == 16
        assert len(it.kubelet.registrations) == len(RESOURCES) + 1


class HostClock:
    """`time` on a host whose clock is `ahead` seconds ahead. reads: of its monotonic clock."""

    ahead, reads = 0.0, 0

    def time(self) -> float:
        return time.time() + self.ahead

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        self.reads += 1
        return time.monotonic()


async def test_how_long_ago_kubelet_has_started_does_not_depend_on_the_hosts_clock(caplog: pytest.LogCaptureFixture) -> None:
    registration = "gpushare_runtime.device_plugin.kubelet.registration"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{registration}.time", clock := HostClock())
        # Longer than this test can take on a busy machine, and far shorter than the clock is set by.
        patch.setattr(f"{registration}.SETTLED_SECONDS", 600.0)
        async with world(8 * GIB, 8 * GIB) as it:
            await running_pod(it)
            async with it.kubelet_starts_anew() as record:
                record.write_bytes(b"{")
                it.kubelet.manager.given = {}
            await until(lambda: it.plugin.node.usage.any_record_lost(MEMORY))
            # It is set, as by NTP after a boot.
            clock.ahead = 36000.0
            caplog.clear()
            for number in range(5):
                reads = clock.reads
                # What happens in its folder is a reason to decide again.
                (it.kubelet.directory / f"{number}").touch()
                await until(lambda reads=reads: clock.reads > reads)
            assert "registering again" not in caplog.text
            assert asks_before_start(it) == {MEMORY: True, GPUS: True}
            clock.ahead = -36000.0
            patch.setattr(f"{registration}.SETTLED_SECONDS", 0.0)
            await until(lambda: asks_before_start(it) == {MEMORY: False, GPUS: True})


async def test_a_pod_that_nobody_placed_is_told_so_on_itself() -> None:
    async with world(8 * GIB) as it:
        pod = await it.bind(memory(None, 0, 3, name="stray"))
        await it.kubelet.manager.admit(pod)
        await until(lambda: it.annotations(pod).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true")

        def events() -> list[str]:
            return [o["reason"] for path, o in it.api.objects.items() if "/events/" in path and o["involvedObject"]["name"] == "stray"]

        await until(lambda: events() == ["GPUShareUnmanaged"])


async def test_another_unit_than_that_of_running_pods_ends_it_after_a_boot_as_well_when_they_have_no_process_yet() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        pod = await running_pod(it)
        await it.stop()
        it.live.clear()
        it.start(unit=UNITS["64MiB"])
        with pytest.raises(FatalError, match=r"with memory in units of GiB .* or start with --memory-unit GiB"):
            await asyncio.wait_for(it.task, 5)
        await it.api.put(path_of(pod), {**it.api.objects[path_of(pod)], "status": {"phase": "Failed"}})
        it.start(unit=UNITS["64MiB"])
        await until(lambda: it.plugin.node.devices.inventory)


async def test_another_gpu_in_the_place_of_a_running_pods_gpu_is_not_a_changed_unit() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        await running_pod(it)
        await until(lambda: b'"p' in (it.kubelet.directory.parent / "state" / "held.json").read_bytes())
        await it.stop()
        it.nvml.gpus[1] = facts(1, 16 * GIB, uuid="GPU-99999999-0000-0000-0000-000000000000", model="Tesla V100")
        await until(lambda: not any(it.kubelet.manager.healthy.values()))
        it.start()
        await it.registered()
        assert [(gpu.uuid[:12], gpu.units) for gpu in it.inventory.gpus] == [("GPU-00000000", 8), ("GPU-99999999", 16)]
        assert healthy(it) == 24 + 6, "kube-scheduler counts the pod's six units, which are of no GPU any more"


async def test_with_a_gpu_lost_beside_a_running_pod_the_next_process_starts_and_publishes_it() -> None:
    async with world(8 * GIB, 16 * GIB) as it:
        await running_pod(it)
        before = it.inventory
        await until(lambda: b'"p' in (it.kubelet.directory.parent / "state" / "held.json").read_bytes())
        await it.stop()
        it.nvml.lost = {1}
        await until(lambda: not any(it.kubelet.manager.healthy.values()))
        it.start()
        await it.registered()
        assert [(gpu.uuid, gpu.usable) for gpu in it.inventory.gpus] == [(before.gpus[0].uuid, True), (before.gpus[1].uuid, False)]
        await until(lambda: it.api.objects[NODE]["metadata"]["annotations"]["gpushare/gpus"] == it.inventory.to_json())


async def scraped(port: int, *headers: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join(["GET /metrics HTTP/1.1", "Host: x", *headers, "", ""]).encode())
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return text


async def test_metrics_are_served_where_they_were_asked_for() -> None:
    async with world(8 * GIB, 8 * GIB) as it:
        await running_pod(it)
        uuid = it.inventory.gpus[1].uuid
        token = it.kubelet.directory.parent / "token"
        token.write_text("secret\n")
        server = MetricsServer(("127.0.0.1", 0), token, it.plugin.metrics_text)
        serving = asyncio.ensure_future(server.run())
        try:
            await until(lambda: server.port)
            assert (await scraped(server.port)).startswith("HTTP/1.1 401 ")
            text = await scraped(server.port, "Authorization: Bearer secret")
            assert text.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
            assert f'gpushare_device_plugin_gpu_units_allocated{{gpu="1",uuid="{uuid}"}} 6.0\n' in text
            assert "gpushare_device_plugin_allocations_total 1.0\n" in text
            assert 'gpushare_device_plugin_rpc_duration_seconds_count{method="Allocate"} 1.0\n' in text
            os.unlink(token)
            assert (await scraped(server.port, "Authorization: Bearer secret")).startswith("HTTP/1.1 503 ")
        finally:
            serving.cancel()

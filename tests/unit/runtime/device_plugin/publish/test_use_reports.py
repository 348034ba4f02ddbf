# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What pods use reaches the node's annotation, at most once a minute and only where it has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare_runtime.core.load import Key, Load
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.gpu.pod_memory import MemoryWatch
from gpushare_runtime.device_plugin.gpu.use import Peak, Use
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher
from gpushare_runtime.device_plugin.publish.use_reports import UseReports
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import NODE, World, admitted, metric, uses, world
from unit.fakes.runtime.kube.fake_api import until

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)


def annotation(it: World) -> str | None:
    found: str | None = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/use")
    return found


class Clocks:
    wall = 1_000_000.0
    monotonic = 0.0


async def publisher(it: World) -> NodePublisher:
    """The plugin's own knows the node; this one is told."""
    made = NodePublisher(it.plugin.node, it.plugin._client, "gpu1")
    made._published = {}
    return made


async def test_once_a_minute_and_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(16 * 1024, publish_use="none") as it:
        uid = await admitted(it, memory(it.inventory, 0, 4))
        await uses(it, uid, 2000)
        watch, clocks = it.plugin._memory, Clocks()
        await until(lambda: watch.use.by_pod)
        own, writes = await publisher(it), 0
        write = own.write

        async def counted(annotations: dict[str, str | None]) -> None:
            nonlocal writes
            writes += 1
            await write(annotations)

        monkeypatch.setattr(own, "write", counted)
        reports = UseReports(it.plugin.node, own, watch, enabled=True, now=lambda: clocks.wall, clock=lambda: clocks.monotonic)
        await reports.step()
        written = UseReport.from_json(annotation(it) or "")
        assert (written.at, written.gpus[0].mib, written.pods[uid, 0].mib) == (1_000_000, 2000, 2000)

        async def step(seconds: float) -> bool:
            """Whether it has written."""
            before = annotation(it)
            clocks.monotonic += seconds
            await reports.step()
            return annotation(it) != before

        await uses(it, uid, 3000)
        await until(lambda: watch.use.by_gpu[it.inventory.gpus[0].uuid] == 3000 * 1024 * 1024)
        assert not await step(59), "a minute has not passed"
        assert await step(1)
        assert not await step(3600), "nothing has changed"
        assert writes == 2


async def test_a_pod_is_idle_after_ten_minutes_and_its_load_is_that_of_the_last_one() -> None:
    async with world(16 * 1024, publish_use="none") as it:
        uid, uuid = await admitted(it, memory(it.inventory, 0, 4)), it.inventory.gpus[0].uuid
        watch = it.plugin._memory
        await until(lambda: watch.idle)
        since = watch.idle[uid, uuid]
        reports = UseReports(it.plugin.node, await publisher(it), watch, enabled=True, now=lambda: since + 599)
        assert reports._report().pods == {(uid, 0): PodUse(0, 0, None, 0, reports._report().pods[uid, 0].seconds)}
        reports = UseReports(it.plugin.node, await publisher(it), watch, enabled=True, now=lambda: since + 600)
        found = reports._report()
        assert (found.pods, found.gpus) == ({(uid, 0): PodUse(0, 0, int(since), 0, found.pods[uid, 0].seconds)}, {0: GpuUse(0, 0)})
        await uses(it, uid, 100)
        it.nvml.busy[uuid] = {7: Load(100)}
        await until(lambda: not watch.idle)
        assert reports._report().pods[uid, 0].idle is None


async def test_off_removes_what_is_there_and_writes_nothing() -> None:
    async with world(16 * 1024, publish_use="none") as it:
        await until(lambda: it.plugin._memory.use.by_gpu)
        own = await publisher(it)
        own._published = {"gpushare/use": "{}"}
        off = UseReports(it.plugin.node, own, it.plugin._memory, enabled=False)
        await off.step()
        assert own.published == {}
        before = len(it.api.requests)
        await off.step()
        assert len(it.api.requests) == before
        # What nobody can read is replaced.
        own._published = {"gpushare/use": "{"}
        await UseReports(it.plugin.node, own, it.plugin._memory, enabled=True).step()
        assert UseReport.from_json(annotation(it) or "").gpus == {0: GpuUse(0, 0)}


async def test_the_most_that_a_pod_has_used_stays_and_outlives_the_plugin() -> None:
    async with world(16 * 1024, publish_use="none") as it:
        uid = await admitted(it, memory(it.inventory, 0, 4))
        watch, own, key = it.plugin._memory, await publisher(it), (uid, it.inventory.gpus[0].uuid)
        for mib in (3000, 100):
            await uses(it, uid, mib)
            await until(lambda mib=mib: watch.use.by_pod.get(key) == mib * 1024 * 1024)  # type: ignore[misc]
        await UseReports(it.plugin.node, own, watch, enabled=True, now=lambda: 5000).step()
        first = UseReport.from_json(annotation(it) or "")
        assert (first.pods[uid, 0].mib, first.pods[uid, 0].peak) == (100, 3072)
        # Another process has seen nothing of it yet; a pod that is gone does not come back.
        gone = {("another", 0): PodUse(1, 1, None, 1), (uid, 0): replace(first.pods[uid, 0], seconds=7000)}
        own._published = {"gpushare/use": UseReport(5000, {}, gone).to_json()}
        fresh = Fresh(watch.use)
        again = UseReports(it.plugin.node, own, fresh, enabled=True, now=lambda: 9000, clock=lambda: fresh.clock)
        await again.step()
        second = UseReport.from_json(annotation(it) or "").pods
        assert {name: use.peak for name, use in second.items()} == {(uid, 0): 3072}
        assert second[uid, 0].seconds == 7000, "the time in which no plugin ran does not count"
        fresh.peaks, fresh.clock = {key: Peak(5000 * MIB, 60.9)}, 60.0
        await again.step()
        assert UseReport.from_json(annotation(it) or "").pods[uid, 0] == PodUse(100, None, None, 5120, 7060)


class Fresh:
    """The measured use of a plugin that has just started."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self.loads: dict[Key, Load] = {}
        self.idle: dict[Key, float] = {}
        self.peaks: dict[Key, Peak] = {}
        self.clock = 0.0


async def test_a_gpu_that_is_slow_at_the_start_takes_no_peak_with_it() -> None:
    """Its pods are in the annotation still, and once it answers they have what they had."""
    async with world(16 * 1024, 16 * 1024, publish_use="none") as it:
        uid, slow = await admitted(it, memory(it.inventory, 0, 4)), await admitted(it, memory(it.inventory, 1, 4))
        new = await admitted(it, memory(it.inventory, 1, 4))
        uuids, own = [gpu.uuid for gpu in it.inventory.gpus], await publisher(it)
        before = {(uid, 0): PodUse(1, 1, None, 1024, 50), (slow, 1): PodUse(1, 1, None, 4096, 50)}
        own._published = {"gpushare/use": UseReport(5000, {0: GpuUse(1), 1: GpuUse(1)}, before).to_json()}
        fresh = Fresh(Use({(uid, uuids[0]): MIB}, {uuids[0]: MIB}))
        reports = UseReports(it.plugin.node, own, fresh, enabled=True, now=lambda: 9000, clock=lambda: fresh.clock)
        await reports.step()
        found = UseReport.from_json(annotation(it) or "")
        assert found.pods == {(uid, 0): PodUse(1, None, None, 1024, 50), (slow, 1): PodUse(None, None, None, 4096, 50)}
        assert found.gpus == {0: GpuUse(1)}
        # The annotation is lost on the way: what was loaded counts.
        own._published, fresh.clock = {}, 60.0
        fresh.use = Use({(slow, uuids[1]): MIB}, dict.fromkeys(uuids, MIB))
        await reports.step()
        found = UseReport.from_json(annotation(it) or "")
        assert {name: use.peak for name, use in found.pods.items()} == {(uid, 0): 1024, (slow, 1): 4096, (new, 1): 0}


async def test_what_the_driver_does_not_report_is_unknown_and_no_zero() -> None:
    async with world(16 * 1024, publish_use="none") as it:
        uid, uuid = await admitted(it, memory(it.inventory, 0, 4)), it.inventory.gpus[0].uuid
        watch, key = it.plugin._memory, (uid, uuid)
        await until(lambda: watch.peaks.get(key))
        reports = UseReports(it.plugin.node, await publisher(it), watch, enabled=True)
        assert (reports._report().pods[uid, 0].mib, reports._report().pods[uid, 0].peak) == (0, 0)
        assert metric(it, "pod_memory_used_bytes")[0].endswith(" 0.0"), "it has no process"
        it.host.processes[7] = 7, uid
        it.nvml.using[uuid] = [(7, None)]
        await until(lambda: watch.peaks[key].most is None)
        assert (reports._report().pods[uid, 0].mib, reports._report().pods[uid, 0].peak) == (None, None)
        assert metric(it, "pod_memory_used_bytes") == []
        # Nobody knows what it was, also once that process is gone.
        it.nvml.using[uuid] = []
        await until(lambda: watch.use.bytes_of(key) == 0)
        assert (reports._report().pods[uid, 0].mib, reports._report().pods[uid, 0].peak) == (0, None)


async def test_only_time_between_two_readings_of_a_gpu_that_answered_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(16 * 1024, publish_use="none") as it:
        uid, uuid = await admitted(it, memory(it.inventory, 0, 4)), it.inventory.gpus[0].uuid
        watch = MemoryWatch(it.plugin.node, it.nvml, it.host, None)
        held, known, unknown = {(uid, uuid)}, Use({}, {uuid: 0}), Use()
        for now, use in ((10.0, known), (12.0, known), (14.0, unknown), (90.0, known), (92.5, known)):
            watch.use = use
            watch._note_peaks(held, now)
        assert watch.peaks == {(uid, uuid): Peak(0, 4.5)}
        watch._note_peaks(set(), 95.0)
        assert watch.peaks == {}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who keeps a GPU busy, and who is at rest: samples are those of the right pod, and nobody is called idle in doubt."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gpushare_runtime.core.load import NOTHING, Load
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError, Sensors
from gpushare_runtime.device_plugin.gpu.use import MOST_PROCESSES, Pass, Use, UseReader, together
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.local_pods import bound, memory
from unit.fakes.runtime.device_plugin.plugin import FakeHost, admitted, metric, reported, uses, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import container, gpu

GPU = "GPU-00000000"
A, B = ("a", GPU), ("b", GPU)


class Machine:
    """GPU 0 with process 7 of pod a, 8 of pod b and 9 of no pod."""

    def __init__(self) -> None:
        self.driver, self.host = FakeNvml(), FakeHost(Path())
        self.host.processes = {7: (70, "a"), 8: (80, "b"), 9: (90, "")}
        self.driver.using = {GPU: [(7, 5), (8, 6), (9, 1)]}
        self.reader = UseReader(self.driver, self.host)

    def read(self, *, sensors: bool = False) -> Use:
        return self.reader.read(gpu(0, 16), sensors=sensors)


def test_samples_count_from_the_second_reading_of_a_process_on() -> None:
    """What it is said to have done before it was known may have been another's."""
    it = Machine()
    it.driver.busy[GPU] = {7: Load(60, 30, 5, 1)}
    first = it.read()
    assert (first.load_of(A), first.load_of(B), first.by_pod) == (None, None, {A: 5, B: 6})
    second = it.read()
    assert (second.load_of(A), second.load_of(B)) == (Load(60, 30, 5, 1), NOTHING)
    it.host.processes[7] = (71, "b")
    third = it.read()
    assert (third.load_of(A), third.load_of(B)) == (None, None), "another process has the number now"


def test_two_programs_of_a_pod_are_one_and_never_more_than_all_of_the_gpu() -> None:
    it = Machine()
    it.host.processes[8] = (80, "a")
    it.driver.busy[GPU] = {7: Load(60, 30), 8: Load(70, 10)}
    it.read()
    assert it.read().load_of(A) == Load(100, 40)


def test_where_something_outside_of_pods_is_busy_nobody_is_called_idle() -> None:
    """It may be an MPS server, whose clients NVML does not tell apart."""
    it = Machine()
    it.driver.busy[GPU] = {7: Load(20), 9: Load(50)}
    it.read()
    found = it.read()
    assert (found.load_of(A), found.load_of(B), found.measured) == (Load(20), None, set())


def test_a_gpu_that_is_busy_with_nobody_calls_nobody_idle() -> None:
    it = Machine()
    it.driver.felt[GPU] = Sensors(GPU, sm=90)
    it.driver.busy[GPU] = {7: NOTHING}
    it.read(sensors=True)
    assert it.read().load_of(A) is None
    it.driver.felt[GPU] = Sensors(GPU, sm=1)
    it.read(sensors=True)
    assert it.read().load_of(A) == NOTHING


def test_a_driver_that_does_not_count_by_process_is_asked_once_and_memory_is_read_all_the_same() -> None:
    it = Machine()
    it.driver.busy[GPU] = None
    found = [it.read(sensors=True), it.read()]
    assert [(use.load_of(A), use.by_pod[A]) for use in found] == [(None, 5)] * 2
    it.driver.busy[GPU] = {7: Load(1)}
    assert it.read(sensors=True).load_of(A) is None


def test_of_too_many_processes_the_largest_count() -> None:
    it = Machine()
    it.driver.using[GPU] = [(pid, pid) for pid in range(1, MOST_PROCESSES + 3)]
    it.host.processes = {pid: (pid, str(pid)) for pid in range(1, MOST_PROCESSES + 3)}
    found = it.read()
    assert (len(found.by_pod), ("1", GPU) in found.by_pod, ("3", GPU) in found.by_pod) == (MOST_PROCESSES, False, True)


def test_instances_of_a_gpu_have_its_sensors_once() -> None:
    driver = FakeNvml()
    first, second = gpu(10_010, 16, uuid="MIG-a"), gpu(10_020, 16, uuid="MIG-b")
    reading = Pass(UseReader(driver, FakeHost(Path())), [first, second], sensors=True)
    reading.run()
    assert {index: found.celsius for index, found in together(reading.leave().values()).sensors.items()} == {0: 34}


class Slow(FakeNvml):
    """A GPU that answers when it is told to."""

    def __init__(self, *mib: int) -> None:
        super().__init__(*mib)
        self.slow = ""
        self.answer = threading.Event()

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        if uuid == self.slow:
            self.answer.wait(60)
            raise NvmlError("it was lost meanwhile")
        return super().processes(uuid)


async def test_of_64_gpus_one_that_does_not_answer_is_left_out_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(pod_memory, "SLOW_SECONDS", 0.2)
    async with world(*[16 * 1024] * 64) as it:
        slow = Slow(*[16 * 1024] * 64)
        slow.slow = it.inventory.gpus[40].uuid
        it.plugin._memory._reader._nvml = slow

        def read() -> set[str]:
            return set(it.plugin._memory.use.by_gpu)

        await until(lambda: len(read()) == 63, seconds=30)
        assert slow.slow not in read()
        # What kubelet asks for does not wait.
        await asyncio.wait_for(admitted(it, memory(it.inventory, 41, 4)), 20)
        slow.slow = ""
        slow.answer.set()
        await until(lambda: len(read()) == 64, seconds=30)


async def test_the_page_says_how_busy_a_pod_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    async with world(16 * 1024) as it:
        uid, uuid = await admitted(it, memory(it.inventory, 0, 4)), it.inventory.gpus[0].uuid
        await until(lambda: metric(it, "pod_sm_utilization_ratio"))
        assert metric(it, "pod_sm_utilization_ratio")[0].endswith(" 0.0"), "a pod without a process uses nothing"
        assert metric(it, "pod_idle_since_timestamp_seconds")
        await uses(it, uid, 4096)
        it.nvml.busy[uuid] = {7: Load(50, 25, 0, 0)}
        await until(lambda: not metric(it, "pod_idle_since_timestamp_seconds"))
        await until(lambda: float(metric(it, "pod_sm_utilization_ratio")[0].rpartition(" ")[2]) > 0.01)
        assert metric(it, "gpu_temperature_celsius")[0].endswith(" 34.0")


def test_the_containers_of_a_pod_have_a_part_of_it_each() -> None:
    it = Machine()
    it.host.processes |= {8: (80, "a"), 10: (100, "a")}
    it.driver.using[GPU].append((10, 7))
    it.host.containers = {7: "x", 8: "y"}
    it.driver.busy[GPU] = {7: Load(60), 8: Load(30), 10: Load(5)}
    it.read()
    found = it.read()
    assert (found.by_pod, found.by_container) == ({A: 18}, {(*A, "x"): 5, (*A, "y"): 6})
    assert (found.load_of(A), found.container_loads) == (Load(95), {(*A, "x"): Load(60), (*A, "y"): Load(30)})
    assert found.loose == {A}
    # Its container is read once; that of another process with the same number anew.
    it.host.containers = {7: "z", 8: "z", 10: "z"}
    assert it.read().by_container == found.by_container
    it.host.processes[7] = (71, "a")
    it.read()
    assert it.read().by_container == {(*A, "z"): 5, (*A, "y"): 6}


def test_a_process_that_ends_while_its_container_is_read_has_none() -> None:
    it = Machine()

    class Late(FakeHost):
        def container_of(self, pid: int) -> str:
            self.processes[pid] = (99, "b")
            return "x"

    late = Late(Path())
    late.processes = it.host.processes
    found = UseReader(it.driver, late).read(gpu(0, 16), sensors=False)
    assert found.by_container == {}


async def test_the_page_has_the_containers_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    async with world(16 * 1024) as it:
        pod = bound(it.inventory, {0: {0: 4}, 1: {0: 2}}, container("web", mem=4), container("side", mem=2))
        uid, uuid = await admitted(it, pod), it.inventory.gpus[0].uuid
        await until(lambda: len(metric(it, "container_sm_utilization_ratio")) == 2)
        assert not metric(it, "container_memory_used_bytes")
        it.host.containers[7] = "web"
        await uses(it, uid, 4096)
        it.nvml.busy[uuid] = {7: Load(50)}
        await until(lambda: metric(it, "pod_memory_used_bytes"))
        assert not metric(it, "container_memory_used_bytes"), "the API server does not know the container yet"
        await reported(it, pod)
        await until(lambda: metric(it, "container_memory_used_bytes"))
        [line] = metric(it, "container_memory_used_bytes")
        assert 'container="web"' in line
        assert float(line.rpartition(" ")[2]) == 4096 * 1024 * 1024
        await until(lambda: any(float(line.rpartition(" ")[2]) > 0 for line in metric(it, "container_sm_utilization_ratio")))
        [busy] = [line for line in metric(it, "container_sm_utilization_ratio") if float(line.rpartition(" ")[2]) > 0]
        assert 'container="web"' in busy


async def test_a_gpu_that_no_pod_has_is_read_as_often_as_its_sensors_are_and_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    read: dict[str, int] = {}

    class Counting(FakeNvml):
        def memory_used(self, uuid: str) -> int:
            read[uuid] = read.get(uuid, 0) + 1
            return super().memory_used(uuid)

    async with world(16 * 1024, 16 * 1024) as it:
        first, second = (gpu.uuid for gpu in it.inventory.gpus)
        await admitted(it, memory(it.inventory, 0, 4))
        it.plugin._memory._reader._nvml = Counting(16 * 1024, 16 * 1024)
        await until(lambda: read.get(second, 0) >= 1)
        read.clear()
        await until(lambda: read.get(second, 0) >= 3)
        # Counted from right after one of its readings: three times five.
        assert read[first] in (14, 15, 16)
        assert set(it.plugin._memory.use.by_gpu) == {first, second}

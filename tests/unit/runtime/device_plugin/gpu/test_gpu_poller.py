# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs are read again and again: what the status says of them, and when the process ends. The time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from gpushare_runtime.core.quantity import GIB, UNITS, Unit
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.device_plugin.gpu import discovery
from gpushare_runtime.device_plugin.gpu.discovery import GpuPoller, GpuReader, NvmlError
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml, facts
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.pods import inventory
from unit.golden import Golden

pytestmark = pytest.mark.usefixtures("virtual_time")

T = TypeVar("T")
EMPTY = replace(facts(1, 81920), instances=())
MAKE_SOME = "in MIG mode without instances: make some with `nvidia-smi mig -cgi PROFILE -C`"


class Polled:
    """A poller that reads every 5 seconds. delay: seconds that a reading takes; asked: how often it asked whether the unit is usable."""

    def __init__(self, nvml: FakeNvml, unit: Unit = GIB, unusable: Callable[[], str | None] = lambda: "", ending_after: float = 0) -> None:
        self.nvml, self.delay, self.asked = nvml, 0.0, 0
        self.state = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
        self.status = Status(["gpus"])
        reader = GpuReader(nvml, unit, GpuHealth(checks=1))

        def ask() -> str | None:
            self.asked += 1
            return unusable()

        self.poller = GpuPoller(reader, self.state, self.status, 5.0, ask, ending_after)

    async def read(self, function: Callable[[], T]) -> T:
        await asyncio.sleep(self.delay)
        return function()

    @property
    def told(self) -> tuple[bool, str]:
        return self.status._parts["gpus"]

    @property
    def health(self) -> list[str] | None:
        found = self.state.devices.inventory
        return None if found is None else [gpu.health for gpu in found.gpus]


@asynccontextmanager
async def running(polled: Polled) -> AsyncIterator[asyncio.Task[None]]:
    """It has read the GPUs 1 second ago."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(discovery, "in_thread", polled.read)
        task: asyncio.Task[None] = asyncio.ensure_future(polled.poller.run())
        await asyncio.sleep(1)
        yield task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("gpus", "fine", "words"),
    [
        ([facts(0, 16384), facts(1, 8192)], True, "2 with 24 units of 1 GiB"),
        ([facts(0, 16384 + 1000), facts(1, 8192 + 300)], True, "2 with 24 units of 1 GiB; 1300 MiB fill no unit of their GPU"),
        ([facts(0, 16384), EMPTY], True, f"1 with 16 units of 1 GiB; GPU 1 {MAKE_SOME}"),
        ([replace(EMPTY, uuid="other"), EMPTY], False, f"GPU 0, GPU 1 {MAKE_SOME}"),
        ([], False, "NVML lists no GPU: check with `lspci -k -d 10de:` that GPUs exist and are bound to the nvidia driver"),
        ([facts(0, 8192), facts(1, 8192, uuid="GPU-b", failed="remapping has failed")], False, "GPU 1 (GPU-b): remapping has failed"),
    ],
)
async def test_the_status_counts_gpus_and_names_those_that_need_a_hand(gpus: list[discovery.GpuFacts], fine: bool, words: str) -> None:
    (nvml := FakeNvml()).gpus = gpus
    async with running(polled := Polled(nvml)):
        assert polled.told == (fine, words)


async def test_gpus_are_read_at_each_interval_and_at_once_on_request() -> None:
    nvml = FakeNvml(8192)
    nvml.failure = NvmlError("the driver is not loaded")
    async with running(polled := Polled(nvml)) as task:
        assert (polled.told, polled.health) == ((False, "the driver is not loaded"), None)
        nvml.failure = None
        await asyncio.sleep(3)
        assert polled.health is None
        await asyncio.sleep(2)
        assert (polled.told[0], polled.health, polled.state.devices.driver) == (True, ["ok"], "535.261.03")
        nvml.failure = NvmlError("the driver is gone")
        polled.poller.read_now()
        await asyncio.sleep(1)
        assert (polled.told, polled.health) == ((False, "the driver is gone"), ["the driver is gone"])
        assert not task.done()


async def test_while_nvml_hangs_no_gpu_is_usable() -> None:
    for known in (False, True):
        polled = Polled(FakeNvml(8192))
        polled.delay = 0 if known else 12
        async with running(polled):
            polled.delay = 12
            await asyncio.sleep(15 if known else 9.5)
            ok, why = polled.told
            assert (ok, why[:48], polled.health) == (False, "NVML has not answered for 10 s: read `dmesg` for", [why] if known else None)
            await asyncio.sleep(2)
            assert (polled.told[0], polled.health) == (True, ["ok"]), "the same reading has come to its end"


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("known", [False, True])
async def test_a_process_that_only_a_new_one_can_follow_ends_after_it_has_reported_why(known: bool, seconds: float, golden: Golden) -> None:
    old, nvml = NvmlError("the library was replaced", reload=True), FakeNvml(8192)
    nvml.failure = None if known else old
    async with running(polled := Polled(nvml, ending_after=seconds)) as task:
        nvml.failure = old
        polled.poller.read_now()
        await asyncio.sleep(seconds - 2 if seconds else 1)
        if seconds:
            assert (task.done(), polled.told) == (False, (False, "the library was replaced"))
            assert polled.health == (["the library was replaced"] if known else None)
            await asyncio.sleep(2)
        with golden.raised(FatalError) as ended:
            await task
        assert ended.value.restart


async def test_a_unit_that_pods_of_another_one_forbid_is_not_told_to_kubelet(golden: Golden) -> None:
    answers: list[str | None] = [None, ""]
    async with running(polled := Polled(FakeNvml(8192), unusable=lambda: answers.pop(0))):
        assert (polled.told[0], polled.told[1][:26], polled.health) == (False, "waiting for the API server", None)
        await asyncio.sleep(5)
        assert (polled.told[0], polled.health) == (True, ["ok"])
        await asyncio.sleep(20)
        assert polled.asked == 2, "from then on pods get memory in this unit"
    async with running(Polled(FakeNvml(8192), unusable=lambda: "pods of MiB are left")) as task:
        with golden.raised(FatalError) as ended:
            await task
        assert ended.value.restart


@pytest.mark.parametrize(("gpus", "cure"), [(8, "use --memory-unit 64MiB"), (300, "there are too many GPUs for one node")])
async def test_a_list_that_is_too_long_for_kubelet_ends_the_first_reading(gpus: int, cure: str, golden: Golden) -> None:
    async with running(Polled(FakeNvml(*[15360 if gpus == 8 else 294912] * gpus), UNITS["MiB"])) as task:
        with golden.raised(FatalError) as ended:
            await task
        assert not ended.value.restart


async def test_gpus_that_make_the_list_too_long_later_are_omitted_by_name() -> None:
    nvml = FakeNvml(15360)
    async with running(polled := Polled(nvml, UNITS["MiB"])) as task:
        for more, omitted in (([2], "GPU 1 (GPU-2) is omitted: "), ([2, 3], "GPU 1 (GPU-2), GPU 2 (GPU-3) are omitted: ")):
            nvml.gpus = [nvml.gpus[0], *(facts(number, 1 << 20, uuid=f"GPU-{number}") for number in more)]
            await asyncio.sleep(5)
            assert (polled.told[0], polled.health) == (False, ["ok"])
            assert polled.told[1].startswith(omitted)
        nvml.failure = NvmlError("gone")
        await asyncio.sleep(5)
        assert (polled.told, polled.health, task.done()) == ((False, "gone"), ["gone"], False)


async def test_a_list_that_just_fits_is_told_to_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "KUBELET_MESSAGE_BYTES", discovery.list_bytes([(facts(0, 0).uuid, 8)]))
    async with running(polled := Polled(FakeNvml(8192))):
        assert polled.health == ["ok"]


async def test_a_gpu_that_nvml_cannot_describe_is_said_to_be_omitted() -> None:
    nvml, why = FakeNvml(16384, 24576), "its memory is the host's; gpushare cannot share it (NVML: Not Supported)"
    nvml.gpus[0] = NvmlError(why, unable=True, code=3)
    async with running(polled := Polled(nvml)):
        assert (polled.told, polled.health) == ((False, f"GPU 0 is omitted: {why}"), ["ok"])
        nvml.gpus[1] = replace(facts(1, 24576), failed="it has failed")
        await asyncio.sleep(5)
        assert polled.told == (False, f"GPU 1 ({facts(1, 0).uuid}): it has failed; GPU 0 is omitted: {why}")
    nvml.gpus = nvml.gpus[:1]
    async with running(polled := Polled(nvml)):
        assert (polled.told, polled.health) == ((False, f"GPU 0 is omitted: {why}"), [])
        nvml.gpus[0] = facts(0, 16384)
        await asyncio.sleep(5)
        assert (polled.told[0], polled.health) == (True, ["ok"])


async def test_pods_with_gpus_that_are_not_in_the_node_any_more_are_in_the_status() -> None:
    nvml = FakeNvml(8192)
    old = nvml.gpus[0]
    async with running(polled := Polled(nvml)):
        assert "GPUs of pods" not in polled.status._parts
        for name in "abcd":
            polled.state.pods.event("ADDED", parse_local_pod(memory(inventory(8), 0, 2, name=name, uid=name)))
        ids = {name: frozenset(f"{facts(0, 0).uuid}-_-{2 * n + slot}" for slot in range(2)) for n, name in enumerate("abcd")}
        polled.state.recorder.set_checkpoint(tuple(CheckpointEntry(name, "main", "aliyun.com/gpu-mem", of) for name, of in ids.items()))
        nvml.gpus[0] = facts(0, 8192, uuid="GPU-new")
        await asyncio.sleep(5)
        gone = f"has GPU {facts(0, 0).uuid}, which is not in this node any more"
        assert polled.status._parts["GPUs of pods"] == (
            False,
            f"pod default/a {gone}, pod default/b {gone}, pod default/c {gone}, and 1 more pods: delete it, and its owner starts it on "
            "another GPU",
        )
        # It may be the one that does not answer, since its number is another one than before.
        nvml.gpus = [facts(0, 8192, uuid="GPU-new"), NvmlError("the GPU is lost")]
        await asyncio.sleep(5)
        assert (polled.state.devices.gone(), polled.status._parts["GPUs of pods"][0]) == ({}, True)
        nvml.gpus[1] = NvmlError("Not Supported", unable=True)
        await asyncio.sleep(5)
        assert len(polled.state.devices.gone()) == 4
        nvml.gpus = [old]
        await asyncio.sleep(5)
        assert polled.status._parts["GPUs of pods"] == (True, "all are in this node")

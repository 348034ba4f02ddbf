# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who is told that a GPU became unusable or usable again, and that nobody is told twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.device_plugin.gpu.health import describe
from gpushare_runtime.device_plugin.node.devices import MPS_UNKNOWN
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState, Told
from gpushare_runtime.device_plugin.publish.gpu_events import GpuEvents
from gpushare_runtime.kube.events import ObjectReference
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import memory, whole
from unit.fakes.runtime.pods import inventory

NODE = inventory(16, 24, 8)
MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
T4 = "(Tesla T4, GPU-0000000{})"


def with_health(**of: str) -> Inventory:
    """gpu1="why": the node with that health of GPU 1."""
    return replace(NODE, gpus=tuple(replace(gpu, health=of.get(f"gpu{gpu.index}", "ok")) for gpu in NODE.gpus))


class World:
    """A node with a pod on GPU 1, one that has GPU 2 whole, and one that is over. before: what the process before has told."""

    def __init__(self, before: Told) -> None:
        clock = asyncio.get_running_loop().time
        self.told: list[tuple[str, str, str, str]] = []
        self.node = NodeState(PodTable(), clock, clock, FakeProcesses())
        self.node.told = before
        self.events = GpuEvents(self.node, self, "gpu1")  # type: ignore[arg-type]
        for raw in (
            memory(NODE, 1, 4, name="a", uid="a"),
            whole(NODE, 2, name="w", uid="w"),
            memory(NODE, 1, 4, name="done", uid="done", phase="Succeeded"),
        ):
            self.node.pods.event("ADDED", parse_local_pod(raw))
        units = frozenset(f"GPU-00000001-_-{slot}" for slot in range(4))
        self.node.recorder.set_checkpoint(
            (CheckpointEntry("a", "main", MEMORY, units), CheckpointEntry("w", "main", GPUS, frozenset({"GPU-00000002"})))
        )

    def emit(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.told.append((f"{about.kind} {about.name}", kind, reason, message))

    async def set(self, **of: str) -> list[tuple[str, str, str, str]]:
        """What is told when the GPUs have this health."""
        self.told = []
        self.node.devices.set_inventory(with_health(**of))
        await asyncio.sleep(5)
        return self.told


@pytest.fixture
@asynccontextmanager
async def world(virtual_time: None, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Its parameter: what the process before has told, if anything."""
    made = World(getattr(request, "param", Told()))
    task = asyncio.create_task(made.events.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_bad_gpu_is_reported_on_its_node_and_its_pods_and_so_is_its_return_on_the_node(world: World) -> None:
    assert await world.set() == []
    why = describe(79)
    node, pod = await world.set(gpu1=why)
    assert node == (
        "Node gpu1",
        "Warning",
        "GPUShareGPUUnusable",
        f"GPU 1 {T4.format(1)}: {why}. New pods go to other GPUs. Pods there: default/a",
    )
    assert pod == (
        "Pod a",
        "Warning",
        "GPUShareGPUUnusable",
        f"GPU 1 {T4.format(1)} of node gpu1: {why}. Delete the pod if it does not work: its owner starts it on another GPU",
    )
    # More about the same failure is for the node only.
    assert [about for about, *_ in await world.set(gpu1="the GPU is lost")] == ["Node gpu1"]
    assert await world.set() == [
        ("Node gpu1", "Normal", "GPUShareGPUUsable", f"GPU 1 {T4.format(1)} passed the checks: new pods may use it again")
    ]


async def test_one_failure_of_several_gpus_is_one_event_of_the_node(world: World) -> None:
    node, *pods = await world.set(gpu0="no answer", gpu1="no answer", gpu2="no answer")
    assert node[3].endswith(": no answer. New pods go to other GPUs. Pods there: default/a, default/w")
    assert [about for about, *_ in pods] == ["Pod a", "Pod w"]
    [back] = await world.set()
    assert back[3].endswith(" passed the checks: new pods may use them again")


async def test_two_signs_of_one_failure_within_a_moment_are_reported_once(world: World) -> None:
    await world.set()
    world.node.devices.set_inventory(with_health(gpu0="XID 79"))
    await asyncio.sleep(0.2)
    told = await world.set(gpu0="the GPU is lost")
    assert [text for *_, text in told] == [f"GPU 0 {T4.format(0)}: the GPU is lost. New pods go to other GPUs. No pod is there"]


TOLD = pytest.mark.parametrize("world", [Told({"GPU-00000001": "XID 79"})], indirect=True)


@TOLD
async def test_a_restart_does_not_report_what_was_told(world: World) -> None:
    assert await world.set(gpu1="XID 79") == []


@TOLD
async def test_a_restart_reports_what_differs_from_what_was_told(world: World) -> None:
    told = await world.set(gpu2="XID 95")
    assert [(about, reason) for about, _, reason, _ in told] == [
        ("Node gpu1", "GPUShareGPUUnusable"),
        ("Pod w", "GPUShareGPUUnusable"),
        ("Node gpu1", "GPUShareGPUUsable"),
    ]


async def test_a_cordon_a_missing_spec_and_a_state_that_is_not_known_yet_are_no_failure_of_the_gpu(world: World) -> None:
    await world.set()
    world.node.devices.set_cordon("0")
    assert await world.set(gpu1=MPS_UNKNOWN) == []
    world.node.devices.strategy = "cdi"
    assert await world.set() == []
    assert world.node.devices.unusable_specs()


NEW = replace(NODE, gpus=(NODE.gpus[0], replace(NODE.gpus[1], uuid="GPU-new1"), replace(NODE.gpus[2], uuid="GPU-new2")))


async def test_pods_whose_gpus_are_not_in_the_node_any_more_are_told_once(world: World) -> None:
    world.node.pods.synced = True
    await world.set()
    world.told = []
    for gpus in (NEW, NODE, NEW):
        world.node.devices.set_inventory(gpus)
        await asyncio.sleep(0.2)
    await asyncio.sleep(5)
    assert [(about, kind, reason) for about, kind, reason, _ in world.told] == [
        (about, "Warning", "GPUShareGPUUnusable") for about in ("Node gpu1", "Pod a", "Node gpu1", "Pod w")
    ]
    assert world.told[0][3] == (
        "GPU GPU-00000001 is not in this node any more. Pods that have it: default/a. Delete them, unless it comes back"
    )
    assert world.told[3][3] == (
        "Its GPU GPU-00000002 is not in node gpu1 any more: no container that has it can start again. "
        "Delete the pod: its owner starts it on another GPU"
    )
    world.node.changes.notify()
    await asyncio.sleep(5)
    assert len(world.told) == 4


async def test_a_restart_tells_nobody_again_of_gpus_that_are_gone(virtual_time: None) -> None:
    """Not before the API server has shown the pods, either."""
    for known, told in (("a", ["Node gpu1", "Pod w"]), ("b", ["Node gpu1", "Pod a", "Node gpu1", "Pod w"])):
        made = World(Told(gone=frozenset({(known, "GPU-00000001")})))
        task = asyncio.create_task(made.events.run())
        made.node.devices.set_inventory(NEW)
        await asyncio.sleep(5)
        assert made.told == []
        made.node.pods.synced = True
        made.node.changes.notify()
        await asyncio.sleep(5)
        assert [about for about, *_ in made.told] == told
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

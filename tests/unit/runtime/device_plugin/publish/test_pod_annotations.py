# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod's annotations should say, by kubelet's record, and that the API server is told of it: once, and until it has taken it."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.sentences import explain_unannotatable
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.pod_annotations import LONGEST_WAIT_SECONDS, Assigner, allocation_in, annotations_due
from gpushare_runtime.kube.client import LOST, KubeError
from gpushare_runtime.kube.events import ObjectReference
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import container, inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 24)


def got(pod: LocalPod, container_name: str, gpu: int, units: int) -> CheckpointEntry:
    return CheckpointEntry(pod.uid, container_name, MEMORY, frozenset(f"GPU-{gpu:08d}-_-{slot}" for slot in range(units)))


def pair() -> LocalPod:
    return parse_local_pod(bound(NODE, {0: {0: 2}, 1: {1: 3}}, container("a", mem=2), container("b", mem=3)))


def test_nothing_is_known_until_every_container_has_ids_of_gpus_that_are_there() -> None:
    pod, other = pair(), pair()
    for entries in ([got(pod, "a", 0, 2)], [got(other, "a", 0, 2), got(other, "b", 1, 3)], [got(pod, "a", 0, 2), got(pod, "b", 7, 3)]):
        assert allocation_in(pod, entries, NODE) is None
    assert allocation_in(pod, [got(pod, "a", 0, 2), got(pod, "b", 1, 3)], NODE) == Allocation.of({0: {0: 2}, 1: {1: 3}})
    # Another device plugin gave one of them its GPU, whatever its ids.
    named = replace(got(pod, "b", 7, 3), index=0)
    assert allocation_in(pod, [got(pod, "a", 0, 2), named], NODE) == Allocation.of({0: {0: 2}, 1: {0: 3}})
    assert allocation_in(parse_local_pod(bound(None, {}, container())), [], NODE) is None


def test_of_an_init_container_only_what_nobody_else_has_counts() -> None:
    for size, units in ((2, {0: {1: 4}}), (7, {0: {1: 4}, -1: {1: 3}})):
        pod = parse_local_pod(bound(NODE, units, container(mem=4), init=[container("first", mem=size)]))
        assert allocation_in(pod, [got(pod, "first", 1, size), got(pod, "main", 1, 4)], NODE) == Allocation.of(units)


def test_a_sidecar_is_part_of_it() -> None:
    side = container("side", mem=3) | {"restartPolicy": "Always"}
    pod = parse_local_pod(bound(NODE, {0: {1: 4}, -1: {1: 3}}, container(mem=4), init=[side]))
    slots = CheckpointEntry(pod.uid, "main", MEMORY, frozenset(f"GPU-00000001-_-{slot}" for slot in range(3, 7)))
    assert allocation_in(pod, [got(pod, "side", 1, 3), slots], NODE) == pod.allocation


def test_whole_gpus_count_with_all_their_units() -> None:
    pod = parse_local_pod(whole(NODE, 0, 1))
    entry = CheckpointEntry(pod.uid, "main", GPUS, frozenset({"GPU-00000000", "GPU-00000001"}))
    assert allocation_in(pod, [entry], NODE) == Allocation.of({0: {0: 16, 1: 24}})


def test_what_is_right_is_marked_and_what_is_marked_is_left() -> None:
    actual, original = Allocation.of({0: {1: 4}}), memory(NODE, 1, 4)
    # One with the five annotations of the original alone is right as well.
    del original["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"]
    for pod in (memory(NODE, 1, 4), original):
        assert annotations_due(parse_local_pod(pod), actual, NODE, 5) == {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
        pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
        assert annotations_due(parse_local_pod(pod), actual, NODE, 5) == {}


def test_a_pod_that_nobody_placed_gets_all_six() -> None:
    assert annotations_due(parse_local_pod(memory(None, 1, 4)), Allocation.of({0: {1: 4}}), NODE, 5) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":4}}',
    }


def test_a_time_of_assumption_that_is_one_is_kept() -> None:
    actual = Allocation.of({0: {0: 4}})
    for said, kept in (("17", "17"), ("soon", "5")):
        pod = parse_local_pod(memory(NODE, 1, 4, annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": said}))
        assert annotations_due(pod, actual, NODE, 5)["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == kept


# What a pod is told whose annotations cannot say it.


@pytest.mark.parametrize(
    ("raw", "given", "words"),
    [
        (
            bound(None, {}, container(mem=3), annotations={"kubernetes.io/config.mirror": 32 * "a"}),
            {MEMORY: ["GPU-00000001-_-0", "GPU-00000001-_-1", "GPU-00000000-_-9", "GPU-gone-_-1"]},
            "No scheduler places a static pod; it has 1 units of GPU 0 (GPU-00000000), 2 units of GPU 1 (GPU-00000001) "
            "by what was free on the node. To have its GPU chosen, make it an ordinary pod",
        ),
        (
            bound(None, {}, container(mem=1, count=2), uid="u"),
            {MEMORY: ["GPU-00000001-_-0"], GPUS: ["GPU-00000000", "GPU-00000001", "GPU-gone"]},
            "No scheduler extender can place it (it requests both aliyun.com/gpu-mem and aliyun.com/gpu-count); it has 1 units of "
            "GPU 1 (GPU-00000001), the whole GPU 0 (GPU-00000000), the whole GPU 1 (GPU-00000001) by what was free on the node. "
            "Correct the request and create the pod again",
        ),
        (
            bound(None, {}, container(mem="1.5"), uid="u"),
            {MEMORY: ["GPU-00000000-_-0"]},
            "No scheduler extender can place it (container 'main', aliyun.com/gpu-mem: '1.5' is not a whole number; extended resources "
            "are counted in whole units); it has 1 units of GPU 0 (GPU-00000000) by what was free on the node. "
            "Correct the request and create the pod again",
        ),
        (bound(None, {}, container(mem=1), annotations={"kubernetes.io/config.mirror": 32 * "a"}), {MEMORY: ["GPU-gone-_-0"]}, ""),
        (bound(None, {}, container(mem=1), annotations={"kubernetes.io/config.mirror": 32 * "a"}), {}, ""),
    ],
    ids=["static", "both resources", "no request", "GPUs that are gone", "nothing yet"],
)
def test_it_is_said_what_it_has_why_and_what_to_do(raw: dict[str, Any], given: dict[str, list[str]], words: str) -> None:
    usage = Usage(PodTable(), lambda: 0.0)
    entries = [CheckpointEntry(uid, "main", resource, frozenset(ids)) for uid in ("u", 32 * "a") for resource, ids in given.items()]
    UsageRecorder(usage, lambda _: None).set_checkpoint(
        (*entries, CheckpointEntry("another", "main", MEMORY, frozenset({"GPU-00000000-_-5"})))
    )
    assert explain_unannotatable(parse_local_pod(raw), usage, NODE) == words


# Telling the API server.


class World:
    """An assigner between this node's state and an API server that fails as planned. plan: pod's name → its errors."""

    def __init__(self, gpus: Inventory | None = NODE) -> None:
        self.plan: defaultdict[str, deque[KubeError]] = defaultdict(deque)
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.events: list[tuple[ObjectReference, str, str, str]] = []
        self.pods, self.counters = PodTable(), Counters()
        clock = asyncio.get_running_loop().time
        self.node = NodeState(self.pods, clock, clock, FakeProcesses())
        if gpus is not None:
            self.node.devices.set_inventory(gpus)
        self.assigner = Assigner(self.node, self, self.counters, self, "gpu1", lambda: 5)  # type: ignore[arg-type]

    async def patch(self, path: str, body: Mapping[str, Any], *, kind: str, within: float) -> None:
        assert (kind, within) == ("merge", 10.0)
        self.patches.append((path, body))
        await asyncio.sleep(0.01)
        if plan := self.plan[path.split("/")[-2]]:
            raise plan.popleft()

    def emit(self, about: ObjectReference, kind: str, reason: str, message: str, *, minor: bool = False) -> None:
        assert minor == (reason == "GPUShareAllocated")
        self.events.append((about, kind, reason, message))

    async def see(self, pod: dict[str, Any], kind: str = "ADDED") -> LocalPod:
        self.pods.event(kind, parse_local_pod(pod))
        await asyncio.sleep(1)
        return parse_local_pod(pod)

    async def record(self, *entries: CheckpointEntry) -> None:
        self.node.recorder.set_checkpoint(entries)
        await asyncio.sleep(1)

    @property
    def patched(self) -> list[str]:
        """The names of the pods that were, in order."""
        return [path.split("/")[-2] for path, _ in self.patches]


@pytest.fixture
@asynccontextmanager
async def world(virtual_time: None, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Its parameter: other GPUs."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    made = World(getattr(request, "param", NODE))
    task = asyncio.create_task(made.assigner.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not failures


@pytest.mark.parametrize("record_first", [True, False])
async def test_a_pod_is_marked_assigned_once_when_it_and_its_ids_are_known(record_first: bool, world: World) -> None:
    raw = memory(NODE, 1, 4, name="a", uid="u")
    entry = got(parse_local_pod(raw), "main", 1, 4)
    for step in (world.record(entry), world.see(raw)) if record_first else (world.see(raw), world.record(entry)):
        assert world.patches == []
        await step
    marked = {"metadata": {"uid": "u", "annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}}
    assert world.patches == [("/api/v1/namespaces/default/pods/a/status", marked)]
    # The watch has not shown it yet: that is no reason to say it again.
    await world.see(memory(NODE, 0, 1, name="other"))
    assert (world.patched, world.counters.corrections) == (["a"], 0)
    about = ObjectReference("Pod", "a", "u", "default")
    assert world.events == [(about, "Normal", "GPUShareAllocated", "Allocated 4 GiB of GPU 1 (Tesla T4)")]


_MOVED = "Moved from GPU 1 to GPU 0 of gpu1: kubelet gave it other units than planned; its annotations now name them"


@pytest.mark.parametrize(
    ("annotations", "kind", "reason", "words"),
    [
        ({}, "Normal", "GPUShareCorrected", _MOVED),
        ({"scheduler.framework.gpushare.allocation": ""}, "Normal", "GPUShareCorrected", _MOVED),
        ({"ALIYUN_COM_GPU_MEM_IDX": ""}, "Normal", "GPUShareCorrected", _MOVED),
        (
            {"scheduler.framework.gpushare.allocation": "?"},
            "Normal",
            "GPUShareCorrected",
            "It is on GPU 0 of gpu1; its annotations could not be read, and now name it",
        ),
        (
            None,
            "Warning",
            "GPUShareUnmanaged",
            "No scheduler extender placed it; it has 4 GiB of GPU 0 (Tesla T4) by what was free on the node. "
            "Check that it goes through a kube-scheduler that calls the extender",
        ),
    ],
    ids=["ours", "the original's", "without the original's", "unreadable", "none"],
)
async def test_other_gpus_than_annotated_are_written_counted_and_said(
    annotations: dict[str, str] | None, kind: str, reason: str, words: str, world: World
) -> None:
    pod = await world.see(memory(None if annotations is None else NODE, 1, 4, annotations=annotations or {}, name="a", uid="u"))
    await world.record(got(pod, "main", 0, 4))
    [(_, body)] = world.patches
    assert body["metadata"]["annotations"] == annotations_due(pod, Allocation.of({0: {0: 4}}), NODE, 5)
    assert world.counters.corrections == 1
    assert world.events == [(ObjectReference("Pod", "a", "u", "default"), kind, reason, words)]


async def test_what_somebody_writes_over_it_is_corrected_again(world: World) -> None:
    """Where no policy keeps tenants off the annotations: naming another GPU would give that one's memory to nobody."""
    raw = memory(NODE, 1, 4, name="a", uid="u")
    pod = await world.see(raw)
    await world.record(got(pod, "main", 1, 4))
    mine = raw["metadata"]["annotations"]
    assigned = mine | {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    for notes in (assigned, assigned | {"ALIYUN_COM_GPU_MEM_IDX": "1"}):
        raw["metadata"]["annotations"] = dict(notes)
        await world.see(raw, "MODIFIED")
    assert len(world.patches) == 1
    raw["metadata"]["annotations"] = memory(NODE, 0, 4, name="a", uid="u")["metadata"]["annotations"] | {
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"
    }
    changed = await world.see(raw, "MODIFIED")
    assert _of(world.patches[1]) == annotations_due(changed, Allocation.of({0: {1: 4}}), NODE, 5)
    # Back to what it was before the first PATCH, which is no old news.
    for notes in (assigned, mine):
        raw["metadata"]["annotations"] = dict(notes)
        await world.see(raw, "MODIFIED")
    assert [_of(patch) for patch in world.patches[2:]] == [{"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}]


async def test_what_the_api_server_does_not_take_now_it_gets_later_and_nobody_waits_for_that(world: World) -> None:
    world.plan["a"] += [KubeError(0, LOST, "lost"), KubeError(500, "InternalError", "e"), KubeError(403, "Forbidden", "f")] * 2
    first, second = await world.see(memory(NODE, 0, 4, name="a")), await world.see(memory(NODE, 1, 4, name="b"))
    await world.record(got(first, "main", 0, 4), got(second, "main", 1, 4))
    await asyncio.sleep(60)
    assert sorted(world.patched) == ["a"] * 7 + ["b"]
    assert "b" in world.patched[:2], "it does not wait for the first"


async def test_a_pod_that_is_gone_at_the_api_server_is_not_tried_again(world: World) -> None:
    world.plan["a"].append(KubeError(404, "NotFound", "n"))
    pod = await world.see(memory(NODE, 0, 4, name="a"))
    await world.record(got(pod, "main", 1, 4))
    await world.see(memory(NODE, 0, 4, name="b"))
    assert (world.patched, world.counters.corrections, world.events) == (["a"], 0, [])


@pytest.mark.parametrize("end", ["assigned by somebody", "finished", "deleted"])
async def test_it_is_not_tried_again_when_nothing_is_due_any_more(end: str, world: World) -> None:
    world.plan["a"].append(KubeError(503, "ServiceUnavailable", "s"))
    raw = memory(NODE, 1, 4, name="a")
    pod = await world.see(raw)
    world.node.recorder.set_checkpoint((got(pod, "main", 1, 4),))
    await asyncio.sleep(0.05)
    if end == "assigned by somebody":
        raw["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
    elif end == "finished":
        raw["status"] = {"phase": "Failed"}
    await world.see(raw, "DELETED" if end == "deleted" else "MODIFIED")
    await asyncio.sleep(60)
    assert (world.patched, world.events) == (["a"], [])


async def test_what_is_sent_again_is_what_is_true_then(world: World) -> None:
    world.plan["a"].append(KubeError(503, "ServiceUnavailable", "s"))
    pod = await world.see(memory(NODE, 1, 4, name="a"))
    world.node.recorder.set_checkpoint((got(pod, "main", 1, 4),))
    await asyncio.sleep(0.05)
    await world.record(got(pod, "main", 0, 4))
    said = [body["metadata"]["annotations"].get("ALIYUN_COM_GPU_MEM_IDX") for _, body in world.patches]
    assert said == [None, "0"]


async def test_a_pod_that_comes_again_under_its_uid_is_told_again(world: World) -> None:
    raw = memory(NODE, 1, 4, name="a")
    entry = got(await world.see(raw), "main", 1, 4)
    await world.record(entry)
    await world.see(raw, "DELETED")
    await world.see(raw)
    assert world.patched == ["a", "a"]


async def test_finished_pods_are_left_alone(world: World) -> None:
    pod = await world.see(memory(NODE, 1, 4, phase="Succeeded"))
    static = {"kubernetes.io/config.mirror": 32 * "a"}
    await world.see(memory(None, 1, 2, phase="Failed", annotations=static))
    await world.record(got(pod, "main", 1, 4), CheckpointEntry(32 * "a", "main", MEMORY, frozenset({"GPU-00000000-_-9"})))
    assert (world.patches, world.events) == ([], [])


@pytest.mark.parametrize("world", [None], indirect=True)
async def test_pods_of_a_node_whose_gpus_are_not_known_are_left_alone_until_they_are(world: World) -> None:
    raw = memory(NODE, 1, 4, name="a")
    entry = CheckpointEntry(32 * "a", "main", MEMORY, frozenset({"GPU-00000000-_-9"}))
    await world.record(got(parse_local_pod(raw), "main", 1, 4), entry)
    await world.see(raw)
    await world.see(memory(None, 1, 2, annotations={"kubernetes.io/config.mirror": 32 * "a"}))
    assert (world.patches, world.events) == ([], [])
    world.node.devices.set_inventory(NODE)
    await asyncio.sleep(1)
    assert (world.patched, len(world.events)) == (["a"], 2)


async def test_a_pod_whose_annotations_cannot_say_it_gets_one_event_once_it_has_something(world: World) -> None:
    raw = memory(None, 0, 2, name="static", uid="copy", annotations={"kubernetes.io/config.mirror": 32 * "a"})
    await world.see(raw)
    assert world.events == []
    for _ in range(2):
        await world.record(CheckpointEntry(32 * "a", "main", MEMORY, frozenset({"GPU-00000000-_-0", "GPU-00000000-_-1"})))
    [(about, kind, reason, words)] = world.events
    assert (about, kind, reason) == (ObjectReference("Pod", "static", 32 * "a", "default"), "Warning", "GPUShareUnmanaged")
    assert words.startswith("No scheduler places a static pod; it has 2 units of GPU 0 ")
    assert world.patches == []
    # Made anew from its file it has the same UID.
    await world.see(raw, "DELETED")
    await world.see(raw)
    assert len(world.events) == 2


def test_when_it_is_stopped_it_says_nothing_more() -> None:
    async def run() -> None:
        world = World()
        task = asyncio.create_task(world.assigner.run())
        world.plan["a"] += [KubeError(503, "ServiceUnavailable", "s")] * 99
        pod = await world.see(memory(NODE, 1, 4, name="a"))
        await world.record(got(pod, "main", 1, 4))
        task.cancel()
        await asyncio.wait([task])
        before = len(world.patches)
        assert before
        await asyncio.sleep(60)
        assert len(world.patches) == before

    virtual.run(run())


@pytest.mark.parametrize("world", [inventory(16, 24, 24)], indirect=True)
async def test_where_an_index_means_another_gpu_all_pods_are_looked_at_again(world: World) -> None:
    assert world.node.devices.inventory is not None
    unit, (first, second, third) = NODE.unit, world.node.devices.inventory.gpus
    pod = await world.see(memory(NODE, 1, 4, name="a"))
    await world.record(got(pod, "main", 1, 4))
    assert world.patched == ["a"]
    await world.see(memory(NODE, 1, 4, name="a", uid=pod.uid, annotations=_of(world.patches[0])))
    # The driver has numbered two of them anew.
    world.node.devices.set_inventory(Inventory(unit, (first, replace(third, index=1), replace(second, index=2))))
    await asyncio.sleep(1)
    assert world.patched == ["a", "a"]
    assert _of(world.patches[1])["ALIYUN_COM_GPU_MEM_IDX"] == "2"
    # A GPU that is only gone is no other one.
    world.node.devices.set_inventory(Inventory(unit, (first, replace(second, index=2))))
    await asyncio.sleep(1)
    assert world.patched == ["a", "a"]


async def test_a_conflict_is_tried_again_as_long_as_the_watch_shows_the_pod(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.plan["a"] += [KubeError(409, "Conflict", "somebody wrote at the same moment")] * 2
    pod = await world.see(memory(NODE, 0, 4, name="a"))
    await world.record(got(pod, "main", 0, 4))
    await asyncio.sleep(30)
    assert world.patched == ["a"] * 3
    world.plan["b"] += [KubeError(409, "Conflict", "another pod has its name")] * 100
    raw = memory(NODE, 0, 4, name="b")
    other = await world.see(raw)
    await world.record(got(other, "main", 0, 4))
    await world.see(raw, "DELETED")
    tried = len(world.patched)
    await asyncio.sleep(60)
    assert len(world.patched) - tried <= 1
    assert [record for record in caplog.records if record.levelname == "WARNING"] == [], "it is nobody's fault"


async def test_what_is_written_over_it_while_it_is_being_marked_is_corrected(world: World) -> None:
    """The watch may show both writes before the answer to the first has come, and nothing afterwards."""
    raw = memory(NODE, 1, 4, name="a", uid="u")
    pod = await world.see(raw)
    world.node.recorder.set_checkpoint((got(pod, "main", 1, 4),))
    await asyncio.sleep(0.005)
    raw["metadata"]["annotations"] = memory(NODE, 0, 4, name="a", uid="u")["metadata"]["annotations"]
    await world.see(raw, "MODIFIED")
    assert [_of(patch).get("ALIYUN_COM_GPU_MEM_IDX") for patch in world.patches] == [None, "1"]


async def test_a_correction_waits_while_starts_may_meet_and_three_minutes_at_most(world: World) -> None:
    meet, looks = True, 0

    def starts_meet() -> bool:
        nonlocal looks
        looks += 1
        return meet

    clock = asyncio.get_running_loop().time
    world.assigner._starts_meet, world.assigner._clock = starts_meet, lambda: round(clock() * 10**9)  # type: ignore[method-assign]
    assigned = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    first, second = [await world.see(memory(NODE, 1, 4, name=name, annotations=assigned)) for name in ("first", "second")]
    fresh = await world.see(memory(NODE, 1, 4, name="fresh"))
    for pod, due in ((first, ["fresh", "first"]), (second, ["fresh", "first", "second"])):
        world.node.recorder.set_checkpoint((*world.node.usage.entries_of(first.uid), got(pod, "main", 0, 4), got(fresh, "main", 1, 4)))
        await asyncio.sleep(LONGEST_WAIT_SECONDS - 0.5)
        assert world.patched == due[:-1]
        await asyncio.sleep(1)
        assert world.patched == due
    # Those that met are over, and others meet: this is another wait.
    third = await world.see(memory(NODE, 1, 4, name="third", annotations=assigned))
    await world.record(got(third, "main", 0, 4))
    await asyncio.sleep(100)
    meet = False
    await world.see(memory(NODE, 1, 4, name="other"))
    assert world.patched[3:] == ["third"]
    meet = True
    await world.see(memory(None, 1, 4, name="third", uid=third.uid, annotations=_of(world.patches[3])))
    await world.record(got(third, "main", 1, 4))
    await asyncio.sleep(100)
    assert world.patched[3:] == ["third"]
    meet = False
    await asyncio.sleep(2)
    looks = 0
    await asyncio.sleep(100)
    assert (looks, world.patched[3:]) == (0, ["third", "third"]), "nothing waits any more"


async def test_an_init_containers_other_gpu_is_written_while_kubelet_has_its_record(world: World) -> None:
    raw = bound(NODE, {0: {1: 4}, -1: {1: 3}}, container(mem=4), init=[container("first", mem=7)], name="a")
    pod = await world.see(raw)
    await world.record(got(pod, "first", 0, 7), got(pod, "main", 1, 4))
    assert _of(world.patches[0])["scheduler.framework.gpushare.allocation"] == '{"0":{"1":4},"-1":{"0":7}}'


async def test_what_a_pod_has_by_a_record_that_kubelet_has_lost_is_written_all_the_same(world: World) -> None:
    pod = await world.see(memory(NODE, 1, 4, name="a", phase="Running"))
    world.plan["a"].append(KubeError(0, LOST, "lost"))
    world.node.recorder.set_checkpoint((got(pod, "main", 0, 4),))
    world.node.recorder.set_checkpoint(())
    await asyncio.sleep(30)
    assert world.patches[-1][1]["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


async def test_a_pod_without_a_plan_and_one_without_all_its_ids_hinder_nobody_when_kubelet_loses_its_record(world: World) -> None:
    half = await world.see(bound(NODE, {0: {0: 2}, 1: {1: 3}}, container("a", mem=2), container("b", mem=3), phase="Running"))
    stray = await world.see(memory(None, 1, 2, phase="Running"))
    await world.record(got(half, "a", 0, 2), got(stray, "main", 1, 2))
    await world.record()
    later = await world.see(memory(NODE, 1, 4, name="later"))
    await world.record(got(later, "main", 1, 4))
    assert "later" in world.patched


async def test_a_correction_waits_for_no_start_of_long_ago(world: World) -> None:
    """kubelet has lost its record, and may start the container of the other pod at some time."""
    other, moved = await world.see(memory(NODE, 1, 4, phase="Running")), memory(NODE, 1, 2, name="moved", uid="u", phase="Running")
    await world.record(got(other, "main", 1, 4), got(await world.see(moved), "main", 0, 2))
    assigned = {**_of(world.patches[-1]), **memory(NODE, 1, 2)["metadata"]["annotations"], "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    await world.record()
    assert other.uid in world.node.pending.may_request()
    before = world.patched.count("moved")
    await world.see({**moved, "metadata": {**moved["metadata"], "annotations": assigned}})
    assert world.patched.count("moved") == before + 1


async def test_what_init_containers_get_anew_after_a_lost_record_is_not_written(world: World) -> None:
    raw = bound(NODE, {0: {1: 4}}, container(mem=4), init=[container("first", mem=2)], name="a", phase="Running")
    pod = await world.see(raw)
    await world.record(got(pod, "first", 1, 2), got(pod, "main", 1, 4))
    [marked] = world.patches
    await world.see({**raw, "metadata": {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **_of(marked)}}})
    await world.record()
    anew = CheckpointEntry(pod.uid, "first", MEMORY, frozenset({"GPU-00000001-_-8", "GPU-00000001-_-9"}))
    world.assigner._verified.clear()
    await world.record(anew)
    assert world.patches == [marked]
    # Not so where what runs is elsewhere.
    await world.record(anew, CheckpointEntry(pod.uid, "main", MEMORY, frozenset(f"GPU-00000000-_-{slot}" for slot in range(4))))
    world.assigner._verified.clear()
    await world.record(anew, CheckpointEntry(pod.uid, "main", MEMORY, frozenset(f"GPU-00000000-_-{slot}" for slot in range(1, 5))))
    assert _of(world.patches[-1])["scheduler.framework.gpushare.allocation"] == '{"0":{"0":4},"-1":{"1":2}}'


def _of(patch: tuple[str, Mapping[str, Any]]) -> Mapping[str, str]:
    annotations: Mapping[str, str] = patch[1]["metadata"]["annotations"]
    return annotations


async def test_what_all_pods_meet_alike_is_one_line(caplog: pytest.LogCaptureFixture, world: World) -> None:
    pods = [await world.see(memory(NODE, 0, 1, name=f"p{number}")) for number in range(10)]
    for pod in pods:
        world.plan[pod.name] += [KubeError(403, "Forbidden", f"pods {pod.name!r} is forbidden")] * 5
    await world.record(*(CheckpointEntry(pod.uid, "main", MEMORY, frozenset({f"GPU-00000000-_-{n}"})) for n, pod in enumerate(pods)))
    await asyncio.sleep(120)
    assert len(world.patched) == 60
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and "cannot be marked" in record.message]
    assert len(warnings) == 1

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's checkpoint beside its podresources API: differences are said with both sides, and each stands in for the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.device_plugin.kubelet.podresources import (
    CrossCheck,
    Difference,
    KubeletIds,
    PodResourcesError,
    Reported,
    differences,
    entries_of,
    twice,
)
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.fake_pod_resources import FakePodResources, serving_pod_resources
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, MEMORY, World, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import inventory
from unit.golden import Golden

NODE = inventory(16)
A = frozenset({"GPU-0-_-0", "GPU-0-_-1"})
B = frozenset({"GPU-0-_-1", "GPU-0-_-2"})


def table(**phases: str) -> PodTable:
    """Pods whose UID is "uid of <name>"."""
    pods = PodTable()
    pods.replace([parse_local_pod(memory(NODE, 0, 2, name=name, uid=f"uid of {name}", phase=phase)) for name, phase in phases.items()])
    return pods


def entry(pod: str, ids: frozenset[str], container: str = "main") -> CheckpointEntry:
    return CheckpointEntry(f"uid of {pod}", container, MEMORY, ids)


def said(**pods: frozenset[str]) -> Reported:
    return {(f"default/{name}", "main"): {MEMORY: ids} if ids else {} for name, ids in pods.items()}


def test_what_only_one_of_them_can_know_is_no_difference() -> None:
    pods = table(a="Running", ended="Succeeded")
    entries = [entry("a", A), entry("a", B, "init"), entry("ended", B), entry("nobody", B)]
    assert list(differences(entries, said(a=A, ended=frozenset(), other=frozenset()), pods)) == []
    # The watch has not shown the pod yet: the same ids are the same container.
    assert list(differences(entries, said(late=B), pods)) == []


def test_a_pod_made_anew_under_its_name_is_either_of_the_two() -> None:
    pods = table(a="Running")
    pods.event("ADDED", parse_local_pod(memory(NODE, 0, 2, name="a", uid="uid of b")))
    assert list(differences([entry("a", A), entry("b", B)], said(a=B), pods)) == []


@pytest.mark.parametrize(
    ("recorded", "spoken", "words"),
    [
        (A, B, r"the checkpoint has 1 of its own \(GPU-0-_-0\), podresources has 1 of its own \(GPU-0-_-2\), 1 in both"),
        (A, frozenset(), "the checkpoint has 2 of its own .* podresources has none of its own, 0 in both"),
        (None, A, "the checkpoint has none of its own, podresources has 2 of its own"),
    ],
)
def test_a_difference_is_said_with_both_sides(recorded: frozenset[str] | None, spoken: frozenset[str], words: str, golden: Golden) -> None:
    [difference] = differences([entry("a", recorded)] if recorded else [], said(a=spoken), table(a="Running"))
    with golden.raised(ValueError):
        raise ValueError(difference)


def test_kubelets_word_as_entries_with_init_containers_as_they_were() -> None:
    pods = table(a="Running", b="Running", ended="Failed")
    before = [entry("a", B), entry("a", A, "init"), entry("gone", A)]
    assert set(entries_of(said(a=A, b=frozenset(), ended=B, unknown=B), pods, before)) == {entry("a", A), entry("a", A, "init")}


def test_a_record_without_a_word_of_kubelet_is_a_difference_of_this_resource_alone() -> None:
    entries = [entry("a", A), CheckpointEntry("uid of a", "main", "aliyun.com/gpu-count", B)]
    assert list(differences(entries, {("default/a", "main"): {MEMORY: A}}, table(a="Running"))) == [
        Difference("default/a", "main", "aliyun.com/gpu-count", B, frozenset())
    ]
    assert list(differences([entry("a", A)], {("default/a", "main"): {MEMORY: frozenset()}}, table(a="Running"))) == [
        Difference("default/a", "main", MEMORY, A, frozenset())
    ]


def test_ids_that_nobody_can_be_told_of_are_those_of_their_container_and_resource() -> None:
    nobody = [
        CheckpointEntry("nobody", "side", MEMORY, A),
        CheckpointEntry("nobody", "main", "aliyun.com/gpu-count", A),
        entry("nobody", B),
    ]
    assert [d.reported for d in differences(nobody, said(a=A), table(a="Running"))] == [A]


def test_a_difference_has_few_ids_in_its_words() -> None:
    for many, words in ((3, "3 of its own (0, 1, 2), podresources"), (4, "4 of its own (0, 1, 2 …), podresources")):
        assert words in str(Difference("p", "c", MEMORY, frozenset(map(str, range(many))), frozenset()))


# When it looks.


class Clockwork:
    """A cross-check in virtual time. answers: what kubelet says from now on; asked: when it was asked."""

    def __init__(self, scale: float = 1.0) -> None:
        self.pods, self.counters = table(a="Running"), Counters()
        self.clock = asyncio.get_running_loop().time
        self.node = NodeState(self.pods, self.clock, self.clock, FakeProcesses())
        self.node.recorder.set_checkpoint((entry("a", A),))
        self.problem = ""
        self.asked: list[float] = []
        self.answers: Reported | PodResourcesError = said(a=A)
        self.refreshed: list[float] = []
        self.breaks_while_asked = False
        socket, resources = Path("socket"), (MEMORY,)
        # Of the checkpoint it looks at `problem` alone.
        self.check = CrossCheck(self.node, self, self._refresh, socket, resources, self.counters, scale)  # type: ignore[arg-type]

    def _refresh(self) -> None:
        self.refreshed.append(self.clock())

    async def ask(self, socket: Path, resources: tuple[str, ...]) -> Reported:
        assert (socket, resources) == (Path("socket"), (MEMORY,))
        self.asked.append(self.clock())
        if self.breaks_while_asked:
            self.problem = "half a file"
        if isinstance(self.answers, PodResourcesError):
            raise self.answers
        return self.answers

    async def until(self, moment: float) -> None:
        await asyncio.sleep(moment - self.clock() + 0.5)


@pytest.fixture
@asynccontextmanager
async def it(virtual_time: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Clockwork]:
    """Its parameter: the scale. It looks for the first time when the test waits."""
    made = Clockwork(**getattr(request, "param", {}))
    monkeypatch.setattr("gpushare_runtime.device_plugin.kubelet.podresources.list_ids", made.ask)
    task = asyncio.create_task(made.check.run())
    yield made
    task.cancel()


async def test_while_both_agree_it_looks_once_a_minute_at_a_fresh_file(it: Clockwork) -> None:
    await it.until(130)
    assert it.asked == [0, 60, 120]
    assert it.refreshed == [0, 0, 60, 60, 120, 120], "before and after the question"
    assert it.counters.checkpoint_mismatches == 0


@pytest.mark.parametrize("it", [{"scale": 0.1}], indirect=True)
async def test_all_its_pauses_can_be_made_shorter(it: Clockwork) -> None:
    await it.until(12)
    assert it.asked == pytest.approx([0, 6, 12])


@pytest.mark.parametrize("lacking", ["pods", "entries"])
async def test_it_waits_until_there_is_something_to_compare(lacking: str, it: Clockwork) -> None:
    it.pods.synced = lacking != "pods"
    if lacking == "entries":
        it.node.recorder.set_checkpoint(())
    await it.until(8)
    assert it.asked == []
    it.pods.synced = True
    it.node.recorder.set_checkpoint((entry("a", A),))
    await it.until(12)
    assert it.asked == [10]


async def test_a_difference_counts_when_it_is_there_twice_in_a_row_and_once_as_long_as_it_stays(
    caplog: pytest.LogCaptureFixture, it: Clockwork
) -> None:
    it.answers = said(a=B)
    await it.until(0)
    # kubelet writes its file a moment later.
    it.answers = said(a=A)
    await it.until(5)
    it.answers = said(a=B)
    await it.until(65)
    assert (it.asked, it.counters.checkpoint_mismatches) == ([0, 5, 65], 0)
    await it.until(70)
    assert (it.asked[3:], it.counters.checkpoint_mismatches, len(caplog.records)) == ([70], 1, 1)
    await it.until(130)
    assert (it.asked[4:], it.counters.checkpoint_mismatches) == ([130], 1)
    it.answers = said(a=A)
    await it.until(190)
    it.answers = said(a=B)
    await it.until(255)
    assert (it.asked[5:], it.counters.checkpoint_mismatches, len(caplog.records)) == ([190, 250, 255], 2, 2)
    # A second one beside it.
    it.pods.event("ADDED", parse_local_pod(memory(NODE, 0, 2, name="b", uid="uid of b", phase="Running")))
    it.answers = said(a=B, b=A)
    await it.until(320)
    assert (it.asked[8:], it.counters.checkpoint_mismatches, len(caplog.records)) == ([315, 320], 3, 3)


async def test_a_kubelet_that_does_not_answer_is_said_once_until_it_has(caplog: pytest.LogCaptureFixture, it: Clockwork) -> None:
    said_so = 0
    for at, (answer, new) in enumerate(
        [
            (PodResourcesError("UNAVAILABLE: no socket"), 1),
            (PodResourcesError("UNAVAILABLE: no socket"), 0),
            (PodResourcesError("UNIMPLEMENTED: v1"), 1),
            (said(a=A), 0),
            (PodResourcesError("UNIMPLEMENTED: v1"), 1),
        ]
    ):
        it.answers = answer
        await it.until(60 * at)
        said_so += new
        assert len(caplog.records) == said_so
    assert it.asked == [0, 60, 120, 180, 240]


@pytest.mark.parametrize("while_asked", [False, True])
async def test_without_a_readable_checkpoint_kubelet_is_asked_every_second_and_its_word_counts(while_asked: bool, it: Clockwork) -> None:
    it.answers = said(a=B)
    it.breaks_while_asked = while_asked
    if not while_asked:
        it.problem = "half a file"
        it.node.recorder.set_checkpoint(())
    await it.until(2)
    assert it.asked == [0, 1, 2]
    assert it.node.usage.entries == (entry("a", B),)
    same = it.node.usage.entries
    await it.until(5)
    assert it.node.usage.entries is same, "nothing new is nothing to tell"
    it.problem, it.breaks_while_asked = "", False
    await it.until(8)
    assert (it.asked[6:], it.counters.checkpoint_mismatches) == ([6], 0)


async def test_while_neither_the_checkpoint_nor_kubelet_can_be_asked_it_is_tried_every_second(it: Clockwork) -> None:
    it.answers = PodResourcesError("UNAVAILABLE: no socket")
    it.problem = "half a file"
    await it.until(2)
    it.answers = said(a=B)
    await it.until(3)
    assert it.asked == [0, 1, 2, 3]
    assert it.node.usage.entries == (entry("a", B),)


# On real sockets.


async def admitted(it: World, fake: FakePodResources) -> dict[str, Any]:
    """A pod with three units that both records have."""
    pod = await it.bind(memory(it.inventory, 0, 3))
    await it.kubelet.manager.admit(pod)
    ids = it.kubelet.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    fake.said["default", pod["metadata"]["name"], "main"] = {MEMORY: sorted(ids)}
    return pod


async def test_while_the_checkpoint_cannot_be_read_kubelets_word_stands_in() -> None:
    async with world(8 * GIB, 8 * GIB) as it, serving_pod_resources(it.kubelet.directory.parent / "data") as fake:
        await it.registered()
        first = await admitted(it, fake)
        await until(lambda: it.annotations(first)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")
        manager, write = it.kubelet.manager, it.kubelet.manager.write
        assert manager.checkpoint is not None
        broken = manager.checkpoint
        manager.write = lambda: os.truncate(broken, 10)  # type: ignore[method-assign]
        manager.write()
        second = await admitted(it, fake)
        await until(lambda: it.annotations(second)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true", seconds=15)
        assert {e.pod for e in it.plugin.node.usage.entries} == {pod["metadata"]["uid"] for pod in (first, second)}
        broken.unlink()
        manager.write = write  # type: ignore[method-assign]
        manager.write()
        await until(lambda: it.plugin._checkpoint.entries == it.plugin.node.usage.entries)
        assert len(it.plugin.node.usage.entries) == 2


def test_ids_that_two_pods_have_by_kubelets_record_are_found() -> None:
    pods = PodTable()
    pods.replace([parse_local_pod(memory(None, 0, 2, name=name, uid=name)) for name in "abc"])
    ids = frozenset({"GPU-0-_-0", "GPU-0-_-1"})
    listed = [CheckpointEntry(uid, "main", "aliyun.com/gpu-mem", ids) for uid in ("a", "b", "unknown")]
    # An init container's.
    listed.append(CheckpointEntry("a", "first", "aliyun.com/gpu-mem", ids))
    listed.append(CheckpointEntry("c", "main", "aliyun.com/gpu-mem", frozenset({"GPU-0-_-3"})))
    assert list(twice(listed, pods)) == [("aliyun.com/gpu-mem", "default/a", "default/b")]


@dataclass(eq=False)
class Served:
    """What serves the resource: the ids that kubelet was sent last, and how many lists it reads."""

    healthy: frozenset[str] | None
    streams: int = 1
    resource: str = MEMORY


@pytest.mark.parametrize(
    ("kubelet", "served", "lost"),
    [
        ({MEMORY: A}, Served(A), False),
        ({MEMORY: A, "other.com/x": B}, Served(A), False),
        ({}, Served(frozenset()), False),
        (None, Served(A), False),
        ({MEMORY: B}, Served(A, streams=0), False),
        ({MEMORY: B}, Served(None), False),
        ({MEMORY: B}, Served(A), True),
        ({MEMORY: A | B}, Served(A), True),
        ({}, Served(A), True),
    ],
)
async def test_kubelet_has_the_ids_that_it_was_sent_or_it_has_lost_them(
    tmp_path: Path, kubelet: dict[str, frozenset[str]] | None, served: Any, lost: bool
) -> None:
    async with serving_pod_resources(tmp_path) as resources:
        resources.healthy = kubelet
        ids = KubeletIds(tmp_path / "pod-resources/kubelet.sock", scale=0.001)
        ids.served[MEMORY] = served
        task = asyncio.ensure_future(ids.run())
        await until(lambda: resources.asked_for_healthy >= 3 or not served.streams)
        assert ids.are_lost(served) is lost
        task.cancel()


async def test_one_difference_and_one_of_a_list_that_changes_are_of_a_moment(tmp_path: Path) -> None:
    async with serving_pod_resources(tmp_path) as resources:
        served: Any = Served(A)
        ids = KubeletIds(tmp_path / "pod-resources/kubelet.sock", scale=0.001)
        ids.served[MEMORY] = served
        seen = []

        def answers() -> dict[str, frozenset[str]]:
            """Each second time kubelet has another list, and each third time it is sent a new one meanwhile."""
            seen.append(ids.are_lost(served))
            if len(seen) % 3 == 0:
                served.healthy = B if served.healthy == A else A
                return {}
            return {MEMORY: served.healthy} if len(seen) % 2 else {}

        resources.answers = answers
        task = asyncio.ensure_future(ids.run())
        await until(lambda: len(seen) > 20)
        task.cancel()
        assert not any(seen)

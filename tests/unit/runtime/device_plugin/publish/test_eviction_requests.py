# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod that uses too much for too long is requested to be evicted; no other pod, and in doubt none."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.overuse import STARTS_NEVER, EvictionRequest, Evictions, Excess
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish import eviction_requests
from gpushare_runtime.device_plugin.publish.eviction_requests import EVICT, RENEW_BEFORE, REPORT, EvictionRequests, doubt
from gpushare_runtime.kube.client import LOST, KubeError
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory
from unit.fakes.runtime.device_plugin.plugin import NODE, World, admitted, path_of, uses, world
from unit.fakes.runtime.kube.fake_api import status, until
from unit.fakes.runtime.pods import container, inventory

GIB = 1024**3
NOW = 1_800_000_000
MIRROR = {"kubernetes.io/config.mirror": 32 * "a"}
FIRST, SECOND = (gpu.uuid for gpu in inventory(16, 24).gpus)


class Node:
    """A node of two GPUs, its annotation, and what the memory of its GPUs shows. lasts: pod → seconds above the 4 units that it has."""

    def __init__(self, mode: str = EVICT, unstartable: str = REPORT) -> None:
        self.state = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
        self.state.devices.set_inventory(inventory(16, 24))
        self.state.pods.replace([])
        self.entries: list[CheckpointEntry] = []
        self.lasts: dict[str, float] = {}
        self.published: dict[str, str] | None = {}
        self.writes: list[float] = []
        self.errors = 0
        self.requests = EvictionRequests(self.state, self, self, mode, 10.0, lambda: NOW, unstartable=unstartable)  # type: ignore[arg-type]

    def has(self, pod: dict[str, Any], *, lasts: float = 60.0, recorded: int = 4) -> str:
        """kubelet has given the pod so many units of the second GPU; its UID."""
        uid = parse_local_pod(pod).uid
        self.state.pods.event("ADDED", parse_local_pod(pod))
        ids = frozenset(f"{SECOND}-_-{len(self.entries)}{slot}" for slot in range(recorded))
        self.entries.append(CheckpointEntry(uid, "main", "aliyun.com/gpu-mem", ids))
        self.state.recorder.set_checkpoint(tuple(self.entries))
        self.lasts[uid] = lasts
        return uid

    def lasting(self, seconds: float) -> dict[tuple[str, str], Excess]:
        assert seconds == 10.0
        now = time.monotonic()
        return {(uid, SECOND): Excess(5 * GIB + 1, 4 * GIB, now - lasts - 0.5) for uid, lasts in self.lasts.items()}

    async def write(self, values: Mapping[str, str | None]) -> None:
        self.writes.append(asyncio.get_running_loop().time())
        if self.errors:
            self.errors -= 1
            raise KubeError(0, LOST, "lost")
        self.published = {name: value for name, value in values.items() if value is not None}

    @property
    def evictions(self) -> Evictions | None:
        """The node's annotation."""
        text = (self.published or {}).get("gpushare/evictions")
        return Evictions.from_json(text) if text else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.requests.run())
        await asyncio.sleep(0.1)
        yield
        task.cancel()


def request(uid: str, gpu: int = 1, reason: str = "") -> EvictionRequest:
    return EvictionRequest(uid, gpu, 5120, 4096, 60, reason)


@pytest.mark.parametrize(
    ("pod", "change", "why"),
    [
        (memory(inventory(16, 24), 1, 4), lambda _: None, ""),
        (memory(inventory(16, 24), 1, 4), lambda state: state.devices.set_inventory(inventory(16)), "its GPU is not known"),
        (memory(inventory(16, 24), 1, 4), lambda state: setattr(state.devices, "inventory", None), "its GPU is not known"),
        (memory(None, 1, 4, annotations=MIRROR), lambda _: None, "it is a static pod, which kubelet would start again"),
        (bound(None, {}, container(mem="4.5")), lambda _: None, "its request cannot be read"),
        (memory(None, 1, 4, annotations={"ALIYUN_COM_GPU_MEM_IDX": "x"}), lambda _: None, "its request cannot be read"),
        (memory(inventory(16, 24), 1, 4), lambda state: setattr(state.pods, "synced", False), "the API server has not been reached yet"),
        (
            memory(inventory(16, 24), 1, 4, phase="Running"),
            lambda state: state.recorder.set_checkpoint(()),
            "kubelet has lost its record of what the pod has",
        ),
        (memory(inventory(16, 24), 1, 5), lambda _: None, "kubelet's checkpoint lists other units than it was compared with"),
        (memory(inventory(16, 24), 1, 3), lambda _: None, ""),
    ],
)
def test_in_doubt_it_is_said_why(pod: dict[str, Any], change: Callable[[NodeState], None], why: str) -> None:
    node = Node()
    uid = node.has(pod)
    change(node.state)
    local = node.state.pods.get(uid)
    assert local is not None
    assert doubt(node.state, local, SECOND, 4 * GIB) == why
    if not why:
        for gpu, due in ((SECOND, 4 * GIB - 1), (SECOND, 5 * GIB), (FIRST, 4 * GIB)):
            assert "lists other units" in doubt(node.state, local, gpu, due)


def test_those_that_last_longest_are_requested_and_none_in_doubt(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_requests, "MOST_EVICTIONS", 2)
    node, gpus = Node(), inventory(16, 24)
    lasts = {"a": 30.0, "d": 60.0, "b": 60.0, "c": 60.0}
    for uid, seconds in lasts.items():
        node.has(memory(gpus, 1, 4, uid=uid), lasts=seconds)
    node.has(memory(gpus, 1, 5, uid="in-doubt"), lasts=300.0)
    node.has(memory(gpus, 1, 4, uid="ended", phase="Failed"), lasts=300.0)
    node.lasts["vanished"] = 300.0
    for _ in range(2):
        assert list(node.requests._requests().values()) == [EvictionRequest(uid, 1, 5120, 4096, int(lasts[uid])) for uid in ("b", "c")]
    assert caplog.text.count("its eviction is not requested: kubelet's checkpoint lists other units") == 1
    del node.lasts["in-doubt"]
    node.requests._requests()
    node.lasts["in-doubt"] = 300.0
    node.requests._requests()
    assert caplog.text.count("its eviction is not requested: kubelet's checkpoint lists other units") == 2
    reports = Node(REPORT)
    reports.has(memory(gpus, 1, 4))
    assert reports.requests._requests() == {}


def test_a_pod_that_can_never_start_is_requested_before_others_if_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = inventory(16, 24)
    for mode, first in ((EVICT, ["never", "too"]), (REPORT, [])):
        node = Node(unstartable=mode)
        pods = {uid: memory(gpus, 0, 4, uid=uid) for uid in ("never", "too")}
        others = [memory(None, 0, 4, annotations=MIRROR), memory(gpus, 0, 4, uid="ended", phase="Failed")]
        for pod in (*pods.values(), *others):
            node.state.pods.event("ADDED", parse_local_pod(pod))
        node.state.starts.starts_never.update(dict.fromkeys(("vanished", MIRROR["kubernetes.io/config.mirror"], "ended", *pods), 0))
        above = node.has(memory(gpus, 1, 4, uid="above"))
        if first:
            node.has(pods["never"])
        found = node.requests._requests()
        assert list(found) == [*first, above]
        assert [found[uid] for uid in first] == [EvictionRequest(uid, 0, 0, 0, 0, STARTS_NEVER) for uid in first]
        monkeypatch.setattr(eviction_requests, "MOST_EVICTIONS", 1)
        assert list(node.requests._requests()) == ["never" if first else above]
        monkeypatch.undo()
        # Something of it runs after all.
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
        node.state.pods.event("MODIFIED", parse_local_pod({**pods["never"], "status": status}))
        assert "never" not in node.requests._never_started()


@pytest.mark.parametrize(
    ("published", "wanted", "due"),
    [
        (None, [request("a")], False),
        ("", [], False),
        ("", [request("a")], True),
        ("odd", [], True),
        ("odd", [request("a")], True),
        (Evictions((request("a"),), NOW + 60), [], True),
        (Evictions((), NOW + 60), [], True),
        (Evictions((request("a"),), NOW + 60), [request("a")], False),
        (Evictions((request("a"),), NOW + 60), [EvictionRequest("a", 1, 9, 9, 9)], False),
        (Evictions((request("a"),), NOW + 60), [request("b")], True),
        (Evictions((request("a"),), NOW + 60), [request("a", 0)], True),
        (Evictions((request("a"),), NOW + 60), [request("a", reason=STARTS_NEVER)], True),
        (Evictions((request("a"),), NOW + int(RENEW_BEFORE)), [request("a")], True),
        (Evictions((request("a"),), NOW + int(RENEW_BEFORE) + 1), [request("a")], False),
        (Evictions((request("a"),), NOW + 10_000), [request("a")], True),
    ],
)
def test_when_the_annotation_is_written(published: Evictions | str | None, wanted: list[EvictionRequest], due: bool) -> None:
    """One that a former process has left as well. Use and time change at every reading."""
    node = Node()
    text = published.to_json() if isinstance(published, Evictions) else published
    node.published = None if text is None else {"gpushare/evictions": text} if text else {}
    assert node.requests._due({one.uid: one for one in wanted}) is due


async def test_requests_are_written_and_withdrawn_and_what_the_api_server_does_not_take_is_sent_again(virtual_time: None) -> None:
    node = Node()
    node.errors = 8
    uid = node.has(memory(inventory(16, 24), 1, 4))
    async with node.running():
        assert (len(node.writes), node.evictions) == (1, None)
        await asyncio.sleep(100)
        assert node.evictions == Evictions((request(uid),), NOW + 90)
        waits = [after - before for before, after in zip(node.writes, node.writes[1:], strict=False)]
        assert (len(waits), waits[0] < 2.3, waits[-1] > 7) == (8, True, True)
        node.errors, node.lasts = 1, {}
        await asyncio.sleep(5)
        assert (node.published, node.writes[-1] - node.writes[-2] < 2.3) == ({}, True)


# The same of a plugin that runs.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(eviction_requests, "INTERVAL_SECONDS", 0.02)


def requested(it: World, pod: dict[str, Any]) -> EvictionRequest | None:
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/evictions")
    found = Evictions.from_json(text).requests if text else ()
    return next((one for one in found if one.uid == pod["metadata"]["uid"]), None)


@pytest.mark.usefixtures("often")
async def test_the_pod_that_exceeds_is_requested_and_its_neighbour_is_not() -> None:
    async with world(16 * 1024, overuse="evict", overuse_grace=0) as it:
        pod, beside = memory(it.inventory, 0, 4), memory(it.inventory, 0, 2)
        uid, other = await admitted(it, pod), await admitted(it, beside)
        await uses(it, uid, 5000)
        await uses(it, other, 2048, pid=8)
        await until(lambda: requested(it, pod))
        found = requested(it, pod)
        assert found is not None
        assert (found.gpu, found.used, found.requested) == (0, 5000, 4096)
        assert requested(it, beside) is None
        await uses(it, uid, 4096)
        await until(lambda: requested(it, pod) is None)
        assert requested(it, beside) is None


@pytest.mark.usefixtures("often")
async def test_a_pod_that_takes_no_annotation_hinders_nobody_and_is_requested_itself() -> None:
    """Its owner has filled them, so the API server takes no change of them."""
    async with world(32 * 1024, overuse="evict", overuse_grace=0) as it:
        poison, second = memory(it.inventory, 0, 4), memory(it.inventory, 0, 2)
        full = path_of(poison)
        answer = it.api._patch

        async def patch(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if request.path.startswith(full):
                return status(422, "Invalid", "metadata.annotations: Too long: may not be more than 262144 bytes")
            return await answer(request, body)

        it.api._patch = patch  # type: ignore[method-assign]
        for place, pod in enumerate((poison, second)):
            await uses(it, await admitted(it, pod), 5000, pid=7 + place)
        await until(lambda: requested(it, poison) and requested(it, second))
        await it.api.remove(full)
        await until(lambda: not requested(it, poison))
        assert requested(it, second)


@pytest.mark.usefixtures("often")
async def test_the_settings_are_those_of_the_plugin() -> None:
    async with world(16 * 1024, overuse="evict", overuse_grace=3600, unstartable="evict") as it:
        pod, never = memory(it.inventory, 0, 4), memory(it.inventory, 0, 2)
        await uses(it, await admitted(it, pod), 5000)
        await until(lambda: it.plugin._memory.over)
        it.plugin.node.starts.starts_never[await admitted(it, never)] = 0
        await until(lambda: requested(it, never))
        assert requested(it, pod) is None


@pytest.mark.usefixtures("often")
def test_no_pod_is_ever_requested_that_did_not_exceed_its_units() -> None:
    """Random process trees; a process ends and another pod's gets its number, between any two questions."""
    for seed in range(8):
        asyncio.run(_course(random.Random(seed)))


async def _course(chance: random.Random) -> None:
    async with world(32 * 1024, overuse="evict", overuse_grace=0) as it:
        pods = {await admitted(it, pod): pod for pod in [memory(it.inventory, 0, size) for size in (2, 3, 4, 5)]}
        uids = list(pods)
        greedy = chance.choice(uids)
        of = it.nvml.using.setdefault(it.inventory.by_index[0].uuid, [])
        for step in range(40):
            pid = chance.randint(1, 12)
            uid = chance.choice([*uids, ""])
            # Each process of the others is a twelfth of what its pod may use at most: twelve of them are within its units.
            share = {one: (2 + place) * 1024 // 12 for place, one in enumerate(uids)}
            of[:] = [one for one in of if one[0] != pid]
            it.host.processes[pid] = 1000 + step, uid
            of.append((pid, (share.get(uid, 300)) * 1024 * 1024))
            await asyncio.sleep(0.002)
        it.host.processes[99] = 99, greedy
        of.append((99, 6 * GIB))
        await until(lambda: requested(it, pods[greedy]))
        for uid, pod in pods.items():
            assert uid == greedy or requested(it, pod) is None

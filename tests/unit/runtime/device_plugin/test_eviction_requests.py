# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod that uses too much for too long is requested to be evicted; no other pod, and in doubt none."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.overuse import EvictionRequest, Evictions, Excess
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.publish import eviction_requests
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.device_plugin.plugin import NODE, World, admitted, path_of, reported, uses, world
from unit.runtime.kube.fake_api import fail, status, until

GIB = 1024
EVICT: dict[str, Any] = {"overuse": "evict", "overuse_grace": 0}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(eviction_requests, "INTERVAL_SECONDS", 0.02)


def evictions(it: World) -> Evictions | None:
    """The node's annotation."""
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/evictions")
    return Evictions.from_json(text) if text else None


def requested(it: World, pod: dict[str, Any]) -> EvictionRequest | None:
    found = evictions(it)
    return next((one for one in found.requests if one.uid == pod["metadata"]["uid"]), None) if found else None


async def test_the_pod_that_exceeds_is_requested_and_its_neighbour_is_not() -> None:
    async with world(16 * GIB, **EVICT) as it:
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


async def test_nothing_is_requested_before_the_grace_is_over_and_with_report_never() -> None:
    for settings in ({"overuse": "evict", "overuse_grace": 3600}, {"overuse": "report", "overuse_grace": 0}):
        async with world(16 * GIB, **settings) as it:
            pod = memory(it.inventory, 0, 4)
            await uses(it, await admitted(it, pod), 5000)
            await until(lambda it=it: it.plugin._memory.over)
            await asyncio.sleep(0.2)
            assert requested(it, pod) is None


async def test_requests_of_a_former_process_end_where_nothing_is_due() -> None:
    for left in (Evictions((EvictionRequest("u", 0, 5000, 4096, 60),), 1_800_000_000).to_json(), "odd"):
        async with world(16 * GIB, overuse="report") as it:
            await it.api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {"gpushare/evictions": left}}})
            await until(lambda it=it: "gpushare/evictions" not in it.api.objects[NODE]["metadata"]["annotations"])


async def test_requests_that_the_api_server_does_not_take_are_sent_again() -> None:
    async with world(16 * GIB, **EVICT) as it:
        pod = memory(it.inventory, 0, 4)
        uid = await admitted(it, pod)
        await until(lambda: it.annotations(pod).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true")
        it.api.faults = [fail(500)] * 2
        await uses(it, uid, 5000)
        await until(lambda: requested(it, pod))


async def test_a_pod_that_takes_no_annotation_hinders_nobody_and_is_requested_itself() -> None:
    """Its owner has filled them, so the API server takes no change of them."""
    async with world(32 * GIB, **EVICT) as it:
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


async def test_a_pod_that_vanishes_is_requested_no_more() -> None:
    async with world(16 * GIB, **EVICT) as it:
        pods = [memory(it.inventory, 0, 4), memory(it.inventory, 0, 2)]
        for place, pod in enumerate(pods):
            await uses(it, await admitted(it, pod), 5000, pid=7 + place)
        await until(lambda: all(requested(it, pod) for pod in pods))
        await it.api.remove(path_of(pods[0]))
        await until(lambda: not requested(it, pods[0]))
        assert requested(it, pods[1])


async def test_requests_are_renewed_before_they_end_and_whatever_else_stands_there_is_replaced() -> None:
    async with world(16 * GIB, **EVICT) as it:
        pod = memory(it.inventory, 0, 4)
        await uses(it, await admitted(it, pod), 5000)
        await until(lambda: requested(it, pod))
        first = evictions(it)
        assert first is not None

        def writes() -> int:
            return sum(body.get("kind") != "Event" for body in it.api.bodies)

        before = writes()
        await asyncio.sleep(0.2)
        assert writes() == before, "its use and its time change all the while"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(eviction_requests, "RENEW_BEFORE", 1000.0)
            await until(lambda: writes() > before)
        for other in ("odd", Evictions(first.requests, first.until + 10_000).to_json(), Evictions((), first.until).to_json()):
            node = it.api.objects[NODE]
            node["metadata"]["annotations"]["gpushare/evictions"] = other
            await it.api.put(NODE, node)
            await until(lambda other=other: it.api.objects[NODE]["metadata"]["annotations"]["gpushare/evictions"] != other)
            assert requested(it, pod)


class Lasting:
    """Pods that have exceeded for so long, in seconds."""

    def __init__(self, it: World, lasts: dict[str, float]) -> None:
        self.lasts = lasts
        self._gpu = it.inventory.by_index[0].uuid

    def lasting(self, seconds: float) -> dict[tuple[str, str], Excess]:
        now = time.monotonic()
        return {(uid, self._gpu): Excess(2, 1, now - lasts) for uid, lasts in self.lasts.items() if lasts >= seconds}


async def test_of_more_pods_than_are_read_those_that_last_longest_are_requested() -> None:
    async with world(16 * GIB) as it:
        pods = [memory(it.inventory, 0, 1) for _ in range(4)]
        for pod in pods:
            await it.bind(pod)
        uids = [pod["metadata"]["uid"] for pod in pods]
        await until(lambda: all(it.plugin.node.pods.get(uid) for uid in uids))
        memory_ = Lasting(it, dict(zip(uids, (30.0, 99.0, 5.0, 60.0), strict=True)))
        subject = eviction_requests.EvictionRequests(
            it.plugin.node, NodePublisher(it.plugin.node, it.plugin._client, "gpu1"), memory_, "evict", 10.0
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(eviction_requests, "MOST_EVICTIONS", 2)
            patched.setattr(eviction_requests, "doubt", lambda *_: "")
            assert list(subject._requests()) == [uids[1], uids[3]]


async def test_in_doubt_nothing_is_done_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async with world(16 * GIB, **EVICT) as it:
        pod = memory(it.inventory, 0, 4)
        uid = await admitted(it, pod)
        # kubelet's record has less than the pod requested: what is due to the pod is not known.
        it.plugin.node.usage.recorded_ids = lambda *_: frozenset()  # type: ignore[method-assign]
        await uses(it, uid, 5000)
        await until(lambda: "its eviction is not requested: kubelet's checkpoint lists other units" in caplog.text)
        await asyncio.sleep(0.1)
        assert requested(it, pod) is None
        assert caplog.text.count("its eviction is not requested") == 1
        await it.api.remove(path_of(pod))


def test_no_pod_is_ever_requested_that_did_not_exceed_its_units() -> None:
    """Random process trees; a process ends and another pod's gets its number, between any two questions."""
    for seed in range(8):
        asyncio.run(_course(random.Random(seed)))


async def _course(chance: random.Random) -> None:
    async with world(32 * GIB, **EVICT) as it:
        pods = {await admitted(it, pod): pod for pod in [memory(it.inventory, 0, size) for size in (2, 3, 4, 5)]}
        uids = list(pods)
        greedy = chance.choice(uids)
        of = it.nvml.using.setdefault(it.inventory.by_index[0].uuid, [])
        for step in range(40):
            pid = chance.randint(1, 12)
            uid = chance.choice([*uids, ""])
            # Each process of the others is a twelfth of what its pod may use at most: twelve of them are within its units.
            share = {one: (2 + place) * GIB // 12 for place, one in enumerate(uids)}
            of[:] = [one for one in of if one[0] != pid]
            it.host.processes[pid] = 1000 + step, uid
            of.append((pid, (share.get(uid, 300)) * 1024 * 1024))
            await asyncio.sleep(0.002)
        it.host.processes[99] = 99, greedy
        of.append((99, 6 * GIB * 1024 * 1024))
        await until(lambda: requested(it, pods[greedy]))
        for uid, pod in pods.items():
            assert uid == greedy or requested(it, pod) is None


async def test_a_pod_that_starts_never_is_requested_if_that_is_chosen_unless_something_of_it_runs() -> None:
    async with world(16 * GIB, unstartable="evict") as it:
        pod = memory(it.inventory, 0, 4)
        it.plugin.node.allocator.starts_never[await admitted(it, pod)] = 0
        await until(lambda: requested(it, pod))
        found = requested(it, pod)
        assert found is not None
        assert (found.gpu, found.reason) == (0, "starts-never")
        await reported(it, pod)
        await until(lambda: requested(it, pod) is None)
    async with world(16 * GIB, **EVICT) as it:
        other = memory(it.inventory, 0, 4)
        it.plugin.node.allocator.starts_never[await admitted(it, other)] = 0
        await asyncio.sleep(0.2)
        assert requested(it, other) is None

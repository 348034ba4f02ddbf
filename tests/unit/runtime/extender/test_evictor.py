# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod is evicted at the request of its node through the Eviction API, and nobody else is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.overuse import EvictionRequest
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.extender import evictor as subject
from gpushare_runtime.extender.cache import Cluster
from gpushare_runtime.extender.evictor import Evictor
from unit.runtime.core.test_ledger import allocated_pod, memory, on, whole
from unit.runtime.kube.fake_api import FakeApi, Json, connected, serving, status, until
from unit.runtime.pods import container, inventory, pod

NOW = 1_800_000_000
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


def request(card: int = 0, until_: int = NOW + 90) -> str:
    return EvictionRequest(card, 9000, 4096, 60, until_).to_json()


def wanted(uid: str = "a", text: str | None = None) -> AllocatedPod:
    return replace(allocated_pod(uid, memory(4), on(0, 4)), evict=request() if text is None else text)


class World:
    """An extender's cache, and what was reported about pods."""

    def __init__(self, *pods: AllocatedPod) -> None:
        self.now, self.clock, self.active = float(NOW), 100.0, True
        self.events: list[tuple[str, str, str]] = []
        self.cluster = Cluster()
        self.cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
        for each in pods:
            self.cluster.pod_event("ADDED", each)
        self.evictor = Evictor(
            self.cluster,
            lambda pod, reason, message: self.events.append((pod.name, reason, message)),
            active=lambda: self.active,
            now=lambda: self.now,
            clock=lambda: self.clock,
        )

    def due(self) -> list[str]:
        return [pod.uid for pod in self.evictor.due()]


def test_only_a_request_in_force_about_a_card_of_the_pod_counts(caplog: pytest.LogCaptureFixture) -> None:
    good = wanted("good")
    bad = {
        "ended": wanted("ended", request(until_=NOW)),
        "forever": wanted("forever", request(until_=NOW + 10_000)),
        "other-card": wanted("other-card", request(card=1)),
        "static": replace(wanted("static"), mirror=True),
        "whole": replace(allocated_pod("whole", whole(1), on(0, 16)), evict=request()),
        "going": replace(wanted("going"), terminating=True),
        "broken": wanted("broken", "{"),
        "nobody": replace(wanted("nobody"), evict=""),
    }
    unknown = replace(wanted("card-not-known"), allocation=None)
    world = World(good, unknown, *bad.values())
    for _ in range(2):
        assert world.due() == ["good", "card-not-known"]
        # Said, and once.
        for uid in (*bad, "good", "card-not-known"):
            said = uid not in ("good", "card-not-known", "going", "nobody")
            assert sum(f"/{uid} on node" in record.message for record in caplog.records) == said, uid
    # What was withdrawn and comes again is another request.
    world.cluster.pod_event("MODIFIED", replace(wanted("broken"), evict=""))
    world.due()
    world.cluster.pod_event("MODIFIED", bad["broken"])
    world.due()
    assert sum("/broken on node" in record.message for record in caplog.records) == 2


def test_a_pod_that_has_gone_or_keeps_to_its_units_again_is_left_alone() -> None:
    world = World(wanted("a"), wanted("b"), wanted("c"))
    world.cluster.pod_event("DELETED", wanted("a"))
    world.cluster.pod_event("MODIFIED", replace(wanted("b"), evict=""))
    assert world.due() == ["c"]
    world.cluster.replace_pods([])
    assert world.due() == []


def test_the_request_is_read_from_the_pod_and_never_from_one_without_a_node() -> None:
    raw = pod(container(mem=4), uid="a", annotations={"gpushare/evict": request()})
    raw["spec"]["nodeName"] = "n"
    read = PodReader()(raw)
    assert isinstance(read, AllocatedPod)
    assert read.evict == request()
    cluster = Cluster()
    cluster.pod_event("ADDED", read)
    assert list(cluster.to_evict) == ["a"]
    pending = PodReader()(pod(container(mem=4), uid="b", annotations={"gpushare/evict": request()}))
    assert pending is not None
    cluster.pod_event("ADDED", pending)
    assert list(cluster.to_evict) == ["a"]


class Evictions(FakeApi):
    """answers: to Evictions, one after the other; then success."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, Json]] = []
        self.answers: list[web.Response] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/eviction"):
            self.asked.append((request.path, await request.json()))
            return self.answers.pop(0) if self.answers else web.json_response({"kind": "Status", "status": "Success"}, status=201)
        return await super().handle(request)


async def running(world: World, tmp_path: Path, api: Evictions, body: Any) -> None:
    async with serving(api), connected(api, tmp_path) as client:
        task = asyncio.ensure_future(world.evictor.run(client))
        try:
            await body(api)
        finally:
            task.cancel()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "INTERVAL_SECONDS", 0.01)


def results(world: World) -> dict[str, float]:
    (family,) = world.evictor.families()
    return {sample.labels["result"]: sample.value for sample in family.samples}


def test_the_eviction_names_the_pod_by_its_uid(tmp_path: Path) -> None:
    world = World(wanted("a"))

    async def body(api: Evictions) -> None:
        await until(lambda: world.events)
        await asyncio.sleep(0.1)
        assert api.asked == [
            (
                "/api/v1/namespaces/default/pods/a/eviction",
                {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": "a", "namespace": "default"},
                    "deleteOptions": {"preconditions": {"uid": "a"}},
                },
            )
        ]
        why = "it uses more than the 4096 MiB of card 0 that it requested, for 60 s; now 9000 MiB"
        assert world.events == [("a", "GPUShareEvicted", f"It is evicted, because {why}; reduce its use, or request more")]
        assert results(world) == {"evicted": 1, "blocked": 0, "failed": 0}

    asyncio.run(running(world, tmp_path, Evictions(), body))


def test_a_budget_is_respected_and_the_eviction_tried_again_later(tmp_path: Path) -> None:
    world, api = World(wanted("a")), Evictions()
    api.answers = [status(429, "TooManyRequests", BUDGET), status(500, "InternalError", "two budgets")]

    async def body(api: Evictions) -> None:
        await until(lambda: len(world.events) == 1)
        await asyncio.sleep(0.2)
        assert len(api.asked) == 1, "not at once"
        assert world.events[0][1:] == (
            "GPUShareNotEvicted",
            "It is to be evicted, because it uses more than the 4096 MiB of card 0 that it requested. But a disruption budget does not "
            f"allow it now: {BUDGET}",
        )
        world.clock += subject.FIRST_WAIT
        await until(lambda: len(world.events) == 2)
        assert "the API server did not do it: two budgets" in world.events[1][2]
        # Each wait is longer: this one at least five seconds.
        world.clock += subject.FIRST_WAIT - 0.1
        assert world.due() == []
        world.clock += subject.LONGEST_WAIT
        await until(lambda: results(world) == {"evicted": 1, "blocked": 1, "failed": 1})

    asyncio.run(running(world, tmp_path, api, body))


def test_a_request_that_was_withdrawn_and_comes_again_does_not_wait_for_the_former_one(tmp_path: Path) -> None:
    world, api = World(wanted("a")), Evictions()
    api.answers = [status(429, "TooManyRequests", BUDGET)]

    async def body(api: Evictions) -> None:
        await until(lambda: world.events)
        world.cluster.pod_event("MODIFIED", replace(wanted("a"), evict=""))
        assert world.due() == []
        world.cluster.pod_event("MODIFIED", wanted("a"))
        await until(lambda: results(world)["evicted"] == 1)

    asyncio.run(running(world, tmp_path, api, body))


@pytest.mark.parametrize("code", [404, 409])
def test_another_pod_under_the_same_name_stays(tmp_path: Path, code: int) -> None:
    world, api = World(wanted("a")), Evictions()
    api.answers = [status(code, "Conflict", "the UID in the precondition does not match")]

    async def body(api: Evictions) -> None:
        await until(lambda: api.asked)
        await asyncio.sleep(0.1)
        assert (world.events, sum(results(world).values())) == ([], 0)

    asyncio.run(running(world, tmp_path, api, body))


def test_only_the_leader_evicts(tmp_path: Path) -> None:
    world = World(wanted("a"))
    world.active = False

    async def body(api: Evictions) -> None:
        await asyncio.sleep(0.2)
        assert api.asked == []
        world.active = True
        await until(lambda: api.asked)

    asyncio.run(running(world, tmp_path, Evictions(), body))

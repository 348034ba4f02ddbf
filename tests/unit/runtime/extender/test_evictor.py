# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod is evicted at the request of its node through the Eviction API, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.objects import PodReader, read_node
from gpushare_runtime.core.overuse import STARTS_NEVER, EvictionRequest, Evictions
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.daemon.listener import RateLimit
from gpushare_runtime.extender import evictor as subject
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.evictor import Evictor
from unit.fakes.runtime.kube.fake_api import FakeApi, Json, connected, serving, status, stays, until
from unit.fakes.runtime.pods import allocated_pod, container, inventory, memory, on, pod, whole
from unit.golden import Golden

NOW = 1_800_000_000
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
WHY = "it uses more than the 4096 MiB of GPU 0 that it requested"


def request(uid: str, gpu: int = 0) -> EvictionRequest:
    return EvictionRequest(uid, gpu, 9000, 4096, 60)


def on_a_gpu(uid: str) -> AllocatedPod:
    return allocated_pod(uid, memory(4), on(0, 4))


class World:
    """An extender's cache, and what was reported about pods. Node n requests the eviction of all of these pods.

    passes: how often the evictor has asked whether it is the leader.
    """

    def __init__(self, *pods: AllocatedPod, pause: float = 0.0) -> None:
        self.now, self.clock, self.active, self.passes = float(NOW), 100.0, True, 0
        self.events: list[tuple[str, str, str]] = []
        self.cluster = ClusterCache()
        for each in pods:
            self.cluster.pod_event("ADDED", each)
        self.ask(*(request(each.uid) for each in pods))
        self.evictor = Evictor(
            self.cluster,
            lambda pod, reason, message: self.events.append((pod.name, reason, message)),
            active=self._asked,
            now=lambda: self.now,
            clock=lambda: self.clock,
            pause=pause,
        )

    def _asked(self) -> bool:
        self.passes += 1
        return self.active

    def ask(self, *requests: EvictionRequest, node: str = "n", until: int = NOW + 90) -> None:
        """As the node's annotation says from now on."""
        raw = {"metadata": {"name": node, "annotations": {"gpushare/evictions": Evictions(requests, until).to_json()}}}
        self.write(raw)

    def write(self, raw: Any) -> None:
        raw["metadata"]["annotations"]["gpushare/gpus"] = inventory(16).to_json()
        self.cluster.node_event("MODIFIED", read_node(raw))

    def due(self) -> list[str]:
        return list(self.evictor.due())


def test_only_a_request_about_a_gpu_of_a_pod_of_that_node_counts(caplog: pytest.LogCaptureFixture) -> None:
    bad = {
        "other-gpu": on_a_gpu("other-gpu"),
        "other-node": replace(on_a_gpu("other-node"), node="m"),
        "static": replace(on_a_gpu("static"), mirror=True),
        "whole": allocated_pod("whole", whole(1), on(0, 16)),
        "going": replace(on_a_gpu("going"), terminating=True),
    }
    world = World(on_a_gpu("good"), replace(on_a_gpu("gpu-not-known"), allocation=None), *bad.values())
    world.ask(*(request(uid, int(uid == "other-gpu")) for uid in ("good", "gpu-not-known", *bad, "vanished")))
    for _ in range(2):
        assert world.due() == ["good", "gpu-not-known"]
        world.now += 1
        # Said, and once.
        for uid in (*bad, "good", "gpu-not-known", "vanished"):
            said = uid not in ("good", "gpu-not-known", "going", "vanished")
            assert sum(f"/{uid} on node" in record.message for record in caplog.records) == said, uid
    # What was withdrawn and comes again is another request.
    world.ask()
    assert world.due() == []
    world.ask(request("static"))
    assert world.due() == []
    assert sum("/static on node" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize(
    ("until", "said"), [(NOW, "they ended at 1800000000"), (NOW + 10_000, "they end only at 1800010000"), (NOW + 90, "")]
)
def test_requests_end_and_cannot_last(caplog: pytest.LogCaptureFixture, until: int, said: str) -> None:
    world = World(on_a_gpu("a"))
    world.ask(request("a"), until=until)
    for _ in range(3):
        assert world.due() == [] if said else ["a"]
        world.now += 0.5
    assert [said in record.message for record in caplog.records if record.levelname == "WARNING"] == [True] * bool(said)


def test_an_annotation_that_cannot_be_used_is_that_nodes_fault_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World(on_a_gpu("a"))
    world.write({"metadata": {"name": "odd", "annotations": {"gpushare/evictions": "["}}})
    for _ in range(2):
        assert world.due() == ["a"]
    assert (
        sum("node odd requests evictions, and they are not followed: annotation gpushare/evictions" in r.message for r in caplog.records)
        == 1
    )
    # It can still take pods.
    odd = world.cluster.ledger.nodes["odd"]
    assert (odd.inventory_error, odd.free) == ("", 16)


def test_a_node_that_names_others_pods_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World(*(on_a_gpu(f"p{number}") for number in range(300)))
    world.ask()
    for number in range(0, 300, 50):
        world.ask(*(request(f"p{one}") for one in range(number, number + 50)), node="m")
        assert world.due() == []
    assert 0 < sum("is not evicted" in record.message for record in caplog.records) <= 20


def test_a_pod_that_has_gone_or_keeps_to_its_units_again_is_left_alone() -> None:
    world = World(on_a_gpu("a"), on_a_gpu("b"), on_a_gpu("c"))
    world.cluster.pod_event("DELETED", on_a_gpu("a"))
    world.ask(request("a"), request("c"))
    assert world.due() == ["c"]
    world.cluster.replace_pods([])
    assert world.due() == []


def test_a_pod_that_is_only_about_to_be_bound_is_not_evicted() -> None:
    world = World()
    world.cluster.ledger.reserve(on_a_gpu("reserved"), 1000.0)
    world.cluster.assume(on_a_gpu("assumed"))
    world.ask(request("reserved"), request("assumed"))
    assert world.due() == []
    world.cluster.pod_event("MODIFIED", on_a_gpu("assumed"))
    assert world.due() == ["assumed"]


def test_nothing_on_a_pod_requests_its_eviction() -> None:
    """Its owner may write there what he likes."""
    world = World(on_a_gpu("a"))
    world.ask()
    before = '{"v":1,"gpu":0,"used":9000,"requested":4096,"seconds":60,"until":1800000090}'
    raw = pod(
        container(mem=4),
        uid="a",
        annotations={"gpushare/evict": before, "gpushare/evictions": Evictions((request("a"),), NOW + 90).to_json()},
    )
    raw["spec"]["nodeName"] = "n"
    read = PodReader()(raw)
    assert isinstance(read, AllocatedPod)
    world.cluster.pod_event("MODIFIED", read)
    assert world.due() == []


def test_requests_follow_events_and_lists_of_nodes() -> None:
    world = World(on_a_gpu("a"))
    asks = world.cluster.ledger.nodes["n"].record
    for gone in (lambda: world.cluster.node_event("DELETED", asks), lambda: world.cluster.replace_nodes([])):
        world.cluster.node_event("MODIFIED", asks)
        assert world.due() == ["a"]
        gone()
        assert (world.due(), dict(world.cluster.evictions)) == ([], {})
    world.cluster.replace_nodes([asks])
    assert world.due() == ["a"]


def test_requests_that_are_renewed_change_nothing_else() -> None:
    world = World(on_a_gpu("a"))
    world.cluster.changed.clear()
    freed: list[int] = []
    world.cluster.on_capacity_freed = lambda by="": freed.append(1)
    world.ask(request("a"), until=NOW + 100)
    assert (world.cluster.evictions["n"].until, world.cluster.changed.is_set(), freed) == (NOW + 100, False, [])


class Answers(FakeApi):
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


@asynccontextmanager
async def running(world: World, tmp_path: Path, api: Answers) -> AsyncIterator[Answers]:
    async with serving(api), connected(api, tmp_path) as client:
        task = asyncio.ensure_future(world.evictor.run(client))
        try:
            yield api
        finally:
            task.cancel()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "INTERVAL_SECONDS", 0.01)
    # Each test has a minute of its own.
    monkeypatch.setattr(subject.rejections, "filters", [RateLimit(most=20)])


def results(world: World) -> dict[str, float]:
    (family,) = world.evictor.families()
    return {sample.labels["result"]: sample.value for sample in family.samples}


async def test_the_eviction_names_the_pod_by_its_uid(tmp_path: Path) -> None:
    world = World(on_a_gpu("a"))
    async with running(world, tmp_path, Answers()) as api:
        await until(lambda: world.events)
        await stays(lambda: len(api.asked) == 1, lambda: world.passes)
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
        why = f"{WHY}, for 60 s; now 9000 MiB"
        assert world.events == [("a", "GPUShareEvicted", f"It is evicted, because {why}; reduce its use, or request more")]
        assert results(world) == {"evicted": 1, "blocked": 0, "failed": 0}


def budget(message: str = "The disruption budget b needs 1 healthy pods and has 1 currently") -> web.Response:
    """As `checkAndDecrement` of the API server answers."""
    return status(429, "TooManyRequests", BUDGET, details={"causes": [{"reason": "DisruptionBudget", "message": message}]})


async def test_a_budget_is_respected_and_the_eviction_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world, api = World(on_a_gpu("a")), Answers()
    two = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    api.answers = [budget(), status(500, "", two), budget("")]
    async with running(world, tmp_path, api) as api:
        for count, said in enumerate(("The disruption budget b needs 1 healthy pods and has 1 currently", two, BUDGET), 1):
            await until(lambda count=count: len(world.events) == count)
            await stays(lambda count=count: len(api.asked) == count, lambda: world.passes)
            reason, text = world.events[-1][1:]
            assert (reason, text) == (
                "GPUShareNotEvicted",
                f"It is to be evicted, because {WHY}. But a disruption budget does not allow it: {said}",
            )
            assert f"pod default/a on node n cannot be evicted now, it is tried again: {said}" in caplog.text
            assert results(world) == {"evicted": 0, "blocked": count, "failed": 0}
            # Each wait is longer, the second at least five seconds.
            world.clock += subject.FIRST_WAIT - 0.1 if count == 2 else 0
            assert world.due() == []
            world.clock += subject.LONGEST_WAIT
        await until(lambda: results(world) == {"evicted": 1, "blocked": 3, "failed": 0})


@pytest.mark.parametrize(
    "answer",
    [
        lambda: status(500, "InternalError", "no database"),
        lambda: web.Response(status=429, text="Too many requests, please try again later."),
        lambda: status(429, "TooManyRequests", "the server is busy", details={"causes": 7, "retryAfterSeconds": 1}),
        lambda: status(
            403, "Forbidden", "a webhook denied it", details={"causes": [7, {}, {"reason": "Other", "message": "DisruptionBudget"}]}
        ),
    ],
    ids=["fault", "priority and fairness", "busy", "webhook"],
)
async def test_what_is_no_budget_is_a_failure(tmp_path: Path, answer: Callable[[], web.Response], golden: Golden) -> None:
    world, api = World(on_a_gpu("a")), Answers()
    api.answers = [answer()]
    async with running(world, tmp_path, api):
        await until(lambda: world.events)
        golden(world.events[0][2])
        assert results(world) == {"evicted": 0, "blocked": 0, "failed": 1}
        world.clock += subject.LONGEST_WAIT
        await until(lambda: results(world)["evicted"] == 1)


async def test_a_pod_whose_budget_keeps_it_for_ever_hinders_no_other(tmp_path: Path) -> None:
    world = World(on_a_gpu("a"), on_a_gpu("b"))

    class Kept(Answers):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/pods/a/eviction"):
                return budget()
            return await super().handle(request)

    async with running(world, tmp_path, Kept()) as api:
        await until(lambda: results(world) == {"evicted": 1, "blocked": 1, "failed": 0})
        assert [path.split("/")[-2] for path, _ in api.asked] == ["b"]


async def test_a_pause_lies_between_two_pods_and_none_after_one_that_stays(tmp_path: Path) -> None:
    world, api = World(*map(on_a_gpu, "abc"), pause=300.0), Answers()
    api.answers = [budget()]
    async with running(world, tmp_path, api):
        await until(lambda: results(world) == {"evicted": 1, "blocked": 1, "failed": 0})
        await stays(lambda: results(world)["evicted"] == 1, lambda: world.passes)
        world.clock += 299.0
        await stays(lambda: results(world)["evicted"] == 1, lambda: world.passes)
        world.clock += 1.0
        await until(lambda: results(world)["evicted"] == 2)
        await stays(lambda: results(world)["evicted"] == 2, lambda: world.passes)


async def test_a_request_that_was_withdrawn_and_comes_again_does_not_wait_for_the_former_one(tmp_path: Path) -> None:
    world, api = World(on_a_gpu("a")), Answers()
    api.answers = [budget()]
    async with running(world, tmp_path, api):
        await until(lambda: world.events)
        world.ask()
        assert world.due() == []
        world.ask(request("a"))
        await until(lambda: results(world)["evicted"] == 1)


@pytest.mark.parametrize("code", [404, 409])
async def test_another_pod_under_the_same_name_stays(tmp_path: Path, code: int) -> None:
    world, api = World(on_a_gpu("a")), Answers()
    api.answers = [status(code, "Conflict", "the UID in the precondition does not match")]
    async with running(world, tmp_path, api) as api:
        await until(lambda: api.asked)
        await stays(lambda: (world.events, sum(results(world).values())) == ([], 0), lambda: world.passes)


async def test_only_the_leader_evicts(tmp_path: Path) -> None:
    world = World(on_a_gpu("a"))
    world.active = False
    async with running(world, tmp_path, Answers()) as api:
        await stays(lambda: api.asked == [], lambda: world.passes)
        world.active = True
        await until(lambda: api.asked)


@pytest.mark.parametrize(
    ("meanwhile", "evicted"),
    [
        (lambda world: None, ["a", "b", "c"]),
        (lambda world: setattr(world, "active", False), ["a"]),
        (lambda world: world.ask(request("a"), request("c")), ["a", "c"]),
        (lambda world: setattr(world, "now", world.now + 90), ["a"]),
        (lambda world: world.cluster.pod_event("DELETED", on_a_gpu("b")), ["a", "c"]),
    ],
    ids=["nothing", "another leads", "withdrawn", "ended", "gone"],
)
async def test_what_changes_while_the_api_server_is_slow_counts_before_the_next_eviction(
    tmp_path: Path, meanwhile: Callable[[World], None], evicted: list[str]
) -> None:
    world = World(*map(on_a_gpu, "abc"))

    class Slow(Answers):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/pods/a/eviction"):
                meanwhile(world)
            return await super().handle(request)

    async with running(world, tmp_path, Slow()) as api:
        await until(lambda: len(api.asked) == len(evicted))
        await stays(lambda: [path.split("/")[-2] for path, _ in api.asked] == evicted, lambda: world.passes)


def test_a_pod_with_whole_gpus_that_starts_never_is_evicted() -> None:
    world = World(allocated_pod("whole", whole(1), on(0, 16)))
    world.ask(replace(request("whole"), reason=STARTS_NEVER))
    assert world.due() == ["whole"]

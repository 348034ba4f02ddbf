# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod that was rejected a moment too early is brought back to the scheduler, one at a time and never without need."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.placement.view import seen_by
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, InvalidPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.core.reservation import Group
from gpushare_runtime.extender.cache import UNSEEN_SECONDS, ClusterCache
from gpushare_runtime.extender.extender_v1 import Arguments
from gpushare_runtime.extender.requeue import MOST_UNSCHEDULABLE, Requeue
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.kube.client import KubeError
from unit.fakes.runtime.pods import allocated_pod, container, inventory, memory, on, pod


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def full(*waiting: str) -> tuple[ClusterCache, Requeue, Verbs]:
    """One GPU of 16, held by "old"; the waiting pods ask for 6 each and were rejected in this order."""
    cluster = ClusterCache()
    requeue = Requeue(cluster, Binpack(), clock=Clock())
    cluster.on_capacity_freed = requeue.on_capacity_freed
    service = Verbs(cluster.ledger, Binpack(), requeue.on_filter)
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    cluster.pod_event("ADDED", allocated_pod("old", memory(16), on(0, 16)))
    for uid in waiting:
        cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(6)))
        ask(service, uid)
    return cluster, requeue, service


def ask(service: Verbs, uid: str) -> list[str]:
    return service.filter(Arguments(pod(container(mem=6), uid=uid), ["n"])).names


def test_of_many_alike_one_answer_is_enough_also_while_somebody_is_nominated(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [f"p{number}" for number in range(50)]
    cluster, requeue, _ = full(*waiting)
    for number in range(10):
        cluster.node_event("ADDED", NodeRecord(f"small{number}", inventory(4)))
    for uid in waiting:
        requeue.on_filter(uid, list(cluster.ledger.nodes))
    cluster.pod_event("ADDED", PendingPod("nominated", "default", "nominated", memory(6), nominated="n"))
    requeue.on_filter("nominated", list(cluster.ledger.nodes))
    cluster.pod_event("MODIFIED", allocated_pod("old", memory(10), on(0, 10)))
    looked_at: list[str] = []
    monkeypatch.setattr("gpushare_runtime.extender.requeue.seen_by", lambda *each: (looked_at.append(each[2].name), seen_by(*each))[1])
    requeued = requeue.next()
    assert requeued is not None
    assert requeued.uid == "nominated", "the room is its own, and nobody else's"
    assert len(looked_at) <= 2 * len(cluster.ledger.nodes)


def test_who_comes_and_goes_without_any_room_is_forgotten() -> None:
    cluster, now = ClusterCache(), [100.0]
    requeue = Requeue(cluster, Binpack(), clock=lambda: now[0])
    for number in range(3 * MOST_UNSCHEDULABLE):
        now[0] += 0.01
        requeue.on_filter(f"gone-{number}", ["n"])
    assert len(requeue._unschedulable) < MOST_UNSCHEDULABLE + 2 * UNSEEN_SECONDS / 0.01
    # Who waits is not forgotten, however many they are, and whom no watch may have shown yet is neither.
    for number in range(2 * MOST_UNSCHEDULABLE):
        cluster.pod_event("ADDED", PendingPod(f"p{number}", "default", f"p{number}", memory(6)))
        requeue.on_filter(f"p{number}", ["n"])
    now[0] += 2 * UNSEEN_SECONDS
    for number in range(4 * MOST_UNSCHEDULABLE):
        requeue.on_filter(f"new-{number}", ["n"])
    assert requeue._unschedulable.keys() >= {f"p{number}" for number in range(2 * MOST_UNSCHEDULABLE)}
    assert requeue._unschedulable.keys() >= {f"new-{number}" for number in range(4 * MOST_UNSCHEDULABLE)}


def test_the_longest_waiting_that_fits_is_requeued_once_for_this_room() -> None:
    cluster, requeue, _ = full("first", "second")
    cluster.pod_event("DELETED", allocated_pod("old", memory(16), on(0, 16)))
    assert [requeue.next(), requeue.next(), requeue.next()] == [cluster.pending["first"], cluster.pending["second"], None]


def test_nobody_is_requeued_who_does_not_fit_or_has_been_asked_about_since() -> None:
    cluster, requeue, service = full("waiting")
    assert requeue.next() is None
    cluster.pod_event("MODIFIED", FinishedPod("old"))
    assert ask(service, "waiting") == ["n"]
    cluster.pod_event("ADDED", allocated_pod("other", memory(16), on(0, 16)))
    assert ask(service, "waiting") == []
    assert requeue.next() is None


def test_each_new_room_requeues_again_and_a_rejection_after_it_does_not() -> None:
    cluster, now = ClusterCache(), [100.0]
    requeue = Requeue(cluster, Binpack(), clock=lambda: now[0])
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    cluster.node_event("ADDED", NodeRecord("too-small", inventory(1)))
    pods = [PendingPod("a", "default", "a", memory(6)), InvalidPod("unreadable", "default", "unreadable", "")]
    for pod_ in pods:
        cluster.pod_event("ADDED", pod_)
        requeue.on_filter(pod_.uid, ["n"])
    assert requeue.next() is None, "there has been no room since"
    # At the same moment nobody knows which was first.
    requeue.on_capacity_freed()
    assert [requeue.next(), requeue.next()] == [pods[0], None]
    # Made anew under its UID it is another one, when no watch can be so late any more.
    now[0] += UNSEEN_SECONDS
    cluster.pod_event("DELETED", pods[0])
    assert requeue.next() is None
    cluster.pod_event("ADDED", pods[0])
    requeue.on_filter("a", ["n"])
    requeue.on_capacity_freed()
    assert [requeue.next(), requeue.next()] == [pods[0], None]
    now[0] += 1
    requeue.on_capacity_freed()
    assert [requeue.next(), requeue.next()] == [pods[0], None]
    now[0] += 1
    requeue.on_filter("a", ["n"])
    assert requeue.next() is None
    requeue.on_capacity_freed()
    assert requeue.next() == pods[0]
    # What is gone is forgotten, also under its UID.
    now[0] += UNSEEN_SECONDS
    cluster.pod_event("DELETED", pods[0])
    assert requeue.next() is None
    cluster.pod_event("ADDED", pods[0])
    requeue.on_capacity_freed()
    assert requeue.next() is None


def test_a_pod_that_wants_other_company_is_not_requeued_for_room_beside_strangers() -> None:
    cluster = ClusterCache()
    requeue = Requeue(cluster, Binpack(), clock=lambda: 100.0)
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    lonely = pod(container(mem=4), uid="lonely", labels={"app": "x"}, annotations={"gpushare.request/not-with": "app=y"})
    held = pod(
        container(mem=4), uid="held", labels={"app": "y"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4"}
    )
    held["spec"]["nodeName"] = "n"
    for raw in (lonely, held):
        record = PodReader()(raw)
        assert record is not None
        cluster.pod_event("ADDED", record)
    requeue.on_filter("lonely", ["n"])
    requeue.on_capacity_freed()
    assert requeue.next() is None
    # Nor is who others do not want to be beside.
    wary = Request(memory(4).containers, rules=Rules(not_with=(("app", "x"),)))
    cluster.pod_event("ADDED", AllocatedPod("wary", "default", "wary", "n", wary, on(0, 4)))
    cluster.pod_event("MODIFIED", FinishedPod("held"))
    cluster.pod_event("ADDED", PendingPod("unwanted", "default", "unwanted", memory(4), (("app", "x"),)))
    requeue.on_filter("unwanted", ["n"])
    requeue.on_capacity_freed()
    assert requeue.next() is None
    cluster.pod_event("MODIFIED", FinishedPod("wary"))
    requeue.on_capacity_freed()
    assert [pod.uid for pod in (requeue.next(), requeue.next()) if pod] == ["lonely", "unwanted"]


class Server:
    """Takes patches, of which those fail that `errors` has one for; says when they came."""

    def __init__(self) -> None:
        self.patches: list[tuple[float, str, object]] = []
        self.errors: dict[int, KubeError] = {}

    async def patch(self, path: str, body: object, *, kind: str, within: float) -> None:
        assert (kind, within) == ("merge", 5.0)
        self.patches.append((asyncio.get_running_loop().time(), path, body))
        if len(self.patches) in self.errors:
            raise self.errors[len(self.patches)]

    @property
    def touched(self) -> list[str]:
        return [path.split("/")[-2] for _, path, _ in self.patches]


class Scene:
    """The node n of one GPU of 16, which may have room for whoever waits, with both tasks in virtual time."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.leads = True
        self.cluster, self.server = ClusterCache(clock=clock), Server()
        self.requeue = Requeue(self.cluster, Binpack(), clock=clock, active=lambda: self.leads)
        self.cluster.on_capacity_freed = self.requeue.on_capacity_freed
        self.service = Verbs(self.cluster.ledger, Binpack(), self.requeue.on_filter, clock=clock)
        self.cluster.node_event("ADDED", NodeRecord("n", inventory(16)))

    def waits(self, uid: str, *nodes: str) -> None:
        self.cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(6)))
        self.requeue.on_filter(uid, nodes or ["n"])


@pytest.fixture
@asynccontextmanager
async def scene(virtual_time: None) -> AsyncIterator[Scene]:
    it = Scene()
    tasks = [asyncio.create_task(it.requeue.run(it.server)), asyncio.create_task(it.cluster.expire_for_ever())]  # type: ignore[arg-type]
    await asyncio.sleep(5)
    yield it
    for task in tasks:
        task.cancel()


async def test_when_the_pods_are_touched(scene: Scene) -> None:
    """A second after the room, each second another one, and nothing while nothing has changed."""
    for uid in "ab":
        scene.waits(uid)
    await asyncio.sleep(4)
    assert scene.server.patches == []
    scene.server.errors = {1: KubeError(409, "Conflict", "the next one has its turn all the same")}
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(10)
    assert scene.server.touched == ["a", "b"]
    assert [when for when, _, _ in scene.server.patches] == pytest.approx([10, 11])


async def test_a_group_is_not_tried_again_for_what_was_kept_for_it(scene: Scene) -> None:
    """One that fits nowhere would take the room from all others again and again."""
    team = Group("default/team", at_once=True)
    for uid in ("first", "second"):
        scene.cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(16), group=team))
        raw = pod(container(mem=16), uid=uid)
        raw["spec"]["schedulingGroup"] = {"podGroupName": "team"}
        scene.service.filter(Arguments(raw, ["n"]))
    scene.waits("other")
    assert ask(scene.service, "other") == []
    await asyncio.sleep(60)
    assert scene.server.touched == ["other"]
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(10)
    assert scene.server.touched == ["other", "second", "other"]


async def test_one_that_the_api_server_did_not_hear_of_has_another_turn(scene: Scene) -> None:
    again, gone = (0, 429, 500, 503), (403, 404, 409, 422)
    for status in (*again, *gone):
        scene.waits(str(status))
    scene.server.errors = {number: KubeError(status, "Whatever", "w") for number, status in enumerate((*again, *gone), 1)}
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(60)
    assert scene.server.touched == [*map(str, again), *map(str, gone), *map(str, again)]


async def test_an_api_server_that_fails_is_asked_less_and_less_often_until_it_answers(scene: Scene) -> None:
    scene.waits("a")
    scene.server.errors = {number: KubeError(503, "ServiceUnavailable", "s") for number in range(1, 1000)}
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(600)
    failed = len(scene.server.patches)
    assert failed < 150
    scene.server.errors.clear()
    await asyncio.sleep(30)
    assert len(scene.server.patches) == failed + 1
    # What came before is forgotten.
    scene.server.errors = {failed + 2: KubeError(503, "ServiceUnavailable", "s")}
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(4)
    assert len(scene.server.patches) == failed + 3


async def test_a_pod_that_got_an_answer_while_its_requeue_failed_has_no_other_turn(scene: Scene) -> None:
    for uid in "ab":
        scene.waits(uid)
    patch = scene.server.patch

    async def meanwhile(path: str, body: object, *, kind: str, within: float) -> None:
        if "/pods/a/" in path:
            ask(scene.service, "a")
        await patch(path, body, kind=kind, within=within)

    scene.server.patch = meanwhile  # type: ignore[method-assign]
    scene.server.errors = {1: KubeError(503, "ServiceUnavailable", "s")}
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    scene.waits("c")
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched == ["a", "b", "b", "c"]


@pytest.mark.parametrize("nominated", [False, True])
def test_capacity_on_a_node_with_a_fault_is_none(nominated: bool) -> None:
    cluster, requeue, _ = full("waiting")
    cluster.pod_event("MODIFIED", FinishedPod("old"))
    if nominated:
        cluster.pod_event("ADDED", PendingPod("vip", "default", "vip", memory(1), (), 5, "n"))
    # Of a kind that nobody has thought of.
    cluster.ledger.nodes["n"]._facts.pods["odd"] = None  # type: ignore[assignment]
    requeue.on_capacity_freed()
    assert requeue.next() is None


def test_a_pod_whose_binding_is_under_way_waits_for_its_end() -> None:
    cluster, requeue, _ = full("waiting")
    cluster.node_event("ADDED", NodeRecord("n", inventory(16, 16)))
    pending = cluster.pending["waiting"]
    assert isinstance(pending, PendingPod)
    cluster.assume(pending.allocated("n", on(1, 6)))
    requeue.on_capacity_freed()
    assert requeue.next() is None
    cluster.forget("waiting")
    requeue.on_capacity_freed()
    assert requeue.next() == pending


async def test_who_is_rejected_again_lets_the_others_pass_and_nobody_is_kept_from_expiring(scene: Scene) -> None:
    """x fits by memory and is rejected again and again; there is room somewhere each second."""
    for uid in "xy":
        scene.waits(uid)
    scene.cluster.ledger.reserve(allocated_pod("r", memory(2), on(0, 2)), asyncio.get_running_loop().time() + 10)
    for _ in range(60):
        scene.requeue.on_capacity_freed()
        await asyncio.sleep(0.5)
        for uid in scene.server.touched[-1:]:
            scene.requeue.on_filter(uid, ["n"])
    assert scene.cluster.ledger.pod("r") is None
    assert min(scene.server.touched.count(uid) for uid in "xy") >= 10


async def test_only_nodes_that_the_scheduler_asks_about_are_room(scene: Scene) -> None:
    """Others are ruled out for the pod by what only the scheduler knows, such as a taint."""
    for name in ("tainted", "later"):
        scene.waits(f"on-{name}", name)
    scene.cluster.node_event("ADDED", NodeRecord("elsewhere", inventory(16)))
    await asyncio.sleep(10)
    assert scene.server.touched == []
    # Also one that nothing was known of yet.
    scene.cluster.node_event("ADDED", NodeRecord("later", inventory(16)))
    await asyncio.sleep(10)
    assert scene.server.touched == ["on-later"]


async def test_of_samples_of_many_nodes_all_count_and_of_few_the_last(scene: Scene) -> None:
    # kube-scheduler's minFeasibleNodesToFind.
    few, many = [f"f{n}" for n in range(99)], [f"m{n}" for n in range(100)]
    scene.waits("sampled", "n", *many)
    scene.waits("all", "n", *few[1:])
    scene.requeue.on_filter("sampled", many)
    scene.requeue.on_filter("all", few)
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(10)
    assert scene.server.touched == ["sampled"]


async def test_a_bound_on_what_is_remembered_wakes_rather_too_many(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    monkeypatch.setattr("gpushare_runtime.extender.requeue._MOST_NAMES", 4)
    scene.waits("a", "x", "y")
    scene.waits("c", "x", "z")
    scene.waits("b", "y", "x")
    scene.waits("d", "x", "u")
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched == ["d"], "anywhere will do"
    # What nobody waits for any more makes place.
    scene.requeue.on_filter("c", ())
    scene.waits("e", "x", "v")
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched == ["d", "d"]
    # Of a sample that was too large, the next one says no more.
    for _ in range(2):
        scene.waits("sampled", *(f"s{number}" for number in range(100)))
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched[2:] == ["d", "sampled"]


async def test_a_pod_that_our_watch_has_not_shown_yet_is_woken_when_it_has(scene: Scene) -> None:
    scene.requeue.on_filter("late", ["n"])
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    scene.cluster.pod_event("ADDED", PendingPod("late", "default", "late", memory(6)))
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched == ["late"]


async def test_room_that_is_kept_for_a_nominated_pod_wakes_nobody_else(scene: Scene) -> None:
    scene.waits("other")
    scene.cluster.pod_event("ADDED", PendingPod("vip", "default", "vip", memory(12), (), 5, "n"))
    scene.requeue.on_filter("vip", ["n"])
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    assert scene.server.touched == ["vip"]
    scene.cluster.pod_event("DELETED", scene.cluster.pending["vip"])
    await asyncio.sleep(5)
    assert scene.server.touched == ["vip", "other"]


async def test_a_former_leader_leaves_its_pods_to_the_new_one(scene: Scene) -> None:
    scene.leads = False
    scene.waits("a")
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(60)
    assert scene.server.touched == []
    scene.leads = True
    await asyncio.sleep(5)
    assert scene.server.touched == ["a"]


async def test_the_pending_pod_is_touched_and_nothing_but_an_annotation(scene: Scene) -> None:
    scene.waits("first")
    scene.requeue.on_capacity_freed()
    await asyncio.sleep(5)
    [(_, path, body)] = scene.server.patches
    assert path == "/api/v1/namespaces/default/pods/first/status"
    assert isinstance(body, dict)
    assert list(body) == ["metadata"]
    assert body["metadata"]["uid"] == "first"
    [(key, when)] = body["metadata"]["annotations"].items()
    assert key == "gpushare/requeued"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", when)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Leadership: who may answer, from when on, and what is said to the others. All in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import (
    DRAINED_SECONDS,
    SEND_SECONDS,
    TAKEOVER_SECONDS,
    Leadership,
    Lease,
    drained_after,
    read_lease,
)
from gpushare_runtime.kube.client import KubeError
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden

LEASE = "kube-system/kube-scheduler"


class Server:
    """The API server's Lease and list of pods. lease: None where it does not exist; silent: no answer to a look; unlisted: so many
    lists fail."""

    def __init__(self) -> None:
        self.lease: Lease | None = Lease("uid", "one_1", 0)
        self.rejects = 0
        self.silent = False
        self.looks = 0
        self.lists: list[dict[str, object]] = []
        self.version = "100"
        self.unlisted = 0

    async def get(self, path: str, *, within: float, **params: object) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        if path == "/api/v1/pods":
            assert within == 5.0
            self.lists.append(params)
            if self.unlisted:
                self.unlisted -= 1
                raise KubeError(503, "ServiceUnavailable", "no list now")
            return {"metadata": {"resourceVersion": self.version}} if self.version else {}
        assert within == 1.5
        assert path == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
        assert not params, "a resourceVersion would let the API server answer from its cache"
        self.looks += 1
        if self.silent:
            await asyncio.sleep(within)
            raise KubeError(0, "Timeout", "no answer in time")
        if self.rejects:
            raise KubeError(self.rejects, "Forbidden", "may not get leases")
        if self.lease is None:
            raise KubeError(404, "NotFound", "leases kube-scheduler not found")
        spec = {"holderIdentity": self.lease.holder, "leaseTransitions": self.lease.transitions}
        return {"metadata": {"uid": self.lease.uid}, "spec": spec}


class Pods:
    """The pods' cache. slow: seconds that catching up takes."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self.asked: list[str] = []
        self.slow = 0.0
        self.errors: list[KubeError] = []

    async def catch_up(self, version: str, grace: float) -> None:
        assert grace == 0.2
        self.asked.append(version)
        await asyncio.sleep(self.slow)
        if self.errors:
            raise self.errors.pop()


class World:
    def __init__(self, host: str, lease: str = LEASE) -> None:
        self.told: list[str] = []
        self.server, self.pods = Server(), Pods()
        self.clock = asyncio.get_running_loop().time
        self.leadership = Leadership(lease, host, clock=self.clock, on_foreign_binding=lambda holder, words: self.told.append(holder.name))

    async def opens(self, within: float = 60.0) -> float:
        """Seconds until it answers."""
        began = self.clock()
        async with asyncio.timeout(within):
            while self.leadership.problem_now():  # noqa: ASYNC110 - as the scheduler does
                await asyncio.sleep(0.01)
        return self.clock() - began

    async def shut_then_open(self) -> float:
        """Seconds until it is open again, after a look has shut it."""
        async with asyncio.timeout(10):
            while not self.leadership.problem_now():  # noqa: ASYNC110 - as the scheduler does
                await asyncio.sleep(0.01)
        return await self.opens()


@pytest.fixture
@asynccontextmanager
async def world(virtual_time: None, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Its parameter: another host or lease."""
    made = World(**{"host": "one", **getattr(request, "param", {})})
    task = asyncio.create_task(made.leadership.run(made.server, made.pods))  # type: ignore[arg-type]
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_lease_as_kube_scheduler_writes_it() -> None:
    raw = {"metadata": {"uid": "u"}, "spec": {"holderIdentity": "cp_1.example_3f0c", "leaseTransitions": 3, "leaseDurationSeconds": 15}}
    assert read_lease(raw) == Lease("u", "cp_1.example_3f0c", 3)
    assert read_lease(raw).host == "cp_1.example"
    given_up = read_lease({"metadata": {"uid": "u"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
    assert given_up == Lease("u", "", 0)
    assert given_up.host == ""
    for bare in ({}, {"spec": None}, {"spec": {}}, {"spec": {"holderIdentity": None, "leaseTransitions": None}}):
        assert read_lease({"metadata": {"uid": "u"}} | bare) == given_up


async def test_a_start_waits_for_the_bindings_of_whoever_was_before_and_then_reads_the_pods(world: World, golden: Golden) -> None:
    golden(world.leadership.problem())
    took = await world.opens()
    assert TAKEOVER_SECONDS <= took < TAKEOVER_SECONDS + 0.1
    assert world.pods.asked == ["100"]
    assert world.server.lists == [{"limit": 1}], "one object, and no resourceVersion: a quorum read"
    await asyncio.sleep(120)
    assert world.leadership.problem() == ""
    assert len(world.pods.asked) == 1, "nothing while the same one goes on"


@pytest.mark.parametrize("world", [{"lease": ""}], indirect=True)
async def test_without_leader_election_only_the_former_process_counts(world: World) -> None:
    assert DRAINED_SECONDS <= await world.opens() < DRAINED_SECONDS + 0.1
    assert world.server.looks == 0
    assert world.leadership.send_window() == float("inf")


@pytest.mark.parametrize("world", [{"host": "two"}], indirect=True)
async def test_another_leads_then_this_one(world: World, golden: Golden) -> None:
    await asyncio.sleep(20)
    assert world.leadership.send_window() == 0
    assert "is held by one_1, and this extender serves the scheduler of host two" in world.leadership.problem()
    world.server.lease = Lease("uid", "", 0)
    await asyncio.sleep(1)
    golden(world.leadership.problem())
    world.server.lease = Lease("uid", "two_1", 1)
    world.server.version = "200"
    before = len(world.pods.asked)
    # Who asks makes it look at once.
    assert TAKEOVER_SECONDS <= await world.opens() < TAKEOVER_SECONDS + 0.1
    assert world.pods.asked[before:] == ["200"]
    assert 0 < world.leadership.send_window() <= SEND_SECONDS


async def test_the_licence_ends_with_the_looks(world: World, golden: Golden) -> None:
    await world.opens()
    world.server.silent = True
    await asyncio.sleep(SEND_SECONDS + 0.51)
    assert world.leadership.send_window() <= 0
    await asyncio.sleep(2)
    golden(world.leadership.problem())
    world.server.silent = False
    assert await world.opens() < 3, "nobody else has held it: transitions say so"
    assert world.leadership.terms == 1


async def test_a_lease_that_may_not_be_read_names_the_cure(world: World, golden: Golden) -> None:
    world.server.rejects = 403
    await asyncio.sleep(30)
    golden(world.leadership.problem())
    assert "lease: none" in world.leadership.problem()


async def test_no_such_lease_is_one_scheduler_without_election(world: World) -> None:
    world.server.lease = None
    # It may have been deleted a moment before the start, with Bindings of its holder under way.
    assert TAKEOVER_SECONDS <= await world.opens() < TAKEOVER_SECONDS + 0.1
    assert 0 < world.leadership.send_window() <= SEND_SECONDS
    # Somebody begins to elect.
    world.server.lease = Lease("uid", "two_1", 0)
    await asyncio.sleep(1)
    assert "held by two_1" in world.leadership.problem()


async def test_a_proof_that_was_begun_for_an_earlier_term_does_not_count(world: World) -> None:
    world.pods.slow = 10
    await asyncio.sleep(TAKEOVER_SECONDS + 5)
    world.server.lease = Lease("uid", "two_1", 1)
    await asyncio.sleep(1)
    world.server.lease = Lease("uid", "one_2", 2)
    await asyncio.sleep(5)
    assert world.leadership.problem()
    world.pods.slow = 0
    await world.opens()
    assert len(world.pods.asked) == 2


# Its answers at each moment, and after each look.


class Moments:
    """The leadership of host "one" on a clock that stands still; its wait began at 100."""

    def __init__(self, lease: str = LEASE) -> None:
        self.now = 100.0
        self.leadership = Leadership(lease, "one", clock=lambda: self.now)

    def look(self, holder: str, transitions: int = 0, uid: str = "uid", *, took: float = 0.0, coordinated: bool = False) -> None:
        self.leadership.observe(Lease(uid, holder, transitions, coordinated) if uid else None, self.now - took)

    def answer(self) -> str:
        """In a word what it says now."""
        text = self.leadership.problem()
        words = {"may have Bindings under way": "wait", "are compared": "compare", "cannot be read": "unread", "is held by": "held"}
        return next(word for part, word in words.items() if part in text) if text else ""


def test_a_licence_lasts_two_seconds_from_the_beginning_of_the_look() -> None:
    it = Moments()
    assert (it.leadership.send_window() <= 0, it.answer()) == (True, "unread")
    it.look("one_1", took=0.5)
    assert it.leadership.send_window() == 1.5
    it.now += 1.5
    assert (it.leadership.send_window(), it.answer()) == (0.0, "unread")
    it.now -= 0.01
    assert it.answer() == "wait"
    # Another one's ends at once, whoever held it before.
    it.look("two_1", 1)
    assert (it.leadership.send_window(), it.answer()) == (0.0, "held")


def test_how_long_a_binding_can_take_is_what_the_page_proves() -> None:
    """docs/operate/high-availability.md."""
    assert (drained_after(3), DRAINED_SECONDS, TAKEOVER_SECONDS) == (4.75, 4.75, 6.75)
    assert drained_after(1) == 2.75


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True), (True, True)])
def test_a_change_that_a_coordinator_may_have_made_begins_a_term(before: bool, now: bool) -> None:
    """One scheduler of this host after another, by the count; but a coordinator does not count all."""
    it = Moments()
    it.look("one_1", 0, coordinated=before)
    it.look("one_2", 1, coordinated=now)
    assert it.leadership.terms == 2


def test_a_wait_is_over_when_the_last_binding_of_another_has_ended() -> None:
    it = Moments()
    it.now = 103.0
    it.look("one_1")
    for now, answer in ((103.0 + TAKEOVER_SECONDS - 0.01, "wait"), (103.0 + TAKEOVER_SECONDS, "compare")):
        it.now = now
        it.look("one_1")
        assert it.answer() == answer
    alone = Moments("")
    assert (alone.answer(), alone.leadership.send_window()) == ("wait", float("inf"))
    assert f"in {DRAINED_SECONDS:.1f} s; kube-scheduler tries again" in alone.leadership.problem()
    alone.now += DRAINED_SECONDS
    assert alone.answer() == "compare"


@pytest.mark.parametrize(
    ("looks", "terms"),
    [
        ([("one_1", 3)], 1),
        ([("one_1", 3), ("one_1", 3), ("one_2", 4), ("one_2", 4), ("one_3", 5)], 1),
        ([("one_1", 3), ("one_2", 5)], 2),
        ([("one_1", 3), ("one_1", 5)], 2),
        ([("one_1", 3), ("one_1", 2)], 2),
        ([("one_1", 3), ("one_1", 3, "made anew")], 2),
        ([("one_1", 3), ("two_1", 4), ("one_1", 5)], 2),
        ([("one_1", 3), ("", 3), ("one_1", 4)], 1),
        ([("two_1", 3), ("one_1", 4)], 1),
        ([("one_1", 3), ("two_1", 3), ("one_1", 3)], 2),
        ([("one_1", 3), ("one_2", 3)], 2),
        ([("one_1", 3), ("", 0, ""), ("one_1", 3)], 3),
    ],
    ids=[
        "first",
        "restarts",
        "one unseen",
        "lost and won again, unseen",
        "put back from a backup",
        "made anew",
        "another between",
        "given up between",
        "from another",
        "another between, not counted",
        "another process, not counted",
        "gone between",
    ],
)
def test_a_term_begins_where_somebody_else_can_have_been_between(looks: list[tuple[Any, ...]], terms: int) -> None:
    it = Moments()
    for holder, transitions, *uid in looks:
        it.now += 10
        it.look(holder, transitions, *uid)
    assert it.leadership.terms == terms
    # The last look of those that began one began the wait as well.
    assert (it.answer() == "wait") == (terms > 1 or len(looks) == 1 or looks[0][0] == "two_1")


def test_where_a_coordinator_names_the_holder_each_new_process_begins_a_term() -> None:
    """It leaves leaseTransitions as they are, or a scheduler counts one for a holder that had followed another unseen."""
    it = Moments()
    for holder, transitions, terms in (("one_1", 0, 1), ("one_1", 0, 1), ("one_2", 0, 2), ("one_3", 1, 3), ("", 1, 3), ("one_3", 1, 3)):
        it.now += 10
        it.look(holder, transitions, coordinated=True)
        assert it.leadership.terms == terms, holder
    raw = {"metadata": {"uid": "u"}, "spec": {"holderIdentity": "a_1", "strategy": "OldestEmulationVersion"}}
    assert read_lease(raw) == Lease("u", "a_1", 0, True)


@pytest.mark.parametrize("holder", ["one_1", "two_1"])
def test_a_lease_that_was_there_and_is_gone_closes_every_extender_for_the_bindings_under_way(holder: str) -> None:
    """Whoever makes it anew is answered after its own wait; who held it, or stood by, must not take itself for alone meanwhile."""
    it = Moments()
    it.look(holder, 3)
    it.now += 60
    it.look("", uid="")
    assert it.answer() == "wait"
    it.now += 1
    it.look("", uid="")
    assert it.answer() == "wait"
    # A scheduler has it again: nobody knows who had it between.
    it.look("one_9")
    it.now += TAKEOVER_SECONDS - 0.01
    it.look("one_9")
    assert it.answer() == "wait"
    it.now += 0.01
    assert it.answer() == "compare"


async def test_deleting_the_lease_does_not_open_an_extender_that_was_open(world: World) -> None:
    await world.opens()
    world.server.lease = None
    assert TAKEOVER_SECONDS <= await world.shut_then_open() < TAKEOVER_SECONDS + 1.2
    assert 0 < world.leadership.send_window() <= SEND_SECONDS
    assert len(world.pods.asked) == 2, "the pods are compared again"


def test_what_is_said_of_a_lease_that_is_not_ours(golden: Golden) -> None:
    it = Moments()
    golden(it.leadership.problem())
    it.look("two_7", 1)
    assert f"lease {LEASE} is held by two_7, and this extender serves the scheduler of host one" in it.leadership.problem()
    it.look("")
    golden(it.leadership.problem())
    it.leadership.failed("may not")
    golden(it.leadership.problem())
    it.look("one_1")
    it.now += 60
    golden(it.leadership.problem())
    it.leadership.observe(None, it.now)
    assert it.answer() == "wait"
    it.now += 60
    golden(it.leadership.problem())


async def test_looks_come_twice_a_second_and_at_once_only_when_it_is_not_known_to_be_ours(world: World) -> None:
    await world.opens()
    before = world.server.looks
    for _ in range(1000):
        world.leadership.problem_now()
        await asyncio.sleep(0.01)
    assert 18 <= world.server.looks - before <= 21
    world.server.lease = Lease("uid", "two_1", 1)
    await asyncio.sleep(1)
    before = world.server.looks
    await asyncio.sleep(10)
    assert 18 <= world.server.looks - before <= 21
    before = world.server.looks
    for _ in range(100):
        world.leadership.problem_now()
        await asyncio.sleep(0.1)
    assert 95 <= world.server.looks - before <= 101


async def test_a_lease_that_is_not_there_is_said_once_each_time(caplog: pytest.LogCaptureFixture, world: World) -> None:

    def said() -> int:
        return sum("does not exist" in record.message for record in caplog.records)

    world.server.lease = None
    await asyncio.sleep(10)
    assert said() == 1
    world.server.lease = Lease("uid", "one_1", 0)
    await asyncio.sleep(1)
    world.server.lease = None
    await asyncio.sleep(10)
    assert said() == 2


async def test_it_opens_when_the_comparison_with_the_api_server_has_come_about(world: World) -> None:
    world.pods.synced.clear()
    world.server.unlisted = 2
    world.pods.errors.append(KubeError(0, "Timeout", "t"))
    world.server.version = ""
    await asyncio.sleep(TAKEOVER_SECONDS + 5)
    assert (world.leadership.problem() != "", world.server.lists) == (True, [])
    world.pods.synced.set()
    # Two lists and a comparison failed, each half a second before the next.
    assert 1.5 <= await world.opens() < 1.7
    assert (len(world.server.lists), world.pods.asked) == (4, ["", ""])


@pytest.mark.parametrize("world", [{"lease": ""}], indirect=True)
async def test_without_an_answer_nobody_is_active_and_strangers_are_nobodys(world: World) -> None:
    values = {sample.name: sample.value for metric in world.leadership.families() for sample in metric.samples}
    assert values["gpushare_extender_active"] == 0
    await world.opens()
    for number in range(30):
        record = PodReader()(bound(f"p{number}", f"uid-{number}"))
        assert isinstance(record, AllocatedPod)
        world.leadership.foreign_binding(record)
    assert (world.leadership.foreign_bindings, len(world.told)) == (30, 30)
    assert [words.split()[1] for words in world.leadership.problems()] == [f"default/p{number}" for number in range(10, 30)]
    assert "the same lease (leader election is off) on all" in world.leadership.problems()[0]


def bound(name: str, uid: str) -> dict[str, Any]:
    raw = pod(container(mem=4), uid=uid)
    raw["metadata"] |= {"name": name, "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4"}}
    raw["spec"]["nodeName"] = "n"
    return raw


async def test_a_second_active_scheduler_is_reported_and_a_former_one_is_not(world: World, golden: Golden) -> None:
    cluster, read = ClusterCache(), PodReader()
    cluster.on_foreign_binding = world.leadership.foreign_binding
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))

    def see(name: str) -> None:
        record = read(bound(name, f"uid-{name}"))
        assert isinstance(record, AllocatedPod)
        cluster.pod_event("MODIFIED", record)

    see("from-the-former")
    assert world.leadership.problems() == []
    await world.opens()
    see("from-the-former")
    ours = read(bound("ours", "uid-ours"))
    assert isinstance(ours, AllocatedPod)
    cluster.assume(ours)
    see("ours")
    unmanaged = bound("static", "uid-static")
    del unmanaged["metadata"]["annotations"]
    record = read(unmanaged)
    assert record is not None
    cluster.pod_event("ADDED", record)
    assert world.leadership.foreign_bindings == 0
    see("from-another")
    see("from-another")
    assert world.leadership.foreign_bindings == 1
    assert world.told == ["from-another"]
    (words,) = world.leadership.problems()
    golden(words)
    values = {sample.name: sample.value for metric in world.leadership.families() for sample in metric.samples}
    assert values == {"gpushare_extender_active": 1, "gpushare_extender_terms_total": 1, "gpushare_extender_foreign_bindings_total": 1}


def test_no_binding_is_sent_without_a_licence_and_its_gpu_is_free_again(golden: Golden) -> None:
    class Silent:
        def __init__(self) -> None:
            self.sent: list[object] = []

        async def create(self, path: str, body: object, *, send_within: float, **params: object) -> dict[str, Any]:
            self.sent.append(send_within)
            return {}

    async def run() -> None:
        cluster, api, left = ClusterCache(), Silent(), 0.0
        cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
        raw = pod(container(mem=4), uid="u")
        record = PodReader()(raw)
        assert record is not None
        cluster.pod_event("ADDED", record)
        binder = Binder(api, cluster, Binpack(), send_window=lambda: left)  # type: ignore[arg-type]
        with golden.raised(BindError, "api-unreachable"):
            await binder.bind(BindArguments("default", "p", "u", "n"))
        assert api.sent == []
        assert cluster.ledger.pod("u") is None
        left = 0.7
        await binder.bind(BindArguments("default", "p", "u", "n"))
        assert api.sent == [0.7]

    virtual.run(run())

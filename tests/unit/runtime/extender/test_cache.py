# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Lists and events → ledger and pending pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.overuse import Evictions
from gpushare_runtime.core.pods import FinishedPod, InvalidPod, PendingPod
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.extender import cache
from gpushare_runtime.extender.cache import FORCED_SECONDS, STALE_SECONDS, UNSEEN_SECONDS, ClusterCache, incomplete
from gpushare_runtime.kube.client import KubeClient
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.extender.bound_pods import REQUEST, allocated_pod
from unit.fakes.runtime.kube.fake_api import FakeApi, until
from unit.fakes.runtime.pods import container, inventory, pod


def pending(uid: str) -> PendingPod:
    return PendingPod(uid, "default", uid, REQUEST)


@pytest.fixture
def cluster() -> ClusterCache:
    cluster = ClusterCache()
    cluster.replace_nodes([NodeRecord("n", inventory(16)), NodeRecord("plain", None)])
    return cluster


def free(cluster: ClusterCache) -> int:
    node = cluster.ledger.nodes["n"]
    return node.free


def test_a_list_that_is_older_than_a_pod_does_not_take_what_was_just_bound() -> None:
    now = 0.0
    cluster = ClusterCache(clock=lambda: now)
    cluster.replace_nodes([NodeRecord("n", inventory(16, 16))])
    for uid in ("a", "b"):
        # Bound before the watch has ever shown them.
        cluster.ledger.assume(replace(allocated_pod(uid), allocation=Allocation.of({0: {"ab".index(uid): 8}})))
    cluster.replace_pods([])
    assert free(cluster) == 16
    cluster.pod_event("ADDED", pending("a"))
    cluster.pod_event("MODIFIED", allocated_pod("a"))
    now = UNSEEN_SECONDS
    cluster.expire()
    assert (cluster.ledger.pod("a"), cluster.ledger.pod("b")) == (allocated_pod("a"), None), "the other was deleted in the gap"


def test_the_processes_of_a_pod_deleted_by_force_may_be_alive_until_its_node_has_spoken() -> None:
    now = 0.0
    cluster = ClusterCache(clock=lambda: now)
    cluster.replace_nodes([NodeRecord("n", inventory(16))])
    for uid in ("a", "b"):
        alive = replace(allocated_pod(uid), alive=True)
        cluster.pod_event("ADDED", alive)
        cluster.pod_event("DELETED", alive)
        assert free(cluster) == 8
        cluster.replace_pods([])
        assert free(cluster) == 8
        if uid == "a":
            # It says so, and later that they have ended.
            entry = HeldEntry(inventory(16).gpus[0].uuid, "a", "default/a", 8, "orphaned")
            cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), "", Held((entry,))))
            assert (free(cluster), cluster.ledger.pod("a")) == (8, None)
            cluster.node_event("MODIFIED", NodeRecord("n", inventory(16)))
            assert free(cluster) == 16
    # Of the other it says nothing.
    told: list[bool] = []
    cluster.on_capacity_freed = lambda by="": told.append(True)
    now = FORCED_SECONDS - 0.1
    cluster.expire()
    assert (free(cluster), told) == (8, [])
    now = FORCED_SECONDS
    cluster.expire()
    assert (free(cluster), told) == (16, [True])


@pytest.mark.parametrize(("alive", "ended", "left"), [(True, False, 8), (True, True, 16), (False, False, 16)])
def test_a_list_that_lacks_a_pod_frees_no_more_than_the_event_of_its_end(alive: bool, ended: bool, left: int) -> None:
    """Deleted by force while the watch was away; one that has ended is in the list, and no longer in the way."""
    now = 0.0
    cluster = ClusterCache(clock=lambda: now)
    cluster.replace_nodes([NodeRecord("n", inventory(16))])
    cluster.pod_event("ADDED", replace(allocated_pod("a"), alive=alive))
    cluster.replace_pods([FinishedPod("a")] if ended else [])
    assert free(cluster) == left
    now = FORCED_SECONDS
    cluster.expire()
    assert free(cluster) == 16


def test_a_node_that_complains_of_everything_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ClusterCache()
    for times in (1, 2):
        rejected = tuple(Rejection(f"r{n}", "GPU-00000000", 9, 60.0) for n in range(500 * times))
        cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), "", Held((), rejected)))
        assert len([one for one in caplog.records if "rejected pod UID" in one.message]) == 10 * times


@pytest.mark.parametrize("listed", [True, False])
def test_a_pod_that_was_failed_while_its_containers_run_waits_for_its_node(listed: bool, it: Told) -> None:
    it.cluster.pod_event("ADDED", replace(allocated_pod("a"), alive=True))

    def see(record: FinishedPod) -> None:
        if listed:
            it.cluster.replace_pods([record])
        else:
            it.cluster.pod_event("MODIFIED", record)

    see(FinishedPod("a", alive=True))
    it.now += FORCED_SECONDS - 0.1
    see(FinishedPod("a", alive=True))
    it.cluster.expire()
    assert it.cluster.ledger.is_held_until("a")
    it.now += 0.1
    it.cluster.expire()
    assert it.cluster.ledger.pod("a") is None
    it.cluster.pod_event("ADDED", replace(allocated_pod("b"), alive=True))
    see(FinishedPod("b"))
    assert it.cluster.ledger.pod("b") is None


def test_an_event_from_before_the_binding_does_not_take_the_assumption(cluster: ClusterCache) -> None:
    cluster.ledger.assume(allocated_pod("a"))
    cluster.pod_event("MODIFIED", pending("a"))
    assert free(cluster) == 8


def test_a_fresh_list_removes_what_went_in_the_gap_and_keeps_what_is_under_way(cluster: ClusterCache) -> None:
    cluster.pod_event("ADDED", allocated_pod("gone"))
    cluster.pod_event("ADDED", pending("gone-too"))
    cluster.ledger.assume(allocated_pod("under-way"))
    same = cluster.pending
    cluster.replace_pods([pending("under-way"), pending("new"), FinishedPod("done")])
    assert set(cluster.pending) == {"under-way", "new"}
    assert cluster.pending is same
    assert free(cluster) == 8
    cluster.replace_pods([pending("new")])
    assert free(cluster) == 16


def test_nodes_come_change_and_go(cluster: ClusterCache) -> None:
    assert set(cluster.ledger.nodes) == {"n"}
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16, 16)))
    assert free(cluster) == 32
    cluster.node_event("MODIFIED", NodeRecord("n", None, "version 2 is not known"))
    assert free(cluster) == 0
    cluster.pod_event("ADDED", allocated_pod("a"))
    cluster.node_event("DELETED", NodeRecord("n", None))
    # Its pods are not gone yet, and it may come back.
    assert "n" in cluster.ledger.nodes
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
    assert free(cluster) == 8
    cluster.replace_nodes([])
    cluster.pod_event("DELETED", allocated_pod("a"))
    assert not cluster.ledger.nodes


# What is told on.


class Told:
    """A cluster on a clock of the test's, and how often somebody was told of room, of a change and of strangers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cluster = ClusterCache(clock=lambda: self.now)
        self.rooms = 0
        self.foreign_bindings: list[str] = []
        self.cluster.on_capacity_freed = self._room
        self.cluster.on_foreign_binding = lambda holder: self.foreign_bindings.append(holder.uid)
        self.cluster.replace_nodes([NodeRecord("n", inventory(16))])
        self.told()

    def _room(self, by: str = "") -> None:
        self.rooms += 1

    def told(self) -> tuple[bool, int]:
        """(whether there is a change, how often there was room) since the last time."""
        found = self.cluster.changed.is_set(), self.rooms
        self.cluster.changed.clear()
        self.rooms = 0
        return found


@pytest.fixture
def it() -> Told:
    return Told()


def test_who_is_told_of_what_happens_to_pods(it: Told) -> None:
    for kind, record, told, units in (
        ("ADDED", pending("a"), (True, 0), 16),
        ("MODIFIED", allocated_pod("a"), (False, 0), 8),
        ("MODIFIED", allocated_pod("a"), (False, 0), 8),
        ("MODIFIED", FinishedPod("a"), (False, 1), 16),
        ("DELETED", FinishedPod("a"), (False, 0), 16),
        ("ADDED", replace(allocated_pod("gpuless"), allocation=None), (False, 0), 8),
        ("DELETED", allocated_pod("gpuless"), (False, 1), 16),
        ("ADDED", allocated_pod("forced"), (False, 0), 8),
        ("DELETED", replace(allocated_pod("forced"), alive=True), (False, 0), 8),
        ("ADDED", pending("b"), (True, 0), 8),
        ("DELETED", pending("b"), (False, 0), 8),
    ):
        it.cluster.pod_event(kind, record)
        assert (it.told(), free(it.cluster)) == (told, units), (kind, record)
    assert it.foreign_bindings == ["a", "forced"]
    assert dict(it.cluster.pending) == {}
    it.cluster.replace_pods([])
    assert it.told() == (True, 1)


def test_two_schedulers_that_are_asked_about_the_same_pods_are_seen_and_no_others(it: Told) -> None:
    """Each reserves what the other binds, and its own Binding fails: that is how two active ones look."""
    ours = [allocated_pod(f"ours-{n}") for n in range(2)]
    for uid in ("reserved", "assumed-elsewhere", "assumed-otherwise", "unknown"):
        it.cluster.pod_event("ADDED", pending(uid))
    it.cluster.ledger.reserve(allocated_pod("reserved"), 2000.0)
    it.cluster.assume(replace(allocated_pod("assumed-elsewhere"), node="m"))
    it.cluster.assume(replace(allocated_pod("assumed-otherwise"), allocation=Allocation.of({0: {1: 8}})))
    for one in ours:
        it.cluster.assume(one)
        it.cluster.pod_event("MODIFIED", one)
    # Its annotation is corrected by the node later.
    it.cluster.pod_event("MODIFIED", replace(ours[0], allocation=Allocation.of({0: {1: 8}})))
    assert it.foreign_bindings == []
    for uid in ("reserved", "assumed-elsewhere", "assumed-otherwise", "unknown"):
        for _ in range(2):
            it.cluster.pod_event("MODIFIED", allocated_pod(uid))
    assert it.foreign_bindings == ["reserved", "assumed-elsewhere", "assumed-otherwise", "unknown"]


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_we_have_bound_is_no_strangers_however_late_the_watch_is_with_it(forgotten: bool, it: Told) -> None:
    it.cluster.assume(allocated_pod("a"))
    if forgotten:
        it.cluster.forget("a")
    else:
        # A list that is older, then the time of those that nobody has seen.
        it.cluster.replace_pods([])
        it.now += UNSEEN_SECONDS
        it.cluster.expire()
    assert it.cluster.ledger.pod("a") is None
    it.now += 200
    it.cluster.expire()
    it.cluster.pod_event("MODIFIED", allocated_pod("a"))
    assert it.foreign_bindings == (["a"] if forgotten else [])


def test_what_we_have_bound_is_remembered_for_ten_minutes_and_while_its_binding_is_under_way(it: Told) -> None:
    for uid in ("under-way", "late", "later"):
        it.cluster.assume(allocated_pod(uid))
    for uid in ("late", "later"):
        # It is not known any more, and the watch has not shown it.
        it.cluster.ledger.remove(uid)
    it.now += 599.9
    it.cluster.expire()
    it.cluster.pod_event("MODIFIED", allocated_pod("late"))
    assert it.foreign_bindings == []
    it.now += 0.1
    it.cluster.expire()
    for uid in ("under-way", "later"):
        it.cluster.pod_event("MODIFIED", allocated_pod(uid))
    assert it.foreign_bindings == ["later"]


def test_a_pod_that_we_bound_without_gpus_and_that_has_some_has_them_from_a_stranger(it: Told) -> None:
    it.cluster.assume(replace(allocated_pod("a"), allocation=None))
    it.cluster.pod_event("MODIFIED", allocated_pod("a"))
    assert it.foreign_bindings == ["a"]


def test_the_gpu_of_a_pod_that_is_gone_in_doubt_is_kept_until_its_watch_must_have_spoken(it: Told) -> None:
    it.cluster.assume(allocated_pod("a"))
    it.cluster.keep_until_seen("a")
    it.now += UNSEEN_SECONDS - 0.1
    it.cluster.expire()
    assert (free(it.cluster), it.rooms) == (8, 0)
    it.now += 0.1
    it.cluster.expire()
    assert (free(it.cluster), it.rooms) == (16, 1)


def test_a_pod_is_bound_where_the_watch_has_shown_so_and_nothing_since_makes_it_doubtful(it: Told) -> None:
    it.cluster.assume(allocated_pod("a"))
    assert it.cluster.bound("a") is it.cluster.bound("nobody") is None
    it.cluster.pod_event("MODIFIED", allocated_pod("a"))
    assert it.cluster.bound("a") == allocated_pod("a")
    it.cluster.keep_until_seen("a")
    assert it.cluster.bound("a") is None


def test_a_pending_pod_whose_request_becomes_unreadable_is_still_pending() -> None:
    it, odd = Told(), InvalidPod("a", "default", "a", "asks for nonsense")
    for record in (replace(pending("a"), failure=1), odd, replace(pending("a"), failure=2)):
        it.cluster.pod_event("MODIFIED", record)
        assert it.cluster.pending["a"] == record


@pytest.mark.parametrize(
    ("pods", "nodes", "said"),
    [
        ((True, 0), (True, STALE_SECONDS), []),
        ((True, STALE_SECONDS + 1), (True, 0), ["pods (301 s)"]),
        ((True, 400), (True, 500), ["pods (400 s)", "nodes (500 s)"]),
        ((False, 0), (True, 0), ["the list of pods from"]),
        ((False, 500), (False, 500), ["the list of pods and of nodes from"]),
    ],
)
def test_caches_are_complete_when_all_are_listed_and_none_is_old(
    pods: tuple[bool, float], nodes: tuple[bool, float], said: list[str]
) -> None:
    watches = {}
    for what, (synced, age) in (("pods", pods), ("nodes", nodes)):
        watches[what] = SimpleNamespace(synced=asyncio.Event(), age=age)
        if synced:
            watches[what].synced.set()
    why = incomplete(watches)  # type: ignore[arg-type]
    assert bool(why) == bool(said)
    assert all(each in why for each in said)


def test_time_goes_on_whatever_else_there_is_to_do() -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        cluster = ClusterCache(clock=clock)
        cluster.replace_nodes([NodeRecord("n", inventory(16))])
        cluster.ledger.reserve(allocated_pod("a"), 10.0)
        task = asyncio.create_task(cluster.expire_for_ever())
        await asyncio.sleep(9.9)
        assert cluster.ledger.pod("a")
        await asyncio.sleep(1.2)
        assert cluster.ledger.pod("a") is None
        task.cancel()

    virtual.run(scenario())


def test_gpus_that_a_bound_pod_has_no_more_are_room(it: Told) -> None:
    it.cluster.node_event("MODIFIED", NodeRecord("n", inventory(16, 16)))
    it.cluster.pod_event("ADDED", allocated_pod("a"))
    it.told()
    it.cluster.pod_event("MODIFIED", allocated_pod("a"))
    assert it.told() == (False, 0)
    it.cluster.pod_event("MODIFIED", replace(allocated_pod("a"), allocation=Allocation.of({0: {1: 8}})))
    assert it.told() == (False, 1)


def test_what_a_nominated_pod_needs_no_more_is_room(it: Told) -> None:
    for kind, record, rooms in (
        ("ADDED", replace(pending("a"), nominated="n"), 0),
        ("MODIFIED", replace(pending("a"), nominated="n"), 0),
        ("MODIFIED", replace(pending("a"), nominated="m"), 1),
        ("DELETED", replace(pending("a"), nominated="m"), 1),
    ):
        it.cluster.pod_event(kind, record)
        assert it.told()[1] == rooms


def test_who_is_told_of_what_happens_to_nodes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    it = Told()

    def rejecting(*until: float) -> NodeRecord:
        return NodeRecord("n", inventory(16), "", Held((), tuple(Rejection("r", "GPU-00000000", 9, each) for each in until)))

    for kind, record, told, said in (
        ("MODIFIED", NodeRecord("n", inventory(16)), False, ""),
        ("MODIFIED", NodeRecord("n", inventory(16), evictions=Evictions(until=90)), False, ""),
        ("MODIFIED", rejecting(900), True, "node n rejected pod UID r: 9 units of GPU GPU-00000000"),
        ("MODIFIED", rejecting(900), False, ""),
        ("MODIFIED", rejecting(2000), True, "node n rejected pod UID r: 9 units of GPU GPU-00000000"),
        ("MODIFIED", rejecting(2000), False, ""),
        # Of several only those that are new.
        ("MODIFIED", rejecting(2000, 3000), True, "node n rejected pod UID r: 9 units of GPU GPU-00000000"),
        ("MODIFIED", NodeRecord("n", inventory(16, 8)), True, "node n: 2 GPUs of 24 units, 2 usable"),
        ("MODIFIED", NodeRecord("n", inventory(16, 8), placement="spread"), True, ""),
        ("DELETED", NodeRecord("n", inventory(16, 8)), True, "node n: its GPUs are not known: the annotation is gone"),
        ("ADDED", NodeRecord("m", None), False, ""),
        ("ADDED", NodeRecord("m", None, placement="spread"), False, ""),
        ("ADDED", NodeRecord("m", None, "broken"), True, "node m: its GPUs are not known: broken"),
        ("MODIFIED", NodeRecord("m", None, "broken"), False, ""),
    ):
        caplog.clear()
        it.cluster.node_event(kind, record)
        assert it.told() == (told, int(told)), record
        assert [one.message for one in caplog.records] == ([said] if said else []), record


def test_a_fresh_list_of_nodes_takes_away_those_that_are_not_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    it, asked = Told(), Evictions(until=90)
    for name in ("n", "m"):
        it.cluster.node_event("MODIFIED", NodeRecord(name, inventory(16), evictions=asked))
    assert it.cluster.evictions == {"n": asked, "m": asked}
    it.cluster.replace_nodes([NodeRecord("m", inventory(8), evictions=asked), NodeRecord("plain", None)])
    assert (set(it.cluster.ledger.nodes), it.cluster.evictions) == ({"m"}, {"m": asked})
    assert "listed the nodes: 1 of 2 have GPUs" in caplog.text


def test_rejections_that_are_over_make_room(it: Told) -> None:
    it.cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), "", Held((), (Rejection("r", "GPU-00000000", 9, 1060),))))
    it.told()
    for now, rooms in ((1001, 0), (1060.9, 0), (1061, 1), (1062, 0)):
        it.now = now
        it.cluster.expire()
        assert it.told()[1] == rooms


def test_what_is_only_reserved_ends_with_its_own_time_and_not_with_a_list(it: Told) -> None:
    it.cluster.ledger.reserve(allocated_pod("reserved"), 1010.0)
    it.cluster.ledger.assume(replace(allocated_pod("assumed"), allocation=None))
    it.cluster.replace_pods([])
    for now, left in (
        (1009.9, {"reserved", "assumed"}),
        (1010, {"assumed"}),
        (1000 + UNSEEN_SECONDS - 0.1, {"assumed"}),
        (1000 + UNSEEN_SECONDS, set()),
    ):
        it.now = now
        it.cluster.expire()
        assert {uid for uid in ("reserved", "assumed") if it.cluster.ledger.pod(uid)} == left


def test_what_was_pending_before_a_list_and_is_not_in_it_is_gone_with_its_assumption(it: Told) -> None:
    it.cluster.pod_event("ADDED", pending("a"))
    it.cluster.ledger.assume(allocated_pod("a"))
    it.cluster.replace_pods([])
    assert it.cluster.ledger.pod("a") is None


def test_the_policy_learns_of_each_pod_once(it: Told) -> None:
    learned: list[int] = []
    it.cluster.scarcity.observe = lambda requests: learned.append(len(list(requests)))  # type: ignore[method-assign]

    def fresh() -> int:
        count = sum(learned)
        learned.clear()
        return count

    unreadable = InvalidPod("odd", "default", "odd", "asks for nonsense")
    it.cluster.replace_pods([pending("a"), allocated_pod("b"), FinishedPod("c"), unreadable])
    assert fresh() == 2
    it.cluster.replace_pods([pending("a"), allocated_pod("b"), allocated_pod("d")])
    assert fresh() == 1
    for kind, record, count in (
        ("ADDED", pending("a"), 0),
        ("ADDED", pending("e"), 1),
        ("MODIFIED", pending("f"), 0),
        ("ADDED", FinishedPod("g"), 0),
        ("ADDED", allocated_pod("h"), 1),
        ("ADDED", allocated_pod("h"), 0),
    ):
        it.cluster.pod_event(kind, record)
        assert fresh() == count, (kind, record)


def test_who_is_nominated_follows_events_and_lists(it: Told) -> None:
    def nominees(node: str = "n") -> set[str]:
        return set(it.cluster.ledger.nominees.get(node, {}))

    def named(uid: str, node: str) -> PendingPod:
        return replace(pending(uid), nominated=node)

    it.cluster.pod_event("ADDED", named("a", "n"))
    it.cluster.pod_event("ADDED", pending("b"))
    assert nominees() == {"a"}
    it.cluster.pod_event("MODIFIED", named("b", "n"))
    it.cluster.pod_event("MODIFIED", named("a", "m"))
    assert (nominees(), nominees("m")) == ({"b"}, {"a"})
    it.cluster.pod_event("MODIFIED", pending("a"))
    assert nominees("m") == set()
    it.cluster.pod_event("DELETED", named("b", "n"))
    assert nominees() == set()
    it.cluster.pod_event("ADDED", named("c", "n"))
    it.cluster.pod_event("MODIFIED", allocated_pod("c"))
    assert nominees() == set()
    it.cluster.replace_pods([named("d", "n"), pending("e")])
    assert nominees() == {"d"}
    it.cluster.replace_pods([pending("d")])
    assert nominees() == set()


async def test_the_watches_keep_the_cache_as_the_api_server_is(api: FakeApi, client: KubeClient) -> None:
    """What it lists and what it sends afterwards, also of objects that cannot be read."""

    def raw_node(name: str, *units: int) -> dict[str, Any]:
        return {"metadata": {"name": name, "annotations": {"gpushare/gpus": inventory(*units).to_json()}}}

    def raw_pod(name: str, on: str = "", **changes: Any) -> dict[str, Any]:
        made = pod(container(mem=8), name=name, uid=name, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"} if on else {})
        made["spec"] |= {"nodeName": on} | changes
        return made

    def budget(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 1}}

    nodes, pods, budgets = "/api/v1/nodes/", "/api/v1/namespaces/default/pods/", "/apis/policy/v1/poddisruptionbudgets/"
    cluster = ClusterCache()
    for path, value in (
        (f"{nodes}n", raw_node("n", 16)),
        (f"{nodes}odd", {"metadata": {"name": "odd", "annotations": [7]}}),
        (f"{pods}a", raw_pod("a", "n")),
        (f"{pods}w", raw_pod("w")),
        (f"{budgets}one", budget("one")),
    ):
        await api.put(path, value)
    tasks = [asyncio.create_task(watch.run()) for watch in (*cluster.watches(client), cluster.budget_watch(client))]
    try:
        await until(lambda: "n" in cluster.ledger.nodes and set(cluster.pending) == {"w"} and len(list(cluster.budgets)) == 1)
        assert free(cluster) == 8
        odd = cluster.ledger.nodes["odd"]
        assert odd.inventory_error
        await api.put(f"{nodes}n", raw_node("n", 16, 24))
        await api.put(f"{pods}b", raw_pod("b", "n"))
        await api.remove(f"{pods}w")
        await api.put(f"{budgets}two", budget("two"))
        await until(lambda: free(cluster) == 24 and not cluster.pending and len(list(cluster.budgets)) == 2)
        # It may be on any GPU or none: what was known of it is over soon.
        await api.put(f"{pods}b", raw_pod("b", "n", containers=7))
        await until(lambda: cluster.ledger.is_held_until("b"))
        wanted = {headers["Accept"] for (_, path, _), headers in zip(api.requests, api.headers, strict=True) if path.endswith("/nodes")}
        assert all("PartialObjectMetadata" in each for each in wanted), "a node's status is large and changes all the time"
    finally:
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("one_waits", [True, False])
async def test_changes_of_pods_are_late_only_while_none_waits(
    one_waits: bool, api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PODS_SECONDS", 600.0)
    pods, cluster = "/api/v1/namespaces/default/pods/", ClusterCache()

    def has_gpus(name: str, on: str = "n") -> dict[str, Any]:
        made = pod(container(mem=8), name=name, uid=name, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"} if on else {})
        return {**made, "spec": {**made["spec"], "nodeName": on}}

    if one_waits:
        await api.put(f"{pods}waits", has_gpus("waits", ""))
    _, watch = cluster.watches(client)
    task = asyncio.create_task(watch.run())
    try:
        await watch.synced.wait()
        await api.put(f"{pods}a", has_gpus("a"))
        await until(lambda: cluster.ledger.pod("a"))
        await api.put(f"{pods}b", has_gpus("b"))
        if one_waits:
            await until(lambda: cluster.ledger.pod("b"))
        else:
            await asyncio.sleep(0.2)
            assert not cluster.ledger.pod("b")
    finally:
        task.cancel()


def rejected_by_its_node() -> FinishedPod:
    raw = pod(container(mem=8), uid="a", name="a")
    raw["spec"]["nodeName"] = "n"
    message = (
        "Allocate failed due to rpc error: code = FailedPrecondition desc = aliyun.com/gpu-mem: asked for 8 units, which is unexpected"
    )
    raw["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    record = PodReader()(raw)
    assert isinstance(record, FinishedPod)
    return record


def takes(cluster: ClusterCache, units: int) -> bool:
    node = cluster.ledger.nodes["n"]
    return bool(node.candidates(Request((ContainerRequest(Kind.APP, 0, "main", units=units),))))


def test_a_pod_that_its_node_rejected_holds_its_gpu_back_until_the_node_reports_or_a_minute_is_over() -> None:
    """A device plugin that cannot reach the API server rejects pods all the same."""
    clock = 0.0
    cluster = ClusterCache(clock=lambda: clock)
    cluster.replace_nodes([NodeRecord("n", inventory(16))])
    for kind, record in (("ADDED", allocated_pod("a")), ("MODIFIED", FinishedPod("a"))):
        cluster.pod_event(kind, record)
    assert takes(cluster, 8), "it was not rejected"

    def reject() -> None:
        cluster.pod_event("ADDED", allocated_pod("a"))
        cluster.pod_event("MODIFIED", rejected_by_its_node())
        cluster.expire()

    reject()
    assert (takes(cluster, 8), takes(cluster, 7), free(cluster)) == (False, True, 16)
    clock = 61.0
    cluster.expire()
    assert takes(cluster, 8)
    reject()
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), held=Held((HeldEntry("GPU-00000000", "x", "x", 1, "orphaned"),))))
    assert takes(cluster, 8)
    reject()
    assert not takes(cluster, 8)
    # The node's own report, which it withdraws.
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16), held=Held((), (Rejection("a", "GPU-00000000", 8, 120.0),))))
    assert not takes(cluster, 8)
    reject()
    cluster.node_event("MODIFIED", NodeRecord("n", inventory(16)))
    assert takes(cluster, 8)


def test_a_pod_that_kubelet_rejects_for_the_topology_of_its_cpus_frees_its_gpu() -> None:
    """The words of kubelet 1.37.2, topology_manager.go and rejectPod. The GPU did not lack anything: nothing is held back."""
    freed: list[str] = []
    cluster = ClusterCache(clock=lambda: 0.0)
    cluster.replace_nodes([NodeRecord("n", inventory(16))])
    cluster.on_capacity_freed = lambda by="": freed.append(by)
    raw = pod(container(mem=12), uid="a", name="a", annotations=Allocation.of({0: {0: 12}}).to_annotations(inventory(16), 1))
    raw["spec"]["nodeName"] = "n"
    raw["status"] = {"phase": "Pending"}
    read = PodReader()
    for status in (
        {"phase": "Pending"},
        {
            "phase": "Failed",
            "reason": "TopologyAffinityError",
            "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
        },
    ):
        assert not freed
        record = read({**raw, "status": status})
        assert record is not None
        cluster.pod_event("MODIFIED", record)
        assert free(cluster) == (4 if status["phase"] == "Pending" else 16)
    assert takes(cluster, 16)
    assert freed, "pods that wait are tried again"


@pytest.mark.parametrize(
    ("reason", "message", "counts"),
    [
        ("UnexpectedAdmissionError", "rpc error: code = FailedPrecondition desc = aliyun.com/gpu-mem: x", True),
        ("UnexpectedAdmissionError", "requested number of devices unavailable for aliyun.com/gpu-mem. Requested: 8, Available: 2", True),
        ("UnexpectedAdmissionError", "rpc error: code = Unavailable desc = connection error", False),
        ("UnexpectedAdmissionError", "rpc error: code = Aborted desc = aliyun.com/gpu-mem: x", False),
        ("UnexpectedAdmissionError", "rpc error: code = FailedPrecondition desc = example.com/nic: x", False),
        ("Evicted", "rpc error: code = FailedPrecondition desc = aliyun.com/gpu-mem: x", False),
        ("UnexpectedAdmissionError", None, False),
    ],
)
def test_only_what_the_gpus_lack_is_a_rejection(reason: str, message: str | None, counts: bool) -> None:
    raw = pod(container(mem=8), uid="a", name="a")
    raw["spec"]["nodeName"] = "n"
    raw["status"] = {"phase": "Failed", "reason": reason, "message": message}
    assert PodReader()(raw) == FinishedPod("a", rejected=counts)

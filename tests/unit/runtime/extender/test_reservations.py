# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Between prioritize and bind the scheduler asks about other pods: what it will probably take is kept for it, and for nominated pods."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core import protocol
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement import view
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.preemption import Victims
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.reservation import CYCLE_SECONDS, RESERVED_SECONDS
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import FORCED_SECONDS, ClusterCache
from gpushare_runtime.extender.extender_v1 import Arguments, BindArguments, PreemptArguments
from gpushare_runtime.extender.requeue import Requeue
from gpushare_runtime.extender.verbs import AWAITED_SECONDS, Verbs
from gpushare_runtime.kube.client import KubeError
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import allocated_pod, container, inventory, memory, on, pod
from unit.golden import Golden


class World:
    """An extender's core around a clock that tests move."""

    def __init__(self, **nodes: tuple[int, ...]) -> None:
        self.now = 1000.0
        self.cluster = ClusterCache(clock=lambda: self.now)
        self.ledger = self.cluster.ledger
        self.unschedulable: list[str] = []
        self.policy = Placement(scarcity=self.cluster.scarcity)
        self.service = Verbs(self.ledger, self.policy, self._on_filter, clock=lambda: self.now)
        self.names = list(nodes)
        for name, gpus in nodes.items():
            self.cluster.node_event("ADDED", NodeRecord(name, inventory(*gpus)))

    def _on_filter(self, uid: str, nodes: Sequence[str]) -> None:
        if nodes:
            self.unschedulable.append(uid)

    def args(self, uid: str, units: int, **metadata: Any) -> Arguments:
        raw = pod(container(mem=units), uid=uid, **metadata) | {"status": {}}
        raw["metadata"]["name"] = uid
        raw["spec"]["priority"] = metadata.get("priority", 0)
        return Arguments(raw, self.names)

    def filter(self, uid: str, units: int, **metadata: Any) -> list[str]:
        return self.service.filter(self.args(uid, units, **metadata)).names

    def schedule(self, uid: str, units: int) -> str:
        """As kube-scheduler: filter, and prioritize only where there is a choice."""
        names = self.filter(uid, units)
        if len(names) < 2:
            return "".join(names)
        scores = self.service.prioritize(Arguments(self.args(uid, units).pod, names))
        return max(names, key=lambda name: scores.get(name, 0))


def test_what_prioritize_prefers_is_kept_for_the_pod() -> None:
    world = World(n=(16,), m=(24,))
    assert world.schedule("a", 16) == "n"
    assert world.schedule("b", 16) == "m"
    assert world.schedule("c", 16) == ""
    assert world.unschedulable == ["c"]


def test_a_pod_is_not_in_its_own_way() -> None:
    world = World(n=(16,))
    assert [world.schedule("a", 16) for _ in range(3)] == ["n"] * 3


def test_what_is_not_bound_in_time_is_free_again_and_somebody_is_told() -> None:
    world = World(n=(16,))
    told: list[bool] = []
    world.schedule("a", 16)
    world.cluster.on_capacity_freed = lambda by="": told.append(True)
    world.now += RESERVED_SECONDS - 1
    world.cluster.expire()
    assert (world.filter("b", 16), told) == ([], [])
    world.now += 1
    world.cluster.expire()
    assert (world.filter("b", 16), told) == (["n"], [True])


@pytest.mark.parametrize(
    ("spec", "labels", "seconds"),
    [
        ({}, {}, RESERVED_SECONDS),
        ({"volumes": [{"name": "token", "projected": {"sources": []}}, {"name": "e", "emptyDir": {}}]}, {"app": "x"}, RESERVED_SECONDS),
        ({"volumes": [{"name": "e", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}, {}, 600),
        ({"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}, {}, 600),
        ({"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}, {}, 600),
        ({"workloadRef": {"name": "w", "podGroup": "g"}}, {}, 60),
        ({}, {"scheduling.x-k8s.io/pod-group": "g"}, 60),
        ({}, {"pod-group.scheduling.sigs.k8s.io": "g"}, 60),
        ({"resourceClaims": [{"name": "nic"}]}, {"scheduling.x-k8s.io/pod-group": "g"}, 600),
    ],
)
def test_a_pod_that_is_bound_late_keeps_its_gpu_until_then(spec: dict[str, Any], labels: dict[str, str], seconds: float) -> None:
    """In PreBind volumes and claims are made, in Permit a group waits: the scheduler itself would keep only totals for it."""
    world = World(n=(16,))
    args = world.args("a", 16, labels=labels)
    args.pod["spec"] |= spec  # type: ignore[index]
    assert world.service.filter(args).names == ["n"]
    assert world.service.filter(world.args("quick", 1)).names == []
    world.now += seconds - 1
    world.cluster.expire()
    assert world.ledger.is_reserved("a")
    world.now += 1
    world.cluster.expire()
    assert not world.ledger.is_reserved("a")


def member(world: World, uid: str, units: int = 16) -> Arguments:
    """A question about a pod of the group `team`, which the watch has shown."""
    args = world.args(uid, units)
    args.pod["spec"]["schedulingGroup"] = {"podGroupName": "team"}  # type: ignore[index]
    record = PodReader()(args.pod)
    assert isinstance(record, PendingPod)
    world.cluster.pod_event("ADDED", record)
    return args


def test_a_group_that_came_to_nothing_is_in_nobodys_way() -> None:
    """kube-scheduler writes what it has written before, so that no event tells of it; a question about another pod does."""
    world = World(n=(16, 16))
    for _ in range(2):
        assert [world.service.filter(member(world, uid)).names for uid in "abc"] == [["n"], ["n"], []]
        world.now += 9
        world.cluster.expire()
    failed = world.service.filter(world.args("single", 16)).failed["n"]
    assert failed == "n: needs 16 GiB on one GPU, at most 0 are free on one (0 of 32 in total); room is reserved for the group default/team"
    world.now += CYCLE_SECONDS
    assert world.filter("single", 16) == ["n"]
    assert world.filter("another", 16) == ["n"]


def test_a_group_that_is_tried_again_is_not_in_its_own_way() -> None:
    world = World(n=(16, 16))
    assert [world.service.filter(member(world, uid, units)).names for uid, units in (("a", 6), ("b", 16), ("c", 16))] == [["n"], ["n"], []]
    # In another order than before, the first pod needs what was kept for the second one.
    assert [world.service.filter(member(world, uid, units)).names for uid, units in (("b", 16), ("c", 16), ("a", 6))] == [["n"], ["n"], []]


@pytest.mark.parametrize("how", ["bind", "bind elsewhere", "nominate"])
def test_a_group_that_is_being_bound_is_kept_room_for(how: str) -> None:
    """Its binds take turns; that of a pod whose volume is to be made comes much later."""
    world = World(n=(16, 16), m=(16,))
    world.names = ["n"]
    for uid in "ab":
        world.service.filter(member(world, uid))
    assert world.filter("single", 16) == []
    if how == "nominate":
        known = world.cluster.pending["a"]
        assert isinstance(known, PendingPod)
        world.cluster.pod_event("MODIFIED", replace(known, nominated="n", seconds_to_bind=600))
    else:
        api = Api()
        where = BindArguments("default", "a", "a", "n" if how == "bind" else "m")
        asyncio.run(Binder(api, world.cluster, world.policy).bind(where))  # type: ignore[arg-type]
    for _ in range(4):
        world.now += CYCLE_SECONDS
        world.cluster.expire()
        assert (world.filter("single", 9), world.ledger.is_reserved("b")) == (["n"] if how == "bind elsewhere" else [], True)
        world.ledger.release("single")
    world.now += 2 * RESERVED_SECONDS
    world.cluster.expire()
    assert (world.ledger.is_reserved("b"), world.ledger.is_reserved("a")) == (False, how == "nominate")


def test_an_attempt_that_has_failed_keeps_nothing() -> None:
    """The scheduler says so in the pod's condition, each time that it says something else."""
    world, rooms = World(n=(16,)), []

    def pending(message: str) -> PendingPod:
        raw = world.args("a", 16).pod
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}] if message else []
        record = PodReader()({**raw, "status": {"conditions": [{"type": "Ready", "status": "False"}, *conditions]}})
        assert isinstance(record, PendingPod)
        return record

    world.cluster.on_capacity_freed = lambda by="": rooms.append("room")
    world.cluster.pod_event("ADDED", pending(""))
    for message, kept in (("", True), ("no volume", False), ("no volume", True), ("no quorum", False), ("", True)):
        world.schedule("a", 16)
        rooms.clear()
        world.cluster.pod_event("MODIFIED", pending(message))
        assert (world.ledger.is_reserved("a"), rooms) == (kept, [] if kept else ["room"]), message


def test_a_pod_that_is_gone_keeps_nothing() -> None:
    world = World(n=(16,))
    world.cluster.pod_event("ADDED", PendingPod("a", "default", "a", memory(16)))
    world.schedule("a", 16)
    world.cluster.pod_event("DELETED", PendingPod("a", "default", "a", memory(16)))
    assert world.filter("b", 16) == ["n"]


def test_a_rejected_pod_is_requeued_when_a_reservation_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = []

    class Server:
        async def patch(self, path: str, body: object, *, kind: str, within: float) -> None:
            patched.append(path)

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        cluster = ClusterCache(clock=clock)
        requeue = Requeue(cluster, Placement(), clock=clock)
        cluster.on_capacity_freed = requeue.on_capacity_freed
        service = Verbs(cluster.ledger, Placement(), requeue.on_filter, clock=clock)
        cluster.node_event("ADDED", NodeRecord("n", inventory(16)))
        tasks = [asyncio.create_task(requeue.run(Server())), asyncio.create_task(cluster.expire_for_ever())]  # type: ignore[arg-type]
        await asyncio.sleep(5)
        for uid in ("a", "b"):
            cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(16)))
            service.filter(Arguments(pod(container(mem=16), uid=uid), ["n"]))
        await asyncio.sleep(RESERVED_SECONDS - 1)
        assert patched == []
        await asyncio.sleep(5)
        assert patched == ["/api/v1/namespaces/default/pods/b/status"]
        for task in tasks:
            task.cancel()

    virtual.run(run())


def test_nominated_pods_have_their_room() -> None:
    world = World(n=(16, 16))
    world.ledger.apply(AllocatedPod("leaving", "default", "leaving", "n", memory(16), on(0, 16), (), 0, True))
    world.cluster.pod_event("ADDED", PendingPod("vip", "default", "vip", memory(10), (), 5, "n"))
    # GPU 1 has 16 free, GPU 0 will have: the nominated pod gets one of them.
    assert world.filter("other", 10) == ["n"]
    world.ledger.release("other")
    world.cluster.pod_event("DELETED", allocated_pod("leaving", memory(16), on(0, 16)))
    world.ledger.apply(allocated_pod("big", memory(16), on(0, 16)))
    assert world.filter("other", 10) == []
    assert world.filter("more", 10, priority=6) == ["n"], "who is more important does not wait"
    world.ledger.release("more")
    assert world.filter("vip", 10) == ["n"]
    world.ledger.release("vip")
    world.cluster.pod_event("MODIFIED", PendingPod("vip", "default", "vip", memory(10), (), 5, ""))
    assert world.filter("other", 10) == ["n"]


def test_where_nominated_pods_will_be_is_counted_once_until_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each pod that is asked about it was counted again for every node that somebody is nominated to."""
    counted: list[str] = []
    places = view.places
    monkeypatch.setattr(view, "places", lambda policy, node, asked: (counted.append(node.name), places(policy, node, asked))[1])
    world = World(n=(16, 16), m=(16,), o=(16,))

    def named(uid: str, units: int, node: str, priority: int = 5) -> None:
        world.cluster.pod_event("ADDED", PendingPod(uid, "default", uid, memory(units), (), priority, node))

    def ask(uid: str, priority: int = 0) -> list[str]:
        """About more than there is anywhere, so that nothing changes by being asked."""
        counted.clear()
        args = world.args(uid, 17, priority=priority)
        world.service.filter(args)
        world.service.prioritize(args)
        return sorted(counted)

    named("vip", 10, "n")
    named("other-vip", 16, "m")
    assert [ask("a"), ask("a"), ask("b")] == [["m", "n"], [], []]
    assert [ask("vip"), ask("b", priority=5), ask("b", priority=6)] == [[], [], []], "the same others are kept room for, or none"
    named("vip", 3, "n")
    assert [ask("a"), ask("b")] == [["n"], []]
    named("third", 3, "m", 0)
    assert [ask("a"), ask("b", priority=1)] == [["m"], []]
    world.ledger.apply(allocated_pod("big", memory(1), on(0, 1), "m"))
    assert [ask("a"), ask("b")] == [["m"], []]


def test_a_nominated_pod_that_goes_elsewhere_needs_its_room_no_more() -> None:
    world = World(n=(16,), m=(16,))
    world.cluster.pod_event("ADDED", PendingPod("vip", "default", "vip", memory(16), (), 5, "n"))
    assert world.filter("other", 16) == ["m"]
    world.ledger.release("other")
    world.ledger.assume(allocated_pod("vip", memory(16), on(0, 16), "m"))
    assert world.filter("other", 16) == ["n"]


def test_a_fresh_list_ends_what_is_nominated_no_more() -> None:
    world = World(n=(16,))
    vip = PendingPod("vip", "default", "vip", memory(16), (), 5, "n")
    world.cluster.replace_pods([vip])
    assert world.filter("other", 1) == []
    world.cluster.replace_pods([])
    assert world.filter("other", 1) == ["n"]


def test_only_where_no_eviction_could_help_the_node_is_unresolvable() -> None:
    world = World(small=(8,), full=(16,))
    world.ledger.apply(allocated_pod("a", memory(16), on(0, 16), "full"))
    result = world.service.filter(world.args("b", 16))
    assert set(result.failed) == {"small", "full"}
    assert result.unresolvable == {"small"}


def test_preempt_is_asked_about_pods_of_any_kind() -> None:
    world = World(n=(16,))
    world.ledger.apply(allocated_pod("a", memory(16), on(0, 16)))
    victims = {"n": Victims(("a",), 1)}
    ask = world.args("b", 16, priority=1).pod
    assert world.service.preempt(PreemptArguments(ask, victims)) == victims
    assert world.service.preempt(PreemptArguments(world.args("b", 17, priority=1).pod, victims)) == {}
    assert world.service.preempt(PreemptArguments(pod({"name": "none"}), victims)) == victims
    assert world.service.preempt(PreemptArguments(pod(container(mem=1, count=1)), victims)) == {}


def test_nobody_is_evicted_for_a_pod_whose_room_is_about_to_be_free() -> None:
    """kube-scheduler counts a pod as gone that was deleted by force, asks again, and proposes the next one on another node."""
    world = World(n=(16,), m=(16,))
    for uid, node in (("a", "n"), ("b", "m")):
        world.ledger.apply(replace(allocated_pod(uid, memory(16), on(0, 16), node), alive=True))
    vip = world.args("vip", 16, priority=5)
    vip.pod["status"] = {"nominatedNodeName": "n"}  # type: ignore[index]
    world.cluster.pod_event("ADDED", PodReader()(vip.pod))  # type: ignore[arg-type]
    ask = PreemptArguments(vip.pod, {"m": Victims(("b",))})
    assert world.service.preempt(ask) == ask.victims, "nobody has gone yet"
    world.cluster.pod_event("DELETED", replace(allocated_pod("a", memory(16), on(0, 16)), alive=True))
    assert (world.service.filter(vip).names, world.service.preempt(ask)) == ([], {})
    world.now += FORCED_SECONDS
    world.cluster.expire()
    assert world.service.filter(vip).names == ["n"]


def test_nobody_waits_for_long_for_a_node_on_which_something_else_is_missing() -> None:
    world = World(n=(16,), m=(16,))
    world.ledger.apply(allocated_pod("b", memory(16), on(0, 16), "m"))
    vip = world.args("vip", 16, priority=5)
    vip.pod["status"] = {"nominatedNodeName": "n"}  # type: ignore[index]
    world.cluster.pod_event("ADDED", PodReader()(vip.pod))  # type: ignore[arg-type]
    ask = PreemptArguments(vip.pod, {"m": Victims(("b",))})
    assert world.service.preempt(ask) == {}
    world.now += AWAITED_SECONDS - 1
    assert world.service.preempt(ask) == {}
    world.now += 1
    assert world.service.preempt(ask) == ask.victims


class Api:
    """Takes every Binding."""

    def __init__(self) -> None:
        self.bindings: list[Any] = []

    async def create(self, path: str, body: Any, *, within: float, **params: object) -> dict[str, Any]:
        self.bindings.append(body)
        return {}


def bind(world: World, uid: str, node: str) -> dict[str, str]:
    """The annotations of its Binding."""
    api = Api()
    world.cluster.pod_event("ADDED", PodReader()(world.args(uid, 4).pod))  # type: ignore[arg-type]
    asyncio.run(Binder(api, world.cluster, world.policy, now_ns=lambda: 1).bind(BindArguments("default", uid, uid, node)))  # type: ignore[arg-type]
    annotations: dict[str, str] = api.bindings[0]["metadata"]["annotations"]
    return annotations


def test_bind_takes_what_was_reserved_and_the_node_changes_once() -> None:
    world = World(n=(16, 24), m=(80,))
    assert world.schedule("a", 4) == "n"
    reserved = world.ledger.pod("a")
    node = world.ledger.nodes["n"]
    assert reserved is not None
    assert reserved.allocation is not None
    world.ledger.apply(allocated_pod("later", memory(13), on(1, 13)))
    gpus = node.gpu_states
    annotations = bind(world, "a", "n")
    assert annotations[protocol.ANNOTATION_INDEX] == str(reserved.allocation.first_gpu)
    assert node.gpu_states is gpus, "the sums were right before"
    assert (world.ledger.is_assumed("a"), world.ledger.is_reserved("a")) == (True, False)


def test_bind_elsewhere_gives_the_reservation_back() -> None:
    world = World(n=(16,), m=(80,))
    assert world.schedule("a", 4) == "n"
    bind(world, "a", "m")
    assert {name: node.free for name, node in world.ledger.nodes.items()} == {"n": 16, "m": 76}


def test_bind_elsewhere_chooses_the_gpu_there() -> None:
    world = World(n=(4, 16), m=(80, 80))
    assert world.schedule("a", 8) == "n"
    reserved = world.ledger.pod("a")
    assert reserved is not None
    assert reserved.allocation == on(1, 8)
    assert bind(world, "a", "m")[protocol.ANNOTATION_INDEX] == "0"


def test_a_bind_that_fails_gives_the_reservation_back(golden: Golden) -> None:
    class Silent:
        async def get(self, path: str, *, within: float) -> dict[str, Any]:
            raise KubeError(503, "ServiceUnavailable", "no answer")

    world = World(n=(16,))
    assert world.schedule("unseen", 16) == "n"
    binder = Binder(Silent(), world.cluster, world.policy)  # type: ignore[arg-type]
    with golden.raised(BindError, "api-rejected"):
        asyncio.run(binder.bind(BindArguments("default", "unseen", "unseen", "n")))
    assert world.filter("other", 16) == ["n"]


def test_a_reserved_gpu_that_has_failed_meanwhile_is_not_used() -> None:
    world = World(n=(16, 16))
    assert world.schedule("a", 4) == "n"
    gpus = inventory(16, 16)
    bad = replace(gpus, gpus=(replace(gpus.gpus[0], health="XID 79"), gpus.gpus[1]))
    world.cluster.node_event("MODIFIED", NodeRecord("n", bad))
    assert bind(world, "a", "n")[protocol.ANNOTATION_INDEX] == "1"


def test_a_pod_does_not_mistake_its_own_reservation_for_the_company_it_wants() -> None:
    world = World(n=(16,), m=(80,))
    metadata = {"labels": {"app": "a"}, "annotations": {protocol.ASK_SAME_GPU_AS: "app=a"}}
    raw = world.args("a", 4, **metadata).pod
    assert world.service.filter(Arguments(raw, ["n"])).names == ["n"]
    assert world.ledger.is_reserved("a")
    world.cluster.pod_event("ADDED", PodReader()(raw))  # type: ignore[arg-type]
    api = Api()
    asyncio.run(Binder(api, world.cluster, world.policy).bind(BindArguments("default", "a", "a", "m")))  # type: ignore[arg-type]
    assert api.bindings[0]["target"]["name"] == "m"

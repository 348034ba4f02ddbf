# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""bind: one Binding with everything, never two pods on the same units, and a ledger that ends as the API server has it."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gpushare_runtime import protocol
from gpushare_runtime.extender.binder import Binder, BindError
from gpushare_runtime.extender.cluster import LINGER_SECONDS, Cluster
from gpushare_runtime.extender.pods import NodeRecord, PodReader
from gpushare_runtime.extender.service import Service
from gpushare_runtime.extender.wire import Arguments, BindArguments
from gpushare_runtime.kube.client import LOST, TIMEOUT, UNREACHABLE, KubeError
from gpushare_runtime.ledger import Ledger
from gpushare_runtime.placement import Binpack
from unit.runtime.extender import virtual
from unit.runtime.pods import container, inventory, pod

NOW = 1_795_236_092_923_765_150


@dataclass(frozen=True)
class Fault:
    """How one Binding goes. lands: seconds until the pod is bound, None for never; error: what the client gets."""

    lands: float | None = 0.0
    error: KubeError | None = None
    takes: float = 0.0


GOOD = Fault()


class Api:
    """The API server's side, in memory: pods, Bindings that go as planned, and a watch that may lag."""

    def __init__(self, cluster: Cluster) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.bindings: list[tuple[str, Mapping[str, Any], Mapping[str, object]]] = []
        self.plan: deque[Fault] = deque()
        self.read_errors: deque[KubeError | None] = deque()
        self.lags: deque[float] = deque()
        self.reads = 0
        self._cluster = cluster
        self._reader = PodReader()
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def add(self, raw: dict[str, Any], *, seen: bool = True) -> None:
        self.pods[raw["metadata"]["name"]] = raw
        if seen:
            self.announce("ADDED", raw)

    def delete(self, name: str) -> None:
        raw = self.pods.pop(name, None)
        if raw is not None:
            self.announce("DELETED", raw)

    def announce(self, kind: str, raw: dict[str, Any]) -> None:
        self._queue.put_nowait((kind, copy.deepcopy(raw)))

    async def deliver(self) -> None:
        """The watch: in order, each event after its lag."""
        while True:
            kind, raw = await self._queue.get()
            await asyncio.sleep(self.lags.popleft() if self.lags else 0)
            record = self._reader(raw)
            if record is not None:
                self._cluster.pod_event(kind, record)
            self._queue.task_done()

    async def delivered(self) -> None:
        await self._queue.join()

    # What the binder calls.

    async def create(self, path: str, body: Mapping[str, Any], *, within: float, **params: object) -> dict[str, Any]:
        self.bindings.append((path, body, params))
        fault = self.plan.popleft() if self.plan else GOOD
        await asyncio.sleep(fault.takes)
        if fault.lands == 0:
            refused = self._bind(body)
            if refused is not None:
                raise refused
        elif fault.lands is not None:
            asyncio.get_running_loop().call_later(fault.lands, self._bind, body)
        if fault.error is not None:
            raise fault.error
        return {}

    async def get(self, path: str, *, within: float) -> dict[str, Any]:
        self.reads += 1
        await asyncio.sleep(0)
        error = self.read_errors.popleft() if self.read_errors else None
        if error is not None:
            raise error
        name = path.rsplit("/", 1)[1]
        if name not in self.pods:
            raise KubeError(404, "NotFound", f'pods "{name}" not found')
        return copy.deepcopy(self.pods[name])

    def _bind(self, body: Mapping[str, Any]) -> KubeError | None:
        raw = self.pods.get(body["metadata"]["name"])
        if raw is None:
            return KubeError(404, "NotFound", "not found")
        if raw["metadata"]["uid"] != body["metadata"]["uid"]:
            return KubeError(409, "Conflict", "Precondition failed: UID in precondition")
        if raw["spec"].get("nodeName"):
            return KubeError(409, "Conflict", f'pod is already assigned to node "{raw["spec"]["nodeName"]}"')
        raw["spec"]["nodeName"] = body["target"]["name"]
        raw["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        self.announce("MODIFIED", raw)
        return None


class World:
    """A cluster, its API server and a binder."""

    def __init__(self, nodes: Mapping[str, tuple[int, ...]]) -> None:
        self.cluster = Cluster()
        self.api = Api(self.cluster)
        self.cluster.replace_nodes([NodeRecord(name, inventory(*cards)) for name, cards in nodes.items()])
        self.binder = Binder(self.api, self.cluster, Binpack(), now_ns=lambda: NOW)  # type: ignore[arg-type]
        self.service = Service(self.cluster.ledger, Binpack())

    @property
    def ledger(self) -> Ledger:
        return self.cluster.ledger

    async def bind(self, name: str, node: str, uid: str | None = None) -> str:
        try:
            await self.binder.bind(BindArguments("default", name, uid or f"uid-{name}", node))
        except BindError as error:
            return str(error)
        return ""

    def held(self) -> dict[str, tuple[str, Any]]:
        """Pod UID → (node, allocation) in the ledger."""
        return {h.uid: (h.node, h.allocation) for node in self.ledger.nodes.values() for h in node.holders}

    def truth(self) -> Ledger:
        """A ledger from what the API server has."""
        reader, ledger = PodReader(), Ledger()
        for name, node in self.ledger.nodes.items():
            ledger.set_inventory(name, node.inventory)
        for raw in self.api.pods.values():
            record = reader(raw)
            if raw["spec"].get("nodeName") and record is not None:
                ledger.apply(record)  # type: ignore[arg-type]
        return ledger


def gpu_pod(name: str, units: int = 8, uid: str | None = None, **limits: object) -> dict[str, Any]:
    raw = pod(container(mem=units, **limits), name=name, uid=uid or f"uid-{name}")
    raw["metadata"]["name"] = name
    return raw


def play(story: Callable[[World], Awaitable[None]], **nodes: tuple[int, ...]) -> None:
    """Run a story on these nodes, by default n of two cards of 16 and m of one."""

    async def run() -> None:
        world = World(nodes or {"n": (16, 16), "m": (16,)})
        watch = asyncio.create_task(world.api.deliver())
        await story(world)
        watch.cancel()

    virtual.run(run())


def test_one_binding_says_it_all() -> None:
    async def story(world: World) -> None:
        raw = gpu_pod("a", 6)
        raw["metadata"]["annotations"] = {protocol.ANNOTATION_INDEX: "77", "other": "stays"}
        world.api.add(raw)
        await world.api.delivered()
        world.api.lags.append(1)
        assert await world.bind("a", "n") == ""
        ((path, body, params),) = world.api.bindings
        assert path == "/api/v1/namespaces/default/pods/a/binding"
        assert params == {"timeout": "3s", "send_within": math.inf}
        assert body == {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": "a",
                "namespace": "default",
                "uid": "uid-a",
                "annotations": {
                    "ALIYUN_COM_GPU_MEM_IDX": "0",
                    "ALIYUN_COM_GPU_MEM_DEV": "16",
                    "ALIYUN_COM_GPU_MEM_POD": "6",
                    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
                    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW),
                    "scheduler.framework.gpushare.allocation": '{"0":{"0":6}}',
                },
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
        }
        assert world.api.reads == 0
        assert world.ledger.is_assumed("uid-a")
        await world.api.delivered()
        assert not world.ledger.is_assumed("uid-a")
        assert raw["metadata"]["annotations"]["other"] == "stays"

    play(story)


def test_again_on_the_same_node_is_success_and_on_another_an_error_that_names_it() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.lags.append(100)
        assert await world.bind("a", "n") == ""
        for _ in ("before the watch has seen it", "after"):
            assert await world.bind("a", "n") == ""
            assert await world.bind("a", "m") == "pod default/a is already bound to node n; it cannot be bound to node m"
            await world.api.delivered()
        assert len(world.api.bindings) == 1

    play(story)


def test_at_once_twice_is_one_binding() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.plan.append(Fault(takes=1))
        answers = await asyncio.gather(world.bind("a", "n"), world.bind("a", "n"), world.bind("a", "m"))
        assert answers == ["", "", "pod default/a is being bound to node n; it cannot go to node m meanwhile"]
        assert len(world.api.bindings) == 1

    play(story)


def test_a_pod_that_the_watch_does_not_know_is_read() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"), seen=False)
        assert await world.bind("a", "n") == ""
        world.api.add(gpu_pod("b", uid="another"), seen=False)
        assert "pod default/b with UID uid-b is gone" in await world.bind("b", "n")
        assert "pod default/c with UID uid-c is gone" in await world.bind("c", "n")
        world.api.add(gpu_pod("d") | {"spec": {**gpu_pod("d")["spec"], "nodeName": "m"}}, seen=False)
        assert "already bound to node m" in await world.bind("d", "n")
        assert await world.bind("d", "m") == ""
        world.api.read_errors.append(KubeError(0, TIMEOUT, "no answer in time"))
        assert "is not known yet, and the API server does not give it: no answer in time" in await world.bind("e", "n")
        assert set(world.held()) == {"uid-a"}

    play(story)


def test_a_pod_that_asks_for_nothing_is_bound_without_a_card() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a", 0))
        assert await world.bind("a", "n") == ""
        assert world.api.bindings[0][1]["metadata"]["annotations"] == {}
        assert not world.held()

    play(story)


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"count": 1}, "at once"), ({"core": 20}, "gpu-core.percentage")],
)
@pytest.mark.parametrize("seen", [True, False])
def test_what_filter_refuses_is_never_bound(limits: dict[str, object], said: str, seen: bool) -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a", **limits), seen=seen)
        await world.api.delivered()
        assert said in await world.bind("a", "n")
        assert not world.api.bindings

    play(story)


def test_what_does_not_fit_any_more() -> None:
    async def story(world: World) -> None:
        for name in "abc":
            world.api.add(gpu_pod(name, 9))
        await world.api.delivered()
        assert await asyncio.gather(*(world.bind(name, "n") for name in "abc")) == [
            "",
            "",
            "pod default/c does not fit on node n any more: needs 9 GiB on one card, at most 7 are free on one (14 of 32 in total)",
        ]
        assert "no annotation gpushare/cards" in await world.bind("c", "unknown")
        assert len(world.api.bindings) == 2

    play(story)


@pytest.mark.parametrize(
    "error",
    [
        KubeError(403, "Forbidden", "may not"),
        KubeError(404, "NotFound", "not there"),
        KubeError(409, "Conflict", "Precondition failed"),
        KubeError(0, UNREACHABLE, "connection refused"),
    ],
)
def test_a_refusal_leaves_the_ledger_as_it_was(error: KubeError) -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.plan.append(Fault(lands=None, error=error))
        assert error.message in await world.bind("a", "n")
        assert not world.held()
        assert await world.bind("a", "m") == ""

    play(story)


AMBIGUOUS = [KubeError(0, TIMEOUT, "t"), KubeError(0, LOST, "l"), KubeError(500, "InternalError", "i"), KubeError(504, "Timeout", "g")]


@pytest.mark.parametrize("error", AMBIGUOUS)
def test_an_unclear_end_is_looked_up(error: KubeError) -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        world.api.add(gpu_pod("b"))
        await world.api.delivered()
        world.api.plan.extend([Fault(lands=0, error=error), Fault(lands=None, error=error), GOOD])
        assert await world.bind("a", "n") == ""
        assert len(world.api.bindings) == 1
        # Not bound: sent again, since it cannot bind twice.
        assert await world.bind("b", "n") == ""
        assert len(world.api.bindings) == 3
        await world.api.delivered()
        assert set(world.held()) == {"uid-a", "uid-b"}

    play(story)


def test_a_refusal_after_an_unclear_end_says_nothing_about_the_first() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a", 16))
        world.api.add(gpu_pod("b", 16))
        await world.api.delivered()
        world.api.plan.append(Fault(lands=2, error=KubeError(0, LOST, "lost")))
        world.api.plan.append(Fault(lands=None, error=KubeError(403, "Forbidden", "may not any more")))
        assert "it is not known whether" in await world.bind("a", "m")
        assert "does not fit" in await world.bind("b", "m")
        await asyncio.sleep(10)
        await world.api.delivered()
        assert set(world.held()) == {"uid-a"}

    play(story)


@pytest.mark.parametrize("lands", [None, 2.9])
def test_what_may_still_happen_keeps_its_card_until_it_cannot(lands: float | None) -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a", 16))
        world.api.add(gpu_pod("b", 16))
        await world.api.delivered()
        lost = KubeError(0, LOST, "lost")
        world.api.plan.extend([Fault(lands=None, error=lost), Fault(lands=lands, error=lost)])
        assert "it is not known whether pod default/a was bound to node m" in await world.bind("a", "m")
        assert "has not said yet whether pod default/a was bound to node m" in await world.bind("a", "n")
        assert "does not fit" in await world.bind("b", "m")
        await asyncio.sleep(3.5)
        assert "does not fit" in await world.bind("b", "m")
        await asyncio.sleep(2)
        await world.api.delivered()
        if lands is None:
            assert not world.held()
            assert await world.bind("b", "m") == ""
        else:
            assert "does not fit" in await world.bind("b", "m")
            assert await world.bind("a", "m") == ""

    play(story)


def test_no_answer_to_the_question_either() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.plan.append(Fault(lands=0, error=KubeError(0, LOST, "lost")))
        world.api.read_errors.extend([KubeError(0, UNREACHABLE, "refused")] * 5)
        assert "not known" in await world.bind("a", "n")
        assert len(world.api.bindings) == 1
        await asyncio.sleep(60)
        assert not world.api.read_errors
        assert await world.bind("a", "n") == ""
        assert set(world.held()) == {"uid-a"}

    play(story)


def test_a_scheduler_that_hangs_up_does_not_stop_the_binding() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.plan.append(Fault(takes=3))
        asked = asyncio.create_task(world.bind("a", "n"))
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await world.binder.drain()
        assert world.api.pods["a"]["spec"]["nodeName"] == "n"

    play(story)


def test_a_pod_that_is_deleted_meanwhile_holds_nothing() -> None:
    async def story(world: World) -> None:
        world.api.add(gpu_pod("a"))
        await world.api.delivered()
        world.api.plan.append(Fault(takes=1))
        asked = asyncio.create_task(world.bind("a", "n"))
        await asyncio.sleep(0.5)
        world.api.delete("a")
        assert "not found" in await asked
        await world.api.delivered()
        assert not world.held()

    play(story)


# Bursts: schedulers that filter, prioritize and bind at once, on a server and a watch that misbehave as drawn.

FAULTS = st.one_of(
    st.builds(Fault, takes=st.sampled_from([0.0, 0.1, 1.0])),
    st.builds(
        Fault,
        lands=st.sampled_from([None, 0.0, 0.5, 2.5]),
        error=st.sampled_from([*AMBIGUOUS]),
        takes=st.sampled_from([0.0, 0.1, 1.0]),
    ),
    st.builds(Fault, lands=st.none(), error=st.just(KubeError(403, "Forbidden", "may not"))),
)
READS = st.one_of(st.none(), st.sampled_from([KubeError(0, TIMEOUT, "t"), KubeError(503, "ServiceUnavailable", "s")]))


@dataclass(frozen=True)
class Order:
    """One pod and what happens to it."""

    units: int
    at: float
    again: bool
    deleted_after: float | None


ORDERS = st.builds(
    Order,
    units=st.integers(1, 9),
    at=st.sampled_from([0.0, 0.0, 0.0, 0.3, 2.0]),
    again=st.booleans(),
    deleted_after=st.sampled_from([None, None, None, 0.05, 1.5, 6.0]),
)


async def schedule(world: World, name: str, order: Order) -> None:
    """What kube-scheduler does with one pod: filter, prioritize, bind, and again after a failure."""
    await asyncio.sleep(order.at)
    world.api.add(gpu_pod(name, order.units))
    if order.deleted_after is not None:
        asyncio.get_running_loop().call_later(order.deleted_after, world.api.delete, name)
    for _ in range(4):
        raw = world.api.pods.get(name)
        if raw is None or raw["spec"].get("nodeName"):
            return
        nodes = sorted(world.ledger.nodes)
        fitting = world.service.filter(Arguments(raw, nodes)).names
        if fitting:
            scores = world.service.prioritize(Arguments(raw, fitting))
            node = max(fitting, key=lambda n: (scores.get(n, 0), n))
            twice = [world.bind(name, other) for other in nodes[: int(order.again)]]
            await asyncio.gather(world.bind(name, node), *twice)
        await asyncio.sleep(1)


async def burst(world: World, orders: list[Order]) -> None:
    watch = asyncio.create_task(world.api.deliver())
    overbooked: list[dict[int, int]] = []

    async def look() -> None:
        while True:
            overbooked.extend(over for node in world.truth().nodes.values() if (over := node.overbooked()))
            overbooked.extend(over for node in world.ledger.nodes.values() if (over := node.overbooked()))
            # After the burst only settling is left.
            await asyncio.sleep(0.05 if asyncio.get_running_loop().time() < 15 else 1)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(schedule(world, f"p{i}", order) for i, order in enumerate(orders)))
    await asyncio.sleep(120)
    await world.api.delivered()
    # What was deleted before kubelet's first word waits for its node's, which here says nothing; that time is the real clock's.
    world.ledger.expire(time.time(), time.monotonic() + LINGER_SECONDS)
    looking.cancel()
    watch.cancel()
    assert not overbooked
    truth = {h.uid: (h.node, h.allocation) for node in world.truth().nodes.values() for h in node.holders}
    assert world.held() == truth
    assert not any(world.ledger.is_assumed(uid) for uid in truth)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    orders=st.lists(ORDERS, min_size=1, max_size=14),
    faults=st.lists(FAULTS, max_size=30),
    reads=st.lists(READS, max_size=20),
    lags=st.lists(st.sampled_from([0.0, 0.0, 0.2, 3.0]), max_size=40),
)
def test_bursts_never_overbook_and_end_as_the_api_server_has_it(
    orders: list[Order], faults: list[Fault], reads: list[KubeError | None], lags: list[float]
) -> None:
    async def run() -> None:
        world = World({"n": (10, 10), "m": (10,)})
        world.api.plan.extend(faults)
        world.api.read_errors.extend(reads)
        world.api.lags.extend(lags)
        await burst(world, orders)

    virtual.run(run())


def test_the_burst_sees_an_overbooking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the assumption the same burst must fail: the check above can see what it is there for."""
    monkeypatch.setattr(Ledger, "reserve", lambda self, holder, until: None)
    monkeypatch.setattr(Ledger, "assume", lambda self, holder: None)

    async def run() -> None:
        world = World({"n": (10,)})
        world.api.plan.extend([Fault(takes=1.0)] * 5)
        await burst(world, [Order(6, 0.0, False, None)] * 5)

    with pytest.raises(AssertionError, match=r"assert not \[\{0: 20\}"):
        virtual.run(run())

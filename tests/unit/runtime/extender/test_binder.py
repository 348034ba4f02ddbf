# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""bind: one Binding with everything, never two pods on the same units, and a ledger that ends as the API server has it."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gpushare_runtime.core import protocol
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import FORCED_SECONDS, UNSEEN_SECONDS, ClusterCache
from gpushare_runtime.extender.extender_v1 import Arguments, BindArguments
from gpushare_runtime.extender.requeue import Requeue
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.kube.client import LOST, TIMEOUT, UNREACHABLE, KubeError
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden

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

    def __init__(self, cluster: ClusterCache) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.bindings: list[tuple[str, Mapping[str, Any], Mapping[str, object]]] = []
        self.plan: deque[Fault] = deque()
        self.read_errors: deque[KubeError | None] = deque()
        self.lags: deque[float] = deque()
        self.reads = 0
        self.slow = 0.0
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
        assert params["timeout"] == f"{within - 1:.0f}s", "one second more than the API server takes"
        fault = self.plan.popleft() if self.plan else GOOD
        await asyncio.sleep(fault.takes)
        if fault.lands == 0:
            rejected = self._bind(body)
            if rejected is not None:
                raise rejected
        elif fault.lands is not None:
            asyncio.get_running_loop().call_later(fault.lands, self._bind, body)
        if fault.error is not None:
            raise fault.error
        return {}

    async def get(self, path: str, *, within: float) -> dict[str, Any]:
        assert within == 3.0
        self.reads += 1
        await asyncio.sleep(self.slow)
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


def moment() -> float:
    """Seconds of the loop's own clock, which jumps; 0 before it runs."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


class World:
    """A cluster, its API server and a binder."""

    def __init__(self, nodes: Mapping[str, tuple[int, ...]], **options: Any) -> None:
        self.cluster = ClusterCache(clock=moment)
        self.api = Api(self.cluster)
        self.cluster.replace_nodes([NodeRecord(name, inventory(*gpus)) for name, gpus in nodes.items()])
        self.binder = Binder(self.api, self.cluster, Binpack(), now_ns=lambda: NOW, **options)  # type: ignore[arg-type]
        self.reason = ""
        self.service = Verbs(self.cluster.ledger, Binpack(), clock=moment)

    @property
    def ledger(self) -> Ledger:
        return self.cluster.ledger

    async def shows(self, *pods: dict[str, Any]) -> None:
        """The API server has these pods, and the watch has shown them."""
        for raw in pods:
            self.api.add(raw)
        await self.api.delivered()

    async def bind(self, name: str, node: str, uid: str | None = None) -> str:
        try:
            await self.binder.bind(BindArguments("default", name, uid or f"uid-{name}", node))
        except BindError as error:
            self.reason = error.reason
            return str(error)
        return ""

    def held(self) -> dict[str, tuple[str, Any]]:
        """Pod UID → (node, allocation) in the ledger."""
        return {h.uid: (h.node, h.allocation) for node in self.ledger.nodes.values() for h in node.pods}

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


@pytest.fixture(scope="module", autouse=True)
def nothing_else_is_collected() -> Iterator[None]:
    """What is there before the first test: else each collection looks through all of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def failures() -> Iterator[list[object]]:
    """Those that no task hears of. There is none when the loop has ended."""
    found: list[object] = []
    yield found
    assert not found


@pytest.fixture
@asynccontextmanager
async def world(virtual_time: None, failures: list[object], request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The nodes n of two GPUs of 16 and m of one. Its parameter: options of the binder."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    made = World({"n": (16, 16), "m": (16,)}, **getattr(request, "param", {}))
    watch = asyncio.create_task(made.api.deliver())
    yield made
    watch.cancel()
    gc.collect()


async def test_one_binding_says_it_all(world: World) -> None:
    raw = gpu_pod("a", 6)
    raw["metadata"]["annotations"] = {protocol.ANNOTATION_INDEX: "77", "other": "stays"}
    await world.shows(raw)
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


async def test_again_on_the_same_node_is_success_and_on_another_an_error_that_names_it(world: World, golden: Golden) -> None:
    await world.shows(gpu_pod("a"))
    world.api.lags.append(100)
    assert await world.bind("a", "n") == ""
    for _ in ("before the watch has seen it", "after"):
        assert await world.bind("a", "n") == ""
        golden(await world.bind("a", "m"))
        await world.api.delivered()
    assert (len(world.api.bindings), world.api.reads) == (1, 0), "nobody need be asked"


async def test_at_once_twice_is_one_binding(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(takes=1))
    answers = await asyncio.gather(world.bind("a", "n"), world.bind("a", "n"), world.bind("a", "m"))
    assert answers == ["", "", "pod default/a is being bound to node n; it cannot go to node m meanwhile"]
    assert len(world.api.bindings) == 1


async def test_a_pod_that_the_watch_does_not_know_is_read(world: World, golden: Golden) -> None:
    world.api.add(gpu_pod("a"), seen=False)
    assert await world.bind("a", "n") == ""
    world.api.add(gpu_pod("b", uid="another"), seen=False)
    assert "pod default/b with UID uid-b is gone" in await world.bind("b", "n")
    assert "pod default/c with UID uid-c is gone" in await world.bind("c", "n")
    world.api.add(gpu_pod("d") | {"spec": {**gpu_pod("d")["spec"], "nodeName": "m"}}, seen=False)
    golden(await world.bind("d", "n"))
    assert await world.bind("d", "m") == ""
    world.api.read_errors.append(KubeError(0, TIMEOUT, "no answer in time"))
    golden(await world.bind("e", "n"))
    assert set(world.held()) == {"uid-a"}


async def test_a_pod_that_asks_for_nothing_is_bound_without_a_gpu(world: World) -> None:
    world.api.add(gpu_pod("a", 0))
    assert await world.bind("a", "n") == ""
    assert world.api.bindings[0][1]["metadata"]["annotations"] == {}
    assert not world.held()


@pytest.mark.parametrize(("limits", "said"), [({"count": 1}, "at once"), ({"core": 20}, "gpu-core.percentage")])
@pytest.mark.parametrize("seen", [True, False])
async def test_what_filter_rejects_is_never_bound(limits: dict[str, object], said: str, seen: bool, world: World) -> None:
    world.api.add(gpu_pod("a", **limits), seen=seen)
    await world.api.delivered()
    assert said in await world.bind("a", "n")
    assert not world.api.bindings


async def test_what_does_not_fit_any_more(world: World, golden: Golden) -> None:
    for name in "abc":
        await world.shows(gpu_pod(name, 9))
    assert await asyncio.gather(*(world.bind(name, "n") for name in "abc")) == [
        "",
        "",
        "pod default/c does not fit on node n any more: needs 9 GiB on one GPU, at most 7 are free on one (14 of 32 in total)",
    ]
    golden(await world.bind("c", "unknown"))
    assert len(world.api.bindings) == 2


@pytest.mark.parametrize(
    "error",
    [
        KubeError(403, "Forbidden", "may not"),
        KubeError(404, "NotFound", "not there"),
        KubeError(409, "Conflict", "Precondition failed"),
        KubeError(0, UNREACHABLE, "connection refused"),
    ],
)
async def test_a_rejection_leaves_the_ledger_as_it_was(error: KubeError, world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(lands=None, error=error))
    assert error.message in await world.bind("a", "n")
    assert not world.held()
    assert await world.bind("a", "m") == ""


AMBIGUOUS = [KubeError(0, TIMEOUT, "t"), KubeError(0, LOST, "l"), KubeError(500, "InternalError", "i"), KubeError(504, "Timeout", "g")]


@pytest.mark.parametrize("error", AMBIGUOUS)
async def test_an_unclear_end_is_looked_up(error: KubeError, world: World) -> None:
    await world.shows(gpu_pod("a"), gpu_pod("b"))
    world.api.plan.extend([Fault(lands=0, error=error), Fault(lands=None, error=error), GOOD])
    assert await world.bind("a", "n") == ""
    assert len(world.api.bindings) == 1
    # Not bound: sent again, since it cannot bind twice.
    assert await world.bind("b", "n") == ""
    assert len(world.api.bindings) == 3
    await world.api.delivered()
    assert set(world.held()) == {"uid-a", "uid-b"}


async def test_a_rejection_after_an_unclear_end_says_nothing_about_the_first(world: World, golden: Golden) -> None:
    await world.shows(gpu_pod("a", 16), gpu_pod("b", 16))
    world.api.plan.append(Fault(lands=2, error=KubeError(0, LOST, "lost")))
    world.api.plan.append(Fault(lands=None, error=KubeError(403, "Forbidden", "may not any more")))
    golden(await world.bind("a", "m"))
    golden(await world.bind("b", "m"))
    await asyncio.sleep(10)
    await world.api.delivered()
    assert set(world.held()) == {"uid-a"}


@pytest.mark.parametrize("lands", [None, 2.9])
async def test_what_may_still_happen_keeps_its_gpu_until_it_cannot(lands: float | None, world: World, golden: Golden) -> None:
    await world.shows(gpu_pod("a", 16), gpu_pod("b", 16))
    lost = KubeError(0, LOST, "lost")
    world.api.plan.extend([Fault(lands=None, error=lost), Fault(lands=lands, error=lost)])
    golden(await world.bind("a", "m"))
    golden(await world.bind("a", "n"))
    golden(await world.bind("b", "m"))
    await asyncio.sleep(3.5)
    golden(await world.bind("b", "m"))
    await asyncio.sleep(2)
    await world.api.delivered()
    if lands is None:
        assert not world.held()
        assert await world.bind("b", "m") == ""
    else:
        golden(await world.bind("b", "m"))
        assert await world.bind("a", "m") == ""


async def test_no_answer_to_the_question_either(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(lands=0, error=KubeError(0, LOST, "lost")))
    world.api.read_errors.extend([KubeError(0, UNREACHABLE, "rejected")] * 5)
    assert "not known" in await world.bind("a", "n")
    assert (len(world.api.bindings), world.api.reads) == (1, 1)
    await asyncio.sleep(4.8)
    assert world.api.reads == 2, "it is asked again after a pause"
    await asyncio.sleep(60)
    assert not world.api.read_errors
    assert await world.bind("a", "n") == ""
    assert set(world.held()) == {"uid-a"}


async def test_a_scheduler_that_hangs_up_does_not_stop_the_binding(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(takes=3))
    asked = asyncio.create_task(world.bind("a", "n"))
    await asyncio.sleep(1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await world.binder.drain()
    assert world.api.pods["a"]["spec"]["nodeName"] == "n"


async def test_a_pod_that_is_deleted_meanwhile_holds_nothing(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(takes=1))
    asked = asyncio.create_task(world.bind("a", "n"))
    await asyncio.sleep(0.5)
    world.api.delete("a")
    assert "not found" in await asked
    await world.api.delivered()
    assert not world.held()


# What the metrics count.

LOST_NOW = Fault(lands=None, error=KubeError(0, LOST, "lost"))


@pytest.mark.parametrize(
    ("cause", "prepare", "node"),
    [
        ("elsewhere", lambda world: world.api.add(on_node(gpu_pod("a"), "m"), seen=False), "n"),
        ("invalid", lambda world: world.api.add(gpu_pod("a", count=1)), "n"),
        ("invalid", lambda world: world.api.add(gpu_pod("a", count=1), seen=False), "n"),
        ("invalid", lambda world: world.api.add(spread_at_random("a")), "n"),
        ("invalid", lambda world: world.api.add(spread_at_random("a"), seen=False), "n"),
        ("api-unreachable", lambda world: world.api.read_errors.append(KubeError(0, TIMEOUT, "t")), "n"),
        ("api-rejected", lambda world: world.api.read_errors.append(KubeError(503, "ServiceUnavailable", "s")), "n"),
        ("gone", lambda world: None, "n"),
        ("no-room", lambda world: world.api.add(gpu_pod("a", 17)), "n"),
        ("api-rejected", lambda world: rejected(world, KubeError(403, "Forbidden", "f")), "n"),
        ("api-unreachable", lambda world: rejected(world, KubeError(0, UNREACHABLE, "u")), "n"),
        ("api-unknown", lambda world: rejected(world, KubeError(0, LOST, "l")), "n"),
        ("gone", lambda world: rejected(world, KubeError(409, "Conflict", "c"), gone=True), "n"),
        ("elsewhere", lambda world: rejected(world, KubeError(409, "Conflict", "c"), bound_to="m"), "n"),
    ],
)
async def test_each_failure_has_its_cause_and_holds_nothing(cause: str, prepare: Callable[[World], None], node: str, world: World) -> None:
    prepare(world)
    await world.api.delivered()
    assert await world.bind("a", node)
    assert world.reason == cause
    await asyncio.sleep(60)
    assert not world.held()


def on_node(raw: dict[str, Any], node: str) -> dict[str, Any]:
    raw["spec"]["nodeName"] = node
    return raw


def spread_at_random(name: str) -> dict[str, Any]:
    raw = pod(container(mem=2), init=[container("i", mem=4)], uid=f"uid-{name}", labels={"aliyun.com/gpu-count": "2"})
    raw["metadata"]["name"] = name
    return raw


def rejected(world: World, error: KubeError, *, gone: bool = False, bound_to: str = "") -> None:
    """The API server answers the Bindings of "a" so; meanwhile it has gone, or somebody else has bound it."""
    raw = gpu_pod("a")
    world.api.add(raw)
    if gone or bound_to:
        world.api.lags.extend([0, 100])
    world.api.plan.extend([Fault(lands=None, error=error)] * 2)
    create = world.api.create

    async def meanwhile(path: str, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        if gone:
            del world.api.pods["a"]
        if bound_to:
            raw["spec"]["nodeName"] = bound_to
        return await create(path, body, **options)

    world.api.create = meanwhile  # type: ignore[method-assign]


async def test_a_conflict_with_its_own_binding_is_success(world: World) -> None:
    rejected(world, KubeError(409, "Conflict", "already assigned"), bound_to="n")
    await world.api.delivered()
    assert await world.bind("a", "n") == ""
    assert (len(world.api.bindings), set(world.held())) == (1, {"uid-a"})


async def test_the_watch_may_be_faster_than_the_answer(world: World, golden: Golden) -> None:
    raw = gpu_pod("a")
    world.api.add(raw, seen=False)
    world.api.slow = 1
    asked = [asyncio.create_task(world.bind("a", "n"))]
    await asyncio.sleep(0.5)
    world.api.announce("MODIFIED", on_node(copy.deepcopy(raw), "n"))
    assert await asked[0] == ""
    golden(await world.bind("a", "m"))
    assert (world.reason, world.api.bindings) == ("elsewhere", [])


async def test_while_it_is_under_way_or_unclear_only_the_same_is_asked_again(world: World, golden: Golden) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.extend([Fault(lands=None, error=KubeError(0, LOST, "lost"), takes=1)] * 2)
    first = asyncio.create_task(world.bind("a", "n"))
    await asyncio.sleep(0.5)
    golden(await world.bind("a", "m"))
    assert world.reason == "elsewhere"
    golden(await first)
    for node in "nm":
        assert (
            await world.bind("a", node) == "the API server has not confirmed yet whether pod default/a was bound to node n; "
            "the extender reads the pod again within 5 s, "
            "the scheduler tries again by itself"
        )
        assert world.reason == "api-unknown"
    assert len(world.api.bindings) == 2, "it is sent twice at most"
    await asyncio.sleep(5)
    assert await world.bind("a", "m") == ""


async def test_a_pod_without_gpus_has_nothing_to_be_settled(world: World, golden: Golden) -> None:
    world.api.add(gpu_pod("a", 0))
    world.api.plan.extend([LOST_NOW, LOST_NOW])
    golden(await world.bind("a", "n"))
    assert await world.bind("a", "m") == ""


@pytest.mark.parametrize(("end", "held"), [("n", {"uid-a"}), ("m", set()), ("", set()), ("gone", {"uid-a"}), ("another", {"uid-a"})])
async def test_whatever_fails_the_gpu_is_held_until_it_is_known_what_became_of_the_binding(
    end: str, held: set[str], world: World, golden: Golden
) -> None:
    raw = gpu_pod("a", 16)
    await world.shows(raw)

    async def fail(path: str, body: object, **options: object) -> None:
        raise RuntimeError("a fault of ours")

    create, world.api.create = world.api.create, fail  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError):
        await world.bind("a", "n")
    world.api.create = create  # type: ignore[method-assign]
    if end == "gone":
        del world.api.pods["a"]
    elif end == "another":
        raw["metadata"]["uid"] = "made anew"
    else:
        raw["spec"]["nodeName"] = end
    world.api.read_errors.append(KubeError(503, "ServiceUnavailable", "s"))
    await asyncio.sleep(4.7)
    assert (set(world.held()), world.api.reads) == ({"uid-a"}, 0)
    golden(await world.bind("a", "n"))
    await asyncio.sleep(2)
    assert (set(world.held()), world.api.reads) == (held, 2)
    if end in ("gone", "another"):
        # It may have been bound before it went: its watch has as long as any other to say so.
        await asyncio.sleep(UNSEEN_SECONDS)
        world.cluster.expire()
        assert not world.held()
    assert "has not confirmed yet" not in await world.bind("a", "n")


async def test_a_pod_bound_in_doubt_and_gone_before_the_watch_showed_it_keeps_its_gpu(world: World, golden: Golden) -> None:
    """Its processes may live: nobody can say before its watch has, and another pod must not get the GPU."""
    foreign_bindings: list[AllocatedPod] = []
    world.cluster.on_foreign_binding = foreign_bindings.append
    await world.shows(gpu_pod("first", 12))
    # The binding lands and its answer is lost; then the pod is deleted by force, and the watch is late with both.
    world.api.lags.extend([20, 0])
    world.api.plan.append(Fault(error=KubeError(0, LOST, "lost")))
    create = world.api.create

    async def then_gone(path: str, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        try:
            return await create(path, body, **options)
        finally:
            world.api.delete("first")

    world.api.create = then_gone  # type: ignore[method-assign]
    assert "is gone" in await world.bind("first", "m")
    world.api.create = create  # type: ignore[method-assign]
    world.api.pods["second"] = gpu_pod("second", 12)
    await asyncio.sleep(10)
    world.cluster.expire()
    golden(await world.bind("second", "m"))
    await world.api.delivered()
    assert (set(world.held()), foreign_bindings) == ({"uid-first"}, [])
    # Now its node has its time to say that its processes live, as after any forced delete.
    await asyncio.sleep(FORCED_SECONDS + 1)
    world.cluster.expire()
    assert await world.bind("second", "m") == ""


async def test_a_pod_bound_in_doubt_and_gone_whose_watch_says_nothing_keeps_its_gpu_for_a_time_and_not_for_ever(world: World) -> None:
    await world.shows(gpu_pod("first", 12))
    world.api.plan.append(LOST_NOW)
    del world.api.pods["first"]
    assert "is gone" in await world.bind("first", "m")
    await asyncio.sleep(UNSEEN_SECONDS - 1)
    world.cluster.expire()
    assert set(world.held()) == {"uid-first"}
    await asyncio.sleep(2)
    world.cluster.expire()
    assert not world.held()


async def test_an_answer_with_nothing_in_it_is_another_pod(world: World, golden: Golden) -> None:
    for name, bare in (("a", {}), ("b", {"metadata": None})):
        world.api.pods[name] = bare
        assert "is gone" in await world.bind(name, "n")
    # One without a spec is on no node.
    await world.shows(gpu_pod("d"))
    world.api.plan.append(LOST_NOW)
    world.api.pods["d"] = {**gpu_pod("d"), "spec": None}
    world.api.plan.append(Fault(lands=None, error=KubeError(403, "Forbidden", "f")))
    golden(await world.bind("d", "n"))


async def test_what_is_gone_and_was_never_bound_is_free_when_its_watch_says_so(world: World) -> None:
    await world.shows(gpu_pod("first", 12))
    world.api.plan.append(LOST_NOW)
    world.api.lags.append(5)
    world.api.delete("first")
    assert "is gone" in await world.bind("first", "n")
    assert set(world.held()) == {"uid-first"}
    await world.api.delivered()
    assert not world.held()


async def test_a_pod_in_doubt_is_not_called_unschedulable_and_is_woken_when_it_is_settled(world: World, golden: Golden) -> None:
    """Its own units would be in its way, and nothing would make the scheduler ask again."""
    requeue = Requeue(world.cluster, Binpack(), clock=moment)
    world.cluster.on_capacity_freed = requeue.on_capacity_freed
    service = Verbs(world.ledger, Binpack(), requeue.on_filter, clock=moment)
    raw = gpu_pod("a", 16)
    await world.shows(raw)
    world.api.plan.extend([LOST_NOW, LOST_NOW])
    golden(await world.bind("a", "m"))
    result = service.filter(Arguments(raw, ["m"]))
    assert (result.names, result.failed) == ([], {})
    assert result.error.startswith("pod default/a is being bound to node m, and it is not known yet whether that happened")
    requeue.on_capacity_freed()
    assert requeue.next() is None, "it would be asked about in vain"
    await asyncio.sleep(10)
    assert not world.held()
    assert requeue.next() == world.cluster.pending["uid-a"]


@pytest.mark.parametrize("fault", [Fault(lands=None, error=KubeError(403, "Forbidden", "f"), takes=2), Fault(takes=2)])
async def test_a_pod_whose_binding_takes_long_is_not_in_its_own_way(fault: Fault, world: World, golden: Golden) -> None:
    raw = gpu_pod("a", 16)
    await world.shows(raw)
    world.api.plan.append(fault)
    # The scheduler waits no longer than its httpTimeout.
    asked = asyncio.create_task(world.bind("a", "m"))
    await asyncio.sleep(1)
    golden(world.service.filter(Arguments(raw, ["m"])).error)
    done = await asked == ""
    await world.api.delivered()
    result = world.service.filter(Arguments(raw, ["m"]))
    assert (result.names, result.error) == (([], "pod default/a is bound to node m already") if done else (["m"], ""))


async def test_whoever_waits_is_told_of_each_unit_that_is_given_back(world: World) -> None:
    rooms: list[str] = []
    world.cluster.on_capacity_freed = lambda by="": rooms.append("room")

    def given_back() -> bool:
        found = bool(rooms)
        rooms.clear()
        return found

    for name in ("a", "b"):
        await world.shows(gpu_pod(name, 16))
    # prioritize has reserved it on one node, and the scheduler takes another.
    world.service.filter(Arguments(world.api.pods["a"], ["m"]))
    assert (world.ledger.is_reserved("uid-a"), given_back()) == (True, False)
    assert await world.bind("a", "n") == ""
    assert given_back()
    # A Binding that is rejected, and one that turns out not to have happened.
    world.api.plan.append(Fault(lands=None, error=KubeError(403, "Forbidden", "f")))
    await world.bind("b", "n")
    assert given_back()
    world.api.plan.extend([LOST_NOW, LOST_NOW])
    await world.bind("b", "n")
    assert not given_back()
    await asyncio.sleep(10)
    assert given_back()
    # One that is good takes, and gives nothing back.
    assert await world.bind("b", "n") == ""
    await world.api.delivered()
    assert not given_back()


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": "uid-a"}, "spec": 5}])
async def test_whatever_comes_instead_of_the_pod_it_can_be_bound_again(answer: dict[str, Any], world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.extend([LOST_NOW, LOST_NOW])
    await world.bind("a", "n")
    get = world.api.get

    async def odd(path: str, *, within: float) -> dict[str, Any]:
        return answer

    world.api.get = odd  # type: ignore[method-assign]
    await asyncio.sleep(5)
    world.api.get = get  # type: ignore[method-assign]
    await asyncio.sleep(UNSEEN_SECONDS)
    world.cluster.expire()
    assert await world.bind("a", "n") == ""


@pytest.mark.parametrize("world", [{"server_seconds": 7}], indirect=True)
async def test_how_long_the_api_server_may_take_is_said_to_it_and_waited_for(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.extend([LOST_NOW, LOST_NOW])
    await world.bind("a", "n")
    assert [params["timeout"] for _, _, params in world.api.bindings] == ["7s", "7s"]
    await asyncio.sleep(8.7)
    assert set(world.held()) == {"uid-a"}
    await asyncio.sleep(0.1)
    assert not world.held()


async def test_the_end_waits_for_what_is_under_way_and_leaves_what_is_unclear(world: World) -> None:
    for name in "ab":
        await world.shows(gpu_pod(name))
    world.api.plan.extend([LOST_NOW, LOST_NOW, Fault(takes=2)])
    await world.bind("a", "n")
    asked = asyncio.create_task(world.bind("b", "n"))
    await asyncio.sleep(0.5)
    await world.binder.drain()
    assert world.api.pods["b"]["spec"]["nodeName"] == "n"
    assert await asked == ""
    reads = world.api.reads
    await asyncio.sleep(60)
    assert world.api.reads == reads


async def test_the_end_has_nothing_to_wait_for_when_nothing_is_under_way(world: World) -> None:
    await world.binder.drain()


async def test_nobody_hears_of_a_failure_when_the_scheduler_has_hung_up(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(lands=None, error=KubeError(403, "Forbidden", "f"), takes=2))
    asked = asyncio.create_task(world.bind("a", "n"))
    await asyncio.sleep(1)
    asked.cancel()
    await asyncio.sleep(2)
    assert not world.held()


async def test_what_is_under_way_when_the_process_ends_is_nobodys_failure(world: World) -> None:
    await world.shows(gpu_pod("a"))
    world.api.plan.append(Fault(takes=10))
    world.waiting = asyncio.create_task(world.bind("a", "n"))  # type: ignore[attr-defined]
    await asyncio.sleep(1)


@pytest.mark.parametrize("seen", [True, False])
async def test_who_a_pod_is_comes_with_it_into_the_ledger(seen: bool, world: World) -> None:
    raw = gpu_pod("a", 4)
    raw["metadata"]["labels"] = {"app": "x"}
    raw["spec"]["priority"] = 7
    world.api.add(raw, seen=seen)
    await world.api.delivered()
    world.api.plan.append(Fault(takes=1))
    asked = asyncio.create_task(world.bind("a", "m"))
    await asyncio.sleep(0.5)
    holder = world.ledger.pod("uid-a")
    assert holder is not None
    assert (holder.namespace, holder.name, holder.node, holder.labels, holder.priority) == ("default", "a", "m", (("app", "x"),), 7)
    assert holder.request.units == 4
    assert await asked == ""


# Bursts: schedulers that filter, prioritize and bind at once, on a server and a watch that misbehave as drawn.

FAULTS = st.one_of(
    st.builds(Fault, takes=st.sampled_from([0.0, 0.1, 1.0])),
    st.builds(
        Fault, lands=st.sampled_from([None, 0.0, 0.5, 2.5]), error=st.sampled_from([*AMBIGUOUS]), takes=st.sampled_from([0.0, 0.1, 1.0])
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
            world.cluster.expire()
            # After the burst only settling is left.
            await asyncio.sleep(0.05 if asyncio.get_running_loop().time() < 15 else 1)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(schedule(world, f"p{i}", order) for i, order in enumerate(orders)))
    await asyncio.sleep(120)
    await world.api.delivered()
    # What was deleted before kubelet's first word waits for its node's, which here says nothing.
    await asyncio.sleep(UNSEEN_SECONDS)
    world.cluster.expire()
    looking.cancel()
    watch.cancel()
    assert not overbooked, f"over-booked: {overbooked}"
    truth = {h.uid: (h.node, h.allocation) for node in world.truth().nodes.values() for h in node.pods}
    assert world.held() == truth
    assert not any(world.ledger.is_assumed(uid) for uid in truth)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        # A watch further behind than the ledger waits for one has ended, and its pods come by a list.
        behind = itertools.accumulate(lags)
        world.api.lags.extend(lag for lag, total in zip(lags, behind, strict=True) if total < UNSEEN_SECONDS - 5)
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

    with pytest.raises(AssertionError, match=r"over-booked: \[\{0: 20\}"):
        virtual.run(run())

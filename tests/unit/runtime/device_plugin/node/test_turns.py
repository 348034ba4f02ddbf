# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet asks for several pods at once after it has lost its record: it survives that, and no id is given twice."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gpushare_runtime.core.unit_ids import gpu_of_unit
from gpushare_runtime.device_plugin.kubelet import server
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.server import POD_WAIT_SECONDS, ResourceService
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.pod_state import START_GRACE
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.node.turns import (
    HOLD_SECONDS,
    ORDER_SECONDS,
    PATIENCE_SECONDS,
    RELEASE_SECONDS,
    RETRY_SECONDS,
    Turn,
    Turns,
)
from gpushare_runtime.device_plugin.publish.pod_annotations import Assigner
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager, Panic
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import bound, memory
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import container, inventory
from unit.golden import Golden

MEMORY = RESOURCES[0]


def now() -> float:
    return asyncio.get_running_loop().time()


class Node:
    """kubelet and the plugin, with a millisecond for each call. lag: how long a request takes to the plugin after it began."""

    lag: Callable[[], float] = staticmethod(lambda: 0.001)

    def __init__(self, *units: int) -> None:
        self.gpus = inventory(*units)
        self.processes = FakeProcesses()
        self.state = NodeState(PodTable(now), now, now, self.processes)
        self.state.pods.replace([])
        self.state.devices.set_inventory(self.gpus)
        self.service = ResourceService(MEMORY, self.state, lambda: None, Counters())
        self.manager = DeviceManager(None, self._prefer, self._allocate)
        self.manager.write = self.write  # type: ignore[method-assign]
        self.manager.healthy[MEMORY] = {i for i, good in self.state.devices.reported(MEMORY) if good}
        self.manager.pre_start_required = lambda _: False

    def write(self) -> None:
        entries = (
            CheckpointEntry(uid, name, resource, frozenset(ids))
            for uid, containers in self.manager.given.items()
            for name, of in containers.items()
            for resource, ids in of.items()
        )
        self.state.recorder.set_checkpoint(tuple(entries))

    async def _call(self, method: str, request: Any) -> Any:
        async def abort(_: Any, text: str) -> NoReturn:
            raise AdmissionError(text)

        await asyncio.sleep(self.lag())
        answer = await getattr(self.service, method)(request, SimpleNamespace(abort=abort))
        await asyncio.sleep(0.001)
        return answer

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        of = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        answer = await self._call("GetPreferredAllocation", pb.PreferredAllocationRequest(container_requests=[of]))
        return list(answer.container_responses[0].deviceIDs)

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return dict((await self._call("Allocate", request)).container_responses[0].envs)

    def see(self, raw: dict[str, Any], run: int = 0, state: str = "running") -> dict[str, Any]:
        """The API server shows the pod. run: which start of its container, that is in this state."""
        if run:
            status = {"name": "main", "state": {state: {}}, "containerID": f"containerd://{run}"}
            raw = {**raw, "status": {"phase": "Running", "containerStatuses": [status]}}
        self.state.pods.event("ADDED", parse_local_pod(raw))
        return raw

    async def run(self, gpu: int, units: int, name: str) -> dict[str, Any]:
        """A pod that runs on this GPU."""
        raw = self.see(memory(self.gpus, gpu, units, name=name, uid=name))
        await self.manager.admit(raw)
        self.processes.live.add(name)
        self.processes.up[name] = {"main"}
        return self.see(raw, 1)

    async def lose(self, *ended: dict[str, Any]) -> None:
        """kubelet has lost its record, and the containers of these pods end."""
        self.manager.given, self.manager.allocated = {}, {}
        self.state.recorder.set_checkpoint(())
        self.look()
        # kubelet starts anew.
        await asyncio.sleep(1)
        for raw in ended:
            self.processes.up[raw["metadata"]["uid"]] = set()
            self.see(raw, 1, "waiting")

    def look(self) -> None:
        self.state.recorder.release_terminated(self.processes.pods)

    def gpus_of(self, name: str) -> set[str]:
        return {i.partition("-_-")[0] for i in self.manager.given[name]["main"][MEMORY]}

    async def start(self, raw: dict[str, Any]) -> str:
        """Why the container does not start; "" if it does."""
        try:
            await self.manager.start(raw, raw["spec"]["containers"][0])
        except AdmissionError as error:
            return str(error)
        return ""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, virtual_time: None) -> None:
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=now))


async def test_containers_that_start_again_at_once_after_a_lost_record_get_no_id_twice_and_kubelet_lives(golden: Golden) -> None:
    chance = random.Random(1)
    node = Node(16, 16, 16)
    pods = [await node.run(number % 3, 2, f"many-{number}") for number in range(16)]
    await node.lose(*pods)
    node.lag = lambda: chance.uniform(0.0, 0.07)
    ended = now()

    async def worker(raw: dict[str, Any]) -> int:
        """As kubelet's: at its next look, 10 to 15 s after a failure, and with a back-off that doubles."""
        for attempt in range(1, 20):
            if answer := await node.start(raw):
                golden(answer)
            else:
                return attempt
            due = 0.0
            while due < ended + 10 * 2 ** (attempt - 1):
                due = math.ceil(now() + chance.uniform(10, 15))
                await asyncio.sleep(due - now())
        raise AssertionError("tried too often")

    attempts = await asyncio.gather(*map(worker, pods))
    given = [node.manager.given[raw["metadata"]["uid"]]["main"][MEMORY] for raw in pods]
    assert len(set().union(*given)) == 32
    assert (sorted(attempts)[8] <= 3, max(attempts) <= 6, now() - ended < 180) == (True, True, True)


async def test_annotations_are_corrected_when_the_starts_without_a_record_are_over() -> None:
    """A PATCH makes kubelet start an ended container of its pod at once, and not when it would have tried again."""
    node, patched = Node(16, 16), asyncio.Event()

    class Server:
        async def patch(self, _: str, body: dict[str, Any], **__: Any) -> None:
            if "scheduler.framework.gpushare.allocation" in body["metadata"]["annotations"]:
                patched.set()

        def emit(self, *_: Any, **__: Any) -> None: ...

    ended = [await node.run(0, 2, name) for name in ("a", "b")]
    moved = await node.run(0, 2, "moved")
    await node.lose(*ended)
    assigner = asyncio.create_task(Assigner(node.state, Server(), Counters(), Server(), "gpu1", lambda: 5).run())  # type: ignore[arg-type]
    starts = [asyncio.create_task(node.start(raw)) for raw in ended]
    await asyncio.sleep(0.5)
    other = memory(node.gpus, 1, 2, name="moved", uid="moved")["metadata"]["annotations"]
    node.see({**moved, "metadata": {**moved["metadata"], "annotations": {**other, "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}}, 1)
    assert all(await asyncio.gather(*starts))
    await asyncio.sleep(4)
    assert not patched.is_set()
    # The last one has failed first.
    for raw in reversed(ended):
        assert await node.start(raw) == ""
        assert not patched.is_set()
        node.processes.up[raw["metadata"]["uid"]] = {"main"}
        node.see(raw, 2)
    await asyncio.wait_for(patched.wait(), 5)
    assigner.cancel()


async def at_once(names: str) -> tuple[Node, list[dict[str, Any]], list[asyncio.Future[str]]]:
    """A node whose record is lost, its pods, and the starts of all, one just after the other."""
    node, starts = Node(16), []
    pods = [await node.run(0, 4, name) for name in names]
    await node.lose(*pods)
    for raw in pods:
        starts.append(asyncio.ensure_future(node.start(raw)))
        await asyncio.sleep(0.01)
    return node, pods, starts


async def test_a_start_that_comes_back_succeeds_at_once_while_no_other_one_can_begin() -> None:
    """Of the others one waits in the plugin, and one has failed a short time ago."""
    node, pods, starts = await at_once("abc")
    # The last one fails first, the first one next.
    assert await starts[2] != ""
    assert await starts[0] != ""
    await asyncio.sleep(RETRY_SECONDS - RELEASE_SECONDS)
    began = now()
    assert await node.start(pods[2]) == ""
    assert now() - began < ORDER_SECONDS + 0.1
    assert not starts[1].done()


async def test_a_start_that_comes_back_waits_for_the_one_that_comes_back_as_well(golden: Golden) -> None:
    node, pods, starts = await at_once("ab")
    assert all(await asyncio.gather(*starts))
    await asyncio.sleep(RETRY_SECONDS)
    first = asyncio.ensure_future(node.start(pods[0]))
    await asyncio.sleep(3)
    assert not first.done()
    assert await node.start(pods[1]) == ""
    golden(await first)
    assert await node.start(pods[0]) == ""


async def test_one_that_waits_does_not_fail_while_another_one_is_about_to_succeed() -> None:
    """Its pod may have a second container, which kubelet requests at once."""
    node, pods, starts = await at_once("abc")
    assert await starts[2] != ""
    await asyncio.sleep(RELEASE_SECONDS - 0.1)
    assert await node.start(pods[2]) == ""
    assert not any(one.done() for one in starts[:2])


async def test_of_two_requests_that_begin_at_the_same_moment_none_succeeds() -> None:
    """The first one arrives last."""
    node = Node(16)
    first, second = await node.run(0, 4, "a"), await node.run(0, 4, "b")
    await node.lose(first, second)
    node.lag = iter((0.07, 0.001)).__next__
    answers = await asyncio.gather(node.start(first), node.start(second))
    assert all("several pods at once" in answer for answer in answers)


async def two_held(node: Node) -> tuple[asyncio.Future[str], asyncio.Future[str]]:
    pods = [await node.run(0, 4, name) for name in "ab"]
    await node.lose(*pods)
    first, second = (asyncio.ensure_future(node.start(raw)) for raw in pods)
    await asyncio.sleep(ORDER_SECONDS + 0.1)
    assert (first.done(), second.done()) == (False, True)
    return first, second


async def test_a_pod_is_admitted_while_a_request_waits_to_fail(golden: Golden) -> None:
    node = Node(16)
    first, _ = await two_held(node)
    await asyncio.sleep(POD_WAIT_SECONDS)
    await node.manager.admit(node.see(memory(node.gpus, 0, 4, name="new", uid="new")))
    assert node.manager.given["new"]["main"][MEMORY]
    assert not first.done()
    golden(await first)


async def test_a_container_that_comes_back_while_the_others_wait_starts(golden: Golden) -> None:
    node = Node(16)
    first, _ = await two_held(node)
    assert await node.start(memory(node.gpus, 0, 4, name="b", uid="b")) == ""
    golden(await first)


async def test_a_plugin_that_stops_lets_nothing_wait(golden: Golden) -> None:
    node = Node(16)
    first, _ = await two_held(node)
    began = now()
    await node.service.drain(5)
    golden(await first)
    # It waits half a second for the next request, and five where something waits on.
    assert now() - began < 2.5


async def test_an_admission_that_looked_like_a_start_fails_as_soon_as_its_pod_is_known(golden: Golden) -> None:
    """kubelet's loop waits for it."""
    node = Node(16)
    old, new = await node.run(0, 4, "a"), memory(node.gpus, 0, 4, name="new", uid="new")
    await node.lose(old, await node.run(0, 4, "b"))
    admission = asyncio.ensure_future(node.manager.admit(new))
    await asyncio.sleep(0.01)
    start = asyncio.ensure_future(node.start(old))
    await asyncio.sleep(0.1)
    assert not admission.done()
    node.see(new)
    with golden.raised(AdmissionError):
        await asyncio.wait_for(admission, 0.02)
    assert await start != ""


async def test_an_admission_ends_no_kubelet_whose_container_starts_again(golden: Golden) -> None:
    node = Node(16)
    old = await node.run(0, 4, "a")
    await node.lose(old, await node.run(0, 4, "b"))
    start = asyncio.ensure_future(node.start(old))
    await asyncio.sleep(ORDER_SECONDS + 0.05)
    new = node.see(memory(node.gpus, 0, 4, name="new", uid="new"))
    await node.manager.admit(new)
    golden(await start)
    assert await node.start(old) == ""
    assert len(node.manager.given["a"]["main"][MEMORY] | node.manager.given["new"]["main"][MEMORY]) == 8


async def test_a_container_that_starts_again_waits_for_others_and_for_no_pod() -> None:
    node = Node(16)
    old = await node.run(0, 4, "a")
    before = node.manager.given["a"]["main"][MEMORY]
    await node.lose(old, await node.run(0, 6, "b"))
    began = now()
    assert await node.start(old) == ""
    # In the middle between kubelet's looks.
    assert PATIENCE_SECONDS + 0.4 < now() - began < PATIENCE_SECONDS + 0.6
    assert node.manager.given["a"]["main"][MEMORY] == before


async def test_kubelet_tries_a_start_again_that_was_rejected_for_want_of_units() -> None:
    node = Node(16)
    old = await node.run(0, 4, "a")
    await node.lose(old, await node.run(0, 6, "b"))
    pod = node.state.pods.get("b")
    assert pod is not None
    node.state.pending.reject(pod)
    began = now()
    assert await node.start(old) == ""
    assert now() - began > 0.4


async def test_a_container_that_starts_again_alone_waits_no_longer_than_for_the_order() -> None:
    """kubelet ends if it admits or resizes any pod meanwhile, and does not ask the plugin for each."""
    node = Node(16)
    old, other = await node.run(0, 4, "a"), await node.run(0, 4, "b")
    await node.lose(old)
    start = asyncio.ensure_future(node.start(old))
    await asyncio.sleep(ORDER_SECONDS + 0.05)
    assert start.done()
    # A pod without GPUs, or with all that it requests.
    await node.manager.admit({**other, "metadata": {"name": "c", "uid": "c"}, "spec": {"containers": [{"name": "c"}]}})
    assert await start == ""
    assert node.manager.given["a"]["main"][MEMORY]


async def test_the_first_of_many_that_end_together_does_not_start_before_the_others_have_shown_it(golden: Golden) -> None:
    """In the lab kubelet had begun all of them while the processes of the others seemed to run."""
    node = Node(16)
    pods = [await node.run(0, 4, name) for name in "ab"]
    await node.lose(pods[0])
    first = asyncio.ensure_future(node.start(pods[0]))
    await asyncio.sleep(0.02)
    node.processes.up["b"] = set()
    node.see(pods[1], 1, "waiting")
    golden(await node.start(pods[1]))
    golden(await first)


async def test_admissions_one_after_the_other_wait_for_nothing() -> None:
    node = Node(16)
    began = now()
    for name in "abc":
        await node.run(0, 4, name)
    assert now() - began < 0.05


async def test_a_pod_that_is_known_is_admitted_at_once_though_records_are_lost() -> None:
    node = Node(16)
    await node.lose(await node.run(0, 4, "a"), await node.run(0, 4, "b"))
    new = node.see(memory(node.gpus, 0, 4, name="new", uid="new"))
    began = now()
    await node.manager.admit(new)
    assert now() - began < 0.05


async def test_an_old_offer_says_nothing_of_a_pod_that_was_admitted_since() -> None:
    """kubelet computes what is free and then asks. While the answer waits, it admits another pod."""
    node = Node(16)
    node.see(memory(node.gpus, 0, 4, name="slow", uid="slow"), 1)
    offered = sorted(node.manager.healthy[MEMORY])
    # A request of a pod that is not known yet.
    asked = asyncio.ensure_future(node._prefer(MEMORY, offered, [], 3))
    await asyncio.sleep(POD_WAIT_SECONDS / 2)
    pod = node.see(memory(node.gpus, 0, 6, name="p", uid="p"))
    node.state.recorder.set_checkpoint((CheckpointEntry("p", "main", MEMORY, frozenset(offered[:6])),))
    answer = await asked
    assert not set(answer) & set(offered[:6])
    await asyncio.sleep(20)
    node.look()
    assert node.state.usage.recorded_ids("p", MEMORY) == frozenset(offered[:6])
    assert pod


async def test_ids_that_kubelet_offers_although_it_has_given_them_are_left_and_rejected(golden: Golden) -> None:
    """It forgets what waits for Allocate when somebody asks podresources for a list."""
    node = Node(16)
    await node.run(0, 4, "a")
    mine = node.manager.given["a"]["main"][MEMORY]
    # Its image is not there yet.
    node.processes.live.clear()
    node.see(memory(node.gpus, 0, 4, name="a", uid="a"))
    node.see(memory(node.gpus, 0, 4, name="c", uid="c"))
    answer = await node._prefer(MEMORY, sorted(node.manager.healthy[MEMORY]), [], 4)
    assert not set(answer) & mine
    node.look()
    await asyncio.sleep(30)
    node.look()
    assert node.state.usage.recorded_ids("a", MEMORY) == mine
    with golden.raised(AdmissionError):
        await node._allocate(MEMORY, sorted(mine))


async def test_a_running_container_keeps_what_it_has_when_a_resize_makes_kubelet_allocate_anew() -> None:
    node = Node(16, 16)
    raw = await node.run(0, 12, "x")
    await node.lose()
    before = node.state.usage.memory_of("x")
    # The resize: kubelet asks for the running container, and takes what it is given.
    await node.manager.allocate(raw, raw["spec"]["containers"][0])
    assert node.gpus_of("x") == {"GPU-00000001"}
    node.see(raw, 1)
    node.look()
    usage = node.state.usage
    assert usage.memory_of("x") == {**before, "GPU-00000001": 12}
    assert {i.partition("-_-")[0] for entry in usage.entries_of("x") for i in entry.ids} == {"GPU-00000000"}
    other = node.see(memory(node.gpus, 0, 12, name="y", uid="y"))
    with pytest.raises(AdmissionError, match="asked for 12 units"):
        await node.manager.admit(other)
    # Started again, it has what kubelet's record says.
    node.see(raw, 2)
    node.look()
    assert usage.memory_of("x") == {"GPU-00000001": 12}
    assert {i.partition("-_-")[0] for entry in usage.entries_of("x") for i in entry.ids} == {"GPU-00000001"}


async def test_a_container_that_got_anothers_place_leaves_its_own_to_it() -> None:
    """No request says which container it is for."""
    node = Node(16, 16)
    first, second = await node.run(0, 12, "a"), await node.run(1, 12, "b")
    await node.lose(first, second)
    assert await node.start(second) == ""
    assert node.gpus_of("b") == {"GPU-00000000"}
    with pytest.raises(AdmissionError, match="asked for 12 units"):
        await node.manager.admit(node.see(memory(node.gpus, 1, 12, name="new", uid="new")))
    await asyncio.sleep(1)
    assert await node.start(first) == ""
    assert node.gpus_of("a") == {"GPU-00000001"}


async def test_what_init_containers_had_goes_where_their_pods_container_goes() -> None:
    node = Node(16, 16)
    plain = await node.run(0, 4, "a")
    raw = bound(node.gpus, {0: {1: 4}}, container("main", mem=4), init=[container("first", mem=4)], name="b", uid="b")
    await node.manager.admit(node.see(raw))
    node.processes.live.add("b")
    node.see(raw, 1)
    await node.lose(plain, raw)
    assert await node.start(raw) == ""
    usage = node.state.usage
    assert {gpu_of_unit(i) for entry in usage.entries_of("b") for i in entry.ids} == {"GPU-00000000"}
    assert {gpu_of_unit(i) for entry in usage.entries_of("a") for i in entry.ids} == {"GPU-00000001"}


async def test_a_container_starts_whose_ids_are_free_though_another_one_of_its_size_has_lost_them() -> None:
    node = Node(12)
    first, second = await node.run(0, 4, "a"), await node.run(0, 4, "b")
    mine = node.manager.given["b"]["main"][MEMORY]
    await node.lose(first, second)
    # The watch does not show it yet.
    await node.manager.admit(memory(None, 0, 4, name="c", uid="c"))
    await node.run(0, 4, "d")
    await asyncio.sleep(1)
    assert await node.start(second) == ""
    assert node.manager.given["b"]["main"][MEMORY] == mine
    assert await node.start(first) != ""


async def test_a_container_that_has_no_process_starts_again_though_the_api_server_shows_it_as_running() -> None:
    node = Node(4)
    raw = await node.run(0, 4, "a")
    await node.lose(raw)
    node.see(raw, 1)
    assert await node.start(raw) == ""


async def test_a_resized_container_leaves_its_place_when_it_starts_again_to_the_one_whose_ids_it_got() -> None:
    node = Node(16, 16)
    ended, resized = await node.run(0, 12, "a"), await node.run(1, 12, "b")
    await node.lose(ended)
    await node.manager.allocate(resized, resized["spec"]["containers"][0])
    assert node.gpus_of("b") == {"GPU-00000000"}
    await asyncio.sleep(1)
    assert "asked for 12 units" in await node.start(ended)
    node.see(resized, 2)
    node.look()
    await asyncio.sleep(1)
    with pytest.raises(AdmissionError, match="asked for 12 units"):
        await node.manager.admit(node.see(memory(node.gpus, 1, 12, name="new", uid="new")))
    await asyncio.sleep(1)
    assert await node.start(ended) == ""
    assert node.gpus_of("a") == {"GPU-00000001"}


async def test_what_an_ended_init_container_gets_anew_does_not_move_the_pods_containers() -> None:
    node = Node(16, 16)
    raw = bound(node.gpus, {0: {0: 10}}, container("main", mem=10), init=[container("first", mem=8)], name="a", uid="a")
    await node.manager.admit(node.see(raw))
    node.processes.live.add("a")
    node.processes.up["a"] = {"main"}
    node.see(raw, 1)
    before = node.manager.given["a"]["main"][MEMORY]
    await node.lose(raw)
    # A resize: the init container gets units of the other GPU, since its own has no room for them a second time.
    node.processes.up["a"] = {"main"}
    await node.manager.allocate(raw, raw["spec"]["initContainers"][0])
    assert {i.partition("-_-")[0] for i in node.manager.given["a"]["first"][MEMORY]} == {"GPU-00000001"}
    node.manager._reuse.clear()
    node.processes.up["a"] = set()
    await asyncio.sleep(1)
    assert await node.start(raw) == ""
    assert node.manager.given["a"]["main"][MEMORY] == before


@pytest.mark.parametrize("first", [1, 4])
def test_a_container_gets_its_ids_back_after_its_init_container_on_a_full_gpu(first: int) -> None:
    async def play() -> None:
        node = Node(16)
        raw = bound(node.gpus, {0: {0: 4}}, container("main", mem=4), init=[container("first", mem=first)], name="a", uid="a")
        await node.manager.admit(node.see(raw))
        node.processes.live.add("a")
        node.see(raw, 1)
        before = node.manager.given["a"]["main"][MEMORY]
        await node.lose(raw, await node.run(0, 12, "b"))
        node.processes.up["b"] = {"main"}
        assert await node.start(raw) == ""
        assert node.manager.given["a"]["main"][MEMORY] == before

    virtual.run(play())


async def test_a_pod_that_is_deleted_before_its_container_has_started_again_keeps_its_ids_a_while() -> None:
    node = Node(16)
    raw = await node.run(0, 4, "a")
    await node.lose(raw)
    assert await node.start(raw) == ""
    node.processes.live.clear()
    node.state.pods.event("DELETED", parse_local_pod(raw))
    node.look()
    node.look()
    assert node.state.usage.orphaned()
    node.processes.live.add("a")
    await asyncio.sleep(40)
    node.look()
    assert node.state.usage.orphaned()
    node.processes.live.clear()
    node.look()
    assert not node.state.usage.orphaned()


async def test_a_pod_whose_start_was_rejected_holds_nothing_after_its_end() -> None:
    """kubelet creates no container then."""
    node = Node(16)
    raw = memory(node.gpus, 0, 4, name="a", uid="a")
    await node.manager.admit(node.see(raw))

    async def fails(*_: Any) -> None:
        raise AllocationRejected("its limit cannot be set", "limit")

    node.service._before_start = fails
    with pytest.raises(AdmissionError, match="limit"):
        await node._call("PreStartContainer", pb.PreStartContainerRequest(devices_ids=sorted(node.manager.given["a"]["main"][MEMORY])))
    node.state.pods.event("DELETED", parse_local_pod(raw))
    node.look()
    assert node.state.usage.orphaned()
    await asyncio.sleep(START_GRACE)
    node.look()
    assert not node.state.usage.orphaned()


def test_the_simulated_kubelet_ends_when_one_pods_allocate_overtakes_anothers() -> None:
    """devicemanager, Allocate: the entries of other pods in devicesToReuse are deleted, and written to afterwards."""

    async def play() -> None:
        node = Node(16)
        gate = asyncio.Event()

        async def slow(resource: str, available: list[str], must: list[str], size: int) -> list[str]:
            if size == 4:
                await gate.wait()
            return sorted(available)[:size]

        async def grant(resource: str, ids: list[str]) -> dict[str, str]:
            return {}

        manager = DeviceManager(None, slow, grant)
        manager.healthy = node.manager.healthy
        first = asyncio.ensure_future(manager.admit(memory(None, 0, 4, uid="a")))
        await asyncio.sleep(0.1)
        await manager.admit(memory(None, 0, 2, uid="b"))
        gate.set()
        with pytest.raises(Panic):
            await first

    virtual.run(play())


class Clocked(Turns):
    """Turns with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def begins(self, at: float, *, again: bool = True) -> Turn:
        self.now = at
        turn = self.begin(MEMORY)
        turn.again = again
        return turn

    def failing(self, at: float, *held: Turn) -> list[Turn]:
        """Those of them that fail at this time."""
        self.now = at
        return [turn for turn in held if not self.seconds_held(turn)]


def test_a_request_that_comes_just_after_another_one_may_have_begun_before_it() -> None:
    turns = Clocked()
    first = turns.begins(0.0)
    turns.end(first)
    second = turns.begins(0.1)
    assert (turns.must_fail(first), turns.must_fail(second)) == (False, True)
    turns.end(second)
    third = turns.begins(0.1 + ORDER_SECONDS)
    assert not turns.must_fail(third)
    # Both are of one look, however late the last one comes.
    late = turns.begins(0.1 + 3 * ORDER_SECONDS)
    assert (turns.must_fail(third), turns.must_fail(late)) == (True, True)


def test_requests_of_kubelets_loop_come_one_after_the_other() -> None:
    turns = Clocked()
    turns.end(turns.begins(0.0, again=False))
    admission = turns.begins(0.01, again=False)
    assert not turns.must_fail(admission)
    turns.end(admission)
    turns.end(turns.begins(0.02))
    assert turns.must_fail(turns.begins(0.03, again=False))


def test_those_that_must_fail_do_so_one_after_the_other_and_crowd_nobody() -> None:
    turns = Clocked()
    first, second, last = held = [turns.begins(at) for at in (0.0, 0.03, 0.05)]
    for turn in held:
        assert turns.must_fail(turn)
        turns.hold(turn)
    assert turns.failing(0.05 + ORDER_SECONDS - 0.01, *held) == []
    # A resize would be the last one.
    assert turns.failing(0.05 + ORDER_SECONDS, *held) == [last]
    turns.release(last)
    alone = turns.begins(1.0)
    assert (alone.crowded, turns.must_fail(alone)) == (False, False)
    turns.end(alone)
    assert turns.failing(0.2 + RELEASE_SECONDS, first, second) == []
    assert turns.failing(0.3 + RELEASE_SECONDS, first, second) == [first]
    turns.release(first)
    # While others come, nobody knows yet which is the last one.
    more = turns.begins(0.29 + 2 * RELEASE_SECONDS)
    turns.hold(more)
    assert turns.failing(0.3 + 2 * RELEASE_SECONDS, second, more) == []
    assert turns.failing(0.5 + 2 * RELEASE_SECONDS, second, more) == [more]
    assert turns.failing(0.03 + HOLD_SECONDS, second, more) == [second, more]


def test_the_calm_is_farthest_from_the_moments_of_each_second_at_which_requests_began() -> None:
    clock = [0.0]
    turns = Turns(lambda: clock[0])
    assert turns.calm_after(2.0) == 2.0
    for at, calm in (
        (3.1, 3.6),
        (4.18, 4.64),
        # The other ticker.
        (5.59, 5.845),
        (6.15, 6.845),
        (6.9, 7.385),
        # All of these were long ago.
        (70.3, 70.8),
    ):
        clock[0] = at
        turns.begin(MEMORY)
        assert turns.calm_after(at) == pytest.approx(calm)


def test_a_turn_that_nobody_goes_on_with_overtakes_and_crowds_nothing_later() -> None:
    clock = [0.0]
    turns = Turns(lambda: clock[0])
    turns.tell(turns.begin(MEMORY), frozenset("a"))
    clock[0] = 5.0
    later = turns.begin(MEMORY)
    assert (later.crowded, later.overtaken) == (False, False)

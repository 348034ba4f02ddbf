# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""With MPS a container gets its GPU's pipes, its memory and its share of the compute; without a daemon that answers, no GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.mps import MpsState
from gpushare_runtime.core.quantity import GIB as UNIT
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.device_plugin.host import mps_states
from gpushare_runtime.device_plugin.host.mps_states import MpsStates, problem_of
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.node import Node
from unit.fakes.runtime.device_plugin.plugin import GPUS, MEMORY, NODE, RESOURCES, World, admitted, metric, start, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import container, gpu
from unit.golden import Golden

GIB = 1024


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_states, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(mps_states, "_POLL_SECONDS", 0.01)


def answers(folder: Path, index: int, problem: str = "", age: int = 0, limit: int = 0) -> None:
    """The control daemon of the GPU has written its state."""
    path = folder / f"GPU-{index:08d}-0000-0000-0000-000000000000" / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, as the service writes it.
    new = path.with_name("new")
    new.write_text(MpsState(int(time.monotonic()) - age, problem, 0, limit).to_json())
    new.replace(path)


@asynccontextmanager
async def with_mps(folder: Path, *mib: int) -> AsyncIterator[World]:
    for index in range(len(mib)):
        answers(folder, index)
    async with world(*mib, isolation="mps", mps_folder=folder) as it:
        await until(lambda: all(gpu.usable for gpu in it.inventory.gpus))
        # kubelet has been told.
        await until(lambda: all(it.kubelet.manager.healthy.get(resource) for resource in RESOURCES))
        yield it


def given(it: World, index: int = 0) -> Any:
    """The answer for the container that kubelet admitted as this one."""
    return it.kubelet.responses[index]


async def test_a_container_gets_its_memory_its_compute_and_the_pipes_of_its_gpu(tmp_path: Path) -> None:
    async with with_mps(tmp_path, 16 * GIB, 16 * GIB) as it:
        pod = bound(it.inventory, {0: {1: 4}, 1: {1: 2}}, container("a", mem=4, core=30), container("b", mem=2, core=20))
        await admitted(it, pod)
        await start(it, pod)
        for index, (mib, core) in enumerate([(4096, "30"), (2048, "20")]):
            answer = given(it, index)
            assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={mib}M"
            assert answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == core
            assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/run/gpushare-mps/pipe"
            uuid = it.inventory.by_index[1].uuid
            mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in answer.mounts}
            # Nothing that the control daemon opens by its name can be made there, and no library be named to its servers.
            assert mounts["/run/gpushare-mps/pipe"] == (f"/run/gpushare-mps/{uuid}/pipe", True)
            assert mounts["/dev/shm"] == (f"/run/gpushare-mps/{uuid}/shm", False)
            assert mounts["/dev/shm/cuda_injection_path_shm"] == ("/dev/null", True)
        assert metric(it, "isolation_info") == ['gpushare_device_plugin_isolation_info{isolation="mps"} 1.0']

        def published() -> str:
            return str(it.api.objects[NODE]["metadata"]["annotations"]["gpushare/gpus"])

        await until(lambda: '"core":100,"clients":48' in published())
        await until(lambda: '"isolation":"mps"' in published())


async def test_a_whole_gpu_has_the_pipes_and_no_limit(tmp_path: Path) -> None:
    async with with_mps(tmp_path, 16 * GIB) as it:
        pod = whole(it.inventory, 0)
        await admitted(it, pod)
        answer = given(it)
        assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"]
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in answer.envs


@pytest.mark.parametrize("gpus", [0, 1])
async def test_a_container_waits_until_its_clients_may_have_its_memory(tmp_path: Path, gpus: int) -> None:
    async with with_mps(tmp_path, 16 * GIB) as it:
        pod = whole(it.inventory, 0) if gpus else memory(it.inventory, 0, 4)
        most = 16 * GIB if gpus else 4 * GIB
        await admitted(it, pod)
        answers(tmp_path, 0, limit=most - 1)
        starting = asyncio.ensure_future(start(it, pod))
        await it.stays(lambda: not starting.done())
        answers(tmp_path, 0, limit=most)
        await asyncio.wait_for(starting, 10)


async def test_a_container_whose_clients_would_get_less_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_states, "_LIMIT_SECONDS", 0.2)
    async with with_mps(tmp_path, 16 * GIB) as it:
        pod = memory(it.inventory, 0, 4)
        await admitted(it, pod)
        answers(tmp_path, 0, limit=3072)
        with pytest.raises(Exception, match="gives clients 3072 MiB, and the container has 4096 MiB; kubelet will retry the start"):
            await start(it, pod)
        # As the release before, which knew no limit but the GPU's.
        answers(tmp_path, 0)
        await start(it, pod)


@pytest.mark.parametrize("wrong", ["stopped", "silent", "gone", "broken"])
async def test_a_gpu_whose_daemon_does_not_answer_is_not_handed_out(tmp_path: Path, wrong: str) -> None:
    async with with_mps(tmp_path, 16 * GIB, 16 * GIB) as it:
        pod = memory(it.inventory, 0, 4)
        await admitted(it, pod)
        if wrong == "stopped":
            answers(tmp_path, 0, "it was stopped")
        elif wrong == "silent":
            answers(tmp_path, 0, age=60)
        elif wrong == "gone":
            (tmp_path / it.inventory.by_index[0].uuid / "state.json").unlink()
        else:
            (tmp_path / it.inventory.by_index[0].uuid / "state.json").write_text("{")
        await until(lambda: not it.inventory.by_index[0].usable)
        assert it.inventory.by_index[1].usable
        assert "MPS control daemon" in it.inventory.by_index[0].health
        with pytest.raises(Exception, match=r"is not usable .its MPS control daemon"):
            await start(it, pod)
        answers(tmp_path, 0)
        await until(lambda: it.inventory.by_index[0].usable)
        await start(it, pod)


async def test_before_the_first_answer_no_id_is_healthy(tmp_path: Path) -> None:
    async with world(16 * GIB, isolation="mps", mps_folder=tmp_path, registered=False) as it:
        await until(lambda: {resource for resource, _ in it.kubelet.registrations} == RESOURCES)
        await until(lambda: "run site.yml with gpushare_isolation: mps" in it.inventory.by_index[0].health)


async def test_it_has_not_started_before_the_control_daemons_answer(tmp_path: Path) -> None:
    """systemd starts kubelet after it, and kubelet fails the pods that it admits while no id is healthy."""
    async with world(16 * GIB, kubelet=False, isolation="mps", mps_folder=tmp_path) as it:
        await until(lambda: "waiting for kubelet" in it.plugin.status.report()[1])
        await it.stays(lambda: not it.plugin.status.ready)
        answers(tmp_path, 0)
        await until(lambda: it.plugin.status.ready, seconds=5)


async def test_a_pod_that_requires_the_drivers_limit_does_not_start_with_mps(tmp_path: Path) -> None:
    async with with_mps(tmp_path, 16 * GIB) as it:
        strict = memory(it.inventory, 0, 4, annotations={"gpushare.request/isolation": "driver"})
        await admitted(it, strict)
        with pytest.raises(Exception, match=r"requires gpushare.request/isolation: driver"):
            await start(it, strict)
        fits = memory(it.inventory, 0, 4, annotations={"gpushare.request/isolation": "mps"})
        await admitted(it, fits)
        await start(it, fits)


async def test_a_pod_that_requires_mps_does_not_start_without(tmp_path: Path) -> None:
    async with world(16 * GIB, isolation="watch") as it:
        strict = memory(it.inventory, 0, 4, annotations={"gpushare.request/isolation": "mps"})
        await admitted(it, strict)
        with pytest.raises(Exception, match=r"requires gpushare.request/isolation: mps, and this node does not use MPS"):
            await start(it, strict)


async def test_an_environment_that_was_meant_for_another_share_does_not_start(tmp_path: Path) -> None:
    async with with_mps(tmp_path, 16 * GIB) as it:
        pod = bound(it.inventory, {0: {0: 4}}, container("a", mem=4, core=30))
        await admitted(it, pod)
        (ids,) = it.plugin.node.starts.shares
        it.plugin.node.starts.shares[ids] = 50
        with pytest.raises(Exception, match="requests 30 % of the GPU's compute and got 50 %"):
            await start(it, pod)


async def test_the_plugin_rejects_another_isolation_under_pods(tmp_path: Path) -> None:
    async with with_mps(tmp_path, 16 * GIB) as it:
        uid = await admitted(it, memory(it.inventory, 0, 4))
        it.plugin._state.isolation = "watch"
        it.processes.live.add(uid)
        await until(lambda: "1 pods have GPUs with the isolation watch" in it.plugin._unusable_settings())


# The states by themselves, with a clock that goes on only while somebody sleeps.


class Sleeper:
    """most: so often it sleeps, then it is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.now, self.most = 5.0, most
        self.naps: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps.append(seconds)
        if len(self.naps) == self.most:
            raise asyncio.CancelledError


def wrote(folder: Path, text: bytes) -> None:
    """The control daemon of GPU 0."""
    (folder / "GPU-00000000").mkdir(exist_ok=True)
    (folder / "GPU-00000000/state.json").write_bytes(text)


FIRST = gpu(0, 16)
ANSWERS = MpsState(5).to_json().encode()


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ([], ""),
        ([FIRST], "ok: MPS: the control daemons of 1 GPUs answer"),
        # An instance has no control daemon.
        ([FIRST, gpu(10000, 8, uuid="MIG-a")], "ok: MPS: the control daemons of 1 GPUs answer"),
        ([FIRST, gpu(1, 16)], "degraded: MPS: GPU 1: its MPS control daemon has not run: "),
    ],
)
async def test_what_is_said_of_the_control_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], says: str) -> None:
    wrote(tmp_path, ANSWERS)
    sleeper, status = Sleeper(monkeypatch, most=1), Status(())
    states = MpsStates(Node(Inventory(UNIT, tuple(gpus))).state, status, tmp_path, lambda: sleeper.now)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(states.run(), 10)
    said = status.report()[1]
    assert said.startswith(says) if says else said == ""
    [nap] = sleeper.naps
    assert nap == 0.02 if gpus else nap < 0.02, "GPUs that have just been found do not wait for long"


@pytest.mark.parametrize(
    ("text", "problem"),
    [(ANSWERS.rjust(16 * 1024), ""), (ANSWERS.rjust(16 * 1024 + 1), "an unreadable state"), (b"\xff", "an unreadable state")],
)
def test_a_state_that_no_control_daemon_writes_is_none(tmp_path: Path, text: bytes, problem: str) -> None:
    wrote(tmp_path, text)
    found = problem_of(tmp_path, "GPU-00000000", 5.0)
    assert (problem in found) if problem else found == ""


async def test_a_start_waits_for_its_memory_for_a_while_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    sleeper, node = Sleeper(monkeypatch, most=9), Node(Inventory(UNIT, (FIRST,))).state
    monkeypatch.setattr(mps_states, "_LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(mps_states, "_POLL_SECONDS", 0.25)
    states, ids = MpsStates(node, Status(()), tmp_path, lambda: sleeper.now), node.devices.ids_of(MEMORY, FIRST.uuid)[:4]
    for resource, asked in ((MEMORY, ids), (MEMORY, ["nobody's"]), (GPUS, ["nobody's"])):
        await states.before_start(resource, asked)
    wrote(tmp_path, MpsState(5, limit=3072).to_json().encode())
    assert sleeper.naps == []
    with golden.raised(AllocationRejected):
        await asyncio.wait_for(states.before_start(MEMORY, ids), 10)
    assert sleeper.naps == [0.25, 0.25, 0.25]
    node.devices.inventory = None
    await states.before_start(MEMORY, ids)

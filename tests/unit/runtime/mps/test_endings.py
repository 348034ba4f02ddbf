# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The clients of pods that kubelet is about to kill: which are terminated, once, and what is said when that fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_runtime.core.mps import ending_to_json
from gpushare_runtime.daemon.processes import started
from gpushare_runtime.mps import control, main
from gpushare_runtime.mps.control import ControlDaemon, ControlError, SilenceError
from gpushare_runtime.mps.endings import Endings
from gpushare_runtime.mps.main import MpsOfGpu
from unit.fakes.runtime.kube.fake_api import stays, until
from unit.fakes.runtime.mps.stand_ins import UUID, Gpus, fault, settings, state
from unit.golden import Golden


class Daemon:
    """Two servers and their clients. refuses, silent: how it answers for these clients."""

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = {1: [7, 8], 2: [9]}
        self.terminated: list[tuple[int, int]] = []
        self.refuses: set[int] = set()

    async def servers(self) -> list[int]:
        return list(self.of)

    async def clients(self, server: int) -> list[int]:
        return self.of[server]

    async def terminate(self, server: int, client: int) -> None:
        self.terminated.append((server, client))
        if client in self.refuses:
            raise ControlError("it was answered with '201'")


class Host:
    def __init__(self, file: Path) -> None:
        self.file, self.now, self.daemon = file, 0.0, Daemon()
        self.starts = {7: 70, 8: 80, 9: 90, 10: 100}
        self.endings = Endings(self.daemon, file, UUID, self.starts.get, lambda: self.now)  # type: ignore[arg-type]

    def lists(self, *processes: tuple[int, int], gpu: str = UUID) -> None:
        self.file.write_bytes(ending_to_json({gpu: processes}))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "ending.json")


async def test_a_listed_client_is_terminated_once(host: Host) -> None:
    assert await host.endings.follow() == []
    host.lists((9, 90), (10, 100))
    for _ in range(3):
        assert await host.endings.follow() == []
    assert host.daemon.terminated == [(2, 9)]
    # It starts CUDA in its last seconds.
    host.daemon.of[1].append(10)
    await host.endings.follow()
    assert host.daemon.terminated == [(2, 9), (1, 10)]


async def test_nobody_elses_client_is_terminated(host: Host) -> None:
    """The number is another process's by now, or the list is about another GPU."""
    host.lists((7, 69), (8, 81), (11, 1))
    await host.endings.follow()
    host.lists((9, 90), gpu="GPU-other")
    await host.endings.follow()
    del host.starts[9]
    host.lists((9, 90))
    await host.endings.follow()
    assert host.daemon.terminated == []


async def test_a_number_that_comes_again_is_another_client(host: Host) -> None:
    host.lists((9, 90))
    await host.endings.follow()
    host.lists()
    await host.endings.follow()
    host.starts[9] = 95
    host.lists((9, 95))
    await host.endings.follow()
    assert host.daemon.terminated == [(2, 9), (2, 9)]


async def test_one_that_cannot_be_terminated_keeps_nobody_from_it(host: Host) -> None:
    host.daemon.refuses = {7}
    host.lists((7, 70), (8, 80))
    assert await host.endings.follow() == ["it was answered with '201'"]
    assert await host.endings.follow() == []
    assert host.daemon.terminated == [(1, 7), (1, 8)]


async def test_a_pod_that_does_not_end_is_not_asked_about_for_ever(host: Host) -> None:
    host.lists((10, 100))
    await host.endings.follow()
    host.now = 60.0
    host.daemon.servers = None  # type: ignore[method-assign,assignment]
    assert await host.endings.follow() == []


async def test_a_list_that_cannot_be_used_is_said(host: Host) -> None:
    host.file.write_text("broken")
    assert await host.endings.follow() == []
    assert str(host.file) in host.endings.problem
    host.lists()
    await host.endings.follow()
    assert host.endings.problem == ""


# With a stand-in for the control daemon, and processes that are its clients.


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@asynccontextmanager
async def running(root: Path, canary: float = 0.0) -> AsyncIterator[tuple[MpsOfGpu, ControlDaemon]]:
    stop = asyncio.Event()
    made = MpsOfGpu(settings(root, canary=canary), Gpus(), interval=0.05)
    task = asyncio.ensure_future(made.run(stop))
    try:
        await until(lambda: state(root).problem == "")
        yield made, made._daemon
        assert not task.done()
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


def attach(root: Path, pid: int, server: int = 4711) -> None:
    (root / "r" / UUID / "servers").write_text(str(server))
    (root / "r" / UUID / "clients").write_text(f"{server} {pid}\n")


def lists(root: Path, pid: int) -> None:
    (root / "u").mkdir(exist_ok=True)
    start = started(pid)
    assert start is not None
    (root / "u/.ending").write_bytes(ending_to_json({UUID: [(pid, start)]}))
    (root / "u/.ending").rename(root / "u/ending.json")


def terminated(root: Path) -> list[str]:
    path = root / "r" / UUID / "terminated"
    return path.read_text().split() if path.exists() else []


async def test_the_client_of_a_pod_that_ends_is_terminated_and_its_process_lives_on(root: Path, sleeper: subprocess.Popen[bytes]) -> None:
    async with running(root) as (_, daemon):
        attach(root, sleeper.pid)
        assert await daemon.clients(4711) == [sleeper.pid]
        first = state(root)
        await until(lambda: state(root).at > first.at)
        assert terminated(root) == []
        lists(root, sleeper.pid)
        await until(lambda: terminated(root) == [str(sleeper.pid)])
        assert await daemon.clients(4711) == []
        assert sleeper.poll() is None


async def test_what_the_daemon_answers_about_clients(root: Path, sleeper: subprocess.Popen[bytes]) -> None:
    async with running(root) as (_, daemon):
        attach(root, sleeper.pid)
        with pytest.raises(ControlError, match=r"'terminate_client 4711 1' was answered with 'Invalid process 1!'; expected '0'"):
            await daemon.terminate(4711, 1)
        with pytest.raises(ControlError, match="was answered with 'Server 5 not found'"):
            await daemon.terminate(5, sleeper.pid)
        assert await daemon.clients(5) == []
        daemon.servers = lambda: asyncio.sleep(0, [5])  # type: ignore[method-assign]
        with pytest.raises(ControlError, match="'get_client_list 5' was answered with 'Server 5 not found'; expected process numbers"):
            await daemon.clients(5)


def stuck(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that does not come back from a termination."""
    for name, seconds in (("TERMINATE_SECONDS", 1.0), ("ANSWER_SECONDS", 6.0), ("_QUIT_SECONDS", 0.5)):
        monkeypatch.setattr(control, name, seconds)
    fault(root, "clings")


async def test_a_termination_that_is_not_answered_ends_and_the_next_client_is_tried_at_once(
    root: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck(root, monkeypatch)
    looked: list[float] = []
    async with running(root, 600.0) as (made, daemon):
        monkeypatch.setattr(made, "_try_canary", lambda room: asyncio.sleep(0, looked.append(time.monotonic())))
        attach(root, sleeper.pid)
        before = len(looked)
        lists(root, sleeper.pid)
        await until(lambda: len(looked) > before)
        # The daemon is stuck with it, and says nothing more.
        await until(lambda: "no answer to 'get_server_list'" in state(root).problem, seconds=120.0)
        with pytest.raises(SilenceError):
            await daemon.clients(4711)


def no_container(root: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (root / "u/held.json").write_text(json.dumps({"v": 1, "boot": boot, "unit": "GiB", "pods": {}}))


async def test_a_daemon_that_is_silent_for_long_is_started_anew_once_no_container_has_the_gpu(
    root: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(main, "SILENT_SECONDS", 0.5)
    stuck(root, monkeypatch)
    task = asyncio.ensure_future(MpsOfGpu(settings(root), Gpus(), interval=0.05).run())
    await until(lambda: state(root).problem == "")
    attach(root, sleeper.pid)
    lists(root, sleeper.pid)
    await until(lambda: "no answer to 'get_server_list'" in state(root).problem, seconds=120.0)
    # Somebody's may work on: without the record, nobody knows.
    end = time.monotonic() + 2.0
    await stays(lambda: not task.done(), lambda: int(10 * max(time.monotonic() - end, 0.0)))
    no_container(root)
    with golden.raised(main.FatalError) as failed:
        await asyncio.wait_for(task, 60)
    assert failed.value.restart

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A server that takes no new programs, while its daemon answers: who tries it and how, what is said of it, and what ends it.

The canary is a script of the test here. tests/unit/lab/nvml/test_mps.py has the real one, on the simulated libcuda.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare_runtime.core import mps
from gpushare_runtime.daemon.processes import started
from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.mps import canary, main
from gpushare_runtime.mps.canary import Canary, NoCanary, judge
from gpushare_runtime.mps.control import ControlError
from gpushare_runtime.mps.main import MpsOfGpu, parse_arguments
from unit.fakes.runtime.kube.fake_api import stays, until
from unit.fakes.runtime.mps.stand_ins import UUID, Gpus, settings, state
from unit.golden import Golden

SAYS = "import os, sys, time; print('cuInit', flush=True);"
HANGS = f"{SAYS} time.sleep(600)"


class Daemon:
    """One server, which is this process; clients: of it."""

    def __init__(self) -> None:
        self.environment = {"PATH": "/bin", mps.ENV_PIPES: "/r/pipe", mps.ENV_LOGS: "/l", "CUDA_VISIBLE_DEVICES": UUID}
        self.listed, self.attached = [os.getpid()], list[int]()
        self.terminated: list[tuple[int, int, bool]] = []

    async def servers(self) -> list[int]:
        return self.listed

    async def clients(self, server: int) -> list[int]:
        return self.attached

    async def terminate(self, server: int, client: int) -> None:
        self.terminated.append((server, client, started(client) is not None))
        raise ControlError("Invalid process")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Canary]:
    """A canary whose program is this text."""
    daemon = Daemon()

    def made(text: str, seconds: float = 30.0) -> Canary:
        path = tmp_path / "client.py"
        path.write_text(text)
        monkeypatch.setattr(canary, "canary_client", SimpleNamespace(__file__=str(path)))
        made = Canary(daemon, seconds)  # type: ignore[arg-type]
        made.daemon = daemon  # type: ignore[attr-defined]
        return made

    return made


def none() -> int:
    return 0


@pytest.mark.parametrize(
    ("status", "output", "problem"),
    [
        (0, b"cuInit\n", ""),
        (1, b"cuInit\n807\n", "a new program fails in cuInit with CUDA error 807"),
        (1, b"cuInit\ncuDeviceGet\ncuCtxCreate_v2\n999\n", "a new program fails in cuCtxCreate_v2 with CUDA error 999"),
        # The server answers, and is full.
        (1, b"cuInit\ncuDeviceGet\ncuCtxCreate_v2\n2\n", ""),
        (1, b"cuInit\n808\n", ""),
        (1, b"cuInit\n809\n", ""),
        (1, b"cu" + 200 * b"x" + b"\n1\n", f"a new program fails in cu{78 * 'x'} with CUDA error 1"),
    ],
)
def test_what_a_try_says_of_the_server(status: int, output: bytes, problem: str) -> None:
    assert judge(status, output) == problem


@pytest.mark.parametrize(
    ("status", "output"),
    [(1, b"OSError: libcuda.so.1: cannot open shared object file\n"), (-11, b""), (-11, b"cuInit\n"), (1, b"7\n"), (1, b"x\n7\n")],
)
def test_a_program_that_does_not_run_says_nothing_of_the_server(status: int, output: bytes, golden: Golden) -> None:
    with golden.raised(NoCanary):
        judge(status, output)


async def test_two_tries_that_fail_are_a_problem_and_one_that_succeeds_ends_it(client: Callable[[str], Canary], tmp_path: Path) -> None:
    flag = tmp_path / "fails"
    flag.touch()
    it = client(f"{SAYS} os.path.exists({str(flag)!r}) and (print(807), sys.exit(1))")
    await it.look(none)
    assert (it.problem, it.in_doubt) == ("", True)
    for _ in range(2):
        await it.look(none)
        assert (it.problem, it.in_doubt) == ("a new program fails in cuInit with CUDA error 807", False)
    flag.unlink()
    await it.look(none)
    assert (it.problem, it.in_doubt) == ("", False)


async def test_one_that_hangs_is_terminated_then_killed(client: Callable[[str], Canary], tmp_path: Path, golden: Golden) -> None:
    it = client(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid())); {HANGS}", 3.0)
    await it.look(none)
    pid = int((tmp_path / "pid").read_text())
    assert it.daemon.terminated == [(os.getpid(), pid, True)]  # type: ignore[attr-defined]
    assert started(pid) is None
    await it.look(none)
    golden(it.problem)


async def test_while_one_does_not_end_there_is_no_other(
    client: Callable[[str], Canary], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(canary, "_KILLED_SECONDS", 0.1)
    it, killed = client(HANGS, 0.3), list[int]()
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: killed.append(self.pid))
    for _ in range(3):
        await it.look(none)
    monkeypatch.undo()
    golden(it.problem)
    assert len(set(killed)) == 1
    # It is no reason to take the GPU for one in use.
    it.daemon.attached = killed[:1]  # type: ignore[attr-defined]
    assert await it.idle()
    it.daemon.attached = [killed[0], 1]  # type: ignore[attr-defined]
    assert not await it.idle()
    os.kill(killed[0], 9)
    await until(lambda: it._left is not None and it._left.returncode is not None)


async def test_it_has_memory_and_a_place_only_where_no_container_has_them(client: Callable[[str], Canary], tmp_path: Path) -> None:
    said = tmp_path / "said"
    it = client(f"import sys; open({str(said)!r}, 'a').write(sys.argv[1] + ' ')")
    for room, attached in ((1023, 0), (1024, 0), (1024, mps.MOST_CLIENTS - 1), (1024, mps.MOST_CLIENTS)):
        it.daemon.attached = list(range(attached))  # type: ignore[attr-defined]
        await it.look(lambda room=room: room)
    assert said.read_text().split() == ["connect", "compute", "compute", "connect"]


async def test_its_environment_is_a_clients_own(client: Callable[[str], Canary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/driver")
    await client(f"import json, os; open({str(said)!r}, 'w').write(json.dumps([dict(os.environ), os.getcwd()]))").look(none)
    environment, folder = json.loads(said.read_text())
    environment.pop("LC_CTYPE", None)
    own = {mps.ENV_PIPES: "/r/pipe", mps.ENV_THREADS: "10", "LD_LIBRARY_PATH": "/driver", "PATH": "/bin"}
    assert (environment, folder) == (own, "/")


@pytest.fixture
def others() -> Iterator[subprocess.Popen[bytes]]:
    """A server of another user."""
    if os.geteuid():
        pytest.skip("needs root")
    with subprocess.Popen(["sleep", "600"], user=65534, group=65533) as process:
        yield process
        process.kill()


async def test_it_is_of_the_servers_user(
    client: Callable[[str], Canary], others: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    started_as: list[object] = []

    async def start(*words: str, **options: object) -> None:
        started_as.append([options.get(name) for name in ("user", "group", "extra_groups")])
        raise PermissionError("not here")

    it = client("")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    for server, user in ((others.pid, [65534, 65533, []]), (os.getpid(), [None, None, None])):
        it.daemon.listed = [server]  # type: ignore[attr-defined]
        with golden.raised(NoCanary):
            await it.look(none)
        assert started_as.pop() == user
    # It has ended by now: there is nobody to be.
    others.kill()
    others.wait()
    it.daemon.listed = [others.pid]  # type: ignore[attr-defined]
    await it.look(none)
    assert started_as == []


@pytest.mark.parametrize("seconds", ["-1", "x", "nan", "86401", "1e9", ""])
def test_seconds_are_a_number(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([UUID, f"--canary-seconds={seconds}"])
    assert "is not a number of seconds from 0 to 86400" in capsys.readouterr().err


# The service, with a stand-in for the control daemon.


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "AGAIN_SECONDS", 0.05)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@asynccontextmanager
async def running(root: Path, seconds: float = 0.2) -> AsyncIterator[tuple[asyncio.Task[None], MpsOfGpu]]:
    stop = asyncio.Event()
    made = MpsOfGpu(settings(root, canary=seconds), Gpus(), interval=0.05)
    task = asyncio.ensure_future(made.run(stop))
    try:
        await until(lambda: state(root).problem == "")
        yield task, made
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


def attach(root: Path, *clients: int) -> None:
    (root / "r" / UUID / "servers").write_text(str(os.getpid()))
    (root / "r" / UUID / "clients").write_text("".join(f"{os.getpid()} {client}\n" for client in clients))


def no_container(root: Path) -> None:
    """By the device plugin's record."""
    (root / "u").mkdir()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (root / "u/held.json").write_text(json.dumps({"v": 1, "boot": boot, "unit": "GiB", "pods": {}}))


async def test_a_stuck_server_is_said_and_ended_once_no_program_uses_it(
    client: Callable[[str], Canary], root: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    client(f"{SAYS} print(807); sys.exit(1)")
    async with running(root) as (task, made):
        attach(root, sleeper.pid)
        await until(lambda: state(root).problem != "")
        why = "a new program fails in cuInit with CUDA error 807"
        assert state(root).problem == f"{why}; it is restarted once no program uses the GPU: delete the pods there"
        assert "degraded: canary: a new program fails" in made.status.report()[1]
        first = state(root)
        await until(lambda: state(root).at > first.at)
        # The daemon answers, and somebody's program may work on.
        assert state(root).problem == first.problem
        assert not task.done()
        attach(root)
        with pytest.raises(FatalError, match=f"{why}, and no program uses it") as failed:
            await asyncio.wait_for(task, 60)
        assert failed.value.restart


async def test_a_stuck_server_with_clients_ends_once_no_container_has_the_gpu(
    client: Callable[[str], Canary], root: Path, sleeper: subprocess.Popen[bytes], golden: Golden
) -> None:
    client(f"{SAYS} print(999); sys.exit(1)")
    async with running(root) as (task, _):
        attach(root, sleeper.pid)
        await until(lambda: state(root).problem != "")
        no_container(root)
        with golden.raised(FatalError):
            await asyncio.wait_for(task, 60)


async def test_a_server_that_recovers_is_usable_again(
    client: Callable[[str], Canary], root: Path, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    flag = tmp_path / "fails"
    flag.touch()
    client(f"{SAYS} os.path.exists({str(flag)!r}) and (print(807), sys.exit(1))")
    async with running(root) as (task, made):
        attach(root, sleeper.pid)
        await until(lambda: state(root).problem != "")
        flag.unlink()
        await until(lambda: state(root).problem == "")
        assert "ok: canary: new programs can start CUDA" in made.status.report()[1]
        assert not task.done()


async def test_where_no_server_runs_nothing_is_started(client: Callable[[str], Canary], root: Path, tmp_path: Path) -> None:
    client(f"open({str(tmp_path / 'ran')!r}, 'w')")
    async with running(root) as (_, made):
        await until(lambda: "ok: canary" in made.status.report()[1])
        assert not (tmp_path / "ran").exists()


async def test_zero_seconds_are_no_canary(client: Callable[[str], Canary], root: Path, tmp_path: Path) -> None:
    client(f"open({str(tmp_path / 'ran')!r}, 'w')")
    async with running(root, 0.0) as (_, made):
        attach(root)
        first = state(root)
        await stays(lambda: "canary" not in made.status.report()[1], lambda: state(root).at - first.at, 2)
        assert not (tmp_path / "ran").exists()


async def test_one_that_cannot_run_is_said_and_leaves_the_gpu_usable(client: Callable[[str], Canary], root: Path) -> None:
    client("raise OSError('libcuda.so.1: cannot open shared object file')")
    async with running(root) as (task, made):
        attach(root)
        await until(lambda: "degraded: canary: no program can be tried: it ended with 1: 'OSError: libcuda.so.1" in made.status.report()[1])
        assert state(root).problem == ""
        assert not task.done()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-mps around a control daemon: a stand-in, and NVIDIA's own program where GPUSHARE_MPS_CONTROL names it (it needs no GPU)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.mps import control
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import GpuForMps
from gpushare_runtime.mps.main import MpsOfGpu, main, parse_arguments
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.mps.stand_ins import STAND_IN, UUID, VOLTA, Gpus, fault, settings, state
from unit.golden import Golden

REAL = os.environ.get("GPUSHARE_MPS_CONTROL", "")


@pytest.fixture(params=[str(STAND_IN), *([REAL] if REAL else [])], ids=lambda path: Path(path).name)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_QUIT_SECONDS", 0.5), ("_START_SECONDS", 2.0)):
        monkeypatch.setattr(control, name, seconds)


@asynccontextmanager
async def running(root: Path, gpus: Gpus, program: str = str(STAND_IN)) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.ensure_future(MpsOfGpu(settings(root, program), gpus, interval=0.05).run(stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_gpu_gets_its_daemon_and_the_former_mode_comes_back(root: Path, program: str) -> None:
    gpus = Gpus()
    async with running(root, gpus, program):
        await until(lambda: state(root).problem == "")
        assert gpus.gpu.mode == 3
        first = state(root)
        assert first.unusable(time.monotonic()) == ""
        await until(lambda: state(root).at > first.at)
        daemon = ControlDaemon(program, UUID, root / "r" / UUID, root / "l" / UUID)
        assert await daemon.ask("get_default_device_pinned_mem_limit 0") == "15G"
        assert await daemon.servers() == []
        assert (root / "r" / UUID / "shm").stat().st_mode & 0o7777 == 0o1777
        with pytest.raises(ControlError, match="'bogus' was answered with 'Unknown command"):
            await daemon.ask("bogus")
        daemon.ask = lambda command, within=0: asyncio.sleep(0, "9G")  # type: ignore[method-assign,assignment]
        with pytest.raises(ControlError, match="the daemon's memory limit is"):
            await daemon.bound_clients(1024)
    assert (gpus.modes, gpus.gpu.mode) == ([3, 0], 0)
    assert state(root).problem == "it was stopped"
    assert not list((root / "s").iterdir())
    with pytest.raises(ControlError, match="'get_server_list' was answered with 'Cannot find MPS control daemon process'"):
        await ControlDaemon(program, UUID, root / "r" / UUID, root / "l" / UUID).servers()


async def test_the_daemon_sees_its_gpu_alone(root: Path) -> None:
    async with running(root, Gpus()):
        await until(lambda: state(root).problem == "")
        found = (root / "r" / UUID / "pipe/environment").read_text().splitlines()
        own = f"CUDA_MPS_LOG_DIRECTORY={root}/l/{UUID}", f"CUDA_MPS_PIPE_DIRECTORY={root}/r/{UUID}/pipe", f"CUDA_VISIBLE_DEVICES={UUID}"
        assert [line for line in found if line.startswith("CUDA")] == list(own)


async def test_what_lies_beside_the_pipes_neither_stops_a_daemon_nor_is_followed(root: Path, program: str) -> None:
    """As a container left it to which a release before gave the folder."""
    outside = root / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("kept")
    pipes = root / "r" / UUID / "pipe"
    (pipes / "folder/in/folder").mkdir(parents=True)
    for name, target in (("log", "file"), ("control_lock", "new"), ("folder/in/link", "folder"), ("control", "folder")):
        (pipes / name).symlink_to(outside / target)
    async with running(root, Gpus(), program):
        await until(lambda: state(root).problem == "")
        assert not (pipes / "folder").exists()
    assert {path.name for path in outside.iterdir()} == {"folder", "file"}
    assert (outside / "file").read_text() == "kept"
    assert list((outside / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("mute", "the daemon does not answer after its start: no answer to 'get_server_list'"),
        ("rejects", "the daemon does not answer after its start: .*; it logged last: 'An instance of this daemon is already running'"),
        ("forgets", "the daemon's memory limit is '' after 16160M was set"),
        ("dies", f"the MPS control daemon of GPU {UUID} ended, and its clients are lost: status 3; it logged last: 'Shutting down'"),
    ],
)
async def test_a_daemon_that_fails_ends_the_service_which_says_why(root: Path, kind: str, said: str) -> None:
    fault(root, kind)
    gpus = Gpus()
    async with running(root, gpus) as task:
        with pytest.raises(FatalError, match=said) as failed:
            await asyncio.wait_for(task, 60)
        assert failed.value.restart
    assert gpus.gpu.mode == 0, "the GPU works without MPS again"
    assert state(root).problem


async def test_without_the_program_the_message_says_what_to_install(root: Path, golden: Golden) -> None:
    async with running(root, Gpus(), "/nonexistent/mps") as task:
        with golden.raised(FatalError):
            await task


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (replace(VOLTA, capability=(6, 1)), "compute capability 6.1, MPS limits need 7.0"),
        (replace(VOLTA, mig=True), "MIG mode on"),
        (replace(VOLTA, processes=(7, 8, 9, 10, 11, 12)), "6 processes use GPU .* without MPS .PID 7, 8, 9, 10, 11 …."),
    ],
)
async def test_a_gpu_that_cannot_have_mps_is_left_as_it_is(root: Path, gpu: GpuForMps, said: str) -> None:
    gpus = Gpus(gpu)
    async with running(root, gpus) as task:
        with pytest.raises(FatalError, match=said):
            await task
    assert (gpus.modes, gpus.gpu) == ([], gpu)


@pytest.mark.parametrize("gpu", ["0", "GPU-../../etc", "MIG-8f6f2c31", "", "GPU-" + "a" * 100])
def test_only_the_uuid_of_a_gpu_names_one(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([gpu])
    assert "is not the UUID of a GPU" in capsys.readouterr().err


def test_the_command_reports_why_it_ends(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = [UUID, "--run-dir", f"{root}/r", "--log-dir", f"{root}/l", "--state-dir", f"{root}/s", "--control", "/nonexistent/mps"]
    assert main(arguments, Gpus()) == 1
    assert "install the part of the driver" in caplog.text

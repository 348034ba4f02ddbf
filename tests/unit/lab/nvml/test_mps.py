# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-mps as a process, by pynvml on the simulated library: with a stand-in, or the program that GPUSHARE_MPS_CONTROL names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpushare_runtime.core.mps import ending_to_json
from gpushare_runtime.daemon import processes

STAND_IN = Path(__file__).resolve().parents[2] / "fakes/runtime/mps/mps_control.py"
PROGRAM = os.environ.get("GPUSHARE_MPS_CONTROL") or str(STAND_IN)


@pytest.fixture
def folder():
    # A unix socket is in it, whose path must be short.
    made = Path(tempfile.mkdtemp(prefix="mps-"))
    yield made
    shutil.rmtree(made)


# A try that hangs has failed sooner, and the next one follows sooner.
SOONER = """
import sys
from gpushare_runtime.mps import canary, main
canary.DEADLINE_SECONDS, main.AGAIN_SECONDS = 10.0, 1.0
sys.exit(main.main())
"""


def started(machine, folder: Path, uuid: str, *options: str, program: str = PROGRAM) -> subprocess.Popen[str]:
    places = ["--run-dir", f"{folder}/r", "--log-dir", f"{folder}/l", "--state-dir", f"{folder}/s", "--usage-file", f"{folder}/u/held.json"]
    command = [sys.executable, "-c", SOONER, uuid, "--control", program, *places, *options]
    return subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


CLIENT = """
import ctypes, pathlib, sys, time
print(ctypes.CDLL("libcuda.so.1").cuInit(0), flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def client(machine, folder: Path, uuid: str, *, works: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A program of the same user that has started CUDA. works: it is in the middle of a kernel."""
    environment = machine.environment | {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/r/{uuid}/pipe"}
    with subprocess.Popen([sys.executable, "-c", CLIENT], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
            if works:
                with (folder / "r" / uuid / "busy").open("a") as file:
                    file.write(f"{process.pid}\n")
            yield process
        finally:
            process.kill()


def text(folder: Path, uuid: str, name: str) -> str:
    path = folder / "r" / uuid / name
    return path.read_text() if path.exists() else ""


@pytest.fixture
def serving(machine, gpu, folder) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A GPU whose stand-in for a control daemon is stuck after a client has died at work; a program tries it every second."""
    mine = gpu(0)
    machine.write(mine)
    (folder / "r" / mine.uuid).mkdir(parents=True)
    (folder / "r" / mine.uuid / "fault").write_text("wedges")
    process = started(machine, folder, mine.uuid, "--canary-seconds=1", program=str(STAND_IN))
    try:
        until(lambda: problem(folder, mine.uuid) == "" or process.poll() is not None)
        yield mine.uuid, process
    finally:
        process.kill()
        process.wait()


def listed(folder: Path, uuid: str, pid: int) -> None:
    """As the device plugin does it for a pod that kubelet is about to kill."""
    start = processes.started(pid)
    assert start is not None
    (folder / "u").mkdir()
    (folder / "u/ending.json").write_bytes(ending_to_json({uuid: [(pid, start)]}))


def test_programs_start_cuda_beside_others_and_that_is_seen(machine, folder, serving) -> None:
    uuid, process = serving
    with client(machine, folder, uuid):
        tries = len(text(folder, uuid, "connected").split())
        until(lambda: len(text(folder, uuid, "connected").split()) >= tries + 2)
        assert (problem(folder, uuid), process.poll()) == ("", None)


def test_a_client_that_is_killed_at_work_leaves_a_gpu_that_is_unusable_until_nobody_uses_it(machine, folder, serving) -> None:
    uuid, process = serving
    with client(machine, folder, uuid) as other:
        with client(machine, folder, uuid, works=True) as killed:
            killed.kill()
            killed.wait()
        until(lambda: "a new program hangs in cuInit" in (problem(folder, uuid) or ""))
        # What hung does not live on.
        assert other.poll() is None
        assert process.poll() is None
        other.kill()
        other.wait()
        _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert f"GPU {uuid}: a new program hangs in cuInit (more than 10 s), and no program uses it" in said
    assert problem(folder, uuid) == "it was stopped"


def test_one_that_is_terminated_first_leaves_a_gpu_that_is_usable(machine, folder, serving) -> None:
    uuid, process = serving
    with client(machine, folder, uuid, works=True) as killed:
        listed(folder, uuid, killed.pid)
        until(lambda: text(folder, uuid, "terminated").split() == [str(killed.pid)])
        assert killed.poll() is None
        killed.kill()
        killed.wait()
    with client(machine, folder, uuid):
        tries = len(text(folder, uuid, "connected").split())
        until(lambda: len(text(folder, uuid, "connected").split()) >= tries + 2)
        assert (problem(folder, uuid), process.poll()) == ("", None)


def problem(folder: Path, uuid: str) -> str | None:
    path = folder / "r" / uuid / "state.json"
    found: str | None = json.loads(path.read_text())["problem"] if path.exists() else None
    return found


def test_the_gpu_is_exclusive_while_the_daemon_runs(machine, gpu, folder) -> None:
    mine = gpu(0)
    machine.write(mine, gpu(1))
    process = started(machine, folder, mine.uuid)
    try:
        until(lambda: problem(folder, mine.uuid) == "" or process.poll() is not None)
        nvml = machine.nvml()
        first, second = (nvml("DeviceGetHandleByIndex", index) for index in (0, 1))
        assert nvml("DeviceGetComputeMode", first) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        assert nvml("DeviceGetComputeMode", second) == pynvml.NVML_COMPUTEMODE_DEFAULT
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert nvml("DeviceGetComputeMode", first) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert problem(folder, mine.uuid) == "it was stopped"


def test_a_gpu_before_volta_is_rejected_with_the_reason(machine, gpu, folder) -> None:
    old = gpu(0, compute_capability="6.1")
    machine.write(old)
    process = started(machine, folder, old.uuid)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "has compute capability 6.1, MPS limits need 7.0 (Volta) or newer" in said
    assert "compute capability 6.1" in (problem(folder, old.uuid) or "")

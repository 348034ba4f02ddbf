# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-mps as a process, by pynvml on the simulated library: with a stand-in, or the program that GPUSHARE_MPS_CONTROL names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pynvml
import pytest

STAND_IN = Path(__file__).resolve().parents[2] / "fakes/runtime/mps/mps_control.py"
PROGRAM = os.environ.get("GPUSHARE_MPS_CONTROL") or str(STAND_IN)


@pytest.fixture
def folder():
    # A unix socket is in it, whose path must be short.
    made = Path(tempfile.mkdtemp(prefix="mps-"))
    yield made
    shutil.rmtree(made)


def started(machine, folder: Path, uuid: str) -> subprocess.Popen[str]:
    places = ["--run-dir", f"{folder}/r", "--log-dir", f"{folder}/l", "--state-dir", f"{folder}/s"]
    command = [sys.executable, "-m", "gpushare_runtime.mps.main", uuid, "--control", PROGRAM, *places]
    return subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)


def problem(folder: Path, uuid: str) -> str | None:
    path = folder / "r" / uuid / "state.json"
    found: str | None = json.loads(path.read_text())["problem"] if path.exists() else None
    return found


def test_the_gpu_is_exclusive_while_the_daemon_runs(machine, gpu, folder) -> None:
    mine = gpu(0)
    machine.write(mine, gpu(1))
    process = started(machine, folder, mine.uuid)
    try:
        deadline = time.monotonic() + 60
        while problem(folder, mine.uuid) != "" and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
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

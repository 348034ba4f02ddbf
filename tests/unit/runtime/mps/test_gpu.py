# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs can have MPS, by what NVML says of them, and their compute mode, which is put back."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpushare_runtime.mps.gpu import ExclusiveMode, GpuError, GpuForMps, PynvmlGpus, obstacle
from unit.fakes.runtime.mps.stand_ins import UUID, VOLTA, Gpus
from unit.golden import Golden


def test_its_own_server_on_the_gpu_is_no_obstacle() -> None:
    assert obstacle(UUID, replace(VOLTA, processes=(7,)), lambda pid: "nvidia-cuda-mps") == ""


def test_whoever_else_has_a_context_on_the_gpu_is_an_obstacle_and_is_named(tmp_path: Path) -> None:
    """By the names that the kernel has, of which it keeps 15 characters."""
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to(shutil.which("cat") or "cat")
    with subprocess.Popen([server, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        try:
            # It has its name before it answers.
            os.write(running.stdin.fileno(), b"x")  # type: ignore[union-attr]
            assert os.read(running.stdout.fileno(), 1) == b"x"  # type: ignore[union-attr]
            assert obstacle(UUID, replace(VOLTA, processes=(running.pid,))) == ""
            why = obstacle(UUID, replace(VOLTA, processes=(running.pid, os.getpid())))
            assert f"1 processes use GPU {UUID}" in why
            assert f"(PID {os.getpid()})" in why
        finally:
            running.kill()
    # It has ended since, and whose it was cannot be read.
    assert f"(PID {running.pid})" in obstacle(UUID, replace(VOLTA, processes=(running.pid,)))


@pytest.mark.parametrize(("count", "shown"), [(1, "PID 1)"), (5, "PID 1, 2, 3, 4, 5)"), (6, "PID 1, 2, 3, 4, 5 …)")])
def test_of_many_processes_the_first_are_named(count: int, shown: str) -> None:
    assert shown in obstacle(UUID, replace(VOLTA, processes=tuple(range(1, count + 1))), lambda pid: "python3")


@pytest.mark.parametrize(
    ("capability", "fine"), [((6, 2), False), ((7, 0), True), ((7, 5), True), ((8, 0), True), ((10, 0), True)], ids=lambda value: str(value)
)
def test_which_gpus_can_have_mps(capability: tuple[int, int], fine: bool) -> None:
    why = obstacle(UUID, replace(VOLTA, capability=capability))
    assert why == "" if fine else f"compute capability {capability[0]}.{capability[1]}" in why


def test_a_gpu_that_cannot_have_mps_keeps_its_mode(tmp_path: Path) -> None:
    for gpu, why in ((replace(VOLTA, mig=True), "MIG mode on"), (replace(VOLTA, processes=(1,)), "PID 1")):
        gpus, kept = Gpus(gpu), tmp_path / "mode"
        with pytest.raises(GpuError, match=why):
            ExclusiveMode(gpus, UUID, kept).enter()
        assert (gpus.modes, kept.exists()) == ([], False)


class Library:
    """pynvml with one GPU; it must be told before the first call, and after the last. errors: by function, what it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.mode, self.mig = 0, 0, [0, 0]
        self.errors: dict[str, int] = {}
        for name in (
            "Init",
            "Shutdown",
            "DeviceGetHandleByUUID",
            "DeviceGetCudaComputeCapability",
            "DeviceGetComputeRunningProcesses",
            "DeviceGetMemoryInfo",
            "DeviceGetComputeMode",
            "DeviceGetMigMode",
            "DeviceSetComputeMode",
        ):
            monkeypatch.setattr(pynvml, f"nvml{name}", partial(self._answer, name))

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name in self.errors:
            raise pynvml.NVMLError(self.errors[name])
        if name in ("Init", "Shutdown"):
            self.open += 1 if name == "Init" else -1
            return None
        assert self.open == 1
        assert arguments[0] == (UUID if name == "DeviceGetHandleByUUID" else "handle")
        if name == "DeviceSetComputeMode":
            self.mode = arguments[1]
        return {
            "DeviceGetHandleByUUID": "handle",
            "DeviceGetCudaComputeCapability": (8, 6),
            "DeviceGetComputeRunningProcesses": [SimpleNamespace(pid=41), SimpleNamespace(pid=42)],
            "DeviceGetMemoryInfo": SimpleNamespace(total=23028 * 2**20 + 5),
            "DeviceGetComputeMode": self.mode,
            "DeviceGetMigMode": self.mig,
        }.get(name)


def test_what_nvml_says_of_the_gpu_and_how_its_mode_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    library, gpus = Library(monkeypatch), PynvmlGpus()
    found = gpus.read(UUID)
    assert found == GpuForMps((8, 6), False, (41, 42), 0, 23028)
    assert gpus.exclusive == 3
    gpus.set_mode(UUID, gpus.exclusive)
    assert (gpus.read(UUID).mode, library.open) == (3, 0)
    # What is pending counts after the next reset.
    for mig, on in (([1, 1], True), ([1, 0], True), ([0, 1], False)):
        library.mig = mig
        assert gpus.read(UUID).mig == on
    library.errors["DeviceGetMigMode"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert not gpus.read(UUID).mig
    assert library.open == 0


@pytest.mark.parametrize("function", ["Init", "DeviceGetHandleByUUID", "DeviceGetComputeMode", "DeviceSetComputeMode"])
def test_a_failure_of_nvml_names_the_gpu_and_leaves_nothing_open(function: str, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    library, gpus = Library(monkeypatch), PynvmlGpus()
    library.errors[function] = pynvml.NVML_ERROR_GPU_IS_LOST
    call = partial(gpus.set_mode, UUID, 3) if function == "DeviceSetComputeMode" else partial(gpus.read, UUID)
    with golden.raised(GpuError):
        call()
    assert (library.open, library.mode) == (0, 0)


def test_a_gpu_that_is_exclusive_already_stays_so_and_nothing_else_is_remembered(tmp_path: Path) -> None:
    gpus, kept = Gpus(replace(VOLTA, mode=3)), tmp_path / "mode"
    assert ExclusiveMode(gpus, UUID, kept).enter() == gpus.gpu
    assert (gpus.modes, kept.read_text()) == ([], "3")
    ExclusiveMode(gpus, UUID, kept).leave()
    assert (gpus.modes, kept.exists()) == ([3], False)
    # Nothing was entered: nothing is put back.
    ExclusiveMode(gpus, UUID, kept).leave()
    assert gpus.modes == [3]


def test_the_mode_of_before_outlives_a_process_that_was_killed(tmp_path: Path) -> None:
    gpus, kept = Gpus(replace(VOLTA, mode=1)), tmp_path / "state" / UUID / "mode"
    ExclusiveMode(gpus, UUID, kept).enter()
    # Killed: the next one finds the GPU as the first has left it.
    second = ExclusiveMode(gpus, UUID, kept)
    second.enter()
    second.leave()
    assert gpus.gpu.mode == 1
    assert not kept.exists()


def test_a_mode_that_does_not_take_is_an_error(tmp_path: Path, golden: Golden) -> None:
    gpus = Gpus()
    gpus.sticky = True
    with golden.raised(GpuError):
        ExclusiveMode(gpus, UUID, tmp_path / "mode").enter()


def test_a_state_file_of_anything_is_not_followed(tmp_path: Path) -> None:
    gpus, kept = Gpus(), tmp_path / "mode"
    kept.write_text("17")
    ExclusiveMode(gpus, UUID, kept).enter()
    ExclusiveMode(gpus, UUID, kept).leave()
    assert gpus.gpu.mode == 0

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPU of a control daemon, by NVML: whether it can have MPS, and its compute mode, which is restored at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gpushare_runtime.core import mps
from gpushare_runtime.daemon.files import replace_file
from gpushare_runtime.errors import GpushareError

_SERVER: Final = "nvidia-cuda-mps-server"
_SHOWN: Final = 5
_MODES: Final = ("0", "1", "2", "3")
# The files that every server opens beside its GPU.
_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


class GpuError(GpushareError):
    """The GPU cannot have MPS now; the message says what was found, what is expected and what to do."""


@dataclass(frozen=True)
class GpuForMps:
    """capability: compute capability. processes: with a context on it. mode: compute mode, NVML's number. mib: its memory."""

    capability: tuple[int, int]
    mig: bool
    processes: tuple[int, ...]
    mode: int
    mib: int


class ComputeModes(Protocol):
    """All may block and raise GpuError."""

    exclusive: int
    """NVML's number of the mode EXCLUSIVE_PROCESS."""

    def read(self, uuid: str) -> GpuForMps: ...

    def set_mode(self, uuid: str, mode: int) -> None: ...


class PynvmlGpus:
    """NVML of this host."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self.exclusive = int(pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    @contextlib.contextmanager
    def _handle(self, uuid: str) -> Iterator[Any]:
        try:
            self._nvml.nvmlInit()
            try:
                yield self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            finally:
                self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            raise GpuError(f"NVML failed for GPU {uuid} ({error}): run `nvidia-smi` on this host for details") from None

    def read(self, uuid: str) -> GpuForMps:
        nvml = self._nvml
        with self._handle(uuid) as handle:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            processes = [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // (1024 * 1024)
            mode = int(nvml.nvmlDeviceGetComputeMode(handle))
            return GpuForMps((int(major), int(minor)), self._mig(handle), tuple(processes), mode, memory)

    def _mig(self, handle: Any) -> bool:
        try:
            return int(self._nvml.nvmlDeviceGetMigMode(handle)[0]) == int(self._nvml.NVML_DEVICE_MIG_ENABLE)
        except self._nvml.NVMLError:
            return False

    def set_mode(self, uuid: str, mode: int) -> None:
        with self._handle(uuid) as handle:
            self._nvml.nvmlDeviceSetComputeMode(handle, mode)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def obstacle(uuid: str, gpu: GpuForMps, name_of: Callable[[int], str] = _name_of) -> str:
    """Why the GPU cannot have a control daemon now; "" if it can."""
    if gpu.capability < mps.LOWEST_CAPABILITY:
        found, least = ".".join(map(str, gpu.capability)), ".".join(map(str, mps.LOWEST_CAPABILITY))
        return f"GPU {uuid} has compute capability {found}, MPS limits need {least} (Volta) or newer: set gpushare_isolation to auto"
    if gpu.mig:
        return f"GPU {uuid} has MIG mode on, which excludes MPS here: run `nvidia-smi -mig 0` for it, or set gpushare_isolation to auto"
    # The kernel keeps 15 characters of a name.
    others = [pid for pid in gpu.processes if name_of(pid) != _SERVER[:15]]
    if others:
        shown = ", ".join(map(str, others[:_SHOWN])) + (" …" if len(others) > _SHOWN else "")
        return (
            f"{len(others)} processes use GPU {uuid} without MPS (PID {shown}), and would exclude the MPS server from it: end them, or "
            "drain the node"
        )
    return ""


def withheld(nodes: Collection[str] = _NODES) -> str:
    """The device node that this service may not open; "" if none. One that is not there is a matter of the driver. Blocks."""
    for node in nodes:
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        except PermissionError:
            return node
        except OSError:
            continue
    return ""


class ExclusiveMode:
    """The GPU's compute mode while the daemon runs. kept: file with the mode of before, for a process that was killed."""

    def __init__(self, nvml: ComputeModes, uuid: str, kept: Path) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._kept = kept

    def enter(self) -> GpuForMps:
        """Set the mode, read it back. GpuError if the GPU cannot have it."""
        gpu = self._nvml.read(self._uuid)
        if why := obstacle(self._uuid, gpu):
            raise GpuError(why)
        if self._former() is None:
            replace_file(self._kept, str(gpu.mode).encode())
        if gpu.mode != self._nvml.exclusive:
            self._nvml.set_mode(self._uuid, self._nvml.exclusive)
            found = self._nvml.read(self._uuid).mode
            if found != self._nvml.exclusive:
                raise GpuError(f"the compute mode of GPU {self._uuid} is {found} after EXCLUSIVE_PROCESS was set: run `nvidia-smi -q`")
        return gpu

    def leave(self) -> None:
        """Put the former mode back. GpuError."""
        former = self._former()
        if former is not None:
            self._nvml.set_mode(self._uuid, former)
            self._kept.unlink(missing_ok=True)

    def _former(self) -> int | None:
        try:
            text = self._kept.read_text()
        except OSError:
            return None
        return int(text) if text in _MODES else None

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The card of a control daemon, by NVML: whether it can have MPS, and its compute mode, which is put back at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gpushare_runtime.core import mps

_SERVER: Final = "nvidia-cuda-mps-server"
_SHOWN: Final = 5
_MODES: Final = ("0", "1", "2", "3")
# What every server opens beside its card.
_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


class CardError(Exception):
    """The card cannot have MPS now; the message says what was found, what is expected and what to do."""


@dataclass(frozen=True)
class CardForMps:
    """capability: compute capability; processes: with a context on it; mode: compute mode, NVML's number; mib: its memory."""

    capability: tuple[int, int]
    mig: bool
    processes: tuple[int, ...]
    mode: int
    mib: int


class Nvml(Protocol):
    """All may block and raise CardError."""

    exclusive: int
    """NVML's number of the mode EXCLUSIVE_PROCESS."""

    def read(self, uuid: str) -> CardForMps: ...

    def set_mode(self, uuid: str, mode: int) -> None: ...


class PynvmlCards:
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
            raise CardError(f"NVML failed for card {uuid} ({error}): run `nvidia-smi` on this host for details") from None

    def read(self, uuid: str) -> CardForMps:
        nvml = self._nvml
        with self._handle(uuid) as handle:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            processes = [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // (1024 * 1024)
            mode = int(nvml.nvmlDeviceGetComputeMode(handle))
            return CardForMps((int(major), int(minor)), self._mig(handle), tuple(processes), mode, memory)

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


def obstacle(uuid: str, card: CardForMps, name_of: Callable[[int], str] = _name_of) -> str:
    """Why the card cannot have a control daemon now; "" if it can."""
    if card.capability < mps.LOWEST_CAPABILITY:
        found, least = ".".join(map(str, card.capability)), ".".join(map(str, mps.LOWEST_CAPABILITY))
        return f"card {uuid} has compute capability {found}, MPS limits need {least} (Volta) or newer: set gpushare_isolation to auto"
    if card.mig:
        return f"card {uuid} has MIG mode on, which excludes MPS here: run `nvidia-smi -mig 0` for it, or set gpushare_isolation to auto"
    # The kernel keeps 15 characters of a name.
    others = [pid for pid in card.processes if name_of(pid) != _SERVER[:15]]
    if others:
        shown = ", ".join(map(str, others[:_SHOWN])) + (" …" if len(others) > _SHOWN else "")
        return (
            f"{len(others)} processes use card {uuid} without MPS (PID {shown}), and would exclude the MPS server from it: end them, or "
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
    """The card's compute mode while the daemon runs. kept: file with the mode of before, for a process that was killed."""

    def __init__(self, nvml: Nvml, uuid: str, kept: Path) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._kept = kept

    def enter(self) -> CardForMps:
        """Set the mode, read it back. CardError if the card cannot have it."""
        card = self._nvml.read(self._uuid)
        if why := obstacle(self._uuid, card):
            raise CardError(why)
        if self._former() is None:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._kept.with_name(f".{self._kept.name}.new")
            temporary.write_text(str(card.mode))
            os.replace(temporary, self._kept)
        if card.mode != self._nvml.exclusive:
            self._nvml.set_mode(self._uuid, self._nvml.exclusive)
            found = self._nvml.read(self._uuid).mode
            if found != self._nvml.exclusive:
                raise CardError(f"the compute mode of card {self._uuid} is {found} after EXCLUSIVE_PROCESS was set: run `nvidia-smi -q`")
        return card

    def leave(self) -> None:
        """Put the former mode back. CardError."""
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

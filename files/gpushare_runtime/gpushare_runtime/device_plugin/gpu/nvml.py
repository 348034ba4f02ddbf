# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVML by way of pynvml, as `cards` wants it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pynvml

from gpushare_runtime.device_plugin.gpu.discovery import CardFacts, NvmlError

log = logging.getLogger(__name__)

_DEVICES: Final = Path("/proc/devices")
_REPLACED: Final = "libnvidia-ml.so.1 was replaced while it was in use, as by a driver upgrade"
_SENTENCES: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver on this host (in a container: run it with the nvidia "
        "runtime and NVIDIA_DRIVER_CAPABILITIES=utility)"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded: run `modprobe nvidia` and look at `dmesg` if that fails"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "libnvidia-ml.so.1 and the loaded kernel driver are of different versions, as after a driver upgrade: "
        "reboot the host, or stop what uses the cards and reload the nvidia modules"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "access to the NVIDIA driver is denied: run as root, with /dev/nvidia* visible",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the card is lost, it no longer answers on the bus: look for Xid in `dmesg`, then reboot the host",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the card wants a reset: stop what uses it and run `nvidia-smi --gpu-reset`",
}


class Pynvml:
    """NVML of this host."""

    def __init__(self) -> None:
        self._loaded: tuple[str, tuple[int, int]] | None = None
        self._devices = _device_numbers()

    def start(self) -> None:
        try:
            _call(pynvml.nvmlInit)
        except NvmlError as error:
            if self._replaced():
                raise NvmlError(f"{error}; {_REPLACED}", reload=True) from None
            if _device_numbers() - self._devices:
                # systemd has let this process have the devices whose numbers were known when it was started, and no others.
                raise NvmlError(f"{error}; the driver was loaded after this process was started", reload=True) from None
            raise
        finally:
            if self._loaded is None:
                self._loaded = _loaded_library()

    def stop(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def count(self) -> int:
        if self._replaced():
            # A process that has it goes on as if nothing were; containers get the new one, which does not fit the driver.
            raise NvmlError(_REPLACED, reload=True)
        return int(_call(pynvml.nvmlDeviceGetCount))

    def _replaced(self) -> bool:
        """Whether the library on disk is another one than this process has loaded, as after a driver upgrade."""
        return self._loaded is not None and _identity(self._loaded[0]) not in (None, self._loaded[1])

    def facts(self, index: int) -> CardFacts:
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
        return CardFacts(
            uuid=_text(_call(pynvml.nvmlDeviceGetUUID, handle)),
            minor=int(_call(pynvml.nvmlDeviceGetMinorNumber, handle)),
            pci=_pci(_call(pynvml.nvmlDeviceGetPciInfo, handle)),
            model=_text(_call(pynvml.nvmlDeviceGetName, handle)),
            mib=int(_call(pynvml.nvmlDeviceGetMemoryInfo, handle).total) // (1024 * 1024),
            numa=_numa(handle),
            failed=_failed(handle),
            unfit=_unfit(handle),
        )

    def xid_events(self) -> PynvmlEvents:
        return PynvmlEvents()


class PynvmlEvents:
    """A subscription with an initialization of its own, so that it does not matter who else stops NVML meanwhile."""

    def __init__(self) -> None:
        self.partial = False
        self._uuids: dict[int | None, str] = {}
        self._set: Any = None
        _call(pynvml.nvmlInit)
        try:
            self._set = _call(pynvml.nvmlEventSetCreate)
            for index in range(int(_call(pynvml.nvmlDeviceGetCount))):
                self._register(index)
        except NvmlError:
            self.close()
            raise

    def _register(self, index: int) -> None:
        try:
            handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _text(_call(pynvml.nvmlDeviceGetUUID, handle))
        except NvmlError:
            self.partial = True
            return
        try:
            _call(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except NvmlError as error:
            log.debug("card %d does not say its XID errors: %s", index, error)
            return
        self._uuids[_address(handle)] = uuid

    def wait(self, seconds: float) -> tuple[str, int] | None:
        if not self._uuids:
            raise NvmlError("no card says its XID errors")
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except pynvml.NVMLError_Timeout:
            return None
        except pynvml.NVMLError as error:
            raise NvmlError(_sentence(error, "nvmlEventSetWait_v2")) from None
        uuid = self._uuids.get(_address(event.device))
        return (uuid, int(event.eventData)) if uuid else None

    def close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            if self._set is not None:
                pynvml.nvmlEventSetFree(self._set)
            pynvml.nvmlShutdown()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _failed(handle: object) -> str:
    if _rows(handle)[1]:
        return "remapping a bad row of its memory has failed: replace the card"
    if _mode(pynvml.nvmlDeviceGetMigMode, handle) == pynvml.NVML_DEVICE_MIG_ENABLE:
        return "MIG mode is on, which divides its memory by itself: run `nvidia-smi -mig 0` for it"
    # Not the exclusive modes: with MPS they are right, and preflight has said what they mean without it.
    if _mode(pynvml.nvmlDeviceGetComputeMode, handle) == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return "its compute mode is Prohibited: run `nvidia-smi -c DEFAULT` for it"
    return ""


def _mode(ask: Callable[..., Any], handle: object) -> int | None:
    """What is set now, None if the card has no such thing."""
    try:
        answer = ask(handle)
    except pynvml.NVMLError:
        return None
    # Of MIG also what will be after the next reset.
    return int(answer[0] if isinstance(answer, (list, tuple)) else answer)


def _unfit(handle: object) -> str:
    if _rows(handle)[0] or _pages_pending(handle):
        return "a bad part of its memory waits to be taken out of use: stop what uses the card and run `nvidia-smi --gpu-reset`"
    return ""


def _rows(handle: object) -> tuple[bool, bool]:
    """Whether row remapping is pending, whether it has failed; cards before Ampere have none."""
    try:
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    except pynvml.NVMLError:
        return False, False
    return bool(pending), bool(failed)


def _pages_pending(handle: object) -> bool:
    """Whether page retirement is pending; cards since Ampere have none."""
    try:
        return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    except pynvml.NVMLError:
        return False


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(_sentence(error, function.__name__)) from None


def _sentence(error: Any, function: str) -> str:
    unknown = f"NVML says {str(error)!r} (code {error.value}) to {function}: run `nvidia-smi` on this host to see more"
    return _SENTENCES.get(error.value, unknown)


def _loaded_library() -> tuple[str, tuple[int, int]] | None:
    """The library that this process has loaded: the loader's name for it, and which file that name leads to."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and "/libnvidia-ml.so" in fields[5]:
                name = os.path.join(os.path.dirname(fields[5]), "libnvidia-ml.so.1")
                identity = _identity(name)
                return (name, identity) if identity else None
    return None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _device_numbers() -> frozenset[str]:
    """The kernel's major numbers of NVIDIA's devices, with their names: none while the driver is not loaded."""
    return frozenset(line for line in _DEVICES.read_text().splitlines() if "nvidia" in line)


def _pci(info: Any) -> str:
    bus_id = _text(info.busId)
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{bus_id.rpartition('.')[2] or '0'}".lower()


def _numa(handle: object) -> int | None:
    """The NUMA node, None if the platform does not say or it is not exactly one."""
    try:
        words = list(pynvml.nvmlDeviceGetMemoryAffinity(handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE))
    except pynvml.NVMLError:
        return None
    nodes = [bit for bit in range(64) if words[0] >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

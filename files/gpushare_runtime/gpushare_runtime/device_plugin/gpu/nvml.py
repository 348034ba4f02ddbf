# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVML through pynvml, with the interface of discovery.py."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pynvml

from gpushare_runtime.core.inventory import INSTANCE_PREFIX
from gpushare_runtime.core.links import MOST_NVLINKS, GpuLink, GpuLinks
from gpushare_runtime.core.load import FULL, Load
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.gpu.discovery import GpuFacts, MemoryLimit, MigInstance, NvmlError, ProcessLoad, Sensors

log = logging.getLogger(__name__)

_DEVICES: Final = Path("/proc/devices")
_DEV: Final = Path("/dev")
_GPU_NODE: Final = re.compile("nvidia[0-9]+|nvidia-cap[0-9]+")
_CAPS: Final = "nvidia-caps"
# NVIDIA, MIG user guide, "/dev based nvidia-capabilities": a line such as "gpu0/gi7/ci0/access 67" for every instance that could be.
_CAPABILITIES: Final = Path("/proc/driver/nvidia-caps/mig-minors")
_MOST_CAPABILITIES: Final = 1024 * 1024
_REPLACED: Final = "libnvidia-ml.so.1 was replaced while it was in use, as by a driver upgrade"
_SENTENCES: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver on this host (in a container: run it with the nvidia "
        "runtime and NVIDIA_DRIVER_CAPABILITIES=utility)"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ("the NVIDIA kernel driver is not loaded: run `modprobe nvidia`, and see `dmesg` if that fails"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "libnvidia-ml.so.1 and the loaded kernel driver are of different versions, as after a driver upgrade: "
        "reboot the host, or stop what uses the GPUs and reload the nvidia modules"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "access to the NVIDIA driver is denied: run as root, with /dev/nvidia* visible",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost, it no longer answers on the bus: read `dmesg` for Xid, then reboot the host",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU requires a reset: stop what uses it and run `nvidia-smi --gpu-reset`",
}
# A container keeps the library that it was created with: only a new one gets another.
_OF_CONTAINER: Final = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
_UNABLE: Final = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
# How NVML says that an instance is not there, or no longer.
_GONE: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_WAYS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "b",
    pynvml.NVML_TOPOLOGY_SINGLE: "p",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "m",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "h",
    pynvml.NVML_TOPOLOGY_NODE: "n",
    pynvml.NVML_TOPOLOGY_SYSTEM: "s",
}
_SWITCH: Final = "NVSwitch"
_FABRIC: Final = {pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "Not Started", pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "In Progress"}
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and its values, which older releases of pynvml do not name.
_RECOVERY_FIELD: Final = 230
# NVML_FI_DEV_PCIE_COUNT_TX_BYTES and …RX_BYTES (from 565 on; nvmlDeviceGetPcieThroughput takes 20 ms for each), and
# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and …RX in KiB, of which this scope is all links together.
_TRAFFIC_FIELDS: Final = (197, 198, (138, 0xFFFFFFFF), (139, 0xFFFFFFFF))
# From the type that NVML names to the member of its union.
_VALUES: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
# The first came with 535; the second is Not Supported on Blackwell (Project-HAMi/HAMi-core#218, 2026-07).
_LOADS: Final = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
_NO_SAMPLES: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
_MOST_PROCESSES: Final = 1024
# The driver's own summary of its XIDs since 565, which XID 154 announces. Those that only concern traffic between GPUs (3 and 5) are not
# here.
_RECOVERIES: Final = {
    1: "the driver requires a reset: stop what uses the GPU and run `nvidia-smi --gpu-reset`",
    2: "the driver requires a reboot of the host",
    4: "the driver requires a reset when the programs on the GPU have ended: run `nvidia-smi --gpu-reset` then",
    6: "the driver requires a reset of the GPU's PCIe bus: reboot the host",
    7: "the driver requires a reboot of the host",
}


class Pynvml:
    """NVML of this host. in_container: whether the library is a container's; library: where the host's own is, which is loaded first.

    host_dev: where the host's /dev is, None where it is this process's own.
    """

    def __init__(
        self, *, in_container: bool = False, library: Callable[[], Path | None] = lambda: None, host_dev: Path | None = None
    ) -> None:
        self._in_container = in_container
        self._library = library
        self._host_dev = host_dev
        self._seen_nodes = _gpu_nodes(host_dev) if host_dev else frozenset()
        self._loaded: tuple[str, tuple[int, int]] | None = None
        self._devices = _device_numbers()
        # All that NVML is asked for once as long as it is initialised: handles by UUID, what stays of a GPU, the calls that a GPU lacks.
        self._handles: dict[str, Any] = {}
        self._fixed: dict[tuple[int, str], _Fixed] = {}
        self._lacking: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._load()
        self._forget()
        try:
            _call(pynvml.nvmlInit)
        except NvmlError as error:
            if self._in_container and error.code in _OF_CONTAINER:
                raise NvmlError(f"{error}; a new container gets the host's library as it is then", reload=True) from None
            if new := self._new_nodes():
                raise NvmlError(f"{error}; {new}", reload=True) from None
            if self._replaced():
                raise NvmlError(f"{error}; {_REPLACED}", reload=True) from None
            if _device_numbers() - self._devices:
                # systemd allows this process only the devices whose numbers existed when it started.
                raise NvmlError(f"{error}; the driver was loaded after this process started", reload=True) from None
            raise
        finally:
            if self._loaded is None:
                self._loaded = _loaded_library()

    def stop(self) -> None:
        self._forget()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _forget(self) -> None:
        self._handles, self._fixed, self._lacking = {}, {}, set()

    def _handle(self, uuid: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = _call(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return handle

    def count(self) -> int:
        if self._replaced():
            # The old library still works in this process; containers get the new one, which does not fit the driver.
            raise NvmlError(_REPLACED, reload=True)
        if new := self._new_nodes():
            raise NvmlError(new, reload=True)
        return int(_call(pynvml.nvmlDeviceGetCount))

    def _replaced(self) -> bool:
        """Whether the library that this process has loaded was replaced, as a driver upgrade does."""
        return self._loaded is not None and _identity(self._loaded[0]) not in (None, self._loaded[1])

    def _new_nodes(self) -> str:
        """Whether the host has got GPUs or MIG instances since this process started.

        A container keeps the device nodes that it was created with, and NVML tells of an instance only where its own are.
        """
        if self._host_dev is None:
            return ""
        # Those that were there before, and that this container lacks nevertheless, a new one would lack as well.
        new = _gpu_nodes(self._host_dev) - self._seen_nodes - _gpu_nodes(_DEV)
        return f"the host has got /dev/{', /dev/'.join(sorted(new)[:4])}, which only a new container can have" if new else ""

    def driver(self) -> str:
        return _text(_call(pynvml.nvmlSystemGetDriverVersion))

    def facts(self, index: int) -> GpuFacts:
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _text(_call(pynvml.nvmlDeviceGetUUID, handle))
        fixed = self._fixed.get((index, uuid))
        if fixed is None:
            fixed = self._fixed[index, uuid] = _Fixed.read(handle)
        rows = _rows(handle)
        return GpuFacts(
            uuid=uuid,
            minor=fixed.minor,
            pci=fixed.pci,
            model=fixed.model,
            mib=_mib(handle),
            numa=fixed.numa,
            failed=_failed(handle, rows),
            unfit=_unfit(handle, rows),
            recovery=_recovery(handle),
            instances=_instances(handle, fixed.minor),
        )

    def links(self, indexes: tuple[int, ...]) -> GpuLinks:
        handles = [_call(pynvml.nvmlDeviceGetHandleByIndex, index) for index in indexes]
        places = [_pci(_call(pynvml.nvmlDeviceGetPciInfo, handle)) for handle in handles]
        ends = [_nvlink_ends(handle) for handle in handles]
        return GpuLinks(
            indexes,
            tuple(
                tuple(
                    GpuLink(_way(handle, handles[other]), _nvlinks(ends[place], places[place], ends[other], places[other]))
                    for other in range(place)
                )
                for place, handle in enumerate(handles)
            ),
        )

    def _load(self) -> None:
        """Load the host's own library, unless this process has one. pynvml then finds it by its name."""
        own = self._library() if _loaded_library() is None else None
        if own is not None:
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(own))

    def xid_events(self) -> PynvmlEvents:
        self._load()
        return PynvmlEvents()

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        handle = self._handle(uuid)
        # Clients of MPS are listed apart.
        lists = (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses, _mps_clients)
        try:
            found = {
                int(process.pid): process.usedGpuMemory for query in lists for process in islice(_call(query, handle), _MOST_PROCESSES)
            }
        except NvmlError:
            # The handle may be what is wrong: a MIG instance may have come again.
            self._handles.pop(uuid, None)
            raise
        return [(pid, None if size is None else int(size)) for pid, size in found.items()]

    def memory_used(self, uuid: str) -> int:
        return int(_call(pynvml.nvmlDeviceGetMemoryInfo, self._handle(uuid)).used)

    def loads(self, uuid: str, since: int) -> list[ProcessLoad]:
        handle, why = self._handle(uuid), None
        for name in _LOADS:
            if (uuid, name) in self._lacking:
                continue
            try:
                samples = _call(getattr(pynvml, name), handle, since)
            except NvmlError as error:
                if error.code in _NO_SAMPLES:
                    return []
                if not error.unable:
                    raise
                self._lacking.add((uuid, name))
                why = error
                continue
            return [load for sample in islice(samples, _MOST_PROCESSES) if (load := _process_load(sample))]
        raise why or NvmlError("the driver does not count by process on this GPU", unable=True)

    def sensors(self, uuid: str) -> Sensors:
        handle = self._handle(uuid)
        if uuid.startswith(INSTANCE_PREFIX):
            handle = _call(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        board = _text(_call(pynvml.nvmlDeviceGetUUID, handle))

        def ask(name: str, *arguments: object) -> Any:
            """None from a GPU that lacks the call; it is asked once."""
            if (board, f"{name}{arguments}") in self._lacking:
                return None
            try:
                return _call(getattr(pynvml, name), handle, *arguments)
            except NvmlError as error:
                if error.code == pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise
                if error.unable or error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                    self._lacking.add((board, f"{name}{arguments}"))
                return None

        rates, encoder, decoder = (ask(f"nvmlDeviceGet{name}") for name in ("UtilizationRates", "EncoderUtilization", "DecoderUtilization"))
        watts, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
        joules = ask("nvmlDeviceGetTotalEnergyConsumption")
        traffic = [None if field is None else _number(field) for field in ask("nvmlDeviceGetFieldValues", _TRAFFIC_FIELDS) or [None] * 4]
        errors = [
            ask("nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC)
            for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        ]
        return Sensors(
            board,
            sm=_percent(rates and rates.gpu),
            memory=_percent(rates and rates.memory),
            encoder=_percent(encoder and encoder[0]),
            decoder=_percent(decoder and decoder[0]),
            celsius=ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            watts=None if watts is None else watts / 1000,
            watts_limit=None if limit is None else limit / 1000,
            joules=None if joules is None else joules / 1000,
            sm_clock=ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock=ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            # The name that drivers of all ages have.
            reasons=ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            corrected=errors[0],
            uncorrected=errors[1],
            pcie_sent=traffic[0],
            pcie_received=traffic[1],
            nvlink_sent=None if traffic[2] is None else traffic[2] * 1024,
            nvlink_received=None if traffic[3] is None else traffic[3] * 1024,
        )

    def memory_limit(self, uuid: str, group: str) -> MemoryLimit:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(group))
        _call(pynvml.nvmlDeviceGetMemoryLimits_v1, self._handle(uuid), limits)
        most = int(limits.hardLimit)
        return MemoryLimit(None if most == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX else most, int(limits.currentUsed))

    def limit_memory(self, uuid: str, group: str, most: int | None) -> None:
        hard = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX if most is None else most
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=os.fsencode(group), softLimit=0, hardLimit=hard)
        _call(pynvml.nvmlDeviceSetMemoryLimits_v1, self._handle(uuid), limits)


@dataclass(frozen=True)
class _Fixed:
    """The part of a GPU's facts that stays as long as NVML is initialised. Its memory is not: some GPUs change their MIG mode."""

    minor: int
    pci: str
    model: str
    numa: int | None

    @classmethod
    def read(cls, handle: object) -> _Fixed:
        return cls(
            minor=int(_call(pynvml.nvmlDeviceGetMinorNumber, handle)),
            pci=_pci(_call(pynvml.nvmlDeviceGetPciInfo, handle)),
            model=_text(_call(pynvml.nvmlDeviceGetName, handle)),
            numa=_numa(handle),
        )


class PynvmlEvents:
    """A subscription with its own initialization, so that it survives a stop of NVML elsewhere."""

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
            log.debug("GPU %d does not support XID events: %s", index, error, extra=about(gpu=index))
            return
        self._uuids[_address(handle)] = uuid

    def wait(self, seconds: float) -> tuple[str, int] | None:
        if not self._uuids:
            raise NvmlError("no GPU supports XID events")
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


def _mps_clients(handle: object) -> list[Any]:
    """None with a driver that does not list them apart."""
    try:
        return list(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        return []


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _mib(handle: object) -> int:
    """The memory of a GPU. One with unified memory has none of its own: GB10 with driver 580.173.02 answers Not Supported, by a report of
    2026-08-07, https://github.com/XuehaiPan/nvitop/pull/208."""
    try:
        return int(_call(pynvml.nvmlDeviceGetMemoryInfo, handle).total) // (1024 * 1024)
    except NvmlError as error:
        if error.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        raise NvmlError("its memory is the host's; gpushare cannot share it (NVML: Not Supported)", unable=True, code=error.code) from None


def _process_load(sample: Any) -> ProcessLoad | None:
    """None for a place that the driver has left as it was: it fills fewer than it has said, and writes what no engine can do
    (Syllo/nvtop#110)."""
    load = Load(float(sample.smUtil), float(sample.memUtil), float(sample.encUtil), float(sample.decUtil))
    return ProcessLoad(int(sample.pid), int(sample.timeStamp), load) if sample.pid and max(load.values()) <= FULL else None


def _percent(value: int | None) -> int | None:
    return int(value) if value is not None and value <= FULL else None


def _number(field: Any) -> int | None:
    """The value of a counter; None where NVML has none."""
    name = _VALUES.get(int(field.valueType)) if field.nvmlReturn == pynvml.NVML_SUCCESS else None
    return None if name is None else max(0, int(getattr(field.value, name)))


def _failed(handle: object, rows: tuple[bool, bool]) -> str:
    """rows: as `_rows` has them."""
    if rows[1]:
        return "remapping a bad row of its memory has failed: replace the GPU"
    fabric = _fabric(handle)
    if fabric:
        return fabric
    # The exclusive modes are right with MPS; preflight reports what they mean without it.
    if _mode(pynvml.nvmlDeviceGetComputeMode, handle) == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return "its compute mode is Prohibited: run `nvidia-smi -c DEFAULT` for it"
    return ""


def _instances(handle: object, minor: int) -> tuple[MigInstance, ...] | None:
    """The MIG instances; None without MIG mode. The places of instances have gaps, and an instance may go at any moment."""
    if _mode(pynvml.nvmlDeviceGetMigMode, handle) != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    minors, found = _capability_minors(), []
    for place in range(int(_call(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))):
        try:
            found.append(_instance(_call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place), minor, minors))
        except NvmlError as error:
            if error.code not in _GONE:
                raise
    return tuple(found)


def _instance(handle: object, minor: int, minors: dict[str, int]) -> MigInstance:
    gpu_instance = int(_call(pynvml.nvmlDeviceGetGpuInstanceId, handle))
    compute_instance = int(_call(pynvml.nvmlDeviceGetComputeInstanceId, handle))
    place = f"gpu{minor}/gi{gpu_instance}"
    caps = [minors.get(f"{place}/access"), minors.get(f"{place}/ci{compute_instance}/access")]
    return MigInstance(
        uuid=_text(_call(pynvml.nvmlDeviceGetUUID, handle)),
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        model=_text(_call(pynvml.nvmlDeviceGetName, handle)),
        mib=int(_call(pynvml.nvmlDeviceGetMemoryInfo, handle).total) // (1024 * 1024),
        caps=tuple(cap for cap in caps if cap is not None) if None not in caps else (),
    )


def _capability_minors() -> dict[str, int]:
    """Numbers of the device nodes below /dev/nvidia-caps, by capability; {} from a driver without MIG."""
    try:
        with _CAPABILITIES.open() as file:
            words = [line.split() for line in file.read(_MOST_CAPABILITIES).splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _fabric(handle: object) -> str:
    """Why CUDA does not start on a GPU behind NVSwitches; "" for one without, and for drivers and GPUs (before Hopper) that do not say."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    try:
        # pynvml does not take the address itself, as it does elsewhere. Without it the driver writes to a wrong one.
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    except pynvml.NVMLError:
        return ""
    # NVML writes one byte of pynvml's four.
    state, status = int(info.state) & 0xFF, int(info.status)
    done = state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and status == pynvml.NVML_SUCCESS
    if done or state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return ""
    seen = _FABRIC.get(state, f"completed with error {status}")
    return f"its NVLink fabric is not ready ({seen}): check nvidia-fabricmanager, which must run in the driver's version"


def _mode(query: Callable[..., Any], handle: object) -> int | None:
    """The current mode; None if the GPU has no such mode."""
    try:
        answer = query(handle)
    except pynvml.NVMLError:
        return None
    # For MIG also the mode after the next reset.
    return int(answer[0] if isinstance(answer, (list, tuple)) else answer)


def _unfit(handle: object, rows: tuple[bool, bool]) -> str:
    if rows[0] or _pages_pending(handle):
        return "a bad part of its memory will be retired at the next reset: stop what uses the GPU and run `nvidia-smi --gpu-reset`"
    return ""


def _recovery(handle: object) -> str:
    """The action that the driver requires before the GPU may be used; "" also from a driver that does not say."""
    try:
        [field] = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_FIELD])
    except pynvml.NVMLError:
        return ""
    return _RECOVERIES.get(int(field.value.uiVal), "") if field.nvmlReturn == pynvml.NVML_SUCCESS else ""


def _rows(handle: object) -> tuple[bool, bool]:
    """Whether row remapping is pending, and whether it failed; GPUs before Ampere have none."""
    try:
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    except pynvml.NVMLError:
        return False, False
    return bool(pending), bool(failed)


def _pages_pending(handle: object) -> bool:
    """Whether page retirement is pending; GPUs since Ampere have none."""
    try:
        return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    except pynvml.NVMLError:
        return False


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
        raise NvmlError(_sentence(error, function.__name__), unable=error.value in _UNABLE, lost=lost, code=error.value) from None


def _sentence(error: Any, function: str) -> str:
    unknown = f"{function} of NVML failed with {str(error)!r} (code {error.value}): run `nvidia-smi` on this host for details"
    return _SENTENCES.get(error.value, unknown)


def _loaded_library() -> tuple[str, tuple[int, int]] | None:
    """The library that this process has loaded: its path, and the identity of the file there."""
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


def _gpu_nodes(dev: Path) -> frozenset[str]:
    """The device nodes of GPUs and MIG instances, by their paths below `dev`."""
    found: set[str] = set()
    for below in ("", _CAPS):
        with contextlib.suppress(OSError):
            found.update(os.path.join(below, name) for name in os.listdir(dev / below) if _GPU_NODE.fullmatch(name))
    return frozenset(found)


def _device_numbers() -> frozenset[str]:
    """Names and major numbers of NVIDIA's devices; none while the driver is not loaded."""
    return frozenset(line for line in _DEVICES.read_text().splitlines() if "nvidia" in line)


def _pci(info: Any) -> str:
    bus_id = _text(info.busId)
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{bus_id.rpartition('.')[2] or '0'}".lower()


def _numa(handle: object) -> int | None:
    """The NUMA node; None if the platform reports none or several."""
    try:
        words = list(pynvml.nvmlDeviceGetMemoryAffinity(handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE))
    except pynvml.NVMLError:
        return None
    nodes = [bit for bit in range(64) if words[0] >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _way(gpu: object, other: object) -> str:
    """The way over PCIe, of core.links.WAYS; "?" where NVML does not say."""
    try:
        return _WAYS.get(int(pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other)), "?")
    except pynvml.NVMLError:
        return "?"


def _nvlink_ends(handle: object) -> Counter[str]:
    """The ends of a GPU's active NVLinks: PCI addresses of GPUs, _SWITCH; of each how many lead there."""
    found: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            if _remote_type(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                found[_SWITCH] += 1
            else:
                found[_pci(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))] += 1
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                break
    return found


def _remote_type(handle: object, link: int) -> int:
    try:
        return int(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
    except pynvml.NVMLError:
        # Drivers before 450 do not say.
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN)


def _nvlinks(ends: Counter[str], place: str, other_ends: Counter[str], other_place: str) -> int:
    """The NVLinks of two GPUs, of which both must know; of those to NVSwitches all lead to each other GPU there."""
    direct = min(ends[other_place], other_ends[place])
    return min(MOST_NVLINKS, direct + min(ends[_SWITCH], other_ends[_SWITCH]))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a process sees of the GPUs through pynvml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from lab.nvml import gpus

MIB = 1024 * 1024
NONE = 0xFFFFFFFF


def test_files_are_named_as_the_driver_names_them(libraries: Path) -> None:
    for library in ("libnvidia-ml", "libcuda"):
        link = libraries / f"{library}.so.1"
        assert link.is_symlink()
        assert link.resolve().name == f"{library}.so.535.261.03"
        dynamic = subprocess.run(["readelf", "-d", link], check=True, text=True, capture_output=True).stdout
        assert f"soname: [{library}.so.1]" in dynamic


def test_every_name_of_pynvml_is_there(machine, gpu) -> None:
    machine.write(gpu(0))
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(names) > 300
    script = "import ctypes, sys; l = ctypes.CDLL('libnvidia-ml.so.1'); print([n for n in sys.argv[1:] if not hasattr(l, n)])"
    unsuffixed = {re.sub(r"_v\d+$", "", name) for name in names}
    assert machine.run(sys.executable, "-c", script, *names, *unsuffixed).stdout == "[]\n"


def test_versions(machine, gpu) -> None:
    machine.write(gpu(0))
    nvml = machine.nvml()
    assert nvml("SystemGetDriverVersion") == "535.261.03"
    assert nvml("SystemGetNVMLVersion") == "12.535.261.03"
    assert nvml("SystemGetCudaDriverVersion") == 12020
    assert nvml("ErrorString", 18) == "Driver/library version mismatch"


def test_a_gpu_is_found_by_index_uuid_serial_and_pci_address(machine, gpu) -> None:
    machine.write(gpu(3), gpu(1))
    nvml = machine.nvml()
    assert nvml("DeviceGetCount") == 2
    handle = nvml("DeviceGetHandleByIndex", 1)
    assert nvml("DeviceGetHandleByUUID", "GPU-00000001-0000-4000-8000-000000000000") == handle
    assert nvml("DeviceGetHandleBySerial", "1320000000001") == handle
    assert nvml("DeviceGetHandleByPciBusId", "0000:11:00.0") == handle
    assert nvml("DeviceGetHandleByPciBusId", "00000000:11:00.0") == handle
    assert nvml("DeviceGetHandleByIndex", 0) != handle
    assert nvml.code("DeviceGetHandleByIndex", 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.code("DeviceGetHandleByUUID", "GPU-00000002-0000-4000-8000-000000000000") == pynvml.NVML_ERROR_NOT_FOUND
    assert nvml.code("DeviceGetHandleByPciBusId", "0000:12:00.0") == pynvml.NVML_ERROR_NOT_FOUND


def test_what_a_gpu_is(machine, gpu) -> None:
    machine.write(gpu(0), gpu(5, name="Tesla T4", compute_capability="7.5", compute_mode=3, memory_mib=16384))
    nvml = machine.nvml()
    handle = nvml("DeviceGetHandleByIndex", 1)
    assert nvml("DeviceGetIndex", handle) == 1
    assert nvml("DeviceGetMinorNumber", handle) == 5
    assert nvml("DeviceGetName", handle) == "Tesla T4"
    assert nvml("DeviceGetUUID", handle) == "GPU-00000005-0000-4000-8000-000000000000"
    assert nvml("DeviceGetSerial", handle) == "1320000000005"
    assert nvml("DeviceGetCudaComputeCapability", handle) == [7, 5]
    assert nvml("DeviceGetArchitecture", handle) == pynvml.NVML_DEVICE_ARCH_TURING
    assert nvml("DeviceGetBrand", handle) == pynvml.NVML_BRAND_TESLA
    assert nvml("DeviceGetComputeMode", handle) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert nvml("DeviceGetPersistenceMode", handle) == 1
    assert nvml.code("DeviceGetMigMode", handle) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml("DeviceGetMigMode", nvml("DeviceGetHandleByIndex", 0)) == [0, 0]


def test_pci_address_in_all_forms(machine, gpu) -> None:
    machine.write(gpu(0, pci="00000001:A1:02.0"))
    nvml = machine.nvml()
    assert nvml("DeviceGetPciInfo_v3", nvml("DeviceGetHandleByIndex", 0)) == {
        "busIdLegacy": "0001:A1:02.0",
        "domain": 1,
        "bus": 0xA1,
        "device": 2,
        "pciDeviceId": 0x223610DE,
        "pciSubSystemId": 0x148210DE,
        "busId": "00000001:A1:02.0",
    }
    # The older forms are shorter: nothing may be written beyond their end.
    script = """
import ctypes
import pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
for name, size in (("nvmlDeviceGetPciInfo", 32), ("nvmlDeviceGetPciInfo_v2", 52)):
    room = (ctypes.c_ubyte * 68)(*[0xEE] * 68)
    assert getattr(n.nvmlLib, name)(handle, room) == 0
    print(bytes(room[:12]).decode(), bytes(room[16:32]).hex(), set(room[size:]) == {0xEE}, 0xEE in room[size - 4:size])
"""
    fields = "01000000a100000002000000de103622"
    answered = machine.run(sys.executable, "-c", script)
    assert answered.stdout.splitlines() == [f"0001:A1:02.0 {fields} True False"] * 2, answered.stderr


def test_memory(machine, gpu) -> None:
    processes = (gpus.Process(7, 1000, "train"), gpus.Process(8, 24, "serve"))
    machine.write(gpu(0, reserved_mib=384, used_mib=100, processes=processes))
    nvml = machine.nvml()
    handle = nvml("DeviceGetHandleByIndex", 0)
    total, reserved, used = 24576 * MIB, 384 * MIB, 1124 * MIB
    assert nvml("DeviceGetMemoryInfo", handle) == {"total": total, "used": used + reserved, "free": total - used - reserved}
    assert nvml("DeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2) == {
        "version": pynvml.nvmlMemory_v2,
        "total": total,
        "reserved": reserved,
        "used": used,
        "free": total - used - reserved,
    }


def test_sixteen_gib_are_exactly_that(machine) -> None:
    machine.write(*gpus.gpus_from_spec("16", "gpu1", "seed"))
    nvml = machine.nvml()
    assert nvml("DeviceGetMemoryInfo", nvml("DeviceGetHandleByIndex", 0))["total"] == 16 * 1024**3


@pytest.mark.parametrize("version", ["_v2", "_v3", ""])
def test_processes(machine, gpu, version: str) -> None:
    machine.write(gpu(0, processes=(gpus.Process(4242, 512, "python train.py"),)), gpu(1))
    nvml = machine.nvml()
    busy, idle = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    assert nvml(f"DeviceGetComputeRunningProcesses{version}", busy) == [
        {"pid": 4242, "usedGpuMemory": 512 * MIB, "gpuInstanceId": NONE, "computeInstanceId": NONE}
    ]
    assert nvml(f"DeviceGetComputeRunningProcesses{version}", idle) == []
    assert nvml(f"DeviceGetGraphicsRunningProcesses{version}", busy) == []
    assert nvml(f"DeviceGetMPSComputeRunningProcesses{version}", busy) == []


def test_processes_in_the_first_form(machine, gpu) -> None:
    machine.write(gpu(0, processes=(gpus.Process(1, 3, "a"), gpus.Process(2, 5, "b"))))
    script = """
import ctypes
import pynvml as n
n.nvmlInit()
handle, count, room = n.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(1), (ctypes.c_ulonglong * 6)()
call = n.nvmlLib.nvmlDeviceGetComputeRunningProcesses
print(call(handle, ctypes.byref(count), room), count.value, list(room))
print(call(handle, ctypes.byref(count), room), count.value, list(room))
"""
    assert machine.run(sys.executable, "-c", script).stdout.splitlines() == [
        f"{pynvml.NVML_ERROR_INSUFFICIENT_SIZE} 2 [0, 0, 0, 0, 0, 0]",
        f"0 2 [1, {3 * MIB}, 2, {5 * MIB}, 0, 0]",
    ]


def test_topology(machine, gpu) -> None:
    machine.write(gpu(0, numa_node=0), gpu(1, numa_node=1), gpu(2, numa_node=1))
    nvml = machine.nvml()
    first, second, third = (nvml("DeviceGetHandleByIndex", index) for index in range(3))
    assert nvml("DeviceGetMemoryAffinity", first, 2, pynvml.NVML_AFFINITY_SCOPE_NODE) == [1, 0]
    assert nvml("DeviceGetMemoryAffinity", third, 2, pynvml.NVML_AFFINITY_SCOPE_NODE) == [2, 0]
    assert nvml("DeviceGetTopologyCommonAncestor", first, second) == pynvml.NVML_TOPOLOGY_SYSTEM
    assert nvml("DeviceGetTopologyCommonAncestor", second, third) == pynvml.NVML_TOPOLOGY_NODE
    assert nvml("DeviceGetTopologyNearestGpus", second, pynvml.NVML_TOPOLOGY_NODE) == [third]
    assert nvml("DeviceGetTopologyNearestGpus", first, pynvml.NVML_TOPOLOGY_SYSTEM) == [second, third]
    # As on any machine whose GPUs' memory is not a NUMA node of its own.
    assert nvml.code("DeviceGetNumaNodeId", first) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_links(machine, gpu) -> None:
    state = gpus.with_links(gpus.State(gpus=tuple(gpu(index) for index in range(8))), "dgx-1")
    machine.write(*state.gpus)
    nvml = machine.nvml()
    handles = [nvml("DeviceGetHandleByIndex", index) for index in range(8)]
    levels = [nvml("DeviceGetTopologyCommonAncestor", handles[0], other) for other in handles[1:5]]
    single, bridge, system = pynvml.NVML_TOPOLOGY_SINGLE, pynvml.NVML_TOPOLOGY_HOSTBRIDGE, pynvml.NVML_TOPOLOGY_SYSTEM
    assert levels == [single, bridge, bridge, system]
    ends = [nvml("DeviceGetNvLinkRemotePciInfo", handles[0], link)["bus"] for link in range(6)]
    assert ends == [0x11, 0x12, 0x13, 0x13, 0x14, 0x14]
    assert {nvml("DeviceGetNvLinkRemoteDeviceType", handles[0], link) for link in range(6)} == {pynvml.NVML_NVLINK_DEVICE_TYPE_GPU}
    assert nvml.code("DeviceGetNvLinkState", handles[0], 6) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    machine.write(gpu(0, nvlinks="switch:2"), gpu(1))
    assert nvml("DeviceGetNvLinkRemoteDeviceType", handles[0], 1) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    assert nvml.code("DeviceGetNvLinkState", handles[1], 0) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_nothing_is_wrong_with_the_memory(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1, name="Tesla T4", compute_capability="7.5"))
    nvml = machine.nvml()
    ampere, turing = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    assert nvml("DeviceGetRemappedRows", ampere) == [0, 0, 0, 0]
    assert nvml.code("DeviceGetRemappedRows", turing) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml("DeviceGetRetiredPagesPendingStatus", turing) == 0
    assert nvml("DeviceGetRetiredPages", turing, pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR) == []
    assert nvml("DeviceGetEccMode", ampere) == [1, 1]
    assert nvml("DeviceGetTotalEccErrors", ampere, 1, 0) == 0


def test_sensors_of_an_idle_and_a_busy_gpu(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1, processes=(gpus.Process(1, 100, "train"),)))
    nvml = machine.nvml()
    idle, busy = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    for call in (("DeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), ("DeviceGetPowerUsage",), ("DeviceGetClockInfo", 0)):
        assert 0 < nvml(call[0], idle, *call[1:]) < nvml(call[0], busy, *call[1:])
    assert nvml("DeviceGetPowerUsage", busy) <= nvml("DeviceGetEnforcedPowerLimit", busy)
    assert nvml("DeviceGetUtilizationRates", idle) == {"gpu": 0, "memory": 0}
    assert nvml("DeviceGetUtilizationRates", busy)["gpu"] > 0


def test_what_is_not_simulated_says_so(machine, gpu) -> None:
    machine.write(gpu(0))
    nvml = machine.nvml()
    handle = nvml("DeviceGetHandleByIndex", 0)
    for call in (("DeviceGetNvLinkState", 0), ("DeviceGetFanSpeed",), ("DeviceSetPersistenceMode", 0), ("DeviceSetMigMode", 1)):
        assert nvml.code(call[0], handle, *call[1:]) == pynvml.NVML_ERROR_NOT_SUPPORTED
    (field,) = nvml("DeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    assert field["nvmlReturn"] == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert field["fieldId"] == pynvml.NVML_FI_DEV_MEMORY_TEMP


def test_the_table_that_nvidia_smi_asks_for(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1, processes=(gpus.Process(4242, 512, "python train.py"),)))
    script = """
import ctypes as c
import uuid
import pynvml as n
n.nvmlInit()
table = c.POINTER(c.c_void_p)()
guid = uuid.UUID("6c3efec4-8fc9-4e6c-a327-ee696e12f7c4").bytes_le
print(n.nvmlLib.nvmlInternalGetExportTable(c.byref(table), b"0" * 16), n.nvmlLib.nvmlInternalGetExportTable(c.byref(table), guid))
entry = lambda number, *arguments: c.CFUNCTYPE(c.c_int, *[c.c_void_p] * len(arguments))(table[number])(*arguments)
device = n.nvmlDeviceGetHandleByIndex(1)
found, number, listed = c.c_void_p(), c.c_uint(0), (c.c_ubyte * (2 * 4128))()
print(table[0], entry(81, 1, c.addressof(found), 0x22), found.value == c.cast(device, c.c_void_p).value)
print(entry(213, device, c.addressof(number), c.addressof(listed)), number.value)
print(entry(213, device, c.addressof(number), c.addressof(listed)), number.value)
print(*(int.from_bytes(listed[a:b], "little") for a, b in ((0, 4), (8, 16), (16, 20), (20, 24), (24, 32))))
print(bytes(listed[32:48]).decode())
print(entry(214, device, c.addressof(number), c.addressof(listed)), number.value)
number.value = 7
print(entry(40, 5, c.addressof(number)), number.value)
print(entry(40, device, c.addressof(number)), number.value)
print(entry(230, device, c.addressof(number)), number.value)
print(all(entry(each, device, 1, c.addressof(number)) == 0 for each in range(1, 256) if each not in (81, 165, 213, 214, 215, 230)))
"""
    ran = machine.run(sys.executable, "-c", script)
    assert ran.stdout.splitlines() == [
        f"{pynvml.NVML_ERROR_NOT_FOUND} 0",
        "4096 0 True",
        f"{pynvml.NVML_ERROR_INSUFFICIENT_SIZE} 1",
        "0 1",
        f"4242 {512 * MIB} {NONE} {NONE} 0",
        "python train.py\0",
        "0 0",
        "0 7",
        "0 0",
        "0 3",
        "True",
    ], ran.stderr


def test_calls_before_init_and_after_shutdown(machine, gpu) -> None:
    machine.write(gpu(0))
    nvml = machine.nvml()
    nvml("Init")
    nvml("Shutdown")
    assert nvml("DeviceGetCount") == 1
    nvml("Shutdown")
    assert nvml.code("DeviceGetCount") == pynvml.NVML_ERROR_UNINITIALIZED
    assert nvml.code("Shutdown") == pynvml.NVML_ERROR_UNINITIALIZED


def test_the_largest_state_fits(machine, gpu) -> None:
    processes = tuple(gpus.Process(pid, 1, "x" * 95) for pid in range(1, gpus.MAX_PROCESSES + 1))
    machine.write(*(gpu(number, processes=processes, name="y" * 95) for number in range(gpus.MAX_GPUS)))
    for number in range(gpus.MAX_XIDS + 3):
        gpus.write_state(machine.state_file, gpus.with_xid(gpus.read_state(machine.state_file), 31, number))
    nvml = machine.nvml()
    assert nvml("DeviceGetCount") == gpus.MAX_GPUS
    last = nvml("DeviceGetHandleByIndex", gpus.MAX_GPUS - 1)
    assert nvml("DeviceGetName", last) == "y" * 95
    assert len(nvml("DeviceGetComputeRunningProcesses", last)) == gpus.MAX_PROCESSES


def test_a_compute_mode_that_was_set_is_the_gpus_own_for_everybody(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    nvml = machine.nvml()
    first, second = (nvml("DeviceGetHandleByIndex", index) for index in (0, 1))
    assert nvml("DeviceGetComputeMode", first) == pynvml.NVML_COMPUTEMODE_DEFAULT
    nvml("DeviceSetComputeMode", first, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert nvml("DeviceGetComputeMode", first) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert nvml("DeviceGetComputeMode", second) == pynvml.NVML_COMPUTEMODE_DEFAULT
    nvml("DeviceSetComputeMode", first, pynvml.NVML_COMPUTEMODE_DEFAULT)
    assert nvml("DeviceGetComputeMode", first) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert nvml.code("DeviceSetComputeMode", first, 7) == pynvml.NVML_ERROR_INVALID_ARGUMENT

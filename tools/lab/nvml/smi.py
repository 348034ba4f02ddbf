# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Checks that NVIDIA's own nvidia-smi shows a set of simulated GPUs: on this machine, in a node or in a container."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence

from lab.nvml.gpus import DRIVER_VERSION, Gpu

FIELDS = "index,uuid,name,memory.total,memory.used,memory.free,pci.bus_id,driver_version,compute_mode,mig.mode.current"


def used_mib(gpu: Gpu) -> int:
    """What nvidia-smi calls used: without what the driver reserves."""
    return gpu.used_mib + sum(process.memory_mib for process in gpu.processes)


def check(run: Callable[..., str], gpus: Sequence[Gpu]) -> None:
    """Raises AssertionError unless nvidia-smi shows exactly `gpus`, in their order.

    `run(*arguments)` runs nvidia-smi with these arguments and returns what it prints.
    """
    if not gpus:
        assert run("-L").strip() == "No devices found."
        return
    expected = [line for index, gpu in enumerate(gpus) for line in _listed(index, gpu)]
    assert run("-L").splitlines() == expected
    assert run(f"--query-gpu={FIELDS}", "--format=csv,noheader").splitlines() == [_row(index, gpu) for index, gpu in enumerate(gpus)]
    _check_xml(ElementTree.fromstring(run("-q", "-x")), gpus)
    _check_table(run(), gpus)


def _listed(index: int, gpu: Gpu) -> list[str]:
    instances = [f"  MIG {one.profile(gpu.memory_mib):<12}Device {place:>2}: (UUID: {one.uuid})" for place, one in enumerate(gpu.instances)]
    return [f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})", *instances]


def _row(index: int, gpu: Gpu) -> str:
    used = used_mib(gpu)
    mode = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}[gpu.compute_mode]
    mig = ("Disabled", "Enabled")[gpu.mig_mode] if float(gpu.compute_capability) >= 8 else "[N/A]"
    return (
        f"{index}, {gpu.uuid}, {gpu.name}, {gpu.memory_mib} MiB, {used} MiB, "
        f"{gpu.memory_mib - gpu.reserved_mib - used} MiB, {gpu.pci}, {DRIVER_VERSION}, {mode}, {mig}"
    )


def _check_xml(log: ElementTree.Element, gpus: Sequence[Gpu]) -> None:
    assert log.findtext("attached_gpus") == str(len(gpus))
    found = log.findall("gpu")
    assert [one.get("id") for one in found] == [gpu.pci for gpu in gpus]
    for one, gpu in zip(found, gpus, strict=True):
        assert one.findtext("uuid") == gpu.uuid
        assert one.findtext("minor_number") == str(gpu.minor)
        assert one.findtext("serial") == gpu.serial
        assert one.findtext("fb_memory_usage/total") == f"{gpu.memory_mib} MiB"
        assert one.findtext("fb_memory_usage/reserved") == f"{gpu.reserved_mib} MiB"
        assert one.findtext("fb_memory_usage/used") == f"{used_mib(gpu)} MiB"
        found_instances = [
            tuple(device.findtext(path) for path in ("index", "gpu_instance_id", "compute_instance_id", "fb_memory_usage/total"))
            for device in one.iterfind("mig_devices/mig_device")
        ]
        assert found_instances == [
            (str(place), str(i.gpu_instance), str(i.compute_instance), f"{i.memory_mib} MiB") for place, i in enumerate(gpu.instances)
        ]
        processes = [
            (info.findtext("pid"), info.findtext("used_memory"), info.findtext("process_name"))
            for info in one.iterfind("processes/process_info")
        ]
        assert processes == [(str(p.pid), f"{p.memory_mib} MiB", p.name) for p in gpu.processes]


def _check_table(table: str, gpus: Sequence[Gpu]) -> None:
    assert f"NVIDIA-SMI {DRIVER_VERSION}" in table
    for gpu in gpus:
        assert gpu.pci in table
        # Of a size with six digits the table shows five and an ellipsis.
        assert re.search(rf"\b{used_mib(gpu)}MiB / +{str(gpu.memory_mib)[:5]}", table), table

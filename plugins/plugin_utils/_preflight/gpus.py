# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state that the administrator expects of a host's driver and GPUs, and what the GPUs report about their own health.

Pure. preflight and verify judge by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...module_utils._facts.nvidia_smi import FABRIC_READY, MINIMUM_DRIVER, SmiGpu, SmiReport
from ...module_utils._formats.finding import ERROR, WARNING, Finding, few
from ...module_utils._formats.versions import numbers
from .._settings.rows import VARIABLE

_RESET_CURE = "stop what uses the GPU (drain the node), then run `nvidia-smi --gpu-reset -i {index}`, or reboot the host"
# The words of gpu_recovery_action with which the GPU cannot be used.
_UNUSABLE = ("reset", "gpu reset", "reboot", "node reboot")


@dataclass(frozen=True)
class Expected:
    """The GPUs that the inventory expects; 0 expects nothing."""

    minimum_driver: str = MINIMUM_DRIVER
    gpus: int = field(default=0, metadata={VARIABLE: "gpushare_expect_gpus"})
    memory_mib: int = field(default=0, metadata={VARIABLE: "gpushare_expect_memory_mib"})


def judge_compute_modes(report: SmiReport) -> Iterator[Finding]:
    """The GPUs whose compute mode keeps containers away; MPS sets one of these for itself."""
    for gpu in report.gpus:
        name, cure = f"GPU {gpu.index} ({gpu.model})", f"nvidia-smi -i {gpu.index} -c DEFAULT"
        if gpu.compute_mode == "Prohibited":
            yield Finding("gpu_compute_mode", f"{name} in compute mode Prohibited", "Default", cure, ERROR)
        elif gpu.compute_mode in ("Exclusive_Process", "Exclusive_Thread"):
            words = f"without MPS only one container at a time can use it: {cure}"
            yield Finding("gpu_compute_mode", f"{name} in compute mode {gpu.compute_mode}", "Default", words, WARNING)


def judge_gpus(report: SmiReport, expected: Expected, lacks_fabric_manager: bool = False) -> Iterator[Finding]:
    """All findings. A report with a problem is not compared with the expectations that the problem explains.

    lacks_fabric_manager: whether the host has NVSwitches, and no fabric manager that runs.
    """
    version, least = numbers(report.driver_version), numbers(expected.minimum_driver)
    if version is not None and least is not None and version < least:
        cure = "install a newer driver, or lower gpushare_minimum_driver"
        if expected.minimum_driver == MINIMUM_DRIVER:
            cure = "install a newer driver: older ones cannot give GPUs to containers"
        yield Finding("driver_too_old", f"driver {report.driver_version}", f"{expected.minimum_driver} or newer", cure)
    count = len(report.gpus)
    if expected.gpus and count != expected.gpus and (report.problem is None or report.gpus):
        cure = "find the missing GPUs with `lspci -d 10de:` and `dmesg`, or correct gpushare_expect_gpus"
        if count > expected.gpus:
            cure = "correct gpushare_expect_gpus"
        seen = f"{count} GPU{'' if count == 1 else 's'}"
        yield Finding("gpu_count_unexpected", seen, f"{expected.gpus} (gpushare_expect_gpus)", cure)
    for gpu in report.gpus:
        name = f"GPU {gpu.index} ({gpu.model})"
        if expected.memory_mib and gpu.memory_mib is not None and gpu.memory_mib < expected.memory_mib:
            wanted = f"{expected.memory_mib} MiB or more (gpushare_expect_memory_mib)"
            cure = "check that it is the intended GPU, and whether ECC takes memory of it; or correct gpushare_expect_memory_mib"
            yield Finding("gpu_memory_unexpected", f"{name} with {gpu.memory_mib} MiB", wanted, cure)
        yield from _health(name, gpu)
    yield from _fabric(report, lacks_fabric_manager)


def _fabric(report: SmiReport, lacks_manager: bool) -> Iterator[Finding]:
    """One finding for all GPUs: they wait for the same fabric."""
    waiting = [gpu for gpu in report.gpus if gpu.fabric not in (None, FABRIC_READY)]
    if not waiting and not (lacks_manager and report.gpus and all(gpu.fabric is None for gpu in report.gpus)):
        return
    cure = (
        "install NVIDIA's fabric manager in exactly the driver's version and start it (systemctl enable --now nvidia-fabricmanager); "
        "journalctl -u nvidia-fabricmanager says why it does not run. Until then CUDA fails with error 802"
    )
    named = few(f"{gpu.index} ({gpu.fabric})" for gpu in waiting)
    seen = f"an NVLink fabric that is not ready: GPU {named}" if waiting else "NVSwitches, and no nv-fabricmanager that runs"
    expected = f"the state {FABRIC_READY} of each GPU" if waiting else "it to run"
    yield Finding("gpu_fabric_not_ready", seen, expected, cure)


def _health(name: str, gpu: SmiGpu) -> Iterator[Finding]:
    repair, reset = gpu.repair, _RESET_CURE.format(index=gpu.index)
    if repair.failed:
        cure = "take the GPU out of use and have it replaced: NVIDIA accepts such GPUs for return"
        yield Finding("gpu_failing", f"{name} with memory that it cannot repair", "a GPU that can repair its memory", cure)
    elif repair.action is not None and repair.action.lower() in _UNUSABLE:
        yield Finding("gpu_failing", f"{name} that requests {repair.action!r}", "a GPU without a pending recovery", reset)
    elif repair.pending or repair.action is not None:
        what = f"requests {repair.action!r}" if repair.action else "has memory to retire or remap at the next reset"
        seen, cure = f"{name} that {what}", f"at a convenient time, {reset}"
        yield Finding("gpu_repair_pending", seen, "a GPU without a pending repair", cure, WARNING)
    for what, now, later in (("ECC", gpu.ecc.mode, gpu.ecc.pending_mode), ("MIG", gpu.mig_mode, gpu.pending_mig_mode)):
        if now and later and now != later:
            cure = f"its memory may change with it: {reset} at a convenient time, or take the change back"
            seen = f"{name} with {what} {now}, {later} after the next reset"
            yield Finding("gpu_mode_pending", seen, "no pending change", cure, WARNING)

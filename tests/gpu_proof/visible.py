# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What programs see of the driver's limit on their pod's control group, before and after their containers' groups have it, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pynvml

from bench.isolation import OUT_OF_MEMORY, SLACK_MIB, without_driver_limits
from gpu_proof import groups, hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.limits import SHARE_MIB
from gpu_proof.workload import programs
from gpushare_runtime.device_plugin.gpu.container_limits import ContainerLimits
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError
from gpushare_runtime.device_plugin.gpu.dmem import enable_dmem, limits_of, region_of
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses

_NAME = "what a program sees of its pod's limit"
_STEP_MIB = 64
_MIB = 2**20


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    driver = pynvml.nvmlSystemGetDriverVersion()
    if why := without_driver_limits(driver.decode() if isinstance(driver, bytes) else str(driver)):
        findings.cannot(_NAME, why)
        return
    try:
        facts = hardware.first(nvml, SHARE_MIB + 2048)
        with groups.pod_groups(1, "systemd", groups.hierarchy(), context.folder / "groups") as (pod,):
            beside = pod.folder.with_name(f"cri-containerd-{'0' * 64}.scope")
            beside.mkdir()
            try:
                for folder in (pod.folder, beside):
                    enable_dmem(str(folder))
                leaf_and_parent(context, findings, nvml, (facts.uuid, facts.pci), [pod.folder, beside])
            finally:
                groups.remove([beside])
    except (NvmlError, OSError, NotPossible) as error:
        findings.cannot(_NAME, error)


def leaf_and_parent(context: Context, findings: Findings, nvml: Nvml, gpu: tuple[str, str], containers: Sequence[Path]) -> None:
    """gpu: UUID and PCI address. containers: the groups of two containers of one pod. NvmlError, OSError."""
    uuid, pci = gpu
    pod = str(containers[0].parent)
    nvml.limit_memory(uuid, pod, SHARE_MIB * _MIB)
    try:
        dmem = limits_of(pod).get(region_of(pci)) == SHARE_MIB * _MIB
        findings.value("back end of the driver's limits", "dmem" if dmem else "the driver's own")
        findings.value(f"MiB in all that a program sees with {SHARE_MIB} MiB on its pod's group alone", _seen(context, uuid, containers[0]))
        ContainerLimits(nvml, HostProcesses.groups_in, lambda _: pci).took(pod, {uuid: SHARE_MIB * _MIB})
        for number, folder in enumerate(containers, 1):
            found = _seen(context, uuid, folder)
            findings.check(f"MiB in all that a program of container {number} sees", found, SHARE_MIB)
        with programs(context.driver, 2, {hardware.VISIBLE: uuid}, containers) as (first, second):
            held = first.ask("hold", SHARE_MIB // 2)
            findings.check(f"a container of the pod allocates {SHARE_MIB // 2} MiB", held["error"], "")
            answer = second.ask("allocate", _STEP_MIB, SHARE_MIB)
        most = SHARE_MIB // 2 + SLACK_MIB
        good = answer["error"] == OUT_OF_MEMORY and answer["allocated_mib"] <= most
        found = f"{answer['allocated_mib']} MiB {answer['error']}".rstrip()
        findings.check("another container of the pod gets the rest and no more", found, f"at most {most} MiB, {OUT_OF_MEMORY}", good)
    finally:
        for place in (*containers, pod):
            nvml.limit_memory(uuid, str(place), None)


def _seen(context: Context, uuid: str, group: Path) -> int | str:
    """MiB in all, or the error."""
    with programs(context.driver, 1, {hardware.VISIBLE: uuid}, [group]) as (one,):
        answer = one.ask("memory")
    return str(answer["error"]) or int(answer["total_mib"])

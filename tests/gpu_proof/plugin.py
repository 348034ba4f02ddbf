# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin on this machine's GPUs: registration, Allocate, the check before a start, health; its memory, CPU time and start."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gpu_proof import hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings
from gpu_proof.node import Node, cpu_seconds, is_assigned, node, path_of, resident_mib
from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError, StartError
from unit.fakes.runtime.device_plugin.local_pods import memory, whole
from unit.fakes.runtime.kube.fake_api import until

_MOST_MIB: Final = 80.0


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    mib = [nvml.facts(index).mib for index in range(nvml.count())]
    nvml.stop()
    asyncio.run(_run(context, findings, mib))


async def _run(context: Context, findings: Findings, mib: list[int]) -> None:
    async with node() as it:
        findings.value("seconds until kubelet has both lists", round(await it.registered(), 2))
        listed = {resource: len(it.kubelet.lists[resource][-1]) for resource in it.kubelet.lists}
        findings.check("ids of memory, in GiB", listed[protocol.RESOURCE_MEMORY], sum(one // 1024 for one in mib))
        findings.check("ids of whole GPUs", listed[protocol.RESOURCE_GPUS], len(mib))
        findings.check("healthy ids of memory", it.healthy(), listed[protocol.RESOURCE_MEMORY])
        inventory = await it.inventory()
        for gpu in inventory.gpus:
            findings.check(f"GPU {gpu.index}: health", gpu.health, "ok")
        pod = await _admit(findings, it, inventory)
        if pod is not None:
            try:
                await it.kubelet.manager.start(pod, pod["spec"]["containers"][0])
                findings.check("PreStartContainer", "passes", "passes")
            except StartError as error:
                findings.check("PreStartContainer", str(error), "passes")
        before = cpu_seconds(it.process.pid)
        await asyncio.sleep(max(2.0, context.seconds))
        used = cpu_seconds(it.process.pid) - before
        findings.value("CPU ms in each second at rest", round(1000 * used / max(2.0, context.seconds), 1))
        resident = round(resident_mib(it.process.pid), 1)
        findings.check("resident MiB", resident, f"at most {_MOST_MIB:g} without NVML", resident <= 2 * _MOST_MIB)
        findings.value("resident MiB", resident)
    findings.check("exit status after SIGTERM", it.process.returncode, 0)


async def _admit(findings: Findings, it: Node, inventory: Inventory) -> dict[str, Any] | None:
    """A pod with a quarter of the first GPU, then one with what is left whole. The first one."""
    gpu = inventory.gpus[0]
    part: dict[str, Any] = memory(inventory, gpu.index, max(1, gpu.units // 4))
    await it.api.put(path_of(part), part)
    try:
        got = (await it.kubelet.manager.admit(part))["main"]
    except AdmissionError as error:
        findings.check("Allocate", str(error), "its GPU")
        return None
    findings.check("Allocate: index of the GPU", got.get(protocol.ENV_INDEX), str(gpu.index))
    findings.check("Allocate: what nvidia's runtime gets", got.get(protocol.ENV_VISIBLE_DEVICES), gpu.uuid)
    findings.check("Allocate: units of the GPU", got.get(protocol.ENV_GPU_UNITS), str(gpu.units))
    try:
        await until(lambda: is_assigned(it.api, part), seconds=15)
        findings.check("the pod is marked as assigned", "true", "true")
    except AssertionError:
        findings.check("the pod is marked as assigned", "not within 15 s", "true")
    taken: dict[str, Any] = whole(inventory, gpu.index)
    await it.api.put(path_of(taken), taken)
    try:
        await it.kubelet.manager.admit(taken)
        said = "it got one"
    except AdmissionError as error:
        said = str(error)
    free = len(inventory.gpus) > 1
    expected = "another GPU" if free else "a rejection, because a quarter is taken"
    findings.check("a whole GPU beside it", said[:200], expected, ("it got one" in said) == free)
    return part

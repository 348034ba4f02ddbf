# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Used memory by pod of two programs in kubelet's control groups, against what they have allocated; overuse, Event, eviction request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu_proof import groups, hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.node import Node, node, path_of
from gpu_proof.workload import Program, programs
from gpushare_runtime.core import protocol
from gpushare_runtime.core.overuse import Evictions
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.kube.fake_api import until

# MiB that each program allocates, and the GiB that its pod has requested: the second one exceeds them.
SIZES: Final = (4096, 8192)
UNITS: Final = (6, 6)
_GRACE: Final = 10
# The plugin has its own every two seconds.
_READINGS: Final = 20


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    facts = hardware.first(nvml, sum(SIZES) + len(SIZES) * context.context_mib)
    with programs(context.client, 2, {hardware.VISIBLE: facts.uuid}) as alone:
        # What one allocates needs no control groups.
        answers = [one.ask("hold", size) for one, size in zip(alone, SIZES, strict=True)]
        if not findings.check("the programs allocate", [one["error"] for one in answers], ["", ""]):
            return
        listed = dict(nvml.processes(facts.uuid))
        missing = [one.pid for one in alone if one.pid not in listed]
        if missing and context.namespace:
            findings.cannot("NVML lists the programs", context.namespace)
        else:
            findings.check("programs that NVML does not list by their numbers", missing, [])
        for one, answer in zip(alone, answers, strict=True):
            size, held = listed.get(one.pid), answer["allocated_mib"]
            if one.pid not in missing and size is None:
                findings.cannot(f"MiB of the program that holds {held}", "found no memory in NVML's list; expected bytes")
            elif size is not None:
                found, most = size // 2**20, held + context.context_mib
                findings.check(f"MiB of the program that holds {held}", found, f"{held} to {most}", held <= found <= most)
    if missing:
        findings.cannot("memory by pod", "found that NVML does not list this machine's process numbers; expected them")
        return
    for driver in groups.DRIVERS:
        try:
            with groups.pod_groups(2, driver, groups.hierarchy(), context.folder / "groups") as pods:
                asyncio.run(_by_pod(context, findings, facts.uuid, driver, pods))
        except NotPossible as error:
            findings.cannot(f"memory by pod with the {driver} driver", error)


async def _by_pod(context: Context, findings: Findings, uuid: str, driver: str, pods: Sequence[groups.PodGroup]) -> None:
    async with node("--isolation=watch", "--overuse=evict", f"--overuse-grace={_GRACE}") as it:
        await it.registered()
        inventory = await it.inventory()
        gpu = inventory.by_uuid[uuid]
        made: list[dict[str, Any]] = []
        for place, pod in enumerate(pods):
            one = memory(inventory, gpu.index, UNITS[place], name=f"proof-{place}", uid=pod.uid)
            await it.api.put(path_of(one), one)
            await it.kubelet.manager.admit(one)
            running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
            await it.api.put(path_of(one), {**it.api.objects[path_of(one)], "status": running})
            made.append(one)
        with contextlib.ExitStack() as stack:
            folders: list[Path] = [pod.folder for pod in pods]
            started = stack.enter_context(programs(context.client, 2, {hardware.VISIBLE: uuid}, folders))
            held = [await asyncio.to_thread(one.ask, "hold", size) for one, size in zip(started, SIZES, strict=True)]
            findings.check(f"{driver}: the programs allocate", [one["error"] for one in held], ["", ""])
            await _judge(context, findings, it, uuid, driver, pods, [one["allocated_mib"] for one in held], started)


async def _judge(
    context: Context,
    findings: Findings,
    it: Node,
    uuid: str,
    driver: str,
    pods: Sequence[groups.PodGroup],
    held: Sequence[int],
    started: Sequence[Program],
) -> None:
    used: dict[str, float] = {}

    for _ in range(_READINGS):
        for pod in pods:
            used[pod.uid] = (await it.metric("pod_memory_used_bytes", uid=pod.uid, uuid=uuid) or 0.0) / 2**20
        if all(used[pod.uid] >= size for pod, size in zip(pods, held, strict=True)):
            break
        await asyncio.sleep(0.5)
    for pod, size in zip(pods, held, strict=True):
        found, most = round(used[pod.uid]), size + context.context_mib
        findings.check(f"{driver}: MiB of the pod that holds {size}", found, f"{size} to {most}", size <= found <= most)
        findings.value(f"{driver}: MiB of the context beside {size}", found - size)
    by_gpu = (await it.metric("gpu_memory_used_bytes", uuid=uuid) or 0.0) / 2**20
    findings.value(f"{driver}: MiB in use on the GPU beyond the pods", round(by_gpu - sum(used.values())))
    # The driver of the groups has no part in what follows.
    if driver != groups.DRIVERS[0]:
        return
    if not await _comes(findings, f"{driver}: Event about the second pod", lambda: len(it.events(protocol.EVENT_EXCEEDED)), 1, 10):
        # Without it there is no request either.
        return
    findings.check(f"{driver}: pods that exceed their units", await it.metric("pods_exceeding"), 1.0)

    def requested() -> list[str]:
        text = it.annotation(protocol.ANNOTATION_EVICTIONS)
        return [one.uid for one in Evictions.from_json(text).requests] if text else []

    await _comes(findings, f"{driver}: eviction is requested of the second pod alone", requested, [pods[1].uid], _GRACE + 10)
    # A program that ends gives its memory back.
    await asyncio.to_thread(started[1].end)
    await _comes(findings, f"{driver}: the request is withdrawn when the program has ended", requested, [], 15)


async def _comes(findings: Findings, name: str, read: Any, expected: object, seconds: float) -> bool:
    with contextlib.suppress(AssertionError):
        await until(lambda: read() == expected, seconds=seconds)
    return findings.check(name, read(), expected)

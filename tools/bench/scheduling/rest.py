# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The CPU time of an extender that nobody asks, and of the API server, in a cluster that changes as clusters do."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from bench.scheduling.control_plane import Process
from bench.scheduling.objects import GPUS, PODS
from gpushare_runtime.core.protocol import ANNOTATION_USE
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.kube.client import KubeClient

#: Seconds between two changes of a node: kubelet's nodeStatusReportFrequency for one of which nothing changes.
HEARTBEAT: Final = 300.0
#: Of a pod, such as of a condition: a guess, for a cluster whose pods live for hours.
POD_CHANGE: Final = 3600.0
#: Of the annotation with the use of its GPUs: the shortest that a device plugin allows itself.
USE: Final = 60.0


@dataclass(frozen=True)
class Rest:
    """changes: per second, as they were made; percent: of a core, over so many seconds, of the extender. plane_percent: the same of
    kube-apiserver and etcd together."""

    what: str
    seconds: float
    changes: float
    percent: float
    plane_percent: float


async def rest(
    client: KubeClient, process: Process, plane: Sequence[Process], nodes: Sequence[str], pods: Sequence[str], seconds: float
) -> list[Rest]:
    """Two times: nodes heartbeat and pods change, then each node also publishes the use of its GPUs. nodes, pods: names."""
    heartbeats = (_heartbeat(client, name) for name in itertools.cycle(nodes))
    changes = (_pod_change(client, name) for name in itertools.cycle(pods))
    usual = [(heartbeats, HEARTBEAT / len(nodes)), (changes, POD_CHANGE / len(pods))]
    reports = (_use(client, name, number) for number, name in enumerate(itertools.cycle(nodes)))
    return [
        await _measured("heartbeats and changes of pods", process, plane, usual, seconds),
        await _measured("and the use of all GPUs", process, plane, [*usual, (reports, USE / len(nodes))], seconds),
    ]


Change = Callable[[], Awaitable[Any]]


async def _measured(
    what: str, process: Process, plane: Sequence[Process], streams: Sequence[tuple[Iterator[Change], float]], seconds: float
) -> Rest:
    made = 0
    end = time.monotonic() + seconds

    async def run(stream: Iterator[Change], pause: float) -> None:
        nonlocal made
        due = time.monotonic()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await next(stream)()
            made += 1
            due += pause

    def used() -> tuple[float, float]:
        return process.cpu_seconds(), sum(one.cpu_seconds() for one in plane)

    started, before = time.monotonic(), used()
    await asyncio.gather(*(run(stream, pause) for stream, pause in streams))
    took = time.monotonic() - started
    own, others = (round(100 * (now - then) / took, 2) for now, then in zip(used(), before, strict=True))
    return Rest(what, round(took, 1), round(made / took, 1), own, others)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _heartbeat(client: KubeClient, name: str) -> Change:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now()}
    return lambda: client.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, kind="strategic")


def _pod_change(client: KubeClient, name: str) -> Change:
    condition = {"type": "Ready", "status": "False", "reason": "Bench", "message": _now()}
    return lambda: client.patch(f"{PODS}/{name}/status", {"status": {"conditions": [condition]}}, kind="strategic")


def _use(client: KubeClient, name: str, number: int) -> Change:
    gpus = {index: GpuUse(1000 + number % 7 * 1000, number % 10 * 10) for index in range(GPUS)}
    pods = {(f"00000000-0000-4000-8000-{number:010x}{index:02x}", index): PodUse(1000, number % 10 * 10) for index in range(GPUS)}
    report = UseReport(int(time.time()), gpus, pods).to_json()
    return lambda: client.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {ANNOTATION_USE: report}}}, kind="merge")

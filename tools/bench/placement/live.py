# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The same cluster and pods on a real API server and kube-scheduler, with our extender over mutual TLS: what part of the GPUs is in use."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.placement.workload import Machine, Pod, total
from bench.scheduling.control_plane import ControlPlane
from bench.scheduling.extender import Extender
from bench.scheduling.objects import PODS, all_of
from gpushare_lab.components import KUBERNETES
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.protocol import ANNOTATION_GPUS, ASK_MODELS, RESOURCE_GPUS, RESOURCE_MEMORY
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import load
from gpushare_runtime.kubectl_gpushare.trace import UNITS, ledger_of

#: As of `gpushare_taint_gpu_nodes`.
TAINT: Final = {"key": "gpushare.kubernetes/gpu", "effect": "PreferNoSchedule"}
_PAUSE: Final = 2.0


async def live(folder: Path, machines: Sequence[Machine], pods: Sequence[Pod], within: float) -> float:
    """Per cent of all GPUs that is in use after all of them were tried once. SystemExit when they were not in so many seconds."""
    plane = ControlPlane(folder, KUBERNETES, with_kwok=False)
    try:
        async with KubeClient(load(str(plane.kubeconfig)), user_agent="bench") as client:
            ledger = ledger_of([(m.name, m.gpus, m.model, m.cpu) for m in machines])
            await all_of(_make_node(client, machine, ledger) for machine in machines)
            await all_of(_make_pod(client, number, pod) for number, pod in enumerate(pods))
            extender = Extender(plane)
            try:
                await extender.ready()
                scheduler = plane.scheduler({"percentageOfNodesToScore": 100, "extenders": [extender.entry]})
                try:
                    bound = await _bound(client, within)
                finally:
                    scheduler.stop()
            finally:
                extender.process.stop()
    finally:
        plane.stop()
    return 100 * sum(pod.asked for number, pod in enumerate(pods) if _name(number) in bound) / total(machines)


async def _bound(client: KubeClient, within: float) -> set[str]:
    deadline = time.monotonic() + within
    while True:
        items = (await client.get(PODS, within=60))["items"]
        if all(one["spec"].get("nodeName") or _is_rejected(one) for one in items):
            return {str(one["metadata"]["name"]) for one in items if one["spec"].get("nodeName")}
        if time.monotonic() > deadline:
            left = sum(not one["spec"].get("nodeName") for one in items)
            sys.exit(f"kube-scheduler has not tried all pods within {within:.0f} s: {left} of {len(items)} are pending")
        await asyncio.sleep(_PAUSE)


def _is_rejected(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)


async def _make_node(client: KubeClient, machine: Machine, ledger: Ledger) -> None:
    resources = {"cpu": f"{machine.cpu}m", "memory": f"{machine.memory}Mi", "pods": "250"}
    metadata: dict[str, Any] = {"name": machine.name, "labels": {"kubernetes.io/hostname": machine.name}}
    known = ledger.node(machine.name)
    if known is not None and known.inventory is not None:
        resources |= {RESOURCE_MEMORY: str(UNITS * machine.gpus), RESOURCE_GPUS: str(machine.gpus)}
        metadata["annotations"] = {ANNOTATION_GPUS: known.inventory.to_json()}
    spec = {"taints": [TAINT]} if machine.gpus else {}
    await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(f"/api/v1/nodes/{machine.name}/status", {"status": status}, kind="merge")


def _name(number: int) -> str:
    # kube-scheduler queues what it lists, and the API server lists by name.
    return f"pod-{number:06d}"


async def _make_pod(client: KubeClient, number: int, pod: Pod) -> None:
    resources: dict[str, Any] = {"requests": {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}}
    request = pod.of.request
    if request is not None:
        whole = request.whole_gpus
        resources["limits"] = {RESOURCE_GPUS: str(whole)} if whole else {RESOURCE_MEMORY: str(request.units)}
    container = {"name": "main", "image": "none", "resources": resources}
    annotations = {ASK_MODELS: ",".join(pod.models)} if pod.models else {}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": _name(number), "annotations": annotations}
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

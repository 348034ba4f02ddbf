# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""HAMi's extender on the control plane of the benchmark, by a program that somebody has built: GPUSHARE_HAMI names it.

Wherever there was a choice, it is the one that costs HAMi less: a client without a limit (its chart leaves client-go's five requests a
second), the log of the program's default and not of its chart, NVIDIA's GPUs as the only devices, no webhook, no leader election. HAMi
locks a node from a pod's Binding until its device plugin has served the pod. Here that is at once, and by one request.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.scheduling.control_plane import ControlPlane, Process, free_port
from bench.scheduling.extender import make_certificates
from bench.scheduling.objects import PODS, UNITS, all_of
from gpushare_lab.process import run
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.kube.client import METADATA, METADATA_LIST, KubeClient

VARIABLE: Final = "GPUSHARE_HAMI"
BOUND: Final = "spec.nodeName!="
_GPUS: Final = "nvidia.com/gpu"
_MEMORY: Final = "nvidia.com/gpumem"
_LOCK: Final = "hami.io/mutex.lock"
_NODE: Final = "hami.io/vgpu-node"
#: Of a GPU, as its chart has it.
_PODS_PER_GPU: Final = 10
_CONFIGURATION: Final = {
    "nvidia": {
        "resourceCountName": _GPUS,
        "resourceMemoryName": _MEMORY,
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
        "memoryFactor": 1,
        "deviceSplitCount": _PODS_PER_GPU,
        "deviceMemoryScaling": 1,
        "deviceCoreScaling": 1,
    }
}
_KNOWN: Final = b"Node device added"
_LOCKED: Final = re.compile(r"Failed to lock node")


def program() -> Path:
    """SystemExit where the variable names none."""
    found = Path(os.environ.get(VARIABLE, ""))
    if not found.is_file():
        sys.exit(f"{VARIABLE} names no program; expected HAMi's scheduler, as its own project describes how to build it")
    return found


def release(program: Path) -> str:
    """Version and revision, as the program says them."""
    done = run([program, "version"])
    said = dict(line.split(":", 1) for line in (done.stdout + done.stderr).splitlines() if ":" in line)
    return " ".join(said[name].strip() for name in ("version", "revision"))


def pending(number: int) -> dict[str, Any]:
    """A pod that asks HAMi for what `objects.pending` asks of us."""
    limits = {_GPUS: "1", _MEMORY: str((1 + number % 8) * 1024)}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}


async def register(client: KubeClient, inventories: Mapping[str, Inventory]) -> None:
    """What HAMi's device plugin writes to each node about the same GPUs."""

    async def one(name: str, inventory: Inventory) -> None:
        gpus = [
            {
                "id": gpu.uuid,
                "index": gpu.index,
                "count": _PODS_PER_GPU,
                "devmem": UNITS * 1024,
                "devcore": 100,
                "type": f"NVIDIA-{gpu.model}",
                "mode": "hami-core",
                "health": True,
            }
            for gpu in inventory.gpus
        ]
        # As if HAMi had asked already whether its device plugin lives, so that it does not ask each node when it starts.
        handshake = f"Requesting_{time.strftime('%Y-%m-%d %H:%M:%S')}"
        known = {"hami.io/node-nvidia-register": json.dumps(gpus), "hami.io/node-handshake": handshake}
        await client.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": known}}, kind="merge")
        offered = {_GPUS: str(len(gpus) * _PODS_PER_GPU)}
        status = {"status": {"capacity": offered, "allocatable": offered}}
        await client.patch(f"/api/v1/nodes/{name}/status", status, kind="merge")

    await all_of(one(name, inventory) for name, inventory in inventories.items())


class Hami:
    """The process, and its entry in the scheduler's configuration, as its chart makes it."""

    def __init__(self, plane: ControlPlane, client: KubeClient, nodes: int) -> None:
        port, pki = free_port(), plane.folder / "pki"
        self._client, self._nodes = client, nodes
        make_certificates(pki)
        configuration = plane.folder / "hami.json"
        configuration.write_text(json.dumps(_CONFIGURATION))
        (plane.folder / "hami.log").unlink(missing_ok=True)
        where = [f"--http_bind=127.0.0.1:{port}", f"--metrics-bind-address=127.0.0.1:{free_port()}"]
        how = [f"--cert_file={pki / 'extender.crt'}", f"--key_file={pki / 'extender.key'}", f"--device-config-file={configuration}"]
        limits = ["--kube-qps=5000", "--kube-burst=10000"]
        self._started = time.monotonic()
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        self.process = Process("hami", [program(), *where, *how, *limits], plane.folder, environment)
        self._unlocking: asyncio.Task[None] | None = None
        managed = (_GPUS, _MEMORY, "nvidia.com/gpucores", "nvidia.com/gpumem-percentage", "nvidia.com/priority")
        self.entry: dict[str, Any] = {
            "urlPrefix": f"https://127.0.0.1:{port}",
            "enableHTTPS": True,
            "tlsConfig": {"insecure": True},
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": [{"name": name, "ignoredByScheduler": True} for name in managed],
        }

    async def ready(self, within: float = 300.0) -> float:
        """As of `Extender`: it knows all nodes."""
        while self.process.log.read_bytes().count(_KNOWN) < self._nodes:
            seconds = time.monotonic() - self._started
            if self.process.ended() or seconds > within:
                sys.exit(self.process.ended() or f"HAMi did not know its {self._nodes} nodes after {within:.0f} s")
            await asyncio.sleep(0.5)
        return time.monotonic() - self._started

    async def binds(self) -> float:
        """As of `Extender`. From here on each bound pod counts as served, and its node is unlocked."""
        listed = await self._client.get(PODS, limit=1)
        self._unlocking = asyncio.create_task(self._unlock(listed["metadata"]["resourceVersion"]))
        return time.monotonic() - self._started

    async def stop(self) -> None:
        """End it, and leave no lock."""
        self.process.stop()
        if self._unlocking:
            self._unlocking.cancel()
            await asyncio.gather(self._unlocking, return_exceptions=True)
        nodes = await self._client.get("/api/v1/nodes", accept=METADATA_LIST, within=60)
        locked = [node["metadata"]["name"] for node in nodes["items"] if _LOCK in node["metadata"].get("annotations", {})]
        await all_of(self._free(name) for name in locked)

    def locked(self) -> int:
        """The binds that it has refused because another pod had locked the node."""
        return len(_LOCKED.findall(self.process.log.read_text(errors="replace")))

    async def _unlock(self, since: str) -> None:
        seen: set[str] = set()
        works: set[asyncio.Task[None]] = set()
        while True:
            async for kind, pod in self._client.watch(PODS, since, accept=METADATA, timeout_seconds=900, fieldSelector=BOUND):
                found = pod["metadata"]
                since = found["resourceVersion"]
                if kind not in ("BOOKMARK", "DELETED") and found["name"] not in seen:
                    seen.add(found["name"])
                    work = asyncio.create_task(self._free(found["annotations"][_NODE]))
                    works.add(work)
                    work.add_done_callback(works.discard)

    async def _free(self, name: str) -> None:
        await self._client.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {_LOCK: None}}}, kind="merge")

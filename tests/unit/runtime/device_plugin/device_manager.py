# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's device manager as its source has it (1.36, pkg/kubelet/cm/devicemanager), without gRPC and NUMA.

What is kept: inactive pods are forgotten in memory before a container is served, in the file only with the next write;
ids of an ordinary init container are reused without a question; exactly the preferred ids are taken and what lacks is
filled up at random; the checkpoint is written before the next container's turn; admission ends at the first refusal.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")

Prefer = Callable[[str, list[str], list[str], int], Awaitable[list[str]]]
Allocate = Callable[[str, list[str]], Awaitable[dict[str, str]]]


class AdmissionError(Exception):
    """UnexpectedAdmissionError: the pod's phase becomes Failed with this text."""


class DeviceManager:
    """given[pod UID][container][resource] are ids; active: UIDs of the pods that kubelet still counts."""

    def __init__(self, checkpoint: Path | None, prefer: Prefer, allocate: Allocate, seed: int = 0) -> None:
        self.checkpoint = checkpoint
        self.healthy: dict[str, set[str]] = {}
        self.given: dict[str, dict[str, dict[str, set[str]]]] = {}
        self.active: set[str] = set()
        self.failing: set[str] = set()
        self._prefer = prefer
        self._allocate = allocate
        self._random = random.Random(seed)

    async def admit(self, pod: dict[str, Any]) -> dict[str, dict[str, str]]:
        """Container → its environment from the plugin. AdmissionError leaves what earlier containers got to the next purge."""
        uid = pod["metadata"]["uid"]
        self.active.add(uid)
        reusable: dict[str, set[str]] = {resource: set() for resource in RESOURCES}
        environments: dict[str, dict[str, str]] = {}
        spec = pod["spec"]
        try:
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                environments[container["name"]] = await self._container(uid, container, reusable)
                got = self.given.get(uid, {}).get(container["name"], {})
                ordinary_init = container in spec.get("initContainers", []) and container.get("restartPolicy") != "Always"
                for resource, ids in got.items():
                    reusable[resource] = reusable[resource] | ids if ordinary_init else reusable[resource] - ids
        except AdmissionError:
            self.active.discard(uid)
            raise
        return environments

    async def _container(self, uid: str, container: dict[str, Any], reusable: dict[str, set[str]]) -> dict[str, str]:
        environment: dict[str, str] = {}
        limits = container.get("resources", {}).get("limits", {})
        wanted = [(resource, int(limits[resource])) for resource in RESOURCES if resource in limits]
        self._random.shuffle(wanted)
        for resource, size in wanted:
            self.given = {pod: of for pod, of in self.given.items() if pod in self.active}
            ids = await self._choose(resource, size, reusable[resource])
            if uid in self.failing:
                raise AdmissionError("another plugin refused")
            environment |= await self._allocate(resource, self._shuffled(ids))
            self.given.setdefault(uid, {}).setdefault(container["name"], {})[resource] = ids
        if wanted:
            self.write()
        return environment

    async def _choose(self, resource: str, size: int, reusable: set[str]) -> set[str]:
        if not self.healthy.get(resource):
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        chosen = set(self._shuffled(reusable)[:size])
        if len(chosen) == size:
            return chosen
        taken = {i for of in self.given.values() for c in of.values() for i in c.get(resource, ())}
        available = self.healthy[resource] - taken - chosen
        if len(available) < size - len(chosen):
            raise AdmissionError(f"requested number of devices unavailable for {resource}")
        preferred = await self._prefer(resource, self._shuffled(available | chosen), self._shuffled(chosen), size)
        for ids in (self._shuffled(set(preferred) & available), self._shuffled(available)):
            for device_id in ids:
                if len(chosen) < size:
                    chosen.add(device_id)
        return chosen

    def _shuffled(self, ids: set[str]) -> list[str]:
        return self._random.sample(sorted(ids), len(ids))

    # The file.

    def entries(self) -> list[dict[str, Any]]:
        return [
            {"PodUID": pod, "ContainerName": name, "ResourceName": resource, "DeviceIDs": {"-1": sorted(ids)}, "AllocResp": "CgA="}
            for pod, containers in self.given.items()
            for name, resources in containers.items()
            for resource, ids in resources.items()
        ]

    def write(self) -> None:
        if self.checkpoint is None:
            return
        registered = {resource: sorted(ids) for resource, ids in self.healthy.items()}
        text = json.dumps({"Data": {"PodDeviceEntries": self.entries(), "RegisteredDevices": registered}, "Checksum": 1})
        temporary = self.checkpoint.with_name(".tmp")
        temporary.write_text(text)
        os.replace(temporary, self.checkpoint)

    def read(self) -> None:
        """As at kubelet's start: what was given is known again, no id is healthy before the plugin says so."""
        self.healthy = {}
        if self.checkpoint is not None and self.checkpoint.exists():
            for entry in json.loads(self.checkpoint.read_text())["Data"]["PodDeviceEntries"]:
                of = self.given.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})
                of[entry["ResourceName"]] = {i for ids in entry["DeviceIDs"].values() for i in ids}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's device manager as its source has it (1.36.3, pkg/kubelet/cm/devicemanager/manager.go), without gRPC and NUMA.

What is kept, because plugins stand or fall by it: pods that no longer count are forgotten in memory once per container that
asks, and in the file only with the next write; ids of an ordinary init container are reused at random and without
GetPreferredAllocation by every later container; exactly the preferred ids are taken and what lacks is filled up at random;
resources of one container come in random order; the checkpoint is written after each container, and not when it fails; at a
restart nothing is healthy before the plugin says so, and containers that run are passed by as long as not all pods are known.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb

RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")

Prefer = Callable[[str, list[str], list[str], int], Awaitable[list[str]]]
Allocate = Callable[[str, list[str]], Awaitable[dict[str, str]]]
PreStart = Callable[[str, list[str]], Awaitable[None]]
Ids = dict[str, set[str]]


class AdmissionError(Exception):
    """UnexpectedAdmissionError: the pod's phase becomes Failed with this text."""


class StartError(Exception):
    """The container is not started; kubelet tries again later."""


class Panic(Exception):
    """kubelet ends. What was allocated is in its checkpoint."""


class DeviceManager:
    """given[pod UID][container][resource] are ids; active: UIDs of the pods that kubelet still counts.

    healthy: resource → ids, an empty set for one that is known but has none; sources_ready: all pods are known since the
    start; running: (pod UID, container) that ran when kubelet started; failing: pods that another plugin rejects.
    """

    def __init__(self, checkpoint: Path | None, prefer: Prefer, allocate: Allocate, seed: int = 0) -> None:
        self.checkpoint = checkpoint
        self.healthy: Ids = {}
        self.given: dict[str, dict[str, Ids]] = {}
        self.environments: dict[tuple[str, str, str], dict[str, str]] = {}
        self.allocated: Ids = {}
        self.active: set[str] = set()
        self.failing: set[str] = set()
        self.sources_ready = True
        self.running: set[tuple[str, str]] = set()
        self.pre_start: PreStart | None = None
        self.pre_start_required: Callable[[str], bool] = lambda _: True
        self.asked: list[str] = []
        self._prefer = prefer
        self._allocate = allocate
        self._reuse: dict[str, Ids] = {}
        self._random = random.Random(seed)

    # Admission.

    async def admit(self, pod: dict[str, Any]) -> dict[str, dict[str, str]]:
        """Container → its environment from the plugin. AdmissionError leaves what earlier containers got to the next purge."""
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        self.active.add(uid)
        try:
            return {c["name"]: await self.allocate(pod, c) for c in [*spec.get("initContainers", []), *spec["containers"]]}
        except AdmissionError:
            self.active.discard(uid)
            raise

    async def allocate(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        """One container; what earlier init containers of the same pod have is reused first."""
        uid, name = pod["metadata"]["uid"], container["name"]
        self._reuse = {uid: self._reuse.get(uid, {})}
        environment = await self._container(uid, container, self._reuse[uid])
        got = self.given.get(uid, {}).get(name, {})
        if got and uid not in self._reuse:
            # The source writes to the entry that the other pod's call has removed: "assignment to entry in nil map".
            raise Panic(f"another pod's Allocate began before that of {uid} ended")
        reuse = self._reuse.get(uid, {})
        init = any(name == other["name"] for other in pod["spec"].get("initContainers", []))
        for resource, ids in got.items():
            if init and container.get("restartPolicy") != "Always":
                reuse[resource] = reuse.get(resource, set()) | ids
            else:
                reuse[resource] = reuse.get(resource, set()) - ids
        return environment

    async def _container(self, uid: str, container: dict[str, Any], reuse: Ids) -> dict[str, str]:
        environment: dict[str, str] = {}
        limits = container.get("resources", {}).get("limits", {})
        wanted = [(resource, int(limits[resource])) for resource in limits if resource in self.healthy or resource in self.allocated]
        self._random.shuffle(wanted)
        purged = written = False
        for resource, size in wanted:
            if not purged:
                self.purge()
                purged = True
            ids = await self._choose(uid, container["name"], resource, size, reuse.get(resource, set()))
            if not ids:
                continue
            written = True
            try:
                if uid in self.failing:
                    raise AdmissionError("another plugin rejected")
                self.asked.append("Allocate")
                answer = await self._allocate(resource, self._shuffled(ids))
            except AdmissionError:
                self.allocated = self._of_pods()
                raise
            environment |= answer
            self.given.setdefault(uid, {}).setdefault(container["name"], {})[resource] = ids
            self.environments[uid, container["name"], resource] = answer
        if written:
            self.write()
        return environment

    def purge(self) -> None:
        """Forget the pods that no longer count."""
        gone = self.given.keys() - self.active
        if self.sources_ready and gone:
            self.given = {pod: of for pod, of in self.given.items() if pod not in gone}
            self.allocated = self._of_pods()

    def _of_pods(self) -> Ids:
        devices: Ids = {}
        for of in self.given.values():
            for container in of.values():
                for resource, ids in container.items():
                    devices.setdefault(resource, set()).update(ids)
        return devices

    async def _choose(self, uid: str, name: str, resource: str, size: int, reusable: set[str]) -> set[str]:
        """The ids for a container that has none yet; none if it has them or is passed by."""
        needed, has = size, self.given.get(uid, {}).get(name, {}).get(resource)
        if has is not None:
            needed -= len(has)
            if needed:
                raise AdmissionError(f"pod {uid} container {name} changed request for resource {resource} from {len(has)} to {size}")
        if not self.sources_ready and (uid, name) in self.running:
            return set()
        if resource not in self.healthy:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        if not self.healthy[resource]:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if has is not None and not has <= self.healthy[resource]:
            raise AdmissionError(f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}")
        if not needed:
            return set()
        taken = self.allocated.setdefault(resource, set())
        chosen: set[str] = set()

        def take(ids: set[str]) -> bool:
            for device_id in self._shuffled(ids - chosen)[: size - len(chosen)]:
                taken.add(device_id)
                chosen.add(device_id)
            return len(chosen) == size

        if take(reusable):
            return chosen
        available = self.healthy[resource] - taken
        lacking = size - len(chosen)
        if len(available) < lacking:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {lacking}, Available: {len(available)}"
            )
        self.asked.append("GetPreferredAllocation")
        preferred = await self._prefer(resource, self._shuffled(available | chosen), self._shuffled(chosen), size)
        assert take(set(preferred) & available) or take(available)
        return chosen

    def _shuffled(self, ids: set[str]) -> list[str]:
        return self._random.sample(sorted(ids), len(ids))

    # Start of a container.

    async def start(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        """What kubelet tells the runtime; for a container without record it asks for ids again. StartError if it may not start."""
        uid, name = pod["metadata"]["uid"], container["name"]
        limits = container.get("resources", {}).get("limits", {})
        again = False
        for resource in (r for r in limits if r in self.healthy or r in self.allocated):
            ids = self.given.get(uid, {}).get(name, {}).get(resource)
            if self.pre_start is not None and self.pre_start_required(resource):
                if ids is None:
                    raise StartError(f"no devices found allocated in local cache for pod {uid}, container {name}, resource {resource}")
                await self.pre_start(resource, self._shuffled(ids))
            again = again or (ids is None and uid in self.active)
        if again:
            await self.allocate(pod, container)
        environment: dict[str, str] = {}
        for resource in self.given.get(uid, {}).get(name, {}):
            environment |= self.environments.get((uid, name, resource), {})
        return environment

    # The file.

    def entries(self) -> list[dict[str, Any]]:
        return [
            {
                "PodUID": pod,
                "ContainerName": name,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(ids)},
                "AllocResp": _response(self.environments.get((pod, name, resource), {})),
            }
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
        self.healthy, self.given, self.allocated, self._reuse = {}, {}, {}, {}
        if self.checkpoint is not None and self.checkpoint.exists():
            # As the real one: what cannot be read is passed over.
            with contextlib.suppress(json.JSONDecodeError):
                data = json.loads(self.checkpoint.read_text())["Data"]
                self.restore(data["PodDeviceEntries"], data["RegisteredDevices"])

    def restore(self, entries: list[dict[str, Any]], resources: Any) -> None:
        """What a file with these entries says."""
        self.healthy = {resource: set() for resource in resources}
        self.given = {}
        for entry in entries:
            of = self.given.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})
            of[entry["ResourceName"]] = {i for ids in entry["DeviceIDs"].values() for i in ids}
            response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            self.environments[entry["PodUID"], entry["ContainerName"], entry["ResourceName"]] = dict(response.envs)
        self.allocated = self._of_pods()


def _response(environment: dict[str, str]) -> str:
    return base64.b64encode(pb.ContainerAllocateResponse(envs=environment).SerializeToString()).decode()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole device plugin between a fake kubelet, a fake API server and fake GPUs, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB as UNIT
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from gpushare_runtime.device_plugin.main import DevicePlugin
from gpushare_runtime.device_plugin.options import PluginSettings
from unit.fakes.runtime.device_plugin.fake_kubelet import FakeKubelet
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving, until

NODE = "/api/v1/nodes/gpu1"
MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
GIB = 1024  # in MiB
RESOURCES = {MEMORY, GPUS}


class FakeHost:
    """A folder for each pod's control group, below one for all. pods: UIDs of those that have one; processes: PID → start, pod's UID;
    containers: PID → ID of its container."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods: set[str] = set()
        self.processes: dict[int, tuple[int, str]] = {}
        self.containers: dict[int, str] = {}

    def identify(self, pid: int) -> tuple[int, str] | None:
        return self.processes.get(pid)

    def is_still(self, pid: int, known: tuple[int, str]) -> bool:
        return self.identify(pid) == known

    def container_of(self, pid: int) -> str:
        return self.containers.get(pid, "")

    def processes_of(self, uid: str, most: int) -> list[tuple[int, int]]:
        return [(pid, start) for pid, (start, pod) in self.processes.items() if pod == uid][:most]

    def groups_of(self, uid: str) -> list[str]:
        return [f"{self.root}/kubepods/pod{uid}"] if uid in self.pods else []

    def group_of_pods(self) -> str | None:
        return f"{self.root}/kubepods"

    def groups_in(self, group: str) -> list[str]:
        return HostProcesses.groups_in(group)


@dataclass
class World:
    """Everything around one plugin. task: its run."""

    nvml: FakeNvml
    api: FakeApi
    kubelet: FakeKubelet
    plugin: DevicePlugin
    task: asyncio.Task[Any]
    processes: FakeProcesses
    host: FakeHost

    @property
    def live(self) -> set[str]:
        """UIDs of the pods that have a process."""
        return self.processes.live

    @property
    def inventory(self) -> Inventory:
        assert self.plugin.node.devices.inventory is not None
        return self.plugin.node.devices.inventory

    async def registered(self) -> None:
        """Both resources are registered and kubelet has their ids."""
        await until(lambda: {resource for resource, _ in self.kubelet.registrations} == RESOURCES and set(self.kubelet.lists) == RESOURCES)

    async def stays(self, condition: Callable[[], object]) -> None:
        """A condition holds while the plugin hears of further pods, each of which makes all of its parts decide again."""
        for _ in range(5):
            passer_by = await self.bind(memory(None, 0, 1, phase="Succeeded"))
            await until(lambda uid=passer_by["metadata"]["uid"]: self.plugin.node.pods.get(uid))
            assert condition()

    async def bind(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The scheduler bound the pod to this node: the API server has it."""
        await self.api.put(path_of(pod), pod)
        return pod

    def annotations(self, pod: dict[str, Any]) -> dict[str, str]:
        """As the API server has them now."""
        found: dict[str, str] = self.api.objects[path_of(pod)]["metadata"]["annotations"]
        return found

    def patches(self, pod: dict[str, Any]) -> int:
        """How often the pod was patched."""
        return sum(method == "PATCH" and path == f"{path_of(pod)}/status" for method, path, _ in self.api.requests)

    async def stop(self) -> None:
        if self.task.cancel():
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    def start(self, **settings: Any) -> None:
        """The next process of the plugin. settings: those that differ from the last one's."""
        known = replace(self.plugin._settings, **settings)
        self.kubelet.registrations.clear()
        self.kubelet.lists.clear()
        client, options = self.plugin._client, {"processes": self.processes, "host": self.host}
        self.plugin = DevicePlugin(known, self.nvml, client, gpu_interval=0.05, check_scale=0.01, **options)  # type: ignore[arg-type]
        self.task = asyncio.ensure_future(self.plugin.run())

    @asynccontextmanager
    async def kubelet_starts_anew(self) -> AsyncIterator[Path]:
        """What happens in the body, to kubelet's record of which it gets the path, happens between two of its processes."""
        await self.kubelet.stop()
        yield self.kubelet.directory / "kubelet_internal_checkpoint"
        self.kubelet.registrations.clear()
        self.kubelet.lists.clear()
        await self.kubelet.start()
        await self.registered()


def path_of(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"


@asynccontextmanager
async def world(
    *mib: int, unit: Unit = UNIT, kubelet: bool = True, node: bool = True, registered: bool = True, by_socket: bool = True, **settings: Any
) -> AsyncIterator[World]:
    """A plugin with GPUs of these sizes; unless told otherwise kubelet runs and knows it, and its node exists.

    by_socket: as of FakeKubelet. settings: further ones of the plugin; with `isolation` the driver has memory limits.
    """
    # pytest's own temporary directories make paths that are too long for a unix socket.
    with tempfile.TemporaryDirectory(prefix="gpushare-") as name:
        root = Path(name)
        async with serving(FakeApi()) as api, connected(api, root) as client:
            if node:
                await api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
            fake_kubelet = FakeKubelet(root, by_socket=by_socket)
            if kubelet:
                await fake_kubelet.start()
            nvml, host = FakeNvml(*mib), FakeHost(root)
            if "isolation" in settings:
                nvml.unlimited = None
            processes = FakeProcesses()
            folders = {"kubelet_root": root / "data", "device_plugins_dir": fake_kubelet.directory, "state": root / "state"}
            known = PluginSettings("gpu1", unit, **folders, **settings)
            plugin = DevicePlugin(known, nvml, client, gpu_interval=0.05, check_scale=0.01, processes=processes, host=host)
            made = World(nvml, api, fake_kubelet, plugin, asyncio.ensure_future(plugin.run()), processes, host)
            try:
                if kubelet and registered:
                    await made.registered()
                yield made
            finally:
                await made.stop()
                await fake_kubelet.stop()


def healthy(it: World, resource: str = MEMORY) -> int:
    """How many ids kubelet has as healthy."""
    return sum(health == "Healthy" for health in it.kubelet.lists[resource][-1].values())


def health(it: World, index: int) -> str:
    """Of a GPU, as the node's annotation has it; "" without the annotation."""
    gpus = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus")
    return str(json.loads(gpus)["gpus"][index]["health"]) if gpus else ""


async def admitted(it: World, pod: dict[str, Any]) -> str:
    """kubelet has admitted the pod and made its control group, and started nothing; its UID."""
    await it.bind(pod)
    uid: str = pod["metadata"]["uid"]
    await until(lambda: it.plugin.node.pods.get(uid))
    await it.kubelet.manager.admit(pod)
    it.host.pods.add(uid)
    return uid


async def start(it: World, pod: dict[str, Any], index: int = 0) -> None:
    await it.kubelet.manager.start(pod, pod["spec"]["containers"][index])


async def reported(it: World, pod: dict[str, Any]) -> None:
    """The API server has heard from kubelet that the pod's containers run."""
    names = [of["name"] for of in pod["spec"]["containers"]]
    states = [{"name": name, "state": {"running": {}}, "containerID": f"containerd://{name}"} for name in names]
    known = it.api.objects[path_of(pod)]
    await it.api.put(path_of(pod), {**known, "status": {"phase": "Running", "containerStatuses": states}})
    await until(lambda: any(it.plugin.node.pods.get(pod["metadata"]["uid"]).container_ids.values()))  # type: ignore[union-attr]


def metric(it: World, name: str) -> list[str]:
    return [line for line in "".join(it.plugin.metrics_text()).splitlines() if line.startswith(f"gpushare_device_plugin_{name}")]


async def uses(it: World, uid: str, mib: int, pid: int = 7) -> None:
    it.host.processes[pid] = pid, uid
    of = it.nvml.using.setdefault(it.inventory.by_index[0].uuid, [])
    of[:] = [one for one in of if one[0] != pid] + [(pid, mib * 1024 * 1024)]


async def running_pod(it: World, **changes: object) -> dict[str, object]:
    """A pod with 6 units of GPU 1 that runs."""
    pod = await it.bind(memory(it.inventory, 1, 6, **changes))
    await until(lambda: it.plugin.node.pods.get(pod["metadata"]["uid"]))
    await it.kubelet.manager.admit(pod)
    pod = await it.bind({**pod, "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}})
    it.live.add(pod["metadata"]["uid"])
    await until(lambda: it.plugin.node.pods.get(pod["metadata"]["uid"]).phase == "Running")  # type: ignore[union-attr]
    return pod

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How fast the device plugin answers kubelet, and how much memory it takes: `python -m bench.device_plugin [--json FILE]`.

The plugin's own process, with GPUs from the fake NVML, between a fake API server and kubelet's device manager on real unix
sockets; times are kubelet's, encoding and decoding included. The empty call says how much of them is the machine's own, and
the CPU time of the plugin's process what its work costs wherever it runs. It goes to the API server with tokens, as installed.
Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.processes import cpu_seconds, resident_mib
from gpushare_runtime.core.quantity import parse_unit
from gpushare_runtime.device_plugin.gpu.discovery import GpuReader
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from unit.fakes.runtime.device_plugin.fake_kubelet import FakeKubelet
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import path_of
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, until
from unit.fakes.runtime.kube.tokens import jwt

TARGETS: Final = {
    "Allocate p99 ms": 5.0,
    "GetPreferredAllocation p99 ms": 20.0,
    "resident MiB": 80.0,
    "registered ms": 50.0,
    "list sent ms": 50.0,
}
_RESTARTS: Final = 5
_NODE: Final = "/api/v1/nodes/gpu1"
# Pods that are bound before the one that is admitted: what is measured is the answer, not the API server's watch.
_AHEAD: Final = 3
_ENDED: Final = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}
_MEMORY: Final = "aliyun.com/gpu-mem"
_RESOURCES: Final = (_MEMORY, "aliyun.com/gpu-count")
_TOKEN_SECONDS: Final = 604800
# Calls in a row of one kind, to tell their CPU time: the kernel counts it in hundredths of a second.
_IN_A_ROW: Final = 200
# The plugin as its unit starts it, but for where its GPUs come from; pynvml is loaded as it would be.
_COMMAND: Final = """
import sys
import pynvml
from gpushare_runtime.device_plugin.main import main
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
code = main(sys.argv[2:], FakeNvml(*map(int, sys.argv[1].split(","))))
sys.exit("the package kubernetes is loaded, of which the installed plugin has no use" if "kubernetes" in sys.modules else code)
"""


class TimedKubelet(FakeKubelet):
    """Keeps how long each answer took, in seconds."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.seconds: dict[str, list[float]] = {"GetPreferredAllocation": [], "Allocate": [], "empty call": []}

    async def empty_call(self) -> None:
        """What the machine itself makes of a call."""
        started = time.perf_counter()
        await self._stub(_MEMORY).GetDevicePluginOptions(pb.Empty())
        self.seconds["empty call"].append(time.perf_counter() - started)

    async def come_back(self) -> tuple[float, float]:
        """Restart; seconds from the socket's appearance to both registrations, and to both lists."""
        await self.restart()
        await until(lambda: set(self.lists) == set(_RESOURCES), seconds=30)
        listed = time.monotonic() - self._started
        return max(seconds for _, seconds in self.registrations), listed

    async def prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        started = time.perf_counter()
        try:
            return await super().prefer(resource, available, must, size)
        finally:
            self.seconds["GetPreferredAllocation"].append(time.perf_counter() - started)

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        started = time.perf_counter()
        try:
            return await super()._allocate(resource, ids)
        finally:
            self.seconds["Allocate"].append(time.perf_counter() - started)


async def measure(mib: list[int], unit: str, pods: int) -> dict[str, Any]:
    """pods: how many are admitted once the node is full and one has to go for the next."""
    inventory = GpuReader(FakeNvml(*mib), parse_unit(unit), GpuHealth()).read()
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="gpushare-") as name:
        root = Path(name)
        async with serving(FakeApi()) as api:
            await api.put(_NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
            (root / "kubeconfig").write_text(kubeconfig(api.url))
            now = time.time()
            for name in ("seed", "token"):
                (root / name).write_text(jwt(now, now + _TOKEN_SECONDS, account="gpushare-device-plugin-gpu1"))
            kubelet = TimedKubelet(root)
            await kubelet.start()
            arguments = ["--node-name=gpu1", f"--kubeconfig={root}/kubeconfig", f"--memory-unit={unit}", f"--kubelet-root={root}"]
            arguments += [f"--device-plugins-dir={kubelet.directory}", f"--seed-token-file={root}/seed", f"--token-file={root}/token"]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _COMMAND, ",".join(map(str, mib)), *arguments, f"--state-dir={root}/state"),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            try:
                await until(lambda: _MEMORY in kubelet.lists and api.watching >= 2, seconds=30)
                free = {gpu.index: gpu.units for gpu in inventory.gpus}
                running: deque[tuple[dict[str, Any], int, int]] = deque()
                bound: deque[tuple[dict[str, Any], int, int]] = deque()
                warm, cpu = 0, 0.0
                while len(kubelet.seconds["Allocate"]) < pods + warm:
                    size = choose.choice((16, 64, 128, 160))
                    gpu = max(free, key=lambda index: free[index])
                    if free[gpu] < size or sum(free.values()) < inventory.units // 10:
                        if not warm:
                            warm, cpu = len(running), cpu_seconds(process.pid)
                        old, freed, of = running.popleft()
                        kubelet.manager.active.discard(old["metadata"]["uid"])
                        free[of] += freed
                        await api.put(path_of(old), old | {"status": _ENDED})
                        continue
                    made = memory(inventory, gpu, size)
                    await api.put(path_of(made), made)
                    free[gpu] -= size
                    bound.append((made, size, gpu))
                    if len(bound) <= _AHEAD:
                        continue
                    made, size, gpu = bound.popleft()
                    got = await kubelet.manager.admit(made)
                    assert got["main"]["ALIYUN_COM_GPU_MEM_IDX"] == str(gpu), (got, gpu)
                    running.append((made, size, gpu))
                    # The PATCH for each pod is part of the load, not of the time.
                    await until(partial(_assigned, api, made))
                    await kubelet.empty_call()
                resident = resident_mib(process.pid)
                cpu = cpu_seconds(process.pid) - cpu
                # A second pod of the same size: while the first has its ids the plugin would wait for one to give more to.
                _, size, gpu = bound[0]
                other = memory(inventory, gpu, size)
                await api.put(path_of(other), other)
                each = await _cpu_of_calls(kubelet, process.pid, size)
                back = [await kubelet.come_back() for _ in range(_RESTARTS)]
            finally:
                process.terminate()
                ended = await process.wait()
                await kubelet.stop()
            if ended:
                raise SystemExit(f"the plugin ended with {ended}, not with 0")
    result: dict[str, Any] = {
        "gpus": len(mib),
        "MiB per GPU": mib[0],
        "unit": unit,
        "ids": inventory.units,
        "pods": pods,
        "filled by": warm,
    }
    for method, seconds in kubelet.seconds.items():
        timed = sorted(s * 1000 for s in seconds[warm:])
        for percent in (50, 90, 99):
            result[f"{method} p{percent} ms"] = round(timed[min(len(timed) - 1, len(timed) * percent // 100)], 2)
    for method in ("GetPreferredAllocation", "Allocate"):
        result[f"{method} p99 of empty call's"] = round(result[f"{method} p99 ms"] / result["empty call p99 ms"], 2)
    result |= {f"{method} CPU ms": round(seconds * 1000, 2) for method, seconds in each.items()}
    result |= {"CPU ms per pod": round(cpu * 1000 / pods, 2), "resident MiB": round(resident, 1)}
    return result | {
        "registered ms": round(max(registered for registered, _ in back) * 1000, 1),
        "list sent ms": round(max(listed for _, listed in back) * 1000, 1),
    }


async def _cpu_of_calls(kubelet: TimedKubelet, pid: int, size: int) -> dict[str, float]:
    """Seconds of the plugin's CPU for one call of each kind. size: of the pod whose turn it is."""
    manager = kubelet.manager
    taken = {i for containers in manager.given.values() for given in containers.values() for i in given.get(_MEMORY, ())}
    free = sorted(manager.healthy[_MEMORY] - taken)

    async def prefer() -> list[str]:
        return await FakeKubelet.prefer(kubelet, _MEMORY, free, [], size)

    async def both() -> None:
        await FakeKubelet._allocate(kubelet, _MEMORY, await prefer())

    async def empty() -> None:
        await kubelet._stub(_MEMORY).GetDevicePluginOptions(pb.Empty())

    took: list[float] = []
    for call in (empty, prefer, both):
        before = cpu_seconds(pid)
        for _ in range(_IN_A_ROW):
            await call()
        took.append((cpu_seconds(pid) - before) / _IN_A_ROW)
    return {"empty call": took[0], "GetPreferredAllocation": took[1], "Allocate": took[2] - took[1]}


def _assigned(api: FakeApi, pod: dict[str, Any]) -> bool:
    annotations: dict[str, str] = api.objects[path_of(pod)]["metadata"]["annotations"]
    return annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default=",".join(["81920"] * 8), help="MiB of each (default 8 of 80 GiB)")
    parser.add_argument("--unit", default="64MiB")
    parser.add_argument("--pods", type=int, default=400)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    result = asyncio.run(measure([int(mib) for mib in given.gpus.split(",")], given.unit, given.pods))
    missed = [f"{name}: {result[name]}, the target is {limit}" for name, limit in TARGETS.items() if result[name] > limit]
    result |= {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": load,
        "missed": missed,
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the device plugin costs at rest: `python -m bench.device_plugin.rest [--before CHECKOUT] [--profile FILE] [--json FILE]`.

The plugin's own process with pynvml on the simulated libnvidia-ml.so of tools/lab/nvml, which `make` and gcc build, between a fake API
server and kubelet's device manager on real unix sockets. Each GPU has processes that really run. --before: the runtime of another checkout
at the same time, so that both have the same machine. CPU time is the kernel's, in nanoseconds, of all threads. What calls of a real driver
cost is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.processes import resident_mib
from gpushare_runtime.core import protocol
from lab.nvml import gpus
from tree import REPOSITORY
from unit.fakes.runtime.device_plugin.fake_kubelet import FakeKubelet
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, until
from unit.fakes.runtime.kube.tokens import jwt

TARGET: Final = 3.0
"""Milliseconds of CPU each second, with 8 GPUs."""
_NODE: Final = "/api/v1/nodes/gpu1"
_SETTLE_SECONDS: Final = 15.0
_RUNTIME: Final = "files/gpushare_runtime"
# Stand-ins for what this machine lacks: kubelet's group for pods, and all processes in a container of one. And for what only the simulated
# library does: it looks for XID errors many times a second, where the driver waits for an interrupt.
_STAND_INS: Final = """
import os, sys, time
from gpushare_runtime.device_plugin.gpu import nvml
from gpushare_runtime.device_plugin.host import pod_processes
mount = os.environ["GPUSHARE_LAB_NVML_CGROUPS"]
class OnePod(pod_processes._Hierarchy):
    def folder(self, lines):
        return mount + "/kubepods/burstable/pod00000000-0000-4000-8000-000000000000/" + "ab" * 32
pod_processes.HostProcesses._hierarchies = lambda self: iter([OnePod("", mount, "/")])
nvml.PynvmlEvents.wait = lambda self, seconds: time.sleep(seconds)
"""
# Calls that may block are made in the profiled thread. The one that waits for XID errors is left out.
_PROFILED: Final = """
import cProfile, sys, time
from gpushare_runtime.daemon import sync
from gpushare_runtime.device_plugin.main import main
in_worker = sync._Worker.do
def do(self, call):
    if any("Xid" in repr(cell.cell_contents) for cell in call.__closure__):
        return in_worker(self, call)
    call()
    sync._idle.append(self)
sync._Worker.do = do
profile = cProfile.Profile(time.thread_time)
code = profile.runcall(main, sys.argv[2:])
profile.dump_stats(sys.argv[1])
sys.exit(code)
"""
_PLAIN: Final = "from gpushare_runtime.device_plugin.main import main; sys.exit(main(sys.argv[2:]))"


def machine(root: Path, count: int, pids: list[int]) -> dict[str, str]:
    """The simulated GPUs, each with these processes; the environment that shows them."""
    made = [
        gpus.Gpu(
            uuid=f"GPU-{index:08x}-0000-4000-8000-000000000000",
            minor=index,
            name="NVIDIA A100-SXM4-80GB",
            pci=f"00000000:{0x10 + index:02X}:00.0",
            pci_device_id=0x20B210DE,
            pci_subsystem_id=0x147F10DE,
            memory_mib=81920,
            compute_capability="8.0",
            serial=f"132000000{index:04d}",
            processes=tuple(gpus.Process(pid, 1000, "python") for pid in pids),
        )
        for index in range(count)
    ]
    (root / "state").mkdir(parents=True)
    gpus.write_state(root / "state/gpus.state", gpus.State(gpus=tuple(made)))
    for folder in ("dev", "cgroup", "limits", "modes"):
        (root / folder).mkdir()
    for index in range(count):
        (root / f"dev/nvidia{index}").touch()
    (root / "cgroup/kubepods/burstable/pod00000000-0000-4000-8000-000000000000").mkdir(parents=True)
    names = {"STATE": "state/gpus.state", "DEV": "dev", "LIMITS": "limits", "CGROUPS": "cgroup", "MODES": "modes"}
    return {f"GPUSHARE_LAB_NVML_{name}": str(root / place) for name, place in names.items()}


@asynccontextmanager
async def plugin(runtime: Path, library: Path, count: int, pids: list[int], profile: str = "") -> AsyncIterator[int]:
    """Its PID, once kubelet has its ids."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as name:
        root = Path(name)
        async with serving(FakeApi()) as api:
            await api.put(_NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
            (root / "kubeconfig").write_text(kubeconfig(api.url))
            for file in ("seed", "token"):
                (root / file).write_text(jwt(time.time(), time.time() + 604800, account="gpushare-device-plugin-gpu1"))
            kubelet = FakeKubelet(root)
            await kubelet.start()
            environment = (
                os.environ
                | machine(root / "gpus", count, pids)
                | {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(runtime), "PYTHONDONTWRITEBYTECODE": "1"}
            )
            options = ["--node-name=gpu1", f"--kubeconfig={root}/kubeconfig", "--memory-unit=64MiB", f"--kubelet-root={root}"]
            options += [f"--device-plugins-dir={kubelet.directory}", f"--seed-token-file={root}/seed", f"--token-file={root}/token"]
            code = [sys.executable, "-c", _STAND_INS + (_PROFILED if profile else _PLAIN), profile]
            process = await asyncio.create_subprocess_exec(*code, *options, f"--state-dir={root}/state", env=environment)
            try:
                await until(lambda: protocol.RESOURCE_MEMORY in kubelet.lists and api.watching >= 2, seconds=60)
                yield process.pid
            finally:
                process.terminate()
                await process.wait()
                await kubelet.stop()


def _cpu_seconds(pid: int) -> float:
    """Of all its threads."""
    found = (Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0] for thread in os.listdir(f"/proc/{pid}/task"))
    return sum(map(int, found)) / 1e9


def sleepers(count: int) -> list[subprocess.Popen[bytes]]:
    """Processes that do nothing."""
    return [subprocess.Popen(["sleep", "infinity"]) for _ in range(count)]


async def measure(
    runtimes: dict[str, Path], library: Path, count: int, processes: int, seconds: float, profile: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of CPU each second, and MiB resident after them, by name of the runtime."""
    sleeping = sleepers(processes)
    pids = [process.pid for process in sleeping]
    try:
        async with contextlib.AsyncExitStack() as stack:
            running = {}
            for name, runtime in runtimes.items():
                running[name] = await stack.enter_async_context(plugin(runtime, library, count, pids, profile))
            await asyncio.sleep(_SETTLE_SECONDS)
            before = {name: (time.monotonic(), _cpu_seconds(pid)) for name, pid in running.items()}
            await asyncio.sleep(seconds)
            found = {}
            for name, pid in running.items():
                began, used = before[name]
                found[name] = round(1000 * (_cpu_seconds(pid) - used) / (time.monotonic() - began), 2)
            return found, {name: round(resident_mib(pid), 1) for name, pid in running.items()}
    finally:
        for process in sleeping:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another one, which runs at the same time")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2, help="of each GPU")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--profile", default="", metavar="FILE", help="write a profile there, in pstats' form")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    given = parser.parse_args()
    runtimes = {"now": REPOSITORY / _RUNTIME, **({"before": given.before / _RUNTIME} if given.before else {})}
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="gpushare-nvml-") as library:
        subprocess.run(["make", "-s", "-C", str(REPOSITORY / "tools/lab/nvml"), f"OUT={library}"], check=True)
        found, resident = asyncio.run(measure(runtimes, Path(library), given.gpus, given.processes, given.seconds, given.profile))
    result = {
        "gpus": given.gpus,
        "processes of each GPU": given.processes,
        "CPU ms each second": found,
        "resident MiB": resident,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": load,
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if found["now"] > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())

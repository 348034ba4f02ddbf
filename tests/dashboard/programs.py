# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard as people start it, an API server for it, and a small cluster: three nodes, twelve GPUs, forty pods."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dashboard.browser import Loop
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import ANNOTATION_USE
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from unit.fakes.runtime.kube.fake_api import FakeApi
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import gpu

Json = dict[str, Any]

ADDRESS: Final = re.compile(r"(http://127\.0\.0\.1:(\d+)/)#token=(\S+)")
NODES: Final = ("gpu1", "gpu2", "gpu3")
PODS_OF_A_NODE: Final = 12
WAITING: Final = 4
START_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Running:
    """One dashboard. url: with its token; origin: without."""

    url: str
    origin: str
    port: int
    token: str
    pid: int


class Cluster:
    """The API server that the dashboard reads."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.api = FakeApi()
        self._runner = loop.run(self._start())

    async def _start(self) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self.api.handle), shutdown_timeout=0.1)  # type: ignore[arg-type]
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def close(self) -> None:
        self._loop.run(self._runner.cleanup())

    @staticmethod
    def _path(value: Json) -> str:
        metadata = value["metadata"]
        if "namespace" in metadata:
            return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        return f"/api/v1/nodes/{metadata['name']}"

    def put(self, *values: Json) -> None:
        """Nodes and pods, as they are now."""
        for value in values:
            self._loop.run(self.api.put(self._path(value), value))

    def remove(self, value: Json) -> None:
        self._loop.run(self.api.remove(self._path(value)))

    def cut(self) -> None:
        self._loop.run(self.api.cut())


@contextmanager
def kubectl_dashboard(*argv: str, env: Sequence[tuple[str, str]] = ()) -> Iterator[Running]:
    """`kubectl gpushare dashboard --no-browser` with further arguments."""
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", "dashboard", "--no-browser", *argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **dict(env)})
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        found = ADDRESS.match(line)
        assert found, f"found {line!r} instead of an address; {process.stderr.read() if process.poll() is not None else ''}"
        yield Running(found[0], found[1], int(found[2]), found[3], process.pid)
        assert process.poll() is None, process.stderr.read()
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}healthz", timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def service(kubeconfig: Path, port: int, token: Path) -> Iterator[str]:
    """`gpushare-dashboard` on loopback, when it has read the cluster; its address."""
    command = [sys.executable, "-m", "gpushare_runtime.dashboard.main", "--kubeconfig", str(kubeconfig)]
    command += ["--listen", f"127.0.0.1:{port}", "--viewer-token-file", str(token)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url, until = f"http://127.0.0.1:{port}/", time.monotonic() + START_SECONDS
    try:
        while not _healthy(url):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until, f"{url} is not healthy"
            time.sleep(0.05)
        yield url
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
        if process.stderr:
            process.stderr.close()


def bound_pod(name: str, on: str, index: int, units: int, namespace: str) -> Json:
    """A pod with so many GiB of one GPU."""
    said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(index): units}})}
    return pod(name, on, annotations=said, mem=units, namespace=namespace)


def waiting_pod(name: str, units: int, namespace: str, message: str = "0/3 nodes are available") -> Json:
    """A pod that kube-scheduler could not place."""
    made = pod(name, None, mem=units, namespace=namespace, phase="Pending")
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    return made


def small_cluster() -> tuple[list[Json], list[Json]]:
    """Nodes and pods. gpu1 has a bad GPU, gpu2 a cordoned one, gpu3 is mixed and has an orphaned pod."""
    healthy = [gpu(index, 16, uuid=f"GPU-1-{index}") for index in range(4)]
    first = [replace(one, health="XID 79") if one.index == 3 else one for one in healthy]
    second = [gpu(index, 16, uuid=f"GPU-2-{index}", cordoned=index == 2) for index in range(4)]
    third = [gpu(index, 40 if index else 24, uuid=f"GPU-3-{index}", model="A100" if index else "Tesla T4") for index in range(4)]
    nodes = [
        node(name, f"10.0.0.{at}", gpus=Inventory(GIB, tuple(gpus)))
        for at, (name, gpus) in enumerate(zip(NODES, (first, second, third), strict=True), 1)
    ]
    held = {"GPU-3-3": {"uid": "uid-gone", "pod": "team-a/gone", "units": 5, "why": "orphaned"}}
    nodes[2]["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": held})
    teams = ("team-a", "team-b", "team-c")
    pods = [
        bound_pod(f"{name}-{number}", name, number % 3, 1 + number % 4, teams[number % 3])
        for name in NODES
        for number in range(PODS_OF_A_NODE)
    ]
    pods += [waiting_pod(f"big-{number}", 60 + number, "team-w") for number in range(WAITING - 1)]
    return nodes, [*pods, waiting_pod("next", 13, "team-w", "0/3 nodes are available: 3 no GPU has 13 GiB free")]


#: Of the pods of six_nodes.py by the word of their names: the part of their memory that they use, percent of the SMs.
LOADS: Final = {
    "llama-8b": (0.9, 22), "embed": (0.6, 6), "notebook": (0.05, 0), "jupyter": (0.05, 0), "train": (0.95, 55), "score": (0.5, 12),
    "detect": (0.7, 18), "ocr": (0.4, 3), "bench": (0.97, 100),
}  # fmt: skip
IDLE_HOURS: Final = 27


def publish_use(nodes: Sequence[Json], pods: Sequence[Json], silent: Sequence[tuple[str, int]] = ()) -> None:
    """Give nodes of six_nodes.py what their device plugins would publish. silent: (node, GPU) of those that do not answer."""
    now = int(time.time())
    for raw in nodes:
        name, annotations = raw["metadata"]["name"], raw["metadata"]["annotations"]
        gpus = {gpu.index: (0, 0) for gpu in Inventory.from_json(annotations["gpushare/gpus"]).gpus}
        used: dict[tuple[str, int], PodUse] = {}
        for its in pods:
            if its["spec"]["nodeName"] != name:
                continue
            ((index, units),) = json.loads(its["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"])["0"].items()
            part, sm = LOADS[its["metadata"]["name"].rpartition("-")[0]]
            mib, (before, busy) = int(units * 1024 * part), gpus[int(index)]
            gpus[int(index)] = before + mib, min(100, busy + sm)
            used[its["metadata"]["uid"], int(index)] = PodUse(mib, sm, None if sm else now - IDLE_HOURS * 3600, mib, 3600)
        answer = {index: GpuUse(*use) for index, use in gpus.items() if (name, index) not in silent}
        report = UseReport(now, answer, {key: use for key, use in used.items() if key[1] in answer})
        annotations[ANNOTATION_USE] = report.to_json()

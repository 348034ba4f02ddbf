# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How many pods a second kube-scheduler binds, without and with the extender, in one run: `python -m bench.scheduling`.

Real etcd, kube-apiserver and kube-scheduler; nodes of eight cards that only kwok answers for; the extender over mutual
TLS as it is installed. The pods are created first, then the scheduler is started. Rounds without and with the extender
take turns, because the machine may be shared: only their ratio is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from bench.scheduling.lean import ControlPlane, Process, free_port, settle
from gpushare_lab.components import KUBERNETES
from gpushare_lab.process import run
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.kube.client import METADATA, METADATA_LIST, KubeClient, KubeError
from gpushare_runtime.kube.credentials import load
from gpushare_runtime.protocol import ANNOTATION_CARDS, EXTENDER_PREFIX, RESOURCE_CARDS, RESOURCE_MEMORY
from gpushare_runtime.quantity import GIB

CARDS: Final = 8
UNITS: Final = 16
PODS: Final = "/api/v1/namespaces/default/pods"
BOUND: Final = "spec.nodeName!="
TARGET: Final = {500: 0.75, 5000: 0.8}
_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Round:
    """One round. rate: pods bound a second, from the first to the last; cpu_ms_per_pod: by process; resident in MiB, at its end."""

    extender: bool
    pods: int
    seconds: float
    rate: float
    cpu_ms_per_pod: dict[str, float]
    extender_resident_mib: float | None
    bind_failures: int | None


class Bench:
    """A control plane with its nodes. percentage: percentageOfNodesToScore."""

    def __init__(self, plane: ControlPlane, client: KubeClient, pods: int, percentage: int) -> None:
        self._plane = plane
        self._client = client
        self._pods = pods
        self._percentage = percentage

    async def make_nodes(self, count: int) -> None:
        """Nodes of eight cards, as the device plugin and kubelet would have published them."""
        resources = {"cpu": "64", "memory": "512Gi", "pods": "250", RESOURCE_MEMORY: str(CARDS * UNITS), RESOURCE_CARDS: str(CARDS)}
        status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}

        async def make(number: int) -> None:
            cards = tuple(
                Card(i, f"GPU-{number:08x}-0000-0000-0000-{i:012x}", i, f"0000:{i:02x}:00.0", "Tesla T4", UNITS * 1024, UNITS)
                for i in range(CARDS)
            )
            name = f"node-{number:05d}"
            annotations = {ANNOTATION_CARDS: Inventory(GIB, cards).to_json(), "kwok.x-k8s.io/node": "fake"}
            labels = {"kubernetes.io/hostname": name, "gpushare": "true"}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": annotations}}
            await self._client.create("/api/v1/nodes", node)
            await self._client.patch(f"/api/v1/nodes/{name}/status", {"status": status}, kind="merge")

        await _all(make(number) for number in range(count))

    async def round(self, extender: bool) -> Round:
        """Create the pods, start what schedules them, and count."""
        beside = await self._start_extender() if extender else None
        await _all(self._create(number) for number in range(self._pods))
        for process in self._plane.processes.values():
            await settle(process)
        configuration: dict[str, Any] = {"percentageOfNodesToScore": self._percentage}
        if beside:
            configuration["extenders"] = [beside.entry]
        measured = {**self._plane.processes, **({"extender": beside.process} if beside else {})}
        before = {name: process.cpu_seconds() for name, process in measured.items()}
        listed = await self._client.get(PODS, limit=1)
        scheduler = self._plane.scheduler(configuration)
        try:
            times = await self._bound(listed["metadata"]["resourceVersion"], scheduler)
            cpu = {name: process.cpu_seconds() - before[name] for name, process in measured.items()}
            cpu["kube-scheduler"] = scheduler.cpu_seconds()
            resident = beside.process.resident_mib() if beside else None
        finally:
            scheduler.stop()
            if beside:
                beside.process.stop()
        seconds = times[-1] - times[0]
        failures = beside.process.log.read_text(errors="replace").count("WARNING bind ") if beside else None
        await self._clear()
        per_pod = {name: round(used * 1000 / self._pods, 3) for name, used in cpu.items()}
        return Round(extender, len(times), round(seconds, 2), round((len(times) - 1) / seconds, 1), per_pod, resident, failures)

    async def _create(self, number: int) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: str(1 + number % 8)}}}
        spec = {"automountServiceAccountToken": False, "containers": [container]}
        await self._client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec})

    async def _bound(self, version: str, scheduler: Process) -> list[float]:
        """When each pod was bound, in order. SystemExit when some are not after ten minutes."""
        seen: dict[str, float] = {}

        async def watch(since: str) -> None:
            # The server ends a watch that it finds slow; what was missed is listed.
            while len(seen) < self._pods:
                async for kind, pod in self._client.watch(PODS, since, accept=METADATA, timeout_seconds=900, fieldSelector=BOUND):
                    if kind != "BOOKMARK":
                        seen.setdefault(pod["metadata"]["name"], time.monotonic())
                    if len(seen) == self._pods:
                        return
                found = await self._client.get(PODS, accept=METADATA_LIST, fieldSelector=BOUND)
                since = found["metadata"]["resourceVersion"]
                for pod in found["items"]:
                    seen.setdefault(pod["metadata"]["name"], time.monotonic())

        try:
            await asyncio.wait_for(watch(version), 600)
        except asyncio.TimeoutError:
            sys.exit(f"only {len(seen)} of {self._pods} pods were bound in 600 s; {scheduler.ended() or scheduler.log.read_text()[-2000:]}")
        return sorted(seen.values())

    async def _clear(self) -> None:
        await self._client.delete(PODS, {"gracePeriodSeconds": 0}, within=300)
        for _attempt in range(600):
            if not (await self._client.get(PODS, limit=1, within=60))["items"]:
                return
            await asyncio.sleep(0.5)
        sys.exit("the pods of the last round were not gone after 300 s")

    async def _start_extender(self) -> Extender:
        beside = Extender(self._plane)
        deadline = time.monotonic() + 120
        while "answering the scheduler" not in beside.process.log.read_text(errors="replace"):
            if beside.process.ended() or time.monotonic() > deadline:
                sys.exit(beside.process.ended() or "the extender was not in sync after 120 s")
            await asyncio.sleep(0.2)
        return beside


class Extender:
    """The extender with certificates of its own, and its entry in the scheduler's configuration, as the installer makes them."""

    def __init__(self, plane: ControlPlane) -> None:
        port, pki = free_port(), plane.folder / "pki"
        run([sys.executable, "-m", "gpushare_runtime.pki.main", "ensure", "--dir", pki])
        log = plane.folder / "extender.log"
        log.unlink(missing_ok=True)
        tls: list[str | Path] = ["--tls-cert", pki / "extender.crt", "--tls-key", pki / "extender.key", "--client-ca", pki / "ca.crt"]
        module: list[str | Path] = [sys.executable, "-m", "gpushare_runtime.extender.main", "--kubeconfig", plane.kubeconfig]
        self.process = Process("extender", [*module, "--listen", f"127.0.0.1:{port}", *tls], plane.folder)
        self.entry = {
            "urlPrefix": f"https://127.0.0.1:{port}{EXTENDER_PREFIX}",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "bindVerb": "bind",
            "weight": 1,
            "enableHTTPS": True,
            "tlsConfig": {
                "caFile": str(pki / "scheduler/ca.crt"),
                "certFile": str(pki / "scheduler/tls.crt"),
                "keyFile": str(pki / "scheduler/tls.key"),
            },
            "httpTimeout": "1s",
            "nodeCacheCapable": True,
            "managedResources": [{"name": RESOURCE_MEMORY}, {"name": RESOURCE_CARDS}],
        }


async def _all(works: Iterable[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Awaitable[None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in works))


async def measure(nodes: int, pods: int, rounds: int, percentage: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The whole benchmark; what it found, ready for JSON."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        plane = ControlPlane(Path(folder), KUBERNETES)
        try:
            async with KubeClient(load(str(plane.kubeconfig)), user_agent="bench") as client:
                bench = Bench(plane, client, pods, percentage)
                say(f"{nodes} nodes")
                await bench.make_nodes(nodes)
                found: list[Round] = []
                for number in range(2 * rounds):
                    # In turns, and each first once: the second of a pair finds warm caches.
                    found.append(await bench.round(extender=number % 4 in (1, 2)))
                    last = found[-1]
                    say(f"{'with' if last.extender else 'without'} extender: {last.rate} pods/s; CPU ms per pod {last.cpu_ms_per_pod}")
        finally:
            plane.stop()
    rates = {with_it: statistics.mean(one.rate for one in found if one.extender is with_it) for with_it in (False, True)}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "kubernetes": KUBERNETES,
        "nodes": nodes,
        "pods": pods,
        "percentageOfNodesToScore": percentage,
        "ratio": round(rates[True] / rates[False], 3),
        "target_ratio": TARGET.get(nodes),
        "rounds": [asdict(one) for one in found],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.scheduling", description="Pods bound a second, without and with the extender.")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=2, help="of each kind (default %(default)s)")
    parser.add_argument("--percentage", type=int, default=100, help="percentageOfNodesToScore; 0: Kubernetes' own sampling")
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    given = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    try:
        found = asyncio.run(measure(given.nodes, given.pods, given.rounds, given.percentage, say))
    except KubeError as error:
        sys.exit(f"the API server refused: {error}")
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    say(f"ratio {found['ratio']} (target {found['target_ratio'] or 'none for this size'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How many pods a second kube-scheduler binds, without and with the extender, and with the leanest that does nothing, in one run.

`python -m bench.scheduling`.

Real etcd, kube-apiserver and kube-scheduler; nodes of eight GPUs that only kwok answers for; the extender over mutual
TLS as it is installed; the leanest over plain HTTP, and over the same TLS. The pods are created first, then the scheduler
is started. The four kinds of rounds take turns, because the machine may be shared: only their ratio is judged. With `--claims` the kinds
are three: without the extender, with it, and the back end dra, where kube-scheduler as it is allocates claims. With `--hami` the third is
HAMi's extender.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from bench.scheduling import hami
from bench.scheduling.claims import CLAIMS, Claims, gpus
from bench.scheduling.control_plane import ControlPlane, Process, settle
from bench.scheduling.extender import Extender, Idle, installed_python
from bench.scheduling.hami import Hami
from bench.scheduling.latency import Latency, read
from bench.scheduling.objects import PODS, all_of, make_nodes, make_pod, pending
from bench.scheduling.startup import startup
from gpushare_lab.components import KUBERNETES
from gpushare_lab.prepare import the_cache
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import ANNOTATION_INDEX
from gpushare_runtime.kube.client import METADATA, METADATA_LIST, KubeClient, KubeError
from gpushare_runtime.kube.credentials import load

BOUND: Final = "spec.nodeName!="
_FAILED_BIND: Final = re.compile(r"^WARNING \S+: bind ", re.M)
TARGET: Final = {500: 0.75, 5000: 0.8}
NONE, IDLE, IDLE_TLS, OURS = "no extender", "the leanest extender", "the leanest extender over TLS", "ours"
BY_CLAIMS: Final = "claims"
HAMI: Final = "HAMi"
KINDS: Final = (NONE, OURS, IDLE, IDLE_TLS)
WITH_CLAIMS: Final = (NONE, OURS, BY_CLAIMS)
WITH_HAMI: Final = (NONE, OURS, HAMI)


@dataclass(frozen=True)
class Round:
    """One round. rate: pods bound a second, from the first to the last; cpu_ms_per_pod: by process; resident in MiB, at its end;
    bind_failures: of HAMi, those that found their node locked; latency: of each verb, as the extender itself measured it. made_ms_per_pod:
    CPU for the pods before the scheduler starts, and for their claims. gpus: those that have a pod, None where nothing has chosen any.
    load: of the machine, at its end."""

    kind: str
    pods: int
    seconds: float
    rate: float
    cpu_ms_per_pod: dict[str, float]
    extender_resident_mib: float | None
    bind_failures: int | None
    latency: dict[str, Latency] | None
    made_ms_per_pod: float
    gpus: int | None
    load: float


class Bench:
    """A control plane with its nodes. python: of the extenders; percentage: percentageOfNodesToScore; options: more of the extender's."""

    def __init__(
        self,
        plane: ControlPlane,
        client: KubeClient,
        inventories: Mapping[str, Inventory],
        python: Path,
        pods: int,
        percentage: int,
        options: Sequence[str] = (),
    ) -> None:
        self._plane = plane
        self._client = client
        self._inventories = inventories
        self._pods = pods
        self._percentage = percentage
        self._options = options
        self._python = python

    async def round(self, kind: str) -> Round:
        """Create the pods, start what schedules them, and count."""
        extender = Extender(self._plane, *self._options, python=self._python) if kind == OURS else None
        other = Hami(self._plane, self._client, len(self._inventories)) if kind == HAMI else None
        leanest = Idle(self._plane, self._python, tls=kind == IDLE_TLS) if kind in (IDLE, IDLE_TLS) else None
        asked = extender or other or leanest
        make = hami.pending if other else pending
        claims = Claims(self._plane, self._client, self._inventories) if kind == BY_CLAIMS else None
        if claims:
            await claims.start()
        running = dict(self._plane.processes)
        if asked:
            await asked.ready()
        for process in running.values():
            await settle(process)
        first = sum(process.cpu_seconds() for process in running.values())
        await all_of(make_pod(self._client, make(number)) for number in range(self._pods))
        if asked:
            await asked.binds()
        if claims:
            await claims.made(self._pods)
        for process in running.values():
            await settle(process)
        made = sum(process.cpu_seconds() for process in running.values()) - first
        # Claims are for a scheduler that nobody has configured.
        configuration: dict[str, Any] = {} if claims else {"percentageOfNodesToScore": self._percentage}
        if asked:
            configuration["extenders"] = [asked.entry]
        measured = {**running, **({"extender": asked.process} if asked else {})}
        before = {name: process.cpu_seconds() for name, process in measured.items()}
        listed = await self._client.get(PODS, limit=1)
        scheduler = self._plane.scheduler(configuration)
        try:
            times = await self._bound(listed["metadata"]["resourceVersion"], scheduler)
            cpu = {name: process.cpu_seconds() - before[name] for name, process in measured.items()}
            cpu["kube-scheduler"] = scheduler.cpu_seconds()
            resident = asked.process.resident_mib() if asked and asked is not leanest else None
            latency = read(extender.metrics) if extender else None
        finally:
            scheduler.stop()
            if asked:
                asked.process.stop()
            if other:
                await other.stop()
        chosen = await self._chosen(kind)
        seconds = times[-1] - times[0]
        failures = len(_FAILED_BIND.findall(extender.process.log.read_text(errors="replace"))) if extender else None
        failures = other.locked() if other else failures
        busy = round(os.getloadavg()[0], 1)
        await self._clear()
        if claims:
            await claims.stop()
        per_pod = {name: round(used * 1000 / self._pods, 3) for name, used in cpu.items()}
        rate = round((len(times) - 1) / seconds, 1)
        before_it = round(made * 1000 / self._pods, 3)
        return Round(kind, len(times), round(seconds, 2), rate, per_pod, resident, failures, latency, before_it, chosen, busy)

    async def _chosen(self, kind: str) -> int | None:
        """The GPUs that have a pod."""
        if kind == BY_CLAIMS:
            found = (await self._client.get(CLAIMS, within=120))["items"]
            return len({gpu for claim in found for gpu in gpus(claim)})
        if kind != OURS:
            return None
        pods = (await self._client.get(PODS, within=120))["items"]
        return len({(pod["spec"]["nodeName"], pod["metadata"]["annotations"][ANNOTATION_INDEX]) for pod in pods})

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


async def measure(given: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """The whole benchmark; what it found, ready for JSON."""
    options = ["--most-nodes", str(given.most_nodes)] if given.most_nodes else []
    python = installed_python(the_cache())
    kinds = WITH_CLAIMS if given.claims else WITH_HAMI if given.hami else KINDS
    # Each kind early and late: what comes later finds warm caches.
    turns = (*kinds, *reversed(kinds))
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        plane = ControlPlane(Path(folder), KUBERNETES)
        try:
            async with KubeClient(load(str(plane.kubeconfig)), user_agent="bench") as client:
                say(f"{given.nodes} nodes")
                inventories = await make_nodes(client, given.nodes)
                if given.hami:
                    await hami.register(client, inventories)
                bench = Bench(plane, client, inventories, python, given.pods, given.percentage, options)
                found: list[Round] = []
                for number in range(len(kinds) * given.rounds):
                    found.append(await bench.round(turns[number % len(turns)]))
                    last = found[-1]
                    say(f"with {last.kind}: {last.rate} pods/s; CPU ms per pod {last.cpu_ms_per_pod}; {last.gpus} GPUs; load {last.load}")
                    for verb, took in (last.latency or {}).items():
                        say(f"  {verb}: mean {took.mean} ms, p50 {took.p50}, p95 {took.p95}, p99 {took.p99}")
                full = None
                if given.bound_pods:
                    say(f"{given.bound_pods} bound pods")
                    full = await startup(plane, client, inventories, given.bound_pods, python, given.rest)
                    say(f"ready after {full.ready_seconds} s, {full.own_seconds} s of them its own CPU; {full.resident_mib} MiB resident")
                    for one in full.rest:
                        say(f"at rest, {one.what}: {one.changes} changes/s, {one.percent} % of a core in {one.seconds} s")
                        say(f"  kube-apiserver and etcd: {one.plane_percent} %")
        finally:
            plane.stop()
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "kubernetes": KUBERNETES,
        "cpus": os.cpu_count(),
        "nodes": given.nodes,
        "pods": given.pods,
        "percentageOfNodesToScore": given.percentage,
        "most_nodes": given.most_nodes,
        **({"hami": hami.release(hami.program())} if given.hami else {}),
        **_ratios(found),
        "target_ratio": TARGET.get(given.nodes),
        "rounds": [asdict(one) for one in found],
        "startup": asdict(full) if full else None,
    }


def _ratios(found: Sequence[Round]) -> dict[str, float]:
    """How much is left of the rate with the extender, and how much of the CPU per pod would do without it; the same against the leanest
    extender, of which the CPU is its own. Of claims: how much of the rate with the extender, and how many times its CPU, with that for the
    pods and claims themselves. Of HAMi: our rate as a multiple of its own, and its CPU as a multiple of ours. Without rounds nothing."""
    none, ours, idle, idle_tls, claims, others = ([one for one in found if one.kind == kind] for kind in (*KINDS, BY_CLAIMS, HAMI))
    if not ours:
        return {}
    own = operator.itemgetter("extender")
    ratios = {
        "ratio": _ratio(lambda one: one.rate, ours, none),
        "cpu_ratio": _ratio(lambda one: sum(one.cpu_ms_per_pod.values()), none, ours),
    }
    if claims:
        cpu = _ratio(lambda one: one.made_ms_per_pod + sum(one.cpu_ms_per_pod.values()), claims, ours)
        return {**ratios, "claims_ratio": _ratio(lambda one: one.rate, claims, ours), "claims_cpu_ratio": cpu}
    if others:
        cpu = _ratio(lambda one: own(one.cpu_ms_per_pod), others, ours)
        return {**ratios, "hami_ratio": _ratio(lambda one: one.rate, ours, others), "hami_cpu_ratio": cpu}
    return {
        **ratios,
        "leanest_ratio": _ratio(lambda one: one.rate, ours, idle),
        "leanest_cpu_ratio": _ratio(lambda one: own(one.cpu_ms_per_pod), ours, idle),
        "leanest_tls_ratio": _ratio(lambda one: one.rate, ours, idle_tls),
        "leanest_tls_cpu_ratio": _ratio(lambda one: own(one.cpu_ms_per_pod), ours, idle_tls),
    }


def _ratio(value: Callable[[Round], float], one: Sequence[Round], other: Sequence[Round]) -> float:
    """The median over pairs of neighbours: a shared machine has faster and slower minutes."""
    return round(statistics.median(value(a) / value(b) for a, b in zip(one, other, strict=True)), 3)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.scheduling", description="Pods bound a second, without and with the extender.")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=4, help="of each kind (default %(default)s); 0: only --bound-pods")
    parser.add_argument("--percentage", type=int, default=100, help="percentageOfNodesToScore; 0: Kubernetes' own sampling")
    parser.add_argument("--most-nodes", type=int, default=0, help="the extender's option (default %(default)s: filter names all that fit)")
    parser.add_argument("--bound-pods", type=int, default=0, metavar="PODS", help="also measure memory and start with so many")
    parser.add_argument("--rest", type=float, default=0, metavar="SECONDS", help="with --bound-pods: also measure what it costs at rest")
    parser.add_argument("--claims", action="store_true", help="measure the back end dra beside the extender, and not the leanest one")
    parser.add_argument("--hami", action="store_true", help=f"measure HAMi's extender beside ours, which {hami.VARIABLE} names")
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    given = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    try:
        found = asyncio.run(measure(given, say))
    except KubeError as error:
        sys.exit(f"the API server rejected: {error}")
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    if "ratio" in found:
        say(f"ratio {found['ratio']} (target {found['target_ratio'] or 'none for this size'}); of CPU per pod {found['cpu_ratio']}")
        if given.claims:
            say(f"with claims {found['claims_ratio']} of the extender's rate, {found['claims_cpu_ratio']} times the CPU per pod")
        if given.hami:
            say(f"{found['hami_ratio']} times the rate of HAMi, which takes {found['hami_cpu_ratio']} times the CPU")
        for name, key in () if given.claims or given.hami else (("plain HTTP", "leanest"), ("the same TLS", "leanest_tls")):
            say(f"against the leanest extender over {name}: {found[f'{key}_ratio']} of its rate, {found[f'{key}_cpu_ratio']} times its CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods created, deleted and created again at random on a lab's nodes, and the log of it.

One loop asks the API server for what churn_plan.py says. Beside it run a watch on the pods and, on each node, churn_watch.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

from e2e.api import Json
from e2e.churn_log import ALLOCATION, GPUS_LABEL, MEMORY, GpuOf, Log, Plan, Pod
from e2e.churn_plan import NAMES, Delete, Make, Planner, View
from e2e.cluster import GPU_NODES, LAB, REPOSITORY, Cluster
from e2e.manifests import IMAGE
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.credentials import load
from gpushare_runtime.kube.reflector import Reflector

PODS = "/api/v1/namespaces/default/pods"
# A pod that has room runs within a second or two; it is given up after this.
RUN_SECONDS = 90.0
# Processes end at most this long after their pod's grace; whoever waits for their units may take as long again.
LEAVE_SECONDS = 60.0
# Like a controller: a rejected pod is made again at once, and not for ever.
RETRIES = 5
# A container whose pod is deleted while kubelet makes it has no process yet, and may have one a moment later.
START_SECONDS = 4.0

# Its first life, of which the second one knows by what it has left in the pod's volume.
ONCE = "[ -e /lives/$CHURN_CONTAINER ] || {{ : > /lives/$CHURN_CONTAINER; sleep {seconds}; exit 1; }}; "
QUIET = 'trap "exit 0" TERM; sleep 86400 & wait'
STUBBORN = 'trap "" TERM; while :; do sleep 86400; done'


class Stuck(AssertionError):
    """Something did not happen within its deadline."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def manifest(plan: Plan) -> Json:
    """The pod of a plan."""
    life = (ONCE.format(seconds=plan.again) if plan.again else "") + (STUBBORN if plan.stubborn else QUIET)
    containers: list[Json] = [
        {
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", "-c", life],
            "env": [{"name": "CHURN_CONTAINER", "value": name}],
            "resources": {"limits": {MEMORY: str(units)}},
        }
        for name, units in zip(container_names(plan), plan.units, strict=True)
    ]
    meta: Json = {"name": plan.name, "namespace": "default", "labels": {"churn": "yes"}}
    if plan.spread > 1:
        meta["labels"][GPUS_LABEL] = str(plan.spread)
    spec: Json = {"containers": containers, "terminationGracePeriodSeconds": plan.grace, "enableServiceLinks": False}
    if plan.again:
        spec["volumes"] = [{"name": "lives", "emptyDir": {}}]
        for container in containers:
            container["volumeMounts"] = [{"name": "lives", "mountPath": "/lives"}]
    if plan.slow:
        # It has its units by then, and a process that has none of them.
        wait = ["/bin/sh", "-c", f"sleep {plan.slow}"]
        spec["initContainers"] = [{"name": "slow", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": wait}]
    if plan.node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": plan.node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def container_names(plan: Plan) -> list[str]:
    return [f"c{place}" for place in range(len(plan.units))]


class Churn:
    """One run; `log` is complete when `run` has returned."""

    def __init__(self, cluster: Cluster, *, pods: int, seed: int, say: Callable[[str], None] = print) -> None:
        self.log = Log(gpus=tuple(gpus_of(cluster)))
        self._cluster = cluster
        self._wanted = pods
        self._rng = random.Random(seed)
        self._planner = Planner(self._rng)
        self._say = say
        self._made = 0
        self._broken = ""
        self._changed = asyncio.Event()

    async def run(self) -> Log:
        """Until so many pods were made, and every one left runs."""
        client = KubeClient(load(str(self._cluster.kubeconfig)), user_agent="churn")
        async with client as self._client, self._nodes(), self._watch():
            while self._made < self._wanted:
                await self._until(self._ready_for_more, RUN_SECONDS + LEAVE_SECONDS, "the pods made before run")
                await self._again()
                steps = self._planner.next(self._view(), self._wanted - self._made)
                for step in steps:
                    await self._do(step)
                if not steps:
                    await self._until_something(LEAVE_SECONDS)
            await self._until(lambda: not list(self._waiting()), RUN_SECONDS + LEAVE_SECONDS, "the last pods run")
            await self._until(lambda: not any(map(self._is_terminating, self._pods())), LEAVE_SECONDS, "what was deleted has ended")
            await self._until(self._nodes_are_level, LEAVE_SECONDS, "the nodes' log has what runs")
        return self.log

    # What is watched.

    @contextlib.asynccontextmanager
    async def _watch(self) -> AsyncIterator[None]:
        reflector: Reflector[Json] = Reflector(
            self._client, PODS, on_replace=self._listed,
            on_event=self._seen, label_selector="churn=yes",
        )  # fmt: skip
        task = asyncio.create_task(reflector.run())
        try:
            await asyncio.wait_for(reflector.synced.wait(), 30)
            yield
        finally:
            task.cancel()

    def _listed(self, pods: list[Json]) -> None:
        """At the start, and after a watch that was interrupted: who is not in it is gone."""
        there = {pod["metadata"]["uid"] for pod in pods}
        for known in self._pods():
            if known.gone is None and known.uid not in there:
                known.gone = boottime()
        for pod in pods:
            self._seen("MODIFIED", pod)

    def _seen(self, kind: str, pod: Json) -> None:
        self.log.api_says(kind, pod, boottime())
        self._changed.set()

    @contextlib.asynccontextmanager
    async def _nodes(self) -> AsyncIterator[None]:
        """churn_watch.py on each node, until the end."""
        script = (Path(__file__).parent / "churn_watch.py").read_text()
        lab = [sys.executable, str(LAB), "--name", self._cluster.name]
        async with contextlib.AsyncExitStack() as stack:
            for node in GPU_NODES:
                process = await asyncio.create_subprocess_exec(
                    *lab, "exec", node, "python3", "-c", script,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY,
                )  # fmt: skip
                stack.push_async_callback(_end, process)
                assert process.stdout is not None
                first = await asyncio.wait_for(process.stdout.readline(), 30)
                if json.loads(first or b"{}").get("event") != "ready":
                    raise Stuck(f"churn_watch.py does not start on {node}: it says {first!r}, expected the event `ready`")
                task = asyncio.create_task(self._read(node, process.stdout))
                stack.callback(task.cancel)
            yield

    async def _read(self, node: str, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            self.log.node_says(node, json.loads(line))
            self._changed.set()
        self._broken = f"churn_watch.py on {node} has ended before the churn: see its errors above"
        self._changed.set()

    # Waiting.

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self._broken:
                raise Stuck(self._broken)
            if time.monotonic() > deadline:
                states = [f"{pod}: bound {pod.bound}, running {pod.running}, gone {pod.gone}" for pod in self._pods() if pod.gone is None]
                raise Stuck(f"waited {seconds:g} s until {what}; there are:\n" + "\n".join(states))
            await self._until_something(1.0)

    async def _until_something(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _ready_for_more(self) -> bool:
        """Every pod that has room is placed, and not too many are on their way."""
        unplaced = [pod for pod in self._waiting() if pod.bound is None and pod.plan.room]
        return not unplaced and len(list(self._waiting())) <= self._rng.randint(0, 6)

    # The state of things.

    def _nodes_are_level(self) -> bool:
        """A node that is busy may say later than the API server that a container has started."""
        return all(pod.containers <= self.log.containers.keys() for pod in self._pods() if pod.gone is None)

    def _pods(self) -> Iterator[Pod]:
        return iter(self.log.pods.values())

    def _waiting(self) -> Iterator[Pod]:
        """Pods that are to run and do not yet."""
        now = boottime()
        for pod in self._pods():
            if pod.running is None and pod.failed is None and pod.gone is None and pod.asked_away is None:
                late = now - pod.created > (RUN_SECONDS if pod.plan.room else RUN_SECONDS + LEAVE_SECONDS)
                if not late:
                    yield pod

    def _still_uses(self, pod: Pod) -> bool:
        """Whether a pod that is over holds its units, or may."""
        if self.log.alive(pod.uid):
            return True
        over = pod.gone or pod.failed
        if over is None:
            return pod.asked_away is not None
        return not pod.rejected and boottime() - over < self._grace(pod)

    def _is_terminating(self, pod: Pod) -> bool:
        return (pod.asked_away is not None or pod.gone is not None) and self._still_uses(pod)

    def _grace(self, pod: Pod) -> float:
        return 0.0 if any(c.uid == pod.uid for c in self.log.containers.values()) or pod.bound is None else START_SECONDS

    def _holds(self, pod: Pod) -> bool:
        return pod.bound is not None and (self._still_uses(pod) or (pod.gone is None and pod.failed is None))

    def _view(self) -> View:
        free = {node: {gpu.index: gpu.units for gpu in self.log.gpus if gpu.node == node} for node in GPU_NODES}
        waiting = [pod for pod in self._waiting() if pod.bound is None]
        for pod in self._pods():
            if self._holds(pod):
                for gpus in json.loads(pod.annotations.get(ALLOCATION, "{}")).values():
                    for index, units in gpus.items():
                        free[pod.node][int(index)] -= units
        open_ = {node: gpus for node, gpus in free.items() if not any(pod.plan.node in ("", node) for pod in waiting)}
        taken = {pod.plan.name for pod in self._pods() if pod.gone is None}
        running = [pod for pod in self._pods() if pod.running and pod.asked_away is None and pod.failed is None and pod.gone is None]
        return View(open_, running, [name for name in NAMES if name not in taken])

    # Acting.

    async def _do(self, step: Make | Delete) -> None:
        if isinstance(step, Delete):
            await self._delete(self.log.pods[step.uid], force=step.force)
            if step.again:
                await self._make(step.again)
            return
        made = await asyncio.gather(*(self._make(plan) for plan in step.plans))
        if step.early:
            await self._until(lambda: all(pod.bound for pod in made), RUN_SECONDS, "a pod with room is placed")
            for pod in made:
                pod.early = pod.running is None
                await self._delete(pod, force=step.force)

    async def _make(self, plan: Plan) -> Pod:
        self._made += 1
        t = boottime()
        # The object of the name's last bearer may take a moment to go.
        for _ in range(50):
            try:
                return self.log.made(plan, await self._client.create(PODS, manifest(plan)), t)
            except KubeError as error:
                if error.reason != "AlreadyExists":
                    raise
                await self._until_something(0.2)
        raise Stuck(f"the name {plan.name} does not become free")

    async def _delete(self, pod: Pod, *, force: bool) -> None:
        pod.asked_away, pod.forced = boottime(), force
        body: Json = {"preconditions": {"uid": pod.uid}, **({"gracePeriodSeconds": 0} if force else {})}
        try:
            await self._client.delete(path(PODS, pod.plan.name), body)
        except KubeError as error:
            # It went by itself a moment ago, and another one may have its name.
            if error.status not in (404, 409):
                raise

    async def _again(self) -> None:
        """What a controller does: pods that have failed are removed and made anew, under the same name."""
        for pod in list(self._pods()):
            if pod.failed is None or pod.asked_away is not None or pod.gone is not None:
                continue
            await self._delete(pod, force=True)
            if pod.plan.retry < RETRIES and self._made < self._wanted:
                self._say(f"{pod} was rejected, and is made again: {pod.message}")
                await self._make(replace(pod.plan, retry=pod.plan.retry + 1))


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 10)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()


def gpus_of(cluster: Cluster) -> Iterator[GpuOf]:
    for node in GPU_NODES:
        for gpu in cluster.gpus(node):
            yield GpuOf(node, gpu.index, gpu.minor, gpu.uuid, gpu.mib // 1024)

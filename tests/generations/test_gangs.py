# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Gangs and preemption on real kube-schedulers through our extender: pods that others have to wait or to go for.

Real etcd, kube-apiserver and extender as plain processes; nodes of two GPUs without a kubelet, for which the test ends evicted pods.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from bench.scheduling.control_plane import ControlPlane, Process
from bench.scheduling.extender import Extender
from bench.scheduling.objects import PODS, UNITS, make_nodes
from generations.programs import NEWEST, kube_scheduler
from gpushare_lab import components
from gpushare_lab.process import run
from gpushare_runtime.core.protocol import ANNOTATION_INDEX, RESOURCE_MEMORY
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import load

GROUPS: Final = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
GATE: Final = "--feature-gates=GenericWorkload=true"
#: Whose kube-scheduler asks also about nodes that have enough in total.
ASKING: Final = "1.38"
NODES, GPUS = 2, 2
_SECONDS: Final = 120.0


class Scene:
    """A control plane with nodes, our extender and a scheduler. evicted: names of the pods that the scheduler has ended."""

    def __init__(self, plane: ControlPlane, extender: Extender, scheduler: Process, client: KubeClient) -> None:
        self.plane, self.extender, self.scheduler, self.client = plane, extender, scheduler, client
        self.evicted: set[str] = set()

    async def pod(self, name: str, units: int, priority: int = 0, group: str = "", node: str = "", gpu: int = 0) -> None:
        """node, gpu: where it is bound to from the start, "" for none."""
        container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: str(units)}}}
        spec: dict[str, Any] = {"automountServiceAccountToken": False, "containers": [container]}
        if priority:
            spec["priorityClassName"] = f"p{priority}"
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        metadata: dict[str, Any] = {"name": name}
        if node:
            spec["nodeName"], metadata["annotations"] = node, {ANNOTATION_INDEX: str(gpu)}
        await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def priorities(self, *values: int) -> None:
        for value in values:
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"p{value}"}, "value": value}
            await self.client.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)

    async def gang(self, name: str, count: int, units: int, priority: int = 0) -> list[str]:
        """All of it or nothing."""
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": count}}}
        if priority:
            spec["priorityClassName"] = f"p{priority}"
        body = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        await self.client.create(GROUPS, body)
        names = [f"{name}-{number}" for number in range(count)]
        for each in names:
            await self.pod(each, units, priority, name)
        return names

    async def pods(self) -> dict[str, dict[str, Any]]:
        return {one["metadata"]["name"]: one for one in (await self.client.get(PODS))["items"]}

    async def places(self) -> dict[str, tuple[str, str]]:
        """Node and GPU of each pod that is bound."""
        pods = await self.pods()
        return {
            name: (one["spec"]["nodeName"], one["metadata"]["annotations"][ANNOTATION_INDEX])
            for name, one in pods.items()
            if one["spec"].get("nodeName")
        }

    async def until(self, what: str, true: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not await true():
            assert self.scheduler.ended() + self.extender.process.ended() == ""
            if time.monotonic() > deadline:
                messages = {name: reported(one) for name, one in (await self.pods()).items()}
                raise AssertionError(f"not in time: {what}; {messages}; {self.scheduler.log.read_text()[-3000:]}")
            await asyncio.sleep(0.1)

    async def bound(self, *names: str) -> None:
        async def all_are() -> bool:
            return {*names} <= (await self.places()).keys()

        await self.until(f"{', '.join(names)} bound", all_are)

    async def end_evicted(self, orderly: bool) -> None:
        """What a kubelet does, for ever. orderly: it says that the containers have ended; else the pod is deleted by force."""
        while True:
            for name, one in (await self.pods()).items():
                if "deletionTimestamp" not in one["metadata"]:
                    continue
                self.evicted.add(name)
                if orderly:
                    state = {"terminated": {"exitCode": 143, "startedAt": None, "finishedAt": None}}
                    status = {"name": "main", "state": state, "ready": False, "restartCount": 0, "image": "none", "imageID": ""}
                    await self.client.patch(f"{PODS}/{name}/status", {"status": {"containerStatuses": [status]}}, kind="merge")
                await self.client.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
            await asyncio.sleep(0.1)

    async def asked(self, times: int) -> None:
        """Until filter was called so often more than now."""
        before = int(self.extender.health()["filter_calls"])

        async def called() -> bool:
            return int(self.extender.health()["filter_calls"]) >= before + times

        await self.until(f"{times} calls of filter", called)

    async def wake(self, count: int) -> None:
        """An event for which the scheduler tries again whom it could place nowhere."""
        await self.client.patch("/api/v1/nodes/node-00000", {"metadata": {"labels": {"event": str(count)}}}, kind="merge")

    async def explain(self, name: str, pods: dict[str, dict[str, Any]] | None = None) -> str:
        """What `kubectl gpushare explain` says of a pod that fits nowhere. pods: as they were at some moment, None for now."""
        found = {"Node": (await self.client.get("/api/v1/nodes"))["items"], "Pod": [*(pods or await self.pods()).values()]}
        items = [{**one, "kind": kind} for kind, objects in found.items() for one in objects]
        file = self.plane.folder / "cluster.json"
        file.write_text(json.dumps({"kind": "List", "items": items}))
        # Its status is not 0, since it fits nowhere.
        return run(
            [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", "explain", name, "--from-file", file], check=False
        ).stdout


def reported(pod: dict[str, Any]) -> str:
    """What the scheduler reports of it."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled"), "")


def on_the_plane(folder: Path, body: Callable[[Scene], Awaitable[None]], scheduler: Path | None = None, gate: bool = True) -> None:
    async def scene() -> None:
        more = [GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"] if gate else []
        plane = ControlPlane(folder, components.KUBERNETES, *more, with_kwok=False)
        try:
            extender = Extender(plane)
            entry = {**extender.entry, "preemptVerb": "preempt", "httpTimeout": "5s"}
            try:
                async with KubeClient(load(str(plane.kubeconfig)), user_agent="gangs") as client:
                    await make_nodes(client, NODES, GPUS)
                    await extender.ready(_SECONDS)
                    await extender.binds(_SECONDS)
                    process = plane.scheduler({"extenders": [entry]}, *more[:1], program=scheduler)
                    try:
                        await body(Scene(plane, extender, process, client))
                    finally:
                        process.stop()
            finally:
                extender.process.stop()
        finally:
            plane.stop()

    asyncio.run(scene())


@pytest.mark.timeout(3600)  # where programs are to be built
@pytest.mark.parametrize(("count", "units", "on_each"), [(4, 10, 1), (8, 8, 2)])
def test_a_gang_that_fits_exactly_is_placed(tmp_path: Path, count: int, units: int, on_each: int) -> None:
    async def body(scene: Scene) -> None:
        names = await scene.gang("exact", count, units)
        await scene.bound(*names)
        places = await scene.places()
        assert Counter(places.values()) == {(f"node-{node:05d}", str(gpu)): on_each for node in range(NODES) for gpu in range(GPUS)}

    on_the_plane(tmp_path, body)


@pytest.mark.timeout(3600)
def test_a_gang_that_never_fits_is_in_nobodys_way_and_named_where_it_is(tmp_path: Path) -> None:
    """It is tried again for as long as something happens in the cluster, each time with all GPUs but one."""

    async def body(scene: Scene) -> None:
        gang = await scene.gang("never", NODES * GPUS + 1, UNITS)

        async def rejected() -> bool:
            pods = await scene.pods()
            return "" not in [reported(pods[name]) for name in gang]

        await scene.until("the gang is rejected", rejected)

        async def events() -> None:
            for count in range(1000):
                await scene.wake(count)
                await asyncio.sleep(1)

        waking = asyncio.create_task(events())
        try:
            # The same condition again is no event for the extender: nothing tells it that the cycle has come to nothing.
            await scene.asked(3 * len(gang))
            await scene.pod("single-0", UNITS)

            seen: dict[str, dict[str, Any]] = {}

            async def named() -> bool:
                seen.update(await scene.pods())
                return "room is reserved for the group default/never" in reported(seen["single-0"])

            await scene.until("the reason names the group", named)
            explained = await scene.explain("single-0", seen)
            assert "default/never" in explained, explained
            for number in range(1, 4):
                await scene.pod(f"single-{number}", UNITS)
            await scene.bound(*(f"single-{number}" for number in range(4)))
        finally:
            waking.cancel()
        assert len(set((await scene.places()).values())) == NODES * GPUS
        assert not {*gang} & (await scene.places()).keys()

    on_the_plane(tmp_path, body)


@pytest.mark.timeout(3600)
def test_a_gang_evicts_nobody_and_explain_says_so(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.priorities(1, 1000)
        for node in range(NODES):
            for gpu in range(GPUS):
                await scene.pod(f"low-{node}-{gpu}", UNITS, 1, node=f"node-{node:05d}", gpu=gpu)
        gang = await scene.gang("high", 2, UNITS, 1000)

        async def tried() -> bool:
            conditions = (await scene.client.get(f"{GROUPS}/high")).get("status", {}).get("conditions") or ()
            return any("pod group preemption: " in condition["message"] for condition in conditions)

        await scene.until("kube-scheduler has tried to preempt for the group", tried)
        assert not [name for name, one in (await scene.pods()).items() if "deletionTimestamp" in one["metadata"]]
        explained = await scene.explain(gang[0])
        assert "for a group" in explained, explained

    on_the_plane(tmp_path, body)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", [NEWEST, ASKING])
def test_one_pod_is_evicted_for_each_that_needs_a_gpu(tmp_path: Path, release: str) -> None:
    """Also where evicted pods are deleted by force, and it is not sure for some seconds that their processes are gone."""

    async def body(scene: Scene) -> None:
        await scene.priorities(1, 1000)
        for node in range(NODES):
            for gpu in range(GPUS):
                await scene.pod(f"low-{node}-{gpu}", UNITS, 1, node=f"node-{node:05d}", gpu=gpu)
        ending = asyncio.create_task(scene.end_evicted(orderly=False))
        try:
            for number in range(2):
                await scene.pod(f"high-{number}", UNITS, 1000)
            await scene.bound("high-0", "high-1")
        finally:
            ending.cancel()
        assert len(scene.evicted) == 2, scene.evicted

    on_the_plane(tmp_path, body, kube_scheduler(release), gate=False)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", [NEWEST, ASKING])
def test_a_pod_that_finds_enough_in_total_but_not_on_one_gpu(tmp_path: Path, release: str) -> None:
    """From 1.38 on it gets a GPU by the eviction of the one pod of least priority; kube-scheduler before asks about no eviction."""

    async def body(scene: Scene) -> None:
        await scene.priorities(1, 3, 5, 1000)
        for node, priorities in enumerate(((5, 5), (3, 1))):
            for gpu, priority in enumerate(priorities):
                await scene.pod(f"low-{node}-{gpu}", UNITS // 2, priority, node=f"node-{node:05d}", gpu=gpu)
        ending = asyncio.create_task(scene.end_evicted(orderly=True))
        try:
            await scene.pod("high", UNITS - 4, 1000)
            if release == ASKING:
                await scene.bound("high")
                assert (await scene.places())["high"] == ("node-00001", "1")
                assert scene.evicted == {"low-1-1"}
                return

            async def refused() -> bool:
                return "preemption" in reported((await scene.pods())["high"])

            await scene.until("kube-scheduler has tried to preempt", refused)
            assert scene.evicted == set()
            explained = await scene.explain("high")
            assert "kube-scheduler before 1.38 cannot" in explained, explained
        finally:
            ending.cancel()

    on_the_plane(tmp_path, body, kube_scheduler(release), gate=False)

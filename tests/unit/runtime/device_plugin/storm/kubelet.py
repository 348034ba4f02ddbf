# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One process of kubelet: its device manager, the loop that admits pods one after the other, and a worker for each pod.

As its source has it (1.36.3): admission and resizes share a lock; workers do not. A worker starts the containers of its pod one after
the other. It looks when the list of containers, read each second, shows that one has ended, and 10 to 15 seconds after a failure; both
at ticks, so that many workers begin at once. podresources List makes it forget pods that have ended, at any time.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager, Panic, StartError
from unit.runtime.device_plugin.storm.world import ENDED, MEMORY, File, Pod, asks, containers_of, now, until

if TYPE_CHECKING:
    from unit.runtime.device_plugin.storm.plugin import Plugin
    from unit.runtime.device_plugin.storm.world import World

TICK = 1.0
# kubelet's backOffPeriod, and workerBackOffPeriodJitterFactor.
AGAIN, JITTER = 10.0, 0.5


class _Aborted(Exception):
    """The plugin answers with an error."""


async def _abort(code: Any, text: str) -> NoReturn:
    raise _Aborted(f"rpc error: code = {code.name.title().replace('_', '')} desc = {text}")


class Kubelet:
    """endpoints: resource → the plugin that registered it, and whether it is asked before a start. frozen_until: as long it answers no
    registration; when that is over it completes those that were asked, also where nobody waits for the answer any more."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self.up = False
        self.ready = False
        self.endpoints: dict[str, tuple[Plugin, bool]] = {}
        self.frozen_until = 0.0
        self.asked: list[tuple[str, str, Plugin, bool]] = []
        # (resource, socket) → the plugin of a list that is open; None where nobody forgets it when that ends, as in 1.37.2.
        self._stored: dict[tuple[str, str], Plugin | None] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, dict[str, str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._admission = asyncio.Lock()
        self._phase = self._random.uniform(0, TICK)
        self.manager = DeviceManager(None, self._prefer, self._allocate, self._random.randrange(10**9))
        self.manager.write = self._write  # type: ignore[method-assign]
        self.manager.pre_start = self._pre_start
        self.manager.pre_start_required = lambda resource: resource in self.endpoints and self.endpoints[resource][1]
        self.spawn(self._start())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guard(work))
        self._tasks.append(task)
        return task

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Panic as panic:
            if self._world.kubelet is self:
                self._world.counts["kubelet died"] += 1
                self._world.note(f"kubelet dies: {panic}")
                asyncio.get_running_loop().call_soon(self._world.restart_kubelet, 10.0)
        except Exception as error:
            self._world.fault("EXCEPTION", f"kubelet: {error!r}")
            raise

    def kill(self) -> None:
        self.up = False
        for task in self._tasks:
            task.cancel()
        for pod in self._world.pods.values():
            pod.worker = None

    # Its device manager's calls.

    def connect(self, resource: str, socket: str, plugin: Plugin, asked: bool) -> bool:
        """Whether it takes the registration. It keeps plugins by resource and socket, and rejects another one there."""
        if self._world.plugin is not plugin or plugin.sockets.get(resource) != socket:
            return False
        self._stored = {key: known for key, known in self._stored.items() if known is None or known is self._world.plugin}
        if (resource, socket) in self._stored:
            self._world.counts["already connected"] += 1
            self._stored[resource, socket] = None
            return False
        self._stored[resource, socket] = plugin
        self.endpoints[resource] = plugin, asked
        return True

    def disconnect(self, resource: str, socket: str) -> None:
        """The list has ended."""
        if self._stored.get((resource, socket)) is not None:
            del self._stored[resource, socket]

    def awake(self) -> None:
        asked, self.asked = self.asked, []
        for registration in asked:
            self.connect(*registration)

    def _write(self) -> None:
        if self.up:
            self._world.counts["writes"] += 1
            self._world.file = File(self._world.counts["writes"], self.manager.entries(), now())

    async def _rpc(self, resource: str, method: str, request: Any) -> Any:
        plugin = self.endpoints[resource][0] if resource in self.endpoints else None
        if plugin is None or plugin is not self._world.plugin:
            raise AdmissionError(f"endpoint of {resource} is stopped")
        # Between the beginning of an Allocate and its first request kubelet looks for what has ended: in the lab up to 0.07 s.
        await asyncio.sleep(self._random.choice((0.0005, 0.001, 0.003, *([0.07] if method == "GetPreferredAllocation" else []))))
        if plugin is not self._world.plugin:
            raise AdmissionError("connection lost")
        try:
            answer = await getattr(plugin.services[resource], method)(request, SimpleNamespace(abort=_abort))
        except _Aborted as error:
            raise AdmissionError(str(error)) from None
        await asyncio.sleep(self._random.choice((0.0005, 0.001, 0.003, 0.01)))
        if plugin is not self._world.plugin or not self.up:
            raise AdmissionError("connection lost")
        return answer

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        of = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        answer = await self._rpc(resource, "GetPreferredAllocation", pb.PreferredAllocationRequest(container_requests=[of]))
        return list(answer.container_responses[0].deviceIDs)

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        answer = await self._rpc(
            resource, "Allocate", pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        )
        return dict(answer.container_responses[0].envs)

    async def _pre_start(self, resource: str, ids: list[str]) -> None:
        try:
            await self._rpc(resource, "PreStartContainer", pb.PreStartContainerRequest(devices_ids=ids))
        except AdmissionError as error:
            raise StartError(str(error)) from None

    def pod_resources(self) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
        """What podresources List answers: active pods, without ordinary init containers."""
        found = {}
        for uid in sorted(self.manager.active):
            raw = self._known.get(uid)
            for c in containers_of(raw) if raw is not None else ():
                if c in raw["spec"]["containers"] or c.get("restartPolicy") == "Always":
                    given = self.manager.given.get(uid, {}).get(c["name"], {})
                    found[f"default/{raw['metadata']['name']}", c["name"]] = {resource: frozenset(ids) for resource, ids in given.items()}
        return found

    # Its start and its loop.

    async def _start(self) -> None:
        world, file = self._world, self._world.file
        readable = file is not None and not file.corrupt
        self.manager.restore(copy.deepcopy(file.entries) if file and readable else [], RESOURCES if readable else [])
        self.manager.sources_ready = False
        self.manager.running = {(uid, name) for uid, pod in world.pods.items() for name in pod.devices}
        if not world.kubepods:
            # It waits for the container runtime before it makes the group of all pods, and the plugin may be quicker.
            await asyncio.sleep(self._random.choice((0.0, 1.0, 4.0)))
            world.kubepods = True
        self.up = True
        await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
        await self._until_api()
        while not world.to_kubelet.empty():
            world.to_kubelet.get_nowait()
        batch = copy.deepcopy(sorted(world.bound(), key=lambda raw: raw["metadata"]["creationTimestamp"]))
        uids = {raw["metadata"]["uid"] for raw in batch}
        for pod in list(world.pods.values()):
            if pod.uid not in uids and pod.lives:
                pod.stop(self._random.uniform(0, 2))
        for raw in batch:
            uid = raw["metadata"]["uid"]
            self._known[uid] = raw
            if raw["status"]["phase"] in ENDED:
                continue
            if raw["metadata"].get("deletionTimestamp"):
                self.spawn(self._terminate(uid))
            else:
                await self._add(raw)
        self.manager.sources_ready = self.ready = True
        self.spawn(self._sync())
        self.spawn(self._relist())
        self.spawn(self._serve_lists())

    async def _until_api(self) -> None:
        await until(lambda: not self._world.away)

    async def _sync(self) -> None:
        world = self._world
        while True:
            at, kind, raw = await world.to_kubelet.get()
            await asyncio.sleep(max(0.0, at - now()))
            await self._until_api()
            uid = raw["metadata"]["uid"]
            if not raw["spec"].get("nodeName"):
                continue
            if kind == "DELETED":
                pod = world.pods.get(uid)
                if self._known.pop(uid, None) is not None or pod is not None:
                    self.manager.active.discard(uid)
                    if pod is not None and pod.lives:
                        pod.stop(self._random.uniform(1, 25) if world.stays and self._random.random() < 0.5 else self._random.uniform(0, 1))
                continue
            new = uid not in self._known
            self._known[uid] = raw
            notes = dict(raw["metadata"]["annotations"])
            if self._notes.get(uid) != notes and uid in world.pods:
                # It compares labels, specification and annotations, and wakes the pod's worker.
                world.pods[uid].woken.set()
            self._notes[uid] = notes
            if raw["metadata"].get("deletionTimestamp"):
                if uid not in world.pods or (world.pods[uid].lives and world.pods[uid].ends is None):
                    self.spawn(self._terminate(uid))
            elif new and raw["status"]["phase"] == "Pending":
                await self._add(raw)

    async def _relist(self) -> None:
        """It reads the containers each second, and wakes the workers of those that have ended."""
        while True:
            await self._tick(now() + 0.001)
            for pod in list(self._world.pods.values()):
                if pod.worker is not None and any(name not in pod.devices for name in pod.kinds):
                    await asyncio.sleep(self._random.uniform(0.0, 0.01))
                    pod.again.set()

    async def _tick(self, earliest: float) -> None:
        await asyncio.sleep(self._until_tick(earliest))

    def _until_tick(self, earliest: float) -> float:
        return math.ceil((earliest - self._phase) / TICK) * TICK + self._phase - now()

    async def _serve_lists(self) -> None:
        """Somebody asks podresources for a list every few seconds."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / 3.0))
            if not self._world.quiet:
                self.manager.purge()
                self._world.counts["lists"] += 1

    async def _add(self, raw: dict[str, Any]) -> None:
        world, uid = self._world, raw["metadata"]["uid"]
        try:
            async with self._admission:
                await self.manager.admit(raw)
        except AdmissionError as error:
            if not self.up:
                return
            pod = world.pods.get(uid)
            world.counts["killed" if pod is not None and pod.devices else "rejected"] += 1
            text = str(error)
            world.reasons[text.rpartition(" desc = ")[2][:70] if "asked for" not in text else "asked for …"] += 1
            world.note(f"reject {raw['metadata']['name']} {asks(raw)}: {text[:300]}")
            if pod is not None:
                pod.stop(self._random.uniform(0, 2))
            self.report(uid, "Failed", "UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
            return
        if uid in world.completed:
            # SyncPod, before anything starts: what has ended and is not started again ends its pod.
            self.report(uid, "Succeeded")
            self.manager.active.discard(uid)
            return
        if uid not in world.pods:
            kinds = {
                **{c["name"]: "sidecar" if c.get("restartPolicy") == "Always" else "init" for c in raw["spec"].get("initContainers", [])},
                **{c["name"]: "app" for c in raw["spec"]["containers"]},
            }
            pull = self._random.uniform(1, 30) if self._random.random() < 0.3 else self._random.uniform(0, 0.3)
            world.pods[uid] = Pod(raw, kinds, self._random.random() < 0.4, pull)
            world.counts["admitted"] += 1
            world.note(f"admit {raw['metadata']['name']} {asks(raw)}")
        pod = world.pods[uid]
        if pod.ends is None and pod.lives:
            pod.worker = self.spawn(self._work(pod))

    def report(self, uid: str, phase: str, reason: str = "", message: str = "") -> None:
        """It writes the pod's status."""
        raw, pod = self._world.object_of(uid), self._world.pods.get(uid)
        if raw is None or raw["status"]["phase"] in ENDED:
            return

        def of(name: str) -> dict[str, Any]:
            state = pod.state.get(name, "waiting") if pod is not None else "waiting"
            runs = pod.runs[name] if pod is not None else 0
            return {"name": name, "state": {state: {}}, "containerID": f"run://{uid}-{name}-{runs}" if runs else ""}

        status: dict[str, Any] = {"phase": phase} | ({"reason": reason, "message": message} if reason else {})
        if pod is not None and reason == "":
            status["initContainerStatuses"] = [of(c["name"]) for c in raw["spec"].get("initContainers", [])]
            status["containerStatuses"] = [of(c["name"]) for c in raw["spec"]["containers"]]
        if raw["status"] != status:
            raw["status"] = status
            self._world.put(raw)

    def tell(self, pod: Pod) -> None:
        started = any(pod.runs[name] for name, kind in pod.kinds.items() if kind == "app")
        self.report(pod.uid, "Running" if started else "Pending")

    # A pod's worker.

    async def _work(self, pod: Pod) -> None:
        # Its image or its volume may take long.
        await asyncio.sleep(pod.pull)
        pod.pull, pod.sandbox = 0.0, True
        while True:
            pod.again.clear()
            # SyncPod writes what the runtime says before it starts anything.
            self.tell(pod)
            if await self._sync_pod(pod):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(pod.woken.wait(), self._until_tick(now() + AGAIN * self._random.uniform(1, 1 + JITTER)))
                pod.woken.clear()
                await asyncio.sleep(self._random.uniform(0.0, 0.02))
            else:
                await pod.again.wait()

    async def _sync_pod(self, pod: Pod) -> bool:
        """Whether something is to be tried again."""
        specs = {c["name"]: c for c in containers_of(pod.raw)}
        failed = False
        for name, kind in pod.kinds.items():
            if name in pod.devices or (kind == "init" and pod.state.get(name) == "terminated"):
                continue
            if kind == "app" and any(k == "init" and pod.state.get(n) != "terminated" for n, k in pod.kinds.items()):
                break
            if pod.due.get(name, 0.0) > now() or not await self._start_container(pod, specs[name]):
                failed = True
                if kind != "app":
                    break
                continue
            if kind == "init":
                self._world.ends_by_itself(pod, name, self._random.uniform(0.2, 3))
                break
        return failed

    async def _start_container(self, pod: Pod, spec: dict[str, Any]) -> bool:
        world, name = self._world, spec["name"]
        try:
            environment = await self.manager.start(pod.raw, spec)
        except (StartError, AdmissionError) as error:
            world.counts["start rejected"] += 1
            pod.problem = str(error)
            world.reasons["start: " + pod.problem.rpartition(":")[2][:60]] += 1
            world.note(f"start of {pod.name}/{name} rejected: {pod.problem[:300]}")
            return False
        uuids = environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        if not all(uuid in world.units for uuid in uuids):
            return False
        # The runtime makes it.
        await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
        limits = spec["resources"]["limits"]
        if MEMORY in limits:
            pod.devices[name] = {uuid: int(limits[MEMORY]) // len(uuids) for uuid in uuids}
        else:
            pod.whole.add(name)
            pod.devices[name] = {uuid: world.units[uuid] for uuid in uuids}
        pod.runs[name] += 1
        pod.state[name] = "running"
        pod.problem = ""
        world.counts["starts"] += 1
        world.note(f"start {pod.name}/{name} on { {uuid[:12]: n for uuid, n in pod.devices[name].items()} }")
        self.tell(pod)
        return True

    async def _terminate(self, uid: str) -> None:
        """A deletion with grace."""
        world, pod = self._world, self._world.pods.get(uid)
        if pod is not None and pod.lives:
            if pod.worker is not None:
                pod.worker.cancel()
                pod.worker = None
            pod.ends = math.inf
            await asyncio.sleep(self._random.uniform(0, 2.5))
            self._stopped(pod)
        await self._until_api()
        self.report(uid, "Failed" if self._random.random() < 0.5 else "Succeeded")
        self.manager.active.discard(uid)
        await asyncio.sleep(self._random.uniform(0, 0.5))
        raw = world.object_of(uid)
        if raw is not None:
            world.gone(raw)
        self._known.pop(uid, None)

    async def complete(self, pod: Pod) -> None:
        """All containers of a pod that is not restarted have ended."""
        self._world.completed.add(pod.uid)
        self._stopped(pod)
        await asyncio.sleep(self._random.uniform(0, 1))
        await self._until_api()
        self.report(pod.uid, "Succeeded")
        self.manager.active.discard(pod.uid)

    def _stopped(self, pod: Pod) -> None:
        pod.stop()
        pod.state = dict.fromkeys(pod.kinds, "terminated")

    async def resize(self, pod: Pod) -> None:
        """A resize in place asks all admission handlers again."""
        async with self._admission:
            for c in containers_of(pod.raw):
                try:
                    await self.manager.allocate(pod.raw, c)
                except AdmissionError as error:
                    self._world.note(f"resize of {pod.name} deferred: {str(error)[:200]}")
                    return

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One node under churn, in virtual time: scheduler, API server with delays, kubelet's device manager, a plugin, processes.

Everything that can disagree does, and together: kubelet and the plugin see pods late and not at once, images take long, containers
end and start again, pods are force-deleted while their processes go on or before they have any, some have no process but their
containers', kubelet and the plugin restart, kubelet loses its checkpoint, the plugin alone does not reach the API server for longer
than it is patient. What is true is what the processes have.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gpushare_runtime.core.allocation import Allocation, AllocationError, allocate, read_allocation
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.request import Request, parse_request
from unit.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager, StartError
from unit.runtime.pods import container
from unit.runtime.pods import pod as pod_of

STEP = 0.1
# Seconds within which annotations are corrected once the API server is reached.
SETTLED = 5.0
# The API server sends a bookmark where nothing happens, here more often than in truth.
BOOKMARK = 5.0
# kubelet tries again to start a container; a plugin that wants other options registers anew when kubelet has admitted what runs.
AGAIN, ANEW = 1.0, 15.0
UNIX = 1_774_000_000.0
T = TypeVar("T")


class Plugin(Protocol):
    """A device plugin as the simulation drives it."""

    def devices(self, resource: str) -> set[str]: ...

    def prefer(self, resource: str, available: list[str], must: list[str], size: int, more: Callable[[], bool]) -> list[str]:
        """more: let time pass, until the watch brings something or the plugin's bound is over (False)."""

    def allocate(self, resource: str, ids: list[str]) -> dict[str, str]: ...

    def start(self, resource: str, ids: list[str]) -> None:
        """StartError if a container with these must not start."""

    def asks_before_start(self, resource: str) -> bool: ...

    def see(self, kind: str, pod: dict[str, Any]) -> None: ...

    def listed(self, pods: list[dict[str, Any]]) -> None: ...

    def checkpoint(self, entries: list[dict[str, Any]]) -> None: ...

    def settle(self) -> None: ...

    def patches(self) -> Iterator[tuple[str, dict[str, str]]]:
        """(pod UID, annotations to write)."""

    def held(self, now: float) -> tuple[dict[int, int], set[tuple[int, int]]]:
        """({gpu: units that others must not count on}, {(gpu, units) rejected a moment ago})."""

    # Seconds for which its extender counts a pod that ran and went without having ended: the node's word is on its way.
    holds_for: float


@dataclass
class Pod:
    """object: as the API server has it; devices: container → {gpu index: units} that its process really has, or had last; up: those
    with a process; due: when kubelet starts the others; runs: container → how often it was started; bare: without a process of the
    pod's own; ends: when its processes do, None for not yet; started: when the last container was; gone: when the object went."""

    object: dict[str, Any]
    request: Request
    placed: int
    devices: dict[str, dict[int, int]] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)
    due: dict[str, float] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    bare: bool = False
    ends: float | None = None
    survives: bool = False
    forced: bool = False
    started: float = 0.0
    gone: float = 0.0
    _read: tuple[str, Allocation | None] | None = None

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def allocation(self) -> Allocation | None:
        """What its annotations say now."""
        annotations = self.object["metadata"].get("annotations") or {}
        text = annotations.get("scheduler.framework.gpushare.allocation", "")
        if self._read is None or self._read[0] != text:
            try:
                self._read = text, read_allocation(annotations, self.request)
            except AllocationError:
                self._read = text, None
        return self._read[1]

    @property
    def annotated(self) -> Mapping[int, int]:
        return self.allocation.by_gpu if self.allocation else {}


@dataclass
class Counts:
    """What happened and what went wrong.

    paired: pods that waited beside one of the same shape with another GPU; compared: pods whose devices and annotations were
    compared; rejected_unseen: while the plugin did not reach the API server; over: units beyond a GPU, the worst of all steps;
    killed: running pods that a restart of kubelet rejected, killed_for_init: for their init containers' units; restarts: of
    containers, not_started: attempts that failed; stuck: containers that wait for a start at the end; late: starts of pods that
    were gone by then; outages: of the API server for the plugin alone; pulls: images that took long.
    """

    placed: int = 0
    running: int = 0
    rejected: int = 0
    rejected_with_room: int = 0
    rejected_unseen: int = 0
    failed: int = 0
    killed: int = 0
    killed_for_init: int = 0
    forced_alive: int = 0
    paired: int = 0
    compared: int = 0
    wrong_gpu: int = 0
    over_steps: int = 0
    over: int = 0
    plugin_restarts: int = 0
    kubelet_restarts: int = 0
    checkpoints_lost: int = 0
    corrections: int = 0
    restarts: int = 0
    not_started: int = 0
    stuck: int = 0
    late: int = 0
    outages: int = 0
    pulls: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Churn:
    """make: a plugin as it is after a start, given what the one before left behind and the ways to look at the world."""

    def __init__(self, gpus: Inventory, make: Callable[[Churn, Any], Plugin], seed: int, *, restarts: bool = True) -> None:
        self.gpus = gpus
        self.random = random.Random(seed)
        self.clock = 1000.0
        self.counts = Counts()
        self.api: dict[str, Pod] = {}
        self.processes: dict[str, Pod] = {}
        self._make = make
        self._restarts = restarts
        self._to_kubelet: deque[tuple[float, str, str]] = deque()
        self._to_plugin: deque[tuple[float, str, dict[str, Any]]] = deque()
        self._paired: set[str] = set()
        self._orphaned: dict[str, Pod] = {}
        self._waiting: list[dict[str, Any]] = []
        self._admitted: set[str] = set()
        self._held: deque[tuple[float, Any]] = deque()
        self._held_now: tuple[dict[int, int], set[tuple[int, int]]] = ({}, set())
        self._stalled_until = 0.0
        self._out = False
        self.heard = self.clock
        self._unlisted = False
        self._kubelet_since = self.clock
        self._file: list[dict[str, Any]] = []
        self.state: Any = None
        self.manager = DeviceManager(None, self._prefer, self._allocate, seed)
        self.manager.write = self._write  # type: ignore[method-assign]
        self.manager.pre_start = self._pre_start
        self.manager.pre_start_required = lambda resource: self._asked_before[resource]
        self._asked_before: dict[str, bool] = {}
        self.plugin = make(self, None)
        self.plugin.listed([])
        self._register()

    # What the plugin may look at.

    def pods(self, uids: Set[str]) -> Set[str]:
        """Those that have a process."""
        return {uid for uid in uids if uid in self.processes and (self.processes[uid].up or not self.processes[uid].bare)}

    def containers(self, uid: str) -> Set[str] | None:
        """The containers of a pod that have a process."""
        return set(self.processes[uid].up) if uid in self.processes else set()

    def _register(self) -> None:
        for resource in RESOURCES:
            self.manager.healthy[resource] = self.plugin.devices(resource)
            self._asked_before[resource] = self.plugin.asks_before_start(resource)
        self._write()

    def _write(self) -> None:
        self._file = self.manager.entries()
        self.plugin.checkpoint(self._file)

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        deadline = self.clock + 5 * STEP

        def more() -> bool:
            if self.clock >= deadline:
                return False
            self.clock += STEP
            self._deliver_to_plugin()
            return True

        return self.plugin.prefer(resource, available, must, size, more)

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        return self.plugin.allocate(resource, ids)

    async def _pre_start(self, resource: str, ids: list[str]) -> None:
        self.plugin.start(resource, ids)

    # The API server.

    def _event(self, kind: str, pod: Pod) -> None:
        """Both watchers hear of it, in order, each in its own time."""
        snapshot = _copy(pod.object)
        for queue, entry in ((self._to_kubelet, (kind, pod.uid)), (self._to_plugin, (kind, snapshot))):
            at = self.clock + self.random.choice((0, 0, 1, 2)) * STEP
            queue.append((max(at, queue[-1][0] if queue else 0.0), *entry))  # type: ignore[arg-type]

    def _deliver_to_plugin(self) -> None:
        if self.clock < self._stalled_until:
            return
        if self._unlisted:
            self._unlisted, self.heard = False, self.clock
            self._to_plugin.clear()
            self.plugin.listed([_copy(p.object) for p in self.api.values()])
        while self._to_plugin and self._to_plugin[0][0] <= self.clock:
            _, kind, seen = self._to_plugin.popleft()
            self.heard = self.clock
            self.plugin.see(kind, seen)
        if not self._to_plugin and self.clock - self.heard > BOOKMARK:
            self.heard = self.clock

    # The scheduler: what the API says of the pods, and what the node says beyond that.

    def _used(self) -> tuple[dict[int, int], set[int]]:
        used: dict[int, int] = dict.fromkeys(self.gpus.by_index, 0)
        whole: set[int] = set()
        for pod in self.api.values():
            if pod.object["status"]["phase"] == "Failed":
                continue
            annotated = pod.annotated
            for index in annotated or used:
                used[index] += annotated.get(index, pod.request.units)
            if pod.request.whole_gpus:
                whole |= annotated.keys() or used.keys()
        for index, units in self._held_now[0].items():
            used[index] += units
        self._orphaned = {uid: pod for uid, pod in self._orphaned.items() if pod.gone + self.plugin.holds_for > self.clock}
        for pod in self._orphaned.values():
            for index, units in pod.annotated.items():
                used[index] += units
        return used, whole

    def _schedule(self, object: dict[str, Any]) -> bool:
        request = parse_request(object)
        assert request is not None
        assert request.unsupported is None
        used, whole = self._used()
        rejected = self._held_now[1]
        if request.whole_gpus:
            fits = [i for i in used if not used[i] and i not in whole and not any(i == gpu for gpu, _ in rejected)]
            need = request.whole_gpus
        else:
            each = request.per_gpu
            free = {c.index: c.units - used[c.index] for c in self.gpus.gpus}
            fits = [i for i in free if free[i] >= each and i not in whole and (i, each) not in rejected]
            need = request.gpus_per_pod
        if len(fits) < need:
            return False
        chosen = sorted(self.random.sample(fits, need))
        allocation = allocate(request, [(i, self.gpus.by_index[i].units) for i in chosen])
        object["metadata"]["annotations"] = allocation.to_annotations(self.gpus, int((UNIX + self.clock) * 1e9))
        self._bind(object, request)
        return True

    def _bind(self, object: dict[str, Any], request: Request) -> None:
        placed = Pod(object, request, self.counts.placed)
        self.counts.placed += 1
        for other in self.api.values():
            same = other.request.shape == request.shape and other.object["status"]["phase"] == "Pending"
            if same and other.annotated.keys() != placed.annotated.keys():
                self._paired |= {placed.uid, other.uid}
        self.counts.paired = len(self._paired)
        self.api[placed.uid] = placed
        self._event("ADDED", placed)

    def create(self) -> None:
        """A controller makes some pods that are alike."""
        kind = self.random.randrange(10**9)
        for number in range(self.random.choice((1, 1, 2, 4))):
            self._waiting.append(make_pod(random.Random(kind), f"p{kind}-{number}"))

    # kubelet.

    def _kubelet(self) -> None:
        batch = []
        while self._to_kubelet and self._to_kubelet[0][0] <= self.clock:
            _, kind, uid = self._to_kubelet.popleft()
            if kind == "DELETED":
                self.manager.active.discard(uid)
                self._admitted.discard(uid)
            elif kind == "ADDED":
                batch.append(uid)
        for uid in batch:
            if uid in self.api and uid not in self._admitted:
                self._admit(self.api[uid])

    def _admit(self, pod: Pod) -> None:
        try:
            environments = now(self.manager.admit(pod.object))
        except AdmissionError as error:
            if self.clock < self._stalled_until:
                # Of such a pod the plugin knows nothing but a number.
                self.counts.rejected_unseen += 1
            else:
                self.counts.rejected += 1
                if self._room(pod):
                    self.counts.rejected_with_room += 1
                    self.counts.reasons[str(error)] += 1
            self._fail(pod)
            return
        self._admitted.add(pod.uid)
        keeps = {c.name for c in pod.request.containers if c.keeps}
        pod.bare = self.random.random() < 0.3
        # An image that is not there yet.
        pull = self.random.uniform(1, 20) if self.random.random() < 0.25 else 0.0
        self.counts.pulls += pull > 0
        for name, environment in environments.items():
            if name in keeps:
                if not self._gpus_in(environment):
                    self.counts.failed += 1
                    self._fail(pod)
                    self.manager.active.discard(pod.uid)
                    return
                pod.due[name] = self.clock + pull
        self.processes[pod.uid] = pod
        if not pull:
            self._start(pod)

    def _gpus_in(self, environment: Mapping[str, str]) -> list[Gpu]:
        uuids = environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        return [self.gpus.by_uuid[uuid] for uuid in uuids] if all(uuid in self.gpus.by_uuid for uuid in uuids) else []

    def _start(self, pod: Pod) -> None:
        """kubelet starts the containers that are due, and says so."""
        began = not pod.up and not pod.runs
        for name in [name for name, at in pod.due.items() if at <= self.clock]:
            spec = next(c for c in [*pod.object["spec"].get("initContainers", []), *pod.object["spec"]["containers"]] if c["name"] == name)
            try:
                environment = now(self.manager.start(pod.object, spec))
            except (StartError, AdmissionError) as error:
                pod.due[name] = self.clock + AGAIN
                self.counts.not_started += 1
                self.counts.reasons[f"start: {error}"] += 1
                continue
            gpus = self._gpus_in(environment)
            if not gpus:
                # kubelet has lost its record and knows the pod no more.
                pod.due[name] = self.clock + AGAIN
                continue
            of = next(c for c in pod.request.containers if c.name == name)
            pod.devices[name] = {gpu.index: gpu.units if of.whole_gpus else of.units // len(gpus) for gpu in gpus}
            pod.up.add(name)
            pod.runs[name] += 1
            self.counts.restarts += pod.runs[name] > 1
            del pod.due[name]
            pod.started = self.clock
        if not pod.up:
            return
        self.counts.running += began
        if pod.uid in self.api:
            pod.object["status"] = status(pod, "Running")
            self._event("MODIFIED", pod)

    def _end_container(self, pod: Pod) -> None:
        """One ends, and kubelet is to start it again: at once or after a while."""
        name = self.random.choice(sorted(pod.up))
        pod.up.discard(name)
        pod.due[name] = self.clock + self.random.choice((STEP, 0.5, 2.0, 10.0))
        pod.object["status"] = status(pod, "Running")
        self._event("MODIFIED", pod)

    def _containers(self) -> None:
        for pod in list(self.processes.values()):
            wanted = pod.uid in self.api and pod.object["status"]["phase"] != "Failed" and pod.ends is None
            if not wanted and pod.forced and not pod.up and pod.due and min(pod.due.values()) <= self.clock:
                # An older kubelet does not leave off when the pod goes while it makes the container.
                self._start(pod)
                self.counts.late += bool(pod.up)
                pod.due.clear()
            elif wanted:
                if pod.due:
                    self._start(pod)
                if pod.up and not pod.due and self._restarts and self.random.random() < 0.01:
                    self._end_container(pod)

    def _room(self, pod: Pod) -> bool:
        """Whether the GPUs that the scheduler chose have room for it, by what processes have of them."""
        used: dict[int, int] = {}
        for other in self.processes.values():
            for name in other.devices.keys() & {*other.up, *other.due}:
                for index, units in other.devices[name].items():
                    used[index] = used.get(index, 0) + units
        return all(used.get(index, 0) + units <= self.gpus.by_index[index].units for index, units in pod.annotated.items())

    def _fail(self, pod: Pod) -> None:
        pod.object["status"]["phase"] = "Failed"
        self._event("MODIFIED", pod)

    # What users and machines do.

    def delete(self, pod: Pod, *, force: bool) -> None:
        if force:
            pod.forced = True
            pod.survives = pod.uid in self.processes and self.random.random() < 0.7
            self.counts.forced_alive += bool(pod.survives and pod.up)
            pod.ends = self.clock + (self.random.uniform(1, 20) if pod.survives else self.random.uniform(0, 1))
            if pod.up or not pod.survives:
                pod.due.clear()
            del self.api[pod.uid]
            pod.gone = self.clock
            if pod.object["status"]["phase"] == "Running":
                self._orphaned[pod.uid] = pod
            self._event("DELETED", pod)
        else:
            pod.ends = self.clock + self.random.uniform(0, 2)

    def _end_processes(self) -> None:
        for pod in [*self.api.values(), *(p for p in self.processes.values() if p.uid not in self.api)]:
            if pod.ends is None or pod.ends > self.clock:
                continue
            if self.processes.pop(pod.uid, None) and self._settled(pod) and not pod.forced:
                self.counts.compared += 1
                self.counts.wrong_gpu += self._wrong(pod)
            if pod.uid in self.api and not pod.forced:
                pod.up.clear()
                pod.due.clear()
                pod.object["status"] = status(pod, pod.object["status"]["phase"], ended=True)
                pod.object["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
                self.manager.active.discard(pod.uid)
                self._admitted.discard(pod.uid)
                del self.api[pod.uid]
                self._event("DELETED", pod)

    def _settled(self, pod: Pod) -> bool:
        """Whether there was time to write what its containers have."""
        return bool(pod.devices) and not pod.due and self.clock - max(pod.started, self._stalled_until) > SETTLED

    def restart_plugin(self) -> None:
        """kill -9 and a new one, which reads the state file, the checkpoint, and lists the pods."""
        self.counts.plugin_restarts += 1
        self.plugin = self._make(self, self.state)
        self.plugin.checkpoint(self._file)
        self._register()
        self._unlisted = True
        self._deliver_to_plugin()

    def restart_kubelet(self, *, lost: bool) -> None:
        """Everything in memory goes; pods are admitted anew, those with running containers by being passed by."""
        self.counts.kubelet_restarts += 1
        self.counts.checkpoints_lost += lost
        if lost:
            self._file = []
            self.plugin.checkpoint([])
        entries = self._file
        self.manager.restore(entries, RESOURCES)
        self.manager.sources_ready = False
        self.manager.running = {(uid, c) for uid, p in self.processes.items() for c in p.up}
        self._kubelet_since = self.clock
        self.manager.active = {uid for uid, p in self.api.items() if p.object["status"]["phase"] != "Failed"}
        self._register()
        known = {uid for uid in self._admitted if uid in self.processes}
        for pod in [p for p in self.api.values() if p.uid in known and p.object["status"]["phase"] != "Failed"]:
            try:
                now(self.manager.admit(pod.object))
            except AdmissionError as error:
                if pod.up and not pod.due:
                    # kubelet asks anew for what an init container had and later ones have, and nobody can tell who asks.
                    inits = any(not c.keeps for c in pod.request.containers)
                    self.counts.killed_for_init += inits
                    self.counts.killed += not inits
                self.counts.reasons[f"again: {error}"] += 1
                pod.ends = self.clock
        self._admitted &= known
        self.manager.sources_ready = True

    # Time.

    def step(self) -> None:
        self.clock += STEP
        if self._restarts and self.random.random() < 0.01:
            self.restart_plugin()
        if self._restarts and self.random.random() < 0.008:
            self.restart_kubelet(lost=self.random.random() < 0.4)
        if self._restarts and self.random.random() < 0.01:
            # Nobody reaches the API server, or only the plugin does not.
            self._stalled_until = self.clock + self.random.uniform(0, 3)
            self._out = self.random.random() < 0.7
        if self._restarts and self.clock >= self._stalled_until and self.random.random() < 0.002:
            self._stalled_until, self._out = self.clock + self.random.uniform(10, 40), False
            self.counts.outages += 1
        if len(self._waiting) < 8:
            self.create()
        self.random.shuffle(self._waiting)
        out = self._out and self.clock < self._stalled_until
        self._waiting = [w for w in self._waiting if out or not self._schedule(w)]
        for pod in [] if out else list(self.api.values()):
            if pod.ends is None and self.random.random() < 0.03:
                self.delete(pod, force=self.random.random() < 0.4)
        self._end_processes()
        self._containers()
        self._deliver_to_plugin()
        if not out:
            self._kubelet()
        self._look_after()
        self._check_gpus()

    def _look_after(self) -> None:
        """The plugin's own work beside kubelet's questions."""
        self._deliver_to_plugin()
        self.plugin.settle()
        if self.clock - self._kubelet_since > ANEW:
            # Never the other way before kubelet restarts.
            for resource, asked in self._asked_before.items():
                self._asked_before[resource] = asked and self.plugin.asks_before_start(resource)
        if self.clock >= self._stalled_until:
            for uid, annotations in list(self.plugin.patches()):
                pod = self.api.get(uid)
                if pod is not None:
                    self.counts.corrections += "ALIYUN_COM_GPU_MEM_IDX" in annotations
                    pod.object["metadata"]["annotations"] = {**(pod.object["metadata"].get("annotations") or {}), **annotations}
                    self._event("MODIFIED", pod)
            self._held.append((self.clock + STEP, self.plugin.held(UNIX + self.clock)))
        while self._held and self._held[0][0] <= self.clock:
            self._held_now = self._held.popleft()[1]

    def _check_gpus(self) -> None:
        units: dict[int, int] = {}
        for pod in self.processes.values():
            for name in pod.up:
                for index, count in pod.devices[name].items():
                    units[index] = units.get(index, 0) + count
        over = max((count - self.gpus.by_index[index].units for index, count in units.items()), default=0)
        if over > 0:
            self.counts.over_steps += 1
            self.counts.over = max(self.counts.over, over)

    def quiet(self) -> None:
        """No more changes: everything under way arrives."""
        self._restarts, self._stalled_until = False, min(self._stalled_until, self.clock)
        for _ in range(400):
            self.clock += STEP
            self._end_processes()
            self._containers()
            self._deliver_to_plugin()
            self._kubelet()
            self._look_after()
            self._check_gpus()
        left = [pod for pod in self.processes.values() if pod.uid in self.api and pod.ends is None and not pod.due]
        self.counts.stuck = sum(len(pod.due) for pod in self.processes.values() if pod.uid in self.api and pod.ends is None)
        self.counts.compared += len(left)
        self.counts.wrong_gpu += sum(map(self._wrong, left))

    def _wrong(self, pod: Pod) -> bool:
        """Whether a container has other GPUs than its pod's annotations say."""
        has = {c.key: pod.devices.get(c.name) for c in pod.request.containers if c.keeps}
        return pod.allocation is None or has != {key: dict(gpus) for key, gpus in pod.allocation.containers if key in has}


def _copy(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": dict(pod["metadata"]), "status": dict(pod["status"])}


def status(pod: Pod, phase: str, *, ended: bool = False) -> dict[str, Any]:
    """As kubelet reports a pod; ordinary init containers have ended long ago."""
    spec = pod.object["spec"]
    keeps = {c.name for c in pod.request.containers if c.keeps}

    def of(name: str) -> dict[str, Any]:
        state = "terminated" if ended or name not in keeps else "running" if name in pod.up else "waiting"
        return {"name": name, "state": {state: {}}, "containerID": f"run://{pod.uid}-{name}-{pod.runs[name]}" if pod.runs[name] else ""}

    inits, apps = ([of(c["name"]) for c in spec.get(kind, [])] for kind in ("initContainers", "containers"))
    return {"phase": phase, "initContainerStatuses": inits, "containerStatuses": apps}


def make_pod(random: random.Random, name: str) -> dict[str, Any]:
    """Mixed and equal sizes, several containers, init containers, sidecars, several GPUs, whole GPUs."""
    size = random.choice((1, 2, 2, 2, 4, 4, 6))
    labels: dict[str, str] = {}
    init: list[dict[str, Any]] = []
    shape = random.random()
    containers = [container("main", mem=size)]
    if shape < 0.12:
        containers = [container("a", mem=size), container("b", mem=random.choice((1, 2)))]
    elif shape < 0.20:
        init = [container("first", mem=random.choice((1, size, size + 2)))]
    elif shape < 0.27:
        init = [container("side", mem=random.choice((1, 2))) | {"restartPolicy": "Always"}]
    elif shape < 0.34:
        containers, labels = [container("main", mem=2 * size)], {"aliyun.com/gpu-count": "2"}
    elif shape < 0.39:
        containers = [container("main", count=1)]
    made = pod_of(*containers, init=init, name=name, uid=f"uid-{name}", labels=labels)
    made["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
    made["spec"]["nodeName"] = "gpu1"
    made["status"] = {"phase": "Pending"}
    return made

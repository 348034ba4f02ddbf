# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The world around kubelet and the device plugin: API server, users, scheduler with the real ledger, processes, and what is true."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import AllocationError, read_allocation
from gpushare_runtime.core.objects import PodReader, read_node
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.request import parse_request
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.evictor import Evictor
from gpushare_runtime.extender.extender_v1 import Arguments
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.kube.client import KubeError
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.pods import container
from unit.fakes.runtime.pods import pod as make_pod

if TYPE_CHECKING:
    from unit.runtime.device_plugin.storm.kubelet import Kubelet
    from unit.runtime.device_plugin.storm.plugin import Plugin

MEMORY, GPUS = RESOURCES
NODE: Final = "gpu1"
UNIX: Final = 1_774_000_000.0
SIZES: Final = (16, 16, 24, 8)
ENDED: Final = ("Failed", "Succeeded")
GIB_BYTES: Final = 1024**3
# A limit may lack so long: kubelet that has lost a record does not ask, and the plugin looks five times a second.
LIMIT_SECONDS: Final = 2.0
# A GPU that does not answer takes no limit. The plugin reads the GPUs so often.
READ_SECONDS: Final = 2.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool], every: float = 0.1) -> None:
    while not condition():  # noqa: ASYNC110
        # In virtual time looking costs less than telling everybody.
        await asyncio.sleep(every)


def containers_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """In kubelet's order."""
    return [*raw["spec"].get("initContainers", []), *raw["spec"]["containers"]]


def asks(raw: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(c["name"], *map(int, c["resources"]["limits"].values())) for c in containers_of(raw)]


@dataclass
class Pod:
    """What runs of a pod, and what kubelet knows about it.

    kinds: container → init, sidecar or app, in kubelet's order; devices: container → {gpu: units} of the running process; whole: the
    containers with whole GPUs; ghosts: (end, {gpu: units}) of processes that stay after their container's end; bare: without a
    process of the pod's own; ends: when kubelet began to end it; pull: seconds until the image is there; due: container → when kubelet
    starts it again; again: its worker has something to do; woken: what the API server shows of it has changed.
    """

    raw: dict[str, Any]
    kinds: dict[str, str]
    bare: bool
    pull: float
    devices: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    runs: Counter[str] = field(default_factory=Counter)
    state: dict[str, str] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    ghosts: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    ends: float | None = None
    lives: bool = True
    sandbox: bool = False
    worker: asyncio.Task[None] | None = None
    again: asyncio.Event = field(default_factory=asyncio.Event)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str = ""

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @cached_property
    def per_gpu(self) -> int:
        """Units of each of its GPUs that its request has."""
        return parse_request(self.raw, bound=True).per_gpu

    def stop(self, seconds: float = 0.0) -> None:
        """kubelet ends it: all processes end within so many seconds."""
        if self.worker is not None:
            self.worker.cancel()
            self.worker = None
        self.ends, self.lives, self.sandbox = now() + seconds, False, False
        self.ghosts += [(self.ends, dict(gpus)) for gpus in self.devices.values() if seconds]
        self.devices.clear()


@dataclass
class File:
    """kubelet's checkpoint. n: which writing it is."""

    n: int
    entries: list[dict[str, Any]]
    at: float
    corrupt: bool = False


class World:
    """faults: what went wrong, each with its time; counts: what happened; log: the same in words."""

    def __init__(
        self, seed: int, make_plugin: Callable[[World], Plugin], make_kubelet: Callable[[World], Kubelet], *, verbose: bool = False
    ) -> None:
        self._make_plugin = make_plugin
        self._make_kubelet = make_kubelet
        self.random = random.Random(seed)
        self.seed = seed
        self.verbose = verbose
        self.folder = Path(tempfile.mkdtemp(prefix="storm-"))
        self.nvml = FakeNvml(*[size * 1024 for size in SIZES])
        self.nvml.unlimited = None
        self.units = {gpu.uuid: gpu.mib // 1024 for gpu in self.nvml.gpus}
        self.boot = "boot-0"
        self.kubepods = False
        self.api: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self.completed: set[str] = set()
        """UIDs of the pods of which all containers have ended for good, whether or not kubelet has said so."""
        self.file: File | None = File(0, [], 0.0)
        self.saved: bytes | None = None
        self.annotations: dict[str, str] = {}
        self.cordon = ""
        self.stays = True
        self.quiet = False
        self.api_until = self.plugin_api_until = 0.0
        self.plugin: Plugin | None = None
        self.kubelet: Kubelet | None = None
        self.to_kubelet: asyncio.Queue[tuple[float, str, dict[str, Any]]] = asyncio.Queue()
        self.to_plugin: asyncio.Queue[tuple[float, str, dict[str, Any]]] = asyncio.Queue()
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.log: deque[str] = deque(maxlen=20_000)
        self._numbers = itertools.count(1)
        self._over: set[str] = set()
        self._unlimited: dict[tuple[str, str], float | None] = {}
        self._answers_since: dict[str, float] = {}
        # The extender.
        self.cluster = ClusterCache(clock=now)
        self._policy = Placement("binpack", "", self.cluster.scarcity)
        self._service = Verbs(self.cluster.ledger, self._policy, clock=now)
        self._evictor = Evictor(self.cluster, lambda *_: None, now=lambda: UNIX + now(), clock=now)
        self._reader = PodReader()
        self._waiting: dict[str, float] = {}

    def start_plugin(self) -> None:
        if self.plugin is None:
            self.note("plugin starts")
            self.plugin = self._make_plugin(self)

    def start_kubelet(self) -> None:
        if self.kubelet is None:
            self.note("kubelet starts")
            self.kubelet = self._make_kubelet(self)

    def restart_kubelet(self, seconds: float) -> None:
        """It has died, and systemd starts it again after so many seconds."""
        if self.kubelet is not None:
            self.kubelet.kill()
            self.kubelet = None
            asyncio.get_running_loop().call_later(seconds, self.start_kubelet)

    def note(self, text: str) -> None:
        self.log.append(f"{now():9.2f} {text}")
        if self.verbose:
            print(self.log[-1], flush=True)

    def fault(self, kind: str, text: str) -> None:
        self.faults.append(f"{kind} at {now():.1f}: {text}")
        self.note(self.faults[-1])

    def ends_by_itself(self, pod: Pod, name: str, seconds: float) -> None:
        """An init container does its work, whatever becomes of kubelet."""

        def end() -> None:
            if pod.devices.pop(name, None) is not None:
                pod.state[name] = "terminated"
                if self.kubelet is not None and self.kubelet.up:
                    self.kubelet.tell(pod)

        asyncio.get_running_loop().call_later(seconds, end)

    # This host's processes, as the plugin sees them.

    def live(self, uids: Set[str]) -> Set[str]:
        """Those of these pods that have a process."""
        pods = {uid: self.pods[uid] for uid in uids if uid in self.pods}
        return {uid for uid, pod in pods.items() if pod.devices or pod.ghosts or (pod.sandbox and not pod.bare)}

    def containers(self, uid: str) -> Set[str] | None:
        pod = self.pods.get(uid)
        return None if pod is not None and pod.ghosts else set(pod.devices) if pod is not None else set()

    def groups_of(self, uid: str) -> list[str]:
        pod = self.pods.get(uid)
        return [self.group(uid)] if pod is not None and (pod.sandbox or pod.devices or pod.ghosts) else []

    def group_of_pods(self) -> str | None:
        return "/cg/kubepods" if self.kubepods else None

    def groups_in(self, group: str) -> list[str]:
        return []

    def group(self, uid: str) -> str:
        return f"/cg/kubepods/pod{uid}"

    # The API server.

    @property
    def away(self) -> bool:
        return now() < self.api_until

    @property
    def away_for_plugin(self) -> bool:
        return now() < max(self.api_until, self.plugin_api_until)

    def _emit(self, kind: str, raw: dict[str, Any]) -> None:
        """All watchers hear of it, each in its own time."""
        seen = copy.deepcopy(raw)
        late = 0.3 if self.random.random() < 0.1 else 0.0
        self.to_kubelet.put_nowait((now() + self.random.choice((0, 0.002, 0.01, 0.05)), kind, seen))
        self.to_plugin.put_nowait((now() + self.random.choice((0, 0.002, 0.01, 0.05, late)), kind, seen))
        record = self._reader(copy.deepcopy(raw))
        if record is not None:
            self.cluster.pod_event(kind, record)

    def put(self, raw: dict[str, Any]) -> None:
        kind = "MODIFIED" if raw["metadata"]["name"] in self.api else "ADDED"
        self.api[raw["metadata"]["name"]] = raw
        self._emit(kind, raw)

    def gone(self, raw: dict[str, Any]) -> None:
        if self.api.get(raw["metadata"]["name"]) is raw:
            del self.api[raw["metadata"]["name"]]
            self._emit("DELETED", raw)

    def object_of(self, uid: str) -> dict[str, Any] | None:
        return next((raw for raw in self.api.values() if raw["metadata"]["uid"] == uid), None)

    def bound(self) -> list[dict[str, Any]]:
        return [raw for raw in self.api.values() if raw["spec"].get("nodeName")]

    async def patch(self, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        """The plugin's only request, of its node or of a pod."""
        await asyncio.sleep(self.random.choice((0.005, 0.05)))
        if self.away_for_plugin:
            raise KubeError(0, "Unreachable", "away")
        if "/pods/" not in path:
            left = {**self.annotations, **body["metadata"]["annotations"]}
            self.annotations = {name: value for name, value in left.items() if value is not None}
            record = read_node({"metadata": {"name": NODE, "annotations": self.annotations, "labels": {}}})
            asyncio.get_running_loop().call_later(self.random.choice((0.02, 0.2)), self.cluster.node_event, "MODIFIED", record)
            return {}
        raw = self.api.get(path.split("/pods/")[1].split("/")[0])
        if raw is None or raw["metadata"]["uid"] != body["metadata"]["uid"]:
            raise KubeError(404 if raw is None else 409, "x", "gone")
        for name, value in body["metadata"]["annotations"].items():
            if value is None:
                raw["metadata"]["annotations"].pop(name, None)
            else:
                raw["metadata"]["annotations"][name] = value
        self.counts["corrections"] += protocol.ANNOTATION_ALLOCATION in body["metadata"]["annotations"]
        self._emit("MODIFIED", raw)
        return raw

    # Users.

    def new_pod(self) -> dict[str, Any]:
        choice = self.random.choice
        size = choice((1, 2, 2, 4, 4, 4, 6, 8))
        labels: dict[str, str] = {}
        init: list[dict[str, Any]] = []
        shape = self.random.random()
        containers = [container("main", mem=size)]
        if shape < 0.15:
            containers = [container("a", mem=size), container("b", mem=choice((1, 2, size)))]
        elif shape < 0.25:
            init = [container("first", mem=choice((1, size, size + 2)))]
        elif shape < 0.32:
            init = [container("side", mem=choice((1, 2))) | {"restartPolicy": "Always"}]
        elif shape < 0.40:
            containers, labels = [container("main", mem=2 * size)], {"aliyun.com/gpu-count": "2"}
        elif shape < 0.48:
            containers = [container("main", count=choice((1, 1, 2)))]
        number = next(self._numbers)
        uid = f"{number:08x}-0000-4000-8000-{self.seed:012x}"
        raw = make_pod(*containers, init=init, name=f"p{number}", uid=uid, labels=labels, annotations={})
        raw["metadata"]["creationTimestamp"] = f"2026-11-21T10:{int(now()) // 60 % 60:02d}:{int(now()) % 60:02d}Z"
        raw["status"] = {"phase": "Pending"}
        raw["spec"]["restartPolicy"] = "Never" if self.random.random() < 0.3 else "Always"
        return raw

    async def users(self) -> None:
        """They create pods, some with a node's name by hand, and remove those that have ended."""
        while True:
            await asyncio.sleep(self.random.expovariate(1.0))
            if not self.quiet and sum(not raw["spec"].get("nodeName") for raw in self.api.values()) < 6 and len(self.api) < 40:
                for _ in range(self.random.choice((1, 1, 2, 3))):
                    raw = self.new_pod()
                    if self.random.random() < 0.04:
                        raw["spec"]["nodeName"] = NODE
                        self.counts["by hand"] += 1
                        self.note(f"create {raw['metadata']['name']} by hand")
                    self.put(raw)
            for raw in list(self.api.values()):
                if raw["status"]["phase"] in ENDED and self.random.random() < 0.2 and not self.away:
                    self.gone(raw)

    # The scheduler.

    async def scheduler(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.cluster.expire()
            if self.away:
                continue
            for raw in list(self.api.values()):
                name = raw["metadata"]["name"]
                if not raw["spec"].get("nodeName") and self._waiting.get(name, 0.0) <= now() and not self._schedule(raw):
                    self._waiting[name] = now() + self.random.choice((1, 2))
            for record, _ in self._evictor.due().values():
                raw = self.object_of(record.uid)
                if raw is not None and "deletionTimestamp" not in raw["metadata"]:
                    self.counts["evicted"] += 1
                    self.note(f"evict {record.name}")
                    self.delete(raw)

    def _schedule(self, raw: dict[str, Any]) -> bool:
        if not self._fits_totals(raw) or not self._service.filter(Arguments(copy.deepcopy(raw), [NODE])).names:
            return False
        uid = raw["metadata"]["uid"]
        pending, node = self.cluster.pending[uid], self.cluster.ledger.node(NODE)
        self.cluster.ledger.release(uid)
        allocation = self._policy.choose(self.cluster.ledger.for_pod(pending), node)
        if allocation is None:
            return False
        self.cluster.assume(pending.allocated(NODE, allocation))
        raw["spec"]["nodeName"] = NODE
        raw["metadata"]["annotations"].update(allocation.to_annotations(node.inventory, int((UNIX + now()) * 1e9)))
        self.counts["bound"] += 1
        self.note(f"bind {raw['metadata']['name']} {asks(raw)} to {dict(allocation.by_gpu)}")
        self._emit("MODIFIED", raw)
        return True

    def _fits_totals(self, raw: dict[str, Any]) -> bool:
        """kube-scheduler's own look: allocatable less requests."""
        if self.kubelet is None or not self.kubelet.ready:
            return False
        healthy = self.kubelet.manager.healthy
        known = [
            request for other in self.bound() if other["status"]["phase"] not in ENDED and (request := parse_request(other, bound=True))
        ]
        want = parse_request(raw)
        units = want.units + sum(request.units for request in known) if want.units else 0
        whole = want.whole_gpus + sum(request.whole_gpus for request in known) if want.whole_gpus else 0
        return units <= len(healthy.get(MEMORY, ())) and whole <= len(healthy.get(GPUS, ()))

    def delete(self, raw: dict[str, Any]) -> None:
        """With grace, so kubelet ends it first."""
        if not raw["spec"].get("nodeName") or raw["status"]["phase"] in ENDED:
            self.gone(raw)
        else:
            raw["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
            self._emit("MODIFIED", raw)

    # Truth.

    async def checks(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for uid, pod in list(self.pods.items()):
                pod.ghosts = [ghost for ghost in pod.ghosts if ghost[0] > now()]
                if not pod.lives and not pod.devices and not pod.ghosts:
                    self.nvml.limits = {key: value for key, value in self.nvml.limits.items() if key[1] != self.group(uid)}
                    del self.pods[uid]
            self._check_gpus()
            if self.plugin is not None:
                self._check_limits(self.plugin)

    def _check_gpus(self) -> None:
        used: Counter[str] = Counter()
        for _, _, gpus in self._uses():
            for uuid, units in gpus.items():
                used[uuid] += units
        over = {uuid for uuid in used if used[uuid] > self.units[uuid]}
        for uuid in sorted(over - self._over):
            who = [(pod, name, gpus[uuid]) for pod, name, gpus in self._uses() if uuid in gpus]
            self.fault("OVER", f"GPU {uuid[:12]} {used[uuid]} of {self.units[uuid]}: {who}")
        self._over = over

    def _uses(self) -> Iterator[tuple[str, str, dict[str, int]]]:
        """Pod, container and what its processes have."""
        for pod in self.pods.values():
            yield from ((pod.name, name, gpus) for name, gpus in pod.devices.items())
            yield from ((pod.name, "ghost", gpus) for _, gpus in pod.ghosts)

    def _check_limits(self, plugin: Plugin) -> None:
        lacking = set()
        self._answers_since |= {self.nvml.gpus[index].uuid: now() for index in self.nvml.lost}
        for pod in self.pods.values():
            due: Counter[str] = Counter()
            for name, gpus in pod.devices.items():
                if name not in pod.whole:
                    due.update(gpus)
            for uuid, units in due.items():
                found = self.nvml.limits.get((uuid, self.group(pod.uid)))
                if found is None or found < units * GIB_BYTES or self._exceeds(found, plugin, pod, uuid):
                    lacking.add((pod.uid, uuid))
                    since = self._unlimited.setdefault((pod.uid, uuid), now())
                    known = self._answers_since.get(uuid, -READ_SECONDS) + READ_SECONDS
                    if since is not None and now() - max(since, known) > LIMIT_SECONDS:
                        self._unlimited[pod.uid, uuid] = None
                        has = "no limit" if found is None else f"a limit of {found // GIB_BYTES}"
                        self.fault("LIMIT", f"{pod.name} uses {units} of {uuid[:12]} with {has}; its containers started {dict(pod.runs)}")
        self._unlimited = {key: since for key, since in self._unlimited.items() if key in lacking}

    def _exceeds(self, found: int, plugin: Plugin, pod: Pod, uuid: str) -> bool:
        """Whether a limit is more than its pod may have: by its request, kubelet's record, or after a lost one what the plugin knew."""
        if found <= pod.per_gpu * GIB_BYTES:
            return False
        given = self.kubelet.manager.given.get(pod.uid, {}) if self.kubelet is not None else {}
        ids = {i for of in given.values() for i in of.get(MEMORY, ()) if i.startswith(uuid)}
        return found > max(len(ids), plugin.node.usage.memory_of(pod.uid).get(uuid, 0)) * GIB_BYTES

    def finish(self) -> None:
        """When all is quiet: what is wrong for good."""
        assert self.plugin is not None
        node = self.plugin.node
        for pod in self.pods.values():
            raw = self.object_of(pod.uid)
            if raw is None or raw["status"]["phase"] in ENDED or not pod.lives:
                continue
            missing = [name for name, kind in pod.kinds.items() if kind != "init" and name not in pod.devices]
            if missing:
                self.fault("STUCK", f"{pod.name}/{missing} {asks(raw)} {raw['metadata'].get('labels')}: {pod.problem[:300]}")
                continue
            request = parse_request(raw, bound=True)
            try:
                allocation = read_allocation(raw["metadata"]["annotations"], request)
            except AllocationError as error:
                self.fault("GPU", f"{pod.name}: {error}")
                continue
            by_uuid = node.devices.by_uuid
            has = {c.key: {by_uuid[u].index: n for u, n in pod.devices[c.name].items()} for c in request.containers if c.keeps}
            said = {key: dict(gpus) for key, gpus in allocation.containers if key in has} if allocation else None
            if said != has:
                self.fault("GPU", f"{pod.name}: the annotation says {said}, it has {has}")
            if node.usage.was_allocated(pod.uid) and node.usage.released(pod.uid):
                self.fault("UNSEEN", f"{pod.name} runs, and the plugin has released its units")
        for uid, _, _ in node.usage.snapshot():
            if uid not in self.pods:
                self.fault("LEAK", f"the plugin counts units of {uid}, which has no process")
        ledger = self.cluster.ledger.node(NODE)
        said_by_ledger = {pod.uid for pod in ledger.pods}
        real = {raw["metadata"]["uid"] for raw in self.bound() if raw["status"]["phase"] not in ENDED}
        if ledger.problems() or said_by_ledger != real:
            self.fault("LEDGER", f"{ledger.problems()}, too much {said_by_ledger - real}, lacks {real - said_by_ledger}")

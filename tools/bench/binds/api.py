# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The API server of the simulation: pods, one Lease, watches for everybody, Bindings that go as chance will have it; it counts."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from gpushare_runtime.extender.leadership import TRANSIT_SECONDS
from gpushare_runtime.kube.client import TIMEOUT, KubeError
from unit.fakes.runtime.core.naive import CORE, MEMORY, WHOLE, effective

ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
NODES: Final = {f"node-{n}": (16, 16, 24, 80)[: 1 + n % 4] for n in range(12)}
_NO_ANSWER: Final = KubeError(0, TIMEOUT, "no answer in time")


class Watcher(Protocol):
    """Gets every change of a pod, in order, in its own time."""

    def tell(self, version: int, kind: str, raw: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class _Share:
    """What a bound pod has by its annotation: GPU index → units, and compute on each."""

    node: str
    units: Mapping[str, int]
    core: int
    complaint: str = ""


class Api:
    """excess: GPUs that the annotations of bound pods give twice; late: UIDs whose Binding an extender sent after a pause of its
    whole process, which nothing but the node can stop; half: pods that carry an allocation and no node;
    struggles: half of the Bindings land late."""

    def __init__(self, random: Random) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.lease: dict[str, Any] | None = {"metadata": {"uid": "lease"}, "spec": {"holderIdentity": "", "leaseTransitions": 0}}
        self.version = 0
        self.bound = 0
        self.excess: list[str] = []
        self.explained: list[str] = []
        self.half: list[str] = []
        self.late: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.watchers: list[Watcher] = []
        self.struggles = False
        self.errors: list[BaseException] = []
        self._slow: set[str] = set()
        self._shares: dict[str, _Share] = {}
        self._random = random

    def announce(self, kind: str, raw: dict[str, Any]) -> None:
        """After every write of a pod."""
        self.version += 1
        if ALLOCATION in raw["metadata"].get("annotations", {}) and not raw["spec"].get("nodeName"):
            self.half.append(raw["metadata"]["name"])
        seen = copy.deepcopy(raw)
        for watcher in self.watchers:
            watcher.tell(self.version, kind, seen)

    def add(self, raw: dict[str, Any]) -> None:
        self.pods[raw["metadata"]["name"]] = raw
        self.announce("ADDED", raw)

    def remove(self, raw: dict[str, Any]) -> None:
        if self.pods.get(raw["metadata"]["name"]) is raw:
            del self.pods[raw["metadata"]["name"]]
            self._shares.pop(raw["metadata"]["uid"], None)
            self.announce("DELETED", raw)

    def status(self, uid: str, phase: str, state: str = "") -> None:
        """kubelet says how a pod is. state: of its containers."""
        raw = next((raw for raw in self.pods.values() if raw["metadata"]["uid"] == uid), None)
        if raw is None:
            return
        statuses = [{"name": c["name"], "state": {state: {}}} for c in raw["spec"]["containers"]] if state else []
        raw["status"] = {"phase": phase, "containerStatuses": statuses}
        if phase in ("Failed", "Succeeded"):
            self._shares.pop(uid, None)
        self.announce("MODIFIED", raw)

    # What the extenders call.

    async def get(self, path: str, **params: object) -> dict[str, Any]:
        await asyncio.sleep(self._random.choice((0.001, 0.001, 0.02)))
        if "/leases/" in path:
            if self._random.random() < 0.005:
                raise KubeError(500, "InternalError", "etcd has no leader")
            if self.lease is None:
                raise KubeError(404, "NotFound", "leases kube-scheduler not found")
            return copy.deepcopy(self.lease)
        if params.get("limit"):
            return {"metadata": {"resourceVersion": str(self.version)}}
        name = path.rsplit("/", 1)[1]
        if name not in self.pods:
            raise KubeError(404, "NotFound", f'pods "{name}" not found')
        return copy.deepcopy(self.pods[name])

    async def patch(self, path: str, body: Mapping[str, Any], **params: object) -> None:
        """Annotations; only a switched-on flaw writes any."""
        await asyncio.sleep(0.001)
        raw = self.pods.get(path.rsplit("/", 1)[1])
        if raw is not None:
            raw["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
            self.announce("MODIFIED", raw)

    async def create(self, path: str, body: Mapping[str, Any], *, within: float, **params: object) -> dict[str, Any]:
        """A Binding: lands, lands late with the answer lost, is lost, or is rejected. It lands whatever becomes of who sent it."""
        server = float(str(params["timeout"]).removesuffix("s"))
        body = copy.deepcopy(dict(body))
        chance, uid = self._random.random(), body["metadata"]["uid"]
        if chance < (0.5 if self.struggles else 0.01) or uid in self._slow:
            self.faults["arrived late"] += 1
            # What is slow once is slow again, so that sending it twice does not help.
            self._slow = {uid} - self._slow
            # It arrives within the transit's bound, and the server works on it no longer than it was told.
            late = self._random.random() * TRANSIT_SECONDS + self._random.random() * server
            asyncio.get_running_loop().call_later(late, self._bind, body)
            await asyncio.sleep(self._random.choice((0.001, 0.05)))
            raise _NO_ANSWER
        if chance < 0.02:
            self.faults["lost" if chance < 0.015 else "rejected"] += 1
            await asyncio.sleep(0.005)
            raise _NO_ANSWER if chance < 0.015 else KubeError(500, "InternalError", "etcd has no leader")
        answer: asyncio.Future[KubeError | None] = asyncio.get_running_loop().create_future()

        def land() -> None:
            error = self._bind(body)
            if not answer.done():
                answer.set_result(error)

        asyncio.get_running_loop().call_later(self._random.choice((0.001, 0.005, 0.05)), land)
        error = await answer
        if error is not None:
            raise error
        return {}

    def _bind(self, body: Mapping[str, Any]) -> KubeError | None:
        raw = self.pods.get(body["metadata"]["name"])
        if raw is None or raw["metadata"]["uid"] != body["metadata"]["uid"] or raw["spec"].get("nodeName"):
            return KubeError(409, "Conflict", "gone, another, or bound")
        raw["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        raw["spec"]["nodeName"] = body["target"]["name"]
        self.bound += 1
        self._shares[raw["metadata"]["uid"]] = _share(raw)
        self.announce("MODIFIED", raw)
        for words in self._count(raw["spec"]["nodeName"]):
            by_pause = any(self._shares[uid].node == raw["spec"]["nodeName"] for uid in self.late & self._shares.keys())
            (self.explained if by_pause else self.excess).append(words)
        return None

    def _count(self, node: str) -> Iterator[str]:
        """The GPUs of a node that are given twice, counted from the pods alone."""
        units: Counter[str] = Counter()
        core: Counter[str] = Counter()
        for share in self._shares.values():
            if share.node == node:
                units.update(share.units)
                core.update(dict.fromkeys(share.units, share.core))
                if share.complaint:
                    yield share.complaint
        sizes = NODES[node]
        for index, held in units.items():
            if int(index) >= len(sizes) or held > sizes[int(index)]:
                yield f"{node} GPU {index}: {held} of {sizes[int(index)] if int(index) < len(sizes) else 'no GPU'}"
        yield from (f"{node} GPU {index}: {held} %" for index, held in core.items() if held > 100)


def _share(raw: dict[str, Any]) -> _Share:
    stated = json.loads(raw["metadata"]["annotations"].get(ALLOCATION, "{}"))
    gpus = Counter[str]()
    for of in stated.values():
        gpus.update(of)
    complaint = ""
    if not effective(raw, WHOLE) and sum(gpus.values()) != effective(raw, MEMORY):
        complaint = f"{raw['metadata']['name']} has {sum(gpus.values())} units"
    return _Share(raw["spec"]["nodeName"], gpus, effective(raw, CORE), complaint)

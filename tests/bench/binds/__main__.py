# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Very many binds through the real extender core, in virtual time, against an API server that counts: `python -m bench.binds`.

The scheduler asks filter, prioritize and bind as kube-scheduler does (bind beside the next pod's filter, not always on the node
preferred). The watch is late, repeats itself and breaks off; Bindings land late, get lost or conflict; pods end, are deleted and
are recreated under the same name. After every Binding that lands the API server's own pods are added up, card by card.
Deterministic: the same seed gives the same run. Exit status 1 when a card was given twice.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from gpushare_runtime.extender.binder import Binder, BindError
from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.pods import NodeRecord, PodReader
from gpushare_runtime.extender.service import Service
from gpushare_runtime.extender.wire import Arguments, BindArguments
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.kube.client import TIMEOUT, KubeError
from gpushare_runtime.ledger import Ledger
from gpushare_runtime.placement import Placement
from gpushare_runtime.quantity import GIB
from unit.runtime.extender import virtual
from unit.runtime.naive import CORE, MEMORY, WHOLE, effective
from unit.runtime.pods import card

NODES: Final = {f"node-{n}": (16, 16, 24, 80)[: 1 + n % 4] for n in range(12)}
BUSY: Final = 60
FLAWS: Final = ("assume", "settle", "younger")


def a_pod(random: Random, name: str, uid: str) -> dict[str, Any]:
    """A pod of any kind that is placed."""
    several = random.choice((1, 1, 1, 1, 2))
    kind = random.choice((MEMORY,) * 6 + (WHOLE,)) if several == 1 else MEMORY
    core = random.choice((0, 0, 0, 25)) if kind == MEMORY and several == 1 else 0

    def container(title: str) -> dict[str, Any]:
        limits = {kind: str(several * random.randint(1, 8) if kind == MEMORY else 1)} | ({CORE: str(core)} if core else {})
        return {"name": title, "resources": {"limits": limits}}

    init = [container("init")] if random.random() < 0.2 and several == 1 else []
    if init and random.random() < 0.5:
        init[0]["restartPolicy"] = "Always"
    return {
        "metadata": {"name": name, "namespace": "x", "uid": uid, "labels": {WHOLE: str(several)} if several > 1 else {}},
        "spec": {"containers": [container("main") for _ in range(random.choice((1, 1, 2)))], "initContainers": init},
        "status": {"phase": "Pending"},
    }


class Api:
    """The API server: pods by name, one watch, Bindings that go as chance will have it. excess: cards given twice."""

    def __init__(self, random: Random, cluster: Cluster) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.bound = 0
        self.excess: list[str] = []
        self.faults: Counter[str] = Counter()
        self._slow: set[str] = set()
        self._random, self._cluster, self._reader = random, cluster, PodReader()
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def announce(self, kind: str, raw: dict[str, Any]) -> None:
        self._queue.put_nowait((kind, copy.deepcopy(raw)))

    async def watch(self) -> None:
        """In order; late, twice, or broken off and listed anew."""
        while True:
            kind, raw = await self._queue.get()
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.001, 0.01, 0.3)))
            if self._random.random() < 0.003:
                self.faults["relist"] += 1
                while not self._queue.empty():
                    self._queue.get_nowait()
                listed = [self._reader(copy.deepcopy(pod)) for pod in self.pods.values()]
                await asyncio.sleep(self._random.random())
                self._cluster.replace_pods([record for record in listed if record is not None])
                continue
            for _ in range(2 if self._random.random() < 0.02 else 1):
                record = self._reader(raw)
                if record is not None:
                    self._cluster.pod_event(kind, record)

    async def create(self, path: str, body: Mapping[str, Any], *, within: float, **params: object) -> dict[str, Any]:
        """A Binding: lands, lands late with the answer lost, is lost, or is refused."""
        await asyncio.sleep(self._random.choice((0.001, 0.005, 0.05)))
        chance = self._random.random()
        if chance < 0.01 or body["metadata"]["uid"] in self._slow:
            self.faults["late"] += 1
            # What is slow once is slow again, so that sending it twice does not help.
            self._slow = {body["metadata"]["uid"]} - self._slow
            asyncio.get_running_loop().call_later(self._random.random() * 4, self._bind, body)
            raise KubeError(0, TIMEOUT, "no answer in time")
        if chance < 0.015:
            self.faults["lost"] += 1
            raise KubeError(0, TIMEOUT, "no answer in time")
        if chance < 0.02:
            self.faults["refused"] += 1
            raise KubeError(500, "InternalError", "etcd has no leader")
        error = self._bind(body)
        if error is not None:
            raise error
        return {}

    async def get(self, path: str, *, within: float) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        name = path.rsplit("/", 1)[1]
        if name not in self.pods:
            raise KubeError(404, "NotFound", f'pods "{name}" not found')
        return copy.deepcopy(self.pods[name])

    def _bind(self, body: Mapping[str, Any]) -> KubeError | None:
        raw = self.pods.get(body["metadata"]["name"])
        if raw is None or raw["metadata"]["uid"] != body["metadata"]["uid"] or raw["spec"].get("nodeName"):
            return KubeError(409, "Conflict", "gone, another, or bound")
        raw["metadata"]["annotations"] = dict(body["metadata"]["annotations"])
        raw["spec"]["nodeName"] = body["target"]["name"]
        self.bound += 1
        self.announce("MODIFIED", raw)
        self.excess += self.count(raw["spec"]["nodeName"])
        return None

    def count(self, node: str) -> Iterator[str]:
        """The cards of a node that are given twice, counted from the pods alone."""
        units: Counter[str] = Counter()
        core: Counter[str] = Counter()
        for raw in self.pods.values():
            if raw["spec"].get("nodeName") == node:
                stated = json.loads(raw["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"])
                cards = Counter[str]()
                for of in stated.values():
                    cards.update(of)
                if not effective(raw, WHOLE) and sum(cards.values()) != effective(raw, MEMORY):
                    yield f"{raw['metadata']['name']} has {sum(cards.values())} units"
                units.update(cards)
                core.update(dict.fromkeys(cards, effective(raw, CORE)))
        sizes = NODES[node]
        yield from (f"{node} card {index}: {held} of {sizes[int(index)]}" for index, held in units.items() if held > sizes[int(index)])
        yield from (f"{node} card {index}: {held} %" for index, held in core.items() if held > 100)


def uid_of(raw: Mapping[str, Any]) -> str:
    """A pod's."""
    uid: str = raw["metadata"]["uid"]
    return uid


class Run:
    """One run until `binds` pods were bound."""

    def __init__(self, seed: int, binds: int) -> None:
        self.random, self.binds = Random(seed), binds
        clock = asyncio.get_running_loop().time
        self.cluster = Cluster(now=clock, clock=clock)
        self.api = Api(self.random, self.cluster)
        placement = Placement("binpack", "", self.cluster.workload)
        self.service = Service(self.cluster.ledger, placement, clock=clock)
        self.binder = Binder(self.api, self.cluster, placement, now_ns=lambda: 1)  # type: ignore[arg-type]
        self.outcomes: Counter[str] = Counter()
        self._later: dict[str, float] = {}
        self._serial = 0
        for name, sizes in NODES.items():
            cards = tuple(card(i, size) for i, size in enumerate(sizes))
            self.cluster.node_event("ADDED", NodeRecord(name, Inventory(GIB, cards, core=100)))

    async def go(self) -> None:
        """Everything at once."""
        works = [asyncio.create_task(work) for work in (self.api.watch(), self.churn(), self.expire())]
        while self.api.bound < self.binds:
            now = asyncio.get_running_loop().time()
            waiting = [raw for raw in self.api.pods.values() if not raw["spec"].get("nodeName") and self._later.get(uid_of(raw), 0) <= now]
            if not waiting:
                await asyncio.sleep(0.01)
            for raw in waiting:
                await asyncio.sleep(0.001)
                self.schedule(raw)
        for work in works:
            work.cancel()
        await self.binder.drain()

    def schedule(self, raw: dict[str, Any]) -> None:
        """One scheduling cycle; the binding cycle runs beside the next one."""
        names = self.service.filter(Arguments(raw, list(NODES))).names
        if not names:
            self.outcomes["no room"] += 1
            self._later[uid_of(raw)] = asyncio.get_running_loop().time() + 0.5
            return
        if len(names) > 1:
            scores = self.service.prioritize(Arguments(raw, names))
            names.sort(key=lambda name: -scores.get(name, 0))
        # Its own plugins may prefer another node.
        node = names[0] if self.random.random() < 0.9 else self.random.choice(names)
        self._later[uid_of(raw)] = float("inf")
        metadata = raw["metadata"]
        asyncio.get_running_loop().create_task(self.bind(raw, BindArguments("x", metadata["name"], metadata["uid"], node)))

    async def bind(self, raw: dict[str, Any], args: BindArguments) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.05)))
        try:
            await self.binder.bind(args)
            self.outcomes["told"] += 1
        except BindError:
            self.outcomes["failed"] += 1
        self._later[args.uid] = asyncio.get_running_loop().time() + 1

    async def churn(self) -> None:
        """Pods come, end, and come again under the same name."""
        while True:
            await asyncio.sleep(0.002)
            name = f"pod-{self.random.randrange(BUSY)}"
            raw = self.api.pods.get(name)
            if raw is None:
                self._serial += 1
                made = self.api.pods[name] = a_pod(self.random, name, f"uid-{self._serial}")
                self.api.announce("ADDED", made)
            elif self.random.random() < (0.2 if raw["spec"].get("nodeName") else 0.002):
                del self.api.pods[name]
                self.api.announce("DELETED", raw)

    async def expire(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.cluster.expire()


async def run(seed: int, binds: int) -> dict[str, Any]:
    """What happened."""
    one = Run(seed, binds)
    await one.go()
    api = one.api
    return {"seed": seed, "bound": api.bound, "given_twice": len(api.excess), "first": api.excess[:3], **one.outcomes, **api.faults}


def without(flaw: str) -> None:
    """Switch one safeguard off, to see that the count notices."""
    if flaw == "assume":
        Ledger.reserve = lambda self, holder, until: None  # type: ignore[method-assign]
        Ledger.assume = lambda self, holder: None  # type: ignore[method-assign]
    elif flaw == "settle":
        Binder._settle = lambda self, args: _forget(self, args)  # type: ignore[method-assign]
    elif flaw == "younger":
        Ledger.under_way = frozenset()  # type: ignore[assignment]


async def _forget(binder: Binder, args: BindArguments) -> None:
    binder._ledger.forget(args.uid)
    del binder._unsettled[args.uid]


def main() -> int:
    """The command; 1 when a card was given twice."""
    parser = argparse.ArgumentParser(description="Very many binds through the extender's core, counted by the API server's side.")
    parser.add_argument("--binds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", choices=FLAWS, help="switch a safeguard off: must find cards given twice")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.without:
        without(options.without)
    found = virtual.run(run(options.seed, options.binds))
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if found["given_twice"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

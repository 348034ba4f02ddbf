# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One run: a scheduler that moves between two control planes, users, nodes, and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from random import Random
from typing import Any, Final

from bench.binds.api import NODES, Api
from bench.binds.host import Host
from bench.binds.node import Node
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.extender.extender_v1 import Arguments, BindArguments
from unit.fakes.runtime.core.naive import CORE, MEMORY, WHOLE
from unit.fakes.runtime.pods import gpu

BUSY: Final = 80
HOSTS: Final = ("cp1", "cp2")
_LAG_SECONDS: Final = 0.02


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
    # One of three groups, of which each is tried together with whom it meets in the queue.
    number = int(uid.removeprefix("uid-"))
    group = {"schedulingGroup": {"podGroupName": f"group-{number % 3}"}} if number % 4 == 0 else {}
    return {
        "metadata": {"name": name, "namespace": "x", "uid": uid, "labels": {WHOLE: str(several)} if several > 1 else {}},
        "spec": {"containers": [container(f"main-{n}") for n in range(random.choice((1, 1, 2)))], "initContainers": init, **group},
        "status": {"phase": "Pending"},
    }


def uid_of(raw: dict[str, Any]) -> str:
    uid: str = raw["metadata"]["uid"]
    return uid


class Run:
    """Until `binds` pods were bound."""

    def __init__(self, seed: int, binds: int) -> None:
        self.random, self.binds = Random(seed), binds
        self.clock = asyncio.get_running_loop().time
        self.api = Api(self.random)
        self.events: Counter[str] = Counter()
        self.leader = HOSTS[0]
        self.reported: set[str] = set()
        self._later: dict[str, float] = {}
        self._serial = 0
        self._under_way: deque[tuple[str, dict[str, Any]]] = deque()
        self.nodes: dict[str, Node] = {}
        for number, (name, sizes) in enumerate(NODES.items()):
            inventory = Inventory(GIB, tuple(gpu(i, size) for i, size in enumerate(sizes)), core=100)
            self.nodes[name] = Node(name, inventory, self.clock, self.api, seed * 1000 + number)
        self.hosts = {name: self._start(name) for name in HOSTS}
        self.api.watchers.append(self)
        self._take(HOSTS[0])

    def _start(self, name: str) -> Host:
        return Host(name, self.api, lambda: [node.record for node in self.nodes.values()], Random(self.random.random()))

    def _take(self, name: str) -> None:
        """A kube-scheduler process of this host acquires the Lease."""
        self._serial += 1
        if self.api.lease is None:
            self.api.lease = {"metadata": {"uid": f"lease-{self._serial}"}, "spec": {"leaseTransitions": -1}}
        spec = self.api.lease["spec"]
        spec |= {"holderIdentity": f"{name}_{self._serial}", "leaseTransitions": spec["leaseTransitions"] + 1}
        self.leader = name
        # A new process knows of no backoff and of no bind under way.
        self._later.clear()

    async def go(self) -> None:
        """Everything at once."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.api.errors.extend([context["exception"]] if "handle" in context else []))
        works = [loop.create_task(work) for work in (self.users(), self.look(), self.trouble())]
        while self.api.bound < self.binds:
            if self.api.errors:
                raise self.api.errors[0]
            for work in works:
                if work.done():
                    work.result()
            await self.schedule()
        for work in works:
            work.cancel()
        for host in self.hosts.values():
            self.reported |= host.reported
            host.kill()

    async def schedule(self) -> None:
        """kube-scheduler: one pod after the other, each after its backoff."""
        now = self.clock()
        waiting = [raw for raw in self.api.pods.values() if not raw["spec"].get("nodeName") and self._later.get(uid_of(raw), 0) <= now]
        if not waiting or not self.leader:
            await asyncio.sleep(0.01)
            return
        for raw in waiting:
            await asyncio.sleep(0.001)
            if not self.leader:
                return
            host = self.hosts[self.leader]
            if host.closed():
                self.events["asked without the leadership"] += 1
                await asyncio.sleep(0.2)
                return
            self.ask(host, raw)

    def ask(self, host: Host, raw: dict[str, Any]) -> None:
        """One scheduling cycle; the binding cycle runs beside the next one."""
        names = host.service.filter(Arguments(raw, list(NODES))).names
        uid = uid_of(raw)
        if not names:
            self.events["no room"] += 1
            self._later[uid] = self.clock() + 2
            return
        if len(names) > 1:
            scores = host.service.prioritize(Arguments(raw, names))
            names = sorted(names, key=lambda name: -scores.get(name, 0))
        # Its own plugins may prefer another node.
        node = names[0] if self.random.random() < 0.9 else self.random.choice(names)
        self._later[uid] = float("inf")

        def after(well: bool) -> None:
            self.events["told bound" if well else "told not bound"] += 1
            if self._later.get(uid) == float("inf"):
                self._later[uid] = self.clock() + 1

        host.ask_bind(BindArguments("x", raw["metadata"]["name"], uid, node), after)

    def tell(self, version: int, kind: str, raw: dict[str, Any]) -> None:
        """kubelet and the plugin of a pod's node hear of it a little later, in order: equal times alone do not keep it."""
        if raw["spec"].get("nodeName"):
            self._under_way.append((kind, raw))
            asyncio.get_running_loop().call_later(_LAG_SECONDS, self._hear)

    def _hear(self) -> None:
        kind, raw = self._under_way.popleft()
        self.nodes[raw["spec"]["nodeName"]].see(kind, raw)

    async def users(self) -> None:
        """Pods come, end in every way, and come again under the same name."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.002)
            name = f"pod-{self.random.randrange(BUSY)}"
            raw = self.api.pods.get(name)
            if raw is None:
                self._serial += 1
                self.api.add(a_pod(self.random, name, f"uid-{self._serial}"))
                continue
            node = self.nodes.get(raw["spec"].get("nodeName", ""))
            # Every fourth outlives a change of leader.
            often = 0.002 if node is None else 0.004 if int(uid_of(raw).removeprefix("uid-")) % 4 == 0 else 0.15
            if self.random.random() > often or "deletionTimestamp" in raw["metadata"]:
                continue
            uid, running = uid_of(raw), raw["status"]["phase"] == "Running"
            way = self.random.random()
            if node is None or raw["status"]["phase"] in ("Failed", "Succeeded"):
                self.api.remove(raw)
            elif not running or way < 0.2:
                # By force: the object goes, processes may not.
                self.events["deleted by force"] += 1
                self.api.remove(raw)
                loop.call_later(self.random.random() * 8 if way < 0.14 else 0.1, node.end, uid)
            elif way < 0.5:
                node.end(uid)
                self.api.status(uid, "Succeeded", "terminated")
            else:
                self.events["ended after grace"] += 1
                raw["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
                self.api.announce("MODIFIED", raw)
                loop.call_later(self.random.random() * 4, self._gone, node, raw)

    def _gone(self, node: Node, raw: dict[str, Any]) -> None:
        node.end(uid_of(raw))
        self.api.status(uid_of(raw), "Running", "terminated")
        self.api.remove(raw)

    async def look(self) -> None:
        """The plugins' own rounds; what they say reaches the extenders by their watch of nodes."""
        while True:
            await asyncio.sleep(0.1)
            for node in self.nodes.values():
                if node.look():
                    for host in self.hosts.values():
                        host.tell_node(node.record)

    async def trouble(self) -> None:
        """The leader changes, is stopped, comes back; extenders are killed; some stand still."""
        while True:
            await asyncio.sleep(5 + self.random.random() * 10)
            what = self.random.random()
            # A leader is seldom lost in good times.
            self.api.struggles = True
            for host in self.hosts.values():
                host.stalled_until = self.clock() + 0.3 + self.random.random() * 3
            await asyncio.sleep(0.3)
            former = self.hosts[self.leader]
            if what < 0.2:
                self.events["scheduler restarted"] += 1
                await self._change(former.name)
            elif what < 0.4:
                self.events["extender killed"] += 1
                self._restart(self.random.choice((*HOSTS, self.leader)))
            else:
                self.events["leader changed"] += 1
                if what < 0.6:
                    self.events["former extender stood still"] += 1
                    former.resumed.clear()
                    await asyncio.sleep(0.1)
                    asyncio.get_running_loop().call_later(self.random.random() * 20, former.resumed.set)
                elif what < 0.7:
                    self.events["extender killed"] += 1
                    self._restart(former.name)
                await self._change(next(name for name in HOSTS if name != former.name))
            self.api.struggles = False

    async def _change(self, name: str) -> None:
        way = self.random.random()
        if way < 0.2:
            # An administrator forces an election.
            self.events["lease deleted"] += 1
            self.api.lease = None
        elif way < 0.6 and self.api.lease is not None:
            # Given up in order: the next one need not wait.
            self.api.lease["spec"]["holderIdentity"] = ""
        self.leader = ""
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.5, 2.0)))
        self._take(name)

    def _restart(self, name: str) -> None:
        self.reported |= self.hosts[name].reported
        self.hosts[name].kill()
        self.hosts[name] = self._start(name)
        self._later = dict.fromkeys(self._later, 0.0)


async def run(seed: int, binds: int) -> dict[str, Any]:
    """What happened. ledger_excess (but for what was sent after a pause), half_bound and node_over must be 0."""
    one = Run(seed, binds)
    began = one.clock()
    await one.go()
    api, nodes = one.api, one.nodes.values()
    late = {uid for uid in api.late if uid in one.reported}
    over = [words for node in nodes for words in node.over]
    return {
        "seed": seed,
        "bound": api.bound,
        "node_over": len(over),
        "ledger_excess": len(api.excess),
        "half_bound": len(api.half),
        "first": [*over[:2], *api.excess[:2], *api.half[:1]],
        "sent_after_a_pause": len(api.late),
        "of_these_reported": len(late),
        "ledger_excess_by_these": len(api.explained),
        "admissions_rejected": sum(node.rejected for node in nodes),
        "processes_orphaned": sum(node.orphaned for node in nodes),
        "virtual_seconds": round(one.clock() - began),
        **one.events,
        **api.faults,
    }

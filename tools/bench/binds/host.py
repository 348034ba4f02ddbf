# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane of the simulation: the real extender core between its own late watches and the one API server."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any

from bench.binds.api import Api
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import Leadership
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.settings.extender import DEFAULT_LEASE


class Host:
    """One process of the extender. resumed: nothing that it has decided to send goes out before it is set;
    stalled_until: its watch of pods brings nothing before;

    reported: UIDs of pods that it said somebody else has bound.
    """

    def __init__(self, name: str, api: Api, nodes: Callable[[], Iterable[NodeRecord]], random: Random) -> None:
        clock = asyncio.get_running_loop().time
        self.name, self.random, self._api, self._nodes = name, random, api, nodes
        self.reported: set[str] = set()
        self.synced = asyncio.Event()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.stalled_until = 0.0
        self.relists = 0
        self.cluster = ClusterCache(clock=clock)
        placement = Placement("binpack", "", self.cluster.scarcity)
        self.service = Verbs(self.cluster.ledger, placement, clock=clock)
        self.leadership = Leadership(DEFAULT_LEASE, name, clock=clock, on_foreign_binding=lambda pod, words: self.reported.add(pod.uid))
        self.cluster.on_foreign_binding = self.leadership.foreign_binding
        self.binder = Binder(self, self.cluster, placement, now_ns=lambda: 1, send_window=self.leadership.send_window)  # type: ignore[arg-type]
        self._reader = PodReader()
        self._seen, self._listed = 0, asyncio.Event()
        self._stale = asyncio.Event()
        self._pods: asyncio.Queue[tuple[int, str, dict[str, Any]]] = asyncio.Queue()
        self._changed: asyncio.Queue[NodeRecord] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        api.watchers.append(self)
        for work in (self._start(), self.leadership.run(self, self), self.cluster.expire_for_ever()):  # type: ignore[arg-type]
            self._run(work)

    def kill(self) -> None:
        """kill -9: what was sent goes on without it."""
        self._api.watchers.remove(self)
        for task in [*self._tasks, *(flight.task for flight in (*self.binder._in_flight.values(), *self.binder._outcome_unknown.values()))]:
            task.cancel()

    def closed(self) -> bool:
        """Whether the verbs are not answered."""
        return not self.synced.is_set() or bool(self.leadership.problem_now())

    def ask_bind(self, args: BindArguments, after: Callable[[bool], None]) -> None:
        """The scheduler calls bind. after: told whether it was bound."""
        self._run(self._bind(args, after))

    async def _bind(self, args: BindArguments, after: Callable[[bool], None]) -> None:
        # Sometimes the scheduler itself stood still in between.
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.05)) if self.random.random() < 0.99 else self.random.random() * 10)
        well = False
        try:
            if not self.closed():
                await self.binder.bind(args)
                well = True
        except BindError:
            pass
        finally:
            after(well)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._api.errors.append(error)

    # Its API client.

    async def get(self, path: str, **params: object) -> dict[str, Any]:
        return await self._api.get(path, **params)

    async def patch(self, path: str, body: Mapping[str, Any], **params: object) -> None:
        await self._api.patch(path, body, **params)

    async def create(self, path: str, body: Mapping[str, Any], *, within: float, **params: object) -> dict[str, Any]:
        if not self.resumed.is_set():
            await self.resumed.wait()
            self._api.late.add(body["metadata"]["uid"])
        return await self._api.create(path, body, within=within, **params)

    # Its watches.

    def tell(self, version: int, kind: str, raw: dict[str, Any]) -> None:
        self._pods.put_nowait((version, kind, raw))

    def tell_node(self, record: NodeRecord) -> None:
        self._changed.put_nowait(record)

    async def catch_up(self, version: str, grace: float) -> None:
        """As Reflector does."""
        deadline = asyncio.get_running_loop().time() + grace
        while self._seen < int(version):
            if asyncio.get_running_loop().time() >= deadline:
                self._stale.set()
                self._pods.put_nowait((0, "WAKE", {}))
                self._listed.clear()
                await self._listed.wait()
                return
            await asyncio.sleep(0.02)

    async def _start(self) -> None:
        # Either may be first; a node may also be late with its GPUs.
        lists = [self._list_pods, self._list_nodes] if self.random.random() < 0.75 else [self._list_nodes, self._list_pods]
        for one in lists:
            await asyncio.sleep(self.random.random())
            await one()
        self.synced.set()
        self._run(self._watch_nodes())
        await self._watch_pods()

    async def _list_nodes(self) -> None:
        self.cluster.replace_nodes(list(self._nodes()))

    async def _list_pods(self) -> None:
        while not self._pods.empty():
            self._pods.get_nowait()
        listed = [self._reader(copy.deepcopy(pod)) for pod in self._api.pods.values()]
        version = self._api.version
        await asyncio.sleep(self.random.random() * 0.5)
        self._seen = version
        self.cluster.replace_pods([record for record in listed if record is not None])
        self._listed.set()

    async def _watch_pods(self) -> None:
        """In order; late, twice, or broken off and listed anew."""
        while True:
            version, kind, raw = await self._pods.get()
            lag = self.random.random()
            if self.stalled_until > asyncio.get_running_loop().time():
                await asyncio.sleep(self.stalled_until - asyncio.get_running_loop().time())
            if lag < 0.4:
                await asyncio.sleep(0.3 if lag < 0.004 else 0.01 if lag < 0.1 else 0.001)
            if self._stale.is_set() or self.random.random() < 0.001:
                self.relists += 1
                self._stale.clear()
                await self._list_pods()
                continue
            if not self.resumed.is_set():
                await self.resumed.wait()
            if version <= self._seen:
                continue
            for _ in range(2 if self.random.random() < 0.02 else 1):
                record = self._reader(raw)
                if record is not None:
                    self.cluster.pod_event(kind, record)
            self._seen = version

    async def _watch_nodes(self) -> None:
        while True:
            record = await self._changed.get()
            await asyncio.sleep(self.random.choice((0.0, 0.01, 0.3)))
            self.cluster.node_event("MODIFIED", record)

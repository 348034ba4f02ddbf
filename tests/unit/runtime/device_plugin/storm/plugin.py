# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One process of the device plugin: all its real parts but sockets, files of kubelet and the watch, which the world has in memory."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpushare_runtime.core import protocol
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.device_plugin.gpu.discovery import GpuReader, NvmlError
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.gpu.pod_limits import PodLimits
from gpushare_runtime.device_plugin.host.usage_file import StateFile
from gpushare_runtime.device_plugin.kubelet.podresources import entries_of
from gpushare_runtime.device_plugin.kubelet.server import ResourceService, new_socket
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.eviction_requests import EVICT, EvictionRequests
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher, _OwnNode
from gpushare_runtime.device_plugin.publish.pod_annotations import Assigner
from unit.runtime.device_plugin.storm.world import NODE, READ_SECONDS, RESOURCES, UNIX, now, until

if TYPE_CHECKING:
    from unit.runtime.device_plugin.storm.kubelet import Kubelet
    from unit.runtime.device_plugin.storm.world import File, World

# After kubelet's start: by then it has admitted what runs (kubelet/registration.py).
SETTLED = 15.0
# So long it waits for kubelet's answer to a registration (same file).
_REGISTER_SECONDS = 15.0


class Plugin:
    """world: what it lives in. Its state file is that of the process before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard: float | None = None
        self._seen = -1
        self._problem = False
        self.sockets: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._table = PodTable(lambda: self._heard)
        processes = SimpleNamespace(pods=world.live, containers=world.containers)
        self.node = NodeState(self._table, now, lambda: UNIX + now(), processes)
        self._state = StateFile(world.folder / "held.json", self.node, boot=lambda: world.boot)
        self._state.load()
        self.health = GpuHealth()
        self._gpus = GpuReader(world.nvml, GIB, self.health, self._state.gpus)
        self._limits = PodLimits(self.node, world.nvml, world, Status(required=[]))
        counters, events = Counters(), SimpleNamespace(emit=lambda *_, **__: None)
        self.services = {
            resource: ResourceService(resource, self.node, self._refresh, counters, self._limits.before_start, dev=Path("/nonexistent"))
            for resource in RESOURCES
        }
        self._assigner = Assigner(self.node, world, counters, events, "gpu1", lambda: int((UNIX + now()) * 1e9))
        memory = SimpleNamespace(lasting=lambda _: {})
        self._publisher = NodePublisher(self.node, world, NODE)
        self._evictions = EvictionRequests(self.node, self._publisher, memory, EVICT, 30.0, lambda: UNIX + now(), unstartable=EVICT)
        self._refresh(first=True)
        works = (
            self._read_gpus(),
            self._look_after(),
            self._state.run(),
            self._watch(),
            self._publisher.run(),
            self._assigner.run(),
            self._limits.run(),
            self._evictions.run(),
            *map(self._register, RESOURCES),
        )
        self._tasks = [asyncio.create_task(self._guard(work)) for work in works]

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._world.fault("EXCEPTION", repr(error))
            raise

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()

    def set_cordon(self) -> None:
        self._publisher._observe(_OwnNode({**self._world.annotations, protocol.ASK_CORDON: self._world.cordon}, 0))

    def _refresh(self, *, first: bool = False) -> None:
        """As CheckpointReader and CheckpointFile."""
        file = self._world.file
        if (file.n if file else -2) == self._seen and not first:
            return
        self._problem = file is not None and file.corrupt
        if self._problem:
            return
        self._seen = file.n if file else -2
        found = (
            CheckpointEntry(e["PodUID"], e["ContainerName"], e["ResourceName"], frozenset(e["DeviceIDs"]["-1"]))
            for e in (file.entries if file else ())
        )
        self.node.recorder.set_checkpoint(tuple(found), max(0.0, now() - file.at) if file else 0.0)

    async def _look_after(self) -> None:
        world, changes = self._world, self.node.changes
        while True:
            seen, file = changes.count, world.file
            self._refresh()
            doubtful = self.node.recorder.detect_terminated()
            if doubtful:
                live = world.live(doubtful)
                await asyncio.sleep(0.01)
                self.node.recorder.apply_process_scan(doubtful, live)
            await self._news(seen, file)
            if self._problem and world.kubelet is not None and self._table.synced and world.random.random() < 0.5:
                entries = entries_of(world.kubelet.pod_resources(), self._table, self.node.usage.entries)
                if set(entries) != set(self.node.usage.entries):
                    self.node.recorder.set_checkpoint(entries)

    async def _news(self, seen: int, file: File | None) -> None:
        end = now() + 1.0
        await until(lambda: now() >= end or self.node.changes.count != seen or self._world.file is not file, 0.01)

    async def _read_gpus(self) -> None:
        while True:
            try:
                inventory = self._gpus.read()
            except NvmlError:
                inventory = self._gpus.failed("x")
            if inventory is not None:
                self.node.devices.set_inventory(inventory)
            await asyncio.sleep(READ_SECONDS if self._world.random.random() < 0.7 else 0.3)

    async def _watch(self) -> None:
        world = self._world
        while True:
            await until(lambda: not world.away_for_plugin)
            while not world.to_plugin.empty():
                world.to_plugin.get_nowait()
            self._heard = last = now()
            self._table.replace([parse_local_pod(copy.deepcopy(raw)) for raw in world.bound()])
            self.set_cordon()
            while not world.away_for_plugin:
                try:
                    at, kind, raw = await asyncio.wait_for(world.to_plugin.get(), 1.0)
                except asyncio.TimeoutError:
                    if now() - last > 5.0:
                        # A bookmark.
                        self._heard = last = now()
                    continue
                await asyncio.sleep(max(0.0, at - now()))
                if world.away_for_plugin:
                    break
                self._heard = last = now()
                if raw["spec"].get("nodeName"):
                    self._table.event(kind, parse_local_pod(raw))

    async def _register(self, resource: str) -> None:
        """As Registration, and the list of ids that kubelet reads from then on."""
        world, node = self._world, self.node
        await until(lambda: bool(node.devices.inventory and node.devices.inventory.gpus), 0.02)
        while True:
            kubelet = world.kubelet
            if kubelet is None or not kubelet.up:
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(world.random.choice((0.02, 0.1, 0.5)))
            service = self.services[resource]
            options = service.options()
            if not options.pre_start_required:
                node.set_asked(resource, False)
            if world.kubelet is not kubelet or not kubelet.up:
                continue
            self.sockets[resource] = self._new_socket(resource)
            if not await self._registered(kubelet, resource, options.pre_start_required):
                continue
            if options.pre_start_required:
                node.set_asked(resource, True)
            await self._list(resource, kubelet, asked=options.pre_start_required)

    async def _registered(self, kubelet: Kubelet, resource: str, asked: bool) -> bool:
        """Whether kubelet answers in time that it takes it."""
        world, socket, began = self._world, self.sockets[resource], now()
        if now() < kubelet.frozen_until:
            world.counts["asked while frozen"] += 1
            kubelet.asked.append((resource, socket, self, asked))
            end = began + _REGISTER_SECONDS
            await until(lambda: now() >= min(end, kubelet.frozen_until) or world.kubelet is not kubelet)
            kubelet.disconnect(resource, socket)
            return False
        kubelet.awake()
        return world.kubelet is kubelet and kubelet.connect(resource, socket, self, asked)

    def _new_socket(self, resource: str) -> str:
        return new_socket(Path(), resource).name

    async def _list(self, resource: str, kubelet: Kubelet, *, asked: bool) -> None:
        world, began, sent = self._world, now(), None
        while world.kubelet is kubelet and kubelet.up and kubelet.endpoints.get(resource, (None,))[0] is self:
            key = self.node.devices.reported_key(resource)
            if key != sent:
                sent = key
                good = {device_id for device_id, healthy in self.node.devices.reported(resource) if healthy}
                await asyncio.sleep(world.random.choice((0.001, 0.01)))
                if world.kubelet is kubelet and kubelet.up and kubelet.endpoints.get(resource, (None,))[0] is self:
                    kubelet.manager.healthy[resource] = good
                    kubelet.manager.write()
            if now() - began > SETTLED and asked and not self.services[resource].options().pre_start_required:
                kubelet.endpoints.pop(resource, None)
                kubelet.disconnect(resource, self.sockets[resource])
                kubelet.manager.healthy[resource] = set()
                await asyncio.sleep(0.3)
                return
            await asyncio.sleep(0.02)

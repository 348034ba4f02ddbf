# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A node of the simulation: kubelet's device manager, which frees too early, our plugin's NodeState, and processes that count."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Set
from typing import Any, Protocol, TypeVar

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import NOTHING_HELD, Held
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import report
from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager

T = TypeVar("T")


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Kubelet(Protocol):
    """What a node says to the API server."""

    def status(self, uid: str, phase: str, state: str = "") -> None: ...


class Node:
    """over: ids that processes of two pods had at once, and GPUs that were whole for one and not empty. That is the truth."""

    def __init__(self, name: str, inventory: Inventory, clock: Callable[[], float], api: Kubelet, seed: int) -> None:
        self.name, self.inventory = name, inventory
        self.over: list[str] = []
        self.rejected = 0
        self.orphaned = 0
        self.said: Held = NOTHING_HELD
        self._api = api
        self._running: dict[str, frozenset[str]] = {}
        self._users: dict[str, str] = {}
        self._plugin = NodeState(PodTable(clock), clock, clock, self)
        self._plugin.devices.set_inventory(inventory)
        self._manager = DeviceManager(None, self._prefer, self._allocate, seed)
        self._manager.write = self._checkpoint  # type: ignore[method-assign]
        for resource in RESOURCES:
            self._manager.healthy[resource] = {device_id for device_id, good in self._plugin.devices.reported(resource) if good}

    @property
    def record(self) -> NodeRecord:
        return NodeRecord(self.name, self.inventory, held=self.said)

    def see(self, kind: str, raw: dict[str, Any]) -> None:
        """kubelet and the plugin hear of a pod that is on this node."""
        uid, phase = raw["metadata"]["uid"], raw["status"]["phase"]
        self._plugin.pods.event(kind, parse_local_pod(raw))
        if kind == "DELETED" or phase in ("Succeeded", "Failed"):
            self.orphaned += uid in self._running
            # The ids are free to kubelet, whatever still runs.
            self._manager.active.discard(uid)
        elif phase == "Pending" and uid not in self._manager.active and "deletionTimestamp" not in raw["metadata"]:
            self._admit(raw)

    def end(self, uid: str) -> None:
        """The pod's processes are gone."""
        for device_id in self._running.pop(uid, ()):
            if self._users.get(device_id) == uid:
                del self._users[device_id]

    def pods(self, uids: Set[str]) -> Set[str]:
        """Those that have a process."""
        return uids & self._running.keys()

    def containers(self, uid: str) -> Set[str] | None:
        """Nobody asks: no record is ever lost."""
        raise NotImplementedError

    def look(self) -> bool:
        """What the plugin does beside kubelet's questions; whether it has something else to say now."""
        self._plugin.allocator.release_terminated()
        said = report(self._plugin)
        changed, self.said = said != self.said, said
        return changed

    def _admit(self, raw: dict[str, Any]) -> None:
        uid = raw["metadata"]["uid"]
        try:
            now(self._manager.admit(raw))
        except AdmissionError:
            self.rejected += 1
            self._api.status(uid, "Failed")
            return
        given = self._manager.given.get(uid, {}).values()
        ids = frozenset(device_id for of in given for ids in of.values() for device_id in ids)
        gpus = {device_id.partition("-_-")[0] for device_id in ids}
        whole = {device_id for device_id in ids if "-_-" not in device_id}
        for device_id, user in self._users.items():
            gpu, slot, _ = device_id.partition("-_-")
            if device_id in ids or gpu in whole or (not slot and gpu in gpus):
                self.over.append(f"{self.name}: {device_id} of {user} is given to {uid}")
        self._running[uid] = ids
        self._users.update(dict.fromkeys(ids, uid))
        self._api.status(uid, "Running", "running")

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        try:
            return self._plugin.allocator.prefer(resource, available, must, size)[0]
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        try:
            return dict(self._plugin.allocator.allocate(resource, ids).environment)
        except AllocationRejected as rejection:
            raise AdmissionError(str(rejection)) from None

    def _checkpoint(self) -> None:
        entries = (
            CheckpointEntry(uid, name, resource, frozenset(ids))
            for uid, containers in self._manager.given.items()
            for name, resources in containers.items()
            for resource, ids in resources.items()
        )
        self._plugin.recorder.set_checkpoint(tuple(entries))

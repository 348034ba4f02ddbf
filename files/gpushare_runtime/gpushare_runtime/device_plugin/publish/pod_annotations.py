# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tell the API server what kubelet did with a pod: that it is assigned, and its true cards where they differ.

Runs beside the answers to kubelet and never holds them up; what the API server does not take now, it gets later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.daemon.sync import any_after
from gpushare_runtime.device_plugin.metrics import Counters
from gpushare_runtime.device_plugin.node.allocator import NodeState
from gpushare_runtime.device_plugin.node.ids import Entry, actual_allocation
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.messages import never_placed, unsayable
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.events import EventRecorder, ObjectReference

log = logging.getLogger(__name__)


def allocation_in(pod: LocalPod, entries: Iterable[Entry], inventory: Inventory) -> Allocation | None:
    """The allocation that kubelet's record gives the pod; None until it has all of its containers."""
    if pod.request is None:
        return None
    given = {(entry.container, entry.resource): entry.ids for entry in entries if entry.pod == pod.uid}
    return actual_allocation(pod.request, given, inventory)


def annotations_due(pod: LocalPod, actual: Allocation, inventory: Inventory, now_ns: int) -> dict[str, str]:
    """What to write on a pod that has these cards: ASSIGNED alone if its annotations say the same, else all six; {} if nothing."""
    if actual != pod.allocation:
        assumed = pod.annotations.get(protocol.ANNOTATION_ASSUME_TIME, "")
        return actual.to_annotations(inventory, int(assumed) if assumed.isdecimal() else now_ns, assigned=True)
    return {} if pod.assigned else {protocol.ANNOTATION_ASSIGNED: "true"}


def _kept(pod: LocalPod, allocation: Allocation) -> list[object]:
    """What the containers have that run as long as the pod does."""
    keys = {c.key for c in pod.request.containers if c.keeps} if pod.request else set()
    return [(key, cards) for key, cards in allocation.containers if key in keys]


class Assigner:
    """One PATCH per pod, once all its containers have their ids; another one where somebody has written something else since.

    clock: Unix time in nanoseconds.
    """

    def __init__(self, node: NodeState, client: KubeClient, counters: Counters, events: EventRecorder, clock: Callable[[], int]) -> None:
        self._events = events
        self._node = node
        self._client = client
        self._counters = counters
        self._clock = clock
        self._told: dict[str, Mapping[str, str]] = {}
        """Pod UID → its annotations when they were last looked at: as long as the watch shows these, there is nothing new."""
        self._warned: set[str] = set()
        self._cards: Mapping[int, str] = {}
        self._problem = ""
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        pods, holders, cards = self._node.pods, self._node.holders, self._node.inventory_changes
        try:
            while True:
                seen = (pods.changes, pods.changes.count), (holders.changes, holders.changes.count), (cards, cards.count)
                self._look_at_cards()
                if max(len(self._told), len(self._warned)) > len(pods):
                    here = {pod.uid for pod in pods}
                    self._told = {uid: notes for uid, notes in self._told.items() if uid in here}
                    self._warned &= here
                for pod in pods:
                    if pod.uid in self._telling or self._told.get(pod.uid) == pod.annotations:
                        continue
                    if not pod.sayable:
                        self._warn(pod)
                    elif self._due(pod.uid):
                        self._telling[pod.uid] = asyncio.create_task(self._tell(pod.uid))
                    elif pod.uid in self._told:
                        self._told[pod.uid] = pod.annotations
                await any_after(*seen)
        finally:
            for task in list(self._telling.values()):
                task.cancel()

    def _look_at_cards(self) -> None:
        """What was written names cards by index: where one now means another card, all of it is looked at again."""
        if self._node.inventory is None:
            return
        now = {index: card.uuid for index, card in self._node.inventory.by_index.items()}
        if any(now.get(index, uuid) != uuid for index, uuid in self._cards.items()):
            self._told.clear()
        self._cards = {**self._cards, **now}

    def _warn(self, pod: LocalPod) -> None:
        inventory = self._node.inventory
        if pod.uid in self._warned or inventory is None or pod.finished:
            return
        text = unsayable(pod, self._node.holders, inventory)
        if text:
            self._warned.add(pod.uid)
            self._emit(pod, protocol.EVENT_UNMANAGED, text)

    def _due(self, uid: str) -> Mapping[str, str]:
        pod, inventory = self._node.pods.get(uid), self._node.inventory
        if pod is None or inventory is None or pod.finished or not pod.sayable or not pod.asks:
            return {}
        actual = allocation_in(pod, self._node.holders.entries_of(uid), inventory)
        if actual and pod.allocation and self._node.holders.lost(uid) and _kept(pod, actual) == _kept(pod, pod.allocation):
            # What kubelet has given its init containers anew, who are over, makes no difference to those that run.
            actual = pod.allocation
        return annotations_due(pod, actual, inventory, self._clock()) if actual else {}

    async def _tell(self, uid: str) -> None:
        try:
            await self._patch(uid)
        finally:
            del self._telling[uid]

    async def _patch(self, uid: str) -> None:
        backoff, pod = Backoff(), None
        while (due := self._due(uid)) and (pod := self._node.pods.get(uid)):
            try:
                # The UID keeps this off another pod that has taken the name meanwhile.
                body = {"metadata": {"uid": uid, "annotations": due}}
                # Through the status, because whoever may patch the pod itself may change its images.
                where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name, "status")
                await self._client.patch(where, body, kind="merge", within=10.0)
            except KubeError as error:
                if error.status == 404:
                    log.info("pod %s is gone before it was marked assigned", pod)
                    break
                wait = backoff.wait()
                # Another pod may have taken the name, which the watch will say, or somebody else wrote at the same moment.
                self._complain(pod, error, logging.INFO if error.status == 409 else logging.WARNING)
                await asyncio.sleep(wait)
                continue
            self._problem = ""
            self._report(pod, due)
            break
        if (last := pod or self._node.pods.get(uid)) is not None:
            self._told[uid] = last.annotations

    def _complain(self, pod: LocalPod, error: KubeError, level: int) -> None:
        """One line for what all pods meet alike, such as missing rights, until one of them gets through."""
        problem = f"{error.status} {error.reason}"
        log.log(logging.DEBUG if problem == self._problem else level, "pod %s cannot be marked assigned, trying again: %s", pod, error)
        self._problem = problem

    def _report(self, pod: LocalPod, written: Mapping[str, str]) -> None:
        allocation = written.get(protocol.ANNOTATION_ALLOCATION)
        if allocation is None:
            log.info("pod %s is marked assigned", pod)
            return
        self._counters.corrections += 1
        before = pod.annotations.get(protocol.ANNOTATION_ALLOCATION) or pod.annotations.get(protocol.ANNOTATION_INDEX)
        if before is None:
            self._emit(pod, protocol.EVENT_UNMANAGED, never_placed(f"{allocation} (container: card: units)"))
            return
        text = f"Its annotations said {before}, it has {allocation} (container: card: units); the annotations are corrected"
        self._emit(pod, protocol.EVENT_CORRECTED, text)

    def _emit(self, pod: LocalPod, reason: str, text: str) -> None:
        log.warning("pod %s: %s", pod, text)
        # Of a static pod the UID is kubelet's, as on kubelet's own events: `kubectl describe` looks for that one.
        self._events.emit(ObjectReference("Pod", pod.name, pod.uid, pod.namespace), "Warning", reason, text)

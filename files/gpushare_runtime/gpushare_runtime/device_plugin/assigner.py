# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tell the API server what kubelet did with a pod: that it is assigned, and its true cards where they differ.

Runs beside the answers to kubelet and never holds them up; what the API server does not take now, it gets later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

from gpushare_runtime import protocol
from gpushare_runtime.allocation import Allocation
from gpushare_runtime.device_plugin.changes import any_after
from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.counters import Counters
from gpushare_runtime.device_plugin.node import NodeState
from gpushare_runtime.device_plugin.pods import LocalPod
from gpushare_runtime.device_plugin.shares import actual_allocation
from gpushare_runtime.device_plugin.unmanaged import never_placed, unsayable
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from gpushare_runtime.kube.reflector import Backoff

log = logging.getLogger(__name__)

UNMANAGED: Final = "GPUUnmanaged"
CORRECTED: Final = "GPUCorrected"


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


class Assigner:
    """One PATCH per pod, once all its containers have their ids. clock: Unix time in nanoseconds."""

    def __init__(self, node: NodeState, client: KubeClient, counters: Counters, events: EventRecorder, clock: Callable[[], int]) -> None:
        self._events = events
        self._node = node
        self._client = client
        self._counters = counters
        self._clock = clock
        self._told: set[str] = set()
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        pods, holders = self._node.pods, self._node.holders
        try:
            while True:
                seen = (pods.changes, pods.changes.count), (holders.changes, holders.changes.count)
                if len(self._told) > len(pods):
                    self._told &= {pod.uid for pod in pods}
                for pod in pods:
                    if pod.uid in self._told or pod.uid in self._telling:
                        continue
                    if not pod.sayable:
                        self._warn(pod)
                    elif self._due(pod.uid):
                        self._telling[pod.uid] = asyncio.create_task(self._tell(pod.uid))
                await any_after(*seen)
        finally:
            for task in list(self._telling.values()):
                task.cancel()

    def _warn(self, pod: LocalPod) -> None:
        inventory = self._node.inventory
        text = unsayable(pod, self._node.holders, inventory) if inventory and not pod.finished else ""
        if text:
            self._told.add(pod.uid)
            self._emit(pod, UNMANAGED, text)

    def _due(self, uid: str) -> Mapping[str, str]:
        pod, inventory = self._node.pods.get(uid), self._node.inventory
        if pod is None or inventory is None or pod.finished or not pod.sayable or not pod.asks:
            return {}
        actual = allocation_in(pod, self._node.holders.entries, inventory)
        return annotations_due(pod, actual, inventory, self._clock()) if actual else {}

    async def _tell(self, uid: str) -> None:
        try:
            await self._patch(uid)
        finally:
            del self._telling[uid]

    async def _patch(self, uid: str) -> None:
        backoff = Backoff()
        while (due := self._due(uid)) and (pod := self._node.pods.get(uid)):
            try:
                # The UID keeps this off another pod that has taken the name meanwhile.
                body = {"metadata": {"uid": uid, "annotations": due}}
                await self._client.patch(path("api/v1", "namespaces", pod.namespace, "pods", pod.name), body, kind="merge", within=10.0)
            except KubeError as error:
                if error.status in (404, 409):
                    log.info("pod %s is gone before it was marked assigned", pod)
                    break
                wait = backoff.wait()
                log.warning("pod %s cannot be marked assigned, trying again in %.1f s: %s", pod, wait, error)
                await asyncio.sleep(wait)
                continue
            self._report(pod, due)
            break
        self._told.add(uid)

    def _report(self, pod: LocalPod, written: Mapping[str, str]) -> None:
        allocation = written.get(protocol.ANNOTATION_ALLOCATION)
        if allocation is None:
            log.info("pod %s is marked assigned", pod)
            return
        self._counters.corrections += 1
        before = pod.annotations.get(protocol.ANNOTATION_ALLOCATION) or pod.annotations.get(protocol.ANNOTATION_INDEX)
        if before is None:
            self._emit(pod, UNMANAGED, never_placed(f"{allocation} (container: card: units)"))
            return
        text = f"Its annotations said {before}, it has {allocation} (container: card: units); the annotations are corrected"
        self._emit(pod, CORRECTED, text)

    def _emit(self, pod: LocalPod, reason: str, text: str) -> None:
        log.warning("pod %s: %s", pod, text)
        # Of a static pod the UID is kubelet's, as on kubelet's own events: `kubectl describe` looks for that one.
        self._events.emit(ObjectReference("Pod", pod.name, pod.uid, pod.namespace), "Warning", reason, text)

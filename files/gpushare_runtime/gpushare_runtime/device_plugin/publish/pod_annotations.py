# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reports to the API server what kubelet did with a pod: marks it assigned, and corrects its GPUs where they differ.

Runs beside the responses to kubelet and never delays them. Retries a PATCH that the API server does not accept.

A PATCH wakes kubelet's worker of that pod, which then starts an ended container at once, and not when it would have tried again. After a
lost checkpoint the starts of several pods must not meet (see node/turns.py), so corrections wait until those starts are over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import Changes, any_after
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, actual_allocation
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.sentences import explain_unannotatable, gpus_in_words, moved, never_placed
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.events import EventRecorder, ObjectReference

log = logging.getLogger(__name__)
# While corrections wait, and how long one waits at most: a container that goes by the old annotation may not start before.
_LOOK_AGAIN_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 180


def allocation_in(pod: LocalPod, entries: Iterable[CheckpointEntry], inventory: Inventory) -> Allocation | None:
    """The pod's allocation by kubelet's record; None until kubelet has recorded all of its containers."""
    if pod.request is None:
        return None
    mine = [entry for entry in entries if entry.pod == pod.uid]
    allocated = {(entry.container, entry.resource): entry.ids for entry in mine}
    elsewhere = {(entry.container, entry.resource): entry.index for entry in mine if entry.index is not None}
    return actual_allocation(pod.request, allocated, inventory, elsewhere)


def annotations_due(pod: LocalPod, actual: Allocation, inventory: Inventory, now_ns: int) -> dict[str, str]:
    """The annotations to write on a pod with these GPUs: ASSIGNED if the others are right, else all six; {} if none is due."""
    if actual != pod.allocation:
        assumed = pod.annotations.get(protocol.ANNOTATION_ASSUME_TIME, "")
        return actual.to_annotations(inventory, int(assumed) if assumed.isdecimal() else now_ns, assigned=True)
    return {} if pod.assigned else {protocol.ANNOTATION_ASSIGNED: "true"}


def _kept(pod: LocalPod, allocation: Allocation) -> list[object]:
    """The ids of the containers that run as long as the pod."""
    keys = {c.key for c in pod.request.containers if c.keeps} if pod.request else set()
    return [(key, gpus) for key, gpus in allocation.containers if key in keys]


class Assigner:
    """Sends one PATCH per pod when all its containers have their ids, and another one if another client wrote other values since.

    name: of the node; clock: Unix time in nanoseconds.
    """

    def __init__(
        self, node: NodeState, client: KubeClient, counters: Counters, events: EventRecorder, name: str, clock: Callable[[], int]
    ) -> None:
        self._events = events
        self._name = name
        self._node = node
        self._client = client
        self._counters = counters
        self._clock = clock
        self._verified: dict[str, tuple[Mapping[str, str], int]] = {}
        """Pod UID → its annotations when they were last verified, and the version of its ids: while these stay, nothing is due."""
        self._warned: set[str] = set()
        self._gpus: Mapping[int, str] = {}
        self._problem = ""
        self._patching: dict[str, asyncio.Task[None]] = {}
        self._patched = Changes()
        self._waiting: dict[str, int] = {}
        """Pod UID → since when its correction waits."""

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        pods, changes = self._node.pods, self._node.changes
        try:
            while True:
                seen, ended, later, meet = changes.count, self._patched.count, False, self._starts_meet()
                if not meet:
                    self._waiting.clear()
                self._verify_indexes()
                if max(len(self._verified), len(self._warned)) > len(pods):
                    here = {pod.uid for pod in pods}
                    self._verified = {uid: notes for uid, notes in self._verified.items() if uid in here}
                    self._warned &= here
                for pod in pods:
                    if pod.uid in self._patching or self._verified.get(pod.uid) == self._version(pod):
                        continue
                    if not pod.annotatable:
                        self._warn(pod)
                    elif self._due(pod.uid):
                        if meet and pod.assigned and self._waits(pod.uid):
                            later = True
                            continue
                        self._patching[pod.uid] = asyncio.create_task(self._mark(pod.uid))
                    elif pod.uid in self._verified:
                        self._verified[pod.uid] = self._version(pod)
                await any_after((changes, seen), (self._patched, ended), timeout=_LOOK_AGAIN_SECONDS if later else None)
        finally:
            for task in list(self._patching.values()):
                task.cancel()

    def _starts_meet(self) -> bool:
        """Whether kubelet may start containers without a record, of which some have failed since others began."""
        pending, usage = self._node.pending, self._node.usage
        return self._node.turns.restless and any(map(usage.record_lost, pending.may_request()))

    def _waits(self, uid: str) -> bool:
        """Whether a pod's correction waits until those starts are over."""
        now = self._clock()
        return now - self._waiting.setdefault(uid, now) < LONGEST_WAIT_SECONDS * 10**9

    def _version(self, pod: LocalPod) -> tuple[Mapping[str, str], int]:
        return pod.annotations, self._node.usage.version(pod.uid)

    def _verify_indexes(self) -> None:
        """Annotations name GPUs by index: if an index now means another GPU, all pods are due for verification."""
        if self._node.devices.inventory is None:
            return
        now = {index: gpu.uuid for index, gpu in self._node.devices.inventory.by_index.items()}
        if any(now.get(index, uuid) != uuid for index, uuid in self._gpus.items()):
            self._verified.clear()
        self._gpus = {**self._gpus, **now}

    def _warn(self, pod: LocalPod) -> None:
        inventory = self._node.devices.inventory
        if pod.uid in self._warned or inventory is None or pod.finished:
            return
        text = explain_unannotatable(pod, self._node.usage, inventory)
        if text:
            self._warned.add(pod.uid)
            self._emit(pod, protocol.EVENT_UNMANAGED, text)

    def _due(self, uid: str) -> Mapping[str, str]:
        pod, inventory = self._node.pods.get(uid), self._node.devices.inventory
        if pod is None or inventory is None or pod.finished or not pod.annotatable or not pod.container_devices:
            return {}
        actual = allocation_in(pod, self._node.usage.entries_of(uid), inventory)
        if actual and pod.allocation and self._node.usage.record_lost(uid) and _kept(pod, actual) == _kept(pod, pod.allocation):
            # New ids for init containers, which have ended, make no difference to the running containers.
            actual = pod.allocation
        return annotations_due(pod, actual, inventory, self._clock()) if actual else {}

    async def _mark(self, uid: str) -> None:
        try:
            await self._patch(uid)
        finally:
            del self._patching[uid]
            # Another client may have written meanwhile, and the watch may have shown it already.
            self._patched.notify()

    async def _patch(self, uid: str) -> None:
        backoff, pod, version = Backoff(), None, self._node.usage.version(uid)
        while (due := self._due(uid)) and (pod := self._node.pods.get(uid)):
            try:
                # With the UID the API server rejects a PATCH of another pod under the same name.
                body = {"metadata": {"uid": uid, "annotations": due}}
                # The status only: permission to patch the pod itself would allow a change of its images.
                where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name, "status")
                await self._client.patch(where, body, kind="merge", within=10.0)
            except KubeError as error:
                if error.status == 404:
                    log.info("pod %s was deleted before it was marked assigned", pod, extra=about(pod))
                    break
                wait = backoff.wait()
                # Either another pod has the name, which the watch will show, or another client wrote at the same moment.
                self._log_failure(pod, error, logging.INFO if error.status == 409 else logging.WARNING)
                await asyncio.sleep(wait)
                version = self._node.usage.version(uid)
                continue
            self._problem = ""
            self._report(pod, due)
            break
        if (last := pod or self._node.pods.get(uid)) is not None:
            self._verified[uid] = last.annotations, version

    def _log_failure(self, pod: LocalPod, error: KubeError, level: int) -> None:
        """One warning for a problem of all pods, such as a missing permission, until a PATCH succeeds."""
        problem = f"{error.status} {error.reason}"
        log.log(logging.DEBUG if problem == self._problem else level, "pod %s cannot be marked assigned, retrying: %s", pod, error)
        self._problem = problem

    def _report(self, pod: LocalPod, written: Mapping[str, str]) -> None:
        inventory, actual = self._node.devices.inventory, self._allocated(pod, written)
        if inventory is None or actual is None:
            log.info("pod %s is marked assigned", pod, extra=about(pod))
            return
        has = gpus_in_words(actual.by_gpu, inventory)
        if protocol.ANNOTATION_ALLOCATION not in written:
            log.info("pod %s is marked assigned: %s", pod, has, extra=about(pod))
            self._events.emit(_about(pod), "Normal", protocol.EVENT_ALLOCATED, f"Allocated {has}", minor=True)
            return
        self._counters.corrections += 1
        if not (pod.annotations.get(protocol.ANNOTATION_ALLOCATION) or pod.annotations.get(protocol.ANNOTATION_INDEX)):
            self._emit(pod, protocol.EVENT_UNMANAGED, never_placed(has))
            return
        text = moved(pod.allocation, actual, self._name)
        log.warning("pod %s: %s", pod, text, extra=about(pod))
        self._events.emit(_about(pod), "Normal", protocol.EVENT_CORRECTED, text)

    def _allocated(self, pod: LocalPod, written: Mapping[str, str]) -> Allocation | None:
        """The ids that the pod has after its annotations were written so."""
        try:
            return read_allocation({**pod.annotations, **written}, pod.request) if pod.request else None
        except AllocationError:
            return None

    def _emit(self, pod: LocalPod, reason: str, text: str) -> None:
        log.warning("pod %s: %s", pod, text, extra=about(pod))
        self._events.emit(_about(pod), "Warning", reason, text)


def _about(pod: LocalPod) -> ObjectReference:
    # For a static pod kubelet's UID, as on kubelet's own events: `kubectl describe` shows events with that one.
    return ObjectReference("Pod", pod.name, pod.uid, pod.namespace)

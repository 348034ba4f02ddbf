# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Requests the eviction of pods that use more than their units for too long, by an annotation that the extender reads.

Nothing is requested in doubt: about who the pod is, what kubelet has allocated to it, or what it uses now. The request is withdrawn
as soon as a reading shows that the pod keeps to its units.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.overuse import REQUEST_SECONDS, EvictionRequest, EvictionRequestError, Excess, Key
from gpushare_runtime.device_plugin.node.ids import card_of_unit
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

REPORT: Final = "report"
EVICT: Final = "evict"
MODES: Final = (REPORT, EVICT)
"""report: an Event and a metric. evict: also a request to the extender to evict the pod."""

INTERVAL_SECONDS: Final = 2.0
_RENEW_BEFORE: Final = REQUEST_SECONDS / 2
_MIB: Final = 1024 * 1024


class Memory(Protocol):
    """The use of the cards' memory, see gpu/pod_memory.py."""

    def lasting(self, seconds: float) -> Mapping[Key, Excess]: ...


def doubt(node: NodeState, pod: LocalPod, card: str, due: int) -> str:
    """Why this pod must not be evicted for its use of a card, of which `due` bytes are its own; "" without a reason."""
    inventory = node.devices.inventory
    if inventory is None or card not in inventory.by_uuid:
        return "its card is not known"
    if pod.static:
        return "it is a static pod, which kubelet would start again"
    if pod.request is None or pod.problem:
        return "its request cannot be read"
    if not node.pods.synced:
        return "the API server has not been reached yet"
    if node.usage.record_lost(pod.uid):
        return "kubelet has lost its record of what the pod has"
    recorded = node.usage.recorded_ids(pod.uid, protocol.RESOURCE_MEMORY)
    if len(recorded) < pod.request.units or sum(card_of_unit(i) == card for i in recorded) * inventory.unit.mib * _MIB != due:
        return "kubelet's checkpoint lists other units than it was compared with"
    return ""


class EvictionRequests:
    """mode: of MODES; grace: seconds above the units until the request; now: Unix time. Used from one event loop only."""

    def __init__(
        self, node: NodeState, client: KubeClient, memory: Memory, mode: str, grace: float, now: Callable[[], float] = time.time
    ) -> None:
        self._node = node
        self._client = client
        self._memory = memory
        self._mode = mode
        self._grace = grace
        self._now = now
        self._doubts: dict[str, str] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            for pod, value in self._changes().values():
                try:
                    await self._write(pod, value)
                except KubeError as error:
                    log.warning("annotation %s of pod %s cannot be written: %s", protocol.ANNOTATION_EVICT, pod, error)
                    await asyncio.sleep(backoff.wait())
                    break
            else:
                backoff.reset()
            await asyncio.sleep(INTERVAL_SECONDS)

    def _changes(self) -> dict[str, tuple[LocalPod, str | None]]:
        """UID → the pod, and the value that its annotation should get; None to remove it."""
        due = self._requests()
        changes: dict[str, tuple[LocalPod, str | None]] = {}
        for pod in self._node.pods:
            text, request = pod.annotations.get(protocol.ANNOTATION_EVICT), due.get(pod.uid)
            if request is None:
                if text is not None and pod.active:
                    changes[pod.uid] = pod, None
            elif not self._still_good(text):
                changes[pod.uid] = pod, request.to_json()
        return changes

    def _still_good(self, text: str | None) -> bool:
        try:
            return text is not None and EvictionRequest.from_json(text).until - self._now() > _RENEW_BEFORE
        except EvictionRequestError:
            return False

    def _requests(self) -> dict[str, EvictionRequest]:
        found: dict[str, EvictionRequest] = {}
        doubts: dict[str, str] = {}
        for (uid, card), excess in self._memory.lasting(self._grace).items() if self._mode == EVICT else ():
            pod = self._node.pods.get(uid)
            if pod is None or not pod.active:
                continue
            if why := doubt(self._node, pod, card, excess.due):
                doubts[uid] = why
                if self._doubts.get(uid) != why:
                    log.warning("pod %s uses more than its units, and its eviction is not requested: %s", pod, why)
                continue
            index = self._node.devices.by_uuid[card].index
            lasts = int(time.monotonic() - excess.since)
            until = int(self._now() + REQUEST_SECONDS)
            found[uid] = EvictionRequest(index, excess.used // _MIB, excess.due // _MIB, lasts, until)
        self._doubts = doubts
        return found

    async def _write(self, pod: LocalPod, value: str | None) -> None:
        # With the UID the API server rejects a PATCH of another pod under the same name. The status only: see pod_annotations.py.
        body = {"metadata": {"uid": pod.uid, "annotations": {protocol.ANNOTATION_EVICT: value}}}
        where = path("api/v1", "namespaces", pod.namespace, "pods", pod.name, "status")
        try:
            await self._client.patch(where, body, kind="merge", within=10.0)
        except KubeError as error:
            if error.status not in (404, 409):
                raise
            return
        if value is None:
            log.info("pod %s: its eviction is not requested any more", pod)
        else:
            log.warning("pod %s: its eviction is requested: %s", pod, EvictionRequest.from_json(value))

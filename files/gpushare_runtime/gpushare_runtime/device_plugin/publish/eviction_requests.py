# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Requests the eviction of pods that use more than their units for too long, or can never start, by an annotation of the node.

Nothing is requested in doubt: about who the pod is, what kubelet has allocated to it, or what it uses now. The request is withdrawn
as soon as a reading shows that the pod keeps to its units, something of it runs after all, or it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_EVICTIONS, ReportError
from gpushare_runtime.core.overuse import REQUEST_SECONDS, STARTS_NEVER, STATIC, EvictionRequest, Evictions, Excess, Key
from gpushare_runtime.core.unit_ids import gpu_of_unit
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeError

log = logging.getLogger(__name__)

REPORT: Final = "report"
EVICT: Final = "evict"
"""report: no more than an Event. evict: also a request to the extender to evict the pod."""

INTERVAL_SECONDS: Final = 2.0
RENEW_BEFORE: Final = REQUEST_SECONDS / 2
_MIB: Final = 1024 * 1024


class MemoryExcess(Protocol):
    """The use of the GPUs' memory, see gpu/pod_memory.py."""

    def lasting(self, seconds: float) -> Mapping[Key, Excess]: ...


def doubt(node: NodeState, pod: LocalPod, gpu: str, due: int) -> str:
    """Why this pod must not be evicted for its use of a GPU, of which `due` bytes are its own; "" without a reason."""
    inventory = node.devices.inventory
    if inventory is None or gpu not in inventory.by_uuid:
        return "its GPU is not known"
    if pod.static:
        return STATIC
    if pod.request is None or pod.problem:
        return "its request cannot be read"
    if not node.pods.synced:
        return "the API server has not been reached yet"
    if node.usage.record_lost(pod.uid):
        return "kubelet has lost its record of what the pod has"
    recorded = node.usage.recorded_ids(pod.uid, protocol.RESOURCE_MEMORY)
    if len(recorded) < pod.request.units or sum(gpu_of_unit(i) == gpu for i in recorded) * inventory.unit.mib * _MIB != due:
        return "kubelet's checkpoint lists other units than it was compared with"
    return ""


class EvictionRequests:
    """mode, unstartable: REPORT or EVICT, for pods above their units and for those that can never start. grace: seconds above the units
    until the request. now: Unix time. It is used from one event loop only."""

    def __init__(
        self,
        node: NodeState,
        publisher: NodePublisher,
        memory: MemoryExcess,
        mode: str,
        grace: float,
        now: Callable[[], float] = time.time,
        *,
        unstartable: str = REPORT,
    ) -> None:
        self._node = node
        self._publisher = publisher
        self._memory = memory
        self._mode = mode
        self._unstartable = unstartable
        self._grace = grace
        self._now = now
        self._doubts: dict[str, str] = {}
        self._written: Mapping[str, EvictionRequest] = {}

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            requests = self._requests()
            if self._due(requests):
                try:
                    await self._write(requests)
                    backoff.reset()
                except KubeError as error:
                    log.warning("annotation %s cannot be written: %s", protocol.ANNOTATION_EVICTIONS, error)
                    await asyncio.sleep(backoff.wait())
            await asyncio.sleep(INTERVAL_SECONDS)

    def _due(self, requests: Mapping[str, EvictionRequest]) -> bool:
        """Whether the annotation is to be written. Use and time change at every reading: they are not a reason."""
        published = self._publisher.published
        text = published.get(protocol.ANNOTATION_EVICTIONS) if published is not None else None
        if published is None or (text is None and not requests):
            return False
        try:
            found, now = Evictions.from_json(text or ""), self._now()
        except ReportError:
            return True
        pods = {request.uid: (request.gpu, request.reason) for request in found.requests}
        wanted = {uid: (request.gpu, request.reason) for uid, request in requests.items()}
        return not wanted or pods != wanted or not found.in_force(now) or found.until - now <= RENEW_BEFORE

    def _requests(self) -> dict[str, EvictionRequest]:
        """By UID; those that can never start first, then those that have lasted longest."""
        found = self._never_started()
        doubts: dict[str, str] = {}
        lasting = self._memory.lasting(self._grace) if self._mode == EVICT else {}
        for (uid, gpu), excess in sorted(lasting.items(), key=lambda pair: (pair[1].since, pair[0])):
            pod = self._node.pods.get(uid)
            if pod is None or not pod.active:
                continue
            if why := doubt(self._node, pod, gpu, excess.due):
                doubts[uid] = why
                if self._doubts.get(uid) != why:
                    log.warning("pod %s uses more than its units, and its eviction is not requested: %s", pod, why, extra=about(pod))
                continue
            index = self._node.devices.by_uuid[gpu].index
            lasts = int(time.monotonic() - excess.since)
            if uid not in found and len(found) < MOST_EVICTIONS:
                found[uid] = EvictionRequest(uid, index, excess.used // _MIB, excess.due // _MIB, lasts)
        self._doubts = doubts
        return found

    def _never_started(self) -> dict[str, EvictionRequest]:
        """For pods that are not started again until they are deleted, and of which nothing runs. kubelet would start a static pod again."""
        known = ((self._node.pods.get(uid), gpu) for uid, gpu in self._node.starts.never_start().items())
        requests = {
            pod.uid: EvictionRequest(pod.uid, gpu, 0, 0, 0, STARTS_NEVER)
            for pod, gpu in (known if self._unstartable == EVICT else ())
            if pod is not None and pod.active and not pod.static
        }
        return dict(islice(requests.items(), MOST_EVICTIONS))

    async def _write(self, requests: Mapping[str, EvictionRequest]) -> None:
        until = int(self._now() + REQUEST_SECONDS)
        value = Evictions(tuple(requests.values()), until).to_json() if requests else None
        await self._publisher.write({protocol.ANNOTATION_EVICTIONS: value})
        for uid in self._written.keys() - requests.keys():
            log.info(
                "pod %s: its eviction is not requested any more", self._node.usage.pod_name(uid), extra=about(self._node.usage.name(uid))
            )
        for uid in requests.keys() - self._written.keys():
            log.warning(
                "pod %s: its eviction is requested: %s", self._node.pods.get(uid), requests[uid], extra=about(self._node.usage.name(uid))
            )
        self._written = requests

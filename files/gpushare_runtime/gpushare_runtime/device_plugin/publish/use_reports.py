# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Publishes what pods use by the node's annotation `gpushare/use`: at most once a minute, and only what a person would notice."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import physical_index
from gpushare_runtime.core.load import Key, Load
from gpushare_runtime.core.use_report import IDLE_SECONDS, WRITE_SECONDS, GpuUse, PodUse, UseReport
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.gpu.use import Use
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeError

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
_MIB: Final = 1024 * 1024


class Measured(Protocol):
    """The use of the GPUs, see gpu/pod_memory.py."""

    @property
    def use(self) -> Use: ...

    @property
    def loads(self) -> Mapping[Key, Load]: ...

    @property
    def idle(self) -> Mapping[Key, float]: ...

    @property
    def peaks(self) -> Mapping[Key, int]: ...


class UseReports:
    """enabled: if not, an annotation that is there is removed. now: Unix time. It is used from one event loop only."""

    def __init__(
        self,
        node: NodeState,
        publisher: NodePublisher,
        measured: Measured,
        *,
        enabled: bool,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._publisher = publisher
        self._measured = measured
        self._enabled = enabled
        self._now = now
        self._clock = clock
        self._since = int(now())
        self._written_at: float | None = None

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            wait = INTERVAL_SECONDS
            try:
                await self.step()
                backoff.reset()
            except KubeError as error:
                log.warning("annotation %s cannot be written: %s", protocol.ANNOTATION_USE, error, extra=about())
                wait += backoff.wait()
            await asyncio.sleep(wait)

    async def step(self) -> None:
        """Write the annotation if it is due. KubeError."""
        published = self._publisher.published
        if published is None or (self._enabled and not self._measured.use.by_gpu):
            # Of GPUs that do not answer there is no news.
            return
        text = published.get(protocol.ANNOTATION_USE)
        if not self._enabled:
            if text is not None:
                await self._publisher.write({protocol.ANNOTATION_USE: None})
            return
        if self._written_at is not None and self._clock() - self._written_at < WRITE_SECONDS:
            return
        before = _read(text)
        report = self._report(before)
        if before is None or report.differs(before):
            # Also a write that fails has cost the API server something.
            self._written_at = self._clock()
            await self._publisher.write({protocol.ANNOTATION_USE: report.to_json()})

    def _report(self, before: UseReport | None = None) -> UseReport:
        """before: the last report, maybe of a process before this one. A pod that is still there had its peak then, too."""
        use, by_uuid = self._measured.use, self._node.devices.by_uuid
        gpus = {}
        for uuid, size in use.by_gpu.items():
            if gpu := by_uuid.get(uuid):
                # NVML's sensors are those of a GPU, not of one of its instances.
                sensors = use.sensors.get(gpu.index) if gpu.index == physical_index(gpu.index) else None
                gpus[gpu.index] = GpuUse(-(-size // _MIB), sensors.sm if sensors else None)
        now, loads, idle, peaks, held = self._now(), self._measured.loads, self._measured.idle, self._measured.peaks, {}
        earlier = before.pods if before else {}
        for uid, uuid in self._node.usage.units_by_pod(self._node.devices.inventory):
            if (gpu := by_uuid.get(uuid)) is None or uuid not in use.by_gpu:
                continue
            key, load, since = (uid, uuid), loads.get((uid, uuid)), idle.get((uid, uuid))
            lasts = int(since) if since is not None and now - since >= IDLE_SECONDS else None
            mib, sm = -(-use.by_pod.get(key, 0) // _MIB), None if load is None else round(load.sm)
            name = self._known_as(uid), gpu.index
            peak = max(mib, -(-peaks.get(key, 0) // _MIB), earlier.get(name, PodUse()).peak or 0)
            held[name] = PodUse(mib, sm, lasts, peak)
        return UseReport(int(now), gpus, held, since=min(self._since, before.since) if before else self._since)

    def _known_as(self, uid: str) -> str:
        """The UID by which the API server has a static pod is another one."""
        pod = self._node.pods.get(uid)
        return pod.mirror_uid if pod is not None and pod.mirror_uid else uid


def _read(text: str | None) -> UseReport | None:
    """The annotation; None where there is none that can be read."""
    try:
        return UseReport.from_json(text) if text is not None else None
    except ReportError:
        return None

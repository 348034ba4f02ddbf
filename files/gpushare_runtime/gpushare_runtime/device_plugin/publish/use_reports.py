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
from gpushare_runtime.core.use_report import IDLE_SECONDS, WRITE_SECONDS, GpuUse, PodUse, UseReport, step_up
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.gpu.use import Peak, Use
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
    def peaks(self) -> Mapping[Key, Peak]: ...


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
        # As the plugin before this one left them, by UID and index; None until they are read.
        self._earlier: Mapping[tuple[str, int], PodUse] | None = None
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
        if published is not None and self._earlier is None:
            found = _read(published.get(protocol.ANNOTATION_USE))
            self._earlier = found.pods if found else {}
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
        report = self._report()
        if before is None or report.differs(before):
            # Also a write that fails has cost the API server something.
            self._written_at = self._clock()
            await self._publisher.write({protocol.ANNOTATION_USE: report.to_json()})

    def _report(self) -> UseReport:
        use, by_uuid, now = self._measured.use, self._node.devices.by_uuid, self._now()
        gpus = {}
        for uuid, size in use.by_gpu.items():
            if gpu := by_uuid.get(uuid):
                # NVML's sensors are those of a GPU, not of one of its instances.
                sensors = use.sensors.get(gpu.index) if gpu.index == physical_index(gpu.index) else None
                gpus[gpu.index] = GpuUse(-(-size // _MIB), sensors.sm if sensors else None)
        held = {}
        for key in self._node.usage.units_by_pod(self._node.devices.inventory):
            if gpu := by_uuid.get(key[1]):
                name = self._known_as(key[0]), gpu.index
                if pod := self._pod(key, (self._earlier or {}).get(name), now):
                    held[name] = pod
        return UseReport(int(now), gpus, held)

    def _pod(self, key: Key, earlier: PodUse | None, now: float) -> PodUse | None:
        """None where nothing is known. earlier: what the plugin before this one has seen counts, too. Of a GPU that does not answer its
        peak stays."""
        use, seen = self._measured.use, self._measured.peaks.get(key)
        answers = key[1] in use.by_gpu
        if not answers and seen is None and earlier is None:
            return None
        size, load, since = use.bytes_of(key), self._measured.loads.get(key), self._measured.idle.get(key)
        mib = None if size is None else -(-size // _MIB)
        most = [] if seen is None else [None if seen.most is None else -(-seen.most // _MIB)]
        most += ([mib] if answers else []) + ([earlier.peak] if earlier else [])
        known = [peak for peak in most if peak is not None]
        return PodUse(
            mib,
            round(load.sm) if answers and load is not None else None,
            int(since) if answers and since is not None and now - since >= IDLE_SECONDS else None,
            step_up(max(known)) if len(known) == len(most) else None,
            (earlier.seconds if earlier else 0) + int(seen.seconds if seen else 0),
        )

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

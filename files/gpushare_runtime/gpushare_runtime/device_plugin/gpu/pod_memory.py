# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads what pods use every few seconds, tells which pods use more memory than their units, and follows how busy pods keep their GPUs.

A GPU that answers slowly is left out until it has answered: the others are read without it, and nothing that kubelet asks for waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, NoReturn

from gpushare_runtime.core.inventory import HEALTHY, Gpu
from gpushare_runtime.core.load import NOTHING, Activity, ContainerKey, Key, Load
from gpushare_runtime.core.overuse import Excess, Overuse
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.gpu.discovery import Nvml
from gpushare_runtime.device_plugin.gpu.pod_limits import limits_due
from gpushare_runtime.device_plugin.gpu.use import Identities, Pass, Peak, Use, UseReader, together
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
SENSORS_EVERY: Final = 5
"""Readings: Prometheus scrapes every 15 seconds or less often. So often a GPU is read that no pod has."""
SLOW_SECONDS: Final = 5.0
"""A reading of all GPUs takes milliseconds."""
_MIB: Final = 1024 * 1024


class MemoryWatch:
    """Reads the use every few seconds. It is used from one event loop only.

    exceeded: reports a pod that uses too much, with a message; None if no pod is limited to its units. by_claim: whether pods have GPUs by
    claims, of which the record does not say which containers have them.
    """

    def __init__(
        self,
        node: NodeState,
        nvml: Nvml,
        identities: Identities,
        exceeded: Callable[[LocalPod, str], None] | None,
        *,
        by_claim: bool = False,
    ) -> None:
        self.use = Use()
        self._node = node
        self._reader = UseReader(nvml, identities)
        self._exceeded = exceeded
        self._by_claim = by_claim
        self._overuse = Overuse()
        self._activity: Activity[Key] = Activity()
        self._containers: Activity[ContainerKey] = Activity()
        self._peaks: dict[Key, Peak] = {}
        # Of the last reading: when it was, and the pods with GPUs that have answered.
        self._read_at = 0.0
        self._answered: Set[Key] = frozenset()
        self._readings = 0
        self._found: dict[str, Use] = {}
        # GPUs that have not answered yet, by UUID.
        self._slow: dict[str, asyncio.Future[None]] = {}

    @property
    def over(self) -> int:
        """How many pods use more than their units."""
        return len({uid for uid, _ in self._overuse.reported()})

    def lasting(self, seconds: float) -> Mapping[Key, Excess]:
        """The pods that have used more than their units for so long, by GPU."""
        return self._overuse.lasting(seconds, time.monotonic())

    @property
    def loads(self) -> Mapping[Key, Load]:
        """How busy each pod has kept each of its GPUs in the last minute, as far as it is known."""
        return self._activity.means(time.monotonic())

    @property
    def by_container(self) -> Mapping[ContainerKey, int]:
        """The bytes that each container uses of each GPU, by name, of those with a process there."""
        return {named: size for key, size in self.use.by_container.items() if (named := self._named(key))}

    @property
    def container_loads(self) -> Mapping[ContainerKey, Load]:
        """As `loads`, of the containers that have a GPU, by name."""
        return self._containers.means(time.monotonic())

    def _named(self, key: ContainerKey) -> ContainerKey | None:
        """The key with the container's name for its ID; None before kubelet has told the API server of it."""
        uid, gpu, container = key
        pod = self._node.pods.get(uid)
        name = pod.container_named(container) if pod else ""
        return (uid, gpu, name) if name else None

    @property
    def idle(self) -> Mapping[Key, float]:
        """Unix time since when a pod has used nothing of a GPU that it has, of those that use nothing now."""
        return self._activity.idle(time.monotonic())

    @property
    def peaks(self) -> Mapping[Key, Peak]:
        """The most of a GPU that each pod that has it has used since the start."""
        return self._peaks

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            gpus = [gpu for gpu in self._node.devices.gpus if gpu.health == HEALTHY]
            held = frozenset(self._node.usage.units_by_pod(self._node.devices.inventory))
            self.use = await self._read(gpus, {uuid for _, uuid in held})
            if self._exceeded is not None:
                self._compare(self._exceeded)
            self._note_peaks(held, time.monotonic())
            loads = {key: load for key in held if (load := self.use.load_of(key)) is not None}
            self._activity.observe(loads, held, time.monotonic(), time.time())
            self._observe_containers()
            await asyncio.sleep(INTERVAL_SECONDS)

    def _observe_containers(self) -> None:
        use, named, unnamed = self.use, dict[ContainerKey, Load](), set[Key]()
        for key, load in use.container_loads.items():
            if known := self._named(key):
                named[known] = load
            else:
                unnamed.add(key[:2])
        having = [(key, gpu) for key, gpus in self._node.usage.gpu_uuids().items() for gpu in gpus]
        # A claim names no containers: of its pod those count that are seen to use the GPU.
        of_pods = {(key.pod, gpu) for key, gpu in having}
        held = frozenset(
            {key for key in named if key[:2] in of_pods} if self._by_claim else {(key.pod, gpu, key.container) for key, gpu in having}
        )
        at_rest = {key: NOTHING for key in held if key[1] in use.measured and key[:2] not in use.loose | unnamed}
        self._containers.observe({**at_rest, **named}, held, time.monotonic(), time.time())

    def _note_peaks(self, held: Set[Key], now: float) -> None:
        for key in self._peaks.keys() - held:
            del self._peaks[key]
        answered = {key for key in held if key[1] in self.use.by_gpu}
        for key in answered:
            before, size = self._peaks.get(key, Peak(0)), self.use.bytes_of(key)
            most = None if before.most is None or size is None else max(before.most, size)
            self._peaks[key] = Peak(most, before.seconds + (now - self._read_at if key in self._answered else 0.0))
        self._read_at, self._answered = now, answered

    async def _read(self, gpus: Sequence[Gpu], needed: Set[str]) -> Use:
        """needed: UUIDs of the GPUs that pods have. Of the others the last reading counts, unless the sensors are due."""
        self._reader.keep({gpu.uuid for gpu in gpus} | self._slow.keys())
        for uuid in [uuid for uuid, late in self._slow.items() if late.done()]:
            self._slow.pop(uuid).result()
            log.info("GPU %s has answered what it uses", uuid, extra=about(gpu=uuid))
        there = {gpu.uuid for gpu in gpus if gpu.uuid not in self._slow}
        if not there:
            self._found = {}
            return Use()
        sensors = self._readings % SENSORS_EVERY == 0
        self._readings += 1
        asked = [gpu for gpu in gpus if gpu.uuid in there and (sensors or gpu.uuid in needed or gpu.uuid not in self._found)]
        kept = {uuid: use for uuid, use in self._found.items() if uuid in there - {gpu.uuid for gpu in asked}}
        self._found = {**kept, **(await self._ask(asked, sensors=sensors) if asked else {})}
        return together(self._found.values())

    async def _ask(self, gpus: Sequence[Gpu], *, sensors: bool) -> Mapping[str, Use]:
        reading = Pass(self._reader, gpus, sensors=sensors)
        running = asyncio.ensure_future(in_thread(reading.run))
        done, _ = await asyncio.wait({running}, timeout=SLOW_SECONDS)
        found = reading.leave()
        if not done and (at := reading.at):
            self._slow[at] = running
            text = "GPU %s has not answered what it uses for %.0f s: its use is unknown until it does"
            log.warning(text, at, SLOW_SECONDS, extra=about(gpu=at))
        elif done:
            running.result()
        return found

    def _compare(self, exceeded: Callable[[LocalPod, str], None]) -> None:
        uids = {uid for uid, _, _ in self._node.usage.snapshot()}
        due = {(uid, gpu): most for uid in uids for gpu, most in limits_due(self._node, uid).items()}
        began, ended = self._overuse.observe(due, self.use.by_pod, self.use.by_gpu, time.monotonic())
        for uid, gpu in began:
            self._report(uid, gpu, self.use.by_pod[uid, gpu], due[uid, gpu], exceeded)
        for uid, gpu in ended:
            log.info(
                "%s uses no more than its units of GPU %s again", self._node.usage.pod_name(uid), gpu, extra=self._node.about(uid, gpu)
            )

    def _report(self, uid: str, gpu: str, used: int, due: int, exceeded: Callable[[LocalPod, str], None]) -> None:
        pod, known = self._node.pods.get(uid), self._node.devices.by_uuid.get(gpu)
        index = known.index if known else gpu
        text = (
            f"It uses {used // _MIB} MiB of GPU {index} and requested {due // _MIB} MiB there: other pods of the GPU may run out of "
            "memory; reduce its use, or request more"
        )
        log.warning("%s: %s", self._node.usage.pod_name(uid), text, extra=self._node.about(uid, gpu))
        if pod is not None:
            exceeded(pod, text)

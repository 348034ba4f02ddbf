# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each pod uses of each GPU, by NVML's processes: memory, and how busy it keeps the engines; and the sensors of the GPUs. One pass.

A process counts only if it is certainly the one that NVML means: its number may belong to another process a moment later. So the process
must be the same before NVML lists it and after. The one that the reading before has found there is known already; for new ones NVML is
asked twice. Samples are about the time since the reading before: they count only for a process that was known then.

Memory in doubt counts for no pod: a pod that seems to use too much does use too much. And nobody is called idle in doubt: where
something outside of pods is busy, such as an MPS server that hides its clients, or NVML says that the GPU is busy and not with what, a pod
without samples is unknown, not at rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare_runtime.core.inventory import Gpu, physical_index
from gpushare_runtime.core.load import NOTHING, Key, Load
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError, Sensors

log = logging.getLogger(__name__)

MOST_PROCESSES: Final = 512
"""Of one GPU, those with most memory first. A GPU has room for fewer contexts of CUDA, unless with MPS."""
_BUSY_PERCENT: Final = 5
_MICROSECONDS: Final = 1_000_000

_Identity = tuple[int, str]


class Identities(Protocol):
    """The processes of this host."""

    def identify(self, pid: int) -> tuple[int, str] | None:
        """When the process started (in the kernel's ticks) and the UID of its pod, "" without one; None if it does not exist."""


@dataclass(frozen=True)
class Use:
    """Keys: (pod UID, GPU UUID). by_pod: bytes; by_gpu: bytes of all that is in use there, of GPUs that answer.

    loads: of pods that have samples. measured: UUIDs of the GPUs of which a pod without samples uses nothing. sensors: by index of the
    physical GPU, as they were last read.
    """

    by_pod: Mapping[Key, int] = field(default_factory=dict)
    by_gpu: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[Key, Load] = field(default_factory=dict)
    measured: Set[str] = frozenset()
    sensors: Mapping[int, Sensors] = field(default_factory=dict)

    def load_of(self, key: Key) -> Load | None:
        """None where it is unknown."""
        return self.loads.get(key, NOTHING if key[1] in self.measured else None)


@dataclass
class _Of:
    """What the readings before have left of one GPU. since: the driver's time of the last sample."""

    since: int
    known: Mapping[int, _Identity] = field(default_factory=dict)
    able: bool | None = None
    sensors: Sensors | None = None


class UseReader:
    """Reads GPUs again and again. Two threads may read, if it is not the same GPU. wall: Unix time."""

    def __init__(self, nvml: Nvml, identities: Identities, wall: Callable[[], float] = time.time) -> None:
        self._nvml = nvml
        self._identities = identities
        self._wall = wall
        self._of: dict[str, _Of] = {}

    def keep(self, uuids: Set[str]) -> None:
        """Forget the GPUs that are not among these."""
        for uuid in self._of.keys() - uuids:
            del self._of[uuid]

    def read(self, gpu: Gpu, *, sensors: bool) -> Use:
        """The use of one GPU. Blocks. sensors: whether to read them, else they are as before. NvmlError if it does not answer."""
        of = self._of.setdefault(gpu.uuid, _Of(int(self._wall() * _MICROSECONDS)))
        sizes, same, old = self._processes(gpu, of)
        if sensors:
            of.sensors = self._nvml.sensors(gpu.uuid)
        by_pod: Counter[Key] = Counter()
        for pid, size in sizes:
            if size is not None and pid in same and same[pid][1]:
                by_pod[same[pid][1], gpu.uuid] += size
        loads, measured = self._loads(gpu, of, {pid: same[pid] for pid in old}, ask=sensors or bool(sizes))
        found = {} if of.sensors is None else {physical_index(gpu.index): of.sensors}
        return Use(by_pod, {gpu.uuid: self._nvml.memory_used(gpu.uuid)}, loads, {gpu.uuid} if measured else set(), found)

    def _processes(self, gpu: Gpu, of: _Of) -> tuple[list[tuple[int, int | None]], dict[int, _Identity], set[int]]:
        """(processes and their bytes, who they certainly are, those of them that the reading before has found)."""
        before, listed = of.known, self._list(gpu)
        if any(pid not in before for pid, _ in listed):
            new = {pid: found for pid, _ in listed if pid not in before and (found := self._identities.identify(pid))}
            before, listed = {**before, **new}, self._list(gpu)
        now = {pid: found for pid, _ in listed if (found := self._identities.identify(pid))}
        same = {pid: found for pid, found in now.items() if before.get(pid) == found}
        old = {pid for pid, found in same.items() if of.known.get(pid) == found}
        of.known = now
        return listed, same, old

    def _list(self, gpu: Gpu) -> list[tuple[int, int | None]]:
        found = list(self._nvml.processes(gpu.uuid))
        if len(found) <= MOST_PROCESSES:
            return found
        log.debug("GPU %s has %d processes: %d of them count", gpu.uuid, len(found), MOST_PROCESSES, extra=about(gpu=gpu.index))
        return sorted(found, key=lambda one: (-(one[1] or 0), one[0]))[:MOST_PROCESSES]

    def _loads(self, gpu: Gpu, of: _Of, known: Mapping[int, _Identity], *, ask: bool) -> tuple[dict[Key, Load], bool]:
        """(of pods, whether the others use nothing). known: who had which PID since the samples before; ask: whether any could be busy."""
        if of.able is not None and not (of.able and ask):
            return {}, of.able
        of.since = min(of.since, int(self._wall() * _MICROSECONDS))
        try:
            samples = self._nvml.loads(gpu.uuid, of.since)
        except NvmlError as error:
            of.able = False if error.unable else of.able
            return {}, False
        of.able = True
        last = {one.pid: one for one in sorted(samples, key=lambda one: one.at)[-MOST_PROCESSES:] if one.at > of.since}
        of.since = max([of.since, *(one.at for one in last.values())])
        busy = {pid: one.load for pid, one in last.items() if not one.load.nothing}
        # Those that NVML has asked about a moment ago may have ended since, and their numbers be others'.
        mine = {pid: known[pid][1] for pid in busy if pid in known and known[pid][1] and self._identities.identify(pid) == known[pid]}
        loads: dict[Key, Load] = {}
        for pid, uid in mine.items():
            loads[uid, gpu.uuid] = loads.get((uid, gpu.uuid), NOTHING).plus(busy[pid])
        rate = of.sensors.sm if of.sensors else None
        return loads, len(mine) == len(busy) and bool(busy or rate is None or rate < _BUSY_PERCENT)


class Pass:
    """One reading of some GPUs in a thread, which may hang at one of them. at: UUID of the one that is being read, "" before and after."""

    def __init__(self, reader: UseReader, gpus: Sequence[Gpu], *, sensors: bool) -> None:
        self.at = ""
        self._reader = reader
        self._gpus = gpus
        self._sensors = sensors
        self._found: list[Use] = []
        self._lock = threading.Lock()
        self._left = False

    def run(self) -> None:
        """Blocks. A GPU that does not answer is left out."""
        read: set[int] = set()
        for gpu in self._gpus:
            with self._lock:
                if self._left:
                    return
                self.at = gpu.uuid
            index = physical_index(gpu.index)
            try:
                use = self._reader.read(gpu, sensors=self._sensors and index not in read)
            except NvmlError as error:
                log.debug("the use of GPU %s is unknown: %s", gpu.uuid, error, extra=about(gpu=gpu.index))
                continue
            read.add(index)
            with self._lock:
                if not self._left:
                    self._found.append(use)
        self.at = ""

    def leave(self) -> Use:
        """All that was read so far; what follows counts for nothing, and after the GPU that is being read the pass ends."""
        with self._lock:
            self._left = True
        found = self._found
        return Use(
            {key: size for use in found for key, size in use.by_pod.items()},
            {uuid: size for use in found for uuid, size in use.by_gpu.items()},
            {key: load for use in found for key, load in use.loads.items()},
            {uuid for use in found for uuid in use.measured},
            {index: sensors for use in found for index, sensors in use.sensors.items()},
        )

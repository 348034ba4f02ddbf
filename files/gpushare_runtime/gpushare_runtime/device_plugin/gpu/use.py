# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The use that each pod makes of each GPU, by NVML's processes: memory, and how busy it keeps the engines. And the GPUs' sensors. One pass.

A process counts only if it is certainly the one that NVML means: its number may belong to another process a moment later. So the process
must be the same before NVML lists it and after. The one that the reading before has found there is known already; for new ones NVML is
asked twice. Samples are about the time since the reading before: they count only for a process that was known then.

Memory in doubt counts for no pod: a pod that seems to use too much does use too much. And no pod is called idle in doubt: where
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
class _GpuState:
    """The remains of the readings before, of one GPU. since: the driver's time of the last sample."""

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
        self._states: dict[str, _GpuState] = {}

    def keep(self, uuids: Set[str]) -> None:
        """Forget the GPUs that are not among these."""
        for uuid in self._states.keys() - uuids:
            del self._states[uuid]

    def read(self, gpu: Gpu, *, sensors: bool) -> Use:
        """The use of one GPU. Blocks. sensors: whether to read them, else they are as before. NvmlError if it does not answer."""
        state = self._states.setdefault(gpu.uuid, _GpuState(int(self._wall() * _MICROSECONDS)))
        sizes, same, old = self._processes(gpu, state)
        if sensors:
            state.sensors = self._nvml.sensors(gpu.uuid)
        by_pod: Counter[Key] = Counter()
        for pid, size in sizes:
            if size is not None and pid in same and same[pid][1]:
                by_pod[same[pid][1], gpu.uuid] += size
        loads, measured = self._loads(gpu, state, {pid: same[pid] for pid in old}, ask=sensors or bool(sizes))
        found = {} if state.sensors is None else {physical_index(gpu.index): state.sensors}
        return Use(by_pod, {gpu.uuid: self._nvml.memory_used(gpu.uuid)}, loads, {gpu.uuid} if measured else set(), found)

    def _processes(self, gpu: Gpu, state: _GpuState) -> tuple[list[tuple[int, int | None]], dict[int, _Identity], set[int]]:
        """(processes and their bytes, who they certainly are, those of them that the reading before has found)."""
        before, listed = state.known, self._list(gpu)
        if any(pid not in before for pid, _ in listed):
            new = {pid: found for pid, _ in listed if pid not in before and (found := self._identities.identify(pid))}
            before, listed = {**before, **new}, self._list(gpu)
        now = {pid: found for pid, _ in listed if (found := self._identities.identify(pid))}
        same = {pid: found for pid, found in now.items() if before.get(pid) == found}
        old = {pid for pid, found in same.items() if state.known.get(pid) == found}
        state.known = now
        return listed, same, old

    def _list(self, gpu: Gpu) -> list[tuple[int, int | None]]:
        found = list(self._nvml.processes(gpu.uuid))
        if len(found) <= MOST_PROCESSES:
            return found
        log.debug("GPU %s has %d processes: %d of them count", gpu.uuid, len(found), MOST_PROCESSES, extra=about(gpu=gpu.index))
        return sorted(found, key=lambda process: (-(process[1] or 0), process[0]))[:MOST_PROCESSES]

    def _loads(self, gpu: Gpu, state: _GpuState, known: Mapping[int, _Identity], *, ask: bool) -> tuple[dict[Key, Load], bool]:
        """(of pods, whether the others use nothing). known: who had which PID since the samples before; ask: whether any could be busy."""
        if state.able is not None and not (state.able and ask):
            return {}, state.able
        state.since = min(state.since, int(self._wall() * _MICROSECONDS))
        try:
            samples = self._nvml.loads(gpu.uuid, state.since)
        except NvmlError as error:
            state.able = False if error.unable else state.able
            return {}, False
        state.able = True
        last = {sample.pid: sample for sample in sorted(samples, key=lambda sample: sample.at)[-MOST_PROCESSES:] if sample.at > state.since}
        state.since = max([state.since, *(sample.at for sample in last.values())])
        busy = {pid: sample.load for pid, sample in last.items() if not sample.load.nothing}
        # Those that NVML has asked about a moment ago may have ended since, and their numbers be others'.
        mine = {pid: known[pid][1] for pid in busy if pid in known and known[pid][1] and self._identities.identify(pid) == known[pid]}
        loads: dict[Key, Load] = {}
        for pid, uid in mine.items():
            loads[uid, gpu.uuid] = loads.get((uid, gpu.uuid), NOTHING).plus(busy[pid])
        rate = state.sensors.sm if state.sensors else None
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

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
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare_runtime.core.inventory import Gpu, physical_index
from gpushare_runtime.core.load import NOTHING, ContainerKey, Key, Load
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

    def is_still(self, pid: int, known: tuple[int, str]) -> bool:
        """Whether this is the process that was identified so."""

    def container_of(self, pid: int) -> str:
        """The ID of the process's container, "" where it is unknown."""


@dataclass(frozen=True)
class Use:
    """Keys: (pod UID, GPU UUID). by_pod: bytes; by_gpu: bytes of all that is in use there, of GPUs that answer.

    unsized: the pods with a process of which the driver does not report the memory: more than by_pod may be theirs. loads: of pods that
    have samples. measured: UUIDs of the GPUs of which a pod without samples uses nothing. sensors: by index of the
    physical GPU, as they were last read. by_container, container_loads: the same by the container's ID; loose: the pods with a process of
    which the container is not known.
    """

    by_pod: Mapping[Key, int] = field(default_factory=dict)
    by_gpu: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[Key, Load] = field(default_factory=dict)
    measured: Set[str] = frozenset()
    sensors: Mapping[int, Sensors] = field(default_factory=dict)
    by_container: Mapping[ContainerKey, int] = field(default_factory=dict)
    container_loads: Mapping[ContainerKey, Load] = field(default_factory=dict)
    loose: Set[Key] = frozenset()
    unsized: Set[Key] = frozenset()

    def bytes_of(self, key: Key) -> int | None:
        """The bytes that a pod which has the GPU uses there; None where they are unknown."""
        return None if key[1] not in self.by_gpu or key in self.unsized else self.by_pod.get(key, 0)

    def load_of(self, key: Key) -> Load | None:
        """None where it is unknown."""
        return self.loads.get(key, NOTHING if key[1] in self.measured else None)


@dataclass(frozen=True)
class Peak:
    """The most bytes of a GPU that a pod has used, of all readings; None once one of them did not have all of it. seconds: measured."""

    most: int | None
    seconds: float = 0.0


@dataclass
class _GpuState:
    """The remains of the readings before, of one GPU. since: the driver's time of the last sample."""

    since: int
    known: Mapping[int, _Identity] = field(default_factory=dict)
    containers: Mapping[int, str] = field(default_factory=dict)
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
        by_container: Counter[ContainerKey] = Counter()
        loose: set[Key] = set()
        unsized: set[Key] = set()
        for pid, size in sizes:
            if pid not in same or not (uid := same[pid][1]):
                continue
            if not (container := state.containers.get(pid)):
                loose.add((uid, gpu.uuid))
            if size is None:
                unsized.add((uid, gpu.uuid))
            else:
                by_pod[uid, gpu.uuid] += size
                if container:
                    by_container[uid, gpu.uuid, container] += size
        busy, measured = self._busy(gpu, state, {pid: same[pid] for pid in old}, ask=sensors or bool(sizes))
        loads: dict[Key, Load] = {}
        container_loads: dict[ContainerKey, Load] = {}
        for pid, load in busy.items():
            key = same[pid][1], gpu.uuid
            loads[key] = loads.get(key, NOTHING).plus(load)
            if container := state.containers.get(pid):
                part = (*key, container)
                container_loads[part] = container_loads.get(part, NOTHING).plus(load)
        found = {} if state.sensors is None else {physical_index(gpu.index): state.sensors}
        used = {gpu.uuid: self._nvml.memory_used(gpu.uuid)}
        return Use(by_pod, used, loads, {gpu.uuid} if measured else set(), found, by_container, container_loads, loose, unsized)

    def _processes(self, gpu: Gpu, state: _GpuState) -> tuple[list[tuple[int, int | None]], dict[int, _Identity], set[int]]:
        """(processes and their bytes, who they certainly are, those of them that the reading before has found)."""
        before, listed = state.known, self._list(gpu)
        if any(pid not in before for pid, _ in listed):
            new = {pid: found for pid, _ in listed if pid not in before and (found := self._identities.identify(pid))}
            before, listed = {**before, **new}, self._list(gpu)
        now = {pid: found for pid, _ in listed if (found := self._identify(pid, before.get(pid)))}
        same = {pid: found for pid, found in now.items() if before.get(pid) == found}
        old = {pid for pid, found in same.items() if state.known.get(pid) == found}
        state.containers = {
            pid: state.containers[pid] if pid in old and pid in state.containers else self._container(pid, found)
            for pid, found in same.items()
            if found[1]
        }
        state.known = now
        return listed, same, old

    def _identify(self, pid: int, before: _Identity | None) -> _Identity | None:
        return before if before and self._identities.is_still(pid, before) else self._identities.identify(pid)

    def _container(self, pid: int, identity: _Identity) -> str:
        """Of a process that has just been found; "" where its number may have become another's."""
        container = self._identities.container_of(pid)
        return container if self._identities.identify(pid) == identity else ""

    def _list(self, gpu: Gpu) -> list[tuple[int, int | None]]:
        found = list(self._nvml.processes(gpu.uuid))
        if len(found) <= MOST_PROCESSES:
            return found
        log.debug("GPU %s has %d processes: %d of them count", gpu.uuid, len(found), MOST_PROCESSES, extra=about(gpu=gpu.index))
        return sorted(found, key=lambda process: (-(process[1] or 0), process[0]))[:MOST_PROCESSES]

    def _busy(self, gpu: Gpu, state: _GpuState, known: Mapping[int, _Identity], *, ask: bool) -> tuple[dict[int, Load], bool]:
        """(by PID of the processes of pods, whether the others use nothing). known: who had which PID since the samples before.

        ask: whether any could be busy.
        """
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
        mine = {pid: load for pid, load in busy.items() if pid in known and known[pid][1] and self._identities.is_still(pid, known[pid])}
        rate = state.sensors.sm if state.sensors else None
        return mine, len(mine) == len(busy) and bool(busy or rate is None or rate < _BUSY_PERCENT)


class Pass:
    """One reading of some GPUs in a thread, which may hang at one of them. at: UUID of the one that is being read, "" before and after."""

    def __init__(self, reader: UseReader, gpus: Sequence[Gpu], *, sensors: bool) -> None:
        self.at = ""
        self._reader = reader
        self._gpus = gpus
        self._sensors = sensors
        self._found: dict[str, Use] = {}
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
                    self._found[gpu.uuid] = use
        self.at = ""

    def leave(self) -> Mapping[str, Use]:
        """All that was read so far, by UUID; what follows counts for nothing, and after the GPU that is being read the pass ends."""
        with self._lock:
            self._left = True
        return self._found


def together(found: Collection[Use]) -> Use:
    """The use of several GPUs as one."""
    return Use(
        {key: size for use in found for key, size in use.by_pod.items()},
        {uuid: size for use in found for uuid, size in use.by_gpu.items()},
        {key: load for use in found for key, load in use.loads.items()},
        {uuid for use in found for uuid in use.measured},
        {index: sensors for use in found for index, sensors in use.sensors.items()},
        {key: size for use in found for key, size in use.by_container.items()},
        {key: load for use in found for key, load in use.container_loads.items()},
        {key for use in found for key in use.loose},
        {key for use in found for key in use.unsized},
    )

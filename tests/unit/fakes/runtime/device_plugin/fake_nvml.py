# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs behind the NVML boundary, which tests exchange, break and bring back."""

from __future__ import annotations

import queue
import time
from pathlib import Path

from gpushare_runtime.core.links import GpuLinks
from gpushare_runtime.core.load import Load
from gpushare_runtime.device_plugin.gpu.discovery import GpuFacts, MemoryLimit, NvmlError, ProcessLoad, Sensors


def facts(index: int, mib: int, **changes: object) -> GpuFacts:
    fields: dict[str, object] = {
        "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
        "minor": index,
        "pci": f"0000:{0x3B + index:02x}:00.0",
        "model": "Tesla T4",
        "mib": mib,
        "numa": 0,
    }
    return GpuFacts(**(fields | changes))  # type: ignore[arg-type]


class FakeXids:
    """What was reported is heard once."""

    partial = False

    def __init__(self, xids: queue.Queue[tuple[str, int]]) -> None:
        self._xids = xids

    def wait(self, seconds: float) -> tuple[str, int] | None:
        try:
            return self._xids.get(timeout=min(seconds, 0.05))
        except queue.Empty:
            return None

    def close(self) -> None: ...


class FakeNvml:
    """gpus: by index; lost: indexes that answer with an error; failure: what all calls answer with; starts: nvmlInit calls.

    unlimited: why the driver does not limit memory; limits: (GPU UUID, control group) → bytes, which also stand in the group's dmem.max
    where it has that file; ignored: it answers with success and sets nothing; used: what each group uses; using: GPU UUID → PID and bytes
    of its processes; reads: how often these were read; version: the driver's; linked: links, None if it cannot tell them; link_reads: how
    often they were read; busy: GPU UUID → PID and load of its processes, None where it does not count by process; felt: GPU UUID → its
    sensors, where they are not those of a GPU that rests.
    """

    def __init__(self, *mib: int) -> None:
        self.gpus = [facts(index, size) for index, size in enumerate(mib)]
        self.lost: set[int] = set()
        self.failure: NvmlError | None = None
        self.starts = 0
        self.version = "535.261.03"
        self.xids: queue.Queue[tuple[str, int]] = queue.Queue()
        self.unlimited: NvmlError | None = NvmlError("the driver has no such call", unable=True)
        self.limits: dict[tuple[str, str], int] = {}
        self.used: dict[tuple[str, str], int] = {}
        self.ignored = False
        self.reads = self.link_reads = 0
        self.linked: GpuLinks | None = None
        self.using: dict[str, list[tuple[int, int | None]]] = {}
        self.busy: dict[str, dict[int, Load] | None] = {}
        self.felt: dict[str, Sensors] = {}

    def start(self) -> None:
        self.starts += 1
        self._check()

    def stop(self) -> None: ...

    def count(self) -> int:
        self._check()
        return len(self.gpus)

    def driver(self) -> str:
        return self.version

    def facts(self, index: int) -> GpuFacts:
        self._check()
        if index in self.lost:
            raise NvmlError("the GPU is lost")
        return self.gpus[index]

    def links(self, indexes: tuple[int, ...]) -> GpuLinks:
        self.link_reads += 1
        self._check()
        if self.linked is None:
            raise NvmlError("the driver has no such call", unable=True)
        return self.linked.among(indexes)

    def xid_events(self) -> FakeXids:
        self._check()
        return FakeXids(self.xids)

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        self.reads += 1
        self._check()
        return list(self.using.get(uuid, ()))

    def memory_used(self, uuid: str) -> int:
        return sum(size or 0 for _, size in self.processes(uuid))

    def loads(self, uuid: str, since: int) -> list[ProcessLoad]:
        self._check()
        busy = self.busy.get(uuid, {})
        if busy is None:
            raise NvmlError("the driver has no such call", unable=True)
        return [ProcessLoad(pid, int(time.time() * 1e6), load) for pid, load in busy.items()]

    def sensors(self, uuid: str) -> Sensors:
        self._check()
        return self.felt.get(uuid, Sensors(uuid, sm=0, memory=0, celsius=34, watts=14.0, watts_limit=70.0))

    def memory_limit(self, uuid: str, group: str) -> MemoryLimit:
        self._check_limits()
        return MemoryLimit(self.limits.get((uuid, group)), self.used.get((uuid, group), 0))

    def limit_memory(self, uuid: str, group: str, most: int | None) -> None:
        self._check_limits()
        if self.ignored:
            return
        self.limits.pop((uuid, group), None)
        if most is not None:
            self.limits[uuid, group] = most
        if (file := Path(group, "dmem.max")).exists():
            file.write_text(self.dmem(group))

    def dmem(self, group: str) -> str:
        """The kernel's file with the limits of a group: a line for each GPU."""
        return "".join(f"nvidia/0000{gpu.pci}/vidmem {self.limits.get((gpu.uuid, group), 'max')}\n" for gpu in self.gpus)

    def total(self, index: int, group: str) -> int:
        """MiB that cudaMemGetInfo reports in this group as the GPU's memory.

        By the limit of the nearest group in which dmem counts; where none has that file, of the nearest one that has a limit. NVIDIA, MPS
        v3 Memory Partitioning, "Setting on a leaf versus a parent", "dmem versus misc" (read on 2026-11-29); dmem: measured.
        """
        gpu, place = self.gpus[index], Path(group)
        groups = [str(folder) for folder in (place, *place.parents)]
        counting = [of for of in groups if Path(of, "dmem.max").exists()]
        limited = [of for of in groups if (gpu.uuid, of) in self.limits]
        nearest = (counting or limited or [group])[0]
        return min(gpu.mib, self.limits.get((gpu.uuid, nearest), gpu.mib << 20) >> 20)

    def _check_limits(self) -> None:
        self._check()
        if self.unlimited is not None:
            raise self.unlimited

    def report(self, index: int, xid: int) -> None:
        """The driver reports an error of the GPU."""
        self.xids.put((self.gpus[index].uuid, xid))

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

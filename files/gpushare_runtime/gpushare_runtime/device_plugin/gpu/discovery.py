# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads the GPUs of this host through NVML every few seconds, and updates the node's state. NVML may fail, hang or recover.

An NVML error becomes a sentence with the action to take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core.bounds import ReportError, as_text
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory, instance_index, physical_index
from gpushare_runtime.core.links import GpuLinks
from gpushare_runtime.core.load import Load
from gpushare_runtime.core.quantity import UNITS, Unit
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.daemon.sync import Changes, in_thread
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.node.devices import KUBELET_MESSAGE_BYTES
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.errors import GpushareError

log = logging.getLogger(__name__)
INTERVAL_SECONDS: Final = 2.0
HANGING_SECONDS: Final = 10.0
_PART: Final = "gpus"
_OF_PODS: Final = "GPUs of pods"
_NAMED: Final = 3
CLOCK_REASONS: Final = {
    0x4: "power-cap",
    0x8: "hardware",
    0x10: "sync-boost",
    0x20: "thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons; those that do not mean that the GPU is kept back are left out."""


class NvmlError(GpushareError):
    """NVML as a whole, or one GPU, is not usable; the text has the reason and the action to take.

    reload: only a new process can recover, because the loaded library was replaced, or the driver was loaded after this process started.
    unable: the driver, the GPU or this process can never do that. lost: the driver says that this GPU is lost. code: NVML's, 0 without one.
    """

    def __init__(self, text: str, *, reload: bool = False, unable: bool = False, lost: bool = False, code: int = 0) -> None:
        super().__init__(text)
        self.reload = reload
        self.unable = unable
        self.lost = lost
        self.code = code


@dataclass(frozen=True)
class MigInstance:
    """NVML's report about one compute instance of a GPU instance. caps: as of core.inventory.Gpu."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    model: str
    mib: int
    caps: tuple[int, ...] = ()


@dataclass(frozen=True)
class GpuFacts:
    """NVML's report about one physical GPU. instances: None without MIG mode, in which pods get only instances."""

    uuid: str
    minor: int
    pci: str  # domain:bus:device.function, 4-digit domain, lower case
    model: str
    mib: int
    numa: int | None  # None if unknown
    failed: str = ""  # why pods must not use it; "" if they may
    unfit: str = ""  # why pods must not use it again after a failure
    recovery: str = ""  # the action that the driver requires before pods may use it
    instances: tuple[MigInstance, ...] | None = None


@dataclass(frozen=True)
class MemoryLimit:
    """A control group's limit on one GPU, and what its processes use there, in bytes. most: None without a limit."""

    most: int | None
    used: int


@dataclass(frozen=True)
class ProcessLoad:
    """How busy a process kept the engines of a GPU since the last question. at: the driver's time of its last sample, in microseconds."""

    pid: int
    at: int
    load: Load


@dataclass(frozen=True)
class Sensors:
    """NVML's report about one physical GPU; None where it has none. Ratios are percent, clocks MHz.

    Counters since the driver was loaded: joules, errors of its memory, bytes over PCIe and over all NVLinks. reasons: why its clocks are
    lower than asked, as bits of `CLOCK_REASONS`.
    """

    uuid: str
    sm: int | None = None
    memory: int | None = None
    encoder: int | None = None
    decoder: int | None = None
    celsius: int | None = None
    watts: float | None = None
    watts_limit: float | None = None
    joules: float | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    reasons: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    pcie_sent: int | None = None
    pcie_received: int | None = None
    nvlink_sent: int | None = None
    nvlink_received: int | None = None


class XidEvents(Protocol):
    """A subscription to the XID errors of all GPUs that answer. partial: some GPU did not answer at the subscription."""

    partial: bool

    def wait(self, seconds: float) -> tuple[str, int] | None:
        """(GPU UUID, XID) of the next error; None without one in that time. It blocks. NvmlError if the subscription is lost."""

    def close(self) -> None:
        """Never raises."""


class Nvml(Protocol):
    """The used part of NVML. All calls may block and raise NvmlError."""

    def start(self) -> None:
        """Load the library and connect to the driver."""

    def stop(self) -> None:
        """Disconnect; never raises."""

    def count(self) -> int: ...

    def driver(self) -> str:
        """The version of the loaded driver."""

    def facts(self, index: int) -> GpuFacts: ...

    def links(self, indexes: tuple[int, ...]) -> GpuLinks:
        """The links between these GPUs, by NVML index ascending."""

    def xid_events(self) -> XidEvents:
        """A new subscription; independent of start and stop."""

    def processes(self, uuid: str) -> Sequence[tuple[int, int | None]]:
        """The processes that use a GPU: number, and bytes (None if the driver does not report them)."""

    def memory_used(self, uuid: str) -> int:
        """The bytes in use on a GPU."""

    def loads(self, uuid: str, since: int) -> Sequence[ProcessLoad]:
        """Of the processes that the driver has samples of after that time, in microseconds; some of them were busy with nothing.

        NvmlError with `unable` where the GPU or its driver counts by GPU only, as with MIG.
        """

    def sensors(self, uuid: str) -> Sensors:
        """Of the physical GPU, also for an instance of it."""

    def memory_limit(self, uuid: str, group: str) -> MemoryLimit:
        """The limit of a control group (folder) on a GPU, or that of the nearest group above it, and its use."""

    def limit_memory(self, uuid: str, group: str, most: int | None) -> None:
        """Set it. most: bytes; None for no limit."""


class GpuReader:
    """Reads the GPUs repeatedly, and keeps what it knew about a GPU that does not answer.

    before: the GPUs when the previous process ended. no_instances: why pods cannot get MIG instances on this node, "" if they can.
    """

    def __init__(self, nvml: Nvml, unit: Unit, health: GpuHealth, before: Inventory | None = None, no_instances: str = "") -> None:
        self._nvml = nvml
        self._unit = unit
        self._health = health
        self._started = False
        self.driver = ""
        self._before = before
        self._known: Inventory | None = None
        self._count: int | None = None
        self.omitted: dict[int, str] = {}
        """NVML indexes of the GPUs that are left out, since NVML cannot describe them → why."""
        self.silent = False
        """Whether one of them does not answer now, so that it may be any that was there before."""
        self._no_instances = no_instances
        self._links: GpuLinks | None = None
        self._linked: object = None  # the GPUs that these were read of, with their health, which a broken link changes
        # NVML index → UUID of the physical GPU at its last answer.
        self._uuids: dict[int, str] = {}
        self.empty: tuple[int, ...] = ()
        """NVML indexes of the GPUs in MIG mode that have no instance."""

    def read(self) -> Inventory:
        """The GPUs now; a GPU that does not answer has its error as health. Blocks.

        NvmlError if NVML fails as a whole; the next call starts NVML again.
        """
        try:
            if not self._started:
                self._nvml.start()
                self._started = True
                with contextlib.suppress(NvmlError):
                    self.driver = self._nvml.driver()
            count = self._nvml.count()
            gpus = tuple(sorted(self._gpus(count), key=lambda gpu: gpu.index))
            self._known = Inventory(self._unit, gpus, links=self._links_of([gpu for gpu in gpus if not gpu.is_instance]))
            # Only the first reading uses `before`: later its indexes may be wrong.
            self._before, self._count = None, count
        except ReportError as error:
            raise NvmlError(f"the GPUs changed during the reading ({error}); reading again") from None
        except NvmlError:
            self.stop()
            raise
        return self._known

    def failed(self, why: str) -> Inventory | None:
        """All GPUs as last read, unusable because of `why`, which says nothing about any of them; None before the first reading."""
        if self._known is None:
            return None
        return replace(self._known, gpus=tuple(replace(gpu, health=why) for gpu in self._known.gpus))

    def stop(self) -> None:
        if self._started:
            self._nvml.stop()
            self._started = False

    def _links_of(self, gpus: Sequence[Gpu]) -> GpuLinks | None:
        """Links need many calls, and stay: they are read again only where GPUs came, went, or changed their health."""
        now = [(gpu.index, gpu.uuid, gpu.health) for gpu in gpus]
        if now != self._linked:
            self._linked, self._links = now, None
            healthy = tuple(gpu.index for gpu in gpus if gpu.health == HEALTHY)
            if len(healthy) > 1:
                try:
                    self._links = self._nvml.links(healthy)
                except NvmlError as error:
                    if not error.unable:
                        log.warning("links between the GPUs are not known, and do not count: %s", error)
        return self._links

    def _gpus(self, count: int) -> Iterator[Gpu]:
        answers: dict[int, GpuFacts | NvmlError] = {}
        for index in range(count):
            try:
                answers[index] = self._nvml.facts(index)
            except NvmlError as error:
                answers[index] = error
        answered = {index: facts for index, facts in answers.items() if isinstance(facts, GpuFacts)}
        there = {facts.uuid for facts in answered.values()}
        there |= {instance.uuid for facts in answered.values() for instance in facts.instances or ()}
        self.empty = tuple(index for index, facts in answered.items() if facts.instances == ())
        omitted, self.omitted, self.silent = self.omitted, {}, False
        for index, answer in answers.items():
            if isinstance(answer, GpuFacts):
                self._uuids[index] = answer.uuid
                yield from self._gpu(index, answer)
                continue
            before = self._without_facts(index, count)
            # Another GPU may have its index since one was removed.
            if before and not any(gpu.uuid in there for gpu in before):
                yield from self._without_answer(index, before, answer, alone=bool(answered))
                continue
            self.omitted[index] = str(answer)
            self.silent |= not answer.unable
            if omitted.get(index) != str(answer):
                log.error("GPU %d is omitted: %s", index, answer, extra=about(gpu=index))

    def _without_facts(self, index: int, count: int) -> list[Gpu]:
        """The GPU that had this index at its last answer, or its instances; [] if the indexes may have changed."""
        # With another number of GPUs, also before the start, indexes changed. The number includes omitted GPUs.
        if self._count not in (None, count):
            return []
        known = [gpu for gpu in (self._known.gpus if self._known else ()) if physical_index(gpu.index) == index]
        if known:
            return known
        before = self._before.gpus if self._before is not None else ()
        if len({physical_index(gpu.index) for gpu in before}) != count:
            return []
        return [replace(gpu, units=self._unit.count(gpu.mib)) for gpu in before if physical_index(gpu.index) == index]

    def _without_answer(self, index: int, before: list[Gpu], error: NvmlError, *, alone: bool) -> Iterator[Gpu]:
        """alone: whether others answer. Where none does it may be the driver, which is loaded again."""
        uuid = self._uuids.get(index, before[0].uuid)
        if any(gpu.usable for gpu in before):
            log.error("GPU %d (%s): %s", index, uuid, error, extra=about(gpu=index))
        health = self._health.fails(uuid, str(error), itself=alone or error.lost)
        yield from (replace(gpu, health=health, defective=self._health.defective(uuid)) for gpu in before)

    def _gpu(self, index: int, facts: GpuFacts) -> Iterator[Gpu]:
        health = (
            self._health.fails(facts.uuid, facts.failed) if facts.failed else self._health.answers(facts.uuid, facts.unfit, facts.recovery)
        )
        gpu = Gpu(
            index=index,
            uuid=facts.uuid,
            minor=facts.minor,
            pci=facts.pci,
            model=facts.model,
            mib=facts.mib,
            units=self._unit.count(facts.mib),
            numa=facts.numa,
            health=health,
            defective=self._health.defective(facts.uuid),
        )
        if facts.instances is None:
            yield gpu
            return
        parts = Counter(instance.gpu_instance for instance in facts.instances)
        for instance in facts.instances:
            why = self._unusable(instance, parts[instance.gpu_instance]) if health == HEALTHY else ""
            yield replace(
                gpu,
                index=instance_index(index, instance.gpu_instance, instance.compute_instance),
                uuid=instance.uuid,
                model=instance.model,
                mib=instance.mib,
                units=self._unit.count(instance.mib),
                health=why or health,
                caps=instance.caps,
            )

    def _unusable(self, instance: MigInstance, parts: int) -> str:
        """Why no pod can use an instance of a healthy GPU; "" if one can. parts: compute instances of its GPU instance."""
        if parts > 1:
            return (
                f"its GPU instance {instance.gpu_instance} has {parts} compute instances, which share one memory: make one per GPU "
                "instance (nvidia-smi mig -cgi PROFILE -C)"
            )
        if "/" in instance.uuid:
            return "its driver names MIG instances by their place, which others may take: install driver 470 or newer"
        return self._no_instances


def list_bytes(gpus: list[tuple[str, int]]) -> int:
    """Bytes of kubelet's device list for these (UUID, units), if every id has the longer health value, "Unhealthy"."""
    total = 0
    for uuid, units in gpus:
        first, digits = 0, 1
        while first < units:
            last = min(units, 10**digits)
            # Two fields with tag and length each, then tag and length of the device in the list.
            total += (last - first) * (2 + len(uuid) + 3 + digits + 2 + len("Unhealthy") + 2)
            first, digits = last, digits + 1
    return total


def smallest_fitting(inventory: Inventory, units: list[Unit]) -> Unit | None:
    """The smallest of the units with which the GPUs' list still fits into kubelet's message."""
    fitting = [u for u in units if list_bytes([(c.uuid, u.count(c.mib)) for c in inventory.gpus]) <= KUBELET_MESSAGE_BYTES]
    return min(fitting, key=lambda unit: unit.mib, default=None)


class GpuPoller:
    """interval: seconds between two readings; unusable: returns why this unit is not usable now, "" if it is.

    ending_after: seconds that the process still reports what only a new one can mend, so that it does not end again and again.
    """

    def __init__(
        self,
        reader: GpuReader,
        node: NodeState,
        status: Status,
        interval: float,
        unusable: Callable[[], str | None] = lambda: "",
        ending_after: float = 0.0,
    ) -> None:
        self._ending_after = ending_after
        self._reader = reader
        self._node = node
        self._status = status
        self._interval = interval
        self._unusable = unusable
        self._requested = Changes()
        self._gone = False  # whether some pod had such a GPU

    def read_now(self) -> None:
        """Read without waiting for the next interval."""
        self._requested.notify()

    async def run(self) -> NoReturn:
        """Never returns. FatalError if the GPUs have too many units for kubelet at the start, or NVML requires a new process."""
        while True:
            inventory: Inventory | None
            requested = self._requested.count
            try:
                inventory, omitted = self._fitting(await self._read())
            except NvmlError as error:
                inventory = self._failed(str(error))
                if error.reload:
                    await self._end(inventory, str(error))
                self._status.degraded(_PART, str(error))
            else:
                self._report(inventory, omitted)
            if inventory is not None:
                # Only before the first report to kubelet: from then on pods get memory in this unit.
                why = self._unusable() if self._node.devices.inventory is None else ""
                if why:
                    raise FatalError(why, restart=True)
                if why is None:
                    self._status.degraded(_PART, "waiting for the API server, to know whether pods of another unit still exist")
                else:
                    self._node.devices.driver = self._reader.driver
                    self._node.devices.one_is_silent = self._reader.silent
                    self._node.devices.set_inventory(inventory)
                    self._report_gone()
            await self._requested.after(requested, self._interval)

    async def _end(self, last: Inventory | None, why: str) -> NoReturn:
        if self._ending_after:
            self._status.degraded(_PART, why)
            if last is not None:
                self._node.devices.set_inventory(last)
            await asyncio.sleep(self._ending_after)
        raise FatalError(f"{why}: ending, because only a new process can continue", restart=True)

    async def _read(self) -> Inventory:
        reading = asyncio.ensure_future(in_thread(self._reader.read))
        done, _ = await asyncio.wait({reading}, timeout=HANGING_SECONDS)
        if not done:
            why = f"NVML has not answered for {HANGING_SECONDS:.0f} s: read `dmesg` for Xid and hung tasks; a reboot may be needed"
            self._status.degraded(_PART, why)
            last = self._failed(why)
            if last is not None:
                self._node.devices.set_inventory(last)
        return await reading

    def _failed(self, why: str) -> Inventory | None:
        last = self._reader.failed(why)
        return None if last is None else self._fitting(last)[0]

    def _fitting(self, inventory: Inventory) -> tuple[Inventory, str]:
        """The GPUs whose list kubelet accepts; and which ones are omitted and why, "" for none.

        FatalError at the start. Later it omits new GPUs instead: a new process would fail permanently, and kubelet would lose the
        GPUs in use.
        """
        if not (why := _too_long(inventory)):
            return inventory, ""
        before = self._node.devices.inventory
        if before is None:
            raise FatalError(why)
        known = tuple(gpu for gpu in inventory.gpus if gpu.uuid in before.by_uuid)
        new = [f"GPU {gpu.index} ({gpu.uuid})" for gpu in inventory.gpus if gpu.uuid not in before.by_uuid]
        return replace(inventory, gpus=known), f"{', '.join(new)} {'is' if len(new) == 1 else 'are'} omitted: {why}"

    def _report_gone(self) -> None:
        """The pods with GPUs that are not in this node any more."""
        usage, gone = self._node.usage, self._node.devices.gone()
        parts = sorted(
            f"{usage.pod_name(uid)} has GPU {as_text(min(uuids))}, which is not in this node any more" for uid, uuids in gone.items()
        )
        if parts:
            more = f", and {len(parts) - _NAMED} more pods" if len(parts) > _NAMED else ""
            self._status.degraded(_OF_PODS, f"{', '.join(parts[:_NAMED])}{more}: delete it, and its owner starts it on another GPU")
            self._gone = True
        elif self._gone:
            self._status.ok(_OF_PODS, "all are in this node")

    def _report(self, inventory: Inventory, omitted: str) -> None:
        idle = ", ".join(f"GPU {index}" for index in self._reader.empty)
        idle = f"{idle} in MIG mode without instances: make some with `nvidia-smi mig -cgi PROFILE -C`" if idle else ""
        broken = [f"GPU {gpu.index} ({gpu.uuid}): {gpu.health}" for gpu in inventory.gpus if not gpu.usable]
        broken += [omitted] if omitted else []
        broken += [f"GPU {index} is omitted: {why}" for index, why in sorted(self._reader.omitted.items())]
        if not inventory.gpus and not broken:
            self._status.degraded(
                _PART, idle or "NVML lists no GPU: check with `lspci -k -d 10de:` that GPUs exist and are bound to the nvidia driver"
            )
            return
        if broken:
            self._status.degraded(_PART, "; ".join(broken))
        else:
            rest = sum(gpu.mib for gpu in inventory.gpus) - inventory.units * inventory.unit.mib
            left = f"; {rest} MiB fill no unit of their GPU" if rest else ""
            found = f"{len(inventory.gpus)} with {inventory.units} units of {inventory.unit}{left}"
            self._status.ok(_PART, f"{found}; {idle}" if idle else found)


def _too_long(inventory: Inventory) -> str:
    """Why kubelet does not accept the list of these GPUs, and the action to take; "" if it does."""
    size = list_bytes([(gpu.uuid, gpu.units) for gpu in inventory.gpus])
    if size <= KUBELET_MESSAGE_BYTES:
        return ""
    fitting = smallest_fitting(inventory, list(UNITS.values()))
    cure = f"use --memory-unit {fitting.name}" if fitting else "there are too many GPUs for one node"
    return (
        f"{inventory.units} units of {inventory.unit} make a list of {size} bytes, "
        f"kubelet accepts at most {KUBELET_MESSAGE_BYTES} ({inventory.unit.name} is too small for these GPUs): {cure}"
    )

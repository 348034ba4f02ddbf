#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Writes, reads and changes the state file of the simulated GPUs: `gpus.py --help`, README.md for the format."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

DEFAULT_STATE_FILE = "/var/lib/gpushare-lab/gpus.state"
DEFAULT_LIMITS_FILE = "/dev/shm/gpushare-lab.limits"
DRIVER_VERSION = "535.261.03"
CUDA_VERSION = 12020
# The C library holds as many, and no more (state.h).
MAX_GPUS = 32
MAX_PROCESSES = 64
MAX_XIDS = 64
MAX_TEXT = 95
MAX_INSTANCES = 8
MIB = 1024 * 1024
# What the driver can limit a GPU's memory by; README.md says what each means.
MEMORY_LIMITS = ("off", "misc", "dmem", "any-hierarchy")


class GpusError(ValueError):
    """A specification, a state file or a command that makes no sense; the message says what would."""


class Model(NamedTuple):
    """What a product's GPUs have in common; `memory` in GiB as sold, PCI ids as NVML packs them."""

    name: str
    memory: int
    compute_capability: str
    pci_device_id: int
    pci_subsystem_id: int


# Where several have the same memory, the first is what a size alone means.
MODELS = (
    Model("Tesla P4", 8, "6.1", 0x1BB310DE, 0x11D810DE),
    Model("Tesla M40", 12, "5.2", 0x17FD10DE, 0x117110DE),
    Model("Tesla T4", 16, "7.5", 0x1EB810DE, 0x12A210DE),
    Model("NVIDIA A30", 24, "8.0", 0x20B710DE, 0x153210DE),
    Model("NVIDIA A10", 24, "8.6", 0x223610DE, 0x148210DE),
    Model("NVIDIA L4", 24, "8.9", 0x27B810DE, 0x16CA10DE),
    Model("Tesla V100-SXM2-32GB", 32, "7.0", 0x1DB510DE, 0x124910DE),
    Model("NVIDIA A100-SXM4-40GB", 40, "8.0", 0x20B010DE, 0x144E10DE),
    Model("NVIDIA L40S", 48, "8.9", 0x26B910DE, 0x185110DE),
    Model("NVIDIA A100-SXM4-80GB", 80, "8.0", 0x20B210DE, 0x147F10DE),
    Model("NVIDIA H100 80GB HBM3", 80, "9.0", 0x233010DE, 0x16C110DE),
    Model("NVIDIA H20", 96, "9.0", 0x232910DE, 0x198B10DE),
    Model("NVIDIA H200", 141, "9.0", 0x233510DE, 0x18BE10DE),
    Model("NVIDIA B200", 192, "10.0", 0x290110DE, 0x199910DE),
)


# Of a GPU instance: memory slices (of 8) by compute slices, and the ids that A100 and H100 give instances of that size.
MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
INSTANCE_IDS = {1: (7, 8, 9, 10, 11, 12, 13), 2: (3, 4, 5), 3: (1, 2), 4: (1, 2), 7: (0,)}


@dataclass(frozen=True)
class Process:
    """A process that holds `memory_mib` MiB of a GPU. instance: (GPU instance, compute instance), None without MIG.

    load: percent of the SMs, of the memory's bandwidth, of encoder and decoder.
    """

    pid: int
    memory_mib: int
    name: str
    instance: tuple[int, int] | None = None
    load: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Instance:
    """A MIG device of a GPU: a compute instance of a GPU instance; slices of compute of both."""

    gpu_instance: int
    compute_instance: int
    gpu_slices: int
    compute_slices: int
    memory_mib: int
    uuid: str

    def profile(self, gpu_mib: int) -> str:
        """Its name, such as 1g.10gb on a GPU with 80 GiB."""
        size = (-(-gpu_mib // 1024) * MEMORY_SLICES[self.gpu_slices] + 4) // 8
        part = f"{self.compute_slices}c." if self.compute_slices != self.gpu_slices else ""
        return f"{part}{self.gpu_slices}g.{size}gb"

    def capabilities(self, minor: int) -> tuple[int, int]:
        """Numbers of its two device nodes below /dev/nvidia-caps, of the GPU with this minor."""
        of_gpu = 3 + (minor * 15 + self.gpu_instance) * 9
        return of_gpu, of_gpu + 1 + self.compute_instance


def capability_minors() -> str:
    """The driver's list of the device nodes of every instance that there could be, in /proc/driver/nvidia-caps/mig-minors."""
    lines = ["config 1", "monitor 2"]
    for minor in range(MAX_GPUS):
        for gpu_instance in range(15):
            parts = [Instance(gpu_instance, part, 1, 1, 0, "").capabilities(minor) for part in range(8)]
            place = f"gpu{minor}/gi{gpu_instance}"
            lines.append(f"{place}/access {parts[0][0]}")
            lines += [f"{place}/ci{part}/access {number}" for part, (_, number) in enumerate(parts)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU; sizes in MiB. `used_mib` is what is in use beyond the listed processes and `reserved_mib`."""

    uuid: str
    minor: int
    name: str
    pci: str
    pci_device_id: int
    pci_subsystem_id: int
    memory_mib: int
    compute_capability: str
    serial: str
    reserved_mib: int = 0
    used_mib: int = 0
    numa_node: int = 0
    nvlinks: str = "none"
    pcie: str = "none"
    persistence_mode: int = 1
    compute_mode: int = 0
    mig_mode: int = 0
    health: str = "ok"
    loads: str = "new"
    instances: tuple[Instance, ...] = ()
    processes: tuple[Process, ...] = ()

    def __post_init__(self) -> None:
        if self.instances and self.mig_mode != 1:
            raise GpusError(f"GPU {self.uuid} has instances; expected mig_mode 1")
        if len(self.instances) > MAX_INSTANCES:
            raise GpusError(f"GPU {self.uuid} has {len(self.instances)} instances; at most {MAX_INSTANCES} fit")
        used = self.reserved_mib + self.used_mib + sum(p.memory_mib for p in self.processes)
        if used > self.memory_mib:
            raise GpusError(f"GPU {self.uuid} has {self.memory_mib} MiB, {used} MiB would be in use; use less")
        if self.health not in ("ok", "lost"):
            raise GpusError(f'health of GPU {self.uuid} is "{self.health}"; expected ok or lost')
        if self.loads not in ("new", "old", "none"):
            raise GpusError(f'loads of GPU {self.uuid} is "{self.loads}"; expected new, old or none')
        if len(self.processes) > MAX_PROCESSES:
            raise GpusError(f"GPU {self.uuid} has {len(self.processes)} processes; at most {MAX_PROCESSES} fit")
        for text in (self.uuid, self.name, self.serial, *(p.name for p in self.processes)):
            if not text or "\n" in text or len(text.encode()) > MAX_TEXT:
                raise GpusError(f"found {text!r}; expected one line of 1 to {MAX_TEXT} bytes")


@dataclass(frozen=True)
class Xid:
    """An XID event; `sequence` grows from event to event and is what running processes compare."""

    sequence: int
    uuid: str
    number: int


@dataclass(frozen=True)
class State:
    """All that the simulated library knows."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = "ok"
    driver_version: str = DRIVER_VERSION
    cuda_version: int = CUDA_VERSION
    memory_limits: str = "off"
    xids: tuple[Xid, ...] = ()

    def __post_init__(self) -> None:
        if self.driver not in ("ok", "gone", "mismatch"):
            raise GpusError(f'driver is "{self.driver}"; expected ok, gone or mismatch')
        if self.memory_limits not in MEMORY_LIMITS:
            raise GpusError(f'memory_limits is "{self.memory_limits}"; expected one of {", ".join(MEMORY_LIMITS)}')
        if len(self.gpus) > MAX_GPUS:
            raise GpusError(f"{len(self.gpus)} GPUs; at most {MAX_GPUS} fit")
        for what, values in (("minor", [c.minor for c in self.gpus]), ("uuid", [c.uuid for c in self.gpus])):
            if len(set(values)) != len(values):
                raise GpusError(f"two GPUs have the same {what}: {values}")


def gpus_from_spec(spec: str, node: str, seed: str) -> list[Gpu]:
    """The GPUs that `spec` describes, always the same for the same node and seed.

    `spec`: parts joined by `+`, each `[COUNTx]SIZE[:MODEL]`, where SIZE is in GiB (`16`) or MiB (`15360MiB`) and MODEL
    a product name of `MODELS`; `none` for no GPU. Without a model, the one whose memory is nearest is taken.
    """
    gpus: list[Gpu] = []
    for part in [] if spec == "none" else spec.split("+"):
        match = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)(GiB|MiB)?(?::(.+))?", part)
        if match is None:
            raise GpusError(f'GPUs "{spec}": found "{part}"; expected [COUNTx]SIZE[:MODEL] joined by +, such as 2x16+24, or none')
        count, size, unit, name = match.groups()
        memory_mib = int(size) * (1 if unit == "MiB" else 1024)
        if len(gpus) + int(count or 1) > MAX_GPUS:
            raise GpusError(f'GPUs "{spec}" are more than {MAX_GPUS}; ask for fewer')
        model = _model(memory_mib, name)
        for _ in range(int(count or 1)):
            gpus.append(_gpu(len(gpus), model, memory_mib, f"{seed}/{node}/{len(gpus)}"))
    return gpus


def _model(memory_mib: int, name: str | None) -> Model:
    if name is None:
        return min(MODELS, key=lambda model: abs(model.memory * 1024 - memory_mib))
    for model in MODELS:
        if model.name == name:
            return model
    raise GpusError(f'model "{name}" is not known; known are {", ".join(model.name for model in MODELS)}')


def _gpu(index: int, model: Model, memory_mib: int, identity: str) -> Gpu:
    digest = hashlib.sha256(identity.encode()).digest()
    return Gpu(
        uuid=f"GPU-{uuid.UUID(bytes=digest[:16])}",
        minor=index,
        name=model.name,
        pci=f"00000000:{4 + 7 * index:02X}:00.0",
        pci_device_id=model.pci_device_id,
        pci_subsystem_id=model.pci_subsystem_id,
        memory_mib=memory_mib,
        compute_capability=model.compute_capability,
        serial=f"{1320000000000 + int.from_bytes(digest[16:20], 'big')}",
        reserved_mib=memory_mib // 64,
    )


def render(state: State) -> str:
    """The state file's text."""
    lines = [
        "# Simulated GPUs of the gpushare lab, written by gpus.py.",
        f"driver={state.driver}",
        f"driver_version={state.driver_version}",
        f"cuda_version={state.cuda_version}",
        f"memory_limits={state.memory_limits}",
        f"gpus={len(state.gpus)}",
    ]
    for index, gpu in enumerate(state.gpus):
        for field in fields(gpu):
            value = getattr(gpu, field.name)
            if field.name == "processes":
                lines += [f"gpu.{index}.{_process(p)}" for p in value]
                lines += [f"gpu.{index}.load={p.pid} {' '.join(map(str, p.load))}" for p in value if any(p.load)]
            elif field.name == "instances":
                lines += [f"gpu.{index}.instance={' '.join(str(getattr(i, f.name)) for f in fields(i))}" for i in value]
            else:
                lines.append(f"gpu.{index}.{field.name}={_text(field.name, value)}")
    lines += [f"xid={xid.sequence} {xid.uuid} {xid.number}" for xid in state.xids]
    return "\n".join(lines) + "\n"


def _process(process: Process) -> str:
    text = f"{process.pid} {process.memory_mib} {process.name}"
    return f"process={text}" if process.instance is None else f"instance_process={process.instance[0]} {process.instance[1]} {text}"


def _text(name: str, value: object) -> str:
    return f"0x{value:08X}" if name in ("pci_device_id", "pci_subsystem_id") else str(value)


def parse(text: str) -> State:
    """The state that a state file's text says; GpusError names the line that does not fit."""
    top: dict[str, str] = {}
    gpus: list[dict[str, str]] = []
    processes: list[list[Process]] = []
    instances: list[list[Instance]] = []
    xids: list[Xid] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        try:
            key, value = line.split("=", 1)
            if key == "xid":
                sequence, gpu, xid = value.split()
                xids.append(Xid(int(sequence), gpu, int(xid)))
            elif key == "gpus":
                gpus = [{} for _ in range(int(value))]
                processes = [[] for _ in gpus]
                instances = [[] for _ in gpus]
            elif not key.startswith("gpu."):
                top[key] = value
            else:
                _, index, name = key.split(".")
                if name == "process":
                    pid, memory_mib, command = value.split(" ", 2)
                    processes[int(index)].append(Process(int(pid), int(memory_mib), command))
                elif name == "load":
                    owner, *percents = map(int, value.split())
                    sm, memory, encoder, decoder = percents
                    of_gpu_now = processes[int(index)]
                    at = next(place for place, one in enumerate(of_gpu_now) if one.pid == owner)
                    of_gpu_now[at] = replace(of_gpu_now[at], load=(sm, memory, encoder, decoder))
                elif name == "instance_process":
                    of_gpu, of_compute, pid, memory_mib, command = value.split(" ", 4)
                    processes[int(index)].append(Process(int(pid), int(memory_mib), command, (int(of_gpu), int(of_compute))))
                elif name == "instance":
                    of_gpu, of_compute, slices, compute, memory_mib, text = value.split()
                    one = Instance(int(of_gpu), int(of_compute), int(slices), int(compute), int(memory_mib), text)
                    instances[int(index)].append(one)
                else:
                    gpus[int(index)][name] = value
        except (ValueError, IndexError, StopIteration) as error:
            raise GpusError(f'line {number}: found "{line}"; expected a key=value of README.md') from error
    return State(
        gpus=tuple(_gpu_from(c, i, p) for c, i, p in zip(gpus, instances, processes, strict=True)),
        driver=top["driver"],
        driver_version=top["driver_version"],
        cuda_version=int(top["cuda_version"]),
        memory_limits=top.get("memory_limits", "off"),
        xids=tuple(xids),
    )


def _gpu_from(values: dict[str, str], instances: list[Instance], processes: list[Process]) -> Gpu:
    converted: dict[str, object] = {}
    for field in fields(Gpu):
        if field.name in values:
            text = values[field.name]
            converted[field.name] = int(text, 0) if field.type == "int" else text
    unknown = values.keys() - converted.keys()
    if unknown:
        raise GpusError(f"a GPU has {', '.join(sorted(unknown))}; expected {', '.join(f.name for f in fields(Gpu))}")
    return Gpu(**converted, instances=tuple(instances), processes=tuple(processes))  # type: ignore[arg-type]


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in the file at `path`."""
    return parse(Path(path).read_text())


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Puts `state` in place of the file at `path` in one step; makes the folder if it is missing."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(render(state))
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Lets one command at a time read, change and write."""
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def with_gpu(state: State, index: int, **changes: object) -> State:
    """The state with the GPU at `index` (as in the state file) changed."""
    if not 0 <= index < len(state.gpus):
        raise GpusError(f"GPU {index} does not exist; there are {len(state.gpus)}, counted from 0")
    gpus = list(state.gpus)
    gpus[index] = replace(gpus[index], **changes)  # type: ignore[arg-type]
    return replace(state, gpus=tuple(gpus))


def with_xid(state: State, index: int, number: int) -> State:
    """The state with one more XID event of the GPU at `index`; the oldest events go when there are too many."""
    with_gpu(state, index)
    last = max((xid.sequence for xid in state.xids), default=0)
    xid = Xid(max(last + 1, time.time_ns()), state.gpus[index].uuid, number)
    return replace(state, xids=(*state.xids, xid)[-MAX_XIDS:])


def with_process(state: State, index: int, pid: int, memory_mib: int, name: str, instance: tuple[int, int] | None = None) -> State:
    """The state with a process on the GPU at `index`, in place of one with the same pid; 0 MiB removes it."""
    with_gpu(state, index)
    others = tuple(p for p in state.gpus[index].processes if p.pid != pid)
    return with_gpu(state, index, processes=others + ((Process(pid, memory_mib, name, instance),) if memory_mib else ()))


def with_load(state: State, index: int, pid: int, load: tuple[int, int, int, int]) -> State:
    """The state with a process of the GPU at `index` so busy, in percent."""
    with_gpu(state, index)
    found = state.gpus[index].processes
    if not any(one.pid == pid for one in found):
        raise GpusError(f"GPU {index} has no process {pid}; it has {', '.join(str(one.pid) for one in found) or 'none'}")
    return with_gpu(state, index, processes=tuple(replace(one, load=load) if one.pid == pid else one for one in found))


def with_instances(state: State, index: int, layout: str) -> State:
    """The state with these instances of the GPU at `index`, in place of those before; its MIG mode follows.

    layout: compute slices joined by commas, such as 1g,1g,3g; 1c.3g is one compute instance of its own in the GPU instance before
    it, if that is of 3g with room; "none" for MIG without instances, "off" for none.
    """
    with_gpu(state, index)
    gpu, made = state.gpus[index], list[Instance]()
    if float(gpu.compute_capability) < 8:
        raise GpusError(f"GPU {index} ({gpu.name}) knows no MIG; expected one of Ampere or newer")
    for part in [] if layout in ("none", "off") else layout.split(","):
        match = re.fullmatch(r"(?:([1-7])c\.)?([12347])g", part)
        if match is None:
            raise GpusError(f'instances "{layout}": found "{part}"; expected slices such as 1g or 1c.3g, joined by commas, none or off')
        slices, compute = int(match[2]), int(match[1] or match[2])
        # A part of a GPU instance goes into the last one, as long as that has slices left.
        last = [one for one in made if made and one.gpu_instance == made[-1].gpu_instance and one.gpu_slices == slices]
        taken = sum(one.compute_slices for one in last)
        if match[1] and last and last[0].compute_slices < slices and taken + compute <= slices:
            made.append(_instance(gpu, last[0].gpu_instance, len(last), slices, compute))
            continue
        used = {one.gpu_instance for one in made}
        free = [one for one in INSTANCE_IDS[slices] if one not in used]
        whole = sum(MEMORY_SLICES[one.gpu_slices] for one in made if one.compute_instance == 0)
        if not free or whole + MEMORY_SLICES[slices] > 8:
            raise GpusError(f'instances "{layout}" are more than a GPU has; expected at most 8 slices of memory')
        made.append(_instance(gpu, free[0], 0, slices, compute))
    kept = {(one.gpu_instance, one.compute_instance) for one in made}
    processes = tuple(p for p in gpu.processes if p.instance in kept or (p.instance is None and layout == "off"))
    return with_gpu(state, index, mig_mode=int(layout != "off"), instances=tuple(made), processes=processes)


# NVIDIA, DGX-1 with V100: the NVLinks of each pair of GPUs, as go-gpuallocator's tests list them.
_DGX_1 = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
}


def with_links(state: State, layout: str) -> State:
    """The state with GPUs linked as in a machine.

    layout: `pairs:N` (each two of a board by N NVLinks), `nvswitch:N` (all by N each, half of them at each socket), `dgx-1` (8 GPUs),
    `none`.
    """
    kind, _, number = layout.partition(":")
    gpus, half = state.gpus, len(state.gpus) // 2
    if kind == "dgx-1" and len(gpus) == 8 and not number:
        ends = [{b if a == index else a: count for (a, b), count in _DGX_1.items() if index in (a, b)} for index in range(8)]
        places = [(index // 4, f"0.{index // 2}") for index in range(8)]
        texts = [" ".join(f"{gpus[other].pci.split(':')[1]}:{count}" for other, count in end.items()) for end in ends]
    elif kind == "pairs" and number.isdecimal() and len(gpus) % 2 == 0:
        places = [(0, "none")] * len(gpus)
        texts = [f"{gpus[index ^ 1].pci.split(':')[1]}:{int(number)}" for index in range(len(gpus))]
    elif kind == "nvswitch" and number.isdecimal():
        places, texts = [(int(index >= half), "none") for index in range(len(gpus))], [f"switch:{int(number)}"] * len(gpus)
    elif layout == "none":
        places, texts = [(0, "none")] * len(gpus), ["none"] * len(gpus)
    else:
        raise GpusError(f'links "{layout}" of {len(gpus)} GPUs; expected pairs:N of an even number, nvswitch:N, dgx-1 of 8, or none')
    linked = (
        replace(gpu, numa_node=socket, pcie=pcie, nvlinks=text) for gpu, (socket, pcie), text in zip(gpus, places, texts, strict=True)
    )
    return replace(state, gpus=tuple(linked))


def _instance(gpu: Gpu, gpu_instance: int, compute_instance: int, slices: int, compute: int) -> Instance:
    identity = f"{gpu.uuid}/{gpu_instance}/{compute_instance}"
    name = f"MIG-{uuid.UUID(bytes=hashlib.sha256(identity.encode()).digest()[:16])}"
    memory = gpu.memory_mib * MEMORY_SLICES[slices] // 8 - gpu.memory_mib // 160
    return Instance(gpu_instance, compute_instance, slices, compute, memory, name)


def allocated(state: State, index: int, pid: int, memory_mib: int, limits: str) -> State:
    """The state after a process has asked for so much more memory; GpusError as the driver's out-of-memory.

    limits: the text of the library's file of limits. With dmem each group of the process with a limit counts, else only the nearest one.
    """
    with_gpu(state, index)
    gpu = state.gpus[index]
    used = {process.pid: process.memory_mib for process in gpu.processes}
    found = [(hard, group) for hard, group in _limits_of(gpu, limits) if pid in _members(group)]
    nearest = max(found, key=lambda limit: len(limit[1]), default=None)
    for hard, group in found if state.memory_limits == "dmem" else filter(None, [nearest]):
        needed = (_used_in(group, used) + memory_mib) * MIB
        if needed > hard:
            raise GpusError(f"CUDA_ERROR_OUT_OF_MEMORY: {needed} bytes would be in use in {group}, whose limit is {hard}")
    name = next((process.name for process in gpu.processes if process.pid == pid), "allocate")
    return with_process(state, index, pid, used.get(pid, 0) + memory_mib, name)


def seen(state: State, index: int, group: str, limits: str) -> tuple[int, int]:
    """Free and total MiB of a GPU as `cuMemGetInfo` reports them to a process in this control group.

    Both follow the group's limit as nvmlDeviceGetMemoryLimits finds it: limits.c has the sources. limits: as of `allocated`.
    """
    with_gpu(state, index)
    gpu = state.gpus[index]
    used = {process.pid: process.memory_mib for process in gpu.processes}
    free = gpu.memory_mib - gpu.reserved_mib - gpu.used_mib - sum(used.values())
    known = {of: hard // MIB for hard, of in _limits_of(gpu, limits)}
    for place in (str(folder) for folder in (Path(group), *Path(group).parents)):
        if place in known and known[place] < gpu.memory_mib:
            return max(0, min(free, known[place] - _used_in(place, used))), known[place]
        if state.memory_limits == "dmem" and Path(place, "dmem.max").exists():
            break
    return max(0, free), gpu.memory_mib


def _limits_of(gpu: Gpu, limits: str) -> Iterator[tuple[int, str]]:
    """Bytes and group, of groups that still exist."""
    for line in limits.splitlines():
        owner, inode, _soft, hard, group = line.split(" ", 4)
        if owner == gpu.uuid and os.path.isdir(group) and os.stat(group).st_ino == int(inode):
            yield int(hard), group


def _used_in(group: str, used: dict[int, int]) -> int:
    members = _members(group)
    return sum(mib for member, mib in used.items() if member in members)


def _members(group: str) -> set[int]:
    """Processes of a control group and of those below it."""
    return {
        int(pid)
        for folder, _, names in os.walk(group)
        if "cgroup.procs" in names
        for pid in Path(folder, "cgroup.procs").read_text().split()
    }


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Writes and changes the state of the lab's simulated GPUs.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, /, **positionals: type | tuple[str, ...]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        for positional, kind in positionals.items():
            if isinstance(kind, tuple):
                sub.add_argument(positional, choices=kind)
            else:
                sub.add_argument(positional, type=kind, metavar=positional.upper())
        default = os.environ.get("GPUSHARE_LAB_NVML_STATE") or DEFAULT_STATE_FILE
        sub.add_argument("statefile", nargs="?", type=Path, default=Path(default), help=f"default {default}")
        return sub

    write = command("write", "replace all GPUs; XID events so far are forgotten")
    write.add_argument("--gpus", required=True, metavar="SPEC", help="such as 2x16, 16+24, 1x15360MiB, 24:NVIDIA A10")
    write.add_argument("--node", required=True, help="the node's name: part of what makes UUIDs unique")
    write.add_argument("--seed", default="gpushare", help="another seed gives other UUIDs")
    write.add_argument("--minors", metavar="N,N,…", help="minor numbers, one a GPU (default: 0, 1, …)")
    write.add_argument("--driver-version", default=DRIVER_VERSION)
    command("list", "print index, minor, UUID, memory in MiB, health and name, separated by tabs")
    command("xid", "let a GPU report an XID error", index=int, number=int)
    command("lost", "let a GPU fall off the bus", index=int)
    command("back", "bring a lost GPU back", index=int)
    command("used", "set the memory in use beyond the listed processes", index=int, mib=int)
    command("process", "put a process on a GPU; 0 MiB ends it", index=int, pid=int, mib=int, name=str)
    command("load", "say how busy a process is, in percent", index=int, pid=int, sm=int, memory=int, encoder=int, decoder=int)
    command("instances", "give a GPU MIG instances, such as 1g,1g,3g; none, or off", index=int, layout=str)
    command("instance_process", "put a process on a MIG instance; 0 MiB ends it", uuid=str, pid=int, mib=int, name=str)
    command("allocate", "let a process allocate more memory, if the limits of its control groups allow it", index=int, pid=int, mib=int)
    command("seen", "print free and total MiB, as cuMemGetInfo reports them to a process in a control group", index=int, group=str)
    command("limits", "let the driver limit memory by control group", kind=MEMORY_LIMITS)
    command("links", "link all GPUs: pairs:N, nvswitch:N, dgx-1, or none", layout=str)
    command("set", "set any field of a GPU", index=int, field=str, value=str)
    command("driver", "unload the driver, bring it back, or make it differ from the library", state=("gone", "back", "mismatch", "ok"))
    return parser


def _changed(state: State, arguments: argparse.Namespace) -> State:
    command = arguments.command
    if command == "xid":
        return with_xid(state, arguments.index, arguments.number)
    if command in ("lost", "back"):
        return with_gpu(state, arguments.index, health="lost" if command == "lost" else "ok")
    if command == "used":
        return with_gpu(state, arguments.index, used_mib=arguments.mib)
    if command == "process":
        return with_process(state, arguments.index, arguments.pid, arguments.mib, arguments.name)
    if command == "load":
        load = (arguments.sm, arguments.memory, arguments.encoder, arguments.decoder)
        return with_load(state, arguments.index, arguments.pid, load)
    if command == "instances":
        return with_instances(state, arguments.index, arguments.layout)
    if command == "instance_process":
        for index, gpu in enumerate(state.gpus):
            for one in gpu.instances:
                if one.uuid == arguments.uuid:
                    where = (one.gpu_instance, one.compute_instance)
                    return with_process(state, index, arguments.pid, arguments.mib, arguments.name, where)
        raise GpusError(f"there is no instance {arguments.uuid}")
    if command == "allocate":
        return allocated(state, arguments.index, arguments.pid, arguments.mib, _limits())
    if command == "limits":
        return replace(state, memory_limits=arguments.kind)
    if command == "links":
        return with_links(state, arguments.layout)
    if command == "set":
        return with_gpu(state, arguments.index, **_field(arguments.field, arguments.value))
    return replace(state, driver="ok" if arguments.state == "back" else arguments.state)


def _limits() -> str:
    file = Path(os.environ.get("GPUSHARE_LAB_NVML_LIMITS") or DEFAULT_LIMITS_FILE)
    return file.read_text() if file.exists() else ""


def _field(name: str, value: str) -> dict[str, object]:
    types = {field.name: field.type for field in fields(Gpu) if field.name not in ("instances", "processes")}
    if name not in types:
        raise GpusError(f'found field "{name}"; expected one of {", ".join(types)}')
    return {name: int(value, 0) if types[name] == "int" else value}


def _new_state(arguments: argparse.Namespace) -> State:
    gpus = gpus_from_spec(arguments.gpus, arguments.node, arguments.seed)
    if arguments.minors is not None:
        minors = [int(minor) for minor in arguments.minors.split(",")]
        if len(minors) != len(gpus):
            raise GpusError(f"--minors has {len(minors)} numbers for {len(gpus)} GPUs; give one a GPU")
        gpus = [replace(gpu, minor=minor) for gpu, minor in zip(gpus, minors, strict=True)]
    return State(gpus=tuple(gpus), driver_version=arguments.driver_version)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = _arguments().parse_args(argv)
    path: Path = arguments.statefile
    try:
        if arguments.command == "write":
            write_state(path, _new_state(arguments))
        elif arguments.command == "list":
            for index, c in enumerate(read_state(path).gpus):
                print(index, c.minor, c.uuid, c.memory_mib, c.health, c.name, sep="\t")
        elif arguments.command == "seen":
            print(*seen(read_state(path), arguments.index, arguments.group, _limits()))
        else:
            with _exclusive(path):
                write_state(path, _changed(read_state(path), arguments))
    except (GpusError, OSError) as error:
        print(f"gpus.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

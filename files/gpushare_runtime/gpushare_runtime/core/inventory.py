# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPUs of a node, as the device plugin publishes them in the node annotation `gpushare/gpus`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from gpushare_runtime.core.bounds import (
    MOST_GPUS,
    MOST_GPUS_BYTES,
    MOST_UNITS,
    ReportError,
    as_text,
    is_text,
    natural,
    quote,
    read_versioned,
    shared,
    typed,
)
from gpushare_runtime.core.links import GpuLinks, read_links
from gpushare_runtime.core.quantity import Unit, parse_unit

VERSION: Final = 1
_MOST_INDEX: Final = 255
_MOST_INSTANCE: Final = 99_999
_FIRST_INSTANCE: Final = 10_000
_MOST_CAPS: Final = 2
HEALTHY: Final = "ok"
INSTANCE_PREFIX: Final = "MIG-"
"""Of the UUIDs of MIG instances."""
_NUMBERS: Final[Mapping[str, int]] = {"core": 100, "clients": MOST_UNITS, "cpu": MOST_UNITS}
"""Fields of the node, with the most that each may be."""
_WAYS: Final = ("strategy", "isolation", "cdi_kind", "node_kind")
_FIELDS: Final = itemgetter("index", "uuid", "minor", "pci", "model", "mib", "units", "numa", "health", "cordoned")
_TYPES: Final = tuple((int, str, int, str, str, int, int, numa, str, bool) for numa in (int, type(None)))


def instance_index(gpu: int, gpu_instance: int, compute_instance: int) -> int:
    """The index of a MIG instance: 10130 of compute instance 0 in GPU instance 13 of GPU 0. It does not change as others come and go."""
    return _FIRST_INSTANCE + 1000 * gpu + 10 * gpu_instance + compute_instance


def physical_index(index: int) -> int:
    """NVML's index of the physical GPU."""
    return index if index < _FIRST_INSTANCE else (index - _FIRST_INSTANCE) // 1000


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU, or one MIG instance.

    index: NVML's, or instance_index. minor: of /dev/nvidia<minor>. pci: domain:bus:device.function. mib: memory in MiB.
    units: whole units of it. numa: NUMA node, None if unknown. health: "ok" or what is wrong. caps: of an instance, the numbers of its
    two device nodes /dev/nvidia-caps/nvidia-cap<number>; () if the driver does not say. minor, pci and numa are its GPU's.
    defective: whether the GPU itself has failed, by several readings. The annotation does not have it.
    """

    index: int
    uuid: str
    minor: int
    pci: str
    model: str
    mib: int
    units: int
    numa: int | None = None
    health: str = HEALTHY
    cordoned: bool = False
    caps: tuple[int, ...] = ()
    defective: bool = False

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return self.uuid.startswith(INSTANCE_PREFIX)

    @property
    def usable(self) -> bool:
        """Whether new pods may be placed on it."""
        return self.health == HEALTHY and not self.cordoned


@dataclass(frozen=True)
class Inventory:
    """All GPUs of one node, by NVML index ascending, and the unit that they are counted in.

    core: per cent of each GPU's compute that is shared out, 0 where the node's isolation has no such shares.
    clients: containers that may use one GPU at a time, by MPS, 0 for no limit.
    strategy: how containers get their GPUs (protocol.STRATEGIES), "" if the device plugin is of a release that does not publish it.
    isolation: what keeps a pod to its units (protocol.ISOLATION_…), "" if the device plugin is of a release that does not publish it.
    cdi_kind: of the devices that containers get, where the device plugin writes their CDI spec itself, "" where it does not.
    node_kind: who has prepared the node, where the device plugin has seen that and chosen the strategy by it, "" where it has not.
    cpu: thousandths of a CPU that the node has for pods (allocatable), 0 where that is not known.
    links: of its physical GPUs, None where they are not known.
    """

    unit: Unit
    gpus: tuple[Gpu, ...]
    core: int = 0
    strategy: str = ""
    isolation: str = ""
    clients: int = 0
    cdi_kind: str = ""
    node_kind: str = ""
    cpu: int = 0
    links: GpuLinks | None = None

    def __post_init__(self) -> None:
        indexes = [gpu.index for gpu in self.gpus]
        if indexes != sorted(set(indexes)):
            raise ReportError(f"GPUs must be listed by ascending index, each once; found {quote(indexes)}")
        if len({gpu.uuid for gpu in self.gpus}) != len(self.gpus):
            raise ReportError(f"every GPU needs its own UUID; found {quote([gpu.uuid for gpu in self.gpus])}")

    @cached_property
    def by_index(self) -> Mapping[int, Gpu]:
        return {gpu.index: gpu for gpu in self.gpus}

    @cached_property
    def by_uuid(self) -> Mapping[str, Gpu]:
        return {gpu.uuid: gpu for gpu in self.gpus}

    @cached_property
    def _physical(self) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in self.gpus if not gpu.is_instance)

    @cached_property
    def units(self) -> int:
        """Units of all GPUs together, whatever their health."""
        return sum(gpu.units for gpu in self.gpus)

    def to_json(self) -> str:
        """The annotation's value: compact, keys in the protocol's order."""
        gpus = [
            {
                "index": c.index,
                "uuid": c.uuid,
                "minor": c.minor,
                "pci": c.pci,
                "model": as_text(c.model),
                "mib": c.mib,
                "units": c.units,
                "numa": c.numa,
                "health": as_text(c.health),
                "cordoned": c.cordoned,
                **({"caps": list(c.caps)} if c.caps else {}),
            }
            for c in self.gpus
        ]
        numbers = {name: value for name in _NUMBERS if (value := getattr(self, name))}
        ways = {name: value for name in _WAYS if (value := getattr(self, name))}
        linked = {} if self.links is None else {"links": self.links.among(self._physical).to_json()}
        return json.dumps({"v": VERSION, "unit": self.unit.name, **numbers, **ways, "gpus": gpus, **linked}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Inventory:
        """Parse the annotation; ReportError says which field is wrong. Unknown fields are ignored."""
        data = read_versioned(text, VERSION, MOST_GPUS_BYTES)
        try:
            unit = parse_unit(typed(data, "unit", str))
        except ValueError as error:
            raise ReportError(str(error)) from None
        gpus = typed(data, "gpus", list)
        if len(gpus) > MOST_GPUS:
            raise ReportError(f"{len(gpus)} GPUs are more than a node has; expected at most {MOST_GPUS}")
        numbers: dict[str, Any] = {name: natural(data, name, "", most) for name, most in _NUMBERS.items() if name in data}
        ways = {name: typed(data, name, str) for name in _WAYS if name in data}
        found = cls(unit, tuple(_gpu(entry, place) for place, entry in enumerate(gpus)), **numbers, **ways)
        return replace(found, links=read_links(data["links"], found._physical)) if "links" in data else found


def _gpu(entry: object, place: int) -> Gpu:
    where = f"gpus[{place}]"
    if not isinstance(entry, dict):
        raise ReportError(f"{where} must be an object, found {type(entry).__name__}")
    try:
        values = _FIELDS(entry)
    except KeyError:
        pass
    else:
        # Large clusters have more than 10,000 GPUs, and nearly all entries are right: the others go the long way below.
        index, uuid, minor, pci, model, mib, units, numa, health, cordoned = values
        texts = f"{uuid}{pci}{model}{health}"
        if (
            "caps" not in entry
            and tuple(map(type, values)) in _TYPES
            and 0 <= index <= _MOST_INDEX
            and min(minor, mib, units, numa or 0) >= 0
            and max(minor, mib, units, numa or 0) <= MOST_UNITS
            and is_text(texts)
        ):
            return Gpu(index, uuid, minor, shared(pci), shared(model), mib, units, numa, shared(health), cordoned)
    instance = str(entry.get("uuid")).startswith(INSTANCE_PREFIX)
    return Gpu(
        index=natural(entry, "index", where, _MOST_INSTANCE if instance else _MOST_INDEX),
        uuid=typed(entry, "uuid", str, where),
        minor=natural(entry, "minor", where),
        pci=shared(typed(entry, "pci", str, where)),
        model=shared(typed(entry, "model", str, where)),
        mib=natural(entry, "mib", where),
        units=natural(entry, "units", where),
        numa=None if entry.get("numa") is None else natural(entry, "numa", where),
        health=shared(typed(entry, "health", str, where)),
        cordoned=typed(entry, "cordoned", bool, where),
        caps=_caps(entry.get("caps", []), where),
    )


def _caps(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_CAPS or not all(_is_cap(cap) for cap in value):
        raise ReportError(f"{where}.caps must be a list of at most {_MOST_CAPS} numbers, found {quote(value)}")
    return tuple(value)


def _is_cap(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_UNITS

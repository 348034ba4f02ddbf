# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ResourceSlices of a node, from the inventory of its GPUs. Pure.

Each GPU, or MIG instance, is one device that many claims may share, with its memory as a capacity that they consume in whole units. A
claim that names no amount takes all of it: so whole GPUs and parts of them are counted in one ledger, that of kube-scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_GPUS, MOST_UNITS, ReportError, as_mapping, as_text, quote
from gpushare_runtime.core.constraints import model_words
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory
from gpushare_runtime.core.quantity import GIB, UNITS, Unit, parse_quantity

DRIVER: Final = "gpushare.kubernetes"
"""Of the slices; attributes and capacities without a prefix are its own."""
API_VERSION: Final = "resource.k8s.io/v1"
API: Final = f"apis/{API_VERSION}"
"""The path of the API group at the API server."""
MEMORY: Final = "memory"
"""The capacity."""
CLASS: Final = "gpushare"
"""The DeviceClass, and the ResourceClaimTemplate of each namespace."""
TAINT: Final = "gpushare.kubernetes/unusable"
UNHEALTHY, CORDONED, IN_USE = "unhealthy", "cordoned", "in-use"
"""The values of the taint: why pods are kept off."""
HELD: Final = "processes of pods that are gone use its memory"
"""The health of a GPU with the value in-use, for who reads the slices."""
# The API server allows 64 devices in a slice of which one has a taint, which each may get.
_MOST_DEVICES: Final = 64
# Of an attribute's text.
_MOST_TEXT: Final = 64
_MIB: Final = 1024 * 1024
_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""Kubernetes' own since 1.37 (KEP-6072), which drivers of other devices publish too. A device whose node is unknown must not have it."""
_PCI: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_DEVICE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def device_name(uuid: str) -> str:
    """The name of a GPU's device. It does not change when other GPUs come and go, because claims keep it."""
    return uuid.lower()


def quantity(units: int, unit: Unit) -> str:
    """So many units as Kubernetes writes memory: "6Gi", "384Mi"."""
    mib = units * unit.mib
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def words(model: str) -> str:
    """A model's name for comparisons: `-nvidia-a100-sxm4-80gb-` contains `-a100-`, and `-a10-` is not in it. At most 64 characters."""
    text = f"-{'-'.join(model_words(model))}-"
    return text if len(text) <= _MOST_TEXT else text[: text[:_MOST_TEXT].rindex("-") + 1]


@dataclass(frozen=True)
class Closed:
    """The GPUs that take no pods. evicts: whether one that is defective also ends the pods that have it.

    in_use: UUIDs of those where processes of pods that are gone still use memory, which kube-scheduler takes for free.
    """

    evicts: bool = False
    in_use: Set[str] = frozenset()

    def taint(self, gpu: Gpu) -> dict[str, str] | None:
        """Of its device; None for a GPU that pods may have."""
        value = UNHEALTHY if gpu.health != HEALTHY else CORDONED if gpu.cordoned else IN_USE if gpu.uuid in self.in_use else ""
        effect = "NoExecute" if self.evicts and gpu.defective else "NoSchedule"
        return {"key": TAINT, "value": value, "effect": effect} if value else None


def published(inventory: Inventory) -> list[Gpu]:
    """The GPUs that have a device. One without a whole unit has none."""
    return [gpu for gpu in inventory.gpus if gpu.units > 0 and _DEVICE.fullmatch(device_name(gpu.uuid))]


def slices(node: str, node_uid: str, inventory: Inventory, generation: int, closed: Closed = Closed()) -> list[dict[str, Any]]:
    """The slices of a node, without what the API server adds. generation: of the pool."""
    devices = [_device(gpu, inventory, closed) for gpu in published(inventory)]
    parts = [devices[start : start + _MOST_DEVICES] for start in range(0, max(1, len(devices)), _MOST_DEVICES)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{DRIVER}-{place}", "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                "devices": part,
            },
        }
        for place, part in enumerate(parts)
    ]


def _device(gpu: Gpu, inventory: Inventory, closed: Closed) -> dict[str, Any]:
    all_of_it, step = quantity(gpu.units, inventory.unit), quantity(1, inventory.unit)
    attributes: dict[str, Any] = {
        "uuid": {"string": gpu.uuid[:_MOST_TEXT]},
        "index": {"int": gpu.index},
        "model": {"string": gpu.model[:_MOST_TEXT]},
        "words": {"string": words(gpu.model)},
        "minor": {"int": gpu.minor},
        "mib": {"int": gpu.mib},
        **({"isolation": {"string": inventory.isolation[:_MOST_TEXT]}} if inventory.isolation else {}),
        # For people: kube-scheduler goes by the taint.
        **({"health": {"string": as_text(gpu.health, _MOST_TEXT)}} if gpu.health != HEALTHY else {}),
        **({"cordoned": {"bool": True}} if gpu.cordoned else {}),
        **({"numa": {"int": gpu.numa}, _NUMA_NODE: {"int": gpu.numa}} if gpu.numa is not None else {}),
        **({_PCI_BUS_ID: {"string": gpu.pci.lower()}} if _PCI.fullmatch(gpu.pci) else {}),
    }
    # Where the smallest amount is all there is, no step fits between.
    stepped = {"validRange": {"min": step, "step": step, "max": all_of_it}} if gpu.units > 1 else {}
    policy = {"default": all_of_it, **stepped}
    device: dict[str, Any] = {
        "name": device_name(gpu.uuid),
        "attributes": attributes,
        "capacity": {MEMORY: {"value": all_of_it, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    taint = closed.taint(gpu)
    if taint:
        device["taints"] = [taint]
    return device


def changes(wanted: Sequence[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the slices that the API server has differ from these in more than the pool's generation.

    The time of a taint, which it adds, does not count.
    """
    return _comparable(wanted) != _comparable(found)


def _comparable(those: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found = {}
    for part in those:
        spec = part.get("spec") or {}
        pool = {key: value for key, value in (spec.get("pool") or {}).items() if key != "generation"}
        devices = [
            {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device.get("taints") or ()]}
            for device in spec.get("devices") or ()
        ]
        owners = [owner.get("uid") for owner in (part.get("metadata") or {}).get("ownerReferences") or ()]
        found[str((part.get("metadata") or {}).get("name"))] = ({**spec, "pool": pool, "devices": devices}, owners)
    return found


def in_use(parts: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """UUIDs of the GPUs that have the taint in-use, in slices of our own as the API server has them."""
    devices = (device for part in parts for device in (part.get("spec") or {}).get("devices") or ())
    return frozenset(_text(device, "uuid") for device in devices if IN_USE in _values(device))


def _values(device: Mapping[str, Any]) -> Iterator[object]:
    """The values of our taint."""
    taints = device.get("taints")
    for taint in taints if isinstance(taints, list) else ():
        if as_mapping(taint).get("key") == TAINT:
            yield as_mapping(taint).get("value")


def read_inventory(parts: Iterable[Mapping[str, Any]]) -> Inventory:
    """The GPUs of one node, from its slices as the API server has them. ReportError says what is wrong with them.

    Links between GPUs are not in them.
    """
    specs = [as_mapping(part.get("spec")) for part in parts]
    generations = [_number(as_mapping(spec.get("pool")).get("generation"), "generation") for spec in specs]
    # While the slices of a pool are replaced it has some of both.
    newest = [spec for spec, generation in zip(specs, generations, strict=True) if generation == max(generations)]
    devices = [as_mapping(device) for spec in newest for device in spec.get("devices") or ()]
    if len(devices) > MOST_GPUS:
        raise ReportError(f"{len(devices)} devices are more than a node has; expected at most {MOST_GPUS}")
    unit = _unit_of(devices)
    gpus = tuple(sorted((_gpu(device, unit) for device in devices), key=lambda gpu: gpu.index))
    isolations = {_text(device, "isolation") for device in devices}
    return Inventory(unit, gpus, strategy=protocol.STRATEGY_CDI, isolation=isolations.pop() if len(isolations) == 1 else "")


def read_memory(value: object) -> int:
    """Bytes of a capacity. ReportError."""
    try:
        found = parse_quantity(value)
    except ValueError as error:
        raise ReportError(f"memory is {quote(value)}: {error}") from None
    if not 0 < found <= MOST_UNITS * _MIB:
        raise ReportError(f"memory is {quote(value)}; expected a quantity such as 16Gi")
    return found


def consumed(of_a_claim: Mapping[str, Any]) -> Any:
    """The memory among capacities that a claim asks for or has, None for none. The driver's name before it means the same."""
    return of_a_claim.get(MEMORY, of_a_claim.get(f"{DRIVER}/{MEMORY}"))


def _capacity(device: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(as_mapping(device.get("capacity")).get(MEMORY))


def _unit_of(devices: Sequence[Mapping[str, Any]]) -> Unit:
    """The step in which memory is given; a GPU of one unit has none, and is the unit."""
    steps = [as_mapping(as_mapping(_capacity(device).get("requestPolicy")).get("validRange")).get("step") for device in devices]
    stated = {read_memory(step) for step in steps if step is not None} or {
        read_memory(_capacity(device).get("value")) for device in devices
    }
    by_size = {unit.mib * _MIB: unit for unit in UNITS.values()}
    if not stated:
        return GIB
    if len(stated) > 1 or not stated & by_size.keys():
        raise ReportError(f"memory has steps of {quote(sorted(stated))} bytes; expected one of {', '.join(UNITS)} for all devices")
    return by_size[stated.pop()]


def _gpu(device: Mapping[str, Any], unit: Unit) -> Gpu:
    units = read_memory(_capacity(device).get("value")) // (unit.mib * _MIB)
    numa = _attribute(device, "numa", "int")
    return Gpu(
        index=_number(_attribute(device, "index", "int"), "index"),
        uuid=_text(device, "uuid"),
        minor=_number(_attribute(device, "minor", "int"), "minor"),
        pci=_text(device, _PCI_BUS_ID),
        model=_text(device, "model"),
        mib=_number(_attribute(device, "mib", "int"), "mib"),
        units=units,
        numa=None if numa is None else _number(numa, "numa"),
        health=_text(device, "health") or (HELD if IN_USE in _values(device) else HEALTHY),
        cordoned=_attribute(device, "cordoned", "bool") is True,
    )


def _attribute(device: Mapping[str, Any], name: str, kind: str) -> object:
    return as_mapping(as_mapping(device.get("attributes")).get(name)).get(kind)


def _text(device: Mapping[str, Any], name: str) -> str:
    return as_text(str(_attribute(device, name, "string") or ""), _MOST_TEXT)


def _number(value: object, name: str) -> int:
    """A release before this one has no `minor` and `mib`: 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_UNITS * _MIB:
        raise ReportError(f"{name} is {quote(value)}; expected a whole number")
    return value

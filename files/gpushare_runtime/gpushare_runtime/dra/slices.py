# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ResourceSlices of a node, from the inventory of its GPUs. Pure.

Each GPU, or MIG instance, is one device that many claims may share, with its memory as a capacity that they consume in whole units. A
claim that names no amount takes all of it: so whole GPUs and parts of them are counted in one ledger, that of kube-scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare_runtime.core.constraints import model_words
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory
from gpushare_runtime.core.quantity import Unit

DRIVER: Final = "gpushare.kubernetes"
"""Of the slices; attributes and capacities without a prefix are its own."""
API_VERSION: Final = "resource.k8s.io/v1"
API: Final = f"apis/{API_VERSION}"
"""Its path at the API server."""
MEMORY: Final = "memory"
"""The capacity."""
TAINT: Final = "gpushare.kubernetes/unusable"
# The API server allows 64 devices in a slice of which one has a taint, which each may get.
_MOST_DEVICES: Final = 64
# Of an attribute's text.
_MOST_TEXT: Final = 64
_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
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


def slices(node: str, node_uid: str, inventory: Inventory, generation: int) -> list[dict[str, Any]]:
    """The slices of a node, without what the API server adds. generation: of the pool. A GPU without a whole unit has no device."""
    devices = [_device(gpu, inventory.unit) for gpu in inventory.gpus if gpu.units > 0 and _DEVICE.fullmatch(device_name(gpu.uuid))]
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


def _device(gpu: Gpu, unit: Unit) -> dict[str, Any]:
    all_of_it, step = quantity(gpu.units, unit), quantity(1, unit)
    attributes: dict[str, Any] = {
        "uuid": {"string": gpu.uuid[:_MOST_TEXT]},
        "index": {"int": gpu.index},
        "model": {"string": gpu.model[:_MOST_TEXT]},
        "words": {"string": words(gpu.model)},
        **({"numa": {"int": gpu.numa}} if gpu.numa is not None else {}),
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
    if not gpu.usable:
        value = "cordoned" if gpu.health == HEALTHY else "unhealthy"
        device["taints"] = [{"key": TAINT, "value": value, "effect": "NoSchedule"}]
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

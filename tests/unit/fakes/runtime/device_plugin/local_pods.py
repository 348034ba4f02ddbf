# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of one node as the API server shows them after the scheduler's Binding."""

from __future__ import annotations

import itertools
from typing import Any

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import Inventory
from unit.fakes.runtime.pods import container, pod

_numbers = itertools.count(1)


def bound(inventory: Inventory | None, gpus: dict[int, dict[int, int]], *containers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A pod whose Binding says `gpus`: container → GPU → units. Without an inventory it carries no annotation."""
    number = next(_numbers)
    name = changes.pop("name", f"p{number}")
    annotations = Allocation.of(gpus).to_annotations(inventory, 1_774_000_000_000_000_000 + number) if inventory else {}
    made = pod(
        *containers,
        name=name,
        uid=changes.pop("uid", f"uid-{number}"),
        annotations=annotations | changes.pop("annotations", {}),
        creationTimestamp=changes.pop("created", "2026-11-21T10:00:00Z"),
        **{key: changes.pop(key) for key in ("init", "labels") if key in changes},
    )
    made["spec"]["nodeName"] = "gpu1"
    made["status"] = {"phase": changes.pop("phase", "Pending")}
    assert not changes
    return made


def memory(inventory: Inventory | None, gpu: int, units: int, **changes: Any) -> dict[str, Any]:
    """One container with this many units of that GPU."""
    return bound(inventory, {0: {gpu: units}}, container(mem=units), **changes)


def whole(inventory: Inventory | None, *gpus: int, count: int | None = None, **changes: Any) -> dict[str, Any]:
    """One container with these GPUs whole."""
    units = {gpu: inventory.by_index[gpu].units for gpu in gpus} if inventory else {}
    return bound(inventory, {0: units}, container(count=count or len(gpus)), **changes)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The sizes of a cluster's GPUs, which every user may know: the extender writes them into a ConfigMap, `kubectl gpushare` reads them. Pure.

A user with rights in one namespace sees no node. With these he sees GiB instead of units, and what to write instead of too much.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core.bounds import MOST_GPUS, ReportError, natural, read_versioned, typed
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.placement.explain import Largest, largest_of
from gpushare_runtime.core.quantity import Unit, parse_unit

VERSION: Final = 1
_MOST_CHARACTERS: Final = 4096


@dataclass(frozen=True)
class GpuSizes:
    """largest: GPU and node. unit: of all nodes, None where they differ: then that of a pod is unknown without its node."""

    largest: Largest
    unit: Unit | None

    def to_json(self) -> str:
        """The value in the ConfigMap."""
        unit, gpu, count = self.largest.unit.name, self.largest.gpu, self.largest.gpu_count
        found = {"v": VERSION, "unit": unit, "one_unit": self.unit is not None, "largest_gpu": gpu, "most_gpus": count}
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> GpuSizes:
        """Parse it. ReportError. Unknown fields are ignored."""
        data = read_versioned(text, VERSION, _MOST_CHARACTERS)
        try:
            unit = parse_unit(typed(data, "unit", str))
        except ValueError as error:
            raise ReportError(str(error)) from None
        count = natural(data, "most_gpus", most=MOST_GPUS)
        largest = Largest(unit, natural(data, "largest_gpu"), count)
        if not largest.gpu or not count:
            raise ReportError(f"largest_gpu and most_gpus must be at least 1, found {largest.gpu} and {count}")
        return cls(largest, unit if typed(data, "one_unit", bool) else None)


def sizes_of(inventories: Collection[Inventory]) -> GpuSizes | None:
    """None while no GPUs are known."""
    largest = largest_of(inventories)
    units = {inventory.unit for inventory in inventories if inventory.gpus}
    return GpuSizes(largest, largest.unit if len(units) == 1 else None) if largest else None

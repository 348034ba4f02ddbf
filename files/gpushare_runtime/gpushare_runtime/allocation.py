# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container has how many units of which card, and its only codec to and from pod annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpushare_runtime import protocol
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.request import Kind, Request


class AllocationError(ValueError):
    """Allocation annotations that cannot be read; quotes the annotation."""


@dataclass(frozen=True)
class Allocation:
    """Container index (in spec.containers) → NVML card index → units, both ascending.

    A container that has whole cards holds all units of each.
    """

    containers: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

    @classmethod
    def of(cls, containers: Mapping[int, Mapping[int, int]] | Iterable[tuple[int, Mapping[int, int]]]) -> Allocation:
        """From {container: {card: units}}; units must be positive."""
        items = dict(containers)
        return cls(tuple((c, tuple(sorted(items[c].items()))) for c in sorted(items)))

    @cached_property
    def by_card(self) -> Mapping[int, int]:
        """Units per card index, of all containers together."""
        total: dict[int, int] = {}
        for _, cards in self.containers:
            for card, units in cards:
                total[card] = total.get(card, 0) + units
        return total

    @property
    def first_card(self) -> int:
        """What the five old annotations name: the first card of the first container."""
        return self.containers[0][1][0][0]

    @property
    def units(self) -> int:
        return sum(self.by_card.values())

    def container(self, index: int) -> Mapping[int, int]:
        """{card: units} of one container; empty if it has none."""
        return dict(dict(self.containers).get(index, ()))

    def to_annotations(self, inventory: Inventory, assume_time_ns: int, *, assigned: bool = False) -> dict[str, str]:
        """All six annotations, together, as the Binding carries them. assume_time_ns: Unix time in nanoseconds."""
        return {
            protocol.ANNOTATION_INDEX: str(self.first_card),
            protocol.ANNOTATION_CARD_UNITS: str(inventory.by_index[self.first_card].units),
            protocol.ANNOTATION_POD_UNITS: str(self.units),
            protocol.ANNOTATION_ASSIGNED: "true" if assigned else "false",
            protocol.ANNOTATION_ASSUME_TIME: str(assume_time_ns),
            protocol.ANNOTATION_ALLOCATION: json.dumps(
                {str(c): {str(card): units for card, units in cards} for c, cards in self.containers},
                separators=(",", ":"),
            ),
        }


def read_allocation(annotations: Mapping[str, str], request: Request) -> Allocation | None:
    """The allocation that a pod's annotations state, None if they name no card.

    The JSON form wins; a pod that carries only the original's five has all its containers on card IDX.
    AllocationError if an annotation is there and cannot be read.
    """
    text = annotations.get(protocol.ANNOTATION_ALLOCATION)
    if text:
        return _from_json(text)
    index = annotations.get(protocol.ANNOTATION_INDEX)
    if index is None or index == "-1":
        return None
    card = _number(protocol.ANNOTATION_INDEX, index)
    asking = [c for c in request.containers if c.kind is not Kind.INIT]
    if request.cards == 0:
        return Allocation.of({c.index: {card: c.units} for c in asking if c.units})
    if request.cards == 1 and protocol.ANNOTATION_CARD_UNITS in annotations:
        units = _number(protocol.ANNOTATION_CARD_UNITS, annotations[protocol.ANNOTATION_CARD_UNITS])
        return Allocation.of({c.index: {card: units} for c in asking if c.cards})
    return None


def _from_json(text: str) -> Allocation | None:
    where = protocol.ANNOTATION_ALLOCATION
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise AllocationError(f"{where} is not JSON ({error}): {text!r}") from None
    if not isinstance(data, dict) or not all(isinstance(cards, dict) for cards in data.values()):
        raise AllocationError(f"{where} must be {{container: {{card: units}}}}, found {text!r}")
    containers: dict[int, dict[int, int]] = {}
    for container, cards in data.items():
        for card, units in cards.items():
            if isinstance(units, bool) or not isinstance(units, int) or units <= 0:
                raise AllocationError(f"{where} must give a positive number of units per card, found {text!r}")
            containers.setdefault(_number(where, container), {})[_number(where, card)] = units
    return Allocation.of(containers) if containers else None


def _number(where: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise AllocationError(f"{where} must be a whole number, found {text!r}")
    return int(text)

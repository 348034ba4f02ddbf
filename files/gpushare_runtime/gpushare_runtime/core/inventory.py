# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cards of a node, as the device plugin publishes them in the node annotation `gpushare/cards`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from gpushare_runtime.core.bounds import MOST_CARDS, MOST_UNITS, as_text, is_text, quote
from gpushare_runtime.core.quantity import Unit, parse_unit

VERSION: Final = 1
_MOST_INDEX: Final = 255
HEALTHY: Final = "ok"


class InventoryError(ValueError):
    """A `gpushare/cards` annotation that cannot be used; the message says what was found and expected."""


@dataclass(frozen=True)
class Card:
    """One physical GPU.

    index: NVML's; minor: of /dev/nvidia<minor>; pci: domain:bus:device.function; mib: memory in MiB;
    units: whole units of it; numa: NUMA node, None if unknown; health: "ok" or what is wrong.
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

    @property
    def usable(self) -> bool:
        """Whether new pods may be placed on it."""
        return self.health == HEALTHY and not self.cordoned


@dataclass(frozen=True)
class Inventory:
    """All cards of one node, by NVML index ascending, and the unit that they are counted in.

    core: per cent of each card's compute that is shared out; 0 where the node's mode does not enforce such shares.
    """

    unit: Unit
    cards: tuple[Card, ...]
    core: int = 0

    def __post_init__(self) -> None:
        indexes = [card.index for card in self.cards]
        if indexes != sorted(set(indexes)):
            raise InventoryError(f"cards must be listed by ascending index, each once; found {quote(indexes)}")
        if len({card.uuid for card in self.cards}) != len(self.cards):
            raise InventoryError(f"every card needs its own UUID; found {quote([card.uuid for card in self.cards])}")

    @cached_property
    def by_index(self) -> Mapping[int, Card]:
        return {card.index: card for card in self.cards}

    @cached_property
    def by_uuid(self) -> Mapping[str, Card]:
        return {card.uuid: card for card in self.cards}

    @cached_property
    def units(self) -> int:
        """Units of all cards together, whatever their health."""
        return sum(card.units for card in self.cards)

    def to_json(self) -> str:
        """The annotation's value: compact, keys in the protocol's order."""
        cards = [
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
            }
            for c in self.cards
        ]
        core = {"core": self.core} if self.core else {}
        return json.dumps({"v": VERSION, "unit": self.unit.name, **core, "cards": cards}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Inventory:
        """Parse the annotation; InventoryError says which field is wrong. Unknown fields are ignored."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InventoryError(f"not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("v") != VERSION:
            found = data.get("v") if isinstance(data, dict) else type(data).__name__
            raise InventoryError(
                f"version {quote(found)} is not known; this release reads version {VERSION}: "
                "install the same release on the node and on the control plane"
            )
        try:
            unit = parse_unit(_typed(data, "unit", str))
        except ValueError as error:
            raise InventoryError(str(error)) from None
        cards = _typed(data, "cards", list)
        if len(cards) > MOST_CARDS:
            raise InventoryError(f"{len(cards)} cards are more than a node has; expected at most {MOST_CARDS}")
        core = _natural(data, "core", "") if "core" in data else 0
        if core > 100:
            raise InventoryError(f"core must be at most 100 per cent, found {core}")
        return cls(unit=unit, cards=tuple(_card(entry, place) for place, entry in enumerate(cards)), core=core)


def _card(entry: object, place: int) -> Card:
    if not isinstance(entry, dict):
        raise InventoryError(f"cards[{place}] must be an object, found {type(entry).__name__}")
    where = f"cards[{place}]."
    return Card(
        index=_natural(entry, "index", where, _MOST_INDEX),
        uuid=_typed(entry, "uuid", str, where),
        minor=_natural(entry, "minor", where),
        pci=_typed(entry, "pci", str, where),
        model=_typed(entry, "model", str, where),
        mib=_natural(entry, "mib", where),
        units=_natural(entry, "units", where),
        numa=None if entry.get("numa") is None else _natural(entry, "numa", where),
        health=_typed(entry, "health", str, where),
        cordoned=_typed(entry, "cordoned", bool, where),
    )


def _natural(entry: dict[str, Any], key: str, where: str, most: int = MOST_UNITS) -> int:
    value: int = _typed(entry, key, int, where)
    if value < 0:
        raise InventoryError(f"{where}{key} must not be negative, found {quote(value)}")
    if value > most:
        raise InventoryError(f"{where}{key} must be at most {most}, found {quote(value)}")
    return value


def _typed(entry: dict[str, Any], key: str, kind: type, where: str = "") -> Any:
    value = entry.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InventoryError(f"{where}{key} must be {kind.__name__}, found {quote(value)}")
    if isinstance(value, str) and not is_text(value):
        raise InventoryError(f"{where}{key} must be a short text without control characters, found {quote(value)}")
    return value

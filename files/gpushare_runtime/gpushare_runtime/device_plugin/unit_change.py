# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether pods that run were given their memory in another unit: kubelet counts ids, and would mix both. No I/O but its record."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import orjson
from google.protobuf.message import DecodeError

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin import deviceplugin_pb2 as pb
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.quantity import UNITS


def recorded_card_units(checkpoint: Path) -> dict[str, set[int]]:
    """Pod UID → the units that its cards had when it was given memory of them, by the answers that kubelet keeps."""
    try:
        entries = orjson.loads(checkpoint.read_bytes())["Data"]["PodDeviceEntries"] or ()
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    units: dict[str, set[int]] = {}
    for entry in entries:
        if isinstance(entry, dict) and entry.get("ResourceName") == protocol.RESOURCE_MEMORY:
            told = _environment(entry).get(protocol.ENV_CARD_UNITS, "")
            if told.isdecimal():
                units.setdefault(str(entry.get("PodUID")), set()).add(int(told))
    return units


def _environment(entry: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        return pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.get("AllocResp") or "")).envs
    except (DecodeError, binascii.Error, TypeError, ValueError):
        return {}


def changed_unit(inventory: Inventory, recorded: Mapping[str, Collection[int]], live: Callable[[], Collection[str]]) -> str:
    """Why the inventory's unit cannot be used now, "" if it can. live: UIDs of the pods that have a process."""
    # The original tells every card's units as those of the first.
    here = {card.units for card in inventory.cards}
    others = {uid: set(units) - here for uid, units in recorded.items() if set(units) - here}
    running = sorted(others.keys() & set(live())) if others else []
    if not running:
        return ""
    had = sorted(set().union(*(others[uid] for uid in running)))
    units = [name for name, unit in UNITS.items() if set(had) <= {unit.count(card.mib) for card in inventory.cards}]
    before = f"--memory-unit {units[0]}" if units else "the unit that it had before"
    shown = ", ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "")
    return (
        f"{len(running)} pods run with memory of cards that had {', '.join(map(str, had))} units (UID {shown}), "
        f"in units of {inventory.unit} the cards have {', '.join(map(str, sorted(here)))}: "
        f"delete these pods first, or start with {before}"
    )

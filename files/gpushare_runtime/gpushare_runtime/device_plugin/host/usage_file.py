# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the plugin's next start has to know: who held what, in which unit, and which cards there were.

kubelet may forget a pod whose processes still run while no plugin looks. Who held what is of one boot only: no process outlives a
reboot; a card that does not answer just after one is known all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from gpushare_runtime.core.inventory import HEALTHY, Inventory, InventoryError
from gpushare_runtime.daemon.sync import any_after, in_thread
from gpushare_runtime.device_plugin.node.allocator import NodeState
from gpushare_runtime.device_plugin.node.ids import Key

log = logging.getLogger(__name__)

VERSION: Final = 1
NAME: Final = "held.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PAUSE_SECONDS: Final = 0.1


class StateFile:
    """The file of one plugin. boot: which boot this is.

    unit: the name of the unit that memory was given in before, "" if unknown; cards: that were there; both as `load` found them.
    """

    def __init__(self, path: Path, node: NodeState, boot: Callable[[], str] = lambda: _BOOT_ID.read_text().strip()) -> None:
        self.path = path
        self.unit = ""
        self.cards: Inventory | None = None
        self._node = node
        self._boot = boot()
        self._written: bytes | None = None
        self._texts: dict[Key, tuple[frozenset[str], orjson.Fragment]] = {}
        self._problem = ""

    def load(self) -> None:
        """Tell the node's holders. A file that is missing, of another boot or unreadable says nothing of them."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be read (%s): processes of pods that kubelet has forgotten may not be noticed", self.path, error)
            return
        try:
            data = orjson.loads(text)
            if data["v"] != VERSION:
                return
            # Read before anything is taken from it.
            unit, cards = str(data.get("unit", "")), _cards(data.get("cards"))
            snapshot, names = _held(data["pods"]) if data["boot"] == self._boot else ({}, {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not what this plugin writes (%r): it is written anew", self.path, error)
            return
        self._written = text
        self.unit, self.cards = unit, cards
        self._node.holders.restore(snapshot, names)

    async def run(self) -> NoReturn:
        """Keep the file true. Never returns; cancel it."""
        held, cards = self._node.holders.changes, self._node.inventory_changes
        while True:
            seen = (held, held.count), (cards, cards.count)
            # In which unit it is given is known with the cards, and who had it in the former one is to be known until then.
            if self._node.inventory is not None:
                text = self._render(self._node.inventory)
                # A disk may take long over a rename, and kubelet waits for nobody.
                await in_thread(lambda text=text: self._write(text))  # type: ignore[misc]
                await asyncio.sleep(_PAUSE_SECONDS)
            await any_after(*seen)

    def _render(self, inventory: Inventory) -> bytes:
        pods: dict[str, Any] = {}
        names, held = self._node.holders.names(), self._node.holders.snapshot()
        # Thousands of ids, of which each change touches few.
        self._texts = {key: self._text(key, ids) for key, ids in held.items()}
        for uid, container, resource in sorted(held):
            of = pods.setdefault(uid, {"name": names.get(uid, ""), "containers": {}})["containers"]
            of.setdefault(container, {})[resource] = self._texts[uid, container, resource][1]
        # Whether a card is well is seen anew, and would be a reason to write each time.
        cards = Inventory(inventory.unit, tuple(replace(card, health=HEALTHY, cordoned=False) for card in inventory.cards))
        told = orjson.Fragment(cards.to_json())
        return orjson.dumps({"v": VERSION, "boot": self._boot, "unit": inventory.unit.name, "cards": told, "pods": pods})

    def _text(self, key: Key, ids: frozenset[str]) -> tuple[frozenset[str], orjson.Fragment]:
        known = self._texts.get(key)
        return known if known is not None and known[0] is ids else (ids, orjson.Fragment(orjson.dumps(sorted(ids))))

    def _write(self, text: bytes) -> None:
        if text == self._written:
            return
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(text)
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s cannot be written (%s): give the unit a StateDirectory= or another --state-dir", self.path, error)
            return
        self._written, self._problem = text, ""


def _cards(said: object) -> Inventory | None:
    try:
        return Inventory.from_json(orjson.dumps(said).decode()) if said is not None else None
    except InventoryError as error:
        log.warning("%s: its cards are passed over: %s", NAME, error)
        return None


def _held(pods: Mapping[str, Any]) -> tuple[dict[Key, frozenset[str]], dict[str, str]]:
    snapshot = {
        (uid, container, resource): frozenset(map(str, ids))
        for uid, pod in pods.items()
        for container, resources in pod["containers"].items()
        for resource, ids in resources.items()
    }
    return snapshot, {uid: str(pod["name"]) for uid, pod in pods.items()}

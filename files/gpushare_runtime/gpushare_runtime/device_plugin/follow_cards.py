# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Read the cards every few seconds and tell the node's state what changed, while NVML may fail, hang or come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from gpushare_runtime.device_plugin.cards import KUBELET_MESSAGE_BYTES, CardReader, NvmlError, list_bytes, smallest_fitting
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.node import NodeState
from gpushare_runtime.device_plugin.status import Status
from gpushare_runtime.device_plugin.threads import in_thread
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.quantity import UNITS

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
_HANGING_SECONDS: Final = 10.0
_PART: Final = "cards"


class Unusable(Exception):
    """The plugin cannot go on as it was started; the text says what to change. restart: the same in a new process is enough."""

    def __init__(self, text: str, *, restart: bool = False) -> None:
        super().__init__(text)
        self.restart = restart


class CardFollower:
    """interval: seconds between two readings; unusable: why cards cannot be offered in this unit now, "" if they can."""

    def __init__(
        self, reader: CardReader, node: NodeState, status: Status, interval: float, unusable: Callable[[], str] = lambda: ""
    ) -> None:
        self._reader = reader
        self._node = node
        self._status = status
        self._interval = interval
        self._unusable = unusable
        self._asked = Changes()

    def read_now(self) -> None:
        """Read without waiting for the next turn."""
        self._asked.notify()

    async def run(self) -> NoReturn:
        """Never returns; Unusable when the cards make too many units for kubelet, or NVML wants a new process."""
        while True:
            inventory: Inventory | None
            asked = self._asked.count
            try:
                inventory = await self._read()
            except NvmlError as error:
                if error.reload:
                    raise Unusable(f"{error}: ending, to be started again", restart=True) from None
                inventory = self._reader.failed(str(error))
                self._status.bad(_PART, str(error))
            else:
                self._say(inventory)
            if inventory is not None:
                _check_size(inventory)
                # Only before anything was offered: what is given now is given in this unit.
                if self._node.inventory is None and (why := self._unusable()):
                    raise Unusable(why, restart=True)
                self._node.set_inventory(inventory)
            await self._asked.after(asked, self._interval)

    async def _read(self) -> Inventory:
        reading = asyncio.ensure_future(in_thread(self._reader.read))
        done, _ = await asyncio.wait({reading}, timeout=_HANGING_SECONDS)
        if not done:
            why = f"NVML has not answered for {_HANGING_SECONDS:.0f} s: look for Xid and hung tasks in `dmesg`; a reboot may be needed"
            self._status.bad(_PART, why)
            last = self._reader.failed(why)
            if last is not None:
                self._node.set_inventory(last)
        return await reading

    def _say(self, inventory: Inventory) -> None:
        if not inventory.cards:
            self._status.bad(_PART, "NVML lists no card: check with `lspci -k -d 10de:` that they are there and bound to the nvidia driver")
            return
        broken = [f"card {card.index} ({card.uuid}): {card.health}" for card in inventory.cards if not card.usable]
        if broken:
            self._status.bad(_PART, "; ".join(broken))
        else:
            rest = sum(card.mib for card in inventory.cards) - inventory.units * inventory.unit.mib
            left = f"; {rest} MiB fill no unit of their card" if rest else ""
            self._status.good(_PART, f"{len(inventory.cards)} with {inventory.units} units of {inventory.unit}{left}")


def _check_size(inventory: Inventory) -> None:
    size = list_bytes([(card.uuid, card.units) for card in inventory.cards])
    if size <= KUBELET_MESSAGE_BYTES:
        return
    fitting = smallest_fitting(inventory, list(UNITS.values()))
    cure = f"use --memory-unit {fitting.name}" if fitting else "there are too many cards for one node"
    raise Unusable(
        f"{inventory.units} units of {inventory.unit} make a list of {size} bytes, "
        f"kubelet takes at most {KUBELET_MESSAGE_BYTES} ({inventory.unit.name} is too small for these cards): {cure}"
    )

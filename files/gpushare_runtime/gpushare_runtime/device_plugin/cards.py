# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cards of this host, read through NVML; what NVML cannot say becomes a sentence that says what to do."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final, Protocol

from gpushare_runtime.device_plugin.health import CardHealth
from gpushare_runtime.inventory import Card, Inventory, InventoryError
from gpushare_runtime.quantity import Unit

log = logging.getLogger(__name__)


class NvmlError(Exception):
    """NVML as a whole, or one card, cannot be used; the text says what is wrong and what to do.

    reload: only a new process can recover, because the library on disk is no longer the one that is loaded.
    """

    def __init__(self, text: str, *, reload: bool = False) -> None:
        super().__init__(text)
        self.reload = reload


@dataclass(frozen=True)
class CardFacts:
    """What NVML says of one card.

    pci: domain:bus:device.function, 4-digit domain, lower case; numa: None if unknown; failed: why it must not be used, ""
    if it may; unfit: why it must not be used again after it was in trouble.
    """

    uuid: str
    minor: int
    pci: str
    model: str
    mib: int
    numa: int | None
    failed: str = ""
    unfit: str = ""


class XidEvents(Protocol):
    """A subscription to the XID errors of all cards that answer. partial: some card did not answer when it was made."""

    partial: bool

    def wait(self, seconds: float) -> tuple[str, int] | None:
        """(card UUID, XID) of the next one; None if none comes in that time. Blocks; NvmlError when it has to be made anew."""

    def close(self) -> None:
        """Never raises."""


class Nvml(Protocol):
    """The part of NVML that is used. All calls may block and raise NvmlError."""

    def start(self) -> None:
        """Load the library and connect to the driver."""

    def stop(self) -> None:
        """The opposite; never raises."""

    def count(self) -> int: ...

    def facts(self, index: int) -> CardFacts: ...

    def xid_events(self) -> XidEvents:
        """Independent of start and stop."""


class CardReader:
    """Reads the cards again and again, and keeps to what it knew of a card that no longer answers."""

    def __init__(self, nvml: Nvml, unit: Unit, health: CardHealth) -> None:
        self._nvml = nvml
        self._unit = unit
        self._health = health
        self._started = False
        self._known: Inventory | None = None

    def read(self) -> Inventory:
        """The cards as they are now; a card that does not answer is kept with its error as health. Blocks.

        NvmlError if NVML fails as a whole; the next call starts it anew.
        """
        try:
            if not self._started:
                self._nvml.start()
                self._started = True
            cards = [self._card(index) for index in range(self._nvml.count())]
            self._known = Inventory(self._unit, tuple(card for card in cards if card is not None))
        except InventoryError as error:
            raise NvmlError(f"the cards changed while they were read ({error}); reading again") from None
        except NvmlError:
            self.stop()
            raise
        return self._known

    def failed(self, why: str) -> Inventory | None:
        """All cards as they were last seen, unusable because of `why`; None if none was ever seen."""
        if self._known is None:
            return None
        return Inventory(self._unit, tuple(replace(card, health=why) for card in self._known.cards))

    def stop(self) -> None:
        if self._started:
            self._nvml.stop()
            self._started = False

    def _card(self, index: int) -> Card | None:
        try:
            facts = self._nvml.facts(index)
        except NvmlError as error:
            before = self._known.by_index.get(index) if self._known else None
            if before is None:
                log.error("card %d is left out: %s", index, error)
                return None
            if before.usable:
                log.error("card %d (%s): %s", index, before.uuid, error)
            return replace(before, health=self._health.fails(before.uuid, str(error)))
        health = self._health.fails(facts.uuid, facts.failed) if facts.failed else self._health.answers(facts.uuid, facts.unfit)
        return Card(
            index=index,
            uuid=facts.uuid,
            minor=facts.minor,
            pci=facts.pci,
            model=facts.model,
            mib=facts.mib,
            units=self._unit.count(facts.mib),
            numa=facts.numa,
            health=health,
        )


# kubelet's gRPC client takes messages of up to 4 MiB.
KUBELET_MESSAGE_BYTES: Final = 4 * 1024 * 1024


def list_bytes(cards: list[tuple[str, int]]) -> int:
    """Bytes of the device list for kubelet with these (UUID, units), when every id is "Unhealthy", the longer word."""
    total = 0
    for uuid, units in cards:
        first, digits = 0, 1
        while first < units:
            last = min(units, 10**digits)
            # Two fields with tag and length each, then tag and length of the device in the list.
            total += (last - first) * (2 + len(uuid) + 3 + digits + 2 + len("Unhealthy") + 2)
            first, digits = last, digits + 1
    return total


def smallest_fitting(inventory: Inventory, units: list[Unit]) -> Unit | None:
    """The smallest of the units in which the cards' list still fits into kubelet's message."""
    fitting = [u for u in units if list_bytes([(c.uuid, u.count(c.mib)) for c in inventory.cards]) <= KUBELET_MESSAGE_BYTES]
    return min(fitting, key=lambda unit: unit.mib, default=None)

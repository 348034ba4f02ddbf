# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cards of this node, the ids made of them, and which of these kubelet is told of as healthy. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Card, Inventory
from gpushare_runtime.core.quantity import unit_id
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.usage import Holders


class NodeCards:
    """inventory: None before the cards were read; inventory_changes: counts its changes; holders: who holds which ids."""

    def __init__(self, holders: Holders) -> None:
        self.holders = holders
        self.inventory: Inventory | None = None
        self.inventory_changes = Changes()
        self._read: Inventory | None = None
        self._cordon = ""
        self._slots: dict[str, Card] = {}
        self._ids: dict[str, list[str]] = {}

    def set_inventory(self, read: Inventory) -> bool:
        """The cards as read now; whether they differ from before."""
        self._read = read
        inventory = replace(read, cards=tuple(replace(c, cordoned=c.cordoned or cordons(self._cordon, c)) for c in read.cards))
        if inventory == self.inventory:
            return False
        self.inventory = inventory
        self._ids = {c.uuid: [unit_id(c.uuid, slot) for slot in range(c.units)] for c in inventory.cards}
        self._slots = {device_id: card for card in inventory.cards for device_id in self._ids[card.uuid]}
        self.inventory_changes.notify()
        return True

    def set_cordon(self, text: str) -> None:
        """The cards that take no new pods, as an administrator wrote them: NVML index or UUID, with commas between; "all"."""
        if text != self._cordon:
            self._cordon = text
            if self._read is not None:
                self.set_inventory(self._read)

    def card_of(self, resource: str) -> Mapping[str, Card]:
        """The card of each id that there is of the resource."""
        if resource == protocol.RESOURCE_CARDS:
            return self.inventory.by_uuid if self.inventory else {}
        return self._slots

    def devices(self, resource: str) -> list[tuple[str, bool]]:
        """Every id of the resource, and whether it counts as healthy.

        Of a card that may not be given, the free ids do not; those that are held follow as they are released. So kubelet's
        sum falls by what the card can no longer give, and what pods hold of it is not taken from the good cards.
        """
        cards = self.inventory.cards if self.inventory else ()
        kept = self._held_of_unusable(resource)
        if resource == protocol.RESOURCE_CARDS:
            return [(card.uuid, card.usable or card.uuid in kept) for card in cards]
        return [(device_id, card.usable or device_id in kept) for card in cards for device_id in self._ids[card.uuid]]

    def devices_key(self, resource: str) -> Hashable:
        """Equal as long as `devices` is."""
        cards = self.inventory.cards if self.inventory else ()
        return tuple((card.uuid, card.units, card.usable) for card in cards), frozenset(self._held_of_unusable(resource))

    def _held_of_unusable(self, resource: str) -> Collection[str]:
        unusable = {card.uuid: card for card in (self.inventory.cards if self.inventory else ()) if not card.usable}
        if not unusable:
            return ()
        # What kubelet has freed already is free to it, whatever still uses it.
        freed = frozenset().union(*self.holders.leaving(resource).values())
        return (self.holders.ids_of(resource, unusable) & self._ids_of(resource, unusable)) - freed

    def _ids_of(self, resource: str, cards: Collection[str]) -> set[str]:
        return set(cards) if resource == protocol.RESOURCE_CARDS else {i for uuid in cards for i in self._ids[uuid]}


def cordons(text: str, card: Card) -> bool:
    """Whether this names the card."""
    words = {word.strip() for word in text.split(",")}
    return bool(words & {str(card.index), card.uuid, "all"})

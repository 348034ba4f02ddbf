# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cards of this node, their device ids, and which ids the plugin reports to kubelet as healthy. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from gpushare_runtime.core import mps, protocol
from gpushare_runtime.core.inventory import HEALTHY, Card, Inventory
from gpushare_runtime.core.quantity import unit_id
from gpushare_runtime.device_plugin.node.cdi import CdiSpecs
from gpushare_runtime.device_plugin.node.usage import Usage


class Devices:
    """inventory: None before the cards were read for the first time; strategy: how containers get cards, of protocol.STRATEGIES."""

    def __init__(self, usage: Usage, strategy: str = protocol.STRATEGY_ENVIRONMENT) -> None:
        self.inventory: Inventory | None = None
        self.strategy = strategy
        self.cdi = CdiSpecs()
        self._usage = usage
        usage.cards_by_index = lambda: self.inventory.by_index if self.inventory else {}
        self._read: Inventory | None = None
        self._cordon = ""
        self._isolation = ""
        self._mps: Mapping[str, str] = {}
        self._slots: dict[str, Card] = {}
        self._ids: dict[str, list[str]] = {}

    @property
    def cards(self) -> tuple[Card, ...]:
        return self.inventory.cards if self.inventory else ()

    @property
    def by_uuid(self) -> Mapping[str, Card]:
        return self.inventory.by_uuid if self.inventory else {}

    def set_inventory(self, read: Inventory) -> bool:
        """Take the cards as read now. Returns whether they differ from before."""
        self._read = read
        isolation = self._isolation
        core = 100 if isolation in protocol.ISOLATIONS_WITH_COMPUTE else 0
        clients = mps.MOST_CLIENTS if isolation == protocol.ISOLATION_MPS else 0
        cards = tuple(map(self._offered, read.cards))
        inventory = replace(read, cards=cards, core=core, strategy=self.strategy, isolation=isolation, clients=clients)
        if inventory == self.inventory:
            return False
        self.inventory = inventory
        self._ids = {c.uuid: [unit_id(c.uuid, slot) for slot in range(c.units)] for c in inventory.cards}
        self._slots = {device_id: card for card in inventory.cards for device_id in self._ids[card.uuid]}
        self._usage.changes.notify()
        return True

    def _offer_again(self) -> None:
        if self._read is not None:
            self.set_inventory(self._read)

    def _offered(self, card: Card) -> Card:
        cordoned = card.cordoned or is_cordoned(self._cordon, card)
        # The card's own failure says more.
        why = self._without_spec(card) or self._without_mps(card)
        return replace(card, cordoned=cordoned, health=why or HEALTHY if card.health == HEALTHY else card.health)

    def _without_mps(self, card: Card) -> str:
        if self._isolation != protocol.ISOLATION_MPS:
            return ""
        return self._mps.get(card.uuid, "the state of its MPS control daemon is not known yet")

    def set_mps(self, problems: Mapping[str, str]) -> None:
        """Take why the MPS control daemon of each card cannot be used now, by UUID; "" if it can."""
        self._mps = dict(problems)
        self._offer_again()

    def _without_spec(self, card: Card) -> str:
        return self.cdi.problem(card) if self.strategy == protocol.STRATEGY_CDI else ""

    def set_cdi(self, specs: CdiSpecs) -> None:
        """Take the CDI specs as read now."""
        self.cdi = specs
        self._offer_again()

    def unusable_specs(self) -> Mapping[str, str]:
        """UUID → why no container can get the card through CDI, of the cards that answer; {} with another strategy."""
        answering = [card for card in (self._read.cards if self._read else ()) if card.health == HEALTHY]
        return {card.uuid: why for card in answering if (why := self._without_spec(card))}

    @property
    def isolation(self) -> str:
        """What keeps pods to their units now; "" if that is not known yet."""
        return self._isolation

    def set_isolation(self, isolation: str) -> None:
        """Take what keeps pods to their units now (protocol.ISOLATION_…)."""
        self._isolation = isolation
        self._offer_again()

    def set_cordon(self, text: str) -> None:
        """Take the cards that an administrator cordoned: NVML indexes or UUIDs, separated by commas; "all"."""
        self._cordon = text
        self._offer_again()

    def card_of(self, resource: str) -> Mapping[str, Card]:
        """Id → card, for all ids of the resource."""
        return self.by_uuid if resource == protocol.RESOURCE_CARDS else self._slots

    def ids_of(self, resource: str, card_uuid: str) -> list[str]:
        """The ids of one card, lowest slot first."""
        return [card_uuid] if resource == protocol.RESOURCE_CARDS else self._ids[card_uuid]

    def reported(self, resource: str) -> list[tuple[str, bool]]:
        """Every id of the resource, and whether the plugin reports it as healthy.

        Of an unusable card, only ids in use are healthy, until their pods release them. So kubelet's total falls by what this card
        cannot provide, and the ids in use do not reduce what the good cards provide.
        """
        kept = self._used_of_unusable(resource)
        return [(i, card.usable or i in kept) for card in self.cards for i in self.ids_of(resource, card.uuid)]

    def reported_key(self, resource: str) -> Hashable:
        """Equal as long as `reported` is."""
        return tuple((card.uuid, card.units, card.usable) for card in self.cards), frozenset(self._used_of_unusable(resource))

    def _used_of_unusable(self, resource: str) -> Collection[str]:
        unusable = {card.uuid for card in self.cards if not card.usable}
        if not unusable:
            return ()
        # kubelet counts what it has freed as free, even if a process still uses it.
        freed = frozenset().union(*self._usage.still_in_use(resource).values())
        return (self._usage.ids_of(resource, unusable) & {i for uuid in unusable for i in self.ids_of(resource, uuid)}) - freed

    def users_key(self, card_uuid: str) -> Hashable:
        """Equal as long as the same pods use the card, and it remains usable or unusable."""
        card, users = self.by_uuid.get(card_uuid), self._usage.card_users()
        return card and card.usable, frozenset(users.memory.get(card_uuid, ())), users.whole.get(card_uuid)


def is_cordoned(text: str, card: Card) -> bool:
    """Whether the text of `gpushare/cordon` names the card."""
    words = {word.strip() for word in text.split(",")}
    return bool(words & {str(card.index), card.uuid, "all"})

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers to kubelet's questions: which ids it should give, what a container with these ids is told, whether it may start.

kubelet asks for one container after the other and knows which ids of a resource are free. What it does not know, and
what is decided here: that both resources mean the same cards, which card the scheduler chose, and which ids processes still
hold. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Set
from dataclasses import replace
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.answer import Granted, grant
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.choice import Offer, choose_cards, choose_units
from gpushare_runtime.device_plugin.holders import Held, Holders
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.refusals import Refusals
from gpushare_runtime.device_plugin.shares import cards_of
from gpushare_runtime.device_plugin.turns import Key, Turn, allowed_cards, find_turn
from gpushare_runtime.device_plugin.words import card_name, shortage, unavailable, wanted_words
from gpushare_runtime.inventory import HEALTHY, Card, Inventory
from gpushare_runtime.quantity import unit_id

_TRIES_AGAIN: Final = "kubelet tries to start the container again and again"
_PLACE_ANEW: Final = "delete the pod so that the scheduler places it anew"


class Refused(Exception):
    """An allocation or a start that cannot be; the text reaches the user in the pod's status."""


class NodeState:
    """This node's cards, its pods, and who holds what. Used from one event loop only.

    clock: seconds that only grow; now: Unix time; live: the UIDs of the pods that have a process on this host, asked only
    when some pod may have outlived kubelet's memory.
    """

    def __init__(self, pods: PodTable, clock: Callable[[], float], now: Callable[[], float], live: Callable[[], Set[str]]) -> None:
        self.pods = pods
        self.holders = Holders(pods, clock)
        self.refusals = Refusals(now, self._holders_of)
        self.inventory: Inventory | None = None
        self.inventory_changes = Changes()
        self._read: Inventory | None = None
        self._cordon = ""
        self._live = live
        self._slots: dict[str, Card] = {}
        self._ids: dict[str, list[str]] = {}
        self._preferred: dict[str, deque[tuple[frozenset[str], Turn | None]]] = {}
        self._refused: set[str] = set()

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

    def settle(self) -> None:
        """Release what pods held that are over and have no process left. Looks at all processes of the host if any is over."""
        self.holders.settle(self._live)

    # What kubelet is told of.

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
        return (self.holders.ids_of(resource, unusable) & self._ids_of(resource, unusable)) - self.holders.leaving(resource).keys()

    def _ids_of(self, resource: str, cards: Collection[str]) -> set[str]:
        return set(cards) if resource == protocol.RESOURCE_CARDS else {i for uuid in cards for i in self._ids[uuid]}

    # GetPreferredAllocation.

    def turn(self, resource: str, size: int, *, late: bool = False) -> Turn | None:
        """The container that a question for `size` ids is about; None if no such pod is known (yet)."""
        gone = self.holders.forgotten()
        pods = (pod for pod in self.pods if pod.uid not in gone)
        return find_turn(pods, self.holders.served(), resource, size, refused=self._refused, late=late)

    def prefer(self, resource: str, available: Collection[str], must: Collection[str], size: int) -> tuple[list[str], Turn | None]:
        """The ids that kubelet should give, and to whom it seems to give them. Refused if the cards cannot serve that.

        available: all ids that kubelet has free, `must` (kept from an init container of the same pod) included.
        """
        free = set(available)
        self.holders.free(resource, free.difference(must))
        doubtful = self.holders.review()
        turn = self.turn(resource, size) or self.turn(resource, size, late=True)
        ids, offers = self._choose(resource, free, set(must), size, turn)
        if doubtful and (ids is None or not self._as_wanted(resource, ids, turn)):
            # Looking at processes takes time: only where somebody's end would make a difference.
            self.settle()
            ids, offers = self._choose(resource, free, set(must), size, turn)
        if ids is None:
            raise self._refuse(turn, self._shortage(resource, size, offers, turn))
        self._preferred.setdefault(resource, deque(maxlen=8)).append((frozenset(ids), turn))
        return ids, turn

    def _choose(
        self, resource: str, free: Collection[str], must: Collection[str], size: int, turn: Turn | None
    ) -> tuple[list[str] | None, list[Offer]]:
        offers = self._offers(resource, free, must, turn)
        wanted = turn.ask.cards if turn else {}
        if resource == protocol.RESOURCE_CARDS:
            of_pod = turn.pod.allocation.by_card if turn and turn.pod.allocation else {}
            return choose_cards(offers, size, must, wanted, of_pod), offers
        return choose_units(offers, size, must, wanted, turn.ask.spread if turn else 1), offers

    def _as_wanted(self, resource: str, ids: Collection[str], turn: Turn | None) -> bool:
        by_uuid = self.inventory.by_uuid if self.inventory else {}
        return turn is not None and {by_uuid[uuid].index for uuid in cards_of(resource, ids)} == turn.ask.cards.keys()

    def _offers(self, resource: str, free: Collection[str], must: Collection[str], turn: Turn | None) -> list[Offer]:
        held, promised = self.holders.held(), self._promised(turn)
        taken = self.holders.leaving(resource, but=turn.pod.uid if turn else "").keys() - must
        allowed = allowed_cards(turn, list(self.pods), self._got())
        offers = []
        for card in self.inventory.cards if self.inventory else ():
            if self._unavailable(resource, card, held):
                continue
            all_ids = [card.uuid] if resource == protocol.RESOURCE_CARDS else self._ids[card.uuid]
            ids = [i for i in all_ids if i in free and i not in taken]
            if ids:
                offers.append(Offer(card, ids, promised.get(card.index, 0), allowed is None or card.index in allowed))
        return offers

    def _promised(self, turn: Turn | None) -> dict[int, int]:
        """Card index → units of pods that the scheduler placed and kubelet is still to serve, without the one whose turn it is."""
        promised: dict[int, int] = {}
        served = self.holders.served()
        for pod in self.pods:
            for ask in pod.asks if pod.waiting and pod.uid not in self._refused else ():
                key = pod.uid, ask.container, ask.resource
                if key not in served and not (turn and turn.key == key):
                    for index, units in ask.cards.items():
                        promised[index] = promised.get(index, 0) + units
        return promised

    def _got(self) -> dict[Key, Collection[int]]:
        by_uuid = self.inventory.by_uuid if self.inventory else {}
        return {key: [by_uuid[c].index for c in cards if c in by_uuid] for key, cards in self.holders.cards().items()}

    # Allocate.

    def allocate(self, resource: str, ids: Collection[str]) -> Granted:
        """What a container with these ids is told. Refused if they mean a card that it must not have."""
        given = frozenset(ids)
        doubtful = self.holders.review()
        turn = self._whose(resource, given)
        cards = self._cards_of(resource, given, turn)
        conflict = self._conflict(resource, given, cards, turn)
        if conflict and doubtful:
            self.settle()
            conflict = self._conflict(resource, given, cards, turn)
        if conflict:
            raise self._refuse(turn, f"{resource}: {conflict}; {_PLACE_ANEW}")
        self.holders.give(resource, given, turn)
        return grant(resource, given, cards, turn)

    def _whose(self, resource: str, ids: frozenset[str]) -> Turn | None:
        remembered = self._preferred.get(resource, deque())
        for item in remembered:
            if item[0] == ids:
                remembered.remove(item)
                return item[1]
        # No question came before: kubelet reuses the ids of an init container, of the pod that is half served.
        return self.turn(resource, len(ids))

    def _cards_of(self, resource: str, ids: frozenset[str], turn: Turn | None) -> tuple[Card, ...]:
        known: Mapping[str, Card] = self._slots
        if resource == protocol.RESOURCE_CARDS:
            known = self.inventory.by_uuid if self.inventory else {}
        unknown = sorted(i for i in ids if i not in known)
        if unknown or not ids:
            found = f"id {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") if unknown else "no id"
            cards = ", ".join(card_name(card) for card in self.inventory.cards) if self.inventory else ""
            raise self._refuse(
                turn, f"{resource}: kubelet gives {found}, of no card in this node ({cards or 'which has none'}); {_PLACE_ANEW}"
            )
        units: dict[Card, int] = {}
        for i in ids:
            units[known[i]] = units.get(known[i], 0) + 1
        spread = turn.ask.spread if turn else 1
        if resource == protocol.RESOURCE_MEMORY and (len(units) != spread or len(set(units.values())) != 1):
            parts = ", ".join(f"{units[card]} of {card_name(card)}" for card in sorted(units, key=lambda c: c.index))
            needs = "one card" if spread == 1 else f"the same on each of {spread} cards"
            raise self._refuse(
                turn, f"{resource}: kubelet gives one container units of {len(units)} cards ({parts}), it needs {needs}; {_PLACE_ANEW}"
            )
        return tuple(sorted(units, key=lambda card: card.index))

    def _conflict(self, resource: str, ids: frozenset[str], cards: Collection[Card], turn: Turn | None) -> str:
        """Why these ids cannot be had now, "" if they can."""
        held = self.holders.held()
        for card in cards:
            why = self._unavailable(resource, card, held)
            if why:
                return f"{card_name(card)} {why}"
        return self._still_used(resource, ids, {turn.pod.uid} if turn else set())

    def _still_used(self, resource: str, ids: frozenset[str], owners: Collection[str]) -> str:
        """Which of the ids others' processes still hold, though kubelet has freed it: with the pod object, or with its record."""
        for device_id, uid in self.holders.leaving(resource).items():
            if device_id in ids and uid not in owners:
                return f"id {device_id!r} is still held by processes of {self._pod_name(uid)}, though kubelet has freed it"
        return ""

    # PreStartContainer.

    def may_start(self, resource: str, ids: Collection[str]) -> bool:
        """Whether these ids are as kubelet's record has them. Refused if a container with them must not run now."""
        given = frozenset(ids)
        doubtful = self.holders.review()
        known: Mapping[str, Card] = self._slots
        if resource == protocol.RESOURCE_CARDS:
            known = self.inventory.by_uuid if self.inventory else {}
        if self.inventory and not given <= known.keys():
            raise Refused(f"{resource}: {len(given - known.keys())} of its ids are of no card in this node; {_PLACE_ANEW}")
        for card in sorted({known[i] for i in given if i in known}, key=lambda c: c.index):
            if card.health != HEALTHY:
                raise Refused(f"{resource}: {card_name(card)} is not usable ({card.health}); {_TRIES_AGAIN}")
        recorded = [key for key, held in self.holders.snapshot().items() if key[2] == resource and held == given]
        self._check_shape(resource, given, recorded)
        owners = {uid for uid, _, _ in recorded}
        if self._still_used(resource, given, owners) and doubtful:
            self.settle()
        if used := self._still_used(resource, given, owners):
            raise Refused(f"{resource}: {used}; {_TRIES_AGAIN}")
        return bool(recorded)

    def _check_shape(self, resource: str, ids: Collection[str], recorded: Collection[Key]) -> None:
        """Only now is it certain whose the ids are: in Allocate they may have been meant for a pod of the same size."""
        cards = cards_of(resource, ids)
        for uid, container, _ in recorded:
            pod = self.pods.get(uid)
            ask = next((a for a in pod.asks if (a.container, a.resource) == (container, resource)), None) if pod else None
            if ask is not None and resource == protocol.RESOURCE_MEMORY and len(cards) != ask.spread:
                raise Refused(
                    f"{resource}: container {container} of pod {pod} has units of {len(cards)} cards, "
                    f"it needs {'one card' if ask.spread == 1 else f'{ask.spread} cards'}; {_PLACE_ANEW}"
                )

    # In words.

    def _unavailable(self, resource: str, card: Card, held: Held) -> str:
        return unavailable(resource, card, held, self._pod_name)

    def _shortage(self, resource: str, size: int, offers: Collection[Offer], turn: Turn | None) -> str:
        if self.inventory is None or not self.inventory.cards:
            return f"{resource}: this node has no cards that answer; see the status of gpushare-device-plugin on it"
        leaving: dict[str, set[str]] = {}
        for device_id, uid in self.holders.leaving(resource).items():
            for uuid in cards_of(resource, [device_id]):
                leaving.setdefault(uuid, set()).add(self._pod_name(uid))
        held = self.holders.held()
        why = {card.index: self._unavailable(resource, card, held) for card in self.inventory.cards}
        asked = wanted_words(resource, size, turn.ask.spread if turn else 1, self.inventory)
        return f"{resource}: asked for {asked}, but {shortage(resource, self.inventory, offers, why, leaving)}; {_PLACE_ANEW}"

    def _refuse(self, turn: Turn | None, text: str) -> Refused:
        if turn is None:
            return Refused(text)
        self._refused = {pod.uid for pod in self.pods if pod.uid in self._refused or pod.uid == turn.pod.uid}
        whole = turn.ask.resource == protocol.RESOURCE_CARDS
        for index, units in turn.ask.cards.items():
            card = self.inventory.by_index.get(index) if self.inventory else None
            if card is not None:
                self.refusals.add(turn.pod.uid, card.uuid, units, whole=whole)
        if turn.pod.allocation is None:
            text += f". The scheduler extender has not placed pod {turn.pod}: check that kube-scheduler is configured to call it"
        return Refused(text)

    def _holders_of(self, uuid: str) -> Hashable:
        card = self.inventory.by_uuid.get(uuid) if self.inventory else None
        held = self.holders.held()
        return card and card.usable, frozenset(held.memory.get(uuid, ())), held.whole.get(uuid)

    def _pod_name(self, uid: str) -> str:
        name = self.holders.name(uid)
        return f"pod {name}" if name else f"the pod with UID {uid}" if uid else "a pod admitted just now"


def cordons(text: str, card: Card) -> bool:
    """Whether this names the card."""
    words = {word.strip() for word in text.split(",")}
    return bool(words & {str(card.index), card.uuid, "all"})

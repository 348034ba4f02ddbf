# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers to kubelet's two questions: which ids it should give, and what a container with these ids is told. No I/O.

kubelet asks for one container after the other and knows which ids of a resource are free. What it does not know, and
what is decided here: that both resources mean the same cards, and which card the scheduler chose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.choice import Offer, choose_cards, choose_units
from gpushare_runtime.device_plugin.holders import Held, Holders
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.turns import Turn, find_turn
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.quantity import unit_id

_PLACE_ANEW: Final = "delete the pod so that the scheduler places it anew"


class Refused(Exception):
    """An allocation that cannot be; the text reaches the user in the pod's status."""


@dataclass(frozen=True)
class Granted:
    """The answer to Allocate. steered: whether these are the cards that the scheduler chose, None if it chose none."""

    environment: Mapping[str, str]
    cards: tuple[Card, ...]
    turn: Turn | None
    steered: bool | None


class NodeState:
    """This node's cards, its pods, and who holds what. Used from one event loop only."""

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        self.pods = pods
        self.holders = Holders(pods, clock)
        self.inventory: Inventory | None = None
        self.inventory_changes = Changes()
        self._slots: dict[str, tuple[Card, int]] = {}
        self._preferred: dict[str, deque[tuple[frozenset[str], Turn | None]]] = {}
        self._refused: set[str] = set()

    def set_inventory(self, inventory: Inventory) -> bool:
        """The cards as read now; whether they differ from before."""
        if inventory == self.inventory:
            return False
        self.inventory = inventory
        self._slots = {unit_id(c.uuid, slot): (c, slot) for c in inventory.cards for slot in range(c.units)}
        self.inventory_changes.notify()
        return True

    def devices(self, resource: str) -> list[tuple[str, bool]]:
        """Every id of the resource, and whether it may be given."""
        if resource == protocol.RESOURCE_MEMORY:
            return [(device_id, card.usable) for device_id, (card, _) in self._slots.items()]
        return [(card.uuid, card.usable) for card in (self.inventory.cards if self.inventory else ())]

    def turn(self, resource: str, size: int, *, late: bool = False) -> Turn | None:
        """The container that a question for `size` ids is about; None if no such pod is known (yet)."""
        return find_turn(self.pods, self.holders.served(), resource, size, refused=self._refused, late=late)

    def prefer(self, resource: str, available: Collection[str], must: Collection[str], size: int) -> tuple[list[str], Turn | None]:
        """The ids that kubelet should give, and to whom it seems to give them. Refused if the cards cannot serve that.

        available: all ids that kubelet has free, `must` (kept from an init container of the same pod) included.
        """
        free = set(available)
        self.holders.free(resource, free.difference(must))
        turn = self.turn(resource, size) or self.turn(resource, size, late=True)
        choose = choose_cards if resource == protocol.RESOURCE_CARDS else choose_units
        ids = choose(self._offers(resource, free, turn), size, must, turn.ask.cards if turn else {})
        if ids is None:
            raise self._refuse(turn, self._shortage(resource, size, free))
        self._preferred.setdefault(resource, deque(maxlen=8)).append((frozenset(ids), turn))
        return ids, turn

    def allocate(self, resource: str, ids: Collection[str]) -> Granted:
        """What a container with these ids is told. Refused if they mean a card that it must not have."""
        given = frozenset(ids)
        turn = self._whose(resource, given)
        cards = self._cards_of(resource, given, turn)
        held = self.holders.held()
        for card in cards:
            why = self._unavailable(resource, card, held)
            if why:
                raise self._refuse(turn, f"{resource}: {_name(card)} {why}; {_PLACE_ANEW}")
        self.holders.give(resource, given, turn)
        return _answer(resource, given, cards, turn)

    def _whose(self, resource: str, ids: frozenset[str]) -> Turn | None:
        remembered = self._preferred.get(resource, deque())
        for item in remembered:
            if item[0] == ids:
                remembered.remove(item)
                return item[1]
        # No question came before: kubelet reuses the ids of an init container, of the pod that is half served.
        return self.turn(resource, len(ids))

    def _cards_of(self, resource: str, ids: frozenset[str], turn: Turn | None) -> tuple[Card, ...]:
        known: Mapping[str, Card] = self.inventory.by_uuid if self.inventory else {}
        if resource == protocol.RESOURCE_MEMORY:
            known = {i: self._slots[i][0] for i in ids if i in self._slots}
        unknown = sorted(i for i in ids if i not in known)
        if unknown or not ids:
            found = f"id {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") if unknown else "no id"
            cards = ", ".join(_name(card) for card in self.inventory.cards) if self.inventory else ""
            raise self._refuse(
                turn, f"{resource}: kubelet gives {found}, of no card in this node ({cards or 'which has none'}); {_PLACE_ANEW}"
            )
        units: dict[Card, int] = {}
        for i in ids:
            units[known[i]] = units.get(known[i], 0) + 1
        if resource == protocol.RESOURCE_MEMORY and len(units) > 1:
            parts = ", ".join(f"{units[card]} of {_name(card)}" for card in sorted(units, key=lambda c: c.index))
            raise self._refuse(
                turn, f"{resource}: kubelet gives one container units of {len(units)} cards ({parts}), it needs one card; {_PLACE_ANEW}"
            )
        return tuple(sorted(units, key=lambda card: card.index))

    def _offers(self, resource: str, free: Collection[str], turn: Turn | None) -> list[Offer]:
        held, promised = self.holders.held(), self._promised(turn)
        of_card: dict[str, list[tuple[int, str]]] = {}
        if resource == protocol.RESOURCE_CARDS:
            of_card = {uuid: [(0, uuid)] for uuid in free}
        else:
            for device_id in free:
                if device_id in self._slots:
                    card, slot = self._slots[device_id]
                    of_card.setdefault(card.uuid, []).append((slot, device_id))
        return [
            Offer(card, [i for _, i in sorted(of_card[card.uuid])], promised.get(card.index, 0))
            for card in (self.inventory.cards if self.inventory else ())
            if card.uuid in of_card and not self._unavailable(resource, card, held)
        ]

    def _promised(self, turn: Turn | None) -> dict[int, int]:
        """Card index → units of pods that the scheduler placed and kubelet is still to serve, without the one whose turn it is."""
        promised: dict[int, int] = {}
        served = self.holders.served()
        for pod in self.pods:
            for ask in pod.asks if pod.waiting else ():
                key = pod.uid, ask.container, ask.resource
                if key not in served and not (turn and turn.key == key):
                    for index, units in ask.cards.items():
                        promised[index] = promised.get(index, 0) + units
        return promised

    def _unavailable(self, resource: str, card: Card, held: Held) -> str:
        """Why nothing of this card may be given as this resource; "" if it may."""
        if not card.usable:
            return f"is not usable ({card.health})"
        if resource == protocol.RESOURCE_MEMORY and card.uuid in held.whole:
            return f"is held whole by {self._pod_name(held.whole[card.uuid])}"
        if resource == protocol.RESOURCE_CARDS and card.uuid in held.memory:
            return f"has memory held by {', '.join(sorted(map(self._pod_name, held.memory[card.uuid])))}"
        return ""

    def _shortage(self, resource: str, size: int, free: Collection[str]) -> str:
        if self.inventory is None or not self.inventory.cards:
            return f"{resource}: this node has no cards that answer; see the status of gpushare-device-plugin on it"
        held = self.holders.held()
        count: dict[str, int] = {}
        for device_id in free:
            uuid = device_id if resource == protocol.RESOURCE_CARDS else self._slots[device_id][0].uuid if device_id in self._slots else ""
            count[uuid] = count.get(uuid, 0) + 1
        cards = []
        for card in self.inventory.cards:
            left = count.get(card.uuid, 0)
            has = f"has {left} free" if resource == protocol.RESOURCE_MEMORY else "is free" if left else "is taken"
            cards.append(f"card {card.index} {self._unavailable(resource, card, held) or has}")
        if resource == protocol.RESOURCE_MEMORY:
            wanted = f"{size} units of {self.inventory.unit} on one card"
        else:
            wanted = f"{size} whole {'card' if size == 1 else 'cards'}"
        return f"{resource}: asked for {wanted}, but {', '.join(cards)}; {_PLACE_ANEW}"

    def _refuse(self, turn: Turn | None, text: str) -> Refused:
        if turn is None:
            return Refused(text)
        self._refused = {pod.uid for pod in self.pods if pod.uid in self._refused or pod.uid == turn.pod.uid}
        if turn.pod.allocation is None:
            text += f". The scheduler extender has not placed pod {turn.pod}: check that kube-scheduler is configured to call it"
        return Refused(text)

    def _pod_name(self, uid: str) -> str:
        pod = self.pods.get(uid)
        return f"pod {pod}" if pod else f"the pod with UID {uid}" if uid else "a pod admitted just now"


def _name(card: Card) -> str:
    return f"card {card.index} ({card.uuid})"


def _answer(resource: str, ids: Collection[str], cards: tuple[Card, ...], turn: Turn | None) -> Granted:
    units = len(ids) if resource == protocol.RESOURCE_MEMORY else sum(card.units for card in cards)
    pod_units, steered = units, None
    if turn is not None:
        wanted = turn.ask.cards
        if turn.pod.allocation is not None:
            pod_units = turn.pod.allocation.units - sum(wanted.values()) + units
        elif turn.pod.request is not None and resource == protocol.RESOURCE_MEMORY:
            pod_units = turn.pod.request.units
        steered = set(wanted) == {card.index for card in cards} if wanted else None
    environment = {
        protocol.ENV_VISIBLE_DEVICES: ",".join(card.uuid for card in cards),
        protocol.ENV_INDEX: str(cards[0].index),
        protocol.ENV_CARD_UNITS: str(cards[0].units),
        protocol.ENV_CONTAINER_UNITS: str(units),
        protocol.ENV_POD_UNITS: str(pod_units),
    }
    return Granted(environment, cards, turn, steered)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers to kubelet's questions: which ids it should give, and what a container with these ids is told.

kubelet asks for one container after the other and knows which ids of a resource are free. What it does not know, and
what is decided here: that both resources mean the same cards, which card the scheduler chose, and which ids processes still
hold. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Set
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.answer import Granted, grant
from gpushare_runtime.device_plugin.checkpoint import Key
from gpushare_runtime.device_plugin.choice import Offer, choose_cards, choose_units, take_chosen
from gpushare_runtime.device_plugin.holders import Holders
from gpushare_runtime.device_plugin.holdings import Held
from gpushare_runtime.device_plugin.node_cards import NodeCards
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.refusals import Refusals
from gpushare_runtime.device_plugin.shares import cards_of
from gpushare_runtime.device_plugin.turns import Turn, allowed_cards, find_turn
from gpushare_runtime.device_plugin.words import card_name, shortage, unavailable, wanted_words
from gpushare_runtime.inventory import Card

PLACE_ANEW: Final = "delete the pod so that the scheduler places it anew"


class Refused(Exception):
    """An allocation or a start that cannot be; the text reaches the user in the pod's status."""


class NodeState(NodeCards):
    """This node's cards, its pods, and who holds what. Used from one event loop only.

    clock: seconds that only grow; now: Unix time; live: the UIDs of the pods that have a process on this host, asked only
    when some pod may have outlived kubelet's memory.
    """

    def __init__(self, pods: PodTable, clock: Callable[[], float], now: Callable[[], float], live: Callable[[], Set[str]]) -> None:
        super().__init__(Holders(pods, clock))
        self.pods = pods
        self.refusals = Refusals(now, self._holders_of)
        self._live = live
        self._preferred: dict[str, deque[tuple[frozenset[str], Turn | None]]] = {}
        self._refused: set[str] = set()

    def settle(self) -> None:
        """Release what pods held that are over and have no process left. Looks at all processes of the host if any is over."""
        self.holders.settle(self._live)

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
        self.holders.free(resource, free.difference(must) if must else free)
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
        wanted = turn.ask.cards if turn else {}
        if resource == protocol.RESOURCE_CARDS:
            offers = self._offers(resource, free, must, turn)
            of_pod = turn.pod.allocation.by_card if turn and turn.pod.allocation else {}
            return choose_cards(offers, size, must, wanted, of_pod), offers
        # Nearly always the chosen cards are there, and what the others have need not be known.
        chosen = take_chosen(self._offers(resource, free, must, turn, wanted), size, must, wanted) if wanted else None
        if chosen is not None:
            return chosen, []
        offers = self._offers(resource, free, must, turn)
        return choose_units(offers, size, must, wanted, turn.ask.spread if turn else 1), offers

    def _as_wanted(self, resource: str, ids: Collection[str], turn: Turn | None) -> bool:
        by_uuid = self.inventory.by_uuid if self.inventory else {}
        return turn is not None and {by_uuid[uuid].index for uuid in cards_of(resource, ids)} == turn.ask.cards.keys()

    def _offers(
        self, resource: str, free: Collection[str], must: Collection[str], turn: Turn | None, chosen: Collection[int] = ()
    ) -> list[Offer]:
        """chosen: only these cards (index), and nothing of what ranks them among others."""
        held = self.holders.held()
        taken = self.holders.leaving(resource, but=turn.pod.uid if turn else "").keys() - must
        promised = {} if chosen else self._promised(turn)
        allowed = None if chosen else allowed_cards(turn, list(self.pods), self._got())
        offers = []
        for card in self.inventory.cards if self.inventory else ():
            if (chosen and card.index not in chosen) or self._unavailable(resource, card, held):
                continue
            all_ids = [card.uuid] if resource == protocol.RESOURCE_CARDS else self._ids[card.uuid]
            ids = [i for i in all_ids if i in free and i not in taken] if taken else [i for i in all_ids if i in free]
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
            raise self._refuse(turn, f"{resource}: {conflict}; {PLACE_ANEW}")
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
        known = self.card_of(resource)
        unknown = sorted(i for i in ids if i not in known)
        if unknown or not ids:
            found = f"id {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") if unknown else "no id"
            cards = ", ".join(card_name(card) for card in self.inventory.cards) if self.inventory else ""
            raise self._refuse(
                turn, f"{resource}: kubelet gives {found}, of no card in this node ({cards or 'which has none'}); {PLACE_ANEW}"
            )
        units: dict[Card, int] = {}
        for i in ids:
            units[known[i]] = units.get(known[i], 0) + 1
        spread = turn.ask.spread if turn else 1
        if resource == protocol.RESOURCE_MEMORY and (len(units) != spread or len(set(units.values())) != 1):
            parts = ", ".join(f"{units[card]} of {card_name(card)}" for card in sorted(units, key=lambda c: c.index))
            needs = "one card" if spread == 1 else f"the same on each of {spread} cards"
            raise self._refuse(
                turn, f"{resource}: kubelet gives one container units of {len(units)} cards ({parts}), it needs {needs}; {PLACE_ANEW}"
            )
        return tuple(sorted(units, key=lambda card: card.index))

    def _conflict(self, resource: str, ids: frozenset[str], cards: Collection[Card], turn: Turn | None) -> str:
        """Why these ids cannot be had now, "" if they can."""
        held = self.holders.held()
        for card in cards:
            why = self._unavailable(resource, card, held)
            if why:
                return f"{card_name(card)} {why}"
        return self.still_used(resource, ids, {turn.pod.uid} if turn else set())

    def still_used(self, resource: str, ids: frozenset[str], owners: Collection[str]) -> str:
        """Which of the ids others' processes still hold, though kubelet has freed it: with the pod object, or with its record."""
        for device_id, uid in self.holders.leaving(resource).items():
            if device_id in ids and uid not in owners:
                return f"id {device_id!r} is still held by processes of {self.pod_name(uid)}, though kubelet has freed it"
        return ""

    # In words.

    def _unavailable(self, resource: str, card: Card, held: Held) -> str:
        return unavailable(resource, card, held, self.pod_name)

    def _shortage(self, resource: str, size: int, offers: Collection[Offer], turn: Turn | None) -> str:
        if self.inventory is None or not self.inventory.cards:
            return f"{resource}: this node has no cards that answer; see the status of gpushare-device-plugin on it"
        leaving: dict[str, set[str]] = {}
        for device_id, uid in self.holders.leaving(resource).items():
            for uuid in cards_of(resource, [device_id]):
                leaving.setdefault(uuid, set()).add(self.pod_name(uid))
        held = self.holders.held()
        why = {card.index: self._unavailable(resource, card, held) for card in self.inventory.cards}
        asked = wanted_words(resource, size, turn.ask.spread if turn else 1, self.inventory)
        return f"{resource}: asked for {asked}, but {shortage(resource, self.inventory, offers, why, leaving)}; {PLACE_ANEW}"

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

    def pod_name(self, uid: str) -> str:
        name = self.holders.name(uid)
        return f"pod {name}" if name else f"the pod with UID {uid}" if uid else "a pod admitted just now"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers to kubelet's questions: which ids to give, what a container with these ids gets, and whether it may start with them.

kubelet asks for one container after the other and knows which ids of a resource are free. What it does not know, and
what is decided here: that both resources mean the same cards, which card the scheduler chose, and which ids processes still
hold. Before every start it waits at most 30 s for the answer, and tries a rejected start again and again. What was rejected is
remembered, so that the scheduler side holds that card back for that size. No I/O; clocks are passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.constraints import Labels, selects
from gpushare_runtime.core.inventory import HEALTHY, Card
from gpushare_runtime.core.node_report import Refusal
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.candidates import Offer, choose_cards, choose_units, take_chosen
from gpushare_runtime.device_plugin.node.devices import NodeCards
from gpushare_runtime.device_plugin.node.ids import Key, cards_of
from gpushare_runtime.device_plugin.node.local_pods import Ask, LocalPod, PodTable
from gpushare_runtime.device_plugin.node.messages import card_name, shortage, unavailable, wanted_words
from gpushare_runtime.device_plugin.node.pending import Turn, allowed_cards, find_turn
from gpushare_runtime.device_plugin.node.usage import Held, Holders, Processes

# Longer than a controller needs to make the next pod, which is when the scheduler would choose the card again.
LIFETIME: Final = 60.0
# Clocks differ by less from one look to the next unless one was set.
_SET: Final = 2.0


class Refusals:
    """Each ends with its time, or as soon as who holds the card has changed.

    clock: seconds that only grow; now: Unix time, which may be set; state: who holds a card now.
    """

    def __init__(self, clock: Callable[[], float], now: Callable[[], float], state: Callable[[str], Hashable]) -> None:
        self.changes = Changes()
        self._clock = clock
        self._now = now
        self._state = state
        self._known: dict[tuple[str, str], tuple[Refusal, float, Hashable]] = {}

    def add(self, uid: str, card: str, units: int, *, whole: bool) -> None:
        refusal = Refusal(uid, card, units, self._now() + LIFETIME, whole)
        self._known[uid, card] = refusal, self._clock() + LIFETIME, self._state(card)
        self.changes.notify()

    def current(self) -> list[Refusal]:
        """Those that still hold, oldest first."""
        clock, now = self._clock(), self._now()
        kept = {}
        for key, (refusal, end, state) in self._known.items():
            if end > clock and self._state(refusal.card) == state:
                until = now + end - clock
                # What is published changes only where the host's time was set.
                kept[key] = (replace(refusal, until=until) if abs(until - refusal.until) > _SET else refusal), end, state
        self._known = kept
        return [refusal for refusal, _, _ in kept.values()]


@dataclass(frozen=True)
class Granted:
    """The answer to Allocate. steered: whether these are the cards that the scheduler chose, None if it chose none."""

    environment: Mapping[str, str]
    cards: tuple[Card, ...]
    turn: Turn | None
    steered: bool | None


def grant(resource: str, ids: Collection[str], cards: tuple[Card, ...], turn: Turn | None) -> Granted:
    """cards: those of the ids, by index."""
    units = len(ids) if resource == protocol.RESOURCE_MEMORY else sum(card.units for card in cards)
    pod_units, steered = units, None
    if turn is not None:
        wanted = turn.ask.cards
        if turn.pod.allocation is not None:
            pod_units = turn.pod.allocation.units
            if resource == protocol.RESOURCE_CARDS:
                # Other cards than chosen may be of another size.
                pod_units += units - (sum(wanted.values()) or units)
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


_TRIES_AGAIN: Final = "kubelet tries to start the container again and again"


def may_start(node: NodeState, resource: str, ids: Collection[str]) -> bool:
    """Whether these ids are as they were given, and held from now on. Refused if a container with them must not run now."""
    given = frozenset(ids)
    doubtful = node.holders.review()
    known = node.card_of(resource)
    if node.inventory and not given <= known.keys():
        raise Refused(f"{resource}: {len(given - known.keys())} of its ids are of no card in this node; {PLACE_ANEW}")
    cards = sorted({known[i] for i in given if i in known}, key=lambda c: c.index)
    for card in cards:
        if card.health != HEALTHY:
            raise Refused(f"{resource}: {card_name(card)} is not usable ({card.health}); {_TRIES_AGAIN}")
    owners = node.holders.with_ids(resource, given)
    recorded = [key for key in owners if not node.holders.ended(key[0])]
    _check_shape(node, resource, cards, recorded)
    if node.still_used(resource, given, recorded) and doubtful:
        node.settle()
        recorded = [key for key in recorded if key in node.holders.snapshot()]
    if used := node.still_used(resource, given, recorded):
        raise Refused(f"{resource}: {used}; {_TRIES_AGAIN}")
    if not recorded:
        # As it is now: what was settled meanwhile is nobody's any more, and may be somebody else's.
        _check_overlap(node, resource, given)
        if others := node.taken(resource, cards, {uid for uid, _, _ in owners}):
            raise Refused(f"{resource}: {others}; {PLACE_ANEW}")
        if not owners:
            node.holders.give(resource, given, None)
    for uid in {key[0] for key in recorded or owners}:
        node.holders.starts([key for key in recorded or owners if key[0] == uid])
    return bool(recorded)


def _held(node: NodeState, resource: str) -> Mapping[Key, frozenset[str]]:
    return {key: of for key, of in node.holders.snapshot().items() if key[2] == resource}


def _check_overlap(node: NodeState, resource: str, ids: frozenset[str]) -> None:
    """Ids that nobody has may be of a record that was lost; those that another container has are never this one's."""
    for (uid, container, _), of in _held(node, resource).items():
        if (shared := ids & of) and not _of_init(node, uid, resource, len(ids)):
            raise Refused(
                f"{resource}: {len(shared)} of its {len(ids)} ids ({min(shared)} …) are those of container {container} of "
                f"{node.pod_name(uid)} by kubelet's record; restart kubelet on this node if this stays, and {PLACE_ANEW}"
            )


def _of_init(node: NodeState, uid: str, resource: str, size: int) -> bool:
    """Whether they may be those of an ordinary init container of that pod: later ones have them after it, and podresources lacks it."""
    pod = node.pods.get(uid)
    if pod is None or pod.request is None:
        return False
    before = {c.name for c in pod.request.containers if not c.keeps}
    served = node.holders.served()
    asks = [ask for ask in pod.asks if ask.container in before and (ask.resource, ask.size) == (resource, size)]
    return any((uid, ask.container, resource) not in served for ask in asks)


def _check_shape(node: NodeState, resource: str, cards: Collection[Card], recorded: Collection[Key]) -> None:
    """Only now is it certain whose the ids are: in Allocate they may have been meant for a pod of the same size."""
    for uid, container, _ in recorded:
        pod = node.pods.get(uid)
        ask = next((a for a in pod.asks if (a.container, a.resource) == (container, resource)), None) if pod else None
        if pod is None or ask is None:
            continue
        if resource == protocol.RESOURCE_MEMORY and len(cards) != ask.spread:
            raise Refused(
                f"{resource}: container {container} of pod {pod} has units of {len(cards)} cards, "
                f"it needs {'one card' if ask.spread == 1 else f'{ask.spread} cards'}; {PLACE_ANEW}"
            )
        for card in cards:
            if why := _against(node, pod, card):
                raise Refused(f"{resource}: container {container} of pod {pod} has {card_name(card)}, {why}; {PLACE_ANEW}")


def _against(node: NodeState, pod: LocalPod, card: Card) -> str:
    """Why the pod's own rules, or those of a pod on the card, keep it off this card; "" if they do not."""
    if pod.request is None:
        return ""
    rules, cards = pod.request.rules, node.inventory.cards if node.inventory else ()
    # Where all are alike the node's label may be what the pod names, and the model tells no card from another.
    models = {other.model for other in cards}
    about = rules if len(models) > 1 else replace(rules, models=(), models_refused=())
    if about.about_cards and not about.accept(card.uuid, [card.model]):
        return "which its own annotations refuse"
    if pod.phase != "Pending":
        # Who was there first stays.
        return ""
    for (uid, _, _), held in node.holders.cards().items():
        other = node.pods.get(uid)
        if other is None or card.uuid not in held or uid == pod.uid or other.namespace != pod.namespace or other.request is None:
            continue
        if selects(rules.not_with, tuple(other.labels.items())):
            return f"beside pod {other}, with which it is not to be"
        if selects(other.request.rules.not_with, tuple(pod.labels.items())):
            return f"beside pod {other}, which is not to be with it"
    return _without_company(node, pod, card, rules.same_card_as) if rules.same_card_as else ""


def _without_company(node: NodeState, pod: LocalPod, card: Card, company: Labels) -> str:
    """Why the pod is not on this card with those that it wants to be with; "" if it is, or if it had the choice.

    It had none where one was there before it was placed. With whom it was placed may be gone by now: then the card is right.
    """
    held: dict[str, set[str]] = {}
    for (uid, _, _), cards in node.holders.cards().items():
        held.setdefault(uid, set()).update(cards)
    first = ""
    for other in node.pods.seen():
        if other.uid == pod.uid or other.namespace != pod.namespace or not selects(company, tuple(other.labels.items())):
            continue
        if card.uuid in held.get(other.uid, ()) or (other.allocation and card.index in other.allocation.by_card):
            return ""
        if other.uid in held and 0 < other.placed < pod.placed:
            first = first or f"not beside pod {other}, with which it is to be"
    return first


PLACE_ANEW: Final = "delete the pod so that the scheduler places it anew"
# kubelet asks for a few containers at once at most, and takes what it was told at once.
_REMEMBERED: Final = 8


class Refused(Exception):
    """An allocation or a start that cannot be; the text reaches the user in the pod's status."""


class NodeState(NodeCards):
    """This node's cards, its pods, and who holds what. Used from one event loop only.

    clock: seconds that only grow; now: Unix time; processes: of this host, asked only when some pod may have outlived kubelet's
    memory.
    """

    def __init__(self, pods: PodTable, clock: Callable[[], float], now: Callable[[], float], processes: Processes) -> None:
        super().__init__(Holders(pods, clock))
        self.pods = pods
        self.refusals = Refusals(clock, now, self._holders_of)
        self._processes = processes
        self._preferred: dict[str, OrderedDict[frozenset[str], Turn | None]] = {}
        self._refused: set[str] = set()

    def settle(self) -> None:
        """Release what pods held that are over and have no process left. Looks at processes if any is over."""
        self.holders.settle(self._processes.pods)

    # GetPreferredAllocation.

    def turn(self, resource: str, size: int, *, late: bool = False) -> Turn | None:
        """The container that a question for `size` ids is about; None if no such pod is known (yet)."""
        gone = self.holders.forgotten()
        known, served = [pod for pod in self.pods if pod.uid not in gone and self._asks(pod)], self.holders.served()
        turn = find_turn(known, served, resource, size, refused=self._refused, late=late)
        # Whose record is lost and who lives is not asked about, whatever the API server says of it at the moment.
        while turn and self.holders.lost(turn.pod.uid) and turn.key in self.holders.leaving(resource) and self._lives(turn.key):
            served.add(turn.key)
            turn = find_turn(known, served, resource, size, refused=self._refused, late=late)
        return turn

    def _asks(self, pod: LocalPod) -> bool:
        """Whether kubelet may be about to ask for it. Of a static pod it makes the copy, which anybody may forge, once it has asked."""
        return not pod.static or self.holders.begun(pod.uid)

    def _lives(self, key: Key) -> bool:
        """Whether what this container holds without kubelet's knowledge may be in use: of a pod that is over by any of its processes."""
        uid, container, _ = key
        if not self.holders.lost(uid) or self.holders.starting(key):
            return True
        running = self._processes.containers(uid)
        return running is None or container in running

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
        remembered = self._preferred.setdefault(resource, OrderedDict())
        remembered[frozenset(ids)] = turn
        remembered.move_to_end(frozenset(ids))
        if len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        return ids, turn

    def _choose(
        self, resource: str, free: Collection[str], must: Collection[str], size: int, turn: Turn | None
    ) -> tuple[list[str] | None, list[Offer]]:
        wanted = self._wanted(turn.pod, turn.ask) if turn else {}
        if resource == protocol.RESOURCE_CARDS:
            offers = self._offers(resource, free, must, turn)
            of_pod = turn.pod.allocation.by_card if turn and turn.pod.allocation else {}
            return choose_cards(offers, size, must, wanted, of_pod), offers
        # Nearly always the chosen cards are there, and what the others have need not be known.
        room, there = self._room(turn)
        chosen = take_chosen(self._offers(resource, free, must, turn, wanted), size, must, wanted, there) if wanted else None
        if chosen is not None:
            return chosen, []
        offers = self._offers(resource, free, must, turn)
        return choose_units(offers, size, must, wanted, turn.ask.spread if turn else 1, room), offers

    def _room(self, turn: Turn | None) -> tuple[int, int]:
        """Units to be free for all containers of a pod before the first of them has any: on any card, and on those chosen for this one."""
        if turn is None or turn.pod.request is None or self.holders.begun(turn.pod.uid):
            return 0, 0
        chosen = turn.pod.allocation.by_card if turn.pod.allocation else {}
        return turn.pod.request.per_card, max((chosen.get(index, 0) for index in turn.ask.cards), default=0)

    def _wanted(self, pod: LocalPod, ask: Ask) -> Mapping[int, int]:
        """Card index → units that this container is to get: as the scheduler chose, or where its pod is already, if that is elsewhere."""
        has = self._has(pod, ask)
        return dict.fromkeys(sorted(has), ask.size // ask.spread) if has else ask.cards

    def _has(self, pod: LocalPod, ask: Ask) -> Collection[int]:
        """The cards (index) that this container shares with those of its pod that have theirs; none if its own choice stands.

        All containers of a pod share its cards. Others than the scheduler chose are got when kubelet asks for pods in another
        order than they were seen, or when nobody chose.
        """
        if ask.resource != protocol.RESOURCE_MEMORY:
            return ()
        got, chosen = self._got(), {(other.container, other.resource): other.cards for other in pod.asks}
        others = {
            key: frozenset(cards)
            for key, cards in got.items()
            if key[0] == pod.uid and key[2] == ask.resource and key[1] != ask.container and len(cards) == ask.spread
        }
        moved = [cards for (_, name, resource), cards in others.items() if cards != (chosen.get((name, resource)) or {}).keys()]
        return moved[0] if moved and all(cards == moved[0] for cards in moved) else ()

    def _as_wanted(self, resource: str, ids: Collection[str], turn: Turn | None) -> bool:
        by_uuid = self.inventory.by_uuid if self.inventory else {}
        if turn is None:
            return False
        return {by_uuid[uuid].index for uuid in cards_of(resource, ids)} == self._wanted(turn.pod, turn.ask).keys()

    def _offers(
        self, resource: str, free: Collection[str], must: Collection[str], turn: Turn | None, chosen: Collection[int] = ()
    ) -> list[Offer]:
        """chosen: only these cards (index), and nothing of what ranks them among others."""
        held = self.holders.held()
        mine = self._own(turn)
        taken = frozenset().union(*self.holders.leaving(resource).values()).difference(mine, must)
        promised = {} if chosen else self._promised(turn)
        allowed = None if chosen else self._allowed(turn)
        offers = []
        for card in self.inventory.cards if self.inventory else ():
            if (chosen and card.index not in chosen) or self._unavailable(resource, card, held):
                continue
            all_ids = [card.uuid] if resource == protocol.RESOURCE_CARDS else self._ids[card.uuid]
            ids = [i for i in all_ids if i in free and i not in taken] if taken else [i for i in all_ids if i in free]
            if mine:
                # Its former ones first: others of its size may have lost theirs as well.
                ids.sort(key=lambda i: i not in mine)
            if ids:
                offers.append(Offer(card, ids, promised.get(card.index, 0), allowed is None or card.index in allowed))
        return offers

    def _own(self, turn: Turn | None) -> frozenset[str]:
        """The ids that a container had before kubelet lost its record, if it cannot be using them."""
        own = self.holders.own(turn.key) if turn else frozenset()
        return own if own and turn and not self._lives(turn.key) else frozenset()

    def _allowed(self, turn: Turn | None) -> Collection[int] | None:
        has = self._has(turn.pod, turn.ask) if turn else ()
        return has or allowed_cards(turn, list(self.pods), self._got())

    def _promised(self, turn: Turn | None) -> dict[int, int]:
        """Card index → units of pods that the scheduler placed and kubelet is still to serve, without the one whose turn it is."""
        promised: dict[int, int] = {}
        served = self.holders.served()
        for pod in self.pods:
            for ask in pod.asks if pod.waiting and pod.uid not in self._refused and self._asks(pod) else ():
                key = pod.uid, ask.container, ask.resource
                if key not in served and not (turn and turn.key == key):
                    for index, units in self._wanted(pod, ask).items():
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
        remembered = self._preferred.get(resource, OrderedDict())
        if ids in remembered:
            return remembered.pop(ids)
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
        return self.still_used(resource, ids, {turn.key} if turn else set())

    def still_used(self, resource: str, ids: frozenset[str], owners: Collection[Key]) -> str:
        """Which of the ids others' processes still hold, though kubelet has freed it: with the pod object, or with its record.

        owners: the containers that are to have them. Those of one pod have an init container's ids one after the other.
        """
        pods = {uid for uid, _, _ in owners}
        for key, of in self.holders.leaving(resource).items():
            shared = of & ids
            passed_on = key[0] in pods and not self.holders.lost(key[0])
            if shared and key not in owners and not passed_on and self._lives(key):
                return f"id {min(shared)!r} is still held by processes of {self.pod_name(key[0])}, though kubelet has freed it"
        return ""

    def taken(self, resource: str, cards: Collection[Card], owners: Collection[str]) -> str:
        """Which of these cards somebody else has by the other resource, "" if none. owners: UIDs."""
        held = self.holders.held()
        for card in cards:
            others = {held.whole[card.uuid]} if card.uuid in held.whole else set()
            if resource == protocol.RESOURCE_CARDS:
                others = set(held.memory.get(card.uuid, ()))
            if strangers := sorted(others.difference(owners)):
                return f"{card_name(card)} is held by {', '.join(map(self.pod_name, strangers))}"
        return ""

    # In words.

    def _unavailable(self, resource: str, card: Card, held: Held) -> str:
        return unavailable(resource, card, held, self.pod_name)

    def _shortage(self, resource: str, size: int, offers: Collection[Offer], turn: Turn | None) -> str:
        if self.inventory is None or not self.inventory.cards:
            return f"{resource}: this node has no cards that answer; see the status of gpushare-device-plugin on it"
        leaving: dict[str, set[str]] = {}
        for (uid, _, _), ids in self.holders.leaving(resource).items():
            for uuid in cards_of(resource, ids):
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

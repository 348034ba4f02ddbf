# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each pod holds, of both resources, as far as it is known; only questions, `holders` says how it changes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.checkpoint import Entry, Key
from gpushare_runtime.device_plugin.pods import LocalPod, PodTable
from gpushare_runtime.device_plugin.shares import card_of_unit, cards_of
from gpushare_runtime.device_plugin.turns import Turn
from gpushare_runtime.inventory import Inventory

# kubelet writes its checkpoint within milliseconds of an Allocate that it accepted.
_GRANT_LIFETIME: Final = 30.0


@dataclass(frozen=True)
class Grant:
    """Ids given in Allocate that kubelet's checkpoint does not show yet."""

    resource: str
    ids: frozenset[str]
    turn: Turn | None
    at: float


@dataclass(frozen=True)
class Holding:
    """The ids of one resource that one container has. cards: that they are of; listed: kubelet's file has it."""

    ids: frozenset[str]
    cards: Set[str]
    listed: bool = True


@dataclass
class Life:
    """What is known of the end of a pod that is in the table. Times are of the holders' clock.

    seen: since when it is there; dropped: since when kubelet's file does not list something that it did; lost: not because it
    has forgotten the pod; offered: kubelet has offered some of its ids; strange: since when the API server must have shown it and has not;
    over: since when it counts no more, by kubelet or the API server; alive: it had a process at the last look; ran: at a look since
    it was over and since its last start; ended: it is over and no process is left or to come; starts: containers, of which
    kubelet asked to start one (its ids tell no more) → when, and the IDs that they had before.
    """

    seen: float
    dropped: float | None = None
    lost: bool = False
    offered: bool = False
    strange: float | None = None
    over: float | None = None
    alive: bool = False
    ran: bool = False
    ended: bool = False
    starts: dict[tuple[str, ...], tuple[float, list[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """Card UUID → UIDs of the pods that have memory of it; card UUID → UID of the pod that has it whole.

    A UID is "" where ids were given a moment ago and the pod is not known.
    """

    memory: Mapping[str, Collection[str]]
    whole: Mapping[str, str]


class Holdings:
    """Used from one event loop only. entries: kubelet's record; changes: counts every change of who holds what."""

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.changes = Changes()
        self._pods = pods
        self._clock = clock
        self._table: dict[Key, Holding] = {}
        self._lives: dict[str, Life] = {}
        self._names: dict[str, str] = {}
        self._grants: list[Grant] = []

    def _last_seen(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid) or self._pods.removed(uid)

    def _holds(self) -> Iterator[tuple[Key, Holding]]:
        return ((key, holding) for key, holding in self._table.items() if not self._lives[key[0]].ended)

    def _over_holds(self) -> Iterator[tuple[Key, Holding]]:
        """What kubelet may give to others although it is held."""
        return ((key, holding) for key, holding in self._holds() if not holding.listed or self._lives[key[0]].over is not None)

    def held(self) -> Held:
        """By every pod that is not over, or has a process left."""
        memory: dict[str, set[str]] = {}
        whole: dict[str, str] = {}
        for key, holding in self._holds():
            for card in holding.cards:
                if key[2] == protocol.RESOURCE_CARDS:
                    whole[card] = key[0]
                else:
                    memory.setdefault(card, set()).add(key[0])
        for grant in self._recent():
            uid = grant.turn.pod.uid if grant.turn else ""
            for card in cards_of(grant.resource, grant.ids):
                if grant.resource == protocol.RESOURCE_CARDS:
                    whole[card] = uid
                else:
                    memory.setdefault(card, set()).add(uid)
        return Held(memory, whole)

    def leaving(self, resource: str) -> dict[Key, frozenset[str]]:
        """What containers still hold of it although kubelet may offer it."""
        return {key: holding.ids for key, holding in self._over_holds() if key[2] == resource}

    def own(self, key: Key) -> frozenset[str]:
        """The ids that this container had in a record that kubelet has lost, and that no other container has."""
        mine = self._table.get(key)
        if mine is None or mine.listed or not self.lost(key[0]):
            return frozenset()
        return mine.ids.difference(*(holding.ids for other, holding in self._holds() if other != key and other[2] == key[2]))

    def ids_of(self, resource: str, cards: Collection[str], *, outlived: bool = False) -> set[str]:
        """Ids that somebody holds, in containers which have some of these cards; outlived: only by pods that are over."""
        holds = self._over_holds() if outlived else self._holds()
        held = {i for key, of in holds if key[2] == resource and not of.cards.isdisjoint(cards) for i in of.ids}
        return held if outlived else held.union(*(g.ids for g in self._recent() if g.resource == resource))

    def cards(self) -> dict[Key, Collection[str]]:
        """The cards (UUID) that each container has, of pods that are not over."""
        cards: dict[Key, Collection[str]] = {key: holding.cards for key, holding in self._holds() if holding.listed}
        cards.update({g.turn.key: cards_of(g.resource, g.ids) for g in self._recent() if g.turn})
        return cards

    def outlived(self) -> dict[tuple[str, str], frozenset[str]]:
        """(pod UID, resource) → ids that it holds although it is over."""
        ids: dict[tuple[str, str], frozenset[str]] = {}
        for key, holding in self._over_holds():
            ids[key[0], key[2]] = ids.get((key[0], key[2]), frozenset()) | holding.ids
        return ids

    def recorded(self, uid: str, resource: str) -> frozenset[str]:
        """The ids that kubelet's record gives this pod, unless it is over."""
        life = self._lives.get(uid)
        if life is None or life.over is not None:
            return frozenset()
        return frozenset().union(*(of.ids for key, of in self._table.items() if of.listed and key[0] == uid and key[2] == resource))

    def units(self, inventory: Inventory | None, *, outlived: bool = False) -> dict[str, int]:
        """Card UUID → units held; outlived: only by pods that are over."""
        units: dict[str, int] = {}
        for card in inventory.cards if inventory else ():
            whole = self.ids_of(protocol.RESOURCE_CARDS, [card.uuid], outlived=outlived)
            held = self.ids_of(protocol.RESOURCE_MEMORY, [card.uuid], outlived=outlived)
            units[card.uuid] = card.units if card.uuid in whole else sum(card_of_unit(i) == card.uuid for i in held)
        return units

    def lost(self, uid: str) -> bool:
        """Whether kubelet has lost its record of a pod that it still counts."""
        life, pod = self._lives.get(uid), self._pods.get(uid)
        return life is not None and life.lost and pod is not None and pod.active

    def forgotten(self) -> set[str]:
        """UIDs of pods that kubelet no longer counts, whatever the watch still shows."""
        return {uid for uid, life in self._lives.items() if life.offered or (life.dropped is not None and not self.lost(uid))}

    def name(self, uid: str) -> str:
        """Namespace and name of a pod, "" if it was never seen."""
        pod = self._last_seen(uid)
        return str(pod) if pod else self._names.get(uid, "")

    def _recent(self) -> list[Grant]:
        now = self._clock()
        self._grants = [g for g in self._grants if now - g.at < _GRANT_LIFETIME]
        return self._grants

    def served(self) -> set[Key]:
        """(pod UID, container, resource) that have their ids."""
        served = {key for key, holding in self._table.items() if holding.listed}
        served.update(grant.turn.key for grant in self._recent() if grant.turn)
        return served

    def entries_of(self, uid: str) -> list[Entry]:
        """What the containers of this pod have: by kubelet's record, or by the one that it has lost."""
        return [Entry(*key, of.ids) for key, of in self._table.items() if key[0] == uid and (of.listed or self.lost(uid))]

    def begun(self, uid: str) -> bool:
        """Whether a container of this pod has ids, or had."""
        return uid in self._lives or any(grant.turn and grant.turn.pod.uid == uid for grant in self._recent())

    def with_ids(self, resource: str, ids: frozenset[str]) -> list[Key]:
        """The containers that have exactly these ids, also of pods that have ended."""
        return [key for key, holding in self._table.items() if key[2] == resource and holding.ids == ids]

    def ended(self, uid: str) -> bool:
        """Whether what kubelet's file says of this pod holds nothing any more."""
        return self._lives[uid].ended

    def snapshot(self) -> dict[Key, frozenset[str]]:
        """Everything held."""
        return {key: holding.ids for key, holding in self._holds()}

    def names(self) -> Mapping[str, str]:
        """Pod UID → namespace and name, of those that hold something."""
        return self._names

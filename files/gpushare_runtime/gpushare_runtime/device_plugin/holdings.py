# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each pod holds, of both resources, as far as it is known; only questions, `holders` says how it changes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
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
        self._recorded: dict[Key, frozenset[str]] = {}
        # What kubelet's record no longer has, although nobody has seen its processes end.
        self._left: dict[Key, frozenset[str]] = {}
        self._cards: dict[Key, tuple[frozenset[str], set[str]]] = {}
        self._names: dict[str, str] = {}
        self._over_since: dict[str, float] = {}
        self._forgotten: set[str] = set()
        self._lost: set[str] = set()
        self._released: set[str] = set()
        self._alive: frozenset[str] = frozenset()
        self._grants: list[Grant] = []

    def _last_seen(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid) or self._pods.removed(uid)

    def _all_ids(self) -> Iterator[tuple[Key, frozenset[str]]]:
        yield from self._left.items()
        yield from self._recorded.items()

    def _holds(self) -> Iterator[Key]:
        yield from self._left
        yield from (key for key in self._recorded if key[0] not in self._released)

    def held(self) -> Held:
        """By every pod that is not over, or has a process left."""
        memory: dict[str, set[str]] = {}
        whole: dict[str, str] = {}
        for key in self._holds():
            for card in self._cards[key][1]:
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

    def _over_holds(self) -> Iterator[tuple[Key, frozenset[str]]]:
        """What pods hold that are over: by their processes, or until none can come any more."""
        for key, ids in self._all_ids():
            if key in self._left or (key[0] in self._over_since and key[0] not in self._released):
                yield key, ids

    def leaving(self, resource: str, *, but: str = "") -> dict[str, str]:
        """id → UID of the pod that still holds it although kubelet may offer it; without those that the pod `but` has lost."""
        own = self._own(but, resource)
        return {i: key[0] for key, ids in self._over_holds() if key[2] == resource for i in ids if i not in own}

    def _own(self, uid: str, resource: str) -> frozenset[str]:
        if uid not in self._lost:
            return frozenset()
        return frozenset().union(*(ids for key, ids in self._left.items() if key[0] == uid and key[2] == resource))

    def ids_of(self, resource: str, cards: Collection[str], *, outlived: bool = False) -> set[str]:
        """Ids that somebody holds, in containers which have some of these cards; outlived: only by pods that are over."""
        holds = self._over_holds() if outlived else ((key, ids) for key, ids in self._all_ids() if key[0] not in self._released)
        held = {i for key, ids in holds if key[2] == resource and not self._cards[key][1].isdisjoint(cards) for i in ids}
        return held if outlived else held.union(*(g.ids for g in self._recent() if g.resource == resource))

    def cards(self) -> dict[Key, Collection[str]]:
        """The cards (UUID) that each container has, of pods that are not over."""
        cards: dict[Key, Collection[str]] = {key: self._cards[key][1] for key in self._recorded if key[0] not in self._released}
        cards.update({g.turn.key: cards_of(g.resource, g.ids) for g in self._recent() if g.turn})
        return cards

    def outlived(self) -> dict[tuple[str, str], frozenset[str]]:
        """(pod UID, resource) → ids that it holds although it is over."""
        ids: dict[tuple[str, str], frozenset[str]] = {}
        for key, of in self._over_holds():
            ids[key[0], key[2]] = ids.get((key[0], key[2]), frozenset()) | of
        return ids

    def recorded(self, uid: str, resource: str) -> frozenset[str]:
        """The ids that kubelet's record gives this pod, unless it is over."""
        if uid in self._released or uid in self._over_since:
            return frozenset()
        return frozenset().union(*(ids for key, ids in self._recorded.items() if key[0] == uid and key[2] == resource))

    def units(self, inventory: Inventory | None, *, outlived: bool = False) -> dict[str, int]:
        """Card UUID → units held; outlived: only by pods that are over."""
        units: dict[str, int] = {}
        for card in inventory.cards if inventory else ():
            whole = self.ids_of(protocol.RESOURCE_CARDS, [card.uuid], outlived=outlived)
            held = self.ids_of(protocol.RESOURCE_MEMORY, [card.uuid], outlived=outlived)
            units[card.uuid] = card.units if card.uuid in whole else sum(card_of_unit(i) == card.uuid for i in held)
        return units

    def record_lost(self) -> bool:
        """Whether kubelet has lost its record of a pod that runs."""
        return any(uid in self._alive and (pod := self._pods.get(uid)) and not pod.finished for uid in self._lost)

    def forgotten(self) -> set[str]:
        """UIDs of pods that kubelet no longer counts, whatever the watch still shows."""
        return self._forgotten | ({key[0] for key in self._left} - self._lost)

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
        served = set(self._recorded)
        served.update(grant.turn.key for grant in self._recent() if grant.turn)
        return served

    def snapshot(self) -> dict[Key, frozenset[str]]:
        """Everything held."""
        held = dict(self._all_ids())
        return {key: held[key] for key in self._holds()}

    def names(self) -> Mapping[str, str]:
        """Pod UID → namespace and name, of those that hold something."""
        return self._names

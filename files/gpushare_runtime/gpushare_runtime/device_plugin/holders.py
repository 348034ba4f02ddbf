# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds which ids, of both resources: kubelet's checkpoint, what was given since, and pods that outlive kubelet's memory.

kubelet frees the ids of a pod as soon as it no longer counts the pod, which after a forced delete is before its processes
have ended, and after a lost checkpoint while it runs. Here ids are free when the pod is over and none of its processes is
left. No I/O; clock and processes are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.pods import LocalPod, PodTable
from gpushare_runtime.device_plugin.shares import card_of_unit, cards_of
from gpushare_runtime.device_plugin.turns import Key, Turn
from gpushare_runtime.inventory import Inventory

# kubelet writes its checkpoint within milliseconds of an Allocate that it accepted.
_GRANT_LIFETIME: Final = 30.0
# Longer than the watch needs to show a pod that kubelet has admitted.
_WATCH_GRACE: Final = 10.0
# A container that is being made when its pod is force-deleted has no process yet, and may have one a moment later.
START_GRACE: Final = 2.0


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


class Holders:
    """Used from one event loop only. changes: counts every change of who holds what."""

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
        self._first_seen: dict[str, float] = {}
        self._over_since: dict[str, float] = {}
        self._forgotten: set[str] = set()
        self._lost: set[str] = set()
        self._released: set[str] = set()
        self._alive: frozenset[str] = frozenset()
        self._were_alive: frozenset[str] = frozenset()
        self._grants: list[Grant] = []

    # What kubelet says.

    def set_checkpoint(self, entries: tuple[Entry, ...]) -> None:
        """kubelet's record has become this."""
        now = self._clock()
        recorded = {(entry.pod, entry.container, entry.resource): entry.ids for entry in entries}
        for key, ids in self._recorded.items():
            if key not in recorded and key[0] not in self._released:
                self._left[key] = ids
        for key, ids in recorded.items():
            self._left.pop(key, None)
            if self._recorded.get(key) != ids:
                self._forgotten.discard(key[0])
                self._released.discard(key[0])
        if not entries:
            # Not one after the other, as pods are forgotten, but all at once.
            self._lost |= {key[0] for key in self._left}
        self.entries, self._recorded = entries, recorded
        uids = {key[0] for key in recorded}
        self._first_seen = {uid: self._first_seen.get(uid, now) for uid in uids}
        self._lost &= {key[0] for key in self._left}
        self._forgotten &= uids
        self._released &= uids
        # A file written since the grant no longer has the pod that had these ids before: kubelet forgot it first.
        self._grants = [g for g in self._grants if not self._confirms(g)]
        self._changed()

    def _confirms(self, grant: Grant) -> bool:
        return any(e.resource == grant.resource and grant.ids <= e.ids for e in self.entries)

    def give(self, resource: str, ids: frozenset[str], turn: Turn | None) -> None:
        """These ids were just given to kubelet."""
        self._grants.append(Grant(resource, ids, turn, self._clock()))
        self.changes.notify()

    def free(self, resource: str, ids: Collection[str]) -> None:
        """kubelet offers these ids: what was given of them did not come about, and who has them is over for kubelet."""
        offered = ids if isinstance(ids, (set, frozenset)) else set(ids)
        self._grants = [g for g in self._grants if g.resource != resource or g.ids.isdisjoint(offered)]
        for (uid, _, of), held in self._recorded.items():
            if of == resource and uid not in self._released and not held.isdisjoint(offered):
                self._forgotten.add(uid)

    # What becomes of pods that are over.

    def settle(self, live: Callable[[], Set[str]]) -> None:
        """Release the ids of pods that are over and have no process left. live: the UIDs of the pods that have one."""
        doubtful = self.review()
        if doubtful:
            self.looked(doubtful, live())

    def review(self) -> frozenset[str]:
        """Take note of who is over; what kubelet itself has seen end is free. The UIDs of the others: their processes decide.

        What these hold counts as held until `looked` says otherwise.
        """
        uids = {key[0] for key in self._recorded} | {key[0] for key in self._left}
        back = {uid for uid in self._released if not self._over(uid)}
        over = {uid for uid in uids if uid not in self._released and self._over(uid)}
        stopped = {uid for uid in over if (pod := self._last_seen(uid)) is not None and pod.stopped}
        now, before = self._clock(), self._over_since.keys()
        self._over_since = {uid: self._over_since.get(uid, now) for uid in over - stopped}
        self._alive &= self._over_since.keys()
        self._were_alive &= self._over_since.keys()
        if stopped or back or before != self._over_since.keys():
            self._released -= back
            self._release(stopped)
        return frozenset(self._over_since)

    def looked(self, doubtful: Set[str], live: Set[str]) -> None:
        """Of these, which `review` had said before one looked, only those in `live` have a process."""
        still = doubtful & self._over_since.keys()
        alive = frozenset(live & still)
        now, before = self._clock(), self._alive & still
        self._were_alive |= alive
        self._alive = (self._alive - still) | alive
        done = {uid for uid in still - alive if self._ended(uid, now)}
        if done or alive != before:
            self._release(done)

    def _release(self, uids: Set[str]) -> None:
        self._released |= uids & {key[0] for key in self._recorded}
        self._left = {key: ids for key, ids in self._left.items() if key[0] not in uids}
        self._over_since = {uid: since for uid, since in self._over_since.items() if uid not in uids}
        self._lost -= uids
        self._changed()

    def _last_seen(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid) or self._pods.removed(uid)

    def _over(self, uid: str) -> bool:
        """Whether the pod no longer counts for kubelet, or for the API server although kubelet's file still lists it."""
        if uid in self._forgotten or uid not in self._first_seen:
            return True
        pod = self._pods.get(uid)
        if pod is not None:
            return pod.finished
        if self._pods.removed(uid) is not None:
            return True
        # Neither now nor before: the watch may be a moment behind kubelet.
        return self._pods.synced and self._clock() - self._first_seen[uid] > _WATCH_GRACE

    def _ended(self, uid: str, now: float) -> bool:
        """Whether no process of a pod without one is still to come."""
        pod = self._last_seen(uid)
        if uid in self._were_alive or (pod is not None and pod.phase != "Pending"):
            return True
        seen = self._first_seen.get(uid)
        return now - self._over_since[uid] >= START_GRACE or (pod is None and seen is not None and now - seen > _WATCH_GRACE)

    # Who holds what.

    def _changed(self) -> None:
        for uid in self._first_seen:
            pod = self._pods.get(uid)
            if pod is not None:
                self._names[uid] = str(pod)
        known = {key[0] for key in self._holds()}
        self._names = {uid: name for uid, name in self._names.items() if uid in known}
        before = self._cards
        self._cards = {}
        for key, ids in self._all_ids():
            was = before.get(key)
            self._cards[key] = was if was is not None and was[0] == ids else (ids, cards_of(key[2], ids))
        self.changes.notify()

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

    # What has to outlive this process.

    def snapshot(self) -> dict[Key, frozenset[str]]:
        """Everything held."""
        held = dict(self._all_ids())
        return {key: held[key] for key in self._holds()}

    def names(self) -> Mapping[str, str]:
        """Pod UID → namespace and name, of those that hold something."""
        return self._names

    def restore(self, snapshot: Mapping[Key, frozenset[str]], names: Mapping[str, str]) -> None:
        """What was held when the process before this one ended. Call it before the first checkpoint is read."""
        self._left.update(snapshot)
        self._names.update(names)
        self._changed()

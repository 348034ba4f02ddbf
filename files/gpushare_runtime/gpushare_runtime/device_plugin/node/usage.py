# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds which ids, of both resources: one table of containers, and one rule of when a line of it ends.

What kubelet's file lists is held until kubelet drops or offers it, or the API server says that its pod is over; then until the
pod has no process left. kubelet itself frees the ids of a pod as soon as it no longer counts the pod, which after a forced delete
is before its processes have ended, and after a lost checkpoint while it runs. No I/O; clock and processes are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.ids import Entry, Key, card_of_unit, cards_of
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PodTable
from gpushare_runtime.device_plugin.node.pending import Turn


class Processes(Protocol):
    """What lives on this host."""

    def pods(self, uids: Set[str]) -> Set[str]:
        """Those of these pods that have a process, or may have one. May take some milliseconds."""

    def containers(self, uid: str) -> Set[str] | None:
        """The names of the pod's containers that have a process; None if that cannot be told of each process."""


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


# Longer than the API server is behind kubelet, which has its pods from there, and kubelet behind its own file.
_GRACE: Final = 10.0
# What the watch brings in one go after an interruption is taken in within this.
_BURST: Final = 2.0
# A container that is being made when its pod is force-deleted has no process yet, and may have one a moment later.
START_GRACE: Final = 2.0
# From kubelet's question whether a container may start until it has a process: the container runtime makes it in between.
_MAKING: Final = 30.0


class Holders(Holdings):
    """Used from one event loop only."""

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        super().__init__(pods, clock)
        self._unlisted: dict[str, float] = {}

    # What kubelet says.

    def set_checkpoint(self, entries: tuple[Entry, ...], age: float = 0.0) -> None:
        """kubelet's record has become this. age: seconds since kubelet wrote it, and so at least since it has its pods."""
        now = self._clock()
        recorded = {(entry.pod, entry.container, entry.resource): entry.ids for entry in entries}
        counted = {key[0] for key in recorded}
        for key, holding in self._table.items():
            if holding.listed and key not in recorded:
                self._table[key] = Holding(holding.ids, holding.cards, listed=False)
                # Pods are forgotten one after the other and with all they have, not all at once and not in part.
                life = self._lives[key[0]]
                life.dropped, life.lost, life.offered = now, not entries or key[0] in counted, False
        for key, ids in recorded.items():
            before, life = self._table.get(key), self._lives.setdefault(key[0], Life(now - age))
            # Mostly the very same object, of which nothing is to be compared.
            if before is None or not (before.ids is ids or before.ids == ids):
                self._table[key] = Holding(ids, cards_of(key[2], ids))
                self._counted(life)
            elif not before.listed:
                self._table[key] = Holding(ids, before.cards)
                self._counted(life)
        self._forget(key for key, of in self._table.items() if not of.listed and self._lives[key[0]].ended)
        for uid in {key[0] for key in self._table} - {key[0] for key, of in self._table.items() if not of.listed}:
            self._lives[uid].dropped, self._lives[uid].lost = None, False
        self.entries = entries
        # A file written since the grant no longer has the pod that had these ids before: kubelet forgot it first.
        self._grants = [g for g in self._grants if not self._confirms(g)]
        self._changed()

    def _counted(self, life: Life) -> None:
        """kubelet has given the pod ids: whatever was said of its end is not so."""
        life.offered, life.ended, life.over, life.ran = False, False, None, False

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
        for (uid, _, of), holding in self._table.items():
            if holding.listed and of == resource and not holding.ids.isdisjoint(offered):
                self._lives[uid].offered = True

    def starts(self, keys: Collection[Key]) -> None:
        """kubelet asks whether one of these containers, all of one pod in the table, may start: if it may, it has a process soon."""
        [uid] = {key[0] for key in keys}
        life, names = self._lives[uid], tuple(sorted(key[1] for key in keys))
        life.starts[names] = self._clock(), self._ids(uid, names)
        life.ran = False
        if life.ended:
            life.ended = False
            self._changed()

    def _ids(self, uid: str, containers: Collection[str]) -> list[str]:
        """The IDs of these containers, as kubelet last reported them."""
        pod = self._last_seen(uid)
        return [pod.containers.get(name, "") if pod else "" for name in containers]

    # What becomes of pods that are over.

    def settle(self, live: Callable[[Set[str]], Set[str]]) -> None:
        """Release the ids of pods that are over and have no process left. live: those of these UIDs that have one."""
        doubtful = self.review()
        if doubtful:
            self.looked(doubtful, live(doubtful))

    def review(self) -> frozenset[str]:
        """Take note of who is over; what kubelet itself has seen end is free. The UIDs of the others: their processes decide.

        What these hold counts as held until `looked` says otherwise.
        """
        now, stopped, changed = self._clock(), [], False
        for uid, life in self._lives.items():
            over = self._over(uid, life, now)
            if over != (life.over is not None):
                life.over = now if over else None
                life.alive = life.ran = life.ended = False
                changed = True
            pod = self._last_seen(uid)
            if over and not life.ended and pod is not None and pod.stopped:
                stopped.append(uid)
        self._note_unlisted(now)
        if stopped or changed:
            self._end(stopped)
        return frozenset(uid for uid, life in self._lives.items() if (life.over is not None and not life.ended) or self.lost(uid))

    def looked(self, doubtful: Set[str], live: Set[str]) -> None:
        """Of these, which `review` had said before one looked, only those in `live` have a process."""
        now, done, changed = self._clock(), [], False
        for uid in doubtful & self._lives.keys():
            life = self._lives[uid]
            if life.over is None and not self.lost(uid):
                continue
            changed = changed or life.alive != (uid in live)
            life.alive = uid in live
            life.ran = life.ran or life.alive
            if life.over is not None and not life.alive and not life.ended and self._none_to_come(uid, life, now):
                done.append(uid)
        if done or changed:
            self._end(done)

    def _end(self, uids: Collection[str]) -> None:
        for uid in uids:
            self._lives[uid].ended = True
        self._forget(key for key, of in self._table.items() if not of.listed and key[0] in uids)
        self._changed()

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            del self._table[key]
        left = {key[0] for key in self._table}
        self._lives = {uid: life for uid, life in self._lives.items() if uid in left}

    def _over(self, uid: str, life: Life, now: float) -> bool:
        """Whether the pod no longer counts for kubelet, or for the API server although kubelet's file still lists it."""
        pod = self._pods.get(uid)
        if life.offered or (life.dropped is not None and not life.lost):
            return True
        if pod is not None:
            return pod.finished
        if life.over is not None or self._pods.removed(uid) is not None:
            return True
        # Neither now nor before: the watch may be behind kubelet, and for as long as it is interrupted.
        if not self._heard_since(life.seen):
            life.strange = None
            return False
        life.strange = now if life.strange is None else life.strange
        return now - life.strange >= _BURST

    def _heard_since(self, time: float) -> bool:
        """Whether the API server has been heard so much later that it has shown what kubelet knew then."""
        heard = self._pods.heard()
        return self._pods.synced and heard is not None and heard > time + _GRACE

    def _none_to_come(self, uid: str, life: Life, now: float) -> bool:
        """Whether no process of a pod without one is still to come."""
        if life.ran:
            return True
        if any(self._starting(uid, containers) for containers in life.starts):
            return False
        pod = self._last_seen(uid)
        if pod is not None and pod.phase != "Pending":
            return True
        return life.over is not None and now - life.over >= START_GRACE

    def _starting(self, uid: str, containers: tuple[str, ...]) -> bool:
        """Whether the one of these that was to start may be in the making: nobody has reported it since."""
        at, before = self._lives[uid].starts[containers]
        return self._clock() - at < _MAKING and self._ids(uid, containers) == before

    def starting(self, key: Key) -> bool:
        """Whether the container may be in the making."""
        life = self._lives.get(key[0])
        return life is not None and any(key[1] in containers and self._starting(key[0], containers) for containers in life.starts)

    def _changed(self) -> None:
        for uid in self._lives:
            pod = self._pods.get(uid) if uid not in self._names else None
            if pod is not None:
                self._names[uid] = str(pod)
        known = {key[0] for key, _ in self._holds()}
        self._names = {uid: name for uid, name in self._names.items() if uid in known}
        self.changes.notify()

    # What kubelet's file should list and does not.

    def _note_unlisted(self, now: float) -> None:
        listed = {key for key, holding in self._table.items() if holding.listed}
        unlisted = {pod.uid for pod in self._pods if self._lacks(pod, listed)}
        self._unlisted = {uid: self._unlisted.get(uid, now) for uid in unlisted}
        for uid, since in self._unlisted.items():
            life = self._lives.get(uid)
            if life is not None and life.dropped is not None and self._heard_since(since):
                # A pod that kubelet had forgotten because it was gone would be gone for the API server by now.
                life.lost = True

    def _lacks(self, pod: LocalPod, listed: Set[Key], resource: str = "") -> bool:
        """Whether kubelet runs the pod without a record of (some of) the ids that it asks for."""
        asked = ((pod.uid, ask.container, ask.resource) for ask in pod.asks if resource in ("", ask.resource))
        # A pod in its init phase is Pending; that one of its containers has an ID says that kubelet has admitted it, with all of them.
        started = pod.phase == "Running" or any(pod.containers.values())
        return pod.active and started and any(key not in listed for key in asked)

    def record_lost(self, resource: str) -> bool:
        """Whether kubelet has no record of a container that runs, or is to run again, with this resource."""
        listed = {key for key, holding in self._table.items() if holding.listed}
        for uid, since in self._unlisted.items():
            pod, life = self._pods.get(uid), self._lives.get(uid)
            # At once where it is plain: the file is gone and the pod lives. Else when the two words have had time to agree.
            if pod and self._lacks(pod, listed, resource) and ((life and life.lost and life.alive) or self._heard_since(since)):
                return True
        return False

    # What has to outlive this process.

    def restore(self, snapshot: Mapping[Key, frozenset[str]], names: Mapping[str, str]) -> None:
        """What was held when the process before this one ended. Call it before the first checkpoint is read, which says more."""
        now = self._clock()
        for key, ids in snapshot.items():
            self._table[key] = Holding(ids, cards_of(key[2], ids))
            self._lives.setdefault(key[0], Life(now))
        self._names.update(names)
        self._changed()

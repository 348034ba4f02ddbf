# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds which card, of both resources: kubelet's checkpoint, and what was given since it was written.

No I/O; the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.turns import Turn
from gpushare_runtime.quantity import parse_unit_id

# kubelet writes its checkpoint within milliseconds of an Allocate that it accepted.
_GRANT_LIFETIME: Final = 30.0
# Longer than the watch needs to show a pod that kubelet has admitted.
_WATCH_GRACE: Final = 10.0


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
    """Used from one event loop only."""

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.changes = Changes()
        self._pods = pods
        self._clock = clock
        self._cards: dict[tuple[str, str], set[str]] = {}
        self._first_seen: dict[str, float] = {}
        self._grants: list[Grant] = []

    def set_checkpoint(self, entries: tuple[Entry, ...]) -> None:
        """kubelet's record has become this."""
        now = self._clock()
        self.entries = entries
        self._first_seen = {entry.pod: self._first_seen.get(entry.pod, now) for entry in entries}
        self._cards = {}
        for entry in entries:
            self._cards.setdefault((entry.pod, entry.resource), set()).update(_cards_of(entry.resource, entry.ids))
        # A file written since the grant no longer has the pod that had these ids before: kubelet forgot it first.
        self._grants = [g for g in self._grants if not self._confirms(g)]
        self.changes.notify()

    def _confirms(self, grant: Grant) -> bool:
        return any(e.resource == grant.resource and grant.ids <= e.ids for e in self.entries)

    def give(self, resource: str, ids: frozenset[str], turn: Turn | None) -> None:
        """These ids were just given to kubelet."""
        self._grants.append(Grant(resource, ids, turn, self._clock()))

    def free(self, resource: str, ids: Collection[str]) -> None:
        """kubelet offers these ids: what was given of them did not come about, or has ended."""
        offered = set(ids)
        self._grants = [g for g in self._grants if g.resource != resource or g.ids.isdisjoint(offered)]

    def held(self) -> Held:
        """By every pod that has not ended."""
        memory: dict[str, set[str]] = {}
        whole: dict[str, str] = {}
        for uid, resource, cards in self._all():
            for card in cards:
                if resource == protocol.RESOURCE_CARDS:
                    whole[card] = uid
                else:
                    memory.setdefault(card, set()).add(uid)
        return Held(memory, whole)

    def _all(self) -> Iterator[tuple[str, str, Collection[str]]]:
        for (uid, resource), cards in self._cards.items():
            if not self._ended(uid):
                yield uid, resource, cards
        for grant in self._recent():
            yield grant.turn.pod.uid if grant.turn else "", grant.resource, _cards_of(grant.resource, grant.ids)

    def _ended(self, uid: str) -> bool:
        """Whether a pod of the checkpoint is over, though kubelet has not yet written the file without it."""
        pod = self._pods.get(uid)
        if pod is not None:
            return pod.finished
        if self._pods.removed(uid):
            return True
        # Neither now nor before: the watch may be a moment behind kubelet.
        return self._pods.synced and self._clock() - self._first_seen[uid] > _WATCH_GRACE

    def _recent(self) -> list[Grant]:
        now = self._clock()
        self._grants = [g for g in self._grants if now - g.at < _GRANT_LIFETIME]
        return self._grants

    def served(self) -> set[tuple[str, str, str]]:
        """(pod UID, container, resource) that have their ids."""
        served = {(entry.pod, entry.container, entry.resource) for entry in self.entries}
        served.update(grant.turn.key for grant in self._recent() if grant.turn)
        return served


def _cards_of(resource: str, ids: Collection[str]) -> set[str]:
    if resource == protocol.RESOURCE_CARDS:
        return set(ids)
    return {card_of_unit(i) for i in ids}


def card_of_unit(device_id: str) -> str:
    """The card UUID in a unit id; an id of another form stands for itself, so that it belongs to no card."""
    try:
        return parse_unit_id(device_id)[0]
    except ValueError:
        return device_id

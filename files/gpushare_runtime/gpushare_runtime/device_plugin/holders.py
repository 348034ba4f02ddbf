# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds which ids, of both resources: kubelet's checkpoint, what was given since, and pods that outlive kubelet's memory.

kubelet frees the ids of a pod as soon as it no longer counts the pod, which after a forced delete is before its processes
have ended, and after a lost checkpoint while it runs. Here ids are free when the pod is over and none of its processes is
left. No I/O; clock and processes are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from typing import Final

from gpushare_runtime.device_plugin.checkpoint import Entry, Key
from gpushare_runtime.device_plugin.holdings import Grant, Holdings
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.shares import cards_of
from gpushare_runtime.device_plugin.turns import Turn

# Longer than the watch needs to show a pod that kubelet has admitted.
_WATCH_GRACE: Final = 10.0
# A container that is being made when its pod is force-deleted has no process yet, and may have one a moment later.
START_GRACE: Final = 2.0


class Holders(Holdings):
    """Used from one event loop only."""

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        super().__init__(pods, clock)
        self._first_seen: dict[str, float] = {}
        self._were_alive: frozenset[str] = frozenset()
        self._reviewed: tuple[int, int] | None = None

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
            # Mostly the very same object, of which nothing is to be compared.
            before = self._recorded.get(key)
            if before is not ids and before != ids:
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
                self._reviewed = None

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
        state = self._pods.changes.count, self.changes.count
        if state == self._reviewed:
            return frozenset(self._over_since)
        uids = {key[0] for key in self._recorded} | {key[0] for key in self._left}
        # Of a pod that nobody has seen, time decides.
        unseen = any(self._last_seen(uid) is None for uid in uids)
        self._reviewed = None if unseen else state
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

    def _changed(self) -> None:
        for uid in self._first_seen:
            pod = self._pods.get(uid) if uid not in self._names else None
            if pod is not None:
                self._names[uid] = str(pod)
        known = {key[0] for key in self._holds()}
        self._names = {uid: name for uid, name in self._names.items() if uid in known}
        before = self._cards
        self._cards = {}
        for key, ids in self._all_ids():
            was = before.get(key)
            self._cards[key] = was if was is not None and was[0] is ids else (ids, cards_of(key[2], ids))
        self.changes.notify()

    # What has to outlive this process.

    def restore(self, snapshot: Mapping[Key, frozenset[str]], names: Mapping[str, str]) -> None:
        """What was held when the process before this one ended. Call it before the first checkpoint is read."""
        self._left.update(snapshot)
        self._names.update(names)
        self._changed()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How a pod that has device ids ends: a state machine for each pod. No I/O and no clock: all that it needs to know is passed in.

| stage | until | then |
|---|---|---|
| ACTIVE | kubelet counts its ids no longer, or the API server reports its end | ENDING |
| ENDING | kubelet has reported that all its containers ended, or it has no process and none is about to start | RELEASED |
| ENDING, RELEASED | that was wrong: kubelet records ids for it, or the API server shows it active | ACTIVE |
| RELEASED | kubelet is about to start one of its containers | ENDING |

kubelet counts a pod by its record, the checkpoint. A pod whose record is LOST is one that kubelet still runs: its stage stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from gpushare_runtime.device_plugin.node.local_pods import LocalPod

# Longer than the watch lags behind kubelet, and kubelet behind its own file.
GRACE: Final = 10.0
# After an interruption the plugin takes in what the watch sends at once within this time.
_BURST: Final = 2.0
# A pod may be force-deleted while the runtime creates its container: that has no process yet, and soon has one.
START_GRACE: Final = 2.0
# The runtime creates a container between kubelet's PreStartContainer and the first process.
CREATION_SECONDS: Final = 30.0
# The API server sends each watch a bookmark about every minute.
SILENCE: Final = 90.0


class Stage(Enum):
    """ACTIVE: it has its ids. ENDING: it has them as long as it has a process. RELEASED: its ids are free."""

    ACTIVE, ENDING, RELEASED = range(3)


class Record(Enum):
    """LISTED: kubelet's checkpoint lists all that the pod has. DROPPED: kubelet has forgotten the pod. LOST: it lost the record."""

    LISTED, DROPPED, LOST = range(3)


class WatchState(NamedTuple):
    """The watch itself. synced: the first list is complete; at: when the API server last sent something, None for never."""

    synced: bool
    at: float | None

    def has_passed(self, time: float) -> bool:
        """Whether it is so late that the watch has shown what kubelet knew at that time."""
        return self.synced and self.at is not None and self.at > time + GRACE


class Watched(NamedTuple):
    """A pod as the watch shows it. pod: None if it does not exist; removed: as it was last seen, if it was removed recently."""

    pod: LocalPod | None
    removed: LocalPod | None
    watch: WatchState

    @property
    def last(self) -> LocalPod | None:
        return self.pod or self.removed


@dataclass
class PodState:
    """The known facts about the end of a pod. Times are of the usage's clock."""

    seen_at: float  # in kubelet's checkpoint for the first time
    version: int = 0  # the moment when its ids changed last
    name: str = ""  # namespace/name; "" before the watch showed the pod
    stage: Stage = Stage.ACTIVE
    record: Record = Record.LISTED
    freed: bool = False  # kubelet reported some of its ids as available
    offered_at: float | None = None  # the same, although the API server shows it as active
    missing_since: float | None = None  # the API server should have reported it by then, and did not
    ending_since: float | None = None  # None while it is active
    alive: bool = False  # it had a process at the last scan
    ran: bool = False  # it had a process at a scan since it is ending and its last start
    starts: dict[tuple[str, ...], tuple[float, list[str]]] = field(default_factory=dict)
    """Containers, one of which kubelet was about to start (their ids are equal) → when, and the container IDs before."""

    @property
    def released(self) -> bool:
        return self.stage is Stage.RELEASED

    @property
    def ending(self) -> bool:
        """Whether kubelet or the API server no longer counts it."""
        return self.stage is not Stage.ACTIVE

    def lost(self, pod: LocalPod | None) -> bool:
        """Whether kubelet has lost its record of the pod, and still counts it."""
        return self.record is Record.LOST and pod is not None and pod.active

    def uncounted(self, pod: LocalPod | None) -> bool:
        """Whether kubelet counts it no longer, even if the watch still shows it."""
        return self.freed or (self.record is not Record.LISTED and not self.lost(pod))

    def identify(self, pod: LocalPod | None) -> None:
        """The watch shows the pod; None if it does not."""
        self.name = str(pod) if pod is not None else self.name

    def change(self, version: int) -> None:
        """The ids of the pod have changed."""
        self.version = version

    # The report of kubelet.

    def drop(self, lost: bool, version: int) -> None:
        """kubelet's checkpoint no longer lists something that it listed. lost: this does not show that the pod ends."""
        self.record, self.freed, self.version = Record.LOST if lost else Record.DROPPED, False, version

    def count(self, version: int) -> None:
        """kubelet allocated ids to the pod: earlier signs of its end were wrong."""
        self.stage, self.ending_since = Stage.ACTIVE, None
        self.freed, self.ran, self.offered_at, self.version = False, False, None, version

    def relist(self) -> None:
        """kubelet's checkpoint lists all that the pod has."""
        self.record = Record.LISTED

    def lose(self) -> None:
        """kubelet has not recorded the pod again, and the API server has not reported its end."""
        self.record = Record.LOST

    def note_free_ids(self, pod: LocalPod | None, now: float) -> None:
        """kubelet had some of its ids free."""
        if pod is None or not pod.active:
            self.freed = True
        elif self.offered_at is None:
            self.offered_at = now

    def start(self, names: tuple[str, ...], before: list[str], now: float) -> bool:
        """kubelet is about to start one of these containers. Whether its ids were free."""
        self.starts[names] = now, before
        self.ran = False
        was_released = self.released
        if was_released:
            self.stage = Stage.ENDING
        return was_released

    def has_started(self, container: str, before: list[str], now: float) -> None:
        """kubelet has allocated ids to a container that it starts, without asking for the start."""
        self.starts[container,] = now, before

    def forget_start(self, container: str) -> None:
        """kubelet is not about to start this container after all."""
        self.starts = {names: start for names, start in self.starts.items() if container not in names}

    # The judgement.

    def judge(self, watched: Watched, now: float) -> bool:
        """Whether it changes between ACTIVE and the other stages now."""
        ended = self._has_ended(watched, now)
        if ended == self.ending:
            return False
        self.stage, self.ending_since = (Stage.ENDING, now) if ended else (Stage.ACTIVE, None)
        self.alive = self.ran = False
        return True

    def _has_ended(self, watched: Watched, now: float) -> bool:
        """Whether kubelet no longer counts the pod, or the API server does not although kubelet's checkpoint lists it."""
        pod = watched.pod
        if self.offered_at is not None and pod is not None:
            # Of a pod that has run, processes decide; before that nothing shows that kubelet is about to start it.
            patience = GRACE if pod.phase == "Running" else SILENCE
            heard = self.offered_at if watched.watch.at is None else watched.watch.at
            if watched.watch.has_passed(self.offered_at):
                self.offered_at = None
            elif now - max(self.offered_at, heard) >= patience:
                self.freed = True
        if self.freed or self.record is Record.DROPPED:
            return True
        if pod is not None:
            return pod.finished
        if self.ending or watched.removed is not None:
            return True
        # The watch never showed the pod: it may lag behind kubelet, for as long as it is interrupted.
        if not watched.watch.has_passed(self.seen_at):
            self.missing_since = None
            return False
        self.missing_since = now if self.missing_since is None else self.missing_since
        return now - self.missing_since >= _BURST

    def scan(self, alive: bool, pod: LocalPod | None) -> bool:
        """Take whether it has a process. Whether that is news, and matters."""
        if not self.ending and not self.lost(pod):
            return False
        changed = self.alive != alive
        self.alive = alive
        self.ran = self.ran or alive
        return changed

    def is_over(self, watched: Watched, now: float) -> bool:
        """Whether it is ending without a process, and will not get one any more."""
        if self.stage is not Stage.ENDING or self.alive:
            return False
        if self.ran:
            return True
        if any(self.may_be_creating(names, watched.last, now) for names in self.starts):
            return False
        if watched.last is not None and watched.last.phase != "Pending":
            return True
        return self.ending_since is not None and now - self.ending_since >= START_GRACE

    def release(self) -> None:
        """Its ids are free: it is over, unless it has become active again."""
        if self.ending:
            self.stage = Stage.RELEASED

    def may_be_creating(self, names: tuple[str, ...], last: LocalPod | None, now: float) -> bool:
        """Whether the runtime may be creating one of them: kubelet has not reported a new one since the start."""
        at, before = self.starts[names]
        return now - at < CREATION_SECONDS and container_ids(last, names) == before


def container_ids(pod: LocalPod | None, names: Collection[str]) -> list[str]:
    """The IDs of these containers that kubelet reported last, "" for none."""
    return [pod.container_ids.get(name, "") if pod else "" for name in names]

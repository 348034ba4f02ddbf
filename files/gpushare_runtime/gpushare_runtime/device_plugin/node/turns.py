# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's requests that are under way, of all resources of this node. No I/O.

kubelet admits one pod after the other. But it starts containers from many workers at once, and a container whose record it has lost
requests ids at its start. kubelet does not lock what such a request shares with others: when a second pod's request begins before the
first one is over, and the first one succeeds, kubelet panics (1.36.3 and 1.37.2, devicemanager: the second `Allocate` deletes the first
pod's `devicesToReuse`, into which the first one then writes). A request that fails does not write there. So a request that was overtaken,
or may have been, fails here, and kubelet tries that start again.

If all failed at once, all would come back at once. So their answers wait, and one after the other fails. kubelet waits for such an
answer without a limit and without a lock, and its worker begins no other request meanwhile: only those that have failed come back,
10 to 15 s later. So a start that comes back succeeds when all others that could begin one wait here, or have failed a short time ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from gpushare_runtime.daemon.sync import Changes

# kubelet searches for what has ended, and for what is to be tried again, at one or two fixed moments of each second (1.36.3: the ticker of
# syncLoop and the one of its PLEG), and then begins all these starts within tenths of a second.
LOOKS_SECONDS: Final = 1.0
# A request that fails comes back within 15 s. Old ones that came late hide the moments of the others.
_LOOKS_REMEMBERED_SECONDS: Final = 20.0
_MOST_REMEMBERED: Final = 64
# Requests of one moment arrive in another order than they began, in the lab up to 0.07 s apart.
ORDER_SECONDS: Final = 0.2
# Between the preferred ids and their Allocate kubelet takes milliseconds.
_OPEN_SECONDS: Final = 2.0
# kubelet retries a start 10 to 15 s after it failed (1.36.3, podWorkers: backOffPeriod and its jitter), and the n-th time not before
# 10 * 2^n s after the container's end. So most of those that fail come back after the one before has succeeded.
RETRY_SECONDS: Final = 9.5
_RETRIED_SECONDS: Final = 16.0
RELEASE_SECONDS: Final = 6.0
# So long may a pod's deletion wait for kubelet's worker. In this time 20 requests fail.
HOLD_SECONDS: Final = 120.0
# So long a start waits for others that have ended as well. They may not come, as one whose container ends again and again.
PATIENCE_SECONDS: Final = 5.0
# More than a node has pods.
_MOST_HELD: Final = 1024


@dataclass(eq=False)
class Turn:
    """One container's request. ids: what it was told to allocate, at the time told.

    again: it may start a container whose record is lost, so it may run beside others; crowded: it has overtaken one of the same moment.
    """

    resource: str
    at: float
    crowded: bool = False
    overtaken: bool = False
    again: bool = False
    ids: frozenset[str] = frozenset()
    told: float = 0.0


class Turns:
    """clock: monotonic seconds; changes: counts the turns that began, and those that were released."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changes = Changes()
        self._clock = clock
        self._open: list[Turn] = []
        self._began: deque[Turn] = deque(maxlen=_MOST_REMEMBERED)
        self._held: list[Turn] = []
        self._failed: deque[float] = deque(maxlen=_MOST_REMEMBERED)
        self._released_at = float("-inf")

    def begin(self, resource: str) -> Turn:
        """kubelet begins a request: those that it had begun before are overtaken."""
        now = self._clock()
        self._open = [turn for turn in self._open if not turn.ids or now - turn.told < _OPEN_SECONDS]
        for turn in self._open:
            turn.overtaken = True
        # A pod's next container is requested as soon as one has failed.
        if self._failed and now - self._failed[-1] < ORDER_SECONDS:
            self._failed.pop()
        mine = Turn(resource, now, crowded=any(now - turn.at < LOOKS_SECONDS for turn in self._open))
        self._open.append(mine)
        self._began.append(mine)
        self.changes.notify()
        return mine

    def must_fail(self, turn: Turn) -> bool:
        """Whether another request has overtaken this one, or may have.

        It may have if it came shortly before, and one of the two may start a container whose record is lost.
        """
        if turn.overtaken or (turn.again and turn.crowded):
            return True
        before = takewhile(lambda other: other is not turn, self._began)
        return any(turn.at - other.at < ORDER_SECONDS and (turn.again or other.again) for other in before)

    def others_may_begin(self, pods: int) -> bool:
        """Whether kubelet may begin another such start at any moment. pods: of how many it may at all, that of the caller among them.

        It cannot for a pod whose request waits here, or has failed a short time ago.
        """
        now = self._clock()
        return pods - 1 > len(self._held) + sum(now - at < RETRY_SECONDS for at in self._failed)

    def patience_ends(self, turn: Turn) -> float:
        """Until when a request waits for others that may begin: by then those that have ended, or have failed here, have come back."""
        return max([turn.at + PATIENCE_SECONDS, *(at + _RETRIED_SECONDS for at in self._failed)])

    def calm_after(self, at: float) -> float:
        """The moment of the second after this time that is farthest from those at which requests began: kubelet hardly begins one then."""
        now = self._clock()
        began = sorted({turn.at % LOOKS_SECONDS for turn in self._began if now - turn.at < _LOOKS_REMEMBERED_SECONDS})
        if not began:
            return at
        gap, start = max((after - before, before) for before, after in pairwise([*began, began[0] + LOOKS_SECONDS]))
        return at + (start + gap / 2 - at) % LOOKS_SECONDS

    def tell(self, turn: Turn, ids: frozenset[str]) -> None:
        """Note the ids that its Allocate will name."""
        turn.ids, turn.told = ids, self._clock()

    def resume(self, resource: str, ids: frozenset[str]) -> Turn:
        """The turn that was told these ids. Without one kubelet reuses ids of the same pod, and its turn begins now."""
        return next((turn for turn in self._open if (turn.resource, turn.ids) == (resource, ids)), None) or self.begin(resource)

    def end(self, turn: Turn) -> None:
        if turn in self._open:
            self._open.remove(turn)

    @property
    def restless(self) -> bool:
        """Whether kubelet will try starts again that failed: it has begun one that may run beside others, a short time ago."""
        newest = max((turn.at for turn in self._began if turn.again), default=float("-inf"))
        return bool(self._held) or any(turn.again for turn in self._open) or self._clock() - newest < _LOOKS_REMEMBERED_SECONDS

    # Those that must fail, and wait for it.

    def hold(self, turn: Turn) -> None:
        """The turn crowds no other request any more."""
        self.end(turn)
        if len(self._held) < _MOST_HELD:
            self._held.append(turn)

    def seconds_held(self, turn: Turn) -> float:
        """How long it still waits, unless there are changes; 0 when it is to fail now."""
        if turn not in self._held:
            return 0.0
        now, newest = self._clock(), max(self._held, key=lambda held: held.at)
        ends = turn.at + HOLD_SECONDS
        # The last one of those that came together may be a resize, for which kubelet's loop waits. Then the one that waits longest.
        if turn is (newest if newest.at > self._released_at else min(self._held, key=lambda held: held.at)):
            ends = min(ends, max(self._released_at + RELEASE_SECONDS, newest.at + ORDER_SECONDS, self._end_of_the_open(now)))
        # A timer's resolution.
        return ends - now if ends - now > 0.001 else 0.0

    def _end_of_the_open(self, now: float) -> float:
        """One that fails may be followed at once by its pod's next container, which would overtake what is about to succeed."""
        return max((now + ORDER_SECONDS for turn in self._open if turn.again), default=float("-inf"))

    def release(self, turn: Turn) -> None:
        if turn in self._held:
            self._held.remove(turn)
            self._released_at = self._clock()
            self._failed.append(self._released_at)
            self.changes.notify()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's requests that are under way, of all resources of this node. No I/O.

kubelet admits one pod after the other. But it starts containers from many workers at once, and a container whose record it has lost
requests ids at its start. kubelet does not lock what such a request shares with others: when a second pod's request begins before the
first one is over, and the first one succeeds, kubelet panics (1.36.3, devicemanager: the second `Allocate` deletes the first pod's
`devicesToReuse`, into which the first one then writes). A request that fails does not write there. So a request that was overtaken
fails here, and kubelet tries that start again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gpushare_runtime.daemon.sync import Changes

# kubelet looks for what has ended, and for what is to be tried again, at one or two fixed moments of each second (1.36.3: the ticker of
# syncLoop and the one of its PLEG), and then begins all these starts within tenths of a second.
LOOKS_SECONDS: Final = 1.0
_LOOKS_REMEMBERED_SECONDS: Final = 60.0
_MOST_REMEMBERED: Final = 64
# Two requests may arrive in another order than they began: nobody can tell which of them was overtaken.
_ORDER_SECONDS: Final = 0.01
# Between the preferred ids and their Allocate kubelet takes milliseconds.
_OPEN_SECONDS: Final = 2.0


@dataclass(eq=False)
class Turn:
    """One container's request. crowded: it has overtaken another one; overtaken: it must fail; ids: what it was told to allocate."""

    resource: str
    at: float
    crowded: bool = False
    overtaken: bool = False
    ids: frozenset[str] = frozenset()


class Turns:
    """clock: monotonic seconds; changes: counts the turns that began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changes = Changes()
        self._clock = clock
        self._open: list[Turn] = []
        self._began: deque[float] = deque(maxlen=_MOST_REMEMBERED)
        self._overtaken_at = -_OPEN_SECONDS
        """When the last turn began that was overtaken: it may have ended by now, and still have begun after the next one."""

    def begin(self, resource: str) -> Turn:
        """kubelet begins a request: those that it had begun before are overtaken."""
        now = self._clock()
        self._open = [turn for turn in self._open if now - turn.at < _OPEN_SECONDS]
        latest = max((turn.at for turn in self._open), default=self._overtaken_at)
        mine = Turn(resource, now, bool(self._open), now - latest < _ORDER_SECONDS)
        for turn in [*self._open, *([mine] if mine.overtaken else [])]:
            turn.overtaken, self._overtaken_at = True, max(self._overtaken_at, turn.at)
        self._open.append(mine)
        self._began.append(now)
        self.changes.notify()
        return mine

    def seconds_to_calm(self) -> float:
        """Until the moment of the next second that is farthest from those at which requests began: kubelet hardly begins one then."""
        now = self._clock()
        began = sorted({at % LOOKS_SECONDS for at in self._began if now - at < _LOOKS_REMEMBERED_SECONDS})
        if not began:
            return 0.0
        gap, start = max((after - before, before) for before, after in pairwise([*began, began[0] + LOOKS_SECONDS]))
        return (start + gap / 2 - now) % LOOKS_SECONDS

    def resume(self, resource: str, ids: frozenset[str]) -> Turn:
        """The turn that was told these ids. Without one kubelet reuses ids of the same pod, and its turn begins now."""
        return next((turn for turn in self._open if (turn.resource, turn.ids) == (resource, ids)), None) or self.begin(resource)

    def end(self, turn: Turn) -> None:
        if turn in self._open:
            self._open.remove(turn)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What was refused at this node not long ago: the scheduler side is to hold that card back for that size, or it would try again at once.

No I/O; the clocks are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.held import Refusal

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

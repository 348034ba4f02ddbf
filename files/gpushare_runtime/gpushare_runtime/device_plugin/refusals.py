# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What was refused at this node not long ago: the scheduler side is to hold that card back for that size, or it would try again at once.

No I/O; the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from gpushare_runtime.device_plugin.changes import Changes
from gpushare_runtime.held import Refusal

# Longer than a controller needs to make the next pod, which is when the scheduler would choose the card again.
LIFETIME: Final = 60.0


class Refusals:
    """Each ends with its time, or as soon as who holds the card has changed. state: what that is now; clock: Unix time."""

    def __init__(self, clock: Callable[[], float], state: Callable[[str], Hashable]) -> None:
        self.changes = Changes()
        self._clock = clock
        self._state = state
        self._known: dict[tuple[str, str], tuple[Refusal, Hashable]] = {}

    def add(self, uid: str, card: str, units: int, *, whole: bool) -> None:
        refusal = Refusal(uid, card, units, self._clock() + LIFETIME, whole)
        self._known[uid, card] = refusal, self._state(card)
        self.changes.notify()

    def current(self) -> list[Refusal]:
        """Those that still hold, oldest first."""
        now = self._clock()
        kept = {key: (r, state) for key, (r, state) in self._known.items() if r.until > now and self._state(r.card) == state}
        self._known = kept
        return [refusal for refusal, _ in kept.values()]

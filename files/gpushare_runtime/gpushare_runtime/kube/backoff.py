# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How long to wait after a failure."""

from __future__ import annotations

import random
from typing import Final

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0


class Backoff:
    """Seconds to wait after each failure in a row: doubling, capped, with jitter so that clients do not come together."""

    def __init__(self, first: float = _FIRST_WAIT, longest: float = _LONGEST_WAIT) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def wait(self) -> float:
        seconds = self._next * (0.5 + random.random() / 2)
        self._next = min(self._next * 2, self._longest)
        return seconds

    def reset(self) -> None:
        self._next = self._first

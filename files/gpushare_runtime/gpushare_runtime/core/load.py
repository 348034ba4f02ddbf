# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How busy pods keep the engines of their GPUs, as a mean of the last minute, and since when a pod has used none of them. Pure.

NVML counts in whole percent: what keeps an engine busy for less than half a percent of the time is nothing to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

WINDOW_SECONDS: Final = 60.0
"""Of the mean: as long as the usual pauses between two scrapes."""
UNKNOWN_SECONDS: Final = 120.0
"""A pod whose GPU has not been read for longer is followed anew: it may have been busy meanwhile."""
FULL: Final = 100.0
_MOST_READINGS: Final = 64

Key = tuple[str, str]
"""Pod UID, GPU UUID."""
ContainerKey = tuple[str, str, str]
"""Pod UID, GPU UUID, container."""
K = TypeVar("K", Key, ContainerKey)


@dataclass(frozen=True)
class Load:
    """Percent of the time in which an engine was busy. memory: reads and writes of the GPU's memory, not how much is in use."""

    sm: float = 0.0
    memory: float = 0.0
    encoder: float = 0.0
    decoder: float = 0.0

    def values(self) -> tuple[float, float, float, float]:
        return self.sm, self.memory, self.encoder, self.decoder

    def plus(self, other: Load) -> Load:
        """Of two programs together: no engine is busy for more than all of the time, whatever the samples add up to."""
        return Load(*(min(FULL, mine + its) for mine, its in zip(self.values(), other.values(), strict=True)))

    @property
    def nothing(self) -> bool:
        return not any(self.values())


NOTHING: Final = Load()


@dataclass
class _Followed:
    """idle_since: Unix time from which on every reading was of nothing; None: the last one was not."""

    read_at: float
    idle_since: float | None
    readings: deque[tuple[float, Load]] = field(default_factory=lambda: deque(maxlen=_MOST_READINGS))


class Activity(Generic[K]):
    """Follows pods, or containers, from reading to reading."""

    def __init__(self) -> None:
        self._followed: dict[K, _Followed] = {}

    def observe(self, loads: Mapping[K, Load], allocated: frozenset[K], now: float, wall: float) -> None:
        """Take a reading. allocated: all of them. loads: of these, where the GPU was read. now: monotonic seconds. wall: Unix time."""
        for key in self._followed.keys() - allocated:
            del self._followed[key]
        for key in allocated & loads.keys():
            load, known = loads[key], self._followed.get(key)
            if known is None or now - known.read_at > UNKNOWN_SECONDS:
                known = self._followed[key] = _Followed(now, wall)
            known.read_at = now
            if not load.nothing:
                known.idle_since = None
            elif known.idle_since is None:
                known.idle_since = wall
            known.readings.append((now, load))
            while known.readings[0][0] <= now - WINDOW_SECONDS:
                known.readings.popleft()

    def means(self, now: float) -> dict[K, Load]:
        """Of the readings of the last minute; a pod whose GPU was not read then is not in it."""
        found = {}
        for key, known in self._followed.items():
            recent = [load for at, load in known.readings if at > now - WINDOW_SECONDS]
            if recent:
                found[key] = Load(*(sum(values) / len(recent) for values in zip(*(load.values() for load in recent), strict=True)))
        return found

    def idle(self, now: float) -> dict[K, float]:
        """Unix time since when a pod has used nothing of a GPU, for those that use nothing now."""
        return {
            key: known.idle_since
            for key, known in self._followed.items()
            if known.idle_since is not None and now - known.read_at <= UNKNOWN_SECONDS
        }

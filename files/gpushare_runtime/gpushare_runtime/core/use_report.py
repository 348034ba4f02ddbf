# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The use that the pods of a node make of its GPUs, for people without a Prometheus: the node annotation `gpushare/use`. Pure.

It is small and written seldom: each write of a node goes to etcd and to everybody who watches nodes. So numbers are coarse, and change
only by what a person would notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare_runtime.core.bounds import MOST_GPUS, MOST_UNITS, ReportError, is_text, quote, read_versioned

VERSION: Final = 1
MOST_PODS: Final = 256
"""Entries, a pod on two GPUs has two; a node has at most 110 pods unless it is told otherwise."""
WRITE_SECONDS: Final = 60.0
"""At least between two writes."""
NOTED_PERCENT: Final = 10
"""A load that differs by less is not worth a write."""
NOTED_PART: Final = 1 / 16
"""Of the memory in use, and at least so many MiB."""
NOTED_MIB: Final = 256
REFRESH_SECONDS: Final = 6 * 3600.0
"""So old a report becomes at most: what was measured since is lost when the plugin ends, and an older one is of a plugin that has."""
LATE_SECONDS: Final = 3600.0
"""For writes that fail, GPUs that do not answer for a while, and clocks that differ."""
IDLE_SECONDS: Final = 600.0
"""So long a pod has used nothing before it is written down as idle: a short pause is no news."""
_LATEST: Final = 2**40
_MOST_UID: Final = 64


@dataclass(frozen=True)
class GpuUse:
    """mib: in use, by whatever process. sm: percent, None where unknown."""

    mib: int
    sm: int | None = None


@dataclass(frozen=True)
class PodUse:
    """mib: None where unknown. sm: percent of the last minute. idle: Unix time since when it has kept nothing busy, None if it is not idle
    or this is unknown. peak: the most MiB that it has used, of all readings, see `step_up`; None where unknown. seconds: for so long its
    use had been measured then."""

    mib: int | None = None
    sm: int | None = None
    idle: int | None = None
    peak: int | None = None
    seconds: int = 0


@dataclass(frozen=True)
class UseReport:
    """at: Unix time. gpus: by index; pods: by (UID, index). left_out: entries of pods for which there was no room."""

    at: int = 0
    gpus: Mapping[int, GpuUse] = field(default_factory=dict)
    pods: Mapping[tuple[str, int], PodUse] = field(default_factory=dict)
    left_out: int = 0

    def differs(self, before: UseReport) -> bool:
        """Whether a person would notice the difference, or the one before is old."""
        if self.gpus.keys() != before.gpus.keys() or self.pods.keys() != before.pods.keys():
            return True
        gpus = [(now, before.gpus[index]) for index, now in self.gpus.items()]
        pods = [(now, before.pods[key]) for key, now in self.pods.items()]
        if any((now.idle is None) != (was.idle is None) or now.peak != was.peak for now, was in pods):
            return True
        if self.at - before.at >= REFRESH_SECONDS:
            return True
        sizes = [(now.mib, was.mib) for now, was in gpus] + [(now.mib, was.mib) for now, was in pods]
        loads = [(now.sm, was.sm) for now, was in gpus] + [(now.sm, was.sm) for now, was in pods]
        return any(_noted(*size, memory=True) for size in sizes) or any(_noted(*load) for load in loads)

    def is_old(self, now: float) -> bool:
        """Whether the node has stopped renewing it. now: Unix time."""
        return now - self.at > REFRESH_SECONDS + LATE_SECONDS

    def to_json(self) -> str:
        """The annotation's value. Of too many pods those with most memory are in it."""
        ranked = sorted(self.pods.items(), key=lambda item: (-(item[1].mib or 0), item[0]))
        pods = [[uid, index, use.mib, use.sm, use.idle, use.peak, use.seconds] for (uid, index), use in ranked[:MOST_PODS]]
        gpus = [[index, use.mib, use.sm] for index, use in sorted(self.gpus.items())[:MOST_GPUS]]
        left_out = self.left_out + max(0, len(ranked) - MOST_PODS)
        made = {"v": VERSION, "at": self.at, "gpus": gpus, "pods": pods, "left_out": left_out}
        return json.dumps(made, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> UseReport:
        """Parse the annotation; ReportError says what is wrong. Unknown fields, and further values of an entry, are ignored."""
        data = read_versioned(text, VERSION)
        gpus: dict[int, GpuUse] = {}
        for entry in _entries(data, "gpus", MOST_GPUS, 3):
            gpus[_number(entry[0], "gpus: index")] = GpuUse(_number(entry[1], "gpus: MiB"), _maybe(entry[2], "gpus: percent", 100))
        pods: dict[tuple[str, int], PodUse] = {}
        for entry in _entries(data, "pods", MOST_PODS, 7):
            uid = entry[0]
            if not isinstance(uid, str) or not is_text(uid, _MOST_UID):
                raise ReportError(f"pods must be named by their UIDs, found {quote(uid)}")
            pods[uid, _number(entry[1], "pods: index")] = PodUse(
                _maybe(entry[2], "pods: MiB", MOST_UNITS),
                _maybe(entry[3], "pods: percent", 100),
                _maybe(entry[4], "pods: time", _LATEST),
                _maybe(entry[5], "pods: most MiB", MOST_UNITS),
                _number(entry[6], "pods: seconds", _LATEST),
            )
        return cls(_number(data.get("at"), "at", _LATEST), gpus, pods, _number(data.get("left_out", 0), "left_out"))

    def seconds_of(self, use: PodUse, now: float) -> float:
        """The time in which one of its pods' use has been measured. now: Unix time, up to which the plugin has run."""
        return use.seconds + (max(0.0, now - self.at) if use.mib is not None else 0.0)


def step_up(mib: int) -> int:
    """The next step of a peak, in MiB: what is published is never less than what was used, and each step is worth a write."""
    step = max(NOTED_MIB, 1 << max(0, mib.bit_length() - 5))
    return -(-mib // step) * step


def _noted(now: int | None, was: int | None, *, memory: bool = False) -> bool:
    if now is None or was is None:
        return (now is None) != (was is None)
    return abs(now - was) >= (max(NOTED_MIB, was * NOTED_PART) if memory else NOTED_PERCENT)


def _entries(data: Mapping[str, Any], name: str, most: int, length: int) -> list[list[Any]]:
    found = data.get(name, [])
    if not isinstance(found, list) or len(found) > most:
        raise ReportError(f"{name} must be a list of at most {most}, found {quote(found)}")
    for entry in found:
        if not isinstance(entry, list) or len(entry) < length:
            raise ReportError(f"{name} must have entries of {length} values, found {quote(entry)}")
    return found


def _number(value: object, where: str, most: int = MOST_UNITS) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ReportError(f"{where} must be a number from 0 to {most}, found {quote(value)}")
    return value


def _maybe(value: object, where: str, most: int) -> int | None:
    return None if value is None else _number(value, where, most)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Metrics in Prometheus' text format (version 0.0.4), those of the process itself among them. Pure.

By hand: one page of text does not earn every node another locked dependency.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from gpushare_runtime import __version__

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Seconds; fine where answers to kubelet and kube-scheduler should be, coarse beyond.
LATENCY_BOUNDS: Final = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_LINES: Final = 200

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Sample:
    """One line: the family's name with suffix, labels, value."""

    value: float
    labels: Labels = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """One metric. name: with its unit, `_total` for counters; help: one line; samples: read once."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Iterable[Sample]


class Histogram:
    """How often a value was at most each bound."""

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Labels | None = None) -> list[Sample]:
        """The lines of this histogram with these labels."""
        of = dict(labels or {})
        lines, total = [], 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(Sample(total, {**of, "le": bound}, "_bucket"))
        return [*lines, Sample(self._sum, of, "_sum"), Sample(total, of, "_count")]


def render(families: Iterable[Family]) -> Iterator[str]:
    """The text that a scrape gets, in pieces of at most so many lines that each takes about a millisecond."""
    for family in families:
        yield f"# HELP {family.name} {_escaped(family.help)}\n# TYPE {family.name} {family.kind}\n"
        samples = iter(family.samples)
        while lines := "".join(_line(family, sample) for sample in islice(samples, _LINES)):
            yield lines


def _line(family: Family, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(value, quote=True)}"' for key, value in sample.labels.items())
    return f"{family.name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_PROC: Final = Path("/proc")
# Places after the name in /proc/self/stat, see proc(5).
_START, _VIRTUAL, _RESIDENT = 19, 20, 21


def families(daemon: str) -> Iterator[Family]:
    """daemon: its name, for the version's sample."""
    # The name may contain anything, also spaces and parentheses.
    fields = (_PROC / "self/stat").read_text().rpartition(")")[2].split()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    started = _boot_time() + int(fields[_START]) / os.sysconf("SC_CLK_TCK")
    files = len(os.listdir(_PROC / "self/fd"))
    values = (
        ("process_cpu_seconds_total", "counter", "CPU time of this process", usage.ru_utime + usage.ru_stime),
        ("process_resident_memory_bytes", "gauge", "Memory of this process", int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")),
        ("process_virtual_memory_bytes", "gauge", "Address space of this process", int(fields[_VIRTUAL])),
        ("process_open_fds", "gauge", "Open files and connections", files),
        ("process_max_fds", "gauge", "How many there may be", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ("process_start_time_seconds", "gauge", "When this process began, in Unix time", started),
    )
    for name, kind, text, value in values:
        yield Family(name, "counter" if kind == "counter" else "gauge", text, [Sample(value)])
    yield Family("gpushare_build_info", "gauge", "The release", [Sample(1, {"daemon": daemon, "version": __version__})])


def _boot_time() -> int:
    lines = (_PROC / "stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))

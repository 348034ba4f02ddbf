# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What this process uses, by the names that every Prometheus client library has for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime import __version__
from gpushare_runtime.metrics import Family, Sample

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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where the minutes of a run go: spans of time as JSON lines in the file that GPUSHARE_TIMELINE names.

A span is {"suite", "kind", "what", "at", "seconds"}. Kinds: "lab" (a command of the lab that takes long), "playbook"
(ansible-playbook), "wait" (until a condition holds), "command" (any other), "test" (setup, call and teardown together). Spans
may lie inside each other: a test has waits, a setup brings a lab up. As a plugin of pytest (`-p timeline`) this module writes
the spans of the tests. Without the variable nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_SHORTEST = 0.5


@contextmanager
def span(kind: str, what: str) -> Iterator[None]:
    """Note how long the block took, also where it fails; a block under half a second is not worth a line."""
    started = time.time()
    try:
        yield
    finally:
        if (seconds := time.time() - started) >= _SHORTEST:
            write(kind, what, started, seconds)


def write(kind: str, what: str, at: float, seconds: float) -> None:
    """Append one span. at: when it began, seconds since the epoch."""
    if not (path := os.environ.get("GPUSHARE_TIMELINE")):
        return
    entry = {"suite": os.environ.get("GPUSHARE_SUITE", ""), "kind": kind, "what": what, "at": round(at, 1), "seconds": round(seconds, 2)}
    # One write of one line: several suites append to the same file.
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(entry) + "\n").encode())


_phases: dict[str, list[pytest.TestReport]] = defaultdict(list)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One span for each test, when its last phase has been reported; by the process that has them all."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    phases = _phases[report.nodeid]
    phases.append(report)
    if report.when == "teardown":
        del _phases[report.nodeid]
        write("test", report.nodeid, phases[0].start, sum(phase.duration for phase in phases))

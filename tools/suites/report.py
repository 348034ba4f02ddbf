# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where a run's minutes went: the table that is printed at its end, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from suites.run import Job

KINDS = ("lab", "playbook", "wait")
LONG_TEST_S = 10.0


def spans(path: Path) -> list[dict[str, Any]]:
    """The lines of timeline.py; [] without any."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_suite(jobs: Iterable[Job], timeline: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Suite → its counts, its seconds, and the seconds of each kind of span in it."""
    found = {}
    for job in jobs:
        own = [span for span in timeline if span["suite"] == job.suite.name]
        kinds = {kind: round(covered([span for span in own if span["kind"] == kind]), 1) for kind in KINDS}
        long = sorted((s for s in own if s["kind"] == "test" and s["seconds"] > LONG_TEST_S), key=lambda s: -s["seconds"])
        found[job.suite.name] = {
            "passed": job.passed,
            "failed": job.failed,
            "skipped": job.skipped,
            "began": round(job.began, 1),
            "seconds": round(job.seconds, 1),
            **kinds,
            "long_tests": {span["what"]: span["seconds"] for span in long},
        }
    return found


def covered(own: list[dict[str, Any]]) -> float:
    """The seconds in which at least one of these spans was under way."""
    total, end = 0.0, 0.0
    for span in sorted(own, key=lambda span: float(span["at"])):
        begin, until = float(span["at"]), float(span["at"]) + float(span["seconds"])
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total


def table(suites: Mapping[str, Mapping[str, Any]], wall: float) -> str:
    """The suites, the longest first, and every test over ten seconds."""
    head = ["suite", "began", "seconds", *(f"of it {kind}" for kind in KINDS), "passed", "failed", "skipped"]
    keys = ["began", "seconds", *KINDS, "passed", "failed", "skipped"]
    order = sorted(suites, key=lambda name: -suites[name]["seconds"])
    rows = [head, *([name, *(f"{suites[name][key]:.0f}" for key in keys)] for name in order)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    long = sorted(((seconds, f"{name}: {test}") for name in suites for test, seconds in suites[name]["long_tests"].items()), reverse=True)
    lines += [f"{wall:.0f} s in all", "", f"tests over {LONG_TEST_S:.0f} s:", *(f"{seconds:6.1f}  {test}" for seconds, test in long)]
    return "\n".join(lines)

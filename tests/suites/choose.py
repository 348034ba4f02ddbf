# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which suites a change asks for: by the paths changed since each suite's last recorded green run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.table import SUITES, Suite

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = REPOSITORY / "docs/benchmarks/full-run.json"
# Two at a time, on a machine of two cores, end in about this part of the sum of their times.
BESIDE = 0.65


NO_RECORD = "has no recorded run that git knows"


@dataclass(frozen=True)
class Choice:
    """A suite that is run, and why."""

    suite: Suite
    why: str


def records() -> dict[str, dict[str, Any]]:
    """Suite → its last recorded green run: "commit", "date", "size", "seconds", "passed", "skipped"; {} without a record."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())["suites"] if RECORD.exists() else {}
    return found


def git(*arguments: str) -> str | None:
    """What git prints; None where it fails."""
    # A checkout may belong to somebody else than who tests it.
    command = ["git", "-c", f"safe.directory={REPOSITORY}", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else None


def changed_since(commit: str) -> list[str] | None:
    """Every path that differs from that commit, new ones included; None where git does not know it."""
    tracked, new = git("diff", "--name-only", "-z", commit), git("ls-files", "-z", "--others", "--exclude-standard")
    if tracked is None or new is None:
        return None
    return sorted({path for path in (tracked + new).split("\0") if path})


def asked_for(changes: Mapping[str, list[str] | None], suites: Iterable[Suite] = SUITES) -> list[Choice]:
    """Those that always run, and those whose paths have changed. changes: suite → changed paths; None without a usable record."""
    chosen = []
    for suite in suites:
        paths = changes.get(suite.name)
        if suite.always:
            chosen.append(Choice(suite, "always"))
        elif suite.only_full:
            continue
        elif paths is None:
            chosen.append(Choice(suite, NO_RECORD))
        elif found := [path for path in paths if suite.asks(path)]:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            chosen.append(Choice(suite, f"{found[0]}{more} changed"))
    return chosen


def seconds_of(suite: Suite, record: Mapping[str, Mapping[str, Any]]) -> float:
    """What it is expected to take."""
    return float(record.get(suite.name, {}).get("seconds", suite.seconds))


def within(chosen: list[Choice], record: Mapping[str, Mapping[str, Any]], minutes: float) -> tuple[list[Choice], list[Choice]]:
    """Those that fit into the time, in the table's order, and those that are left for `make test-full`.

    A suite that was never recorded is left, too: what it takes is a guess, and a full run must have seen it green first.
    """
    taken, left, total = [], [], 0.0
    for choice in chosen:
        needed = seconds_of(choice.suite, record)
        if choice.suite.always or (choice.why != NO_RECORD and (total + needed) * BESIDE <= minutes * 60):
            taken.append(choice)
            total += needed
        else:
            left.append(choice)
    return taken, left


def not_recorded(record: Mapping[str, Mapping[str, Any]], suites: Iterable[Suite]) -> list[str]:
    """Why a release of this tree lacks a record, suite by suite. What a full run writes itself does not count as a change."""
    missing = []
    changes = changes_by_record(record)
    for suite in suites:
        paths = changes.get(suite.name)
        found = [path for path in paths or () if not path.startswith("docs/benchmarks/")]
        if paths is None:
            missing.append(f"{suite.name}: no recorded run that git knows")
        elif record[suite.name]["size"] != "full":
            missing.append(f"{suite.name}: recorded {record[suite.name]['size']}, not at full size")
        elif found:
            missing.append(
                f"{suite.name}: recorded at {record[suite.name]['commit'][:12]}, {len(found)} files have changed since, {found[0]} first"
            )
    return missing


def changes_by_record(record: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str] | None]:
    """Suite → what has changed since its recorded run."""
    by_commit: dict[str, list[str] | None] = {}
    for entry in record.values():
        commit = str(entry["commit"])
        if commit not in by_commit:
            by_commit[commit] = changed_since(commit)
    return {name: by_commit[str(entry["commit"])] for name, entry in record.items()}

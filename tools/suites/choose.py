# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which suites a change asks for: those whose files are not as in their last recorded green run."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from suites.table import SUITES, Suite
from tree import REPOSITORY, files

RESULTS = "docs/project/benchmarks/"
RECORD = REPOSITORY / RESULTS / "full-run.json"
# Two at a time, on a machine of two cores, end in about this part of the sum of their times.
BESIDE = 0.65
NO_RECORD = "no run of it is recorded"


@dataclass(frozen=True)
class Choice:
    """A suite that is run, and why."""

    suite: Suite
    why: str


def records() -> dict[str, dict[str, Any]]:
    """Suite → its last recorded green run; {} without one.

    "commit", "date", "size", "seconds", "passed", "skipped", and fingerprints: "files" of those that ask for it, "tree" of all.
    """
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())["suites"] if RECORD.exists() else {}
    return found


def git(*arguments: str) -> str | None:
    """What git prints; None where it fails."""
    # A checkout may belong to somebody else than who tests it.
    command = ["git", "-c", f"safe.directory={REPOSITORY}", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else None


def changed_since(commit: str) -> list[str]:
    """Every path that differs from that commit, new ones included; [] where git does not know it."""
    tracked, new = git("diff", "--name-only", "-z", commit), git("ls-files", "-z", "--others", "--exclude-standard")
    return sorted({path for path in ((tracked or "") + (new or "")).split("\0") if path}) if tracked is not None else []


def contents(paths: Iterable[str] | None = None) -> dict[str, str]:
    """A hash of each file, by default of all of this tree, but for what runs write themselves, which is no change."""
    found = {}
    for path in sorted(files() if paths is None else paths):
        if not path.startswith(RESULTS):
            place = REPOSITORY / path
            content = str(place.readlink()).encode() if place.is_symlink() else place.read_bytes()
            found[path] = hashlib.sha256(content).hexdigest()
    return found


def fingerprint(suite: Suite | None, tree: Mapping[str, str]) -> str:
    """Of the files that ask for the suite, or of all: commits may be squashed, and a clone may have one only. tree: as from `contents`."""
    lines = (f"{path}\0{found}\n" for path, found in tree.items() if suite is None or suite.asks(path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:20]


def changes(
    record: Mapping[str, Mapping[str, Any]], suites: Iterable[Suite] = SUITES, tree: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Suite → what has changed since its record, in words; "" if nothing has. One without a usable record is missing.

    tree: as from `contents`.
    """
    here = contents() if tree is None else tree
    found = {}
    for suite in suites:
        entry = record.get(suite.name, {})
        if "files" not in entry:
            continue
        found[suite.name] = "" if entry["files"] == fingerprint(suite, here) else _words(suite, entry)
    return found


def _words(suite: Suite, entry: Mapping[str, Any]) -> str:
    known = [path for path in changed_since(str(entry["commit"])) if suite.asks(path) and not path.startswith(RESULTS)]
    if not known:
        return f"its files have changed since {entry['date']}"
    return f"{known[0]}{f' and {len(known) - 1} more' if len(known) > 1 else ''} changed"


def asked_for(changed: Mapping[str, str], suites: Iterable[Suite] = SUITES) -> list[Choice]:
    """Those that always run, and those whose files have changed. changed: as from `changes`."""
    chosen = []
    for suite in suites:
        if suite.always:
            chosen.append(Choice(suite, "always"))
        elif not suite.only_full and (why := changed.get(suite.name, NO_RECORD)):
            chosen.append(Choice(suite, why))
    return chosen


def seconds_of(suite: Suite, record: Mapping[str, Mapping[str, Any]]) -> float:
    """What it is expected to take."""
    return float(record.get(suite.name, {}).get("seconds", suite.seconds))


def within(chosen: list[Choice], record: Mapping[str, Mapping[str, Any]], minutes: float) -> tuple[list[Choice], list[Choice]]:
    """Those that fit into the time, in the table's order, and those that are left for `make test-full`."""
    taken, left, total = [], [], 0.0
    for choice in chosen:
        needed = seconds_of(choice.suite, record)
        if choice.suite.always or (total + needed) * BESIDE <= minutes * 60:
            taken.append(choice)
            total += needed
        else:
            left.append(choice)
    return taken, left


def not_recorded(record: Mapping[str, Mapping[str, Any]], suites: Iterable[Suite], tree: Mapping[str, str] | None = None) -> list[str]:
    """Why a release of this tree lacks a record, suite by suite. tree: as from `contents`."""
    missing = []
    whole = fingerprint(None, contents() if tree is None else tree)
    for suite in suites:
        entry = record.get(suite.name, {})
        if "tree" not in entry:
            missing.append(f"{suite.name}: {NO_RECORD}")
        elif entry["size"] != "full":
            missing.append(f"{suite.name}: recorded {entry['size']}, not at full size")
        elif entry["tree"] != whole:
            missing.append(f"{suite.name}: recorded on {entry['date']} at {str(entry['commit'])[:12]}, which is another tree")
    return missing

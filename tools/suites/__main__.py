# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`python -m suites quick|changed|full`, `run NAME …`, `plan` (of changed), `list`, `recorded` (for a release); see table.py."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from suites.choose import (
    NO_RECORD,
    RECORD,
    RESULTS,
    Choice,
    asked_for,
    changes,
    contents,
    fingerprint,
    git,
    not_recorded,
    records,
    seconds_of,
    within,
)
from suites.report import by_suite, spans, table
from suites.run import BUILD, TIMELINE, Job, Runner, failures, totals
from suites.table import BY_NAME, SUITES


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(prog="suites", description="Run the suites of tools/suites/table.py.")
    parser.add_argument("mode", choices=("quick", "changed", "full", "run", "plan", "list", "recorded"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"for run: {', '.join(BY_NAME)}")
    parser.add_argument(
        "--jobs", type=int, default=int(os.environ.get("GPUSHARE_JOBS", "2")), help="how many at once (default: %(default)s)"
    )
    # A CI machine takes up to 1.3 times what is expected, and has 25 minutes.
    parser.add_argument(
        "--minutes", type=float, default=20, help="for changed: what does not fit is named and left out (default: %(default)s)"
    )
    parser.add_argument(
        "--full-size", action="store_true", help="for run: at full size, and green ones are recorded, as full does with all"
    )
    parser.add_argument("--record", action="store_true", help="for run: record green ones although they are not at full size")
    given = parser.parse_args(arguments)
    full_size = given.full_size or given.mode == "full"
    if strangers := set(given.names) - set(BY_NAME):
        parser.error(f"found {', '.join(sorted(strangers))}, expected names of suites: {', '.join(BY_NAME)}")
    if bool(given.names) != (given.mode == "run"):
        parser.error("names of suites belong to run, and only there")

    if given.mode == "recorded":
        missing = not_recorded(records(), SUITES)
        say("\n".join(missing) or "every suite is recorded as green at this commit")
        return 1 if missing else 0
    if given.mode == "list":
        say("\n".join(f"{suite.name:10} {suite.what}" for suite in SUITES))
        return 0
    record = records()
    chosen, left = choices(given.mode, given.names, record, given.minutes)
    for choice in chosen:
        say(f"{choice.suite.name:10} {choice.suite.what} ({choice.why})")
    for choice in left:
        reason = choice.why if choice.why == NO_RECORD else f"{choice.why}, but {given.minutes:g} minutes are full"
        say(f"LEFT OUT   {choice.suite.name}: {reason}; make test-full runs it")
    if given.mode == "plan":
        return 0

    # As Ctrl-C would end it: suites and labs are taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = (git("rev-parse", "HEAD") or "").strip(), git("status", "--porcelain", "--", ".", f":!{RESULTS}")
    keeps = full_size or given.record
    if keeps and (before[1] or not before[0]):
        say(f"nothing will be recorded in {RECORD.name}: the work tree differs from its commit")
        keeps = False
    tree = contents() if keeps else {}
    whole = fingerprint(None, tree)

    def ended(job: Job) -> None:
        # At once: what comes later may never end.
        if keeps and not job.failed:
            ran_on = {"commit": before[0], "files": fingerprint(job.suite, tree), "tree": whole}
            note(job, by_suite([job], spans(TIMELINE))[job.suite.name], ran_on, full_size)

    jobs = [Job(choice.suite) for choice in chosen]
    runner = Runner(jobs, given.jobs, full_size, lambda suite: seconds_of(suite, record), say, ended)
    runner.run()
    wall = time.monotonic() - runner.started

    for job in jobs:
        if job.failed:
            say("\n" + failures(job))
    measured = by_suite(jobs, spans(TIMELINE))
    say("\n" + table(measured, wall))
    (BUILD / "run.json").write_text(
        json.dumps({"mode": given.mode, "commit": before[0], "seconds": round(wall), "suites": measured}, indent=1) + "\n"
    )
    sums = totals(jobs)
    say(f"\n{sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped")
    return 1 if sums["failed"] else 0


def choices(mode: str, names: Sequence[str], record: dict[str, dict[str, Any]], minutes: float) -> tuple[list[Choice], list[Choice]]:
    """What is run, and what is left out for want of time."""
    match mode:
        case "quick":
            return [Choice(suite, "always") for suite in SUITES if suite.always or suite.quick], []
        case "full":
            return [Choice(suite, "all") for suite in SUITES], []
        case "run":
            return [Choice(BY_NAME[name], "asked for") for name in dict.fromkeys(names)], []
        case _:
            return within(asked_for(changes(record)), record, minutes)


def note(job: Job, measured: dict[str, Any], ran_on: dict[str, str], full_size: bool) -> None:
    """Record a green suite with the commit and the fingerprints of the files that it ran on."""
    record = records()
    times = {key: measured[key] for key in ("seconds", "passed", "skipped", "lab", "playbook", "wait")}
    # A suite without a larger size has one only.
    size = "full" if full_size or not job.suite.full else "as in CI"
    record[job.suite.name] = {**ran_on, "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "size": size, **times}
    RECORD.write_text(json.dumps({"suites": {name: record[name] for name in BY_NAME if name in record}}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

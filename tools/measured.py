# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The times that tests on a lab print, as a saved result: `python tools/measured.py LOG…` adds a run to failures.json.

A line is `measured: WHAT: SECONDS s`. docs/operate/failures.md has the smallest and the largest of all runs; a unit test compares them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

RESULT: Final = Path(__file__).resolve().parent.parent / "docs/project/benchmarks/failures.json"
LINE: Final = re.compile(r"^measured: (.+): (\d+\.\d) s", re.MULTILINE)


def read(text: str) -> dict[str, list[float]]:
    """What was measured in a log, each with its seconds in the order of the log."""
    found: dict[str, list[float]] = {}
    for what, seconds in LINE.findall(text):
        found.setdefault(what, []).append(float(seconds))
    return found


def span(runs: list[dict[str, Any]], *whats: str) -> str:
    """The smallest and the largest of these, over all runs, as a page has them. KeyError if one was never measured."""
    seconds = []
    for what in whats:
        of_what = [one for run in runs for one in run["seconds"].get(what, ())]
        if not of_what:
            raise KeyError(what)
        seconds += of_what
    least, most = (f"{one:.1f}" if one < 10 else f"{one:.0f}" for one in (min(seconds), max(seconds)))
    return f"{least} s" if least == most else f"{least}–{most} s"


def main(logs: list[str]) -> None:
    seconds = read("\n".join(Path(log).read_text() for log in logs))
    if not seconds:
        sys.exit("found no line `measured: WHAT: SECONDS s` in these logs")
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}"
    run = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "machine": machine, "load": round(os.getloadavg()[2], 1), "seconds": seconds}
    runs = json.loads(RESULT.read_text()) if RESULT.is_file() else []
    text = json.dumps([*runs, run], indent=1)
    # The times of one thing on one line.
    RESULT.write_text(re.sub(r"\[\s+([\d.,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

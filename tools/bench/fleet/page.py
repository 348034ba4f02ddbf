# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The table of docs/project/benchmarks/fleet.md, made from fleet.json beside it: `python -m bench.fleet.page` writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.scheduling.page import FOLDER, filled, table

PAGE: Final = FOLDER / "fleet.md"
RESULT: Final = FOLDER / "fleet.json"
#: CPU seconds of the controller for each GPU node, by step.
TARGETS: Final = {"site": 1.0, "first site": 6.0}
_HEAD: Final = (
    "measured",
    "step",
    "GPU nodes",
    "forks",
    "time (target)",
    "CPU",
    "CPU per node (target)",
    "CPU per further node",
    "CPU per node, beside the fewest nodes (target)",
    "modules per host",
    "results per host",
    "sent per host",
    "largest process",
    "all processes (target)",
    "date",
)
#: Seconds of a step on so many nodes with so many forks.
TIMES: Final = {("site", 200, 50): 60}
#: MiB of all processes together, with the largest fleet.
MEMORY: Final = 1536
#: A node's CPU seconds in the largest fleet beside those in the smallest.
GROWTH: Final = 1.15
_PLANES: Final = 3


def tables(found: Sequence[dict[str, Any]]) -> str:
    """All that stands between the markers. found: the measurements of fleet.json."""
    rows = []
    for one in found:
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for run in one["runs"]:
            smaller = runs.setdefault((run["step"], run["forks"]), [])
            rows.append([one["what"], *_row(run, smaller), one["date"]])
            smaller.append(run)
    return table(_HEAD, rows)


def _row(run: dict[str, Any], smaller: Sequence[dict[str, Any]]) -> list[str]:
    nodes, hosts = run["nodes"], run["nodes"] + _PLANES
    each = run["seconds"] / nodes
    judged = _target(each, TARGETS.get(run["step"]))
    further = growth = ""
    if smaller:
        further = f"{(run['seconds'] - smaller[-1]['seconds']) / (nodes - smaller[-1]['nodes']):.2f} s"
        grown = each / (smaller[0]["seconds"] / smaller[0]["nodes"])
        growth = f"{grown:.2f}{_target(grown, GROWTH)}"
    counts = [f"{run[name] / hosts:.1f}" for name in ("modules", "results")]
    sizes = [f"{run['sent'] / hosts / 1e6:.1f} MB", f"{run['peak']:.0f} MiB"]
    together = run.get("together")
    sizes.append("" if together is None else f"{together:.0f} MiB{_target(together, MEMORY)}")
    # A record without it is of a machine that had other work.
    time = f"{run['wall']:.0f} s{_target(run['wall'], TIMES.get((run['step'], nodes, run['forks'])))}" if "wall" in run else ""
    each_run = [run["step"], str(nodes), str(run["forks"]), time]
    return [*each_run, f"{run['seconds']:.0f} s", f"{each:.2f} s{judged}", further, growth, *counts, *sizes]


def _target(value: float, target: float | None) -> str:
    return "" if target is None else f" ({target}{', missed' if value > target else ''})"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), tables(json.loads(Path(RESULT).read_text()))))


if __name__ == "__main__":
    main()

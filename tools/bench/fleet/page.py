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
    "CPU",
    "CPU per node (target)",
    "CPU per further node",
    "CPU per node, beside the fewest nodes (target)",
    "modules per host",
    "results per host",
    "sent per host",
    "largest process",
    "date",
)
#: A node's CPU seconds in the largest fleet beside those in the smallest.
GROWTH: Final = 1.15
_PLANES: Final = 3


def tables(found: Sequence[dict[str, Any]]) -> str:
    """All that stands between the markers. found: the measurements of fleet.json."""
    rows = []
    for one in found:
        runs: dict[str, list[dict[str, Any]]] = {}
        for run in one["runs"]:
            smaller = runs.setdefault(run["step"], [])
            rows.append([one["what"], *_row(run, smaller), one["date"]])
            smaller.append(run)
    return table(_HEAD, rows)


def _row(run: dict[str, Any], smaller: Sequence[dict[str, Any]]) -> list[str]:
    nodes, hosts = run["nodes"], run["nodes"] + _PLANES
    each = run["seconds"] / nodes
    target = TARGETS.get(run["step"])
    judged = "" if target is None else f" ({target}{', missed' if each > target else ''})"
    further = growth = ""
    if smaller:
        further = f"{(run['seconds'] - smaller[-1]['seconds']) / (nodes - smaller[-1]['nodes']):.2f} s"
        grown = each / (smaller[0]["seconds"] / smaller[0]["nodes"])
        growth = f"{grown:.2f} ({GROWTH}{', missed' if grown > GROWTH else ''})"
    counts = [f"{run[name] / hosts:.1f}" for name in ("modules", "results")]
    sizes = [f"{run['sent'] / hosts / 1e6:.1f} MB", f"{run['peak']:.0f} MiB"]
    return [run["step"], str(nodes), f"{run['seconds']:.0f} s", f"{each:.2f} s{judged}", further, growth, *counts, *sizes]


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), tables(json.loads(Path(RESULT).read_text()))))


if __name__ == "__main__":
    main()

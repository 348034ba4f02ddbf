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
    "modules per host",
    "results per host",
    "sent per host",
    "largest process",
    "date",
)
_PLANES: Final = 3


def tables(found: Sequence[dict[str, Any]]) -> str:
    """All that stands between the markers. found: the measurements of fleet.json."""
    rows = []
    for one in found:
        before: dict[str, dict[str, Any]] = {}
        for run in one["runs"]:
            rows.append([one["what"], *_row(run, before.get(run["step"])), one["date"]])
            before[run["step"]] = run
    return table(_HEAD, rows)


def _row(run: dict[str, Any], smaller: dict[str, Any] | None) -> list[str]:
    nodes, hosts = run["nodes"], run["nodes"] + _PLANES
    each = run["seconds"] / nodes
    target = TARGETS.get(run["step"])
    judged = "" if target is None else f" ({target}{', missed' if each > target else ''})"
    further = "" if smaller is None else f"{(run['seconds'] - smaller['seconds']) / (nodes - smaller['nodes']):.2f} s"
    counts = [f"{run[name] / hosts:.1f}" for name in ("modules", "results")]
    sizes = [f"{run['sent'] / hosts / 1e6:.1f} MB", f"{run['peak']:.0f} MiB"]
    return [run["step"], str(nodes), f"{run['seconds']:.0f} s", f"{each:.2f} s{judged}", further, *counts, *sizes]


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), tables(json.loads(Path(RESULT).read_text()))))


if __name__ == "__main__":
    main()

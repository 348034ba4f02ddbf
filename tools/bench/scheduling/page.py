# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tables of docs/project/benchmarks/scheduling.md, made from the figures beside it: `python -m bench.scheduling.page` writes them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[3] / "docs/project/benchmarks"
PAGE: Final = FOLDER / "scheduling.md"
_BEGIN: Final = "<!-- measured: begin -->"
_END: Final = "<!-- measured: end -->"


def results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The figures, fewest nodes first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("scheduling-*.json"))]
    return sorted(found, key=lambda one: (one["nodes"], one["percentageOfNodesToScore"], one["most_nodes"]))


def beside(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The figures with HAMi's extender, which are of a program that not everybody has; [] without any."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("hami-*.json"))]


def tables(found: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]] = ()) -> str:
    """All that stands between the markers. others: of `beside`."""
    rounds = [one for one in found if one["rounds"]]
    parts = [table(_RATES, [_rate(one) for one in rounds]), table(_VERBS, [row for one in rounds for row in _verbs(one)])]
    full = [one["startup"] for one in found if one["startup"]]
    # Records of before 2026-11-30 say nothing about rest.
    rest = [_rest(one, times) for one in full for times in one.get("rest", ())]
    of_others = [_beside(one) for one in others]
    more = [table(head, rows) for head, rows in ((_STARTUP, [_startup(one) for one in full]), (_REST, rest), (_HAMI, of_others)) if rows]
    return "\n\n".join([*parts, *more])


def filled(page: str, text: str) -> str:
    """The page with this text between its markers. ValueError if it has none."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no {_BEGIN} … {_END}; put them where the tables belong")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


_RATES: Final = (
    "nodes",
    "nodes in a call",
    "pods",
    "without extender, pods/s",
    "with, pods/s",
    "ratio (target)",
    "CPU per pod without",
    "with",
    "of which the extender",
    "rate against the leanest (target 0.9)",
    "CPU against it (1.8)",
    "rate against it over TLS (0.9)",
    "CPU against it over TLS (1.8)",
    "bind conflicts",
    "date",
)
_LEANEST: Final = ("leanest_ratio", "leanest_cpu_ratio", "leanest_tls_ratio", "leanest_tls_cpu_ratio")
_VERBS: Final = ("nodes", "nodes in a call", "verb", "calls", "mean", "p50", "p95", "p99")
_STARTUP: Final = ("nodes", "bound pods", "start to first answer (target 5 s)", "of which own CPU", "resident")
_REST: Final = ("nodes", "bound pods", "at rest", "for", "changes per second", "CPU of a core (target 1 %)", "kube-apiserver and etcd")

#: Our rate as a multiple of HAMi's.
HAMI_TARGET: Final = 15
_HAMI: Final = (
    "nodes",
    "pods",
    "HAMi, pods/s",
    "gpushare, pods/s",
    f"times its rate (target {HAMI_TARGET})",
    "CPU per pod of HAMi's extender",
    "of ours",
    "CPU per pod of all with HAMi",
    "with ours",
    "resident, HAMi",
    "ours",
    "HAMi's binds that found the node locked, per pod",
    "date",
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def _rate(one: dict[str, Any]) -> list[str]:
    sides = [[r for r in one["rounds"] if r["kind"] == kind] for kind in ("no extender", "ours")]
    without, with_it = (statistics.mean(r["rate"] for r in side) for side in sides)
    cpu = [statistics.mean(sum(r["cpu_ms_per_pod"].values()) for r in side) for side in sides]
    own = statistics.mean(r["cpu_ms_per_pod"]["extender"] for r in sides[1])
    failed = sum(r["bind_failures"] for r in sides[1]) / sum(r["pods"] for r in sides[1])
    # Records of before 2026-11-30 have no such rounds.
    leanest = [f"{one[key]:.2f}" if key in one else "" for key in _LEANEST]
    target = f" ({one['target_ratio']})" if one["target_ratio"] else ""
    rates = [f"{without:.0f}", f"{with_it:.0f}", f"{one['ratio']:.2f}{target}"]
    costs = [f"{cpu[0]:.2f} ms", f"{cpu[1]:.2f} ms", f"{own:.2f} ms", *leanest, f"{100 * failed:.2f} %"]
    return [str(one["nodes"]), _asked(one), str(one["pods"]), *rates, *costs, one["date"]]


def _asked(one: dict[str, Any]) -> str:
    asked = "all" if one["percentageOfNodesToScore"] == 100 else "sampled"
    return f"{asked}, best {one['most_nodes']} named" if one["most_nodes"] else asked


def _verbs(one: dict[str, Any]) -> list[list[str]]:
    last = [r for r in one["rounds"] if r["kind"] == "ours"][-1]["latency"]
    return [
        [str(one["nodes"]), _asked(one), verb, str(took["calls"]), *(f"{took[key]:.2f} ms" for key in ("mean", "p50", "p95", "p99"))]
        for verb, took in last.items()
    ]


def _startup(one: dict[str, Any]) -> list[str]:
    times = [f"{one['ready_seconds']:.1f} s", f"{one['own_seconds']:.1f} s"]
    return [str(one["nodes"]), str(one["pods"]), *times, f"{one['resident_mib']:.0f} MiB"]


def _rest(full: dict[str, Any], one: dict[str, Any]) -> list[str]:
    plane = f"{one['plane_percent']:.0f} %" if "plane_percent" in one else ""
    figures = [f"{one['seconds']:.0f} s", f"{one['changes']:.0f}", f"{one['percent']:.1f} %", plane]
    return [str(full["nodes"]), str(full["pods"]), one["what"], *figures]


def _beside(one: dict[str, Any]) -> list[str]:
    hami, ours = ([r for r in one["rounds"] if r["kind"] == kind] for kind in ("HAMi", "ours"))
    rates = [f"{statistics.mean(r['rate'] for r in side):.0f}" for side in (hami, ours)]
    own = [f"{statistics.mean(r['cpu_ms_per_pod']['extender'] for r in side):.2f} ms" for side in (hami, ours)]
    cpu = [f"{statistics.mean(sum(r['cpu_ms_per_pod'].values()) for r in side):.2f} ms" for side in (hami, ours)]
    resident = [f"{statistics.mean(r['extender_resident_mib'] for r in side):.0f} MiB" for side in (hami, ours)]
    locked = sum(r["bind_failures"] for r in hami) / sum(r["pods"] for r in hami)
    ratio = f"{one['hami_ratio']:.1f}{', missed' if one['hami_ratio'] < HAMI_TARGET else ''}"
    return [str(one["nodes"]), str(one["pods"]), *rates, ratio, *own, *cpu, *resident, f"{locked:.2f}", one["date"]]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), tables(results(), beside())))

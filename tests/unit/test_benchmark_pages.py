# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tables of the benchmark pages are those of the figures beside them."""

from __future__ import annotations

import json

from bench.fleet import page as fleet
from bench.fleet import picture
from bench.scheduling import page


def test_scheduling() -> None:
    text = page.PAGE.read_text()
    assert page.filled(text, page.tables(page.results(), page.beside())) == text, "python -m bench.scheduling.page writes it anew"


def test_every_figure_of_scheduling_is_in_its_tables() -> None:
    latency = {"filter": {"calls": 9, "mean": 0.31, "p50": 0.2, "p95": 0.9, "p99": 1.5}}
    rounds = [
        {"kind": "no extender", "pods": 100, "rate": 400.0, "cpu_ms_per_pod": {"etcd": 0.5, "kube-scheduler": 2.0}},
        {
            "kind": "ours",
            "pods": 100,
            "rate": 300.0,
            "cpu_ms_per_pod": {"etcd": 0.5, "extender": 1.25},
            "bind_failures": 1,
            "latency": latency,
        },
    ]
    one = {
        "date": "2026-01-02",
        "nodes": 500,
        "pods": 100,
        "percentageOfNodesToScore": 100,
        "most_nodes": 0,
        "ratio": 0.75,
        "target_ratio": 0.75,
        "leanest_ratio": 0.8,
        "leanest_cpu_ratio": 2.5,
        "leanest_tls_ratio": 0.91,
        "leanest_tls_cpu_ratio": 1.75,
    }
    rest = {"what": "at rest", "seconds": 60.4, "changes": 88.7, "percent": 1.03, "plane_percent": 25.5}
    startup = {"nodes": 5000, "pods": 50000, "ready_seconds": 12.34, "own_seconds": 5.0, "resident_mib": 150.2, "rest": [rest]}
    idle = {"kind": "the leanest extender", "pods": 100, "rate": 375.0, "cpu_ms_per_pod": {"etcd": 0.5}}
    made = page.tables([{**one, "rounds": [*rounds, idle], "startup": startup}])
    assert "| 500 | all | 100 | 400 | 300 | 0.75 (0.75) | 2.50 ms | 1.75 ms | 1.25 ms | 0.80 | 2.50 | 0.91 | 1.75 | 1.00 % |" in made
    assert "| 500 | all | filter | 9 | 0.31 ms | 0.20 ms | 0.90 ms | 1.50 ms |" in made
    assert "| 5000 | 50000 | 12.3 s | 5.0 s | 150 MiB |" in made
    assert "| 5000 | 50000 | at rest | 60 s | 89 | 1.0 % | 26 % |" in made
    assert "|---|---|" in made


def test_every_figure_beside_hami_is_in_a_table() -> None:
    one = {"pods": 100, "cpu_ms_per_pod": {"etcd": 0.5, "extender": 1.25}, "rate": 300.0, "extender_resident_mib": 60.2, "bind_failures": 0}
    hami = {**one, "kind": "HAMi", "rate": 30.0, "cpu_ms_per_pod": {"etcd": 1.5, "extender": 12.5}, "bind_failures": 150}
    rounds = [{**one, "kind": "no extender"}, {**one, "kind": "ours", "latency": {}}, hami]
    made = page.tables([], [{"date": "2026-01-02", "nodes": 500, "pods": 100, "hami_ratio": 10.0, "rounds": rounds}])
    assert "| 500 | 100 | 30 | 300 | 10.0, missed | 12.50 ms | 1.25 ms | 14.00 ms | 1.75 ms | 60 MiB | 60 MiB | 1.50 | 2026-01-02 |" in made


def test_fleet() -> None:
    text = fleet.PAGE.read_text()
    assert page.filled(text, fleet.tables(json.loads(fleet.RESULT.read_text()))) == text, "python -m bench.fleet.page writes it anew"


def test_every_figure_of_fleets_is_in_its_table() -> None:
    run = {"step": "site", "nodes": 7, "forks": 20, "seconds": 14.0, "modules": 25, "results": 50, "sent": 12_000_000, "peak": 80.4}
    more = {**run, "nodes": 17, "seconds": 16.0}
    most = {**run, "nodes": 20, "seconds": 48.0}
    other = {**run, "nodes": 200, "forks": 50, "wall": 61.2, "together": 1600.4}
    made = fleet.tables([{"what": "before", "date": "2026-01-02", "runs": [run, more, most, other]}])
    assert "| before | site | 200 | 50 | 61 s (60, missed) | 14 s | 0.07 s (1.0) |  |  |" in made
    assert "| before | site | 7 | 20 |  | 14 s | 2.00 s (1.0, missed) |  |  | 2.5 | 5.0 | 1.2 MB | 80 MiB |  | 2026-01-02 |" in made
    assert "| 80 MiB | 1600 MiB (1536, missed) | 2026-01-02 |" in made
    assert "| before | site | 17 | 20 |  | 16 s | 0.94 s (1.0) | 0.20 s | 0.47 (1.15) | 1.2 | 2.5 | 0.6 MB | 80 MiB |  |" in made
    assert "| 2.40 s (1.0, missed) | 10.67 s | 1.20 (1.15, missed) |" in made


def test_the_picture_of_fleets_has_the_newest_measurement_of_several_sizes() -> None:
    def of(nodes: int, seconds: float, step: str = "site") -> dict[str, object]:
        return {"step": step, "nodes": nodes, "forks": 20, "seconds": seconds}

    found = [
        {"runs": [of(10, 40.0), of(20, 60.0)]},
        {"runs": [of(100, 90.0), of(25, 30.0), of(25, 8.0, "verify")]},
        {"runs": [of(200, 9.0)]},
    ]
    assert picture.lines(found) == {"site": [(25, 1.2), (100, 0.9)]}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Percentiles from a scrape."""

from __future__ import annotations

import math

import pytest

from bench.scheduling.latency import Latency, latencies, quantile
from gpushare_runtime.daemon.exposition import render
from gpushare_runtime.extender.metrics import OK, UNSCHEDULABLE, Meters

BUCKETS = [(0.001, 50), (0.002, 90), (0.01, 100), (math.inf, 100)]


@pytest.mark.parametrize(("part", "expected"), [(0.25, 0.0005), (0.5, 0.001), (0.9, 0.002), (0.95, 0.006), (1.0, 0.01)])
def test_between_two_bounds_calls_are_taken_to_be_spread_evenly(part: float, expected: float) -> None:
    assert quantile(BUCKETS, part) == pytest.approx(expected)


def test_beyond_the_last_bound_nothing_is_known() -> None:
    assert quantile([(0.5, 0), (math.inf, 3)], 0.99) == 0.5


def test_from_what_the_extender_writes() -> None:
    meters = Meters()
    for _ in range(3):
        meters.took("filter", OK, 0.004)
    meters.took("filter", UNSCHEDULABLE, 0.004)
    meters.took("bind", OK, 0.03)
    found = latencies("".join(render(meters.families())))
    assert set(found) == {"filter", "bind"}
    assert (found["filter"].calls, found["filter"].rejected, found["filter"].mean) == (4, 1, pytest.approx(4.0))
    assert isinstance(found["bind"], Latency)
    assert found["bind"].p50 <= found["bind"].p99

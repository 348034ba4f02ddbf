# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How long the extender took for each verb, from its own metrics."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_SECONDS: Final = "gpushare_extender_verb_duration_seconds"
_RESULTS: Final = "gpushare_extender_verb_results_total"


@dataclass(frozen=True)
class Latency:
    """Milliseconds from a call's body to its answer; percentiles are interpolated within a bucket of the histogram.

    rejected: calls whose answer was no: no node fits, or not bound, or not ready yet.
    """

    calls: int
    rejected: int
    mean: float
    p50: float
    p95: float
    p99: float


def read(url: str) -> dict[str, Latency]:
    """Of each verb that was called. url: of the extender's metrics."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        return latencies(reply.read().decode())


def latencies(text: str) -> dict[str, Latency]:
    """From the text of a scrape."""
    buckets: dict[str, list[tuple[float, int]]] = {}
    sums: dict[str, float] = {}
    rejected: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            verb = sample.labels.get("verb", "")
            if sample.name == f"{_SECONDS}_bucket":
                buckets.setdefault(verb, []).append((float(sample.labels["le"]), int(sample.value)))
            elif sample.name == f"{_SECONDS}_sum":
                sums[verb] = sample.value
            elif sample.name == _RESULTS and sample.labels["result"] != "ok":
                rejected[verb] = rejected.get(verb, 0) + int(sample.value)
    found = {}
    for verb, counted in buckets.items():
        calls = counted[-1][1]
        if calls:
            p50, p95, p99 = (round(1000 * quantile(counted, part), 3) for part in (0.5, 0.95, 0.99))
            found[verb] = Latency(calls, rejected.get(verb, 0), round(1000 * sums[verb] / calls, 3), p50, p95, p99)
    return found


def quantile(counted: Sequence[tuple[float, int]], part: float) -> float:
    """counted: (bound, how many were at most that), ascending, the last bound infinite. As Prometheus' histogram_quantile."""
    wanted = part * counted[-1][1]
    below, before = 0.0, 0
    for bound, count in counted:
        if count >= wanted:
            return below if math.isinf(bound) else below + (bound - below) * (wanted - before) / (count - before)
        below, before = bound, count
    return below

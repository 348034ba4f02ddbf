# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Metrics for Prometheus, written by its own library; here only in pieces, so that a large page does not hold up the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

from prometheus_client import Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gpushare_runtime import __version__

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_LATENCY_BUCKETS: Final = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds; fine where answers to kubelet and kube-scheduler should be, coarse beyond."""

_LINES: Final = 100
"""Of one piece: about a millisecond."""

_PROCESS: Final = ProcessCollector(registry=None)

# They double a histogram, and nothing reads them.
disable_created_metrics()  # type: ignore[no-untyped-call]

Value = tuple[float, Mapping[str, str]]
"""A sample: its value and its labels."""


def family(name: str, kind: Literal["counter", "gauge"], text: str, values: Iterable[Value]) -> Metric:
    """One metric. name: with its unit, and `_total` for a counter; values: taken when they are written."""
    metric = Metric(name.removesuffix("_total"), text, kind)
    # The library goes through them once.
    metric.samples = (Sample(name, dict(labels), value) for value, labels in values)  # type: ignore[assignment]
    return metric


def single(name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> Metric:
    """One metric that has one value and no labels."""
    return family(name, kind, text, [(value, {})])


def maybe(name: str, text: str, value: float | None) -> Metric:
    """A gauge without labels; None: it has no sample, only its type."""
    return family(name, "gauge", text, [] if value is None else [(value, {})])


def latencies(name: str, text: str, label: str, values: Sequence[str] = ()) -> Histogram:
    """A histogram of seconds by a label. values: of the label, to be there from the start."""
    histogram = Histogram(name, text, [label], registry=None, buckets=_LATENCY_BUCKETS)
    for value in values:
        histogram.labels(value)
    return histogram


def of_process(prefix: str) -> Iterator[Metric]:
    """CPU time, memory and open files of this process, and its release. prefix: of the daemon's metrics."""
    yield from _PROCESS.collect()
    yield family(f"{prefix}_build_info", "gauge", "The release that runs.", [(1, {"version": __version__})])


def render(metrics: Iterable[Metric]) -> Iterator[str]:
    """The text that a scrape gets, in pieces that each take about a millisecond."""
    for metric in metrics:
        samples = iter(metric.samples)
        piece, first = Metric(metric.name, metric.documentation, metric.type), True
        while (lines := list(islice(samples, _LINES))) or first:
            piece.samples = lines
            text = generate_latest(_One(piece)).decode()
            # HELP and TYPE stand above the first piece only.
            yield text if first else text.split("\n", 2)[2]
            first = False


class _One(Collector):
    """An object that the library takes for a registry."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]

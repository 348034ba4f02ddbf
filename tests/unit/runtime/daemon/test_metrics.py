# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The text that Prometheus reads."""

from __future__ import annotations

from gpushare_runtime.daemon.metrics import Family, Histogram, Sample, render


def test_a_family_is_its_help_its_type_and_its_lines() -> None:
    family = Family("gpushare_x_total", "counter", "How often", [Sample(3), Sample(0.5, {"card": "0", "why": 'a "b"\\\n'})])
    assert "".join(render([family])) == (
        "# HELP gpushare_x_total How often\n"
        "# TYPE gpushare_x_total counter\n"
        "gpushare_x_total 3\n"
        'gpushare_x_total{card="0",why="a \\"b\\"\\\\\\n"} 0.5\n'
    )


def test_a_family_without_lines_is_still_named() -> None:
    assert "".join(render([Family("a", "gauge", "b", [])])) == "# HELP a b\n# TYPE a gauge\n"


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((0.001, 0.5))
    for seconds in (0.001, 0.0005, 0.25, 7.0):
        histogram.observe(seconds)
    assert "".join(render([Family("t", "histogram", "h", histogram.samples({"m": "x"}))])).splitlines()[2:] == [
        't_bucket{m="x",le="0.001"} 2',
        't_bucket{m="x",le="0.5"} 3',
        't_bucket{m="x",le="+Inf"} 4',
        't_sum{m="x"} 7.2515',
        't_count{m="x"} 4',
    ]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare_runtime.daemon.exposition import Value, family, latencies, of_process, render
from unit.fakes.runtime.exposition import read


def test_a_family_is_its_help_its_type_and_its_lines() -> None:
    metric = family("gpushare_x_total", "counter", "How often", [(3, {}), (0.5, {"gpu": "0", "why": 'a "b"\\\n'})])
    assert "".join(render([metric])) == (
        "# HELP gpushare_x_total How often\n"
        "# TYPE gpushare_x_total counter\n"
        "gpushare_x_total 3.0\n"
        'gpushare_x_total{gpu="0",why="a \\"b\\"\\\\\\n"} 0.5\n'
    )


def test_a_family_without_lines_is_still_named() -> None:
    assert "".join(render([family("a", "gauge", "b", [])])) == "# HELP a b\n# TYPE a gauge\n"


def test_a_large_family_comes_in_pieces_with_one_head_and_is_not_computed_before_it_is_written() -> None:
    taken = 0

    def values() -> Iterator[Value]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number, {"node": f"n{number}"}

    pieces = render([family("a", "gauge", "b", values())])
    next(pieces)
    assert 0 < taken < 300
    text = "".join(render([family("a", "gauge", "b", values())]))
    assert len(read(text)["a"].samples) == 1000


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = latencies("t", "h", "m", ["x"])
    for seconds in (0.001, 0.0005, 0.25, 7.0):
        histogram.labels("x").observe(seconds)
    lines = "".join(render(histogram.collect())).splitlines()
    for line in (
        't_bucket{le="0.00025",m="x"} 0.0',
        't_bucket{le="0.0005",m="x"} 1.0',
        't_bucket{le="0.001",m="x"} 2.0',
        't_bucket{le="0.5",m="x"} 3.0',
        't_bucket{le="+Inf",m="x"} 4.0',
        't_sum{m="x"} 7.2515',
        't_count{m="x"} 4.0',
    ):
        assert line in lines
    assert not any("created" in line for line in lines)


def test_the_process_has_memory_and_a_release() -> None:
    found = read("".join(render(of_process("gpushare_extender"))))
    assert found["process_resident_memory_bytes"].samples["", ()] > 10_000_000
    assert found["gpushare_extender_build_info"].labels == {"version"}

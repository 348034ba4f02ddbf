# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The annotation `gpushare/use`: what it says comes back, what a hostile node writes does not pass, and what is worth a write."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpushare_runtime.core.bounds import MOST_REPORT_BYTES, ReportError
from gpushare_runtime.core.use_report import MOST_PODS, GpuUse, PodUse, UseReport, step_up

REPORT = UseReport(
    1000, {0: GpuUse(4000, 50), 10_010: GpuUse(0)}, {("a", 0): PodUse(2000, 40, None, 3072, 9), ("b", 0): PodUse(0, 0, 400, 0)}
)


def test_what_is_written_is_read() -> None:
    assert UseReport.from_json(REPORT.to_json()) == REPORT
    assert UseReport.from_json(json.dumps({**json.loads(REPORT.to_json()), "new": 1})) == REPORT


def test_of_too_many_pods_those_with_most_memory_are_written_and_it_fits() -> None:
    pods = {
        (f"{number:036d}", index): PodUse(2**31 - 1 - number, 100, 2**40, 2**31 - 1, 2**40)
        for number in range(300)
        for index in (0, 10_999)
    }
    text = UseReport(2**40, {}, pods).to_json()
    found = UseReport.from_json(text)
    assert (len(found.pods), found.left_out, len(text) <= MOST_REPORT_BYTES) == (MOST_PODS, 600 - MOST_PODS, True)
    assert min(use.mib or 0 for use in found.pods.values()) == 2**31 - 128


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"at": -1},
        {"at": None},
        {"gpus": {}},
        {"gpus": [[0, 1]]},
        {"gpus": [[0, 1, 101]]},
        {"gpus": [[0, 1, 1]] * 200},
        {"gpus": [["0", 1, 1]]},
        {"pods": [["a", 0, 1, 1, None, None]]},
        {"pods": [["a", 0, 1, 1, None, -1, 0]]},
        {"pods": [["a", 0, 1, 1, None, None, -1]]},
        {"pods": [["a", 0, 1, 1, None, None, None]]},
        {"pods": [[7, 0, 1, 1, None, None, 0]]},
        {"pods": [["a\x1b[2J", 0, 1, 1, None, None, 0]]},
        {"pods": [["a" * 65, 0, 1, 1, None, None, 0]]},
        {"pods": [["a", 0, 1.5, 1, None, None, 0]]},
        {"pods": [["a", 0, 1, True, None, None, 0]]},
        {"pods": [["a", 0, 1, 1, 2**41, None, 0]]},
        {"pods": [["a", 0, 1, 1, None, None, 0]] * (MOST_PODS + 1)},
        {"left_out": "x"},
    ],
)
def test_what_no_plugin_writes_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(ReportError):
        UseReport.from_json(json.dumps({**json.loads(REPORT.to_json()), **change}))


def test_only_what_a_person_would_notice_is_worth_a_write() -> None:
    def pod(**changes: object) -> bool:
        return replace(REPORT, at=9999, pods={**REPORT.pods, ("a", 0): replace(REPORT.pods["a", 0], **changes)}).differs(REPORT)  # type: ignore[arg-type]

    assert not pod()
    assert [pod(sm=sm) for sm in (49, 50, 31, 30, None)] == [False, True, False, True, True]
    assert [pod(mib=mib) for mib in (2255, 2256, 1745, 1744, None)] == [False, True, False, True, True]
    assert [pod(idle=idle) for idle in (None, 400)] == [False, True]
    assert not replace(REPORT, pods={**REPORT.pods, ("b", 0): PodUse(0, 0, 500, 0)}).differs(REPORT), "it is idle all the same"
    for steady in (REPORT, UseReport(1000, REPORT.gpus)):
        assert [replace(steady, at=1000 + age).differs(steady) for age in (6 * 3600 - 1, 6 * 3600)] == [False, True]
        # What is renewed in time, and an hour late, is not old.
        assert [steady.is_old(1000 + age) for age in (0, 7 * 3600, 7 * 3600 + 1)] == [False, False, True]
    assert replace(REPORT, pods={("a", 0): REPORT.pods["a", 0]}).differs(REPORT)
    assert replace(REPORT, gpus={0: GpuUse(4000, 50)}).differs(REPORT)
    assert replace(REPORT, gpus={**REPORT.gpus, 0: GpuUse(4000, 60)}).differs(REPORT)
    large = UseReport(gpus={0: GpuUse(80_000)})
    assert [replace(large, gpus={0: GpuUse(mib)}).differs(large) for mib in (84_999, 85_000)] == [False, True]


def test_a_peak_is_published_as_its_next_step_and_each_step_is_worth_a_write() -> None:
    """A step is a sixteenth of what is used at most, and 256 MiB at least."""
    steps = {0: 0, 1: 256, 256: 256, 257: 512, 3841: 4096, 8192: 8192, 8193: 8704, 81_000: 81_920}
    assert {mib: step_up(mib) for mib in steps} == steps
    for mib in range(4097, 200_000, 97):
        assert mib <= step_up(mib) <= mib * 17 / 16 + 1
        assert step_up(step_up(mib)) == step_up(mib)
    before = replace(REPORT, pods={("a", 0): PodUse(2000, 40, None, 4096)})
    peaks = {peak: replace(before, pods={("a", 0): PodUse(2000, 40, None, peak)}).differs(before) for peak in (4096, 4352, None)}
    assert peaks == {4096: False, 4352: True, None: True}


def test_a_report_is_written_again_before_much_of_what_was_measured_can_be_lost() -> None:
    assert [replace(REPORT, at=1000 + 6 * 3600 + more).differs(REPORT) for more in (-1, 0)] == [False, True]
    assert UseReport(at=10**6).differs(UseReport()), "without pods it says that somebody measures"


def test_the_time_goes_on_as_long_as_the_gpu_answers() -> None:
    report = UseReport(1000)
    assert [report.seconds_of(use, 1500.0) for use in (PodUse(0, seconds=60), PodUse(None, peak=5, seconds=60))] == [560, 60]
    assert report.seconds_of(PodUse(0, seconds=60), 900.0) == 60, "a node whose clock is ahead"

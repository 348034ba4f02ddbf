# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The mean of the last minute, and since when a pod has used nothing."""

from __future__ import annotations

from gpushare_runtime.core.load import NOTHING, Activity, Load

KEY = ("pod", "GPU-0")
HELD = frozenset([KEY])


def test_the_mean_is_of_the_last_minute() -> None:
    activity = Activity()
    for second in range(0, 120, 2):
        activity.observe({KEY: Load(100 if second < 90 else 0, 10)}, HELD, second, 1000 + second)
    assert activity.means(119) == {KEY: Load(50, 10)}
    assert activity.means(300) == {}, "nothing was read for too long"


def test_of_readings_that_come_fast_the_last_64_count() -> None:
    activity = Activity()
    for reading in range(67):
        activity.observe({KEY: Load(64 if reading == 3 else 0, 99 if reading < 3 else 1)}, HELD, reading / 2, 1000)
    assert activity.means(34) == {KEY: Load(1, 1)}


def test_idle_counts_from_the_end_of_the_last_work() -> None:
    activity = Activity()
    activity.observe({KEY: NOTHING}, HELD, 0, 1000)
    assert activity.idle(1) == {KEY: 1000}
    activity.observe({KEY: Load(decoder=1)}, HELD, 10, 1010)
    assert activity.idle(11) == {}
    for second in (20, 100, 180):
        activity.observe({KEY: NOTHING}, HELD, second, 1000 + second)
    assert activity.idle(181) == {KEY: 1020}


def test_a_gpu_that_is_not_read_for_long_makes_a_pod_unknown_and_a_short_gap_does_not() -> None:
    activity = Activity()
    activity.observe({KEY: NOTHING}, HELD, 0, 1000)
    activity.observe({}, HELD, 60, 1060)
    activity.observe({KEY: NOTHING}, HELD, 100, 1100)
    assert activity.idle(100) == {KEY: 1000}
    activity.observe({}, HELD, 221, 1221)
    assert activity.idle(221) == {}
    activity.observe({KEY: NOTHING}, HELD, 300, 1300)
    assert activity.idle(300) == {KEY: 1300}


def test_a_pod_that_is_gone_is_forgotten() -> None:
    activity = Activity()
    activity.observe({KEY: NOTHING, ("other", "GPU-0"): NOTHING}, HELD, 0, 1000)
    assert set(activity.idle(0)) == {KEY}
    activity.observe({KEY: NOTHING}, frozenset(), 2, 1002)
    assert (activity.idle(2), activity.means(2)) == ({}, {})

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who uses too much and for how long, against a naive count of all readings; and the request for an eviction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.overuse import ENDS_BELOW, READINGS, EvictionRequest, EvictionRequestError, Overuse

KEY = ("pod", "card")
DUE = 1000
Reading = tuple[float, int, bool]

readings = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 7.0]), st.sampled_from([0, 940, 950, 951, 1000, 1001, 5000]), st.booleans() | st.just(True)),
    max_size=30,
)


def naive(course: list[Reading]) -> tuple[bool, float | None]:
    """Whether the pod is reported after all of these (time, use, answered), and since when every reading was above; None if the last was
    not. By the whole course, from the beginning."""
    reported, streak, above_since = False, 0, None
    for time, use, answered in course:
        if not answered:
            streak, above_since = (streak if reported else 0), None
            continue
        above_since = (time if above_since is None else above_since) if use > DUE else None
        if reported:
            reported = use > DUE * ENDS_BELOW
            streak = streak if reported else 0
        else:
            streak = streak + 1 if use > DUE else 0
            reported = streak >= READINGS
    return reported, above_since


@given(readings, st.sampled_from([0.0, 2.0, 5.0, 20.0]))
def test_it_counts_as_the_whole_course_of_readings_says(steps: list[Reading], grace: float) -> None:
    overuse, now, course = Overuse(), 100.0, []
    said = False
    for pause, use, answered in steps:
        now += pause
        course.append((now, use, answered))
        began, ended = overuse.observe({KEY: DUE}, {KEY: use} if answered else {}, {"card"} if answered else set(), now)
        reported, since = naive(course)
        assert (KEY in overuse.reported()) == reported
        assert (KEY in overuse.lasting(grace, now)) == (reported and since is not None and now - since >= grace)
        assert (began, ended) == ([KEY] * (reported and not said), [KEY] * (said and not reported))
        said = reported


def test_who_has_no_units_any_more_is_forgotten() -> None:
    overuse = Overuse()
    for now in (1.0, 2.0):
        overuse.observe({KEY: DUE}, {KEY: 2000}, {"card"}, now)
    assert overuse.observe({}, {KEY: 2000}, {"card"}, 3.0) == ([], [KEY])
    assert overuse.lasting(0, 3.0) == {}


def test_a_request_is_read_as_it_was_written() -> None:
    request = EvictionRequest(3, 5000, 4096, 60, 1_800_000_000)
    assert EvictionRequest.from_json(request.to_json()) == request
    assert str(request) == "it uses more than the 4096 MiB of card 3 that it requested, for 60 s; now 5000 MiB"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ('{"v":2}', "version 2 is not known"),
        ('{"v":1,"card":-1,"used":1,"requested":1,"seconds":1,"until":1}', "card must not be negative, found -1"),
        ('{"v":1,"card":0,"used":"1","requested":1,"seconds":1,"until":1}', "used must be int, found '1'"),
        ('{"v":1,"card":0,"used":1,"requested":1,"seconds":1,"until":1e9}', "until must be int"),
        ('{"v":1,"card":0,"used":1,"requested":1,"seconds":1}', "until must be int, found None"),
        ("[" * 50_000, "not JSON"),
    ],
)
def test_a_request_that_cannot_be_read_is_none(text: str, said: str) -> None:
    with pytest.raises(EvictionRequestError, match=said):
        EvictionRequest.from_json(text)


@pytest.mark.parametrize(("until", "counts"), [(999, False), (1000, False), (1001, True), (1090, True), (1120, True), (1121, False)])
def test_a_request_ends_and_cannot_last(until: int, counts: bool) -> None:
    assert EvictionRequest(0, 2, 1, 60, until).in_force(1000.0) is counts

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who uses too much and for how long, against a naive count of all readings; and the request for an eviction."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare_runtime.core.bounds import MOST_EVICTIONS, ReportError
from gpushare_runtime.core.overuse import ENDS_BELOW, NO_EVICTIONS, READINGS, STARTS_NEVER, EvictionRequest, Evictions, Overuse
from unit.golden import Golden

KEY = ("pod", "gpu")
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
@example([(1.0, use, True) for use in (*[5000] * READINGS, 1000, 5000)], 0.0)
def test_it_counts_as_the_whole_course_of_readings_says(steps: list[Reading], grace: float) -> None:
    overuse, now, course = Overuse(), 100.0, []
    said = False
    for pause, use, answered in steps:
        now += pause
        course.append((now, use, answered))
        began, ended = overuse.observe({KEY: DUE}, {KEY: use} if answered else {}, {"gpu"} if answered else set(), now)
        reported, since = naive(course)
        assert (KEY in overuse.reported()) == reported
        assert (KEY in overuse.lasting(grace, now)) == (reported and since is not None and now - since >= grace)
        assert (began, ended) == ([KEY] * (reported and not said), [KEY] * (said and not reported))
        said = reported


def test_who_has_no_units_any_more_is_forgotten() -> None:
    overuse = Overuse()
    for now in (1.0, 2.0):
        overuse.observe({KEY: DUE}, {KEY: 2000}, {"gpu"}, now)
    assert overuse.observe({}, {KEY: 2000}, {"gpu"}, 3.0) == ([], [KEY])
    assert overuse.lasting(0, 3.0) == {}


REQUEST = EvictionRequest("u", 3, 5000, 4096, 60)
ENTRY = '{"uid":"u","gpu":3,"used":5000,"requested":4096,"seconds":60}'


def test_requests_are_read_as_they_were_written() -> None:
    assert str(REQUEST) == "it uses more than the 4096 MiB of GPU 3 that it requested, for 60 s; now 5000 MiB"
    for requests in ((), (REQUEST,), tuple(replace(REQUEST, uid=f"{number:036d}") for number in range(MOST_EVICTIONS))):
        text = Evictions(requests, 1_800_000_000).to_json()
        assert Evictions.from_json(text) == Evictions(requests, 1_800_000_000)
        assert len(text) < 10_000
    assert Evictions.from_json(f'{{"v":1,"until":7,"pods":[{ENTRY}],"more":1}}') == Evictions((REQUEST,), 7)
    assert Evictions((REQUEST,), 7).to_json() == f'{{"v":1,"until":7,"pods":[{ENTRY}]}}'
    again = ENTRY.replace("5000", "6000")
    assert Evictions.from_json(f'{{"v":1,"until":7,"pods":[{ENTRY},{again}]}}') == Evictions((replace(REQUEST, used=6000),), 7)


def changed(old: str, new: str) -> str:
    return f'{{"v":1,"until":7,"pods":[{ENTRY},{ENTRY.replace(old, new)}]}}'


def test_a_request_for_a_pod_that_starts_never_says_so(golden: Golden) -> None:
    request = EvictionRequest("u", 3, 0, 0, 0, STARTS_NEVER)
    assert Evictions.from_json(Evictions((request,), 7).to_json()) == Evictions((request,), 7)
    assert str(request) == request.cause == "it can never start with what it has of GPU 3"
    golden(request.advice)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        (changed(',"seconds":60', ',"seconds":60,"reason":"x"'), r"pods\[1\].reason must be starts-never or missing, found 'x'"),
        ('{"v":2}', "version 2 is not known"),
        ('{"v":1,"until":7}', "pods must be list, found None"),
        ('{"v":1,"until":7,"pods":{}}', "pods must be list"),
        ('{"v":1,"until":7,"pods":[[]]}', r"pods\[0\] must be an object"),
        ('{"v":1,"pods":[]}', "until must be int, found None"),
        ('{"v":1,"until":1e9,"pods":[]}', "until must be int"),
        ('{"v":1,"until":1099511627777,"pods":[]}', "until must be at most"),
        (changed('"gpu":3', '"gpu":-1'), r"pods\[1\].gpu must not be negative, found -1"),
        (changed("5000", '"1"'), r"pods\[1\].used must be int, found '1'"),
        (changed(',"seconds":60', ""), r"pods\[1\].seconds must be int, found None"),
        (changed("4096", "2147483648"), r"pods\[1\].requested must be at most"),
        (changed('"u"', '"\\u001b"'), r"pods\[1\].uid must be a short text"),
        (changed('"u"', f'"{"u" * 600}"'), r"pods\[1\].uid must be a short text"),
        (f'{{"v":1,"until":7,"pods":[{",".join([ENTRY] * 65)}]}}', "it lists 65 pods; expected at most 64"),
        ("[" * 60_000, "not JSON"),
        (" " * 65_537, "65537 characters are more than a node has to say; expected at most 65536"),
    ],
)
def test_requests_that_cannot_be_read_are_none(text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        Evictions.from_json(text)


VALUES = st.sampled_from([0, -1, 1, 60, 2**31 - 1, 2**31, 2**70, 1.5, True, None, "", "u", "\x1b", "x" * 600, [], {}])
ENTRIES = (
    st.fixed_dictionaries({}, optional=dict.fromkeys(("uid", "gpu", "used", "requested", "seconds", "reason", "other"), VALUES)) | VALUES
)
ANNOTATIONS = (
    st.fixed_dictionaries(
        {"v": st.sampled_from([1, 1, 1, 2, "1", None])},
        optional={"until": VALUES, "pods": st.lists(ENTRIES | st.just(json.loads(ENTRY)), max_size=70) | VALUES},
    ).map(json.dumps)
    | st.text(max_size=200)
    | st.builds(lambda cut, text: text[:cut], st.integers(0, 200), st.just(changed("u", "v")))
)


@given(ANNOTATIONS)
def test_whatever_a_node_writes_is_bounded_requests_or_one_error(text: str) -> None:
    try:
        found = Evictions.from_json(text)
    except ReportError as error:
        found, said = NO_EVICTIONS, str(error)
    else:
        said = ""
    assert len(said) < 400
    assert len({one.uid for one in found.requests}) == len(found.requests) <= MOST_EVICTIONS
    assert said or Evictions.from_json(found.to_json()) == found
    for one in found.requests:
        assert len(one.uid) <= 512
        assert all(0 <= number < 2**31 for number in (one.gpu, one.used, one.requested, one.seconds))


@pytest.mark.parametrize(("until", "counts"), [(999, False), (1000, False), (1001, True), (1090, True), (1120, True), (1121, False)])
def test_requests_end_and_cannot_last(until: int, counts: bool) -> None:
    assert Evictions((), until).in_force(1000.0) is counts

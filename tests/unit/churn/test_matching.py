# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The model of the original's matching: each thing that it does, and what follows from it."""

from __future__ import annotations

import pytest

from take_over.matching import Answer, Candidate, allocate
from take_over.replay import Admission, Bound, Errors, Hasty, best_fit, replay

GPUS = {"gpu1": {0: 16, 1: 16}}


def pod(uid: str, units: int, assumed: int | None = 1, assigned: str | None = "false", index: int | None = 0) -> Candidate:
    return Candidate(uid, units, assumed, assigned, index)


def ids(count: int, gpu: str = "GPU-a") -> list[str]:
    return [f"{gpu}-_-{number}" for number in range(count)]


def test_the_oldest_of_that_size_is_taken() -> None:
    pending = [pod("young", 4, 30, index=1), pod("other", 5, 10), pod("old", 4, 20, index=0)]
    assert allocate(ids(4), pending, (0, 1)) == Answer("old", 0)


def test_the_ids_mean_nothing_but_their_number() -> None:
    pending = [pod("old", 4, 20, index=1)]
    assert allocate(ids(4, "GPU-a"), pending, (0, 1)) == allocate(ids(4, "GPU-b"), pending, (0, 1)) == Answer("old", 1)


@pytest.mark.parametrize(
    "passed_over",
    [pod("p", 4, assigned="true"), pod("p", 4, assigned=None), pod("p", 4, assumed=None), pod("p", 5)],
    ids=["assigned", "never marked", "not assumed", "another size"],
)
def test_who_is_no_candidate(passed_over: Candidate) -> None:
    assert allocate(ids(4), [passed_over], (0, 1)) == Answer(None, None)


def test_a_container_of_several_is_compared_with_its_whole_pod() -> None:
    both = pod("two-containers", 6, index=1)
    assert allocate(ids(2), [both], (0, 1)) == Answer(None, None)
    # And another pod of a container's size is taken for it.
    assert allocate(ids(2), [both, pod("single", 2, index=0)], (0, 1)) == Answer("single", 0)


def test_an_index_that_is_no_minor_gives_no_gpu() -> None:
    assert allocate(ids(4), [pod("p", 4, index=1)], (0, 4)) == Answer("p", None)
    assert allocate(ids(4), [pod("p", 4, index=None)], (0, 4)) == Answer("p", None)


def test_the_only_gpu_needs_no_pod() -> None:
    assert allocate(ids(4), [], (3,)) == Answer(None, 3)


def bound(uid: str, assumed: int, gpu: int, units: int = 9, until: float = 100.0) -> Bound:
    return Bound(uid, "gpu1", units, assumed, gpu, frozenset({gpu}), 0.0, until)


def admission(t: float, of: Bound, units: int = 9, end: float = 50.0) -> Admission:
    return Admission(t, of, "c0", tuple(ids(units)), end)


def test_in_order_of_assume_time_all_is_well() -> None:
    a, b = bound("a", 1, 0), bound("b", 2, 1)
    assert replay([admission(1, a), admission(2, b)], [a, b], GPUS) == Errors(admissions=2)


def test_out_of_order_two_pods_of_a_size_are_swapped() -> None:
    a, b = bound("a", 1, 0), bound("b", 2, 1)
    found = replay([admission(1, b), admission(2, a)], [a, b], GPUS)
    assert (found.other, found.none, found.over_booked) == (2, 0, 0)


def test_at_one_moment_the_order_is_the_one_that_suits_the_original() -> None:
    a, b = bound("a", 1, 0), bound("b", 2, 1)
    assert replay([admission(1, b), admission(1, a)], [a, b], GPUS).wrong == 0


def test_a_pod_that_is_not_pending_is_not_swapped_with() -> None:
    a, b = bound("a", 1, 0, until=0.5), bound("b", 2, 1)
    assert replay([admission(1, b)], [a, b], GPUS).wrong == 0


def test_a_swap_over_books_a_gpu_when_one_of_the_two_has_ended() -> None:
    a, b = bound("a", 1, 0), bound("b", 2, 1)
    swapped = [admission(1, b, end=200.0), admission(2, a, end=10.0)]
    # By the annotations GPU 1 has b and GPU 0 is free again after a; really b is on GPU 0.
    c = bound("c", 3, 0)
    found = replay([*swapped, admission(20, c)], [a, b, c], GPUS)
    assert (found.other, found.over_booked, found.gpus) == (2, 1, {("gpu1", 0)})


def test_what_was_rejected_here_starts_there() -> None:
    a, b = bound("a", 1, 0), bound("b", 2, 0)
    rejected = Admission(5.0, b, "c0", tuple(ids(9)), None)
    found = replay([admission(1, a, end=6.0), rejected], [a, b], GPUS)
    assert (found.wrong, found.over_booked) == (0, 1)
    assert replay([admission(1, a, end=4.0), rejected], [a, b], GPUS).over_booked == 0


def test_one_gpu_of_two_is_too_few() -> None:
    a = Bound("a", "gpu1", 8, 1, 0, frozenset({0, 1}), 0.0, 100.0)
    found = replay([admission(1, a, units=8)], [a], GPUS)
    assert (found.fewer, found.other) == (1, 0)


def test_the_extender_takes_the_fullest_gpu_with_room() -> None:
    assert best_fit(4, {0: 16, 1: 4, 2: 4, 3: 3}) == 1
    assert best_fit(17, {0: 16}) is None


def test_a_pod_is_not_kept_waiting_for_processes_of_a_deleted_one() -> None:
    lives_on = Hasty("gpu1", 9, {0: 9, 1: 16}, {0: 16})
    assert replay([], [], GPUS, [lives_on]).with_orphans == 1
    assert replay([], [], GPUS, [Hasty("gpu1", 9, {0: 9, 1: 16}, {0: 7})]).over_booked == 0

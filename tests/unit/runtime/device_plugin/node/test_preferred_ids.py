# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The choice among free ids: the scheduler's GPU, else one GPU, never two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeVar

from gpushare_runtime.device_plugin.node.preferred_ids import CandidateGpu, choose_gpus, choose_units
from unit.fakes.runtime.pods import gpu

T = TypeVar("T")


def candidate(index: int, free: int, reserved: int = 0, first: int = 0) -> CandidateGpu:
    return CandidateGpu(gpu(index, 16), [f"{index}-_-{slot}" for slot in range(first, first + free)], reserved)


def whole(index: int, units: int = 16, reserved: int = 0) -> CandidateGpu:
    return CandidateGpu(gpu(index, units), [f"GPU-{index:08d}"], reserved)


def test_the_schedulers_gpu_with_its_lowest_slots() -> None:
    assert choose_units([candidate(0, 8), candidate(1, 8, first=3)], 2, [], {1: 2}) == ["1-_-3", "1-_-4"]


def test_the_fullest_gpu_when_the_schedulers_has_no_room() -> None:
    assert choose_units([candidate(0, 8), candidate(1, 1), candidate(2, 4)], 3, [], {1: 3}) == ["2-_-0", "2-_-1", "2-_-2"]


def test_room_that_is_promised_to_others_is_taken_last() -> None:
    assert choose_units([candidate(0, 3, reserved=3), candidate(1, 8)], 3, [], {}) == ["1-_-0", "1-_-1", "1-_-2"]
    assert choose_units([candidate(0, 3, reserved=3)], 3, [], {}) == ["0-_-0", "0-_-1", "0-_-2"]


def test_ids_that_must_be_in_it_decide_the_gpu() -> None:
    assert choose_units([candidate(0, 8), candidate(1, 8)], 2, ["1-_-7"], {}) == ["1-_-7", "1-_-0"]
    assert choose_units([candidate(0, 8), candidate(1, 8)], 2, ["1-_-7", "0-_-0"], {}) is None


def test_units_of_several_gpus_when_the_scheduler_chose_several() -> None:
    assert choose_units([candidate(0, 8), candidate(1, 8)], 3, [], {0: 1, 1: 2}) == ["0-_-0", "1-_-0", "1-_-1"]


def drawn(random: Random, *, whole: bool) -> list[CandidateGpu]:
    """GPUs 0, 1, … of which little is free, or which are small and whole."""
    candidates = []
    for index in range(random.randrange(5)):
        units, reserved, other = random.randrange(5), random.choice((0, 0, 1, 4)), random.random() < 0.8
        ids = [f"GPU-{index:08d}"] if whole else [f"{index}-_-{slot}" for slot in range(units)]
        candidates.append(CandidateGpu(gpu(index, units), ids, reserved, other))
    random.shuffle(candidates)
    return candidates


def some(random: Random, most: int, *of: T) -> list[T]:
    return random.sample(of, min(len(of), random.randrange(most + 1)))


def ways(candidates: list[CandidateGpu], size: int, must_include: set[str], gpus_per_pod: int) -> Iterator[tuple[CandidateGpu, ...]]:
    """All in which the units can be given without the scheduler's choice: the same number on each of `gpus_per_pod` GPUs."""
    for way in itertools.combinations([o for o in candidates if o.fallback], gpus_per_pod):
        obliged = [must_include & set(o.ids) for o in way]
        held = set().union(*obliged) == must_include and all(
            len(ids) <= size // gpus_per_pod <= len(o.ids) for ids, o in zip(obliged, way, strict=True)
        )
        if size % gpus_per_pod == 0 and held:
            yield way


def units_by_gpu(
    candidates: list[CandidateGpu], size: int, must_include: set[str], planned: dict[int, int], gpus_per_pod: int
) -> dict[int, int] | None:
    """GPU → units: the scheduler's choice if it can be had, else the best of all ways, if there is one."""
    free = {o.gpu.index: set(o.ids) for o in candidates}
    obliged = {index: must_include & free.get(index, set()) for index in planned}
    possible = all(len(obliged[i]) <= units <= len(free.get(i, ())) for i, units in planned.items())
    if sum(planned.values()) == size and possible and set().union(*obliged.values()) == must_include:
        return planned
    each = size // gpus_per_pod

    def worth(way: tuple[CandidateGpu, ...]) -> list[tuple[bool, bool, int, int]]:
        """First whose reserved units stay free, then the fullest; the worst GPU of a way counts last."""
        return sorted((must_include.isdisjoint(o.ids), len(o.ids) - o.reserved_for_others < each, len(o.ids), o.gpu.index) for o in way)

    best = min(ways(candidates, size, must_include, gpus_per_pod), key=worth, default=None)
    return {o.gpu.index: each for o in best} if best is not None else None


def test_units_are_the_schedulers_else_the_best_of_all_that_could_be_given() -> None:
    random = Random(0)
    for _ in range(5000):
        candidates = drawn(random, whole=False)
        size, gpus_per_pod = random.randint(1, 6), random.choice((1, 1, 2, 3))
        must_include = set(some(random, 3, *(i for o in candidates for i in o.ids)))
        planned = {index: random.choice((size, size // 2 or 1)) for index in some(random, 2, *range(5))}
        case = (candidates, size, must_include, planned, gpus_per_pod)
        chosen, expected = choose_units(candidates, size, sorted(must_include), planned, gpus_per_pod), units_by_gpu(*case)
        assert (chosen is None) == (expected is None), case
        if chosen is not None and expected is not None:
            assert Counter(int(i.partition("-")[0]) for i in chosen) == expected, case
            # Beside those that it must have the lowest slots.
            given = [sorted(o.ids, key=lambda i: i not in must_include)[: expected.get(o.gpu.index, 0)] for o in candidates]
            assert sorted(chosen) == sorted(itertools.chain(*given)), case
            assert must_include <= set(chosen), case


def test_whole_gpus_are_the_containers_then_its_pods_then_those_of_which_least_is_lost() -> None:
    random = Random(0)
    for _ in range(5000):
        candidates, size = drawn(random, whole=True), random.randint(1, 4)
        must_include, planned, of_pod = (some(random, 2, *range(5)) for _ in range(3))
        case = (candidates, size, must_include, planned, of_pod)
        chosen = choose_gpus(candidates, size, [f"GPU-{i:08d}" for i in must_include], dict.fromkeys(planned, 1), of_pod)
        by_index = {o.gpu.index: o for o in candidates}
        others = [i for i, o in by_index.items() if o.fallback]
        order: list[int] = []
        # Each group in turn, and in each the earlier rules again.
        for group in (must_include, planned, of_pod, [i for i in others if not by_index[i].reserved_for_others], others):
            fresh = [i for i in group if i in by_index and i not in order]
            order += sorted(
                fresh, key=lambda i: (i not in planned, i not in of_pod, by_index[i].reserved_for_others > 0, by_index[i].gpu.units, i)
            )
        possible = len(order) >= size >= len(must_include) and by_index.keys() >= set(must_include)
        assert chosen == ([f"GPU-{i:08d}" for i in order[:size]] if possible else None), case


def test_whole_gpus_are_the_schedulers_then_the_smallest_without_a_promise() -> None:
    candidates = [whole(0, 24), whole(1, 16, reserved=1), whole(2, 16), whole(3, 16)]
    assert choose_gpus(candidates, 1, [], {3: 16}) == ["GPU-00000003"]
    assert choose_gpus(candidates, 2, [], {3: 16}) == ["GPU-00000003", "GPU-00000002"]
    assert choose_gpus(candidates, 3, [], {}) == ["GPU-00000002", "GPU-00000003", "GPU-00000000"]
    assert choose_gpus(candidates, 5, [], {}) is None
    assert choose_gpus(candidates, 1, ["GPU-00000001"], {3: 16}) == ["GPU-00000001"]


def test_a_pods_own_gpus_come_before_gpus_that_nothing_is_promised_on() -> None:
    candidates = [whole(0, 16), whole(1, 24, reserved=24), whole(2, 24, reserved=24)]
    assert choose_gpus(candidates, 2, ["GPU-00000002"], {2: 24}, [1, 2]) == ["GPU-00000002", "GPU-00000001"]

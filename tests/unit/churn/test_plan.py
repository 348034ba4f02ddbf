# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the churn plans fits, on whichever GPUs it is put, and is the same for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from e2e.churn_log import Plan, Pod
from e2e.churn_plan import NAMES, Delete, Make, Planner, View

UNITS = {"gpu1": {0: 16, 1: 16}, "gpu2": {0: 16, 1: 24}}


def running(count: int) -> list[Pod]:
    return [Pod(f"uid-{n}", Plan(f"old-{n}", (4,), stubborn=n % 2 == 0), 0.0, node="gpu1", running=1.0) for n in range(count)]


@st.composite
def views(draw: st.DrawFn) -> View:
    free = {node: {gpu: draw(st.integers(0, size)) for gpu, size in gpus.items()} for node, gpus in UNITS.items()}
    if draw(st.booleans()):
        free.pop(draw(st.sampled_from(sorted(free))))
    return View(free, running(draw(st.integers(0, 5))), NAMES[: draw(st.integers(0, len(NAMES)))])


def fits_anyhow(plans: tuple[Plan, ...], free: dict[int, int]) -> bool:
    """Whether each pod has room whatever GPUs the ones before it were put on."""
    if not plans:
        return True
    first, *rest = plans
    if first.spread > 1:
        return all(units >= first.total // 2 for units in free.values())
    choices = [gpu for gpu, units in free.items() if units >= first.total]
    return bool(choices) and all(fits_anyhow(tuple(rest), {**free, gpu: free[gpu] - first.total}) for gpu in choices)


@given(views(), st.integers(0, 2**32), st.integers(1, 20))
def test_pods_that_are_made_have_room(view: View, seed: int, left: int) -> None:
    planner = Planner(random.Random(seed))
    for _ in range(5):
        for step in planner.next(view, left):
            if isinstance(step, Make):
                assert 0 < len(step.plans) <= left
                assert {plan.name for plan in step.plans} <= set(view.names)
                assert len({plan.name for plan in step.plans}) == len(step.plans)
                nodes = [step.plans[0].node] if step.plans[0].node else list(view.free)
                assert any(fits_anyhow(step.plans, dict(view.free[node])) for node in nodes)
            else:
                assert step.uid in {pod.uid for pod in view.running}


def test_twins_go_to_different_gpus() -> None:
    planner = Planner(random.Random(1))
    view = View(UNITS, [], NAMES)
    groups = [step.plans for _ in range(300) for step in planner.next(view, 100) if isinstance(step, Make)]
    twins = [plans for plans in groups if len(plans) > 1 and len({plan.units for plan in plans}) == 1]
    assert len(twins) > 100
    shapes = Counter("gpus" if p.spread > 1 else "containers" if len(p.units) > 1 else "one" for plans in groups for p in plans)
    assert min(shapes["gpus"], shapes["containers"]) > 5


def test_no_one_gpu_can_take_all_twins() -> None:
    planner = Planner(random.Random(1))
    for free in product(range(1, 17), range(1, 25)):
        sizes = planner._twins(free)
        assert sum(sizes) <= sum(free)
        assert not sizes or sum(sizes) > max(free)


def test_who_ignores_sigterm_is_deleted_by_force_and_made_again() -> None:
    planner = Planner(random.Random(1))
    full = View({node: dict.fromkeys(gpus, 0) for node, gpus in UNITS.items()}, running(6), NAMES)
    steps = [step for _ in range(100) for step in planner.next(full, 1000)]
    deletions = [step for step in steps if isinstance(step, Delete)]
    assert len(deletions) == len(steps)
    again = [step.again for step in deletions if step.again]
    assert again
    assert not any(plan.room for plan in again)
    assert {step.force for step in deletions} == {True, False}


def test_the_same_seed_makes_the_same_churn() -> None:
    def course(seed: int) -> list[object]:
        planner = Planner(random.Random(seed))
        return [planner.next(View(UNITS, running(3), NAMES), 10) for _ in range(20)]

    assert course(3) == course(3)
    assert course(3) != course(4)

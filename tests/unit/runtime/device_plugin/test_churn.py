# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whatever comes, a container has the cards of its pod's annotations and no card more than it has; and the same for the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from unit.runtime.device_plugin.churn import Churn, Counts, Plugin
from unit.runtime.device_plugin.fake_processes import FakeProcesses
from unit.runtime.device_plugin.matching import Original, Ours
from unit.runtime.pods import inventory

CARDS = inventory(16, 16, 24, 8, 16, 16)
SEEDS, STEPS = 8, 400


def churned(make: Callable[[Churn, Any], Plugin], seeds: int = SEEDS) -> Counts:
    """The sums over several worlds; `over` is the worst."""
    total = Counts()
    for seed in range(seeds):
        world = Churn(CARDS, make, seed)
        for _ in range(STEPS):
            world.step()
        world.quiet()
        for field in fields(Counts):
            was, more = getattr(total, field.name), getattr(world.counts, field.name)
            setattr(total, field.name, max(was, more) if field.name == "over" else was + more)
    return total


def told(name: str, counts: Counts) -> str:
    return f"{name}: " + ", ".join(f"{f.name} {v}" for f in fields(Counts) if not isinstance(v := getattr(counts, f.name), Counter))


def test_every_container_has_its_cards_and_no_card_is_over_booked(capsys: pytest.CaptureFixture[str]) -> None:
    counts = churned(Ours)
    with capsys.disabled():
        print("\n" + told("gpushare.kubernetes", counts))
    assert (counts.wrong_card, counts.over_steps, counts.failed, counts.killed, counts.stuck) == (0, 0, 0, 0, 0), counts.reasons
    # A checkpoint that was lost may cost a pod with an ordinary init container (docs/operate/failures.md): kubelet asks for its units
    # anew, which its card may not have beside those of the later ones. That is rare: one pod at every fourth loss would be too many.
    assert counts.killed_for_init < 0.25 * counts.checkpoints_lost
    # What was put to the test.
    assert counts.placed >= 1000
    assert counts.paired >= 300
    assert counts.forced_alive >= 100
    assert counts.compared >= 120
    assert min(counts.plugin_restarts, counts.kubelet_restarts, counts.checkpoints_lost, counts.corrections) >= 10
    assert counts.outages >= 3
    assert min(counts.restarts, counts.pulls) >= 100
    assert counts.late > 0
    # Rejections are no way out: of those that had room nearly all run.
    assert counts.running >= 0.95 * (counts.running + counts.rejected_with_room)
    # Nor do they become a loop.
    assert counts.rejected <= 0.05 * counts.placed


def test_the_originals_way_of_matching_goes_wrong_in_the_same_world(capsys: pytest.CaptureFixture[str]) -> None:
    counts = churned(Original)
    with capsys.disabled():
        print("\n" + told("the original's matching", counts))
    assert counts.wrong_card > 0
    assert counts.over_steps > 0
    assert counts.failed > 0


class Forgetful(Ours):
    """Ours without a look at the processes."""

    def __init__(self, world: Churn, state: Any) -> None:
        super().__init__(world, None, FakeProcesses())


def test_the_check_notices_a_plugin_that_forgets_processes() -> None:
    assert churned(Forgetful, seeds=2).over_steps > 0


class Unplanned(Ours):
    """Ours without preferred ids."""

    def prefer(self, resource: str, available: list[str], must: list[str], size: int, more: Callable[[], bool]) -> list[str]:
        super().prefer(resource, available, must, size, more)
        return []


def test_the_check_notices_a_plugin_that_does_not_steer() -> None:
    counts = churned(Unplanned, seeds=2)
    assert counts.rejected_with_room > 0.05 * counts.running

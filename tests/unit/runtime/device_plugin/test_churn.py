# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The original's way of finding the pod that kubelet asks for goes wrong under churn; the plugin's own is in test_storm.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from unit.runtime.device_plugin.churn import Churn, Counts, Plugin
from unit.runtime.device_plugin.matching import Original
from unit.runtime.pods import inventory

GPUS = inventory(16, 16, 24, 8, 16, 16)
SEEDS, STEPS = 8, 400


def churned(make: Callable[[Churn, Any], Plugin], seeds: int = SEEDS) -> Counts:
    """The sums over several worlds; `over` is the worst."""
    total = Counts()
    for seed in range(seeds):
        world = Churn(GPUS, make, seed)
        for _ in range(STEPS):
            world.step()
        world.quiet()
        for field in fields(Counts):
            was, more = getattr(total, field.name), getattr(world.counts, field.name)
            setattr(total, field.name, max(was, more) if field.name == "over" else was + more)
    return total


def told(name: str, counts: Counts) -> str:
    return f"{name}: " + ", ".join(f"{f.name} {v}" for f in fields(Counts) if not isinstance(v := getattr(counts, f.name), Counter))


def test_the_originals_way_of_matching_goes_wrong_in_the_same_world(capsys: pytest.CaptureFixture[str]) -> None:
    counts = churned(Original)
    with capsys.disabled():
        print("\n" + told("the original's matching", counts))
    assert counts.wrong_gpu > 0
    assert counts.over_steps > 0
    assert counts.failed > 0

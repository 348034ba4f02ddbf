# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The original's way of finding the pod that kubelet asks for goes wrong under churn; the plugin's own is in test_storm.py."""

from __future__ import annotations

import pytest

from unit.runtime.device_plugin.churn import Churn, Counts
from unit.runtime.device_plugin.matching import Original
from unit.runtime.pods import inventory

GPUS = inventory(16, 16, 24, 8, 16, 16)
SEEDS, STEPS = 8, 400


def churned(seed: int) -> Counts:
    world = Churn(GPUS, Original, seed)
    for _ in range(STEPS):
        world.step()
    world.quiet()
    return world.counts


def test_the_originals_way_of_matching_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    worlds = [churned(seed) for seed in range(SEEDS)]
    found = {name: sum(getattr(counts, name) for counts in worlds) for name in ("wrong_gpu", "over_steps", "failed")}
    with capsys.disabled():
        print(f"\nthe original's matching: {found}")
    assert all(found.values())

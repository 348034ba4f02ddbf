# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The model of `bench.placement` against a real kube-scheduler with the extender: 150 nodes, filled until pods ask for all GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from bench.placement import mixed
from bench.placement.__main__ import modelled
from bench.placement.live import live
from bench.placement.workload import total

SEED: Final = 42
POINTS: Final = 2.0
"""That model and reality may differ by, in per cent of all GPUs."""
SECONDS: Final = 600.0
"""Five times what it takes on 2 cores."""


def test_a_real_scheduler_brings_as_much_into_use_as_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines = mixed.machines()
    pods = mixed.pods(SEED, total(machines))
    found = asyncio.run(live(tmp_path, machines, pods, SECONDS))
    expected, before = (modelled(policy, machines, pods, SEED) for policy in ("binpack", "before"))
    with capsys.disabled():
        print(f"\nmeasured: {found:.1f} % of all GPUs in use, {expected:.1f} % in the model, {before:.1f} % in that of the former binpack")
    assert abs(found - expected) <= POINTS
    assert found > before + POINTS

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The waits after failures in a row: from half of a doubling time to all of it."""

from __future__ import annotations

import random

import pytest

from gpushare_runtime.kube.backoff import Backoff


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.5), (1.0, 1.0)])
def test_waits_double_up_to_the_longest_and_begin_again(chance: float, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: chance)
    backoff = Backoff()
    assert [backoff.wait() / part for _ in range(8)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])
    backoff.reset()
    assert backoff.wait() / part == pytest.approx(0.2)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Moments that systemd tells."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import systemd


def test_a_moment_of_systemd_is_not_earlier_because_the_host_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    # The process is stopped between the first two clocks, and between the third two.
    walls, since_start = iter([1000.0, 1003.0, 1003.5, 1004.0, 1005.0]), iter([102.0, 103.0, 103.75, 104.0, 105.0])
    monkeypatch.setattr(systemd.time, "time", lambda: next(walls))
    monkeypatch.setattr(systemd.time, "monotonic", lambda: next(since_start))
    assert systemd.unix_time("50000000") == 950.0


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_unit_that_never_ran_counts_from_the_hosts_start(nothing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd.time, "time", lambda: 1000.0)
    monkeypatch.setattr(systemd.time, "monotonic", lambda: 100.0)
    assert systemd.unix_time(nothing) == 900.0

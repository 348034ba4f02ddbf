# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which errors take a GPU out of use, and what brings it back."""

from __future__ import annotations

import pytest

from gpushare_runtime.device_plugin.gpu.health import APPLICATION_XIDS, CHECKS, GpuHealth


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_errors_of_the_application_leave_the_gpu_in_use(xid: int) -> None:
    health = GpuHealth()
    assert health.xid("GPU-1", xid) is False
    assert health.answers("GPU-1") == "ok"
    assert len(APPLICATION_XIDS) == 6


@pytest.mark.parametrize("xid", [48, 63, 74, 79, 95, 119, 999])
def test_any_other_error_does_not(xid: int) -> None:
    health = GpuHealth()
    assert health.xid("GPU-1", xid)
    assert health.answers("GPU-1").startswith(f"XID {xid}:")
    assert health.answers("GPU-2") == "ok"


def test_a_gpu_comes_back_when_it_has_passed_all_checks_in_a_row() -> None:
    health = GpuHealth()
    health.xid("GPU-1", 79)
    said = {health.answers("GPU-1") for _ in range(CHECKS - 1)}
    assert health.fails("GPU-1", "lost") == "lost"
    said |= {health.answers("GPU-1") for _ in range(CHECKS - 1)}
    # The words stay the same, or each check would be published.
    assert len(said) == 2
    assert health.answers("GPU-1") == "ok"


def test_a_pending_repair_keeps_only_a_gpu_that_was_in_trouble() -> None:
    health = GpuHealth()
    assert health.answers("GPU-1", "reset it") == "ok"
    health.xid("GPU-1", 63)
    for _ in range(2 * CHECKS):
        assert health.answers("GPU-1", "reset it").endswith("(reset it)")
    for _ in range(CHECKS):
        last = health.answers("GPU-1")
    assert last == "ok"
    assert health.answers("GPU-1", "reset it") == "ok"


def test_the_last_trouble_is_the_one_that_is_said_and_checks_begin_anew_with_it() -> None:
    health = GpuHealth(checks=2)
    assert health.fails("GPU-1", "lost") == "lost"
    assert health.answers("GPU-1") == "lost"
    assert health.xid("GPU-1", 79)
    assert health.answers("GPU-1").startswith("XID 79: see `dmesg`")
    assert health.answers("GPU-1", "reset it").endswith("passes its checks (reset it)")
    assert [health.answers("GPU-1") == "ok" for _ in range(3)] == [False, True, True]
    health.fails("GPU-1", "lost again")
    assert [health.answers("GPU-1") for _ in range(2)] == ["lost again", "ok"]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which errors take a GPU out of use, and what brings it back."""

from __future__ import annotations

import pytest

from gpushare_runtime.device_plugin.gpu.health import CHECKS, SPARED_XIDS, XIDS, GpuHealth, describe


# 63, 92, 94 and 154: NVIDIA's catalogue lets the programs of the GPU go on.
@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 92, 94, 154])
def test_what_the_catalogue_leaves_to_the_program_leaves_the_gpu_in_use(xid: int) -> None:
    health = GpuHealth()
    assert health.xid("GPU-1", xid) is False
    assert health.answers("GPU-1") == "ok"


# 109: the catalogue requires a reset.
@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 109, 119, 120, 999])
def test_any_other_error_does_not(xid: int) -> None:
    health = GpuHealth()
    assert health.xid("GPU-1", xid)
    assert health.answers("GPU-1").startswith(f"XID {xid}:")
    assert health.answers("GPU-2") == "ok"


def test_every_xid_has_short_words_and_the_lists_do_not_contradict() -> None:
    spared = [8, 11, 13, 14, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63, *range(66, 73), 75, 76, 77, 80, *range(82, 87), 88, 89]
    spared += [92, 93, 94, *range(96, 109), 121, *range(126, 136), 137, 139, 141, 152, 153, 154, 157, 160, 161]
    assert sorted(SPARED_XIDS) == spared
    assert all(len(describe(number)) <= 240 for number in [*XIDS, 999])
    assert all((xid.action in ("restart the program", "none")) == (number in SPARED_XIDS) for number, xid in XIDS.items())
    assert describe(79) == (
        "XID 79: the GPU has fallen off the bus; drain the node and restart the host, with power off if that does not help"
    )


def test_a_gpu_whose_driver_requires_a_reset_is_out_of_use_until_it_was_reset_also_after_a_restart_of_the_plugin() -> None:
    health = GpuHealth()
    assert health.answers("GPU-1", recovery="reset it") == "reset it"
    health.xid("GPU-1", 95)
    for _ in range(2 * CHECKS):
        assert health.answers("GPU-1", "later", "reset it").endswith("call the vendor (reset it)")
    assert [health.answers("GPU-1") == "ok" for _ in range(CHECKS)] == [False, False, True]


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
    health.xid("GPU-1", 48)
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
    assert health.answers("GPU-1").startswith("XID 79: the GPU has fallen")
    assert health.answers("GPU-1", "reset it").endswith("does not help (reset it)")
    # An XID takes three, whatever the administrator says.
    assert [health.answers("GPU-1") == "ok" for _ in range(4)] == [False, False, True, True]
    health.fails("GPU-1", "lost again")
    assert [health.answers("GPU-1") for _ in range(2)] == ["lost again", "ok"]


def test_a_gpu_has_itself_failed_only_if_several_signs_in_a_row_say_so() -> None:
    health = GpuHealth(checks=100)

    def silent(times: int, **which: bool) -> bool:
        for _ in range(times):
            health.fails("GPU-1", "no answer", **which)
        return health.defective("GPU-1")

    assert not silent(2)
    # It answers, and is still kept out of use.
    assert health.answers("GPU-1", unfit="reset it") != "ok"
    assert not silent(2)
    # The driver of them all says nothing about one.
    assert not silent(100, itself=False)
    assert silent(1)
    assert not health.defective("GPU-2")


@pytest.mark.parametrize("checks", [1, 2, CHECKS, 5])
def test_by_an_xid_alone_a_gpu_has_itself_failed_until_it_may_be_used_again(checks: int) -> None:
    health, seen = GpuHealth(checks=checks), []
    assert health.xid("GPU-1", 79)
    while True:
        seen.append(health.defective("GPU-1"))
        if health.answers("GPU-1") == "ok":
            break
    assert seen == [True] * max(checks, 3)
    assert not health.defective("GPU-1")


# Another pod's program must not end its neighbours.
@pytest.mark.parametrize("xid", sorted(SPARED_XIDS))
def test_a_programs_own_error_is_never_the_gpus(xid: int) -> None:
    health = GpuHealth()
    for _ in range(10):
        health.xid("GPU-1", xid)
        health.answers("GPU-1")
    assert not health.defective("GPU-1")


def test_a_recovery_that_the_driver_requires_is_the_gpus_own_failure() -> None:
    health, found = GpuHealth(), []
    for _ in range(3):
        health.answers("GPU-1", recovery="reset it")
        found.append(health.defective("GPU-1"))
    assert found == [False, False, True]

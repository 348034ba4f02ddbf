# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A unit that running pods contradict: by the unit's name, whatever the GPUs are like now."""

from __future__ import annotations

from collections.abc import Set

import pytest

from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.device_plugin.kubelet.checkpoint import changed_unit


def everybody(uids: Set[str]) -> Set[str]:
    return uids


def test_another_unit_is_rejected_while_such_a_pod_runs() -> None:
    assert changed_unit(UNITS["64MiB"], "GiB", {"a", "b"}, lambda uids: uids & {"b", "other"}) == (
        "1 pods run with memory in units of GiB (UID b), this plugin should allocate units of 64MiB: "
        "delete these pods first, or start with --memory-unit GiB"
    )
    many = changed_unit(GIB, "MiB", set("dcba"), everybody)
    assert many.startswith("4 pods run with memory in units of MiB (UID a, b, c and 1 more)")
    assert len(changed_unit(GIB, "x" * 10_000, {"a"}, everybody)) < 400


@pytest.mark.parametrize(("before", "holders"), [("GiB", {"a"}), ("", {"a"}), ("64MiB", set())], ids=["the same", "unknown", "nobody"])
def test_nobody_looks_at_processes_without_need(before: str, holders: set[str]) -> None:
    def live(uids: Set[str]) -> Set[str]:
        raise AssertionError("it looked")

    assert changed_unit(GIB, before, holders, live) == ""


def test_pods_that_have_ended_are_no_hindrance() -> None:
    assert changed_unit(UNITS["64MiB"], "GiB", {"a"}, lambda uids: set()) == ""

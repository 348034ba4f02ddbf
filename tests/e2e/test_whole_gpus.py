# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whole GPUs and shared ones on the same nodes."""

from __future__ import annotations

from e2e.checks import check_devices, check_environment, check_runs, check_totals, check_unschedulable, check_whole_gpu
from e2e.cluster import Cluster, allocation
from e2e.manifests import pod


def test_a_whole_gpu_is_taken_from_nobody_and_given_to_nobody(empty: Cluster) -> None:
    empty.create(pod("small", memory=1))
    (small,) = empty.until_running("small")
    empty.create(pod("whole", gpus=1))
    (whole,) = empty.until_running("whole")
    assert check_whole_gpu(empty, whole) == []
    assert check_devices(empty, [small, whole]) == []
    assert check_environment(empty, [small, whole]) == []
    # The tightest place: the other GPU beside the small pod.
    assert (small["spec"]["nodeName"], allocation(small)) == ("gpu1", {0: 1})
    assert (whole["spec"]["nodeName"], allocation(whole)) == ("gpu1", {1: 16})

    # All that is left on the other three GPUs, and not one unit of the whole one's 16.
    for name, units in (("rest-15", 15), ("rest-16", 16), ("rest-24", 24)):
        empty.create(pod(name, memory=units))
    pods = empty.until_running("rest-15", "rest-16", "rest-24")
    assert check_devices(empty, pods) == []
    assert check_totals(empty) == []
    empty.create(pod("late", memory=1))
    assert check_unschedulable(empty, "late", "needs 1 GiB on one GPU, at most 0 are free on one (0 of 32 in total)") == []
    assert check_whole_gpu(empty, empty.pod("whole")) == []

    empty.delete("whole")
    assert check_runs(empty, "late") == []


def test_whole_gpus_wait_for_an_empty_one(empty: Cluster) -> None:
    for name, node, units in (("a", "gpu1", 10), ("b", "gpu1", 10), ("c", "gpu2", 10), ("d", "gpu2", 20)):
        empty.create(pod(name, memory=units, node=node))
    empty.until_running("a", "b", "c", "d")
    empty.create(pod("whole", gpus=1))
    assert check_unschedulable(empty, "whole", "needs 1 whole GPU, 0 of 2 GPUs are empty") == []
    empty.delete("d")
    assert check_runs(empty, "whole") == []
    whole = empty.pod("whole")
    assert check_whole_gpu(empty, whole) == []
    assert check_devices(empty, [whole]) == []

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The empty cluster filled at once: every GPU is used to the last unit that pods of this size can use, and no further."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from e2e.checks import (
    check_devices,
    check_environment,
    check_pods_per_gpu,
    check_runs,
    check_stays_unschedulable,
    check_totals,
    check_unschedulable,
)
from e2e.cluster import Cluster, is_running
from e2e.manifests import pod

NAMES = [f"five-{number:02}" for number in range(14)]
PER_GPU = {("gpu1", 0): 3, ("gpu1", 1): 3, ("gpu2", 0): 3, ("gpu2", 1): 4}


def test_thirteen_of_fourteen_pods_of_5_gib_run(empty: Cluster) -> None:
    with ThreadPoolExecutor(len(NAMES)) as pool:
        list(pool.map(lambda name: empty.create(pod(name, memory=5)), NAMES))

    def running() -> list[str]:
        return [p["metadata"]["name"] for p in empty.pods() if is_running(p)]

    empty.until("13 of 14 pods run", lambda: len(running()) >= 13, 90, NAMES[-1])
    (waiting,) = set(NAMES) - set(running())
    assert check_unschedulable(empty, waiting, "needs 5 GiB on one GPU, at most 4 are free on one (5 of 40 in total)") == []
    assert check_pods_per_gpu(empty, PER_GPU) == []
    assert check_totals(empty) == []
    assert check_devices(empty, filter(is_running, empty.pods())) == []
    assert check_environment(empty, filter(is_running, empty.pods())) == []
    assert check_stays_unschedulable(empty, waiting, set(NAMES) - {waiting}) == []

    leaving = min(set(NAMES) - {waiting})
    empty.delete(leaving)
    assert check_runs(empty, waiting) == []
    assert check_pods_per_gpu(empty, PER_GPU) == []
    assert check_devices(empty, [empty.pod(waiting)]) == []

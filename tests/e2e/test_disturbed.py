# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster in which something is restarted, replaced or down."""

from __future__ import annotations

import statistics
import time
from functools import partial

import pytest

from e2e.checks import check_changes_nothing, check_devices, check_environment, check_follows, check_runs, check_unschedulable
from e2e.cluster import CONTROL_PLANE, Cluster
from e2e.manifests import pod

pytestmark = pytest.mark.suite("failures")

EXTENDER = "gpushare-extender"


def test_the_playbook_again_changes_nothing(samples: Cluster) -> None:
    assert check_changes_nothing(samples) == []


def test_the_extender_is_down(empty: Cluster) -> None:
    empty.stop(CONTROL_PLANE, EXTENDER)
    try:
        empty.create(pod("plain"))
        empty.create(pod("shares", memory=1))
        assert check_runs(empty, "plain", seconds=15) == []
        assert check_unschedulable(empty, "shares", "127.0.0.1:32766", "connection refused") == []
    finally:
        empty.on(CONTROL_PLANE, "systemctl", "start", EXTENDER)
    assert check_runs(empty, "shares") == []


GPU_PODS = 5
PLAIN_PODS = 10
SCHEDULER_WAITS = 1.0
"""kube-scheduler's httpTimeout for the extender: what one attempt for one GPU pod may cost whoever comes after it in the queue."""


def test_the_extender_is_stopped_and_does_not_even_reject(empty: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    # Left alone for half a minute, systemd's watchdog would replace it: the pods without GPU come before that.
    empty.on(CONTROL_PLANE, "systemctl", "kill", "--signal=SIGSTOP", EXTENDER)
    try:
        for number in range(GPU_PODS):
            empty.create(pod(f"shares-{number}", memory=1))
        for number in range(GPU_PODS):
            assert check_unschedulable(empty, f"shares-{number}", "127.0.0.1:32766", "exceeded") == []
        seconds = []
        for number in range(PLAIN_PODS):
            created = time.monotonic()
            empty.create(pod(f"plain-{number}"))
            empty.until("a pod without GPU is bound", partial(is_bound, empty, f"plain-{number}"), 5 * GPU_PODS * SCHEDULER_WAITS)
            seconds.append(time.monotonic() - created)
    finally:
        empty.on(CONTROL_PLANE, "systemctl", "kill", "--signal=SIGCONT", EXTENDER)
    with capsys.disabled():
        mean, most = statistics.mean(seconds), max(seconds)
        print(f"\nextender stopped, {GPU_PODS} GPU pods wait: a pod without GPU is bound after {mean:.2f} s, at most {most:.2f} s")
    assert empty.until_running(*(f"plain-{number}" for number in range(PLAIN_PODS)))
    for number in range(GPU_PODS):
        assert check_runs(empty, f"shares-{number}", seconds=60) == []


def is_bound(cluster: Cluster, name: str) -> bool:
    return "nodeName" in cluster.pod(name)["spec"]


def test_gpus_are_replaced_while_everything_runs(empty: Cluster) -> None:
    before = empty.gpus("gpu1")
    try:
        empty.lab("gpu", "gpu1", "--gpus", "24+8+8")
        assert [gpu.mib for gpu in empty.gpus("gpu1")] == [24 * 1024, 8 * 1024, 8 * 1024]
        assert check_follows(empty, "gpu1") == []
        empty.create(pod("twenty", memory=20, node="gpu1"))
        pods = empty.until_running("twenty")
        assert check_devices(empty, pods) == []
        assert check_environment(empty, pods) == []
        empty.clear()
    finally:
        empty.lab("gpu", "gpu1", "--gpus", "2x16")
    assert check_follows(empty, "gpu1") == []
    assert empty.gpus("gpu1") == before

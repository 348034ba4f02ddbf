# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of the scheduler and of the device plugin that end while others come and go: every pod has its GPU, and none is over-booked."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.api import ApiError
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import Cluster, is_running, unschedulable
from e2e.manifests import pod

WAITING = 30


def test_the_leader_ends_while_pods_wait(cluster: Cluster, here: InCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.clear()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpushare-scheduler"
    leader = cluster.api.get(lease)["spec"]["holderIdentity"].rpartition("_")[0]
    names = [f"wait-{number}" for number in range(WAITING)]
    for name in names:
        cluster.create(pod(name, memory=1))
    begin = time.monotonic()
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, leader, "--grace-period=0", "--force")
    cluster.until_running(*names, seconds=300)
    with capsys.disabled():
        print(f"\nmeasured: {WAITING} pods run after their scheduler's pod was killed: {time.monotonic() - begin:.1f} s")
    running = cluster.pods()
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []
    cluster.until("two schedulers serve again", lambda: sum(map(is_running, here.pods("gpushare-scheduler"))) == 2, 180)
    cluster.clear()


def test_pods_of_both_are_killed_under_churn(cluster: Cluster, here: InCluster) -> None:
    cluster.clear()
    over = threading.Event()
    apps = itertools.cycle(("gpushare-device-plugin", "gpushare-scheduler"))

    def kill() -> None:
        while not over.wait(8):
            for one in here.pods(next(apps))[:1]:
                try:
                    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{one['metadata']['name']}", gracePeriodSeconds="0")
                except ApiError:
                    continue

    killer = threading.Thread(target=kill)
    killer.start()
    problems: list[str] = []
    try:
        for batch in range(5):
            names = [f"churn-{batch}-{number}" for number in range(8)]
            for number, name in enumerate(names):
                cluster.create(pod(name, memory=1 + number % 4))
            cluster.until("all of a batch have ended or run", partial(_settled, cluster, names), 240)
            running = [one for one in cluster.pods() if is_running(one)]
            problems += check_devices(cluster, running) + check_environment(cluster, running) + check_totals(cluster)
            cluster.delete(*names)
    finally:
        over.set()
        killer.join()
    assert problems == []
    cluster.clear()


def _settled(cluster: Cluster, names: list[str]) -> bool:
    """A pod that kubelet has rejected, because no device plugin served it, has failed; the others run."""
    found = [one for one in cluster.pods() if one["metadata"]["name"] in names]
    waiting = [one for one in found if not is_running(one) and one["status"].get("phase") != "Failed"]
    return len(found) == len(names) and not waiting and not any(unschedulable(one) for one in waiting)

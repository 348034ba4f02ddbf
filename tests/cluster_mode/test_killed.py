# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of the scheduler and of the device plugin that end, and a node that reboots: every pod has its GPU, and none is over-booked."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.api import ApiError, Json
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import CONTROL_PLANE, GPU_NODES, GPUS, MEMORY, Cluster, container_id, is_running, unschedulable
from e2e.manifests import pod
from ha.burst import PODS, Room, at_once, bound, chosen_at, clear, conflicts, manifests, settled, until_all_wait

FULL = bool(os.environ.get("GPUSHARE_FULL"))
KILLS, WAITING = (5, 100) if FULL else (1, 60)
BATCHES, BATCH = (38, 8) if FULL else (5, 8)
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpushare-scheduler"
#: Of the whole process, in MiB. Python with 5000 nodes has more; the limits of the pods are higher.
MOST_MIB = {"gpushare-device-plugin": 80, "gpushare-extender": 200, "gpushare-dashboard": 150, "gpushare-pki": 60}
pytestmark = pytest.mark.timeout(5400 if FULL else 1500)
Measured = Callable[[str], None]


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Measured:
    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\nmeasured: {text}", flush=True)

    return say


@pytest.fixture(scope="module")
def room(cluster: Cluster) -> Iterator[Room]:
    """GPUs of nodes that no kubelet serves, beside those of the two real nodes."""
    cluster.clear()
    with Room(cluster) as room:
        yield room


def leader(cluster: Cluster) -> str:
    """The pod whose scheduler holds the Lease."""
    return str(cluster.api.get(LEASE)["spec"]["holderIdentity"]).rpartition("_")[0]


@pytest.mark.parametrize("number", range(KILLS))
def test_the_leader_is_killed_while_pods_wait(cluster: Cluster, here: InCluster, room: Room, measured: Measured, number: int) -> None:
    pods = manifests(number)[:WAITING]
    at_once(cluster, lambda one: cluster.api.create(PODS, one), pods, done_already=409)
    until_all_wait(cluster, len(pods))
    former = leader(cluster)
    try:
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, former, "--grace-period=0", "--force", "--wait=false")
        killed = time.time()
        room.open_a_third()
        room.open()
        found = cluster.until("all pods are bound", lambda: _all(bound(cluster), len(pods)), 300)
        real = {one["metadata"]["name"] for one in found if one["spec"]["nodeName"] in GPU_NODES}
        found = cluster.until("those on real nodes run", lambda: settled(cluster, real), 240, *sorted(real)[:3])
        problems = conflicts(cluster, found)
        after = sorted(moment - killed for moment in map(chosen_at, found) if moment > killed)
        measured(
            f"kill {number + 1} of the leader's pod with {len(pods)} pods pending: first bound after {after[0]:.1f} s, the last after "
            f"{after[-1]:.1f} s; {leader(cluster)} after {former}; {len(problems)} conflicts"
        )
    finally:
        room.close()
        clear(cluster)
        cluster.until("two schedulers serve again", lambda: sum(map(is_running, here.pods("gpushare-scheduler"))) == 2, 180)
    assert problems == []
    assert leader(cluster) != former
    # Five times what is promised.
    assert after[0] <= 5 * 45


def _all(found: list[Json], count: int) -> list[Json] | None:
    return found if len(found) == count else None


def test_pods_of_both_are_killed_under_churn(cluster: Cluster, here: InCluster, measured: Measured) -> None:
    cluster.clear()
    over, killed = threading.Event(), itertools.count()
    apps = itertools.cycle(("gpushare-device-plugin", "gpushare-scheduler"))

    def kill() -> None:
        while not over.wait(8):
            for one in here.pods(next(apps))[:1]:
                try:
                    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{one['metadata']['name']}", gracePeriodSeconds="0")
                    next(killed)
                except ApiError:
                    continue

    killer = threading.Thread(target=kill)
    killer.start()
    problems: list[str] = []
    rejected = 0
    try:
        for batch in range(BATCHES):
            names = [f"churn-{batch}-{number}" for number in range(BATCH)]
            for number, name in enumerate(names):
                cluster.create(pod(name, memory=1 + number % 4))
            cluster.until("all of a batch have ended or run", partial(_settled, cluster, names), 240)
            running = [one for one in cluster.pods() if is_running(one)]
            rejected += BATCH - len(running)
            if running:
                problems += check_devices(cluster, running) + check_environment(cluster, running) + check_totals(cluster)
            cluster.delete(*names)
    finally:
        over.set()
        killer.join()
    measured(
        f"churn of {BATCHES * BATCH} pods with {next(killed)} pods of scheduler and device plugin killed: {len(problems)} problems, "
        f"{rejected} pods failed because no device plugin served them"
    )
    assert problems == []
    assert rejected < BATCHES * BATCH / 2
    cluster.clear()


def _settled(cluster: Cluster, names: list[str]) -> bool:
    """A pod that kubelet has rejected, because no device plugin served it, has failed; the others run."""
    found = [one for one in cluster.pods() if one["metadata"]["name"] in names]
    waiting = [one for one in found if not is_running(one) and one["status"].get("phase") != "Failed"]
    return len(found) == len(names) and not waiting and not any(unschedulable(one) for one in waiting)


def test_the_daemons_need_little_memory(cluster: Cluster, measured: Measured) -> None:
    """After all that was before: the most that each process has had."""
    script = r"for p in $(pgrep -f '^/opt/gpushare/bin/python3'); do tr '\0' ' ' < /proc/$p/cmdline; grep VmHWM /proc/$p/status; done"
    found: dict[str, int] = {}
    for node in (CONTROL_PLANE, *GPU_NODES):
        for program, kib in re.findall(r"/opt/gpushare/bin/(gpushare-\S+) .*?VmHWM:\s+(\d+) kB", cluster.on(node, "sh", "-c", script)):
            found[program] = max(found.get(program, 0), int(kib) // 1024)
    measured(f"most memory of a process in MiB: {found}")
    assert found.keys() == MOST_MIB.keys()
    assert [f"{name} has {mib} MiB" for name, mib in found.items() if mib > MOST_MIB[name]] == []


def test_a_node_reboots(cluster: Cluster, here: InCluster, measured: Measured) -> None:
    """kubelet admits its pods anew. Those that come before the pod of the device plugin serves fail, as failures.md says."""
    node = GPU_NODES[0]
    cluster.clear()

    def serves() -> bool:
        pods = [one for one in here.pods("gpushare-device-plugin") if one["spec"].get("nodeName") == node]
        return any(map(is_running, pods)) and _offers(cluster, node)

    # The test before has killed it. kubelet still has its units then, and would reject pods.
    def ready_before() -> bool:
        pods = [one for one in here.pods("gpushare-device-plugin") if one["spec"].get("nodeName") == node]
        return any(all(status["ready"] for status in one["status"].get("containerStatuses", [{"ready": False}])) for one in pods)

    cluster.until("the device plugin's pod is ready before the reboot", lambda: serves() and ready_before(), 240)
    names = [f"stay-{number}" for number in range(8)]
    for name in names:
        cluster.create(pod(name, memory=2, node=node))
    gpus = {one["metadata"]["name"]: one["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for one in cluster.until_running(*names)}

    starts = {one["metadata"]["name"]: container_id(one) for one in cluster.pods()}
    cluster.switch_off(node)
    begin = time.monotonic()
    cluster.lab("up", seconds=300)
    ready = time.monotonic() - begin
    cluster.until("the device plugin's pod serves", serves, 240)
    offered = time.monotonic() - begin

    def back_or_failed() -> list[Json] | None:
        found = [cluster.pod(name) for name in names]
        again = [
            one["status"].get("phase") == "Failed" or (is_running(one) and container_id(one) != starts[one["metadata"]["name"]])
            for one in found
        ]
        return found if all(again) else None

    found = cluster.until("every pod runs again or has failed", back_or_failed, 240, *names[:2])
    lost = [one["metadata"]["name"] for one in found if not is_running(one)]
    measured(
        f"a reboot of a node with {len(names)} pods: Ready after {ready:.1f} s, all units offered after "
        f"{offered:.1f} s; {len(names) - len(lost)} pods run again, {len(lost)} failed"
    )
    running = [one for one in found if is_running(one)]
    assert {one["metadata"]["name"]: one["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] for one in running}.items() <= gpus.items()
    words = [one["status"].get("message", "") for one in found if not is_running(one)]
    assert [one for one in words if not re.search("unregistered device|no healthy devices|Allocate failed", one)] == []
    assert (check_devices(cluster, running) if running else []) == []
    cluster.clear()
    cluster.create(pod("new", memory=2, node=node))
    assert check_devices(cluster, cluster.until_running("new")) == []
    cluster.clear()


def _offers(cluster: Cluster, node: str) -> bool:
    """Whether kubelet offers as many units as the device plugin has published."""
    item = cluster.node(node)
    return all(item["status"]["allocatable"].get(name) == item["status"]["capacity"].get(name) != "0" for name in (MEMORY, GPUS))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender in pods beside the kube-schedulers of three control planes: installed by site.yml, the leader's host dies, uninstalled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster_mode.in_cluster import NAMESPACE, Modes, archive, bring_images
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import GPU_NODES, Cluster, CommandError
from e2e.manifests import pod
from ha.burst import PODS, Room, at_once, bound, chosen_at, clear, conflicts, manifests, settled, until_all_wait
from ha.planes import PLANES, kill_node, leader, now
from labs import THREE_PLANES, Labs

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    cluster = labs.bare(THREE_PLANES)
    bring_images(cluster, archive(), PLANES)
    return cluster


@pytest.fixture
def modes(cluster: Cluster, tmp_path: Path) -> Modes:
    # Their containerd has CDI: the pod of the device plugin needs another way to the driver, as the message says.
    return Modes(cluster, tmp_path, gpushare_scheduler="default", gpushare_device_strategy="volume-mounts")


def until_whole(cluster: Cluster) -> None:
    """Until each control plane has a scheduler, and an extender that serves it."""

    def whole() -> bool:
        try:
            for plane in PLANES:
                cluster.on(plane, "pgrep", "-x", "kube-scheduler")
        except CommandError:
            return False
        status = cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpushare-extender")["status"]
        return bool(status.get("numberReady") == status.get("desiredNumberScheduled") == len(PLANES))

    cluster.until("each control plane has its scheduler and its extender", whole, 300)


def shares(cluster: Cluster, *names: str, seconds: float = 120) -> None:
    running = cluster.until_running(*names, seconds=seconds)
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []


def test_site_adds_the_extenders_pods_to_the_schedulers(cluster: Cluster, modes: Modes) -> None:
    before = modes.site.objects()
    modes.play("site.yml", "kubernetes")
    until_whole(cluster)
    keys = {plane: cluster.on(plane, "sha256sum", "/etc/gpushare/pki/ca.crt").split()[0] for plane in PLANES}
    assert len(set(keys.values())) == len(PLANES), keys
    for plane in PLANES:
        assert "https://127.0.0.1:32766/gpushare-scheduler" in cluster.on(plane, "cat", "/etc/kubernetes/gpushare/kube-scheduler.yaml")
        assert "gpushare-extender" not in cluster.on(plane, "ls", "/etc/systemd/system")
    assert "Deployment gpushare-system/gpushare-scheduler" not in set(modes.site.objects()) - set(before)
    cluster.create(pod("first", memory=2))
    shares(cluster, "first")
    assert cluster.pod("first")["spec"]["schedulerName"] == "default-scheduler"
    again, output = modes.play("site.yml", "kubernetes")
    assert again.changes() == {}, output


def test_the_leaders_host_dies_in_the_middle_of_a_burst(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """As in tests/ha, where the extenders are services."""
    cluster.clear()
    with Room(cluster) as room:
        pods = manifests(1)
        at_once(cluster, lambda one: cluster.api.create(PODS, one), pods, done_already=409)
        until_all_wait(cluster, len(pods))
        former = leader(cluster)
        try:
            room.open_a_third()
            cluster.until("a third of the pods is bound", lambda: len(bound(cluster)) > len(pods) // 3, 60)
            with ThreadPoolExecutor(1) as executor:
                kill = executor.submit(kill_node, cluster, former)
                room.open()
                kill.result()
            killed = now()
            cluster.until("all pods are bound", lambda: len(bound(cluster)) == len(pods), 300)
            real = {one["metadata"]["name"] for one in bound(cluster) if one["spec"]["nodeName"] in GPU_NODES}
            found = cluster.until("those on real nodes run", lambda: settled(cluster, real), 240, *sorted(real)[:3])
            problems, successor = conflicts(cluster, found), leader(cluster)
            after = sorted(moment - killed for moment in map(chosen_at, found) if moment > killed)
            with capsys.disabled():
                print(f"\nmeasured: host of {former} dies, then {successor}: {len(after)} of {len(found)} pods bound after it", end="")
                print(f", the first {after[0]:.1f} s, the last {after[-1]:.1f} s later" if after else "")
        finally:
            cluster.lab("up", seconds=600)
            until_whole(cluster)
            room.close()
            clear(cluster)
    assert problems == []
    assert 0 < len(after) < len(found), "the leader did not die in the middle of the burst"
    assert successor != former


def test_uninstall_takes_all_of_it_away(cluster: Cluster, modes: Modes) -> None:
    """The hosts' files are compared in test_modes.py; here, that kube-scheduler is as it was and needs no extender."""
    modes.play("playbooks/uninstall.yml", "kubernetes")
    for plane in PLANES:
        assert "gpushare" not in cluster.on(plane, "cat", "/etc/kubernetes/manifests/kube-scheduler.yaml")
        left = "/etc/gpushare /etc/kubernetes/gpushare /var/lib/gpushare-extender /var/lib/gpushare.kubernetes"
        assert cluster.on(plane, "sh", "-c", f"ls -d {left} 2>/dev/null || true").split() == []
    assert [name for name in modes.site.objects() if "gpushare" in name] == []
    modes.site.schedules("afterwards")

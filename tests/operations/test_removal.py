# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""remove_node.yml and remove_dead_node.yml: one node goes with a drain, the other one dies."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster, annotations_of
from e2e.manifests import pod
from installer.site import RESOURCES
from operations.hosts import QUIET, accounts, counts, kill, ready, rejected, run, runs_on

NODE, SECOND = "gpu1", "gpu2"
PLUGIN = "gpushare-device-plugin"


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """With a pod on each node that has a share of a GPU."""
    installed.clear()
    for node in (NODE, SECOND):
        installed.create(pod(f"holder-{node}", memory=2, node=node))
    installed.until_running(*(f"holder-{node}" for node in (NODE, SECOND)))
    return installed


def test_a_node_with_pods_is_removed_by_a_drain_and_stays_a_node(cluster: Cluster) -> None:
    which = ("-e", f"gpushare_remove_nodes={NODE}", "-e", "gpushare_uninstall_wait=0")
    assert f"default/holder-{NODE} on {NODE}" in rejected(cluster, "remove_node", *which)
    assert "no controller would bring back" in rejected(cluster, "remove_node", *which, "-e", "gpushare_drain=true")
    assert not cluster.node(NODE)["spec"].get("unschedulable")

    said = run(cluster, "remove_node", *which, "-e", "gpushare_drain=true", "-e", "gpushare_drain_force=true")
    assert {host for host, (changed, _failed) in counts(said).items() if changed} == {NODE}, said
    node = cluster.node(NODE)
    assert not node["spec"].get("unschedulable")
    assert [key for key in (*annotations_of(node), *node["metadata"]["labels"]) if key.startswith("gpushare")] == []
    assert {name.rpartition("/")[2] for name in accounts(cluster)} == {f"{PLUGIN}-{SECOND}"}
    left = "ls -d /opt/gpushare /etc/gpushare /var/lib/gpushare /etc/systemd/system/gpushare-[!l]* 2>/dev/null || true"
    assert cluster.on(NODE, "sh", "-c", left).split() == []
    assert ready(cluster, NODE) == "True"
    again = counts(run(cluster, "remove_node", *which))
    assert set(again.values()) == {QUIET}, again
    runs_on(cluster, SECOND)


def test_a_dead_node_is_removed_from_the_cluster_and_a_living_one_is_not(cluster: Cluster) -> None:
    which = ("-e", f"gpushare_remove_nodes={SECOND}")
    assert f"{SECOND} can be reached, so it is not dead" in rejected(cluster, "remove_dead_node", *which)
    # Nobody answers, but its kubelet does.
    cluster.on(SECOND, "sh", "-c", "systemctl stop ssh; pkill -x sshd; true")
    assert f"the node {SECOND} is Ready" in rejected(cluster, "remove_dead_node", *which)
    kill(cluster, SECOND)
    cluster.until("the API server has seen it", lambda: ready(cluster, SECOND) != "True", 180)
    assert f"{SECOND} cannot be reached or read" in rejected(cluster, "remove_node", *which)

    said = run(cluster, "remove_dead_node", *which)
    assert f"default/holder-{SECOND}" in said
    assert accounts(cluster) == set()
    node = cluster.node(SECOND)
    assert [key for key in (*annotations_of(node), *node["metadata"]["labels"]) if key.startswith("gpushare")] == []
    assert [name for part in ("capacity", "allocatable") for name in RESOURCES if name in node["status"][part]] == []
    again = counts(run(cluster, "remove_dead_node", *which))
    assert {changed for changed, _failed in again.values()} == {0}, again
    # The API server no longer has the node: nothing is left, and that is no error.
    cluster.kubectl("delete", "node", SECOND)
    run(cluster, "remove_dead_node", *which)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""scale.yml: two control planes and a GPU node join a cluster of one of each after the installation, the node with the first one down.

The tests are one story, in this order, on one lab.
"""

from __future__ import annotations

import json

import pytest

from e2e.cluster import Cluster
from ha.planes import bring_back, leader
from operations.hosts import LATER_NODE, LATER_PLANES, QUIET, counts, is_up, join, kill, run, runs_on

FIRST, NODE = "cp1", "gpu1"
SECOND, THIRD = LATER_PLANES
EXTENDER = "gpushare-extender"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


def test_control_planes_are_prepared_before_they_join(growing: Cluster) -> None:
    cluster = growing
    said = run(cluster, "scale")
    assert f"leaves them out: {SECOND}, {THIRD}, {LATER_NODE}" in " ".join(said.split()), said
    found = counts(said)
    assert {host: found[host] for host in (FIRST, NODE, LATER_NODE)} == dict.fromkeys((FIRST, NODE, LATER_NODE), QUIET), said
    for plane in LATER_PLANES:
        assert found[plane][0] > 0
        assert cluster.on(plane, "cat", CONFIG) == cluster.on(FIRST, "cat", CONFIG)
        assert cluster.on(plane, "systemctl", "is-active", EXTENDER).strip() == "active"
    again = counts(run(cluster, "scale"))
    assert set(again.values()) == {QUIET}, again


@pytest.mark.parametrize("plane", LATER_PLANES)
def test_kubeadm_joins_it_with_a_scheduler_that_starts_and_the_playbook_completes_it(growing: Cluster, plane: str) -> None:
    cluster = growing
    join(cluster, plane, FIRST, control_plane=True)
    cluster.until("its scheduler runs", lambda: is_up(cluster, plane, "kube-scheduler"), 120)
    found = counts(run(cluster, "scale"))
    assert found[plane][0] > 0
    assert found[plane][1] == 0
    assert {counted for host, counted in found.items() if host != plane} == {QUIET}, found
    again = counts(run(cluster, "scale"))
    assert set(again.values()) == {QUIET}, again


def test_a_gpu_node_joins_and_is_installed_by_limit_while_the_first_control_plane_is_down(growing: Cluster) -> None:
    cluster = growing
    kill(cluster, FIRST)
    try:
        cluster.until("another control plane leads", lambda: leader(cluster) not in ("", FIRST), 120)
        join(cluster, LATER_NODE, SECOND)
        found = counts(run(cluster, "scale", "--limit", LATER_NODE))
        assert set(found) == {LATER_NODE}
        assert found[LATER_NODE][0] > 0
        runs_on(cluster, LATER_NODE)
        again = counts(run(cluster, "scale", "--limit", LATER_NODE))
        assert again == {LATER_NODE: QUIET}
    finally:
        bring_back(cluster)


def test_each_scheduler_has_its_extender_and_kubeadms_configuration_names_ours_once(growing: Cluster) -> None:
    for plane in (FIRST, *LATER_PLANES):
        assert growing.on(plane, "systemctl", "is-active", EXTENDER).strip() == "active"
    config = json.loads(growing.kubectl("get", "configmap", "--namespace", "kube-system", "kubeadm-config", "-o", "json"))
    assert config["data"]["ClusterConfiguration"].count(CONFIG) == 1

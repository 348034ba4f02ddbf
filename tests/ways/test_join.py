# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""scale.yml: a control plane and a GPU node join a cluster after the installation, the latter with the first control plane down.

The tests are one story, in this order, on one lab.
"""

from __future__ import annotations

import json

from e2e.cluster import Cluster
from ha.planes import bring_back, leader
from ways.hosts import LATER_NODE, LATER_PLANE, QUIET, counts, is_up, join, kill, run, runs_on

FIRST, OTHER, NODE = "cp1", "cp2", "gpu1"
EXTENDER = "gpushare-extender"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


def test_a_control_plane_is_prepared_before_it_joins(growing: Cluster) -> None:
    cluster = growing
    said = run(cluster, "scale")
    assert f"leaves them out: {LATER_PLANE}, {LATER_NODE}" in " ".join(said.split()), said
    found = counts(said)
    assert {host: found[host] for host in (FIRST, OTHER, NODE, LATER_NODE)} == dict.fromkeys((FIRST, OTHER, NODE, LATER_NODE), QUIET), said
    assert found[LATER_PLANE][0] > 0
    assert cluster.on(LATER_PLANE, "cat", CONFIG) == cluster.on(FIRST, "cat", CONFIG)
    assert cluster.on(LATER_PLANE, "systemctl", "is-active", EXTENDER).strip() == "active"
    again = counts(run(cluster, "scale"))
    assert set(again.values()) == {QUIET}, again


def test_kubeadm_joins_it_with_a_scheduler_that_starts_and_the_playbook_completes_it(growing: Cluster) -> None:
    cluster = growing
    join(cluster, LATER_PLANE, FIRST, control_plane=True)
    cluster.until("its scheduler runs", lambda: is_up(cluster, LATER_PLANE, "kube-scheduler"), 120)
    found = counts(run(cluster, "scale"))
    assert found[LATER_PLANE][0] > 0
    assert found[LATER_PLANE][1] == 0
    assert {found[host] for host in (FIRST, OTHER, NODE, LATER_NODE)} == {QUIET}, found
    again = counts(run(cluster, "scale"))
    assert set(again.values()) == {QUIET}, again


def test_a_gpu_node_joins_and_is_installed_by_limit_while_the_first_control_plane_is_down(growing: Cluster) -> None:
    cluster = growing
    kill(cluster, FIRST)
    try:
        cluster.until("another control plane leads", lambda: leader(cluster) not in ("", FIRST), 120)
        join(cluster, LATER_NODE, OTHER)
        found = counts(run(cluster, "scale", "--limit", LATER_NODE))
        assert set(found) == {LATER_NODE}
        assert found[LATER_NODE][0] > 0
        runs_on(cluster, LATER_NODE)
        again = counts(run(cluster, "scale", "--limit", LATER_NODE))
        assert again == {LATER_NODE: QUIET}
    finally:
        bring_back(cluster)


def test_each_scheduler_has_its_extender_and_kubeadms_configuration_names_ours_once(growing: Cluster) -> None:
    for plane in (FIRST, OTHER, LATER_PLANE):
        assert growing.on(plane, "systemctl", "is-active", EXTENDER).strip() == "active"
    config = json.loads(growing.kubectl("get", "configmap", "--namespace", "kube-system", "kubeadm-config", "-o", "json"))
    assert config["data"]["ClusterConfiguration"].count(CONFIG) == 1

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml on three control planes: each has its own extender and CA, a second run changes nothing, and verify has nothing to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.cluster import GPU_NODES, Cluster
from ha.planes import EXTENDER, PLANES
from verify.verdict import Verify

RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)


@pytest.fixture
def verify(cluster: Cluster, tmp_path: Path) -> Verify:
    return Verify(cluster, tmp_path)


def test_each_control_plane_has_a_ca_of_its_own_and_its_scheduler_asks_its_own_extender(cluster: Cluster) -> None:
    keys = {plane: cluster.on(plane, "sha256sum", "/etc/gpushare/pki/ca.crt").split()[0] for plane in PLANES}
    assert len(set(keys.values())) == len(PLANES), keys
    for plane in PLANES:
        config = cluster.on(plane, "cat", "/etc/kubernetes/gpushare/kube-scheduler.yaml")
        assert "https://127.0.0.1:32766/gpushare-scheduler" in config, plane


def test_kubeadms_own_configuration_names_ours_once(cluster: Cluster) -> None:
    found = cluster.api.get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config")["data"]["ClusterConfiguration"]
    assert found.count("/etc/kubernetes/gpushare/kube-scheduler.yaml") == 1, found


def test_a_second_run_changes_nothing(cluster: Cluster) -> None:
    before = _processes(cluster)
    said = cluster.playbook(seconds=1800)
    expected = {(host, "0", "0", "0") for host in (*PLANES, *GPU_NODES)}
    assert set(RECAP.findall(said)) == expected, "\n".join(
        line for line in said.splitlines() if line.startswith(("TASK", "changed", "fatal"))
    )
    assert _processes(cluster) == before


def test_verify_has_nothing_to_say_with_a_probe_on_each_gpu_node(verify: Verify) -> None:
    verdict = verify.run("-e", "gpushare_verify_probe=always")
    # The fixture's own drop-in, which has the extenders log every answer.
    assert {(one["host"], one["check"]) for one in verdict.findings} == {(plane, "unit_extended") for plane in PLANES}, verdict.words
    assert verdict.looked_at["hosts"] == 5
    assert verdict.looked_at["probe pods"] == 2


def _processes(cluster: Cluster) -> dict[str, list[str]]:
    """Main processes that an idle run must leave alone."""
    script = f"systemctl show -P MainPID {EXTENDER}; pgrep -x kube-scheduler"
    return {plane: cluster.on(plane, "sh", "-ec", script).split() for plane in PLANES}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPU Operator's ClusterPolicy on a real API server: what preflight says of it, switched off, and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding, HostFindings
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.aside import TakeOverError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.operator import gathered
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import RESULTS, believe
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.gpu_operator import judge

from blocks import lines
from others.server import CLUSTER_POLICY, Json, Server, without_server_fields
from unit.fakes.plugins.takeover.others import cluster_policy

POLICIES = "clusterpolicies.nvidia.com"
VALIDATOR, PLUGIN = "nvidia.com/gpu.deploy.operator-validator", "nvidia.com/gpu.deploy.device-plugin"
OURS = "gpushare.kubernetes/node"
DEPLOYED = {VALIDATOR: "true", PLUGIN: "true"}
HELM = {"meta.helm.sh/release-name": "gpu-operator", "meta.helm.sh/release-namespace": "gpu-operator"}


def node(name: str, labels: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def policy(name: str = "cluster-policy", annotations: dict[str, str] | None = None, **device_plugin: Any) -> Json:
    made = cluster_policy(**device_plugin)
    return {**made, "metadata": {"name": name, **({"annotations": annotations} if annotations else {})}}


@pytest.fixture
def cluster(server: Server) -> Iterator[Server]:
    """With two nodes of the operator."""
    server.define(CLUSTER_POLICY)
    server.apply(node("gpu1", DEPLOYED), node("gpu2", DEPLOYED), node("cp1", {}))
    yield server
    server.delete(POLICIES)
    server.delete("nodes")


def said(server: Server, mode: str = "check", ours: tuple[str, ...] = ("gpu1", "gpu2")) -> list[Finding]:
    found = HostFindings("cluster")
    judge(found, answer_of(gathered(server.kubectl)), ours, mode)
    return found.list


def test_a_cluster_without_the_operator(server: Server) -> None:
    """First: no CRD yet."""
    assert said(server) == []
    assert "found no ClusterPolicy" in str(said(server, "patch")[0])


def test_its_states(cluster: Server) -> None:
    assert said(cluster) == []
    cluster.apply(policy(enabled=True))
    assert "on gpu1, gpu2; expected devicePlugin.enabled: false" in str(said(cluster)[0])
    assert said(cluster, "patch") == []
    # Only a part of the nodes is ours.
    (mixed,) = said(cluster, "patch", ("gpu1",))
    assert (mixed.severity, "gpu2 lose nvidia.com/gpu" in mixed.cure) == ("warning", True)
    # The label alone takes the plugin away, and not the validator that waits for it.
    cluster.apply(node("gpu1", {VALIDATOR: "true", PLUGIN: "false"}))
    assert "ClusterPolicy cluster-policy with" in str(said(cluster, ours=("gpu1",))[0])
    cluster.apply(node("gpu1", {VALIDATOR: "false", PLUGIN: "false"}))
    assert said(cluster, ours=("gpu1",)) == []
    cluster.apply(policy("second"))
    assert "2 objects ClusterPolicy" in str(said(cluster)[0])


def test_what_helm_owns_is_refused_and_the_command_printed(cluster: Server) -> None:
    cluster.apply(policy(annotations=HELM, enabled=True), manager="helm")
    (reason,) = said(cluster, "patch")
    assert "helm upgrade gpu-operator nvidia/gpu-operator --namespace gpu-operator --reuse-values" in reason.cure
    before = cluster.get(POLICIES, "cluster-policy")
    with pytest.raises(TakeOverError, match="the Helm release gpu-operator"):
        OtherPlugins(cluster.kubectl).switch_operator_off(["gpu1"], False)
    assert cluster.get(POLICIES, "cluster-policy") == before


@pytest.mark.parametrize("part", [{"enabled": True}, {}], ids=["enabled", "default"])
def test_it_is_switched_off_and_restored(cluster: Server, part: Json) -> None:
    cluster.apply(policy(**part))
    before = without_server_fields(cluster.get(POLICIES, "cluster-policy"))
    OtherPlugins(cluster.kubectl).switch_operator_off(["gpu1"], True)
    assert without_server_fields(cluster.get(POLICIES, "cluster-policy")) == before
    assert len(OtherPlugins(cluster.kubectl).switch_operator_off(["gpu1"], False).changes) == 1
    off = cluster.get(POLICIES, "cluster-policy")
    assert off["spec"]["devicePlugin"]["enabled"] is False
    assert {key: off["spec"][key] for key in ("toolkit", "driver")} == {key: before["spec"][key] for key in ("toolkit", "driver")}
    assert said(cluster) == []
    assert OtherPlugins(cluster.kubectl).switch_operator_off(["gpu1"], False).changes == ()
    assert len(OtherPlugins(cluster.kubectl).give_back(["gpu1"], False).changes) == 1
    assert without_server_fields(cluster.get(POLICIES, "cluster-policy")) == before


def test_the_playbook_says_it_and_its_removal_restores_it(cluster: Server, tmp_path: Path) -> None:
    """Through Ansible: preflight's words, what --check would change, and `absent`, which finds nothing else to remove."""
    cluster.apply(policy(enabled=True), node("gpu1", {**DEPLOYED, OURS: "true"}))
    before = without_server_fields(cluster.get(POLICIES, "cluster-policy"))
    asked = answer_of(gather(cluster.kubectl, "gpushare-system", []))
    assert believe({"facts": asked}, RESULTS["gpushare_in_cluster facts"]) == {"facts": asked}
    told = cluster.played(tmp_path, "--check")
    assert "found ClusterPolicy cluster-policy with the GPU Operator's device plugin, on gpu1" in lines(told)
    assert "set gpushare_gpu_operator: patch, or run: kubectl patch" in lines(told)
    OtherPlugins(cluster.kubectl).switch_operator_off(["gpu1"], False)
    assert "ClusterPolicy" not in cluster.played(tmp_path, "--check")
    ended = cluster.played(tmp_path, "-e", "gpushare_cluster_state=absent")
    assert "failed=0" in ended, ended
    assert without_server_fields(cluster.get(POLICIES, "cluster-policy")) == before

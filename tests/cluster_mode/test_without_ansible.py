# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Installed without Ansible: by `kubectl apply` of docs/manifests, and by helm with the chart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster_mode.conftest import Bare
from cluster_mode.in_cluster import NAMESPACE, InCluster
from cluster_mode.installs import Chart, Manifest
from docs.pages import blocks
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import CONTROL_PLANE, GPU_NODES, OTHER_KUBELET_ROOT, Cluster
from e2e.manifests import pod
from gpushare_lab import components
from gpushare_lab.prepare import the_cache
from gpushare_lab.spec import POD_SUBNET


@pytest.fixture
def chart(bare: Bare) -> Chart:
    return Chart(bare.cluster, kubeletRoot=OTHER_KUBELET_ROOT)


def shares(cluster: Cluster, *names: str) -> None:
    """Pods with these names run, each on the GPU of its annotation."""
    for name in names:
        cluster.create(pod(name, memory=2))
    running = cluster.until_running(*names, seconds=120)
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []


def settings(cluster: Cluster) -> list[str]:
    """Of the extender, as they are in the cluster."""
    deployment = cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gpushare-scheduler")
    text: str = deployment["spec"]["template"]["metadata"]["annotations"]["gpushare.kubernetes/settings"]
    return text.splitlines()


def containers(cluster: Cluster) -> dict[str, str]:
    """Of the pods in the namespace default: their ids change where one is started again."""
    return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in cluster.pods()}


@contextmanager
def kube_proxy(cluster: Cluster) -> Iterator[None]:
    """kube-proxy on every node, by which pods reach the Service `kubernetes`: without it they need an address of the API server."""
    program = (components.kubernetes(the_cache(), components.KUBERNETES) / "kube-proxy").read_bytes()
    folder, nodes = "/run/kube-proxy", (CONTROL_PLANE, *GPU_NODES)
    # The conntrack settings are the machine's: nodes of a lab may not write them.
    options = ["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"]
    command = [
        f"{folder}/kube-proxy",
        f"--kubeconfig={folder}/kubeconfig",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_SUBNET}",
        *options,
    ]
    try:
        for node in nodes:
            cluster.on(node, "mkdir", "-p", folder)
            for name, content in (("kube-proxy", program), ("kubeconfig", cluster.kubeconfig.read_bytes())):
                place = f"{folder}/{name}"
                write = [*cluster.entering(node), "sh", "-c", f"cat > {place}; chmod 700 {place}"]
                subprocess.run(write, input=content, check=True, timeout=60)
            cluster.on(node, "systemd-run", "--unit=kube-proxy", *command, f"--hostname-override={node}")
        yield
    finally:
        for node in nodes:
            cluster.on(node, "sh", "-c", f"systemctl stop kube-proxy; {command[0]} --cleanup; rm -rf {folder}")


def test_the_api_server_by_its_service(bare: Bare, here: InCluster) -> None:
    """No address of the API server is given: the pods take the one that kubelet gives to every container."""
    manifest = Manifest(bare.cluster, OTHER_KUBELET_ROOT, by_service=True)
    with kube_proxy(bare.cluster):
        manifest.install()
        assert "KUBERNETES_SERVICE_HOST" not in json.dumps(manifest.changed())
        shares(bare.cluster, "by-service")
        bare.cluster.clear()
        manifest.remove()
    assert set(here.objects()) == bare.objects


def test_the_manifest(bare: Bare, here: InCluster) -> None:
    manifest = Manifest(bare.cluster, OTHER_KUBELET_ROOT)
    manifest.install()
    shares(bare.cluster, "first", "second")
    bare.cluster.clear()
    # What a manifest of before has left, and the page's command.
    old = "gpushare-scheduler-kube-scheduler"
    who = f"--serviceaccount={NAMESPACE}:gpushare-scheduler"
    bare.cluster.kubectl("create", "clusterrolebinding", old, "--clusterrole=system:kube-scheduler", who)
    bare.cluster.kubectl("delete", "--ignore-not-found", "clusterrolebinding", old, "gpushare-scheduler-volume-scheduler")
    manifest.remove()
    assert set(here.objects()) == bare.objects


def test_helm_installs(bare: Bare, chart: Chart) -> None:
    chart.install()
    assert json.loads(chart.helm("status", "gpushare", "--output", "json"))["info"]["status"] == "deployed"
    shares(bare.cluster, "share-1", "share-2")


def test_helm_rejects_bad_values_and_changes_nothing(bare: Bare, chart: Chart, here: InCluster) -> None:
    before = here.objects()
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        chart.set("upgrade", isolation="mps")
    after = here.objects()
    assert {name: after[name] for name in after if "ClusterRole" in name} == {
        name: before[name] for name in before if "ClusterRole" in name
    }
    assert set(after) == set(before)


def test_helm_upgrades_and_rolls_back_under_running_pods(bare: Bare, chart: Chart) -> None:
    """Other values replace the pods of both daemons; those with GPUs stay, and new ones get theirs."""
    before, running = settings(bare.cluster), containers(bare.cluster)
    chart.set("upgrade", overuse="evict", gpuPlacement="spread")
    assert set(settings(bare.cluster)) - set(before) == {"evict: true", 'gpuPlacement: "spread"'}
    assert bare.cluster.kubectl("auth", "can-i", "create", "pods", "--subresource=eviction", *as_scheduler()).strip() == "yes"
    shares(bare.cluster, "after-upgrade")
    chart.helm("rollback", "gpushare", "1", "--wait")
    assert settings(bare.cluster) == before
    shares(bare.cluster, "after-rollback")
    assert containers(bare.cluster).items() >= running.items()


def as_scheduler() -> tuple[str, str]:
    return "--as", f"system:serviceaccount:{NAMESPACE}:gpushare-scheduler"


def test_helm_uninstalls(bare: Bare, chart: Chart, here: InCluster) -> None:
    bare.cluster.clear()
    chart.remove()
    assert set(here.objects()) == bare.objects
    # The rest of the page: Helm knows no nodes.
    commands = [command.split() for block in blocks("docs/operate/uninstall.md") for command in block.commands]
    of_nodes = [words[1:] for words in commands if words[0] == "kubectl" and words[1:3] in (["label", "nodes"], ["annotate", "nodes"])]
    assert len(of_nodes) == 2
    for words in of_nodes:
        bare.cluster.kubectl(*words)
    nodes = [bare.cluster.node(name)["metadata"] for name in GPU_NODES]
    assert not [key for node in nodes for key in (*node["labels"], *node.get("annotations", ())) if key.startswith("gpushare")]

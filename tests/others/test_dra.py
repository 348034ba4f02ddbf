# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Drivers of dynamic resource allocation on a real API server: ResourceSlices, claims and a GPUCluster, as preflight and verify read them.

The objects are those that NVIDIA's driver and kube-scheduler write (kubernetes-sigs/dra-driver-nvidia-gpu of 2026-08-07), by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.dra import facts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding, HostFindings
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather, given_by_others
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover import operator
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import RESULTS, believe
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.dra import judge

from blocks import lines
from others.server import GPU_CLUSTER, Json, Server

API = "resource.k8s.io/v1"
GPUS, CHANNELS = "gpu.nvidia.com", "compute-domain.nvidia.com"
OURS = {"gpushare.kubernetes/node": "true"}
UUID = "GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c24"
KINDS = ("resourceclaims", "resourceslices", "nodes")


def node(name: str, labels: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def offer(driver: str, on: str, **attributes: Json) -> Json:
    spec = {"driver": driver, "nodeName": on, "pool": {"name": on, "generation": 1, "resourceSliceCount": 1}}
    devices = [{"name": "gpu-0", "attributes": attributes}]
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{driver}-{on}"}, "spec": {**spec, "devices": devices}}


def claim(server: Server, name: str, driver: str, on: str, pod: str) -> None:
    """A claim that kube-scheduler has allocated for a pod."""
    request = {"name": "gpu", "exactly": {"deviceClassName": driver}}
    metadata = {"name": name, "namespace": "default"}
    server.apply({"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": [request]}}})
    fields = [{"key": "metadata.name", "operator": "In", "values": [on]}]
    allocation = {
        "devices": {"results": [{"request": "gpu", "driver": driver, "pool": on, "device": "gpu-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    status = {"status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]}}
    server.kubectl.text(["patch", "resourceclaim", name, "--subresource=status", "--type=merge", "--patch", json.dumps(status)])


@pytest.fixture
def cluster(server: Server) -> Iterator[Server]:
    """Two nodes with NVIDIA's driver, of which gpu1 is ours, and one of ours with ComputeDomains alone."""
    server.apply(node("gpu1", OURS), node("gpu2", {}), node("gpu3", OURS))
    known = {"type": {"string": "gpu"}, "uuid": {"string": UUID}}
    server.apply(*(offer(GPUS, name, **known) for name in ("gpu1", "gpu2")))
    server.apply(*(offer(CHANNELS, name, type={"string": "channel"}, id={"int": 0}) for name in ("gpu1", "gpu3")))
    yield server
    for kind in KINDS:
        server.delete(kind)


def said(server: Server, *ours: str) -> list[Finding]:
    found = HostFindings("cluster")
    judge(found, facts(server.kubectl), answer_of(operator.gathered(server.kubectl)), ours)
    return found.list


def test_a_driver_by_its_slices_where_it_is(cluster: Server) -> None:
    assert said(cluster, "gpu3") == []
    (reason,) = said(cluster, "gpu1", "gpu3")
    assert str(reason.found) == "NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com) on gpu1"
    assert given_by_others(cluster.kubectl, "gpushare-system", {"gpu1", "gpu3"}) == {"gpu1": ["ResourceSlices of gpu.nvidia.com"]}
    # One that no release of ours has heard of.
    cluster.apply(offer("gpu.example.org", "gpu3", anything={"string": UUID}))
    assert "a DRA driver (ResourceSlices of gpu.example.org) on gpu3" in str(said(cluster, "gpu3")[0])


def test_claims_outlive_the_driver(cluster: Server) -> None:
    for name, driver, on, pod in (("a", GPUS, "gpu1", "train"), ("b", GPUS, "gpu2", "far"), ("c", CHANNELS, "gpu1", "imex")):
        claim(cluster, name, driver, on, pod)
    cluster.delete("resourceslices")
    (reason,) = said(cluster, "gpu1", "gpu3")
    assert "pods with GPUs by ResourceClaims: default/train on gpu1; expected none" in str(reason)
    cluster.delete("resourceclaims")
    assert said(cluster, "gpu1", "gpu3") == []


def test_a_gpu_cluster_serves_the_nodes_with_its_label(cluster: Server) -> None:
    cluster.define(GPU_CLUSTER)
    try:
        cluster.apply({"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}, "spec": {}})
        cluster.apply(node("gpu1", {**OURS, operator.DRA_LABEL: "true"}))
        (reason,) = said(cluster, "gpu1")
        assert "found GPUCluster gpu-cluster, which deploys NVIDIA's DRA driver on gpu1; expected the label" in str(reason)
        # The operator leaves a value that is there.
        cluster.apply(node("gpu1", {**OURS, operator.DRA_LABEL: "false"}))
        cluster.delete("resourceslices")
        assert said(cluster, "gpu1") == []
    finally:
        cluster.delete("gpuclusters")


def test_the_playbook_says_it(cluster: Server, tmp_path: Path) -> None:
    asked = answer_of(gather(cluster.kubectl, "gpushare-system", []))
    assert believe({"facts": asked}, RESULTS["gpushare_in_cluster facts"]) == {"facts": asked}
    assert "found NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com) on gpu1; expected" in lines(cluster.played(tmp_path, "--check"))

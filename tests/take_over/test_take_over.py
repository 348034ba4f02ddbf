# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""take_over.yml on nodes that NVIDIA's device plugin serves: rejected while pods have GPUs, one node taken over, given back by uninstall.

The tests are one story, in this order, on one lab. NVIDIA's manifest runs an image of a program that registers with kubelet as theirs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.api import Json
from e2e.cluster import Cluster
from installer.site import pod
from labs import TWO, Labs
from operations.hosts import QUIET, counts, rejected, run, runs_on
from take_over.stand_ins import NVIDIA, SYSTEM, nvidia, nvidia_image

NODE, SECOND = "gpu1", "gpu2"
DAEMON_SET = "nvidia-device-plugin-daemonset"
ONE_NODE = ("--limit", f"cp1,{NODE}")


def daemon_set(cluster: Cluster) -> Json:
    return cluster.api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/{DAEMON_SET}")


def served(cluster: Cluster) -> dict[str, str]:
    """Node → GPUs that NVIDIA's plugin offers there."""
    return {node: cluster.node(node)["status"]["allocatable"].get(NVIDIA, "0") for node in (NODE, SECOND)}


def theirs(cluster: Cluster) -> dict[str, str]:
    """Node → NVIDIA's pod there, that runs."""
    found = [one for one in cluster.pods(SYSTEM) if one["metadata"]["labels"].get("name") == "nvidia-device-plugin-ds"]
    return {one["spec"]["nodeName"]: one["metadata"]["uid"] for one in found if one["status"]["phase"] == "Running"}


def labels(cluster: Cluster) -> dict[str, Any]:
    return {node: cluster.node(node)["metadata"]["labels"] for node in (NODE, SECOND)}


def gpu_pod(name: str, node: str) -> Json:
    made = pod(name, {NVIDIA: "1"})
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    # With none the API server forgets the pod before its process has ended, which has the GPU until then.
    made["spec"]["terminationGracePeriodSeconds"] = 1
    return made


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    """Bare hosts that NVIDIA's device plugin serves, with a pod on each that has a GPU."""
    found = labs.bare(TWO)
    for node in (NODE, SECOND):
        nvidia_image(found, node)
    found.kubectl("apply", "-f", "-", stdin=json.dumps(nvidia()))
    found.until("NVIDIA's plugin serves both nodes", lambda: served(found) == {NODE: "2", SECOND: "2"}, 120)
    for node in (NODE, SECOND):
        found.create(gpu_pod(f"holder-{node}", node))
    found.until_running(*(f"holder-{node}" for node in (NODE, SECOND)))
    return found


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> dict[str, Any]:
    """What must be as it was when everything is given back."""
    return {"daemon set": daemon_set(cluster)["spec"], "labels": labels(cluster)}


def test_it_is_named_with_the_pods_that_have_its_gpus(cluster: Cluster, before: dict[str, Any]) -> None:
    said = rejected(cluster, "preflight")
    for node in (NODE, SECOND):
        assert f"pods that have its devices: default/holder-{node} ({node})" in said
    assert "found NVIDIA device plugin on the host" in said
    assert "run the playbook take_over instead" in said


def test_nothing_is_changed_while_pods_have_gpus(cluster: Cluster, before: dict[str, Any]) -> None:
    said = rejected(cluster, "take_over", *ONE_NODE)
    assert f"{NODE}: pods have GPUs of DaemonSet {SYSTEM}/{DAEMON_SET}: default/holder-{NODE}; expected none" in said
    assert {"daemon set": daemon_set(cluster)["spec"], "labels": labels(cluster)} == before
    assert set(theirs(cluster)) == {NODE, SECOND}


def test_one_node_is_taken_over_and_the_other_goes_on(cluster: Cluster, before: dict[str, Any]) -> None:
    holder = cluster.pod(f"holder-{SECOND}")["status"]["containerStatuses"][0]
    cluster.delete(f"holder-{NODE}")
    run(cluster, "take_over", *ONE_NODE)
    assert set(theirs(cluster)) == {SECOND}
    runs_on(cluster, NODE)
    assert served(cluster)[SECOND] == "2"
    assert cluster.pod(f"holder-{SECOND}")["status"]["containerStatuses"][0] == holder
    cluster.create(gpu_pod("another", SECOND))
    cluster.until_running("another")
    cluster.delete("another")
    again = counts(run(cluster, "take_over", *ONE_NODE))
    assert set(again.values()) == {QUIET}, again


def test_uninstall_gives_the_node_back(cluster: Cluster, before: dict[str, Any]) -> None:
    run(cluster, "uninstall", *ONE_NODE, "-e", "gpushare_uninstall_wait=0")
    cluster.until("NVIDIA's plugin serves both nodes", lambda: served(cluster) == {NODE: "2", SECOND: "2"}, 120)
    assert {"daemon set": daemon_set(cluster)["spec"], "labels": labels(cluster)} == before
    cluster.create(gpu_pod("back", NODE))
    cluster.until_running("back")
    assert cluster.pod(f"holder-{SECOND}")["status"]["containerStatuses"][0]["restartCount"] == 0

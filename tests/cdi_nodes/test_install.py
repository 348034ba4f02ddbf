# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The playbook `cluster` on the GPU Operator's nodes, with its defaults: each node has its own CDI spec, and pods get their GPU by it."""

from __future__ import annotations

import time

import pytest

from cdi_nodes.operator_nodes import OWN, SPEC, Operator, named, published, spec
from cluster_mode.conftest import Bare
from e2e.checks import check_devices, check_environment, check_no_gpu
from e2e.cluster import GPU_NODES, Cluster
from e2e.manifests import pod
from labs import Labs


def test_nobody_else_names_a_single_gpu_there(bare: Bare) -> None:
    for node in GPU_NODES:
        assert bare.cluster.on(node, "sh", "-c", "cat /run/cdi/* /etc/cdi/* 2>/dev/null | grep -c GPU- || true").strip() == "0"
        assert "nvidia" not in bare.cluster.on(node, "sh", "-c", "ls /usr/bin /usr/lib/x86_64-linux-gnu")


def test_it_installs_and_a_pod_of_each_node_has_its_gpu(bare: Bare, here: Operator, labs: Labs, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, begin = bare.cluster, time.monotonic()
    here.play()
    labs.has_been_installed()
    names = [f"first-{node}" for node in GPU_NODES]
    for name, node in zip(names, GPU_NODES, strict=True):
        cluster.create(pod(name, memory=2, node=node))
    running = cluster.until_running(*names)
    with capsys.disabled():
        print(f"\nmeasured: from bare nodes of the GPU Operator to a pod on each: {time.monotonic() - begin:.1f} s")
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    cluster.delete(*names)


def test_each_node_says_how_its_containers_get_gpus(cluster: Cluster) -> None:
    for node in GPU_NODES:
        found = published(cluster, node)
        assert (found["strategy"], found["cdi_kind"], found["node_kind"]) == ("cdi", OWN, "gpu-operator")


def test_the_spec_is_of_root_and_has_the_gpus_alone(cluster: Cluster) -> None:
    for node in GPU_NODES:
        assert cluster.on(node, "stat", "-c", "%u:%g %a", SPEC).strip() == "0:0 644"
        assert named(cluster, node) == {gpu.uuid for gpu in cluster.gpus(node)}
        hooks = {one["path"] for one in spec(cluster, node)["containerEdits"]["hooks"]}
        assert hooks == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
        mounts = {one["containerPath"]: one["hostPath"] for one in spec(cluster, node)["containerEdits"]["mounts"]}
        # NVIDIA's runtime takes no further device from mounts: since 1.20.2 of the toolkit.
        assert mounts.pop("/var/run/nvidia-container-devices/void") == "/dev/null"
        assert mounts
        assert {path for path in mounts.values() if not path.startswith("/run/nvidia/driver/")} == set()


def test_the_next_run_is_silent(cluster: Cluster, here: Operator) -> None:
    again, output = here.play()
    assert again.changes() == {}, output


def test_a_pod_that_names_every_gpu_itself_has_none(cluster: Cluster) -> None:
    names = [f"all-{node}" for node in GPU_NODES]
    for name, node in zip(names, GPU_NODES, strict=True):
        cluster.create(pod(name, node=node, environment={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert check_no_gpu(cluster, cluster.until_running(*names)) == []
    cluster.delete(*names)

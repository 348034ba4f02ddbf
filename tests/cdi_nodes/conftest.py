# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster whose GPU nodes are the GPU Operator's: containerd 2.4 and 1.7, runc as default runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables

from cdi_nodes.operator_nodes import Operator, lab_gpu
from cluster_mode.conftest import Bare
from cluster_mode.in_cluster import RUNTIME_CLASS, archive, bring_images
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from e2e.conftest import say
from installer.site import Site
from labs import GPU_OPERATOR, Labs

IMAGE = str(variables()["gpushare_image"].spec["default"])
__all__ = ["bare", "cluster", "here", "say"]


def images(cluster: Cluster, node: str) -> list[str]:
    """Those that its kubelet tells of, half a minute after they came."""
    return [name for one in cluster.node(node)["status"].get("images", []) for name in one.get("names", [])]


@pytest.fixture(scope="session")
def bare(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    cluster = labs.bare(GPU_OPERATOR)
    for node in GPU_NODES:
        lab_gpu(cluster, node, "operator")
    bring_images(cluster, archive())
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS))
    names = [f"node/{name}" for name in (CONTROL_PLANE, *GPU_NODES)]
    cluster.kubectl("wait", "--for=condition=Ready", *names, "--timeout=120s", seconds=150)
    cluster.until("kubelets tell of the image", lambda: all(IMAGE in images(cluster, node) for node in GPU_NODES), 180)
    folder = tmp_path_factory.mktemp("bare")
    return Bare(cluster, Site(cluster, folder, GPU_NODES).state(), set(Operator(cluster, folder).objects()))


@pytest.fixture(scope="session")
def cluster(bare: Bare, labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("install")
    return labs.installed(GPU_OPERATOR, lambda cluster: Operator(cluster, folder).play())


@pytest.fixture
def here(bare: Bare, tmp_path: Path) -> Operator:
    return Operator(bare.cluster, tmp_path)

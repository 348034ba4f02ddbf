# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster whose nodes know NVIDIA's runtime and nothing of gpushare, then the playbook `cluster`, the tests of e2e, and its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster_mode.in_cluster import RUNTIME_CLASS, InCluster, archive, bring_images
from e2e.cluster import GPU_NODES, OTHER_KUBELET_ROOT, Cluster
from installer.site import Site
from labs import IN_CLUSTER, Labs

#: Of kubelets that have another root folder than the default, as the nodes here have. Other suites with pods have the default.
SETTINGS = {"gpushare_kubelet_root": OTHER_KUBELET_ROOT}


@dataclass(frozen=True)
class Bare:
    """The cluster, and what it had before us: all files of its hosts, and its objects."""

    cluster: Cluster
    files: dict[str, Any]
    objects: set[str]


@pytest.fixture(scope="session")
def bare(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    cluster = labs.bare(IN_CLUSTER)
    cluster.move_kubelets(*GPU_NODES)
    bring_images(cluster, archive())
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS))
    unknown = {**RUNTIME_CLASS, "metadata": {"name": "unknown-handler"}, "handler": "unknown"}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(unknown))
    folder = tmp_path_factory.mktemp("bare")
    return Bare(cluster, Site(cluster, folder, GPU_NODES).state(), set(InCluster(cluster, folder).objects()))


@pytest.fixture(scope="session")
def cluster(bare: Bare, labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("install")
    return labs.installed(IN_CLUSTER, lambda cluster: InCluster(cluster, folder, **SETTINGS).play())


@pytest.fixture
def here(bare: Bare, tmp_path: Path) -> InCluster:
    return InCluster(bare.cluster, tmp_path, **SETTINGS)

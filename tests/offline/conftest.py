# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster whose nodes know NVIDIA's runtime, nothing of gpushare, and no way out; and a bundle for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster_mode.in_cluster import RUNTIME_CLASS, InCluster, archive, scheduler_archive
from e2e.cluster import GPU_NODES, REPOSITORY, Cluster
from installer.site import Site
from labs import IN_CLUSTER, Labs
from offline.away import cut_off, make


@dataclass(frozen=True)
class Away:
    """The cluster, the bundle, the images in it, and the hosts as they were before us."""

    cluster: Cluster
    bundle: Path
    images: list[str]
    files: dict[str, Any]


@pytest.fixture(scope="session")
def away(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Away:
    cluster = labs.bare(IN_CLUSTER)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS))
    folder = tmp_path_factory.mktemp("bundle")
    scheduler = folder / "kube-scheduler.tar"
    scheduler.write_bytes(scheduler_archive(cluster))
    images = [str(archive()), str(scheduler)]
    bundle = make(REPOSITORY, cluster, folder, gpushare_bundle_images=images)
    cut_off(cluster)
    return Away(cluster, bundle, images, Site(cluster, tmp_path_factory.mktemp("before"), GPU_NODES).state())


@pytest.fixture
def site(away: Away, tmp_path: Path) -> Site:
    return Site(away.cluster, tmp_path, GPU_NODES)


@pytest.fixture
def here(away: Away, tmp_path: Path) -> InCluster:
    return InCluster(away.cluster, tmp_path)

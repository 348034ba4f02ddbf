# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster whose own kube-scheduler counts GPU memory: the manifest of docs/use/dra.md, on the same lab as the suite `cluster-mode`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from cluster_mode.in_cluster import archive, import_image
from cluster_mode.installs import MANIFESTS, SECONDS, prepare, reaching
from dra.shares import clear, until_serving
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from labs import IN_CLUSTER, Labs


@pytest.fixture(scope="session")
def cluster(labs: Labs) -> Cluster:
    """Not saved as the lab's installed state: that is the one of the suite `cluster-mode`."""
    found = labs.bare(IN_CLUSTER)
    import_image(found, archive().read_bytes(), (CONTROL_PLANE, *GPU_NODES))
    prepare(found)
    objects = list(yaml.safe_load_all((MANIFESTS / "dra/gpushare-dra.yaml").read_text()))
    found.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(reaching(found, objects)), seconds=SECONDS)
    until_serving(found)
    return found


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without pods and claims in the namespace default, before and after a test."""
    clear(cluster)
    yield cluster
    clear(cluster)

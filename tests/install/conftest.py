# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The life of a cluster with us: hosts that nobody has touched, site.yml, pods and faults (tests/e2e, tests/verify), uninstall.yml.

The suite `install` runs these tests around the others in one session, on one lab.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import GPU_NODES, Cluster
from installer.site import Site, Untouched
from labs import TWO, Labs


@pytest.fixture(scope="session")
def untouched(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    cluster = labs.bare(TWO)
    # gpu2 keeps the default.
    cluster.move_kubelets("gpu1")
    state = Site(cluster, tmp_path_factory.mktemp("untouched"), GPU_NODES).state()
    assert [name for name in state if "gpushare" in name and "gpushare-lab" not in name] == []
    return Untouched(cluster, state)


@pytest.fixture(scope="session")
def cluster(untouched: Untouched, labs: Labs) -> Cluster:
    """The same cluster, installed."""
    return labs.installed(TWO)


@pytest.fixture
def site(untouched: Untouched, tmp_path: Path) -> Site:
    return Site(untouched.cluster, tmp_path, GPU_NODES)

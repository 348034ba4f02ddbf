# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A lab instance for tests of single roles on real hosts; GPUSHARE_HOSTS_LAB=NAME uses one that is up, and leaves it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What wants hosts without us comes before what wants them installed."""
    items.sort(key=lambda item: "installed" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def bare() -> Iterator[Cluster]:
    """A cluster with one GPU node, whose containerd does not know the nvidia runtime."""
    borrowed = os.environ.get("GPUSHARE_HOSTS_LAB")
    if borrowed:
        yield Cluster(borrowed)
        return
    cluster = Cluster("hosts")
    try:
        cluster.lab("up", "--no-nvidia-runtime", "--gpu-nodes", "1", seconds=1800)
        yield cluster
    finally:
        cluster.lab("down", seconds=300)


@pytest.fixture(scope="session")
def installed(bare: Cluster) -> Cluster:
    """The same cluster, installed by site.yml."""
    bare.playbook()
    return bare

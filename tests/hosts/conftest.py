# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A lab instance for tests of single roles on real hosts; GPUSHARE_HOSTS_LAB=NAME uses one that is up, and leaves it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster


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

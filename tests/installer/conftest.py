# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tests of single roles and of uninstall.yml on a cluster with one GPU node, whose containerd does not know the nvidia runtime."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster
from labs import ONE, Labs


@pytest.fixture(scope="session")
def bare(labs: Labs) -> Cluster:
    """Its hosts as nobody has touched them."""
    return labs.bare(ONE)


@pytest.fixture(scope="session")
def installed(labs: Labs) -> Cluster:
    """The same cluster, installed by site.yml."""
    return labs.installed(ONE)

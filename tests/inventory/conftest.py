# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ansible connects as people do: a user who has sudo by password, a bastion, Ansible's own settings.

The suite `inventory` runs these tests around tests/e2e/test_inventory.py in one session, on a lab of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import GPU_NODES, Cluster
from installer.site import Site, Untouched
from inventory.hosts import inventory, prepare, settings, ssh_config, written
from labs import TWO, Labs

MakeSite = Callable[[bool], Site]


@pytest.fixture(scope="session")
def untouched(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    """The hosts with their users, before the first installation."""
    cluster = labs.bare(TWO)
    prepare(cluster)
    return Untouched(cluster, Site(cluster, tmp_path_factory.mktemp("untouched"), GPU_NODES).state())


@pytest.fixture
def config(untouched: Untouched, tmp_path: Path) -> Path:
    return ssh_config(untouched.cluster, tmp_path)


@pytest.fixture
def site(untouched: Untouched, config: Path, tmp_path: Path) -> MakeSite:
    """The playbooks as such a user runs them, with pipelining or without."""

    def make(pipelining: bool) -> Site:
        hosts = written(tmp_path, inventory(untouched.cluster, config))
        return Site(untouched.cluster, tmp_path, GPU_NODES, hosts, settings(tmp_path, pipelining=pipelining))

    return make


@pytest.fixture
def cluster(untouched: Untouched) -> Cluster:
    return untouched.cluster

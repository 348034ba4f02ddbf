# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster that grows (test_join.py), and one whose nodes are upgraded and go (test_upgrade.py, then test_removal.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import REPOSITORY, Cluster
from installer.releases import play
from labs import THREE_PLANES, TWO, Labs
from operations.hosts import LATER_NODE, LATER_PLANES, unjoin, without


@pytest.fixture(scope="session")
def growing(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Three control planes and two GPU nodes, of which only the first of each has joined yet; installed on these."""
    found = labs.bare(THREE_PLANES)
    for host in (*reversed(LATER_PLANES), LATER_NODE):
        unjoin(found, host)
    inventory = without(found, tmp_path_factory.mktemp("inventory"), *LATER_PLANES, LATER_NODE)
    done = play(REPOSITORY, found, "site.yml", inventory=inventory)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    return found


@pytest.fixture(scope="session")
def installed(labs: Labs) -> Cluster:
    """One control plane and two GPU nodes, installed."""
    return labs.installed(TWO)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For copies of the checkout."""
    return tmp_path_factory.mktemp("releases")

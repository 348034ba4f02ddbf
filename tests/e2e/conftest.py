# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The end-to-end tests' cluster: a control plane and two GPU nodes, installed by site.yml."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster
from e2e.running import Say
from e2e.samples import apply_samples, in_place, is_sample
from labs import TWO, Labs


@pytest.fixture(scope="session")
def cluster(labs: Labs) -> Cluster:
    return labs.installed(TWO)


@pytest.fixture
def empty(cluster: Cluster) -> Cluster:
    """The cluster without any pod in the namespace default."""
    cluster.clear()
    return cluster


@pytest.fixture
def samples(cluster: Cluster) -> Cluster:
    """The cluster with exactly the samples."""
    if not in_place(cluster):
        strangers = [pod["metadata"]["name"] for pod in cluster.pods() if not is_sample(pod)]
        if strangers:
            cluster.delete(*strangers)
        apply_samples(cluster, print)
    return cluster


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Prints one line for each thing that was measured."""

    def measured(what: str, seconds: float) -> None:
        with capsys.disabled():
            print(f"\nmeasured: {what}: {seconds:.1f} s", end="", flush=True)

    return measured

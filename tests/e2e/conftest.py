# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The end-to-end suite's cluster: a lab instance of its own, installed by site.yml, removed at the end.

GPUSHARE_E2E_LAB=NAME uses an instance that is up instead, and leaves it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.running import Say
from e2e.samples import apply_samples, in_place, is_sample

# The machine without our cluster first. Then as the cluster changes least: what wants it empty, then what wants the
# samples, then what disturbs the nodes.
ORDER = (
    "test_lab_down",
    "test_budget",
    "test_empty",
    "test_full",
    "test_requests",
    "test_whole_cards",
    "test_shapes",
    "test_verbs",
    "test_samples",
    "test_faults",
    "test_rights",
    "test_identity",
    "test_disturbed",
    "test_unmanaged",
    "test_card_health",
    "test_node_life",
    "test_churn",
    "test_inventory",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else -1)


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    borrowed = os.environ.get("GPUSHARE_E2E_LAB")
    cluster = Cluster(borrowed or "e2e")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    started = time.monotonic()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[{time.monotonic() - started:4.0f} s] lab {cluster.name}: {text}", flush=True)

    try:
        if not borrowed:
            say("up")
            cluster.lab("up", seconds=1800)
        say("site.yml")
        cluster.playbook()
        say("installed")
        yield cluster
    finally:
        if not borrowed:
            say("down")
            cluster.lab("down", seconds=300)


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

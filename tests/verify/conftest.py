# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cluster of the planted faults: a lab instance of its own, installed by site.yml, removed at the end.

GPUSHARE_VERIFY_LAB=NAME uses an instance that is up instead, and leaves it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.manifests import pod
from verify.verdict import Verify

SHARING = ("verify-1", "verify-2")


@pytest.fixture(scope="session")
def verify(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verify]:
    """An installed cluster with a running pod on each GPU node."""
    borrowed = os.environ.get("GPUSHARE_VERIFY_LAB")
    cluster = Cluster(borrowed or "verify")
    try:
        if not borrowed:
            cluster.lab("up", seconds=1800)
        cluster.playbook()
        cluster.clear()
        for name, node in zip(SHARING, ("gpu1", "gpu2"), strict=True):
            cluster.create(pod(name, memory=2, node=node))
        cluster.until_running(*SHARING)
        yield Verify(cluster, tmp_path_factory.mktemp("verdicts"))
        if borrowed:
            cluster.clear()
    finally:
        if not borrowed:
            cluster.lab("down", seconds=300)


@pytest.fixture
def clean(verify: Verify) -> Iterator[Verify]:
    """The cluster without a fault, before the test and, once it has had time to settle, after it."""
    if not verify.known_clean:
        before = verify.run()
        assert before.findings == [], before.words
    verify.known_clean = False
    yield verify
    after = verify.cluster.until("verify finds nothing any more", verify.passes, 90)
    assert after.looked_at["GPU nodes"] == 2, after.looked_at

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cluster of the planted faults: installed by site.yml, with a running pod on each GPU node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.manifests import pod
from labs import TWO, Labs
from verify.verdict import Verify

SHARING = ("verify-1", "verify-2")


@pytest.fixture(scope="session")
def verify(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verify]:
    """The installed cluster with those pods."""
    cluster = labs.installed(TWO)
    cluster.clear()
    for name, node in zip(SHARING, ("gpu1", "gpu2"), strict=True):
        cluster.create(pod(name, memory=2, node=node))
    cluster.until_running(*SHARING)
    yield Verify(cluster, tmp_path_factory.mktemp("verdicts"))
    cluster.clear()


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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""With the first of three control planes dead: verify names it and nothing else, and site.yml works on the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from ha.planes import PLANES, bring_back, kill_node, leader
from verify.verdict import Verify


@pytest.fixture(scope="module")
def down(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster once another control plane leads."""
    kill_node(cluster, CONTROL_PLANE)
    try:
        cluster.until("another control plane leads", lambda: leader(cluster) != CONTROL_PLANE, 120)
        yield cluster
    finally:
        bring_back(cluster)


def test_verify_names_the_dead_host_and_nothing_else(down: Cluster, tmp_path: Path) -> None:
    verdict = Verify(down, tmp_path).run()
    assert verdict.causes == {(CONTROL_PLANE, "not_checked")}, verdict.words


def test_site_goes_on_with_the_others_and_changes_nothing(down: Cluster) -> None:
    said = down.playbook("--limit", f"all:!{CONTROL_PLANE}", seconds=1800)
    found = dict(re.findall(r"^(\S+)\s+: ok=\d+\s+(changed=\d+\s+unreachable=\d+\s+failed=\d+)", said, re.M))
    assert set(found) == {*PLANES, *GPU_NODES} - {CONTROL_PLANE}
    assert {" ".join(counts.split()) for counts in found.values()} == {"changed=0 unreachable=0 failed=0"}, said

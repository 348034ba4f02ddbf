# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A freshly installed cluster without pods."""

from __future__ import annotations

import pytest

from e2e.checks import check_follows, check_unschedulable
from e2e.cluster import GPU_NODES, SAMPLES, Cluster
from e2e.samples import TOO_LARGE


@pytest.mark.parametrize("node", GPU_NODES)
def test_a_node_offers_what_its_driver_says(empty: Cluster, node: str) -> None:
    assert check_follows(empty, node) == []


def test_the_reason_for_a_pod_that_no_gpu_can_hold_names_both_nodes(empty: Cluster) -> None:
    empty.kubectl("apply", "-f", str(SAMPLES / "04-too-large.yaml"))
    words = [
        "gpu1: needs 25 GiB on one GPU, its largest GPU has 16 (32 in total on 2 GPUs)",
        "gpu2: needs 25 GiB on one GPU, its largest GPU has 24 (40 in total on 2 GPUs)",
    ]
    assert check_unschedulable(empty, TOO_LARGE, *words) == []
    events = [event["message"] for event in empty.events(TOO_LARGE) if event["reason"] == "FailedScheduling"]
    assert events
    assert all(word in events[-1] for word in words)

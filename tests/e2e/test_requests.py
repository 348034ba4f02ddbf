# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What pods may and may not ask for, and what they are told."""

from __future__ import annotations

import time

import pytest

from e2e.api import ApiError
from e2e.checks import check_event, check_filter_rejects, check_no_gpu, check_unschedulable
from e2e.cluster import CONTROL_PLANE, Cluster
from e2e.manifests import pod


def test_a_pod_that_asks_for_nothing_has_no_gpu(empty: Cluster) -> None:
    empty.create(pod("plain"))
    assert check_no_gpu(empty, empty.until_running("plain")) == []


def test_both_resources_at_once_are_rejected(empty: Cluster) -> None:
    empty.create(pod("both", memory=1, gpus=1))
    assert check_unschedulable(empty, "both", "asks for aliyun.com/gpu-mem and aliyun.com/gpu-count at once", "remove one of them") == []


def test_bytes_instead_of_units_are_explained(empty: Cluster) -> None:
    empty.create(pod("bytes", memory="10G"))
    assert check_event(empty, "bytes", "10G means 10000000000 units of 1 GiB; the largest GPU has 24; write 10") == []


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("-1", ("aliyun.com/gpu-mem", "-1 is negative", "such as 8")),
        ("9223372036854775808", ("9223372036854775808 is more than any machine has", "such as 8")),
        ("1.5", ("'1.5' is not a whole number",)),
        ("many", ("'many' is not a quantity", "such as 8")),
    ],
)
def test_filter_rejects_what_cannot_be_meant(cluster: Cluster, memory: str, words: tuple[str, ...]) -> None:
    assert check_filter_rejects(cluster, pod("absurd", memory=memory), *words) == []


@pytest.mark.parametrize("memory", ["-1", "1.5", "many"])
def test_such_a_pod_does_not_even_get_into_the_api_server(cluster: Cluster, memory: str) -> None:
    with pytest.raises(ApiError):
        cluster.create(pod("absurd", memory=memory))


def test_an_annotation_makes_the_scheduler_look_at_a_rejected_pod_again(empty: Cluster) -> None:
    # extender/requeue.py depends on this: otherwise a pod that was rejected a moment too early waits for minutes.
    empty.create(pod("too-early", memory=25))
    empty.until_unschedulable("too-early")

    def asked(seconds: float) -> bool:
        since = f"@{time.time() - seconds:.3f}"
        return "filter default/too-early" in empty.on(CONTROL_PLANE, "journalctl", "-o", "cat", "-u", "gpushare-extender", "--since", since)

    # Longer than the scheduler's own pause between two attempts.
    empty.until("nobody asks about the pod any more", lambda: not asked(12), 120)
    empty.annotate("/api/v1/namespaces/default/pods/too-early", {"gpushare/requeued": "now"})
    empty.until("the scheduler asks about the pod again", lambda: asked(5), 30)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods with several cards, several containers, init containers and sidecars: each container has the cards that are annotated."""

from __future__ import annotations

import json
from typing import Any

from e2e.api import Json
from e2e.checks import check_devices, check_environment, check_refused, check_runs, check_totals
from e2e.cluster import CARDS, MEMORY, Cluster
from e2e.manifests import pod

ALLOCATION = "scheduler.framework.gpushare.allocation"


def container(name: str, memory: int, command: str = "sleep 86400", **more: Any) -> Json:
    """A container like the one of `pod`."""
    template = pod("none", memory=memory)["spec"]["containers"][0]
    return {**template, "name": name, "command": ["/bin/sh", "-c", command], **more}


def allocation(cluster: Cluster, name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(cluster.pod(name)["metadata"]["annotations"][ALLOCATION])
    return found


def proven(cluster: Cluster, name: str) -> None:
    """It runs, its containers have exactly the annotated cards and say so, and no card is over-booked."""
    assert check_runs(cluster, name) == []
    running = cluster.until_running(name)
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []


def test_memory_on_two_cards_of_one_node(empty: Cluster) -> None:
    wanted = pod("two-cards", memory=12, node="gpu1")
    wanted["metadata"]["labels"] = {CARDS: "2"}
    empty.create(wanted)
    proven(empty, "two-cards")
    assert allocation(empty, "two-cards") == {"0": {"0": 6, "1": 6}}


def test_an_amount_that_cards_cannot_share_is_refused(empty: Cluster) -> None:
    wanted = pod("uneven", memory=7)
    wanted["metadata"]["labels"] = {CARDS: "2"}
    empty.create(wanted)
    assert check_refused(empty, "uneven", "2") == []


def test_containers_of_one_pod_share_its_card(empty: Cluster) -> None:
    wanted = pod("three", memory=2)
    wanted["spec"]["containers"] += [container("second", 3), container("third", 4)]
    empty.create(wanted)
    proven(empty, "three")
    (cards,) = {tuple(of) for of in allocation(empty, "three").values()}
    assert len(cards) == 1
    assert [sum(of.values()) for _, of in sorted(allocation(empty, "three").items())] == [2, 3, 4]


def test_an_init_container_and_a_sidecar_count_as_in_kubernetes(empty: Cluster) -> None:
    wanted = pod("started", memory=4, node="gpu1")
    wanted["spec"]["initContainers"] = [
        container("sidecar", 2, restartPolicy="Always"),
        container("prepare", 6, f"ls /dev/nvidia[0-9]*; env | grep {'ALIYUN_COM_GPU_MEM_CONTAINER'}"),
    ]
    empty.create(wanted)
    proven(empty, "started")
    held = [units for of in allocation(empty, "started").values() for units in of.values()]
    # The sidecar's 2, and of the 6 that prepare had, 4 are main's; kubelet keeps the other 2 for the pod's life.
    assert sum(held) == 8
    said = empty.kubectl("logs", "started", "-c", "prepare").split()
    assert len([word for word in said if word.startswith("/dev/nvidia")]) == 1
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=6" in said
    # 16 + 16 - 8 are left on gpu1, of which 16 on the other card.
    empty.create(pod("beside", memory=8, node="gpu1"))
    empty.create(pod("other-card", memory=16, node="gpu1"))
    for name in ("beside", "other-card"):
        proven(empty, name)


def test_both_kinds_of_request_use_the_same_cards(empty: Cluster) -> None:
    empty.create(pod("shares", memory=1, node="gpu1"))
    proven(empty, "shares")
    empty.create(pod("whole", cards=2, node="gpu1"))
    assert check_refused(empty, "whole", MEMORY.partition("/")[2].replace("gpu-mem", "card")) == []
    empty.delete("shares")
    proven(empty, "whole")

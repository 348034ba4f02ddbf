# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of every shape, on the GPUs that they accept: several GPUs, several containers, init containers and sidecars, compute,
models, neighbours, policies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.api import Json
from e2e.checks import check_devices, check_environment, check_runs, check_totals, check_unschedulable
from e2e.cluster import CORE, GPUS, MEMORY, Cluster
from e2e.fake_nodes import fake_nodes, fake_pod, placed, until_unschedulable, uuid, where
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
    """It runs, its containers have exactly the annotated GPUs and say so, and no GPU is over-booked."""
    assert check_runs(cluster, name) == []
    running = cluster.until_running(name)
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []


def test_memory_on_two_gpus_of_one_node(empty: Cluster) -> None:
    wanted = pod("two-gpus", memory=12, node="gpu1")
    wanted["metadata"]["labels"] = {GPUS: "2"}
    empty.create(wanted)
    proven(empty, "two-gpus")
    assert allocation(empty, "two-gpus") == {"0": {"0": 6, "1": 6}}


def test_an_amount_that_gpus_cannot_share_is_rejected(empty: Cluster) -> None:
    wanted = pod("uneven", memory=7)
    wanted["metadata"]["labels"] = {GPUS: "2"}
    empty.create(wanted)
    assert check_unschedulable(empty, "uneven", "2") == []


def test_containers_of_one_pod_share_its_gpu(empty: Cluster) -> None:
    wanted = pod("three", memory=2)
    wanted["spec"]["containers"] += [container("second", 3), container("third", 4)]
    empty.create(wanted)
    proven(empty, "three")
    (gpus,) = {tuple(of) for of in allocation(empty, "three").values()}
    assert len(gpus) == 1
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
    # 16 + 16 - 8 are left on gpu1, of which 16 on the other GPU.
    empty.create(pod("neighbour", memory=8, node="gpu1"))
    empty.create(pod("other-gpu", memory=16, node="gpu1"))
    for name in ("neighbour", "other-gpu"):
        proven(empty, name)


def test_both_kinds_of_request_use_the_same_gpus(empty: Cluster) -> None:
    empty.create(pod("shares", memory=1, node="gpu1"))
    proven(empty, "shares")
    empty.create(pod("whole", gpus=2, node="gpu1"))
    assert check_unschedulable(empty, "whole", MEMORY.partition("/")[2].replace("gpu-mem", "gpu")) == []
    empty.delete("shares")
    proven(empty, "whole")


A100 = "NVIDIA A100-SXM4-40GB"
MIXED = {"mixed": (16, (40, A100))}


@pytest.mark.parametrize(
    ("asks", "gpu"),
    [
        ({}, 0),
        ({"models": "A100"}, 1),
        ({"models": "V100, T4"}, 0),
        ({"models-refused": "T4"}, 1),
        ({"gpus": uuid("mixed", 1)}, 1),
        ({"gpus-refused": uuid("mixed", 0)}, 1),
    ],
)
def test_a_pod_accepts_gpus_by_model_and_uuid(empty: Cluster, asks: dict[str, str], gpu: int) -> None:
    with fake_nodes(empty, MIXED):
        wanted = fake_pod("choosy", 4, annotations={f"gpushare.request/{key}": value for key, value in asks.items()})
        assert where(placed(empty, wanted)) == ("mixed", {gpu: 4})


def test_a_pod_whose_gpus_are_nowhere_is_told_so(empty: Cluster) -> None:
    with fake_nodes(empty, MIXED):
        reason = until_unschedulable(empty, fake_pod("choosy", 4, annotations={"gpushare.request/models": "H100"}))
        assert "are not of a model or UUID that the pod accepts" in reason


def test_a_mistaken_annotation_is_named(empty: Cluster) -> None:
    with fake_nodes(empty, MIXED):
        reason = until_unschedulable(empty, fake_pod("mistaken", 4, annotations={"gpushare.request/model": "T4"}))
        assert "annotation gpushare.request/model is not known" in reason


def test_the_nodes_label_names_the_model_of_gpus_that_are_alike(empty: Cluster) -> None:
    with (
        fake_nodes(empty, {"labelled": (32,)}, labels={"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB"}),
        fake_nodes(empty, {"plain": (16,)}),
    ):
        assert where(placed(empty, fake_pod("v100", 4, annotations={"gpushare.request/models": "V100"}))) == ("labelled", {0: 4})
        assert where(placed(empty, fake_pod("no-v100", 4, annotations={"gpushare.request/models-refused": "V100"}))) == ("plain", {0: 4})


def test_pods_choose_their_neighbours(empty: Cluster) -> None:
    encoder, spread = {"app": "encoder"}, {"gpushare.request/placement": "spread"}
    near, away = {"gpushare.request/same-gpu-as": "app=encoder"}, {"gpushare.request/not-with": "app=encoder"}
    with fake_nodes(empty, {"fake": (16, 16, 16)}):
        assert where(placed(empty, fake_pod("encoder", 4, labels=encoder))) == ("fake", {0: 4})
        # By itself it would take the emptiest GPU.
        assert where(placed(empty, fake_pod("decoder", 4, annotations={**spread, **near}))) == ("fake", {0: 4})
        # By itself it would take the fullest one.
        assert where(placed(empty, fake_pod("shy", 4, annotations=away))) == ("fake", {1: 4})
        # And nobody of those comes to it later either.
        assert where(placed(empty, fake_pod("encoder-2", 12, labels=encoder))) == ("fake", {2: 12})
        reason = until_unschedulable(empty, fake_pod("decoder-2", 9, annotations=near))
        assert "needs 9 GiB on one GPU" in reason


def test_compute_is_counted_where_the_node_shares_it_out(empty: Cluster) -> None:
    with fake_nodes(empty, {"fake": (16, 16)}, core=100):
        assert where(placed(empty, fake_pod("first", 2, core=60))) == ("fake", {0: 2})
        assert where(placed(empty, fake_pod("second", 2, core=60))) == ("fake", {1: 2})
        reason = until_unschedulable(empty, fake_pod("third", 2, core=60))
        assert "needs 2 GiB and 60 % of compute on one GPU" in reason
        assert "at most 40 % of compute beside such memory" in reason
        assert where(placed(empty, fake_pod("fourth", 2, core=40)))[0] == "fake"
        # Who asks for memory alone is not counted.
        assert where(placed(empty, fake_pod("memory", 8)))[0] == "fake"


def test_compute_is_rejected_where_nobody_shares_it_out(empty: Cluster) -> None:
    with fake_nodes(empty, {"fake": (16,)}):
        empty.api.patch("/api/v1/nodes/fake/status", {"status": {of: {CORE: "100"} for of in ("capacity", "allocatable")}})
        assert "its isolation shares out no compute" in until_unschedulable(empty, fake_pod("core", 2, core=20))


@pytest.mark.parametrize(("label", "gpus"), [("", (0, 0)), ("binpack", (0, 0)), ("spread", (0, 1))])
def test_a_nodes_label_is_the_policy_between_its_gpus(empty: Cluster, label: str, gpus: tuple[int, int]) -> None:
    with fake_nodes(empty, {"fake": (16, 16)}, labels={"ack.node.gpu.placement": label} if label else {}):
        assert where(placed(empty, fake_pod("first", 4))) == ("fake", {gpus[0]: 4})
        assert where(placed(empty, fake_pod("second", 4))) == ("fake", {gpus[1]: 4})


def test_a_pods_own_policy_goes_first(empty: Cluster) -> None:
    with fake_nodes(empty, {"fake": (16, 16)}, labels={"ack.node.gpu.placement": "spread"}):
        for name, policy, gpu in (("first", "binpack", 0), ("second", "binpack", 0), ("third", "spread", 1)):
            wanted = fake_pod(name, 4, annotations={"gpushare.request/placement": policy})
            assert where(placed(empty, wanted)) == ("fake", {gpu: 4})
        reason = until_unschedulable(empty, fake_pod("mistaken", 4, annotations={"gpushare.request/placement": "tight"}))
        assert "'tight' is not a policy; write one of binpack, spread" in reason


def test_pods_spread_between_nodes_by_their_own_policy(empty: Cluster) -> None:
    with fake_nodes(empty, {"fake-1": (16,), "fake-2": (16,)}):
        spread = {"gpushare.request/placement": "spread"}
        nodes = [where(placed(empty, fake_pod(f"spread-{n}", 2, annotations=spread)))[0] for n in range(4)]
        assert sorted(nodes) == ["fake-1", "fake-1", "fake-2", "fake-2"]

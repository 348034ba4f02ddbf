# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods with parts of GPUs, with two GPUs and with whole ones: what kube-scheduler, kubelet and containers say of them is the same."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest

from dra.shares import allocated, cdi_devices, check_not_over_booked, check_shares, claims, left_on, shares_of, templates
from e2e.api import ApiError
from e2e.cluster import GPU_NODES, GPUS, MEMORY, Cluster, asked
from e2e.manifests import pod

pytestmark = pytest.mark.suite("dra")

NO_ROOM = "cannot allocate all claims"


def test_two_pods_share_a_gpu_and_a_third_waits_for_its_memory(empty: Cluster) -> None:
    for name, gib in (("first", 10), ("second", 6)):
        empty.create(pod(name, memory=gib, node="gpu1"))
        empty.until_running(name)
    running = empty.until_running("first", "second")
    assert check_shares(empty, running, {"first": 10, "second": 6}) == []
    (one,), (other,) = (allocated(empty)[found["metadata"]["uid"]] for found in running)
    assert one.device == other.device
    empty.create(pod("third", memory=16, node="gpu1"))
    empty.until_running("third")
    empty.create(pod("fourth", memory=6, node="gpu1"))
    assert NO_ROOM in empty.until_unschedulable("fourth")
    assert check_not_over_booked(empty) == []
    # Of the two, the one that is as large.
    empty.delete("second")
    (fourth,) = empty.until_running("fourth")
    assert allocated(empty)[fourth["metadata"]["uid"]][0].device == one.device
    assert check_shares(empty, [empty.pod("first"), fourth], {"first": 10, "fourth": 6}) == []
    assert check_not_over_booked(empty) == []


def test_a_pod_has_memory_on_two_gpus(empty: Cluster) -> None:
    wanted = pod("both", memory=12)
    wanted["metadata"]["labels"] = {GPUS: "2"}
    empty.create(wanted)
    running = empty.until_running("both")
    shares = allocated(empty)[running[0]["metadata"]["uid"]]
    assert [share.gib for share in shares] == [6, 6]
    assert len({share.device for share in shares}) == 2
    assert check_shares(empty, running, {"both": 12}) == []


def test_a_whole_gpu_and_parts_of_it_are_one_account(empty: Cluster) -> None:
    empty.create(pod("part", memory=1, node="gpu1"))
    empty.until_running("part")
    empty.create(pod("whole", gpus=1, node="gpu1"))
    running = empty.until_running("part", "whole")
    assert check_shares(empty, running, {"part": 1, "whole": 16}) == []
    part, whole = (allocated(empty)[empty.pod(name)["metadata"]["uid"]][0].device for name in ("part", "whole"))
    assert part != whole
    # No GPU is without a pod any more, and one has room for parts.
    empty.create(pod("another", gpus=1, node="gpu1"))
    assert empty.until_unschedulable("another")
    empty.create(pod("beside", memory=15, node="gpu1"))
    (beside,) = empty.until_running("beside")
    assert allocated(empty)[beside["metadata"]["uid"]][0].device == part
    assert check_not_over_booked(empty) == []


def test_containers_of_a_pod_share_its_claim_and_kubelet_gives_each_of_them_the_gpu(empty: Cluster) -> None:
    wanted = pod("several", memory=2, node="gpu2")
    (main,) = wanted["spec"]["containers"]
    second = {**main, "name": "second", "resources": {"limits": {MEMORY: "3"}}}
    third = {**main, "name": "without", "resources": {}}
    setup = {**main, "name": "setup", "command": ["/bin/true"], "resources": {"limits": {MEMORY: "4"}}}
    wanted["spec"] |= {"containers": [main, second, third], "initContainers": [setup]}
    empty.create(wanted)
    running = empty.until_running("several")
    (claim,) = claims(empty)
    (share,) = shares_of(claim)
    assert share.gib == 5
    seen = {found.spec["name"]: found for found in empty.containers(running)}
    units = {name: found.environment.get("ALIYUN_COM_GPU_MEM_CONTAINER") for name, found in seen.items()}
    assert units == {"main": "2", "second": "3", "without": None}
    assert seen["main"].devices == seen["second"].devices
    assert not [device for device in seen["without"].devices if device != "nvidiactl"]
    # kubelet counts none of it as units of a device plugin.
    assert [asked(one, MEMORY) for one in running[0]["spec"]["containers"]] == [0, 0, 0]
    (gpu,) = (gpu for gpu in empty.gpus("gpu2") if gpu.uuid.lower() == share.device)
    uid = claim["metadata"]["uid"]
    first, own = cdi_devices(empty, "gpu2")[uid]
    assert first.endswith(f"={gpu.uuid}")
    assert own == f"gpushare.kubernetes/claim={uid}-gpu"


def test_what_fits_no_gpu_waits_and_what_no_claim_can_say_is_rejected(empty: Cluster) -> None:
    empty.create(pod("large", memory=25))
    assert NO_ROOM in empty.until_unschedulable("large")
    # The devices say that their isolation is another one: kube-scheduler has evaluated the selector on each.
    strict = pod("strict", memory=1)
    strict["metadata"]["annotations"] = {"gpushare.request/isolation": "driver"}
    empty.create(strict)
    assert f"{len(GPU_NODES)} {NO_ROOM}" in empty.until_unschedulable("strict")
    around = pod("around", memory=1)
    around["spec"]["nodeName"] = "gpu1"
    odd = pod("odd", memory=3)
    odd["metadata"]["labels"] = {GPUS: "2"}
    neighbour = pod("neighbour", memory=1)
    neighbour["metadata"]["annotations"] = {"gpushare.request/not-with": "app=x"}
    for rejected, words in ((around, "instead of nodeName"), (odd, "must be a multiple"), (neighbour, "a claim knows no other pods")):
        with pytest.raises(ApiError, match=words):
            empty.create(rejected)
    assert sorted(one["metadata"]["name"] for one in empty.pods()) == ["large", "strict"]


def test_a_quota_of_devices_counts_the_shares_of_a_namespace(empty: Cluster) -> None:
    """The one that docs/use/dra.md has in the place of a quota by GiB."""
    hard = {"gpushare.deviceclass.resource.k8s.io/devices": "2"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "shares", "namespace": "default"}, "spec": {"hard": hard}}
    empty.kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    try:
        for name, gib in (("first", 16), ("second", 1)):
            empty.create(pod(name, memory=gib))
        empty.until_running("first", "second")
        empty.create(pod("third", memory=1))
        about = ("get", "events", "-n", "default", "--field-selector=involvedObject.name=third", "-o", "jsonpath={.items[*].message}")
        empty.until("the third has no claim", lambda: "exceeded quota: shares" in empty.kubectl(*about), 60)
        empty.delete("second")
        empty.until_running("first", "third", seconds=120)
    finally:
        empty.kubectl("delete", "resourcequota", "shares", "-n", "default")


def test_a_new_namespace_has_its_template_soon(empty: Cluster) -> None:
    """Only its first pods wait for it. Target: 0.5 s."""
    took = []

    def has_template(name: str) -> bool:
        return name in templates(empty)

    for number in range(5):
        name = f"new-{number}"
        begin = time.monotonic()
        empty.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        empty.until(f"{name} has its template", partial(has_template, name), 60)
        took.append(time.monotonic() - begin)
    empty.kubectl("delete", "namespace", *(f"new-{number}" for number in range(5)), seconds=120)
    print(f"\nmeasured: a new namespace has its template after {min(took):.2f} to {max(took):.2f} s (target 0.5 s)")


def test_deleted_pods_leave_nothing_on_their_nodes(empty: Cluster) -> None:
    for name in ("slow", "forced"):
        empty.create(pod(name, memory=16, node="gpu1"))
    running = empty.until_running("slow", "forced")
    assert len(left_on(empty, "gpu1")) > 2
    empty.api.delete("/api/v1/namespaces/default/pods/forced", gracePeriodSeconds="0")
    empty.delete("slow")
    empty.until("no claim is left", lambda: not claims(empty), 60)
    empty.until("no claim is left on the nodes", lambda: not any(left_on(empty, node) for node in GPU_NODES), 60)
    # Their GPUs are free again, for one pod that needs both.
    both = pod("both", memory=32, node="gpu1")
    both["metadata"]["labels"] = {GPUS: "2"}
    empty.create(both)
    assert check_shares(empty, empty.until_running("both"), {"both": 32}) == []
    assert not {one["metadata"]["uid"] for one in running} & set(allocated(empty))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that no scheduler extender has placed: they get a GPU by what is free and are marked, or fail with cause and cure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from e2e.api import Json
from e2e.checks import check_devices, check_environment, check_runs, check_totals, check_unschedulable
from e2e.cluster import MEMORY, Cluster, allocation, annotations_of
from e2e.manifests import pod

pytestmark = pytest.mark.suite("gpus")

NODE = "gpu1"
PODS = "/api/v1/namespaces/default/pods"
MANIFEST = "/etc/kubernetes/manifests/gpushare-e2e.json"
MIRROR = f"static-{NODE}"


def by_hand(cluster: Cluster, wanted: Json) -> None:
    """The pod names its node itself, so that no scheduler looks at it."""
    wanted["spec"]["nodeName"] = NODE
    cluster.create(wanted)


def by_another_scheduler(cluster: Cluster, wanted: Json) -> None:
    """A scheduler that calls no extender binds the pod, as kube-scheduler does whose configuration lacks it."""
    wanted["spec"]["schedulerName"] = "plain"
    cluster.create(wanted)
    name = wanted["metadata"]["name"]
    cluster.api.create(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}})


def told(cluster: Cluster, name: str) -> str:
    """The event on a pod that says who placed it, and what it has."""

    def said() -> list[str]:
        return [e["message"] for e in cluster.events(name) if (e["reason"], e["type"]) == ("GPUShareUnmanaged", "Warning")]

    return cluster.until(f"an event says that nobody placed {name}", said, 25, name)[0]


@pytest.mark.parametrize("bind", [by_hand, by_another_scheduler], ids=["node_name", "other_scheduler"])
def test_it_gets_a_gpu_with_room_and_is_marked(empty: Cluster, bind: Callable[[Cluster, Json], None]) -> None:
    empty.create(pod("placed", memory=12, node=NODE))
    empty.until_running("placed")
    bind(empty, pod("stray", memory=6))
    assert check_runs(empty, "stray") == []
    empty.until("what it has is written on it", lambda: allocation(empty.pod("stray")), 25)
    stray = empty.pod("stray")
    assert not set(allocation(stray)) & set(allocation(empty.pod("placed")))
    assert check_devices(empty, [stray]) == []
    assert "kube-scheduler that calls the extender" in told(empty, "stray")
    # From then on it counts: 4 are free on one GPU, 10 on the other.
    empty.create(pod("ten", memory=10, node=NODE))
    assert check_runs(empty, "ten") == []
    empty.create(pod("five", memory=5, node=NODE))
    assert check_unschedulable(empty, "five") == []
    assert check_devices(empty, map(empty.pod, ("placed", "stray", "ten"))) == []
    assert check_totals(empty) == []


def test_without_room_on_one_gpu_it_fails_and_says_why(empty: Cluster) -> None:
    """Both GPUs together have 12 units free, which is what kubelet knows; neither has 8."""
    for name in ("left", "right"):
        empty.create(pod(name, memory=10, node=NODE))
        empty.until_running(name)
    by_hand(empty, pod("stray", memory=8))
    failed = empty.until("kubelet rejects it", lambda: empty.pod("stray")["status"].get("phase") == "Failed" and empty.pod("stray"), 30)
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    cause = f"{MEMORY}: asked for 8 units of 1 GiB on one GPU, but GPU 0 has 6 free, GPU 1 has 6 free"
    cure = "check that kube-scheduler is configured to call it"
    message = failed["status"]["message"]
    assert cause in message, message
    assert cure in message, message
    assert any(cause in event["message"] for event in empty.events("stray"))
    assert check_devices(empty, map(empty.pod, ("left", "right"))) == []


@pytest.fixture
def static(empty: Cluster) -> Iterator[str]:
    """A pod from a file on the node, 9 units; the name of its copy in the API."""
    wanted = pod("static", memory=9)
    empty.lab("exec", NODE, "sh", "-c", f"mkdir -p $(dirname {MANIFEST}) && cat > {MANIFEST}", stdin=json.dumps(wanted))
    try:
        empty.until_running(MIRROR)
        yield MIRROR
    finally:
        empty.on(NODE, "sh", "-c", f"rm {MANIFEST} && rmdir --ignore-fail-on-non-empty $(dirname {MANIFEST})")
        empty.until("the static pod is gone", lambda: all(p["metadata"]["name"] != MIRROR for p in empty.pods()), 60)


def test_a_static_pod_is_published_by_its_node(empty: Cluster, static: str) -> None:
    def entries() -> list[Json]:
        gpus = json.loads(annotations_of(empty.node(NODE)).get("gpushare/held", "{}")).get("gpus", {})
        return [{"gpu": gpu, **entry} for gpu, of in gpus.items() for entry in of]

    (entry,) = empty.until("the node says what the static pod has", entries, 25)
    assert (entry["pod"], entry["units"], entry["why"]) == (f"default/{static}", 9, "unmanaged")
    (container,) = empty.containers([empty.pod(static)])
    (gpu,) = (gpu for gpu in empty.gpus(NODE) if gpu.uuid == entry["gpu"])
    assert f"nvidia{gpu.minor}" in container.devices
    assert "static pod" in told(empty, static)
    # The scheduler's side counts it: the first goes to the other GPU, for the second there is none.
    empty.create(pod("twelve", memory=12, node=NODE))
    assert check_runs(empty, "twelve") == []
    assert list(allocation(empty.pod("twelve"))) == [1 - gpu.index]
    empty.create(pod("eight", memory=8, node=NODE))
    assert check_unschedulable(empty, "eight", NODE) == []
    assert check_environment(empty, [empty.pod("twelve")]) == []
    assert check_totals(empty) == []

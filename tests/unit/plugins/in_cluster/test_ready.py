# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""When an installation in the cluster serves, and what is said where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.ready import Awaited, beside, unready, wait

from unit.fakes.plugins.in_cluster.kubectl import Fake, Json, named

SPACE = "gpushare-system"
GPUS = json.dumps(
    {
        "v": 1,
        "unit": "GiB",
        "gpus": [{"index": 0, "uuid": "GPU-0", "minor": 0, "mib": 16384, "units": 16, "health": "ok", "cordoned": False}],
    }
)


def deployment(**status: int) -> Json:
    whole = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    return named("Deployment", "gpushare-scheduler", SPACE, spec={"replicas": 2}, status={**whole, **status})


def daemon_set(**status: int) -> Json:
    whole = {"observedGeneration": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1}
    return named("DaemonSet", "gpushare-device-plugin", SPACE, spec={}, status={**whole, **status})


def node(units: str = "16") -> Json:
    amounts = {"aliyun.com/gpu-mem": units, "aliyun.com/gpu-count": "1"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    return {"metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": GPUS}}, "status": status}


def cluster(*workloads: Json, units: str = "16", **more: Any) -> Fake:
    return Fake({"get deployments.apps": list(workloads), "get nodes": [node(units)], **more})


def test_it_serves() -> None:
    assert unready(cluster(deployment(), daemon_set()).kubectl, Awaited(SPACE)) == []


def test_beside_the_scheduler_of_the_cluster_it_serves_without_one_of_its_own() -> None:
    extender = {**daemon_set(), "metadata": {**daemon_set()["metadata"], "name": "gpushare-extender"}}
    fake = Fake({"get daemonsets.apps": [extender, daemon_set()], "get nodes": [node()]})
    assert unready(fake.kubectl, Awaited(SPACE, default_scheduler=True)) == []
    nowhere = {**extender, "status": {**extender["status"], "desiredNumberScheduled": 0}}
    fake = Fake({"get daemonsets.apps": [nowhere]})
    found = unready(fake.kubectl, Awaited(SPACE, default_scheduler=True, scheduler_only=True))
    assert found == ["DaemonSet gpushare-system/gpushare-extender: no node has the label of a control plane"]


@pytest.mark.parametrize(
    ("workloads", "units", "words"),
    [
        ((daemon_set(),), "16", "Deployment gpushare-system/gpushare-scheduler is not there"),
        ((deployment(availableReplicas=1), daemon_set()), "16", "1 of 2 pods serve"),
        # An old pod is still there.
        ((deployment(replicas=3), daemon_set()), "16", "2 of 2 pods serve"),
        ((deployment(updatedReplicas=1), daemon_set()), "16", "1 of them as written"),
        ((deployment(observedGeneration=0), daemon_set()), "16", "has not seen it yet"),
        ((deployment(), daemon_set(desiredNumberScheduled=0)), "16", "no node has the label"),
        ((deployment(), daemon_set(numberReady=0)), "16", "0 of 1 pods serve"),
        ((deployment(), daemon_set()), "0", "node gpu1: kubelet does not have"),
    ],
)
def test_it_does_not_serve(workloads: tuple[Json, ...], units: str, words: str) -> None:
    (said,) = unready(cluster(*workloads, units=units).kubectl, Awaited(SPACE))
    assert words in said


def test_a_dashboard_that_was_asked_for_serves_too() -> None:
    page = named("Deployment", "gpushare-dashboard", SPACE, spec={"replicas": 1}, status={"observedGeneration": 1, "replicas": 1})
    (said,) = unready(cluster(deployment(), daemon_set(), page).kubectl, Awaited(SPACE))
    assert said.startswith("Deployment gpushare-system/gpushare-dashboard: 0 of 1 ")


def of_plugin(on: str, ready: str = "True", generation: str = "3") -> Json:
    metadata = {"name": f"gpushare-device-plugin-{on}", "labels": {"pod-template-generation": generation}}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([of_plugin("gpu1"), of_plugin("dead", ready="Unknown", generation="2")], ""),
        ([of_plugin("gpu1", generation="2"), of_plugin("dead", ready="Unknown")], "1 of 1 pods serve, 0 of them as written"),
        ([of_plugin("gpu1", ready="False"), of_plugin("dead")], "0 of 1 pods serve, 1 of them as written"),
        ([of_plugin("dead")], "0 of 1 pods serve, 0 of them as written"),
    ],
)
def test_a_dead_node_that_the_run_is_not_about_keeps_nobody_waiting(pods: list[Json], words: str) -> None:
    plugin = daemon_set(desiredNumberScheduled=2)
    plugin["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "3"}
    fake = cluster(deployment(), plugin, **{"get pods": pods})
    found = unready(fake.kubectl, Awaited(SPACE, nodes=["gpu1"]))
    assert found == ([f"DaemonSet gpushare-system/gpushare-device-plugin: {words}"] if words else [])


def test_nodes_that_the_run_is_not_about_are_told_where_no_pod_serves_them() -> None:
    on_host = {"metadata": {"name": "service", "labels": {"gpushare.kubernetes/on-host": "true"}}}
    nodes = [node(), {"metadata": {"name": "dead"}}, {"metadata": {"name": "other"}}, on_host]
    pods = [of_plugin("dead", ready="Unknown"), of_plugin("other")]
    fake = Fake({"get nodes": nodes, "get pods": pods})
    (said,) = beside(fake.kubectl, Awaited(SPACE, nodes=["gpu1"]))
    assert (" dead, " in said, "other" in said, "gpushare.kubernetes/node-" in said) == (True, False, True)
    # Without names all with the label are judged.
    assert beside(fake.kubectl, Awaited(SPACE)) == []


def test_after_the_time_the_pods_say_why() -> None:
    waiting = {"name": "extender", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no image"}}}
    pod = {
        "metadata": {"name": "gpushare-scheduler-x", "uid": "u1"},
        "spec": {"nodeName": "gpu1"},
        "status": {"containerStatuses": [waiting]},
    }
    event = {"involvedObject": {"name": "gpushare-scheduler-x", "uid": "u1"}, "reason": "FailedMount", "message": "not a directory"}
    fake = cluster(
        deployment(availableReplicas=0), daemon_set(), **{"get pods": [pod], "get events": [event], "logs": "ERROR node: waiting\n"}
    )
    times = iter(range(100))
    said = wait(fake.kubectl, Awaited(SPACE), 3, clock=lambda: float(next(times)), sleep=lambda _: None)
    assert "0 of 2 pods serve" in said[0]
    assert (
        said[1]
        == "pod gpushare-scheduler-x on gpu1: extender: ErrImageNeverPull no image; FailedMount: not a directory; ERROR node: waiting"
    )

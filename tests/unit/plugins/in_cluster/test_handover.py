# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The steps in the cluster of a change of the mode."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.handover import Handover, HandoverError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import in_cluster
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

from unit.fakes.plugins.in_cluster.kubectl import Fake, Json, named

SPACE = "gpushare-system"
ON_HOST = "gpushare.kubernetes/on-host"


def handover(fake: Fake) -> Handover:
    """Each look takes a second of ten."""
    seconds = iter(range(10_000))
    return Handover(fake.kubectl, SPACE, 10, clock=lambda: float(next(seconds)), sleep=lambda _: None)


def node(name: str, **labels: str) -> Json:
    gpus = {"v": 1, "unit": "GiB", "gpus": [[0, "GPU-00000000-0000-0000-0000-000000000000", 0, 16, 16384, "x", ""]]}
    status = {"allocatable": {}, "capacity": {}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"gpushare/gpus": json.dumps(gpus)}},
        "status": status,
    }


def waiting(name: str, scheduler: str, *, init: bool = False) -> Json:
    asking = {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
    spec: Json = {"schedulerName": scheduler, "containers": [asking]}
    if init:
        spec.update(containers=[{}], initContainers=[asking])
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def plugin(name: str, on: str, ready: bool) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"name": name}, "spec": {"nodeName": on}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(("to_pods", "named_in"), [(True, ["default/old", "default/first"]), (False, ["default/new"])])
def test_pods_that_wait_for_the_scheduler_that_ends_stop_it(to_pods: bool, named_in: list[str]) -> None:
    pods = [waiting("old", "default-scheduler"), waiting("first", "default-scheduler", init=True), waiting("new", "gpushare-scheduler")]
    pods.append({"metadata": {"name": "cpu", "namespace": "default"}, "spec": {"containers": [{}]}})
    fake = Fake({"get --raw /api/v1/pods": json.dumps({"items": pods})})
    with pytest.raises(HandoverError) as error:
        handover(fake).waiting(to_pods)
    assert f"keep the name of their scheduler: {', '.join(named_in)}; expected none" in str(error.value)
    assert fake.writes() == []


def test_the_back_end_dra_has_no_scheduler_that_could_end() -> None:
    fake = Fake({"get deployments.apps/gpushare-claims": [named("Deployment", "gpushare-claims", SPACE)]})
    with pytest.raises(HandoverError):
        handover(fake).waiting(False)
    assert fake.writes() == []


def test_it_goes_on_once_they_run() -> None:
    answers = iter([json.dumps({"items": [waiting("old", "default-scheduler")]}), json.dumps({"items": []})])
    handover(Fake({"get --raw /api/v1/pods": lambda: next(answers)})).waiting(True)


def test_only_nodes_that_lack_the_label_get_it() -> None:
    fake = Fake({"get nodes": [node("gpu1"), node("gpu2", **{ON_HOST: "true"})]})
    assert handover(fake).mark(["gpu1", "gpu2", "gone"], True) == ["Node gpu1"]
    assert not any(words.startswith("label") for words in fake.asked)
    assert handover(fake).mark(["gpu1", "gpu2", "gone"], False) == ["Node gpu1"]
    assert fake.asked[-1] == f"label nodes gpu1 {ON_HOST}=true --overwrite"


def serving(ready: bool, units: str) -> Fake:
    item = node("gpu1", **{ON_HOST: "true"})
    item["status"]["allocatable"] = {"aliyun.com/gpu-mem": units, "aliyun.com/gpu-count": "1"}
    return Fake({"get node": [item], "get pods": [plugin("p", "gpu1", ready), plugin("q", "gpu2", True)]})


@pytest.mark.parametrize(("ready", "units"), [(False, "16"), (True, "0")])
def test_a_node_is_a_pods_once_that_serves_and_kubelet_offers_its_units(ready: bool, units: str) -> None:
    with pytest.raises(HandoverError, match="the device plugin on gpu1 does not serve within 10 s"):
        handover(serving(ready, units)).to_pod("gpu1", False)


def test_a_node_that_is_a_pods_already_is_left_alone() -> None:
    fake = Fake({"get node": [node("gpu1")]})
    assert handover(fake).to_pod("gpu1", False) == []
    assert fake.asked == ["get node gpu1 -o json"]


@pytest.mark.parametrize("left", [[plugin("p", "gpu1", True)], []])
def test_a_node_is_a_services_once_the_pod_is_gone(left: list[Json]) -> None:
    step: Callable[[], object] = lambda: handover(Fake({"get nodes": [node("gpu1")], "get pods": left})).to_host("gpu1", False)  # noqa: E731
    if left:
        with pytest.raises(HandoverError, match="does not end within 10 s"):
            step()
    else:
        assert step() == ["Node gpu1"]


def test_what_the_other_mode_needed_goes_and_nothing_else() -> None:
    keep = in_cluster.objects(Values(image="i", scheduler_image="s"))
    ours = [named("ClusterRole", "gpushare-extender"), named("ClusterRole", "gpushare-scheduler")]
    theirs = {"kind": "ClusterRole", "metadata": {"name": "gpushare-of-others"}}
    fake = Fake({"get --raw /apis/rbac.authorization.k8s.io/v1/clusterroles": json.dumps({"items": [*ours, theirs]})})
    assert handover(fake).prune(keep, False, True) == ["ClusterRole /gpushare-extender"]
    assert fake.writes() == []
    assert handover(fake).prune(keep, False, False) == ["ClusterRole /gpushare-extender"]
    assert fake.writes() == ["delete -f - --ignore-not-found"]
    with pytest.raises(HandoverError, match="no object to keep"):
        handover(fake).prune([], False, False)


def test_the_scheduler_ends_and_no_pod_gets_its_name_any_more() -> None:
    """The pod by which the role scheduler proves kube-scheduler would wait for nobody."""
    api = "get --raw /apis/admissionregistration.k8s.io/v1"
    deployment = {"kind": "Deployment", "metadata": {"name": "gpushare-scheduler"}, "spec": {"replicas": 2}}
    there: Json = {"metadata": {}}
    fake = Fake({f"{api}/mutating": there, f"{api}/validating": there, "get deployments.apps": [deployment]})
    gone = ["mutatingadmissionpolicybindings/gpushare-scheduler-name", "mutatingadmissionpolicies/gpushare-scheduler-name"]
    assert handover(fake).stop_scheduler(True) == [*gone, f"Deployment {SPACE}/gpushare-scheduler"]
    assert fake.writes() == []
    handover(fake).stop_scheduler(False)
    assert fake.writes() == [f"delete {' '.join(gone)} --ignore-not-found"]
    assert "scale deployments.apps/gpushare-scheduler --namespace gpushare-system --replicas=0" in fake.asked
    # Which reject others, too, go once the scheduler of the hosts serves.
    assert len(handover(fake).open(False)) == 4

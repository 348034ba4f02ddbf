# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What leaves a cluster, in which order, and when nothing does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Image, cleanup
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.removal import InClusterRemoval, RemovalError

from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json, named

SPACE = "gpushare-system"
LABELLED = {"metadata": {"name": "gpu1", "labels": {"gpushare.kubernetes/node": "true"}}}
CONTAINER = {"image": "localhost/gpushare:1", "args": ["--kubelet-root=/data/kubelet"]}
PLUGIN = named("DaemonSet", "gpushare-device-plugin", SPACE, spec={"template": {"spec": {"containers": [CONTAINER]}}})
OURS: dict[str, Answer] = {
    "get deployments.apps/gpushare-scheduler": [named("Deployment", "gpushare-scheduler", SPACE)],
    "get deployments.apps/gpushare-dashboard": [named("Deployment", "gpushare-dashboard", SPACE)],
    "get daemonsets.apps/gpushare-device-plugin": [PLUGIN],
    "get poddisruptionbudgets": [named("PodDisruptionBudget", "gpushare-scheduler", SPACE)],
    "get networkpolicies.networking.k8s.io/gpushare-scheduler": [named("NetworkPolicy", "gpushare-scheduler", SPACE)],
    "get nodes": [LABELLED, {"metadata": {"name": "cp1"}}],
    "get namespace": [named("Namespace", SPACE)],
}


def swept(phase: str) -> Json:
    return {"metadata": {"name": "gpushare-cleanup-gpu1"}, "status": {"phase": phase}}


def pods(phase: str) -> dict[str, Answer]:
    return {f"get pods --namespace {SPACE} --selector gpushare.kubernetes/probe": [swept(phase)]}


def test_all_of_it_goes_and_the_namespace_last() -> None:
    fake = Fake({**OURS, **pods("Succeeded")})
    removal = InClusterRemoval(fake.kubectl, SPACE, 5)
    removal.check(force=False)
    assert fake.writes() == []
    assert removal.nodes == ["gpu1"]
    assert "state folder, sockets and CDI spec on node gpu1" in removal.removed
    assert removal.removed[-1] == f"Namespace {SPACE}"
    removal.apply()
    assert [" ".join(words.split()[:2]) for words in fake.writes()] == [
        "patch daemonset",
        "delete pods",
        "create -f",
        "delete pods",
        "delete deployments.apps/gpushare-scheduler",
        "delete daemonsets.apps/gpushare-device-plugin",
        "delete poddisruptionbudgets.policy/gpushare-scheduler",
        "delete networkpolicies.networking.k8s.io/gpushare-scheduler",
        "delete deployments.apps/gpushare-dashboard",
        "delete namespace",
    ]


@pytest.mark.parametrize("annotations", [{}, {"gpushare.kubernetes/scheduler-config-sha256": "0"}])
def test_an_extender_that_kube_scheduler_asks_stays(annotations: dict[str, str]) -> None:
    mirror: Json = {"metadata": {"name": "kube-scheduler-cp1", "annotations": annotations}}
    extender: Answer = [named("DaemonSet", "gpushare-extender", SPACE)]
    fake = Fake({**OURS, "get daemonsets.apps/gpushare-extender": extender, "get pods --namespace kube-system": [mirror]})
    fake.answers = {"get daemonsets.apps/gpushare-extender": extender, **fake.answers}
    removal = InClusterRemoval(fake.kubectl, SPACE, 5)
    if annotations:
        with pytest.raises(RemovalError, match="kube-scheduler-cp1 asks the extender"):
            removal.check(force=True)
    else:
        removal.check(force=True)
    assert fake.writes() == []


def test_where_nothing_of_ours_is_nothing_goes() -> None:
    theirs = {key: [{**one, "metadata": {**one["metadata"], "managedFields": []}} for one in found] for key, found in OURS.items()}  # type: ignore[union-attr]
    assert InClusterRemoval(Fake(theirs).kubectl, SPACE, 5).removed == []


def test_pods_with_a_share_stop_it() -> None:
    pod = {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"nodeName": "gpu1", "containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]},
        "status": {"phase": "Running"},
    }
    fake = Fake({**OURS, "get --raw /api/v1/pods": [pod]})
    with pytest.raises(RemovalError, match=r"default/a on gpu1; expected none. .* Nothing was changed"):
        InClusterRemoval(fake.kubectl, SPACE, 5).check(force=False)
    InClusterRemoval(fake.kubectl, SPACE, 5).check(force=True)


@pytest.mark.parametrize("force", [False, True])
def test_pods_with_claims_stop_it_also_by_force(force: bool) -> None:
    """kubelet could not end them without the device plugin."""
    pool = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]}
    allocation = {"devices": {"results": [{"driver": "gpushare.kubernetes"}]}, "nodeSelector": {"nodeSelectorTerms": [pool]}}
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "a"}]}
    claim: Json = {"metadata": {"name": "a-x", "namespace": "default"}, "status": status}
    fake = Fake(
        {
            **OURS,
            "get --raw /api/v1/pods": [],
            "get --raw /apis/resource.k8s.io/v1/resourceclaims": [claim],
            "get --raw /apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        }
    )
    with pytest.raises(RemovalError) as error:
        InClusterRemoval(fake.kubectl, SPACE, 5).check(force)
    assert "default/a" in str(error.value)
    assert fake.writes() == []


def test_the_back_end_dra_goes_with_its_files() -> None:
    settings = 'backend: "dra"\nkubeletRoot: "/data/kubelet"\ncdiDir: "/run/cdi"\n'
    template = {"metadata": {"annotations": {"gpushare.kubernetes/settings": settings}}, "spec": {"containers": [CONTAINER]}}
    answers: dict[str, Answer] = {
        **{asked: found for asked, found in OURS.items() if "scheduler" not in asked and "poddisruption" not in asked},
        "get deployments.apps/gpushare-claims": [named("Deployment", "gpushare-claims", SPACE)],
        "get daemonsets.apps/gpushare-device-plugin": [named("DaemonSet", "gpushare-device-plugin", SPACE, spec={"template": template})],
        **pods("Succeeded"),
    }
    fake = Fake(answers)
    InClusterRemoval(fake.kubectl, SPACE, 5).apply()
    (made,) = next(json.loads(text)["items"] for words, text in fake.inputs if words.startswith("create"))
    assert {one["name"]: one["hostPath"]["path"] for one in made["spec"]["volumes"]} == {
        "lib": "/var/lib",
        "device-plugins": "/var/lib/kubelet/device-plugins",
        "cdi": "/run/cdi",
        "registry": "/data/kubelet/plugins_registry",
    }
    assert any(words.startswith("delete deployments.apps/gpushare-claims") for words in fake.writes())


def waits(**spec: Any) -> Json:
    return {"metadata": {"name": "b", "namespace": "default"}, "spec": {"containers": [], **spec}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]},
        {"schedulerName": "gpushare-scheduler"},
        {"resourceClaims": [{"name": "gpushare-m1", "resourceClaimTemplateName": "gpushare"}]},
    ],
)
def test_pods_that_wait_for_it_stop_a_change_of_the_back_end(spec: Json) -> None:
    ended: Json = {**waits(**spec), "status": {"phase": "Failed"}}
    others = waits(resourceClaims=[{"name": "x", "resourceClaimTemplateName": "theirs"}])
    fake = Fake({**OURS, "get --raw /api/v1/pods": [waits(**spec), ended, others]})
    InClusterRemoval(fake.kubectl, SPACE, 5).check(force=False)
    with pytest.raises(RemovalError, match="default/b"):
        InClusterRemoval(fake.kubectl, SPACE, 5, reinstalls=True).check(force=False)
    assert fake.writes() == []
    InClusterRemoval(Fake({**OURS, "get --raw /api/v1/pods": [ended, others]}).kubectl, SPACE, 5, reinstalls=True).check(force=False)


def test_a_pod_that_waits_by_a_claim_of_its_own_stops_a_change_of_the_back_end_dra() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpushare"}}
    metadata = {"name": "c-x", "namespace": "default", "ownerReferences": [{"kind": "Pod", "name": "c"}]}
    claim: Json = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    answers: dict[str, Answer] = {
        "get deployments.apps/gpushare-claims": [named("Deployment", "gpushare-claims", SPACE)],
        "get --raw /api/v1/pods": [waits(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "two-whole"}])],
        "get --raw /apis/resource.k8s.io/v1/resourceclaims": [claim],
    }
    with pytest.raises(RemovalError, match="default/c; expected none"):
        InClusterRemoval(Fake(answers).kubectl, SPACE, 5, reinstalls=True).check(force=False)
    # The back end extender was not what it waits for.
    extender = {**OURS, **{asked: found for asked, found in answers.items() if "--raw" in asked}}
    InClusterRemoval(Fake(extender).kubectl, SPACE, 5, reinstalls=True).check(force=False)


@pytest.mark.parametrize("others_space", [True, False])
def test_a_namespace_that_stays_keeps_what_others_have_in_it(others_space: bool) -> None:
    """At a change of the back end, and where somebody else has made the namespace."""
    path = f"get --raw /api/v1/namespaces/{SPACE}/serviceaccounts"
    theirs: Json = {"metadata": {"name": "gpushare-theirs", "namespace": SPACE}}
    answers: dict[str, Answer] = {**OURS, path: [named("ServiceAccount", "gpushare-scheduler", SPACE), theirs], **pods("Succeeded")}
    if others_space:
        answers["get namespace"] = [{"kind": "Namespace", "metadata": {"name": SPACE}}]
    fake = Fake(answers)
    removal = InClusterRemoval(fake.kubectl, SPACE, 5, reinstalls=not others_space)
    assert removal.removed[-1] == f"ServiceAccount {SPACE}/gpushare-scheduler"
    removal.apply()
    assert fake.writes()[-1] == "delete --ignore-not-found -f -"
    gone = json.loads(fake.inputs[-1][1])["items"]
    assert [(one["kind"], one["metadata"]["name"]) for one in gone] == [("ServiceAccount", "gpushare-scheduler")]
    assert not [words for words in fake.writes() if words.startswith("delete namespace")]


def test_services_on_hosts_stop_it_also_where_there_are_no_pods() -> None:
    """Their accounts and policies have names that begin like ours."""
    fake = Fake({"get serviceaccounts --namespace kube-system": [named("ServiceAccount", "gpushare-extender", "kube-system")]})
    with pytest.raises(RemovalError, match=r"found accounts of services on hosts: gpushare-extender; .* Nothing was changed"):
        InClusterRemoval(fake.kubectl, SPACE, 5).check(force=True)


def test_files_that_stay_stop_it_before_the_objects_go() -> None:
    fake = Fake({**OURS, **pods("Failed"), "logs": "cannot be removed"})
    with pytest.raises(RemovalError, match=r"files stay on gpu1: .*cannot be removed"):
        InClusterRemoval(fake.kubectl, SPACE, 5).apply()
    assert not [words for words in fake.writes() if words.startswith(("delete daemonsets", "delete namespace"))]


def test_the_pod_removes_our_files_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = cleanup("gpu1", Image("x", SPACE), "/run/cdi", "/var/lib/kubelet")["spec"]
    assert {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]} == {
        "lib": "/var/lib",
        "device-plugins": "/var/lib/kubelet/device-plugins",
        "cdi": "/run/cdi",
        "registry": "/var/lib/kubelet/plugins_registry",
    }
    (container,) = spec["containers"]
    plugins, lib, cdi = tmp_path / "device-plugins", tmp_path / "lib", tmp_path / "cdi"
    for file in (
        cdi / "gpushare.json",
        cdi / ".gpushare.json.new",
        cdi / "gpushare-claims.json",
        cdi / ".gpushare-claims.json.new",
        tmp_path / "registry/gpushare.kubernetes-0123cdef-reg.sock",
        tmp_path / "registry/gpu.nvidia.com-reg.sock",
        cdi / "nvidia.yaml",
        plugins / "aliyungpushare-mem-0123cdef.sock",
        plugins / "aliyungpushare-gpus-0123cdef.sock",
        plugins / "aliyungpushare-gpus-9876.sock",
        plugins / "kubelet.sock",
        lib / "gpushare-device-plugin/held.json",
        lib / "kubelet/x",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    script = container["command"][2].replace("/host/", "./")
    monkeypatch.chdir(tmp_path)  # a socket's path may have few characters only
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as left:
        listening.bind("device-plugins/aliyungpushare.sock")
        listening.listen()
        left.bind("device-plugins/aliyungpushare-gpus.sock")
        for _ in range(2):
            subprocess.run([sys.executable, "-c", script], check=True)
    assert [path.name for path in plugins.iterdir() if path.is_socket()] == ["aliyungpushare.sock"]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "cdi/nvidia.yaml",
        "device-plugins/aliyungpushare-gpus-9876.sock",
        "device-plugins/kubelet.sock",
        "lib/kubelet/x",
        "registry/gpu.nvidia.com-reg.sock",
    ]
    assert not (lib / "gpushare-device-plugin").exists()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is read of a cluster before an installation."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster import facts as facts_in_cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import when_told
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import RESULTS, believe

from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json, named
from unit.fakes.plugins.preflight.operator_facts import NO_DRA, NO_OPERATOR
from unit.fakes.plugins.takeover.others import cluster_policy, nvidia, operators
from unit.fakes.plugins.takeover.others import node as of_node

SPACE = "gpushare-system"


def gather(*arguments: Any) -> Json:
    """The facts as the module answers them."""
    return dict(answer_of(facts_in_cluster.gather(*arguments)))


def node(name: str, label: bool = True, images: int = 1, spec: Json | None = None, ready: str = "True") -> Json:
    status = {
        "nodeInfo": {"architecture": "amd64"},
        "conditions": [{"type": "Ready", "status": ready}],
        "images": [{"names": [f"image-{number}"]} for number in range(images)],
    }
    labels = {"gpushare.kubernetes/node": "true"} if label else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": status}


def of_pod(name: str, on: str, owner: str, phase: str = "Running", limits: Json | None = None) -> Json:
    containers = [{"name": "c", "resources": {"limits": limits or {}}}]
    metadata = {"name": name, "namespace": "default", "ownerReferences": [{"uid": owner}]}
    return {"metadata": metadata, "spec": {"nodeName": on, "containers": containers}, "status": {"phase": phase}}


def test_an_image_that_was_imported_is_waited_for() -> None:
    now: list[float] = [0.0]
    lacks, has = (SimpleNamespace(nodes=[SimpleNamespace(images=images)]) for images in ([], ["ours"]))

    def after(calls: int) -> tuple[Any, float]:
        now[0], answers = 0.0, iter([*[lacks] * calls, *[has] * 99])
        found = when_told(lambda: next(answers), "ours", 40, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
        return found, now[0]

    assert after(0) == (has, 0)
    assert after(3) == (has, 15)
    assert after(20) == (lacks, 40)


CONTAINER = {"args": ["--memory-unit=MiB"]}
ANSWERS: dict[str, Answer] = {
    "get --raw /version": {"gitVersion": "v1.36.3"},
    "get --raw /apis/admissionregistration.k8s.io/v1": {"resources": [{"kind": "ValidatingAdmissionPolicy"}]},
    "get --raw /api/v1/nodes": [node("gpu1"), node("gpu2", images=50), node("cp1", label=False)],
    "get --raw /apis/apps/v1/daemonsets": [
        named("DaemonSet", "gpushare-device-plugin", SPACE, spec={"template": {"spec": {"containers": [CONTAINER]}}})
    ],
    "get --raw /api/v1/namespaces/kube-system/serviceaccounts": [named("ServiceAccount", "gpushare-device-plugin-gpu1", "kube-system")],
    "get --raw /api/v1/namespaces/gpushare-system": {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    "get --raw /apis/node.k8s.io/v1/runtimeclasses": [{"metadata": {"name": "nvidia"}}],
}


def test_what_is_there() -> None:
    facts = gather(Fake(ANSWERS).kubectl, SPACE, [])
    assert believe({"facts": facts}, RESULTS["gpushare_in_cluster facts"]) == {"facts": facts}
    assert [one["name"] for one in facts["nodes"]] == ["gpu1", "gpu2"]
    # kubelet tells of 50 images, so the second may have more.
    assert [one["all"] for one in facts["nodes"]] == [True, False]
    assert (facts["unit"], facts["enforces"], facts["number"], facts["may_grant"]) == ("MiB", "restricted", 3, "")
    assert facts["on_hosts"] == ["gpushare-device-plugin-gpu1"]
    assert facts["others"] == []
    assert facts["openshift"] is False
    assert (facts["gpu_operator"], facts["dra"]) == (NO_OPERATOR, NO_DRA)


@pytest.mark.parametrize(("wanted", "away"), [([], []), (["gpu1"], ["gpu2"]), (["gpu1", "gpu2"], ["gpu2"])])
def test_labelled_nodes_that_are_away_are_known_also_beside_those_that_are_named(wanted: list[str], away: list[str]) -> None:
    nodes = [node("gpu1"), node("gpu2", ready="Unknown"), node("cp1", label=False, ready="Unknown")]
    assert gather(Fake({**ANSWERS, "get --raw /api/v1/nodes": nodes}).kubectl, SPACE, wanted)["away"] == away


@pytest.mark.parametrize(
    ("name", "labels", "platform"),
    [
        ("fargate-ip-10-0-1-2.ec2.internal", {}, "Fargate"),
        ("x", {"eks.amazonaws.com/compute-type": "fargate"}, "Fargate"),
        ("gk3-default-pool-094ee287-d05m", {}, "GKE Autopilot"),
        ("x", {"cloud.google.com/gke-autopilot": "true"}, "GKE Autopilot"),
        ("gke-default-pool-094ee287-d05m", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, ""),
    ],
)
def test_nodes_without_folders_of_the_host_are_known(name: str, labels: dict[str, str], platform: str) -> None:
    facts = gather(Fake({**ANSWERS, "get --raw /api/v1/nodes": [of_node(name, labels)]}).kubectl, SPACE, [name])
    assert facts["nodes"][0]["platform"] == platform


def test_device_plugins_of_others_count_where_they_serve_our_nodes() -> None:
    plugins = [nvidia(), operators()]
    pods = [
        of_pod("a", "gpu1", plugins[0]["metadata"]["uid"]),
        of_pod("b", "cp1", "uid-nvidia-device-plugin-daemonset"),
        of_pod("train", "gpu1", "u", limits={"nvidia.com/gpu.shared": "1"}),
        of_pod("ended", "gpu1", "u", "Succeeded", limits={"nvidia.com/gpu": "1"}),
        of_pod("elsewhere", "cp1", "u", limits={"nvidia.com/mig-1g.5gb": "1"}),
    ]
    plugins[1]["metadata"]["uid"] = "uid-of-the-operators"
    deployed = {"nvidia.com/gpu.deploy.operator-validator": "true"}
    facts = gather(
        Fake(
            {
                **ANSWERS,
                "get --raw /apis/apps/v1/daemonsets": plugins,
                "get --raw /api/v1/pods": pods,
                "get --raw /apis/nvidia.com/v1/clusterpolicies": [cluster_policy()],
                "get --raw /apis/nvidia.com/v1beta1": {"resources": [{"kind": "Other"}]},
                "get --raw /apis/nvidia.com/v1": {"resources": [{"kind": "ClusterPolicy"}]},
                "get --raw /apis/nvidia.com": {"versions": [{"version": "v1"}, {"version": "v1beta1"}]},
                "get nodes --selector=nvidia.com/gpu.deploy.operator-validator=true": [
                    of_node("gpu1", deployed),
                    of_node("gpu7", deployed),
                ],
            }
        ).kubectl,
        SPACE,
        [],
    )
    assert believe({"facts": facts}, RESULTS["gpushare_in_cluster facts"]) == {"facts": facts}
    title = "DaemonSet kube-system/nvidia-device-plugin-daemonset"
    assert facts["others"] == [{"title": title, "kind": "NVIDIA device plugin", "nodes": ["gpu1"]}]
    assert facts["holders"] == ["default/train on gpu1"]
    operator = facts["gpu_operator"]
    assert (operator["versions"], operator["nodes"], operator["ours"]) == (["v1"], ["gpu1", "gpu7"], [])
    assert [(one["name"], one["enabled"]) for one in operator["policies"]] == [("cluster-policy", True)]


def test_nodes_that_may_run_the_scheduler() -> None:
    """No GPU node, now or later; of the taints, a control plane's alone is tolerated."""
    tainted = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    others = [
        node("cp1", label=False, spec=tainted),
        node("own", label=False, spec={"taints": [{"key": "team", "effect": "NoSchedule"}]}),
        node("weak", label=False, spec={"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}),
        node("cordoned", label=False, spec={"unschedulable": True}),
        node("away", label=False, ready="Unknown"),
        node("later", label=False),
        node("gpu1"),
        {**node("of-nvidia", label=False), "status": {**node("x")["status"], "capacity": {"nvidia.com/gpu": "8"}}},
    ]
    windows = node("windows", label=False)
    windows["metadata"]["labels"]["kubernetes.io/os"] = "windows"
    answers: dict[str, Answer] = {**ANSWERS, "get --raw /api/v1/nodes": [*others, windows]}
    assert gather(Fake(answers).kubectl, SPACE, ["later"])["homes"] == ["cp1", "weak"]
    assert gather(Fake(answers).kubectl, SPACE, [])["homes"] == ["cp1", "weak", "later"]


def test_pods_of_the_scheduler_on_gpu_nodes() -> None:
    def replica(name: str, on: str, namespace: str = SPACE, phase: str = "Running") -> Json:
        labels = {"app.kubernetes.io/name": "gpushare-scheduler"}
        return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"nodeName": on}, "status": {"phase": phase}}

    pods = [
        replica("a", "gpu1"),
        replica("b", "cp1"),
        replica("c", "gpu1", "other"),
        replica("d", "gpu1", phase="Failed"),
        replica("e", "w1"),
    ]
    answers: dict[str, Answer] = {**ANSWERS, "get --raw /api/v1/pods": pods}
    assert gather(Fake(answers).kubectl, SPACE, [])["displaced"] == ["a on gpu1"]
    # It gets the label in this run.
    assert gather(Fake(answers).kubectl, SPACE, ["gpu1", "cp1"])["displaced"] == ["a on gpu1", "b on cp1"]


def test_nodes_by_name() -> None:
    facts = gather(Fake(ANSWERS).kubectl, SPACE, ["cp1", "gone"])
    assert ([one["name"] for one in facts["nodes"]], facts["missing"]) == (["cp1"], ["gone"])


def test_who_may_not_grant_is_told_in_the_servers_words() -> None:
    fake = Fake({**ANSWERS, "create --dry-run=server": lambda: RuntimeError("Forbidden: attempting to grant")})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    assert "attempting to grant" in gather(fake.kubectl, SPACE, [], rules)["may_grant"]
    assert [json.loads(data)["rules"] for words, data in fake.inputs if words.startswith("create")] == [rules]
    assert all("--dry-run=server" in words for words in fake.writes())


def workload(name: str, space: str, **metadata: Any) -> Json:
    return {"metadata": {"name": name, "namespace": space, "labels": {"app.kubernetes.io/part-of": "gpushare"}, **metadata}}


def bound(name: str, space: str) -> dict[str, Answer]:
    return {"get clusterroles": [{"kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [{"namespace": space}]}]}


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({}, []),
        ({"deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-scheduler": [named("Deployment", "x", SPACE)]}, []),
        (
            {"deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-scheduler": [named("Deployment", "gpushare-scheduler", SPACE)]},
            [("extender", SPACE, "", "")],
        ),
        (
            {
                "deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-claims": [
                    workload("gpushare-claims", "gpushare-old", annotations={"meta.helm.sh/release-name": "mine"})
                ]
            },
            [("dra", "gpushare-old", "the Helm release mine", "mine")],
        ),
        # Anybody may write such an object into a namespace of their own, and nobody but an administrator such a binding.
        ({"deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-claims": [workload("gpushare-claims", "tenant")]}, []),
        (
            {
                "deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-claims": [workload("gpushare-claims", "gpu")],
                **bound("gpushare-claims", "gpu"),
            },
            [("dra", "gpu", "a manifest", "")],
        ),
        ({"daemonsets": [named("DaemonSet", "gpushare-extender", SPACE)]}, [("extender", SPACE, "", "")]),
        # The first half of a removal is done: the Deployment has gone.
        (
            {
                "daemonsets": [
                    named(
                        "DaemonSet",
                        "gpushare-device-plugin",
                        SPACE,
                        spec={"template": {"metadata": {"annotations": {"gpushare.kubernetes/settings": 'backend: "dra"\n'}}}},
                    )
                ]
            },
            [("dra", SPACE, "", "")],
        ),
        # And the second half in part.
        (
            {
                "get clusterroles": [
                    named("ClusterRole", "gpushare-claims"),
                    {"kind": "ClusterRole", "metadata": {"name": "gpushare-scheduler"}},
                    named("ClusterRoleBinding", "gpushare-scheduler"),
                ]
            },
            [("dra", "", "", "")],
        ),
    ],
)
def test_installations_are_found_in_every_namespace(answers: dict[str, Answer], found: list[tuple[str, ...]]) -> None:
    prefix = "get --raw /apis/apps/v1/"
    asked = {words if words.startswith("get") else prefix + words: answer for words, answer in answers.items()}
    without = {words: answer for words, answer in ANSWERS.items() if not words.endswith("daemonsets")}
    facts = gather(Fake({**asked, **without}).kubectl, SPACE, [])
    assert believe({"facts": facts}, RESULTS["gpushare_in_cluster facts"]) == {"facts": facts}
    assert [tuple(one[key] for key in ("backend", "namespace", "owner", "release")) for one in facts["backends"]] == found


def test_claims_that_wait_count_where_the_back_end_dra_is() -> None:
    claim: Json = {
        "metadata": {"name": "c-x", "namespace": "default", "ownerReferences": [{"kind": "Pod", "name": "c"}]},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpushare"}}]}},
    }
    answers: dict[str, Answer] = {**ANSWERS, "get --raw /apis/resource.k8s.io/v1/resourceclaims": [claim]}
    assert gather(Fake(answers).kubectl, SPACE, [])["waiting"] == []
    at = "get --raw /apis/apps/v1/deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-claims"
    installed: dict[str, Answer] = {at: [named("Deployment", "gpushare-claims", SPACE)], **answers}
    assert gather(Fake(installed).kubectl, SPACE, [])["waiting"] == ["default/c"]

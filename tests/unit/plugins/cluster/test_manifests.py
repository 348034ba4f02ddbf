# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects that roles apply to the cluster, as builders and templates make them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import ForeignError, WantedObjects, check_ours, foreign
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.public import NAME, PUBLIC, SIZES, public

from gpushare_runtime.core import protocol
from unit.fakes.plugins.cluster.manifests import objects, of_role

# YAML reads the last three as numbers where they stand without quotes.
NAMES = ["gpu1", "gpu-7.example.org", "0123", "1e3", "10.5"]


def policies(writers: list[str]) -> dict[str, dict[str, Any]]:
    found = of_role("admission", writers=writers, token_seconds=604800)
    return {item["metadata"]["name"]: item["spec"] for item in found if item["kind"] == "ValidatingAdmissionPolicy"}


def listed(policy: str, variable: str) -> set[str]:
    """The names in the lists of a variable's expression."""
    (expression,) = (one["expression"] for one in policies([])[policy]["variables"] if one["name"] == variable)
    lists = [json.loads(found) for found in re.findall(r"\[\"[^]]*\]", expression)]
    assert lists
    return {name for names in lists for name in names}


def test_the_policies_know_the_annotations_of_the_protocol_and_no_wishes() -> None:
    """Looked up by name: a prefix would have to be searched for among all annotations that anybody has written."""
    named = {value for name, value in vars(protocol).items() if name.startswith("ANNOTATION_")} - {protocol.ANNOTATION_MIRROR}
    named |= {value for name, value in vars(protocol).items() if name.startswith("ENV_") and value.startswith("ALIYUN_COM_GPU_MEM_")}
    assert len(named) >= 11
    assert listed("gpushare-annotations", "changed") == named
    daemons = listed("gpushare-device-plugin", "own") | listed("gpushare-extender", "own")
    assert daemons == named - {protocol.ENV_CONTAINER_UNITS}
    (placement,) = policies([])["gpushare-placement"]["validations"]
    assert all(f'"{resource}"' in placement["expression"] for resource in protocol.RESOURCES)


def test_each_policy_is_enforced_and_fails_closed() -> None:
    found = of_role("admission", writers=[], token_seconds=604800)
    bound = {item["spec"]["policyName"]: item["spec"] for item in found if item["kind"] == "ValidatingAdmissionPolicyBinding"}
    kinds = ["annotations", "device-plugin", "events", "extender", "placement", "tokens", "unhealthy"]
    assert sorted(bound) == sorted(policies([])) == [f"gpushare-{kind}" for kind in kinds]
    assert [spec["validationActions"] for spec in bound.values()] == [["Deny"]] * 7
    assert {spec["failurePolicy"] for spec in policies([]).values()} == {"Fail"}


def test_a_writers_name_cannot_end_the_expression() -> None:
    found = policies(["a']", 'b"'])
    expressions = [one["expression"] for name in ("gpushare-annotations", "gpushare-placement") for one in found[name]["matchConditions"]]
    assert len([one for one in expressions if """in ["a']", "b\\""]""" in one]) == 2


def test_a_node_is_called_as_it_is_whatever_it_looks_like() -> None:
    labels = objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[(name, "", "") for name in NAMES])
    assert [item["metadata"] for item in labels] == [{"name": name, "labels": {"gpushare.kubernetes/node": "true"}} for name in NAMES]


def test_a_node_is_labelled_with_its_placement_where_it_has_one() -> None:
    one, other = objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[("a", "spread", "mps"), ("b", "", "")])
    assert one["metadata"]["labels"] == {
        "gpushare.kubernetes/node": "true",
        protocol.LABEL_PLACEMENT: "spread",
        "ack.node.gpu.schedule": "mps",
    }
    assert other["metadata"]["labels"] == {"gpushare.kubernetes/node": "true"}


# What a host could answer to get more than a name into the cluster (security review, C2).
HOSTILE = [
    'gpu1"\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: cluster-admin}\n#',
    "gpu1\n---\nkind: Secret\nmetadata: {name: x}",
    r"gpu1\x22\n---",
    "{{ gpushare_metrics_token }}",
    "gpu1]\n    verbs: ['*']",
    "gpu1\u2028\u0085x",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_node_is_called_its_objects_are_the_same_but_for_the_name(name: str) -> None:
    def made(which: str) -> str:
        accounts = of_role("device_plugin", nodes=[which])
        return json.dumps(accounts + objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[(which, "", "")]))

    assert made(name) == made("gpu1").replace("gpu1", json.dumps(name)[1:-1])


def test_the_module_takes_what_the_roles_make_and_nothing_else() -> None:
    """The allow-list of gpushare_cluster."""
    nodes = ["gpu1", "a" * 63 + ".example.org"]
    ours = [
        *of_role("device_plugin", nodes=nodes),
        *of_role("extender", lease="infra/mine", evict=True, prometheus="http://prometheus.monitoring:9090"),
        *of_role("dashboard"),
        *of_role("admission", writers=[], token_seconds=604800),
        *objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[("gpu1", "spread", "mps"), ("gpu2", "", "share")]),
    ]
    check_ours(WantedObjects(apply=ours))
    rbac = "rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": "gpushare-x", "namespace": "kube-system"}
    bad: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gpushare-x", "namespace": "kube-system"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpushare-x", "namespace": "kube-system"}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "cluster-admin"}, "rules": []},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "gpushare-x\n"}, "rules": []},
        {"apiVersion": rbac, "kind": "Role", "metadata": {"name": "gpushare-x", "namespace": "default"}, "rules": []},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {}}, "spec": {"unschedulable": True}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {}, "annotations": {}}},
        {"apiVersion": "v2", "kind": "Node", "metadata": {"name": "a", "labels": {}}},
        {"apiVersion": rbac, "kind": "Role"},
        {"apiVersion": "v1", "kind": "Role", "metadata": {"name": "gpushare-x", "namespace": "kube-system"}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "gpushare-x", "namespace": "kube-system"}},
    ]
    for item, words in ((bad[-2], f"'Role' 'gpushare-x': expected {rbac} in the namespace kube-system"), (bad[-1], "without a namespace")):
        with pytest.raises(ForeignError, match=f"{words}.*; nothing was changed"):
            check_ours(WantedObjects(apply=[*ours, item]))
    facts = public("http://prometheus.monitoring:9090", "gpushare-extender", "kube-system")
    sizes, config, may_read, everybody, may_write, writer = facts
    assert [item for item in facts if item not in ours] == []
    bad += [
        {**config, "data": {"prometheus": "http://a b"}},
        {**config, "data": {**config["data"], "more": "x"}},
        {**config, "metadata": {"name": "cluster-info", "namespace": "kube-public"}},
        {**may_read, "rules": [{**may_read["rules"][0], "verbs": ["get", "update"]}]},
        {**everybody, "subjects": [{**everybody["subjects"][0], "name": "system:unauthenticated"}]},
        {**everybody, "metadata": {"name": "gpushare-info", "namespace": "kube-system"}},
        {**sizes, "data": {"sizes": "mine"}},
        {**config, "data": {"prometheus": ""}},
        {**may_write, "rules": [{**may_write["rules"][0], "resourceNames": ["gpushare-info"]}]},
        {**writer, "subjects": [{**writer["subjects"][0], "name": "default"}]},
        {**writer, "subjects": [{**writer["subjects"][0], "namespace": "default"}]},
    ]
    for role, subject in (
        ("cluster-admin", account),
        ("system:kube-scheduler", account),
        ("gpushare-x", {"kind": "Group", "name": "gpushare-x"}),
        ("gpushare-x", {**account, "name": "x"}),
    ):
        metadata = {"name": "gpushare-x"}
        bad.append(
            {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": {"name": role}, "subjects": [subject]}
        )
    assert [item for item in bad if foreign([*ours, item]) is None] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_plugins_account_has_its_own_node_and_its_own_tokens(name: str) -> None:
    found = {item["kind"]: item for item in of_role("device_plugin", nodes=[name])}
    account = f"gpushare-device-plugin-{name}"
    assert {item["metadata"]["name"] for item in found.values()} == {account}
    rules = found["ClusterRole"]["rules"]
    assert [rule["resourceNames"] for rule in rules if rule["resources"][0].startswith("nodes")] == [[name], [name]]
    tokens, unhealthy, create = found["Role"]["rules"]
    assert (tokens["resources"], tokens["resourceNames"], tokens["verbs"]) == (["serviceaccounts/token"], [account], ["create"])
    its_map = protocol.UNHEALTHY_PREFIX + name
    assert (unhealthy["resources"], unhealthy["resourceNames"], unhealthy["verbs"]) == (["configmaps"], [its_map], ["get", "patch"])
    assert create == {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    assert found["Role"]["metadata"]["namespace"] == protocol.UNHEALTHY_NAMESPACE
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        assert found[kind]["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]
        assert found[kind]["roleRef"]["name"] == account


def test_no_daemon_may_change_what_a_pod_or_a_node_is() -> None:
    """Whoever may patch pods may have a privileged one run an image of his choice: that is the cluster (security review, K1)."""
    found = of_role("device_plugin", nodes=["a"])
    found += of_role("extender", lease="none", evict=False)
    may = {(resource, verb) for item in found for rule in item.get("rules", []) for resource in rule["resources"] for verb in rule["verbs"]}
    changes = {(resource, verb) for resource, verb in may if verb not in ("get", "list", "watch")}
    assert changes == {
        ("pods/status", "patch"),
        ("nodes/status", "patch"),
        ("pods/binding", "create"),
        ("events", "create"),
        ("events", "patch"),
        ("configmaps", "create"),
        ("configmaps", "patch"),
        ("serviceaccounts/token", "create"),
    }


def test_the_extender_may_evict_only_where_that_is_chosen_and_a_device_plugin_never() -> None:
    for evicts in (False, True):
        extender = of_role("extender", lease="none", evict=evicts)
        rules = [rule for item in extender for rule in item.get("rules", []) if "pods/eviction" in rule["resources"]]
        assert rules == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}] * evicts
        plugin = of_role("device_plugin", nodes=["a"], evict=evicts)
        assert "pods/eviction" not in json.dumps(plugin)


@pytest.mark.parametrize(("seconds", "longest"), [(600, 3600), (604800, 604800)])
def test_no_token_lives_longer_than_a_daemons_own_or_a_seed(seconds: int, longest: int) -> None:
    found = of_role("admission", writers=[], token_seconds=seconds)
    (policy,) = (item["spec"] for item in found if item["metadata"]["name"] == "gpushare-tokens" and "validations" in item["spec"])
    assert policy["validations"][0]["expression"] == f"object.spec.?expirationSeconds.orValue(3600) <= {longest}"


def test_each_node_has_objects_of_its_own() -> None:
    found = of_role("device_plugin", nodes=["a", "b"])
    titles = [(item["kind"], item["metadata"]["name"]) for item in found]
    assert len(titles) == len(set(titles)) == 10


@pytest.mark.parametrize(
    ("lease", "kind"), [("kube-system/kube-scheduler", "Role"), ("kube-system/mine", "Role"), ("infra/mine", "ClusterRole"), ("none", None)]
)
def test_the_extender_reads_its_schedulers_lease_and_no_other(lease: str, kind: str | None) -> None:
    every = of_role("extender", lease=lease, evict=False)
    found = [item for item in every if item["metadata"].get("namespace") != "kube-public"]
    rules = [(item["kind"], rule) for item in found for rule in item.get("rules", []) if "leases" in rule["resources"]]
    wanted = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [lease.split("/")[-1]], "verbs": ["get"]}
    assert rules == ([(kind, wanted)] if kind else [])
    assert [item["kind"] for item in found] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


def test_the_extender_writes_the_sizes_and_not_where_prometheus_is() -> None:
    """People send their tokens to that Prometheus."""
    rules = [rule for item in of_role("extender", lease="none", prometheus="http://p:9090") for rule in item.get("rules", [])]
    config_maps = [(rule["verbs"], rule.get("resourceNames")) for rule in rules if "configmaps" in rule["resources"]]
    assert config_maps == [(["get"], ["gpushare-info", "gpushare-gpus"]), (["patch"], ["gpushare-gpus"])]
    assert (SIZES, NAME, PUBLIC) == (protocol.SIZES, protocol.INFO, protocol.PUBLIC_NAMESPACE)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects that roles apply to the cluster, as their templates make them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from gpushare_runtime import protocol

ROLES = Path(__file__).resolve().parents[3] / "roles"
# YAML reads the last three as numbers where they stand without quotes.
NAMES = ["gpu1", "gpu-7.example.org", "0123", "1e3", "10.5"]


def objects(template: str, **variables: Any) -> list[dict[str, Any]]:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = json.dumps
    text = environment.from_string((ROLES / template).read_text()).render(**variables)
    return [document for document in yaml.safe_load_all(text) if document]


def policies(writers: list[str]) -> dict[str, dict[str, Any]]:
    found = objects("admission/templates/policies.yml.j2", gpushare_annotation_writers=writers)
    return {item["metadata"]["name"]: item["spec"] for item in found if item["kind"] == "ValidatingAdmissionPolicy"}


def guarded(key: str, expression: str) -> bool:
    """Whether the expression of the variable `ours` means this annotation."""
    prefixes = re.findall(r"k\.startsWith\('([^']*)'\)", expression)
    listed = re.findall(r"'([^']*)'", (re.search(r"k in \[(.*?)\]", expression) or [""])[0])
    assert prefixes
    assert listed
    return any(key.startswith(prefix) for prefix in prefixes) or key in listed


def test_every_annotation_that_the_daemons_write_is_guarded() -> None:
    ours = [value for name, value in vars(protocol).items() if name.startswith("ANNOTATION_")]
    assert len(ours) >= 9
    about_annotations = {name: policy for name, policy in policies([]).items() if "variables" in policy}
    assert len(about_annotations) == 3
    for name, policy in about_annotations.items():
        (expression,) = (variable["expression"] for variable in policy["variables"] if variable["name"] == "ours")
        assert [key for key in ours if not guarded(key, expression)] == [], name
        assert not guarded("gpushare/models", expression), "tenants ask with the other annotations under gpushare/"


def test_each_policy_is_enforced_and_fails_closed() -> None:
    found = objects("admission/templates/policies.yml.j2", gpushare_annotation_writers=[])
    bound = {item["spec"]["policyName"]: item["spec"] for item in found if item["kind"] == "ValidatingAdmissionPolicyBinding"}
    names = ["gpushare-annotations", "gpushare-device-plugin", "gpushare-extender", "gpushare-unhealthy"]
    assert sorted(bound) == sorted(policies([])) == names
    assert [spec["validationActions"] for spec in bound.values()] == [["Deny"]] * 4
    assert {spec["failurePolicy"] for spec in policies([]).values()} == {"Fail"}


def test_a_writers_name_cannot_end_the_expression() -> None:
    (condition,) = policies(["a']", 'b"'])["gpushare-annotations"]["matchConditions"]
    assert """in ["a']", "b\\""]""" in condition["expression"]


def test_a_node_is_called_as_it_is_whatever_it_looks_like() -> None:
    labels = objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[(name, "") for name in NAMES])
    assert [item["metadata"] for item in labels] == [{"name": name, "labels": {"gpushare": "true"}} for name in NAMES]


def test_a_node_is_labelled_with_its_placement_where_it_has_one() -> None:
    one, other = objects("kubelet/templates/labels.yml.j2", __kubelet_nodes=[("a", "spread"), ("b", "")])
    assert one["metadata"]["labels"] == {"gpushare": "true", protocol.LABEL_PLACEMENT: "spread"}
    assert other["metadata"]["labels"] == {"gpushare": "true"}


@pytest.mark.parametrize("name", NAMES)
def test_a_plugins_account_has_its_own_node_and_its_own_tokens(name: str) -> None:
    found = {item["kind"]: item for item in objects("device_plugin/templates/accounts.yml.j2", __gpushare_node_names=[name])}
    account = f"gpushare-device-plugin-{name}"
    assert {item["metadata"]["name"] for item in found.values()} == {account}
    (nodes,) = (rule for rule in found["ClusterRole"]["rules"] if "nodes" in rule["resources"])
    assert nodes["resourceNames"] == [name]
    tokens, unhealthy, create = found["Role"]["rules"]
    assert (tokens["resources"], tokens["resourceNames"], tokens["verbs"]) == (["serviceaccounts/token"], [account], ["create"])
    its_map = protocol.UNHEALTHY_PREFIX + name
    assert (unhealthy["resources"], unhealthy["resourceNames"], unhealthy["verbs"]) == (["configmaps"], [its_map], ["get", "patch"])
    assert create == {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    assert found["Role"]["metadata"]["namespace"] == protocol.UNHEALTHY_NAMESPACE
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        assert found[kind]["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]
        assert found[kind]["roleRef"]["name"] == account


def test_each_node_has_objects_of_its_own() -> None:
    found = objects("device_plugin/templates/accounts.yml.j2", __gpushare_node_names=["a", "b"])
    titles = [(item["kind"], item["metadata"]["name"]) for item in found]
    assert len(titles) == len(set(titles)) == 10


@pytest.mark.parametrize(
    ("lease", "kind"), [("kube-system/kube-scheduler", "Role"), ("kube-system/mine", "Role"), ("infra/mine", "ClusterRole"), ("none", None)]
)
def test_the_extender_reads_its_schedulers_lease_and_no_other(lease: str, kind: str | None) -> None:
    found = objects("extender/templates/account.yml.j2", gpushare_scheduler_lease=lease)
    rules = [(item["kind"], rule) for item in found for rule in item.get("rules", []) if "leases" in rule["resources"]]
    wanted = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [lease.split("/")[-1]], "verbs": ["get"]}
    assert rules == ([(kind, wanted)] if kind else [])
    assert [item["kind"] for item in found] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]

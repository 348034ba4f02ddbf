# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which objects of a cluster are ours, which go now, and which pods would miss them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal import cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import (
    Named,
    Removal,
    forgotten,
    going,
    gpu_pods,
    ours,
    traces,
)

Json = dict[str, Any]
APPLIED = [
    {
        "manager": "gpushare.kubernetes",
        "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:gpushare.kubernetes/node": {}}}},
    }
]


def item(name: str, manager: str = "gpushare.kubernetes", operation: str = "Apply") -> Json:
    return {"metadata": {"name": name, "namespace": "kube-system", "managedFields": [{"manager": manager, "operation": operation}]}}


def node(annotations: Json | None = None, capacity: Json | None = None, allocatable: Json | None = None, **metadata: Any) -> Json:
    return {
        "metadata": {"name": "gpu1", "annotations": annotations or {}, **metadata},
        "status": {"capacity": {"cpu": "2", **(capacity or {})}, "allocatable": {"cpu": "2", **(allocatable or {})}},
    }


def pod(name: str, asks: Json, on: str | None = "gpu1", phase: str = "Running", kind: str = "containers") -> Json:
    containers: Json = {"containers": [{"name": "main"}], kind: [{"name": "x", "resources": {"limits": asks}}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": on, **containers}, "status": {"phase": phase}}


def test_ours_has_our_name_and_was_applied_by_us() -> None:
    items = [
        item("gpushare-extender"),
        item("gpushare-device-plugin", manager="kubectl-client-side-apply"),
        item("gpushare-schd-extender", operation="Update"),
        item("other"),
        {"metadata": {"name": "gpushare-x"}},
    ]
    assert ours(items, "v1", "ServiceAccount") == [Named("v1", "ServiceAccount", "kube-system", "gpushare-extender")]


def test_accounts_of_nodes_that_are_gone() -> None:
    names = ("gpushare-device-plugin-gpu1", "gpushare-device-plugin-gpu9", "gpushare-extender", "gpushare-scheduler", "default")
    accounts = [*map(item, names), item("gpushare-device-plugin-theirs", manager="kubectl")]
    assert cluster.plugin_accounts(accounts, [node(), {"metadata": {"name": "cp1"}}]) == (
        ["gpushare-device-plugin-gpu1", "gpushare-device-plugin-gpu9"],
        ["gpushare-device-plugin-gpu9"],
    )
    assert cluster.of_hosts(accounts) == list(names[:3])


def test_a_node_is_ready_as_its_condition_says() -> None:
    ready = {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}
    states = {"a": ready, "b": {"conditions": [{"type": "Ready", "status": "False"}]}, "c": {"conditions": None}, "d": None}
    nodes = [{"metadata": {"name": name}, "status": status} for name, status in states.items()]
    assert cluster.node_states(nodes) == {"a": "True", "b": "False", "c": "Unknown", "d": "Unknown"}


def test_a_map_of_unhealthy_gpus_is_ours_where_only_our_plugin_has_written_it() -> None:
    ours_too = item("unhealthy-gpu-a", "gpushare-device-plugin", "Update")
    both = item("unhealthy-gpu-b", "gpushare-device-plugin", "Update")
    both["metadata"]["managedFields"].append({"manager": "kubectl", "operation": "Update"})
    found = ours([ours_too, both, item("unhealthy-gpu-c", "kubectl", "Update"), item("other", "gpushare-device-plugin")], "v1", "ConfigMap")
    assert [one.name for one in found] == ["unhealthy-gpu-a"]
    assert going(found, ["a"], everything=False) == found
    assert going(found, ["b"], everything=False) == []
    assert ours([ours_too], "v1", "Secret") == []
    recovered: Json = {"metadata": {"name": "unhealthy-gpu-a", "namespace": "kube-system"}}
    assert ours([recovered], "v1", "ConfigMap") == found
    assert ours([{**recovered, "data": {"gpus": "0"}}], "v1", "ConfigMap") == []


def test_of_one_node_only_its_own_objects_go() -> None:
    found = [
        Named("v1", "ServiceAccount", "kube-system", f"gpushare-{name}") for name in ("extender", "device-plugin-a", "device-plugin-ab")
    ]
    assert [one.name for one in going(found, ["a"], everything=False)] == ["gpushare-device-plugin-a"]
    assert going(found, ["a"], everything=True) == found


def test_a_node_is_in_use_while_kubelet_offers_what_the_plugin_serves() -> None:
    gpus = {"gpushare/gpus": "{}"}
    assert traces(node(gpus, allocatable={"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "2"})).in_use
    assert not traces(node(gpus, allocatable={"aliyun.com/gpu-mem": "0"})).in_use
    assert not traces(node(gpus)).in_use
    assert not traces(node(allocatable={"aliyun.com/gpu-mem": "32"})).in_use


def test_resources_go_once_kubelet_says_a_capacity_of_zero_and_only_then() -> None:
    assert forgotten(traces(node()))
    assert not forgotten(traces(node(capacity={"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "0"})))
    gone = traces(node(capacity={"aliyun.com/gpu-mem": "0"}, allocatable={"aliyun.com/gpu-mem": "0"}))
    assert forgotten(gone)
    assert cluster.status_patch(gone) == [
        {"op": "test", "path": "/status/capacity/aliyun.com~1gpu-mem", "value": "0"},
        {"op": "remove", "path": "/status/capacity/aliyun.com~1gpu-mem"},
        {"op": "test", "path": "/status/allocatable/aliyun.com~1gpu-mem", "value": "0"},
        {"op": "remove", "path": "/status/allocatable/aliyun.com~1gpu-mem"},
    ]


@pytest.mark.parametrize("resource", cluster.RESOURCES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_pods_with_a_share_are_found(resource: str, kind: str) -> None:
    assert gpu_pods([pod("a", {resource: "1"}, kind=kind)], None) == [{"pod": "default/a", "node": "gpu1", "asks": resource}]


def test_every_list_that_is_asked_for_and_what_is_in_it() -> None:
    system, rbac = "namespaces/kube-system", "/apis/rbac.authorization.k8s.io/v1"
    assert [(path, kind) for path, _version, kind in cluster.KINDS] == [
        ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        ("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
        ("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
        ("/apis/security.openshift.io/v1/securitycontextconstraints", "SecurityContextConstraints"),
        ("/apis/node.k8s.io/v1/runtimeclasses", "RuntimeClass"),
        ("/apis/resource.k8s.io/v1/deviceclasses", "DeviceClass"),
        (f"{rbac}/clusterrolebindings", "ClusterRoleBinding"),
        (f"{rbac}/{system}/rolebindings", "RoleBinding"),
        (f"{rbac}/clusterroles", "ClusterRole"),
        (f"{rbac}/{system}/roles", "Role"),
        (f"{rbac}/namespaces/kube-public/rolebindings", "RoleBinding"),
        (f"{rbac}/namespaces/kube-public/roles", "Role"),
        ("/api/v1/namespaces/kube-public/configmaps", "ConfigMap"),
        (f"/api/v1/{system}/secrets", "Secret"),
        (f"/api/v1/{system}/configmaps", "ConfigMap"),
        (f"/api/v1/{system}/serviceaccounts", "ServiceAccount"),
    ]
    assert all(path.startswith((f"/apis/{version}/", f"/api/{version}/")) for path, version, _kind in cluster.KINDS)


def test_of_several_managers_ours_must_be_one_that_applied() -> None:
    mixed = item("gpushare-a", "kubectl", "Apply")
    mixed["metadata"]["managedFields"].append({"manager": "gpushare.kubernetes", "operation": "Update"})
    assert ours([mixed], "v1", "Secret") == []
    mixed["metadata"]["managedFields"].append({"manager": "gpushare.kubernetes", "operation": "Apply"})
    assert [one.name for one in ours([mixed], "v1", "Secret")] == ["gpushare-a"]
    nobody: Json = {"metadata": {"name": "gpushare-a", "managedFields": None}}
    assert ours([nobody], "v1", "Secret") == []
    everywhere: Json = {"metadata": {"name": "gpushare-a", "managedFields": [{"manager": "gpushare.kubernetes", "operation": "Apply"}]}}
    (found,) = ours([everywhere], "v1", "ClusterRole")
    assert (found.namespace, found.title, found.reference()["metadata"]) == ("", "ClusterRole gpushare-a", {"name": "gpushare-a"})
    assert Named("v1", "Secret", "kube-system", "x").title == "Secret kube-system/x"
    empty: Json = {"metadata": {"name": "unhealthy-gpu-a", "managedFields": None}, "data": {}}
    assert [one.name for one in ours([empty], "v1", "ConfigMap")] == ["unhealthy-gpu-a"]


def test_a_node_with_several_claims_and_one_with_nothing() -> None:
    claims = [
        {
            "manager": "gpushare.kubernetes",
            "operation": "Apply",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:gpushare.kubernetes/node": {}, "f:b": {}, ".": {}}}},
        },
        {"manager": "gpushare.kubernetes", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}},
        {"manager": "gpushare.kubernetes", "operation": "Apply", "fieldsV1": None},
        {"manager": "gpushare.kubernetes", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": None}}},
        {"manager": "gpushare.kubernetes", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {"f:c": {}}}}},
        {"manager": "gpushare.kubernetes", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:d": {}}}}},
    ]
    notes = {"gpushare/held": "{}", "gpushare/z": "1", "gpushare/gpus": "{}", "gpushare/a": "1", "notgpushare/x": "1"}
    capacity = {"aliyun.com/gpu-mem": 32, "aliyun.com/gpu-core.percentage": "200", "aliyun.com/gpu-count": "2"}
    labels = {"gpushare.kubernetes/node": "true"}
    assert traces(node(notes, capacity, {"aliyun.com/gpu-mem": "0"}, labels=labels, managedFields=claims)) == (
        "gpu1",
        ("a", "b", "gpushare.kubernetes/node"),
        False,
        ("gpushare/gpus", "gpushare/held"),
        {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-core.percentage": "200", "aliyun.com/gpu-count": "2"},
        {"aliyun.com/gpu-mem": "0"},
        ("gpushare/a", "gpushare/z"),
        False,
    )
    nothing = ("gpu1", (), False, (), {}, {}, (), False)
    assert traces({"metadata": {"name": "gpu1"}}) == nothing
    none = {"annotations": None, "labels": None, "managedFields": None}
    assert traces({"metadata": {"name": "gpu1", **none}, "status": {"capacity": None, "allocatable": None}}) == nothing
    assert traces({"metadata": {"name": "gpu1", "labels": {"other": "x"}}, "status": None}) == nothing


def test_pods_are_listed_by_node_with_all_that_they_ask_for() -> None:
    both = {"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-core.percentage": "10", "cpu": "1"}
    limits = pod("z", both, on="gpu1")
    requests: Json = {
        "metadata": {"name": "a"},
        "spec": {
            "nodeName": "gpu2",
            "containers": [{"name": "x"}, {"resources": {"limits": None, "requests": {"aliyun.com/gpu-count": "1"}}}],
        },
    }
    plain: Json = {"metadata": {"name": "n"}, "spec": {"nodeName": "gpu1", "containers": None, "initContainers": None}, "status": {}}
    first = pod("b", {"aliyun.com/gpu-mem": "1"}, on="gpu1")
    pending: Json = {**first, "metadata": {"name": "c", "namespace": "ns"}, "status": {}}
    unplaced: Json = {**first, "spec": {key: value for key, value in first["spec"].items() if key != "nodeName"}}
    assert gpu_pods([requests, limits, plain, unplaced, first, pending], None) == [
        {"pod": "default/b", "node": "gpu1", "asks": "aliyun.com/gpu-mem"},
        {"pod": "default/z", "node": "gpu1", "asks": "aliyun.com/gpu-core.percentage, aliyun.com/gpu-mem"},
        {"pod": "ns/c", "node": "gpu1", "asks": "aliyun.com/gpu-mem"},
        {"pod": "/a", "node": "gpu2", "asks": "aliyun.com/gpu-count"},
    ]
    ended = [{**first, "status": {"phase": phase}} for phase in ("Succeeded", "Failed")]
    assert gpu_pods([*ended, limits], {"gpu1"}) == gpu_pods([limits], None)
    assert gpu_pods([limits, requests], {"gpu2"}) == gpu_pods([requests], None)


class Api:
    """An API server by kubectl's arguments. zero_after: how often kubelet still claims the resources after the plugin has gone."""

    def __init__(self, nodes: list[Json], accounts: list[str], zero_after: int = 0, policies: bool = True) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.accounts = accounts
        self.zero_after = zero_after
        self.policies = policies
        self.calls: list[list[str]] = []
        self.sent: list[Json] = []

    def text(self, args: list[str], data: str | None = None) -> str:
        if args[:2] != ["get", "--raw"]:
            self.calls.append(args)
        if data:
            self.sent.append(json.loads(data))
        if args[:2] == ["get", "--raw"]:
            return json.dumps({"items": self.listed(args[2])})
        if args[0] == "delete":
            going = {one["metadata"]["name"] for one in json.loads(data or "{}")["items"]}
            self.accounts = [name for name in self.accounts if name not in going]
        if args[0] == "patch" and args[3] == "--type=json":
            unchanged, change = json.loads(args[-1].removeprefix("--patch="))
            assert unchanged["value"] == self.nodes[args[2]]["metadata"]["resourceVersion"]
            self.nodes[args[2]]["spec"]["taints"] = change["value"]
        elif args[0] == "patch":
            status = self.nodes[args[2]]["status"]
            for one in json.loads(args[-1]):
                _empty, _status, part, name = one["path"].split("/")
                name = name.replace("~1", "/")
                if one["op"] == "test" and status[part][name] != one["value"]:
                    raise KubectlError("failed", "The request is invalid: testing path failed")
                if one["op"] == "remove":
                    del status[part][name]
        if args[0] == "annotate":
            for key in args[3:]:
                del self.nodes[args[2]]["metadata"]["annotations"][key[:-1]]
        if args[0] == "apply":
            self.nodes[json.loads(data or "")["metadata"]["name"]]["metadata"].update(labels={}, managedFields=[])
        return ""

    def json(self, args: list[str]) -> Json:
        return self.nodes[args[2]]

    def listed(self, path: str) -> list[Json]:
        if path == "/api/v1/nodes":
            self.zero_after -= 1
            if self.zero_after < 0:
                for one in self.nodes.values():
                    one["status"]["capacity"].update({key: "0" for key in one["status"]["capacity"] if "aliyun" in key})
            return list(self.nodes.values())
        if "admissionregistration" in path and not self.policies:
            raise KubectlError("failed", "Error from server (NotFound): the server could not find the requested resource")
        return [item(name) for name in self.accounts] if path.endswith("serviceaccounts") else []


@pytest.fixture
def removal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Removal]:
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.0)

    def run(api: Api, nodes: list[str], everything: bool = True, wait: float = 5.0) -> Removal:
        return Removal(api, nodes, everything, wait)  # type: ignore[arg-type]

    return run


def served(name: str, capacity: str = "32") -> Json:
    found = node({"gpushare/gpus": "{}"}, {"aliyun.com/gpu-mem": capacity}, {"aliyun.com/gpu-mem": capacity}, managedFields=APPLIED)
    found["metadata"].update(name=name, labels={"gpushare.kubernetes/node": "true"})
    return found


ACCOUNTS = ["gpushare-extender", "gpushare-device-plugin-gpu1"]


def test_everything_goes_and_kubelet_is_waited_for(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0")], ACCOUNTS)
    api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] = "32"
    api.zero_after = 3
    found = removal(api, ["gpu1"])
    predicted = list(found.removed)
    found.apply()
    assert found.removed == predicted
    assert predicted[-3:] == [
        "label gpushare.kubernetes/node of node gpu1",
        "annotation gpushare/gpus of node gpu1",
        "resource aliyun.com/gpu-mem of node gpu1",
    ]
    assert (api.accounts, found.left) == ([], [])
    assert api.nodes["gpu1"]["status"] == {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}
    again = removal(api, ["gpu1"])
    assert (again.removed, again.left) == ([], [])


def test_our_taint_goes_with_the_node_and_those_of_others_stay(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0"), served("gpu2", "0")], [])
    theirs, ours = {"key": "gpu", "effect": "NoSchedule"}, {"key": "gpushare.kubernetes/gpu", "effect": "PreferNoSchedule"}
    for one in api.nodes.values():
        one["metadata"]["resourceVersion"], one["spec"] = "7", {"taints": [ours, theirs]}
    found = removal(api, ["gpu1"])
    assert "taint gpushare.kubernetes/gpu of node gpu1" in found.removed
    found.apply()
    assert [one["spec"]["taints"] for one in api.nodes.values()] == [[theirs], [ours, theirs]]
    assert removal(api, ["gpu1"]).removed == []


def test_without_waiting_it_is_left_to_the_next_run(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1")], ACCOUNTS, zero_after=2)
    found = removal(api, ["gpu1"], wait=0)
    assert [one["what"] for one in found.left] == ["resource aliyun.com/gpu-mem of node gpu1"]
    found.apply()
    assert len(found.left) == 1
    assert api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] == "32"
    again = removal(api, ["gpu1"], wait=0)
    assert again.removed == ["resource aliyun.com/gpu-mem of node gpu1"]


def test_from_a_dead_node_the_resources_go_at_once_with_the_numbers_that_were_read() -> None:
    api = Api([served("gpu1")], ACCOUNTS, zero_after=10**9)
    found = Removal(api, ["gpu1"], False, 0, dead=True)  # type: ignore[arg-type]
    assert found.removed[-1] == "resource aliyun.com/gpu-mem of node gpu1"
    found.apply()
    assert api.nodes["gpu1"]["status"] == {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}
    assert [one["what"] for one in found.left] == ["ServiceAccount kube-system/gpushare-extender"]
    # A kubelet that comes back in between wins.
    api = Api([served("gpu1")], [], zero_after=10**9)
    found = Removal(api, ["gpu1"], False, 0, dead=True)  # type: ignore[arg-type]
    stale = traces(json.loads(json.dumps(api.nodes["gpu1"])))
    api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] = "16"
    assert not found.forget(stale)
    assert api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] == "16"


def test_what_another_node_uses_stays_although_everything_was_asked_for(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0"), served("gpu2")], [*ACCOUNTS, "gpushare-device-plugin-gpu2"], zero_after=10**9)
    found = removal(api, ["gpu1"])
    found.apply()
    assert api.nodes["gpu1"]["status"] == {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}
    assert api.accounts == ["gpushare-extender", "gpushare-device-plugin-gpu2"]
    assert all("gpu2" in one["why"] for one in found.left)
    assert api.nodes["gpu2"]["metadata"]["labels"] == {"gpushare.kubernetes/node": "true"}


def test_an_api_server_without_admission_policies_is_fine(removal: Callable[..., Removal]) -> None:
    assert removal(Api([], ACCOUNTS, policies=False), []).removed == [f"ServiceAccount kube-system/{name}" for name in ACCOUNTS]


def test_each_call_of_kubectl_and_none_that_is_not_needed(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0"), served("gpu2")], ["gpushare-device-plugin-gpu1"])
    removal(api, ["gpu1"]).apply()
    assert [call[:-1] if call[0] == "patch" else call for call in api.calls] == [
        ["delete", "--ignore-not-found", "-f", "-"],
        ["apply", "--server-side", "--field-manager=gpushare.kubernetes", "-f", "-"],
        ["annotate", "node", "gpu1", "gpushare/gpus-"],
        ["patch", "node", "gpu1", "--subresource=status", "--type=json", "-p"],
    ]
    account = {"name": "gpushare-device-plugin-gpu1", "namespace": "kube-system"}
    assert api.sent[0]["items"] == [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}]
    assert api.sent[1] == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu1"}}
    api.calls.clear()
    removal(api, ["gpu1"]).apply()
    removal(api, ["gone"]).apply()
    assert api.calls == []


def test_why_something_stays_is_said(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0"), served("gpu2"), served("gpu3")], [*ACCOUNTS, "gpushare-device-plugin-gpu2"], zero_after=10**9)
    labelled = api.nodes["gpu1"]["metadata"]
    labelled.update(managedFields=[], annotations={"gpushare/cordon": "0", "x": "y"})
    found = removal(api, ["gpu1"])
    assert found.removed == ["ServiceAccount kube-system/gpushare-device-plugin-gpu1", "resource aliyun.com/gpu-mem of node gpu1"]
    # gpu3 offers GPUs as well, but has no account of ours any more.
    assert found.left == [
        {"what": "ServiceAccount kube-system/gpushare-extender", "why": "other hosts still use it: gpu2"},
        {"what": "ServiceAccount kube-system/gpushare-device-plugin-gpu2", "why": "other hosts still use it: gpu2"},
        {"what": "label gpushare.kubernetes/node of node gpu1", "why": "this collection has not set it"},
        {"what": "annotation gpushare/cordon of node gpu1", "why": "this collection does not set it"},
    ]
    few = removal(Api([served("gpu1", "0")], ACCOUNTS), ["gpu1"], everything=False)
    assert few.left == [{"what": "ServiceAccount kube-system/gpushare-extender", "why": "other hosts still use it; uninstall them, too"}]
    idle = Api([served("gpu1", "0"), served("gpu2", "0")], [*ACCOUNTS, "gpushare-device-plugin-gpu2"])
    assert removal(idle, ["gpu1"]).left == []


def test_kubelet_is_asked_again_after_a_pause_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [100.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(cluster.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(cluster.time, "sleep", sleep)
    found = Removal(Api([served("gpu1")], ACCOUNTS, zero_after=10**9), ["gpu1"], True, 5.0)  # type: ignore[arg-type]
    found.apply()
    assert pauses == [2.0, 2.0, 2.0]
    assert [one["what"] for one in found.left] == ["resource aliyun.com/gpu-mem of node gpu1"]
    assert "resource aliyun.com/gpu-mem of node gpu1" not in found.removed
    pauses.clear()
    Removal(Api([served("gpu1")], ACCOUNTS, zero_after=10**9), ["gpu1"], True, 4.0).apply()  # type: ignore[arg-type]
    assert pauses == [2.0, 2.0, 2.0], "the deadline itself is still in time"
    pauses.clear()
    api = Api([served("gpu1", "0")], ACCOUNTS, zero_after=2)
    api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] = "32"
    Removal(api, ["gpu1"], True, 60.0).apply()  # type: ignore[arg-type]
    assert pauses == [2.0]


def test_what_only_the_allocatable_resources_still_name_goes_as_well(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0")], ACCOUNTS)
    del api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"]
    removal(api, ["gpu1"]).apply()
    assert api.nodes["gpu1"]["status"]["allocatable"] == {"cpu": "2"}


@pytest.mark.parametrize("words", ["testing path /status failed", "the test operation failed"])
def test_a_resource_that_comes_back_meanwhile_stays(removal: Callable[..., Removal], words: str) -> None:
    api = Api([served("gpu1", "0")], ACCOUNTS)
    real = api.text

    def text(args: list[str], data: str | None = None) -> str:
        if args[0] == "patch":
            raise KubectlError(words, words)
        return real(args, data)

    api.text = text  # type: ignore[method-assign]
    found = removal(api, ["gpu1"], wait=0.01)
    found.apply()
    assert [one["what"] for one in found.left] == ["resource aliyun.com/gpu-mem of node gpu1"]
    words = "Forbidden"
    with pytest.raises(KubectlError, match="Forbidden"):
        removal(api, ["gpu1"]).remove_resources()


@pytest.mark.parametrize(
    ("group", "words"),
    [("admissionregistration", "Unable to connect to the server"), ("clusterroles", "Error from server (NotFound): x")],
    ids=["a group that may be missing and does not answer", "a group that must be there"],
)
def test_an_api_group_that_fails_is_not_taken_for_one_without_objects(group: str, words: str) -> None:
    api = Api([], [])
    real = api.listed

    def listed(path: str) -> list[Json]:
        if group in path:
            raise KubectlError(words, words)
        return real(path)

    api.listed = listed  # type: ignore[method-assign]
    with pytest.raises(KubectlError, match=words.partition("(")[0]):
        Removal(api, [], True, 0.0)  # type: ignore[arg-type]


# The original's device plugin, which serves the memory under the same name.

MEMORY, GPUS, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"


def given_back(capacity: Json, allocatable: Json) -> Json:
    found = node({"gpushare/gpus": "{}"}, capacity, allocatable, managedFields=APPLIED)
    found["metadata"]["labels"] = {"gpushare.kubernetes/node": "true", "gpushare": "true"}
    return found


def numbers(api: Api) -> tuple[Json, Json]:
    status = api.nodes["gpu1"]["status"]
    return ({k: v for k, v in status[part].items() if k != "cpu"} for part in ("capacity", "allocatable"))  # type: ignore[return-value]


def test_where_the_original_serves_again_only_what_kubelet_has_let_go_of_ours_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.0)
    api = Api([given_back({MEMORY: "32", GPUS: "2", CORE: "200"}, {MEMORY: "32", GPUS: "2", CORE: "200"})], ACCOUNTS, zero_after=10**9)

    def run(wait: float) -> Removal:
        return Removal(api, ["gpu1"], True, wait, others=["gpu1"])  # type: ignore[arg-type]

    ours_of = [f"resource {resource} of node gpu1" for resource in (CORE, GPUS)]
    found = run(0.01)
    assert found.removed[-2:] == ours_of
    # kubelet has not yet told the API server that our device plugin has ended.
    found.apply()
    assert [one["what"] for one in found.left] == ours_of
    api.nodes["gpu1"]["status"]["allocatable"].update({GPUS: "0", CORE: "0"})
    again = run(0.01)
    assert again.removed == ours_of
    again.apply()
    assert [one["what"] for one in again.left] == ours_of

    # Minutes later: what the original does not know goes, and the number of GPUs is its own to write.
    api.nodes["gpu1"]["status"]["capacity"].update({GPUS: "0", CORE: "0"})
    third = run(5.0)
    assert (third.removed, third.left) == (ours_of[:1], [])
    third.apply()
    assert third.left == []
    assert tuple(numbers(api)) == ({MEMORY: "32", GPUS: "0"}, {MEMORY: "32", GPUS: "0"})
    for part in ("capacity", "allocatable"):
        api.nodes["gpu1"]["status"][part][GPUS] = "2"
    for wait in (0.0, 5.0):
        assert (run(wait).removed, run(wait).left) == ([], [])


def test_where_the_original_does_not_serve_nothing_of_it_is_spared(removal: Callable[..., Removal]) -> None:
    api = Api([given_back({MEMORY: "0", GPUS: "0"}, {MEMORY: "0", GPUS: "0"})], ACCOUNTS)
    removal(api, ["gpu1"]).apply()
    assert tuple(numbers(api)) == ({}, {})


def test_where_another_back_end_comes_the_nodes_keep_labels_and_taints() -> None:
    api = Api([served("gpu1", "0")], ACCOUNTS)
    taint = {"key": "gpushare.kubernetes/gpu", "effect": "PreferNoSchedule"}
    api.nodes["gpu1"]["metadata"]["resourceVersion"], api.nodes["gpu1"]["spec"] = "7", {"taints": [taint]}
    found = Removal(api, ["gpu1"], True, 0, reinstalls=True)  # type: ignore[arg-type]
    found.apply()
    assert [title.split()[0] for title in found.removed] == ["ServiceAccount", "ServiceAccount", "annotation", "resource"]
    assert (found.left, api.accounts) == ([], [])
    assert api.nodes["gpu1"]["metadata"]["labels"] == {"gpushare.kubernetes/node": "true"}
    assert api.nodes["gpu1"]["spec"]["taints"] == [taint]


@pytest.mark.parametrize("name", ["gpushare-scheduler", "gpushare-claims"])
def test_the_role_by_which_the_next_run_continues_goes_last(name: str) -> None:
    class WithRoles(Api):
        def listed(self, path: str) -> list[Json]:
            found = {"clusterroles": [name, "gpushare-device-plugin"], "clusterrolebindings": [name]}.get(path.rpartition("/")[2])
            return super().listed(path) if found is None else [item(one) for one in found]

    api = WithRoles([served("gpu1", "0")], ACCOUNTS)
    Removal(api, ["gpu1"], True, 0).apply()  # type: ignore[arg-type]
    assert [call[0] for call in api.calls] == ["delete", "apply", "annotate", "patch", "delete"]
    first, last = ([(one["kind"], one["metadata"]["name"]) for one in sent["items"]] for sent in (api.sent[0], api.sent[-1]))
    assert last == [("ClusterRole", name)]
    assert ("ClusterRoleBinding", name) in first
    assert ("ClusterRole", "gpushare-device-plugin") in first

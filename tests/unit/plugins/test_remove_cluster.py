# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which objects of a cluster are ours, which go now, and which pods would miss them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _remove_cluster, _remove_objects
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._remove_cluster import Named, forgotten, going, gpu_pods, ours, traces
from ansible_collections.gpushare.kubernetes.plugins.module_utils._remove_objects import Removal

Json = dict[str, Any]
APPLIED = [
    {
        "manager": "gpushare.kubernetes",
        "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:gpushare": {}}}},
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


def test_a_map_of_unhealthy_cards_is_ours_where_only_our_plugin_has_written_it() -> None:
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


def test_policies_go_before_the_rights_that_they_restrict_and_accounts_last() -> None:
    kinds = [kind for _path, _version, kind in _remove_cluster.KINDS]
    assert kinds[0] == "ValidatingAdmissionPolicyBinding"
    assert kinds.index("ValidatingAdmissionPolicy") < kinds.index("ClusterRoleBinding") < kinds.index("ClusterRole")
    assert kinds[-1] == "ServiceAccount"


def test_a_reference_is_enough_to_delete() -> None:
    assert Named("v1", "Secret", "kube-system", "gpushare-x").reference() == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "gpushare-x", "namespace": "kube-system"},
    }
    assert Named("rbac.authorization.k8s.io/v1", "ClusterRole", "", "gpushare-x").title == "ClusterRole gpushare-x"


def test_the_traces_of_a_node() -> None:
    found = traces(
        node(
            {"gpushare/cards": "{}", "gpushare/cordon": "0", "x": "y"},
            {"aliyun.com/gpu-mem": "32", "aliyun.com/other": "1"},
            {"aliyun.com/gpu-mem": "0"},
            labels={"gpushare": "true"},
            managedFields=APPLIED,
        )
    )
    assert (found.claimed, found.labelled_by_others) == (("gpushare",), False)
    assert (found.annotations, found.others) == (("gpushare/cards",), ("gpushare/cordon",))
    assert found.capacity == {"aliyun.com/gpu-mem": "32"}
    assert traces(node(labels={"gpushare": "true"})).labelled_by_others


def test_a_node_is_in_use_while_kubelet_offers_what_the_plugin_serves() -> None:
    cards = {"gpushare/cards": "{}"}
    assert traces(node(cards, allocatable={"aliyun.com/gpu-mem": "32"})).in_use
    assert not traces(node(cards, allocatable={"aliyun.com/gpu-mem": "0"})).in_use
    assert not traces(node(allocatable={"aliyun.com/gpu-mem": "32"})).in_use


def test_resources_go_once_kubelet_says_a_capacity_of_zero_and_only_then() -> None:
    assert not forgotten(traces(node(capacity={"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "0"})))
    gone = traces(node(capacity={"aliyun.com/gpu-mem": "0"}, allocatable={"aliyun.com/gpu-mem": "0"}))
    assert forgotten(gone)
    assert _remove_cluster.status_patch(gone) == [
        {"op": "test", "path": "/status/capacity/aliyun.com~1gpu-mem", "value": "0"},
        {"op": "remove", "path": "/status/capacity/aliyun.com~1gpu-mem"},
        {"op": "test", "path": "/status/allocatable/aliyun.com~1gpu-mem", "value": "0"},
        {"op": "remove", "path": "/status/allocatable/aliyun.com~1gpu-mem"},
    ]


@pytest.mark.parametrize("resource", _remove_cluster.RESOURCES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_pods_with_a_share_are_found(resource: str, kind: str) -> None:
    assert gpu_pods([pod("a", {resource: "1"}, kind=kind)], None) == [{"pod": "default/a", "node": "gpu1", "asks": resource}]


def test_pods_that_would_miss_nothing_are_not_listed() -> None:
    share = {"aliyun.com/gpu-mem": "1"}
    pods = [
        pod("no-gpu", {"cpu": "1"}),
        pod("other-gpu", {"nvidia.com/gpu": "1"}),
        pod("pending", share, on=None),
        pod("ended", share, phase="Succeeded"),
        pod("failed", share, phase="Failed"),
        pod("elsewhere", share, on="gpu2"),
    ]
    assert gpu_pods(pods, {"gpu1"}) == []
    assert [one["pod"] for one in gpu_pods(pods, None)] == ["default/elsewhere"]


class Api:
    """An API server by kubectl's arguments. zero_after: how often kubelet still claims the resources after the plugin has gone."""

    def __init__(self, nodes: list[Json], accounts: list[str], zero_after: int = 0, policies: bool = True) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.accounts = accounts
        self.zero_after = zero_after
        self.policies = policies
        self.calls: list[list[str]] = []

    def text(self, args: list[str], data: str | None = None) -> str:
        if args[:2] != ["get", "--raw"]:
            self.calls.append([args[0], *json.loads(data or "{}").get("items", [])])
        if args[:2] == ["get", "--raw"]:
            return json.dumps({"items": self.listed(args[2])})
        if args[0] == "delete":
            going = {one["metadata"]["name"] for one in json.loads(data or "{}")["items"]}
            self.accounts = [name for name in self.accounts if name not in going]
        if args[0] == "patch":
            status = self.nodes[args[2]]["status"]
            for one in json.loads(args[-1]):
                _empty, _status, part, name = one["path"].split("/")
                name = name.replace("~1", "/")
                if one["op"] == "test" and status[part][name] != one["value"]:
                    raise KubectlError("The request is invalid: testing path failed")
                if one["op"] == "remove":
                    del status[part][name]
        if args[0] == "annotate":
            for key in args[3:]:
                del self.nodes[args[2]]["metadata"]["annotations"][key[:-1]]
        if args[0] == "apply":
            self.nodes[json.loads(data or "")["metadata"]["name"]]["metadata"].update(labels={}, managedFields=[])
        return ""

    def listed(self, path: str) -> list[Json]:
        if path == "/api/v1/nodes":
            self.zero_after -= 1
            if self.zero_after < 0:
                for one in self.nodes.values():
                    one["status"]["capacity"].update({key: "0" for key in one["status"]["capacity"] if "aliyun" in key})
            return list(self.nodes.values())
        if "admissionregistration" in path and not self.policies:
            raise KubectlError("Error from server (NotFound): the server could not find the requested resource")
        return [item(name) for name in self.accounts] if path.endswith("serviceaccounts") else []


@pytest.fixture
def removal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Removal]:
    monkeypatch.setattr(_remove_objects, "POLL_SECONDS", 0.0)

    def run(api: Api, nodes: list[str], everything: bool = True, wait: float = 5.0) -> Removal:
        return Removal(api, nodes, everything, wait)  # type: ignore[arg-type]

    return run


def served(name: str, capacity: str = "32") -> Json:
    found = node({"gpushare/cards": "{}"}, {"aliyun.com/gpu-mem": capacity}, {"aliyun.com/gpu-mem": capacity}, managedFields=APPLIED)
    found["metadata"].update(name=name, labels={"gpushare": "true"})
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
        "label gpushare of node gpu1",
        "annotation gpushare/cards of node gpu1",
        "resource aliyun.com/gpu-mem of node gpu1",
    ]
    assert (api.accounts, found.left) == ([], [])
    assert api.nodes["gpu1"]["status"] == {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}
    again = removal(api, ["gpu1"])
    assert (again.removed, again.left) == ([], [])


def test_a_kubelet_that_does_not_let_go_in_time_is_reported(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1")], ACCOUNTS, zero_after=10**9)
    found = removal(api, ["gpu1"], wait=0.01)
    found.apply()
    assert [one["what"] for one in found.left] == ["resource aliyun.com/gpu-mem of node gpu1"]
    assert "resource aliyun.com/gpu-mem of node gpu1" not in found.removed
    assert api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] == "32"


def test_without_waiting_it_is_left_to_the_next_run(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1")], ACCOUNTS, zero_after=2)
    found = removal(api, ["gpu1"], wait=0)
    assert [one["what"] for one in found.left] == ["resource aliyun.com/gpu-mem of node gpu1"]
    found.apply()
    assert len(found.left) == 1
    assert api.nodes["gpu1"]["status"]["capacity"]["aliyun.com/gpu-mem"] == "32"
    again = removal(api, ["gpu1"], wait=0)
    assert again.removed == ["resource aliyun.com/gpu-mem of node gpu1"]


def test_what_another_node_uses_stays_although_everything_was_asked_for(removal: Callable[..., Removal]) -> None:
    api = Api([served("gpu1", "0"), served("gpu2")], [*ACCOUNTS, "gpushare-device-plugin-gpu2"], zero_after=10**9)
    found = removal(api, ["gpu1"])
    found.apply()
    assert api.accounts == ["gpushare-extender", "gpushare-device-plugin-gpu2"]
    assert all("gpu2" in one["why"] for one in found.left)
    assert api.nodes["gpu2"]["metadata"]["labels"] == {"gpushare": "true"}


def test_an_api_server_without_admission_policies_is_fine_but_other_errors_are_not(removal: Callable[..., Removal]) -> None:
    assert removal(Api([], ACCOUNTS, policies=False), []).removed == [f"ServiceAccount kube-system/{name}" for name in ACCOUNTS]
    broken = Api([], [])
    broken.listed = lambda _path: (_ for _ in ()).throw(KubectlError("Unable to connect"))  # type: ignore[method-assign]
    with pytest.raises(KubectlError):
        removal(broken, [])

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify reads from the API, and the probe pods that it places: against a kubectl that remembers what it was asked."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _verify_cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._verify_probe import Probes, name, probe_pod, settled

from unit.plugins.verify_seen import node

Json = dict[str, Any]
MEMORY = "aliyun.com/gpu-mem"


def api_pod(name: str, *, memory: int = 0, node: str = "gpu1", **status: Any) -> Json:
    resources = {"limits": {MEMORY: str(memory)}} if memory else {}
    metadata = {"name": name, "namespace": "kube-system", "annotations": {"gpushare/recalled": "x", "note": "y"} if memory else {}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running", **status},
    }


RUNNING = {
    "containerStatuses": [{"name": "main", "containerID": "containerd://abc", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
}


class Api:
    """Answers kubectl's arguments from lists of pods: each `get pods` takes the next one, the last one for good."""

    def __init__(self, *lists: list[Json], page: int = 2) -> None:
        self.lists = list(lists)
        self.page = page
        self.asked: list[list[str]] = []
        self.sent: list[Json] = []

    def __call__(self, argv: list[str], data: str | None) -> tuple[int, str, str]:
        arguments = argv[4:]
        self.asked.append(arguments)
        if data:
            self.sent.append(json.loads(data))
        if arguments[:2] == ["get", "--raw"]:
            return 0, json.dumps(self._page(arguments[2])), ""
        if arguments[0] == "get":
            items = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            return 0, json.dumps({"kind": "List", "items": items}), ""
        return 0, "", ""

    def _page(self, url: str) -> Json:
        query = parse_qs(urlsplit(url).query)
        start = int(query.get("continue", ["0"])[0])
        items = self.lists[0][start : start + self.page]
        more = start + self.page < len(self.lists[0])
        return {"items": items, "metadata": {"continue": str(start + self.page)} if more else {}}


def kubectl(api: Api) -> Kubectl:
    return Kubectl(api, "/usr/bin/kubectl", "/admin.conf")


def test_pods_come_in_pages_and_only_those_that_concern_us() -> None:
    api = Api([api_pod("a", memory=2, **RUNNING), api_pod("b"), api_pod("c"), api_pod("d", memory=1), api_pod("e")])
    found = _verify_cluster.pods(kubectl(api))
    assert [one["name"] for one in found] == ["a", "d"]
    assert len(api.asked) == 3
    assert found[0]["containers"] == [{"index": 0, "name": "main", "units": 2, "cards": 0, "privileged": False}]
    assert found[0]["running"] == [{"name": "main", "id": "abc", "started": 1767225600.0}]
    assert found[0]["annotations"] == {"gpushare/recalled": "x"}


def test_init_containers_count_down_from_minus_one() -> None:
    item = api_pod("a", memory=2)
    item["spec"]["initContainers"] = [{"name": "first"}, {"name": "second", "securityContext": {"privileged": True}}]
    containers = {one["name"]: (one["index"], one["privileged"]) for one in _verify_cluster.pod(item)["containers"]}
    assert containers == {"main": (0, False), "first": (-1, False), "second": (-2, True)}


def test_nodes_of_these_names_cut_down() -> None:
    item = {
        "metadata": {"name": "gpu1", "labels": {"gpushare": "true"}, "annotations": {"gpushare/cards": "{}", "other": "x"}},
        "status": {
            "capacity": {"cpu": "4", MEMORY: "32"},
            "conditions": [{"type": "Ready", "status": "True", "message": "m"}, {"type": "DiskPressure", "status": "False"}],
        },
    }
    (found,) = _verify_cluster.nodes(kubectl(Api([item, {"metadata": {"name": "other"}}])), ["gpu1"])
    assert found["metadata"]["annotations"] == {"gpushare/cards": "{}"}
    assert found["status"] == {"capacity": {MEMORY: "32"}, "allocatable": {}, "conditions": [{"type": "Ready", "status": "True"}]}
    assert _verify_cluster.nodes(kubectl(Api([])), []) == []


def test_a_node_has_settled_once_kubelet_offers_what_is_published() -> None:
    assert _verify_cluster.settled(node())
    for change in ({"allocatable": {MEMORY: "0"}}, {"conditions": [{"type": "Ready", "status": "Unknown"}]}):
        unsettled = node()
        unsettled["status"].update(change)
        assert not _verify_cluster.settled(unsettled)
    bare = node()
    bare["metadata"]["annotations"].clear()
    assert not _verify_cluster.settled(bare)


def test_a_probe_pod_may_go_to_one_node_only_whatever_taints_it_has() -> None:
    pod = probe_pod("gpu1", "pause:3", MEMORY, "default-scheduler")
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    (container,) = pod["spec"]["containers"]
    assert (container["resources"], container["imagePullPolicy"]) == ({"limits": {MEMORY: "1"}}, "Never")
    assert len(name("n" * 253)) <= 253


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def place(*lists: list[Json], timeout: float = 60) -> tuple[dict[str, Json | None], Clock, Api]:
    api, clock = Api(*lists), Clock()
    pods = [probe_pod("gpu1", "pause:3", MEMORY, "default-scheduler")]
    return Probes(kubectl(api), clock, clock.sleep).place(pods, timeout), clock, api


def waiting(reason: str) -> Json:
    return {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}]}


REFUSED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}


def test_probe_pods_are_waited_for_until_they_run() -> None:
    probe = name("gpu1")
    pending, running = api_pod(probe, phase="Pending"), api_pod(probe, memory=1, **RUNNING)
    found, clock, api = place([pending], [pending], [running])
    only = found[probe]
    assert only is not None
    assert only["running"]
    assert clock.now == 1.0
    assert [item["metadata"]["name"] for item in api.sent[0]["items"]] == [probe]


@pytest.mark.parametrize(("node", "status"), [("", REFUSED), ("gpu1", waiting("ErrImageNeverPull"))])
def test_a_refusal_that_lasts_is_not_waited_out(node: str, status: Json) -> None:
    found, clock, _api = place([api_pod(name("gpu1"), node=node, **status)])
    assert found[name("gpu1")] is not None
    assert 15 < clock.now < 20


def test_a_probe_pod_that_only_waits_has_the_whole_time_and_one_that_is_gone_none() -> None:
    _found, clock, _api = place([api_pod(name("gpu1"), phase="Pending")], timeout=40)
    assert 40 < clock.now < 42
    found, clock, _api = place([])
    assert (found, clock.now) == ({name("gpu1"): None}, 0.0)


def test_what_settles_at_once() -> None:
    assert settled(None, False)
    assert settled(_verify_cluster.pod(api_pod("p", phase="Failed")), False)
    assert not settled(_verify_cluster.pod(api_pod("p", **waiting("ErrImageNeverPull"))), False)
    assert not settled(_verify_cluster.pod(api_pod("p", **waiting("ContainerCreating"))), True)


def test_probe_pods_are_removed_only_where_there_are_any() -> None:
    api = Api([])
    assert Probes(kubectl(api)).remove(5) == []
    assert [arguments[0] for arguments in api.asked] == ["get"]
    api = Api([api_pod("gpushare-verify-gpu1")])
    assert Probes(kubectl(api)).remove(5) == ["gpushare-verify-gpu1"]
    assert api.asked[1][:2] == ["delete", "pods"]
    assert "gpushare.kubernetes/probe=verify" in api.asked[1]

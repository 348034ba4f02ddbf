# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify reads from the API, and the probe pods that it places: against a kubectl that remembers what it was asked."""

from __future__ import annotations

import copy
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.probes import Probes, changed, name, probe_pod, settled
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.proof import probe_pod as scheduler_probe

from unit.fakes.plugins.cluster.api_server import ApiServer, thing
from unit.fakes.plugins.verdict.evidence import mirror, node
from unit.golden import Golden

Json = dict[str, Any]
MEMORY = "aliyun.com/gpu-mem"


def api_pod(name: str, *, memory: int = 0, node: str = "gpu1", **status: Any) -> Json:
    resources = {"limits": {MEMORY: str(memory)}} if memory else {}
    metadata = {"name": name, "namespace": "kube-system", "annotations": {"gpushare/requeued": "x", "note": "y"} if memory else {}}
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
    found = cluster.pods(kubectl(api))
    assert [one["name"] for one in found] == ["a", "d"]
    assert len(api.asked) == 3
    assert found[0]["containers"] == [{"index": 0, "name": "main", "units": 2, "gpus": 0, "privileged": False}]
    assert found[0]["running"] == [{"name": "main", "id": "abc", "started": 1767225600.0}]
    assert found[0]["annotations"] == {"gpushare/requeued": "x"}


def test_the_server_leaves_out_pods_that_have_ended_and_pages_are_large() -> None:
    api = Api([])
    assert cluster.pods(kubectl(api)) == []
    address = urlsplit(api.asked[0][2])
    assert address.path == "/api/v1/pods"
    assert parse_qs(address.query) == {"limit": ["500"], "fieldSelector": ["status.phase!=Succeeded,status.phase!=Failed"]}
    nothing = Kubectl(lambda argv, data: (0, json.dumps({"items": None, "metadata": {}}), ""), "kubectl", "admin.conf")
    assert cluster.pods(nothing) == []


def asking(name: str, **parts: Any) -> Json:
    return {"metadata": {"name": name, "annotations": parts.pop("annotations", None)}, "spec": parts, "status": None}


GPU = {"name": "c", "resources": {"limits": {"aliyun.com/gpu-count": "1"}}}
NO_GPU = {"name": "n", "resources": {"limits": {"cpu": "500m", "aliyun.com/gpu-count": "0"}}}


def test_a_pod_is_ours_by_any_of_its_containers_resources_or_annotations() -> None:
    ours = [
        asking("gpus", containers=[NO_GPU, GPU]),
        asking("first", containers=[NO_GPU], initContainers=[{**GPU, "name": "init"}]),
        asking("only init", containers=None, initContainers=[GPU]),
        asking("requeued", containers=[NO_GPU], annotations={"note": "y", "gpushare/requeued": "x"}),
        asking("original", containers=[{"name": "n"}], annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}),
        asking("shared", containers=[NO_GPU], annotations={"scheduler.framework.gpushare.allocation": "{}"}),
    ]
    others = [
        asking("others", containers=[NO_GPU], annotations={"note": "y"}),
        asking("bare", containers=[{"name": "n", "resources": None}]),
        asking("odd", containers=[{"name": "n", "resources": {"limits": {MEMORY: "0.5"}}}, {"name": "m", "resources": {"limits": None}}]),
    ]
    found = cluster.pods(kubectl(Api([*others, *ours], page=4)))
    assert [one["name"] for one in found] == [one["metadata"]["name"] for one in ours]


def test_a_pod_with_everything_and_one_with_nothing_cut_down() -> None:
    item = {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u-1",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"gpushare.kubernetes/probe": "verify"},
            "annotations": {
                "gpushare/requeued": "x",
                "ALIYUN_COM_GPU_MEM_IDX": "1",
                "scheduler.framework.gpushare.allocation": "{}",
                "n": "y",
            },
        },
        "spec": {
            "nodeName": "gpu1",
            "schedulerName": "mine",
            # The API server writes 2000 as 2k.
            "containers": [{"name": "main", "resources": {"limits": {MEMORY: "2k", "aliyun.com/gpu-count": "2"}}}],
            "initContainers": [{"name": "first", "securityContext": {"privileged": True}}],
        },
        "status": {
            "phase": "Pending",
            "message": "out of disk",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}],
            "containerStatuses": [
                {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
                {"name": "other", "state": {"waiting": {"reason": "Creating"}}},
                {"name": "ended", "state": {"terminated": {}}},
                {"name": "new", "state": None},
            ],
            "initContainerStatuses": [
                {"name": "first", "containerID": "cri-o://def", "state": {"running": {"startedAt": "1970-01-01T00:01:40Z"}}},
                {"name": "odd", "state": {"running": {"startedAt": "1970-01-01T00:01:40.5Z"}}},
            ],
        },
    }
    assert cluster.pod(item) == {
        "namespace": "ns",
        "name": "p",
        "uid": "u-1",
        "node": "gpu1",
        "scheduler": "mine",
        "phase": "Pending",
        "message": "out of disk",
        "deleted": True,
        "probe": True,
        "annotations": {"gpushare/requeued": "x", "ALIYUN_COM_GPU_MEM_IDX": "1", "scheduler.framework.gpushare.allocation": "{}"},
        "containers": [
            {"index": 0, "name": "main", "units": 2000, "gpus": 2, "privileged": False},
            {"index": -1, "name": "first", "units": 0, "gpus": 0, "privileged": True},
        ],
        "running": [{"name": "first", "id": "def", "started": 100.0}, {"name": "odd", "id": "", "started": 100.5}],
        "waiting": ["ImagePullBackOff no such image", "Creating"],
        "scheduling": "0/1 nodes",
    }
    bare = {
        "namespace": "",
        "name": "p",
        "uid": "",
        "node": "",
        "scheduler": "",
        "phase": "",
        "message": "",
        "deleted": False,
        "probe": False,
        "annotations": {},
        "containers": [],
        "running": [],
        "waiting": [],
        "scheduling": "the scheduler has not tried it",
    }
    assert cluster.pod({"metadata": {"name": "p"}, "spec": {}}) == bare
    lists = {"containerStatuses": None, "initContainerStatuses": None}
    empty = {"metadata": {"name": "p", "labels": {"a": "b"}, "annotations": None}, "spec": {"containers": None}, "status": lists}
    assert cluster.pod(empty) == bare
    other = {"metadata": {"name": "p", "labels": {"gpushare.kubernetes/probe": "scheduler"}}, "spec": {}}
    assert cluster.pod(other)["probe"] is False


def test_init_containers_count_down_from_minus_one() -> None:
    item = api_pod("a", memory=2)
    item["spec"]["initContainers"] = [{"name": "first"}, {"name": "second", "securityContext": {"privileged": True}}]
    containers = {one["name"]: (one["index"], one["privileged"]) for one in cluster.pod(item)["containers"]}
    assert containers == {"main": (0, False), "first": (-1, False), "second": (-2, True)}


def test_nodes_of_these_names_cut_down() -> None:
    item = {
        "metadata": {"name": "gpu1", "labels": {"gpushare.kubernetes/node": "true"}, "annotations": {"gpushare/gpus": "{}", "other": "x"}},
        "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}]},
        "status": {
            "capacity": {"cpu": "4", MEMORY: "32"},
            "allocatable": {"cpu": "4", "pods": "0", MEMORY: "31", "aliyun.com/gpu-count": "2"},
            "conditions": [{"type": "Ready", "status": "True", "message": "m"}, {"type": "DiskPressure", "status": "False"}],
        },
    }
    found = cluster.nodes(kubectl(Api([item, {"metadata": {"name": "other"}}, {"metadata": {"name": "gpu2"}}])), ["gpu1", "gpu2"])
    assert found == [
        {
            "metadata": {"name": "gpu1", "labels": {"gpushare.kubernetes/node": "true"}, "annotations": {"gpushare/gpus": "{}"}},
            "cordoned": True,
            "nothing_of": ["pods"],
            "taints": ["a"],
            "status": {
                "capacity": {MEMORY: "32"},
                "allocatable": {MEMORY: "31", "aliyun.com/gpu-count": "2"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "m"}],
            },
        },
        {
            "metadata": {"name": "gpu2", "labels": {}, "annotations": {}},
            "cordoned": False,
            "nothing_of": [],
            "taints": [],
            "status": {"capacity": {}, "allocatable": {}, "conditions": []},
        },
    ]


def test_no_name_asks_for_no_node_few_for_each_and_many_for_all() -> None:
    for count, named in ((0, None), (1, True), (20, True), (21, False)):
        api, names = Api([]), [f"n{number:02}" for number in range(count)]
        assert cluster.nodes(kubectl(api), names[::-1]) == []
        command = ["get", "nodes", *(names if named else []), "--ignore-not-found", "-o", "json"]
        assert api.asked == ([] if named is None else [command])


NO_GPUS = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "0"}


def gpus_of(settling: Json, *healths: str) -> None:
    """Give the node's GPUs these healths."""
    content = json.loads(settling["metadata"]["annotations"]["gpushare/gpus"])
    for gpu, health in zip(content["gpus"], healths, strict=True):
        gpu["health"] = health
    settling["metadata"]["annotations"]["gpushare/gpus"] = json.dumps(content)


def test_a_node_has_settled_once_kubelet_offers_what_is_published() -> None:
    settling = node()
    assert cluster.settled(settling) is True
    ready, not_ready = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "Unknown"}
    settling["status"]["conditions"] = [not_ready, ready]
    assert cluster.settled(settling) is True
    changes: list[Json] = [{"allocatable": {MEMORY: "32"}}, {"allocatable": {**NO_GPUS, MEMORY: "32"}}, {"conditions": [not_ready]}]
    changes += [{"allocatable": {}}, {"allocatable": NO_GPUS}, {"conditions": []}]
    for change in changes:
        unsettled = node()
        unsettled["status"].update(change)
        assert cluster.settled(unsettled) is False
    gpus_of(settling, "ok", "Xid 79")
    assert cluster.settled(settling) is False
    settling["status"]["allocatable"] = {MEMORY: "16", "aliyun.com/gpu-count": "1"}
    assert cluster.settled(settling) is True
    gpus_of(settling, "Xid 79", "Xid 79")
    settling["status"]["allocatable"] = {}
    assert cluster.settled(settling) is True, "what kubelet does not know yet it does not offer"
    for unreadable in ({}, {"gpushare/gpus": "no JSON"}):
        bare = node()
        bare["metadata"]["annotations"] = unreadable
        assert cluster.settled(bare) is False


def test_the_schedulers_static_pod_of_each_node_cut_down() -> None:
    wanted = mirror()
    wanted["metadata"]["annotations"]["other"] = "x"
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    wanted["status"] = {
        "containerStatuses": [{"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}]
    }
    sidecars = [{"name": "sidecar", "command": ["/bin/sh"]}]
    item = copy.deepcopy(wanted)
    item["spec"]["containers"] = [*sidecars, {**item["spec"]["containers"][0], "args": ["--v=2"], "env": [{"name": "X"}]}]
    item["spec"]["volumes"][0]["hostPath"]["type"] = "Directory"
    item["spec"]["volumes"].append({"name": "token", "projected": {}})
    item["status"]["containerStatuses"][0] |= {"imageID": "x", "ready": False}
    item["status"]["containerStatuses"][0]["lastState"]["terminated"]["startedAt"] = JUST
    del wanted["metadata"]["annotations"]["other"]
    wanted["spec"]["containers"][0]["args"] = ["--v=2"]
    bare = {
        "metadata": {"name": "kube-scheduler-cp3", "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"containers": [{"command": ["kube-scheduler"]}], "volumes": None},
    }
    api = Api([item], [api_pod("coredns")], [bare])
    found = cluster.schedulers(kubectl(api), {"cp3", "cp1", "cp2"})
    assert found == {
        "cp1": wanted,
        "cp2": None,
        "cp3": {
            "kind": "Pod",
            "metadata": bare["metadata"],
            "spec": {"containers": [{"command": ["kube-scheduler"]}], "volumes": []},
            "status": {"containerStatuses": []},
        },
    }
    command = ["get", "pods", "--namespace", "kube-system", "--field-selector"]
    assert api.asked == [[*command, f"spec.nodeName={name}", "-o", "json"] for name in ("cp1", "cp2", "cp3")]


NOW = 1_767_230_000.0
JUST, OLD = "2026-01-01T01:10:00Z", "2025-12-31T23:00:00Z"


class Events:
    """An API server that has these Events, by the field selector that asks for them."""

    def __init__(self, **by_selector: list[Json]) -> None:
        self.by_selector = by_selector
        self.asked: list[str] = []

    def __call__(self, argv: list[str], _data: str | None) -> tuple[int, str, str]:
        address = urlsplit(argv[-1])
        query = parse_qs(address.query)
        assert query["limit"] == ["500"]
        (fields,) = query["fieldSelector"]
        self.asked.append(f"{address.path} {fields}")
        return 0, json.dumps({"items": self.by_selector.get(dict(part.split("=") for part in fields.split(","))["reason"], [])}), ""


def about(uid: str, **times: Any) -> Json:
    return {"involvedObject": {"uid": uid}, **(times or {"lastTimestamp": JUST})}


def placed(*uids: str) -> list[Json]:
    return [cluster.pod({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {"nodeName": "gpu1"}}) for uid in uids]


def test_pods_that_came_past_the_extender_are_found_by_events_of_the_last_hour_and_who_placed_them() -> None:
    unmanaged = [
        *(about("a"), about("b", lastTimestamp=OLD), about("gone")),
        *(about("c", lastTimestamp=None, eventTime="2026-01-01T01:05:00.5Z"), about("d", lastTimestamp="x"), {"involvedObject": None}),
    ]
    unmanaged += [about("a", lastTimestamp="2026-01-01T01:00:00Z"), about("e", series={"lastObservedTime": "2026-01-01T01:11:00.1Z"})]
    scheduled = [{"reportingInstance": ""}, {"reportingInstance": "default-scheduler-" + "x" * 100}]
    api = Events(GPUShareUnmanaged=unmanaged, Scheduled=scheduled)
    found = cluster.passed_by(Kubectl(api, "kubectl", "admin.conf"), placed(*"abcde"), lambda: NOW)
    assert [one["uid"] for one in found] == ["e", "a", "c"], "the newest first"
    assert {one["by"] for one in found} == {("default-scheduler-" + "x" * 100)[:80]}
    assert "/api/v1/namespaces/ns/events reason=Scheduled,involvedObject.uid=a" in api.asked


def test_a_cluster_without_such_events_is_asked_for_no_pod_and_one_with_many_for_few() -> None:
    api = Events()
    assert cluster.passed_by(Kubectl(api, "kubectl", "admin.conf"), placed("a"), lambda: NOW) == []
    assert len(api.asked) == 1
    api = Events(GPUShareUnmanaged=[about(uid) for uid in "abcdefgh"])
    found = cluster.passed_by(Kubectl(api, "kubectl", "admin.conf"), placed(*"abcdefgh"), lambda: NOW)
    assert (len(found), {one["by"] for one in found}) == (5, {""})


def test_objects_that_are_missing_that_differ_and_that_the_server_does_not_have() -> None:
    same, lost, other = thing("same"), thing("lost"), thing("other", data={"k": "w"})
    policy = thing("p", "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1")
    server = ApiServer(same, thing("other", data={"k": "v"}), served={"v1": ["ConfigMap"]})
    found = cluster.objects(Kubectl(server, "kubectl", "admin.conf"), [same, lost, other, policy])
    assert found == {"missing": ["ConfigMap lost"], "differs": ["ConfigMap other"], "unserved": ["ValidatingAdmissionPolicy p"]}
    assert server.writes == []


def test_a_probe_pod_may_go_to_one_node_only_whatever_taints_it_has() -> None:
    pod = probe_pod("gpu1", "pause:3", MEMORY, "gpus")
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    labels = {"app.kubernetes.io/part-of": "gpushare", "gpushare.kubernetes/probe": "verify"}
    assert pod["metadata"] == {"name": "gpushare-verify-gpu1", "namespace": "kube-system", "labels": labels}
    assert probe_pod("gpu1", "pause:3", MEMORY, "gpus", "team")["metadata"]["namespace"] == "team"
    spec = {key: pod["spec"][key] for key in set(pod["spec"]) - {"affinity", "tolerations", "containers"}}
    assert spec == {
        "schedulerName": "gpus",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    (container,) = pod["spec"]["containers"]
    assert (container["resources"], container["imagePullPolicy"]) == ({"limits": {MEMORY: "1"}}, "Never")
    assert (container["name"], container["image"]) == ("probe", "pause:3")


def test_probe_pods_have_no_rights_that_a_restricted_namespace_would_refuse() -> None:
    """By the Pod Security Standard `restricted`; the one of the scheduler is also for servers that know no seccompProfile."""
    for pod, profile in (
        (probe_pod("gpu1", "pause:3", MEMORY, "gpus"), {"type": "RuntimeDefault"}),
        (scheduler_probe("cp1", "gpus", "scheduler:1", MEMORY), None),
    ):
        (container,) = pod["spec"]["containers"]
        rights = container["securityContext"]
        assert (rights["runAsNonRoot"], rights["allowPrivilegeEscalation"], rights["capabilities"]) == (True, False, {"drop": ["ALL"]})
        assert rights["runAsUser"] > 0
        assert rights.get("seccompProfile") == profile
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_a_probe_pods_name_is_its_nodes_unless_that_is_too_long() -> None:
    assert name("n" * 200) == "gpushare-verify-" + "n" * 200
    long = [name("n" * length) for length in (201, 202, 253)]
    assert len({*long}) == 3
    assert {len(one) for one in long} == {len("gpushare-verify-") + 16}


class Clock:
    """Began long ago; `now` is the time since it is watched."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return 1000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def place(*lists: list[Json], timeout: float = 60) -> tuple[dict[str, Json | None], Clock, Api]:
    api, clock = Api(*lists), Clock()
    pods = {"gpu1": probe_pod("gpu1", "pause:3", MEMORY, "default-scheduler")}
    return Probes(kubectl(api), clock, clock.sleep).place(pods, timeout).pods, clock, api


def waiting(reason: str) -> Json:
    return {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason}}}]}


REJECTED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}


def test_probe_pods_are_waited_for_until_they_run() -> None:
    probe = name("gpu1")
    pending, running = api_pod(probe, phase="Pending"), api_pod(probe, memory=1, **RUNNING)
    found, clock, api = place([pending], [pending], [running])
    only = found["gpu1"]
    assert only is not None
    assert only["running"]
    assert clock.now == 1.0
    assert [item["metadata"]["name"] for item in api.sent[0]["items"]] == [probe]


@pytest.mark.parametrize(("node", "status"), [("", REJECTED), ("gpu1", waiting("ErrImageNeverPull"))])
def test_a_rejection_that_lasts_is_not_waited_out(node: str, status: Json) -> None:
    found, clock, _api = place([api_pod(name("gpu1"), node=node, **status)])
    assert found["gpu1"] is not None
    assert clock.now == 15.5, "the first look after 15 seconds"


def test_what_others_have_changed_in_a_probe_pod_is_said_and_what_kubernetes_fills_is_not() -> None:
    wanted = probe_pod("gpu1", "pause:3", MEMORY, "default-scheduler")
    item = json.loads(json.dumps(wanted))
    item["spec"].update(nodeName="gpu1", dnsPolicy="ClusterFirst", priority=0, serviceAccountName="default")
    item["spec"]["containers"][0].update(terminationMessagePath="/dev/termination-log", resources={"requests": {MEMORY: "1"}})
    assert changed(wanted, item) == []
    item["spec"].update(nodeSelector={"pool": "a"}, tolerations=[])
    item["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    item["spec"]["containers"].append({"name": "side\ncar"})
    expected = ['nodeSelector {"pool": "a"}', "tolerations []", 'imagePullPolicy "Always"', "a further container side?car"]
    assert changed(wanted, item) == expected
    # Of a LimitRange.
    item["spec"]["containers"][0]["resources"] = {kind: {"cpu": "64", MEMORY: "1"} for kind in ("requests", "limits")}
    assert changed(wanted, item)[3:] == ['resources.requests {"cpu": "64"}', 'resources.limits {"cpu": "64"}']
    item["spec"]["affinity"] = {"x": "y" * 500}
    assert len(changed(wanted, item)) == 5
    assert max(map(len, changed(wanted, item))) == 120


def test_nodes_with_the_label_on_which_nothing_has_published() -> None:
    bare = {"metadata": {"name": "cp1", "annotations": {"other": "x"}}}
    served = {"metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": "{}"}}}
    assert cluster.labelled(kubectl(Api([served, bare, {"metadata": {"name": "a"}}]))) == ["a", "cp1"]


def test_the_last_warning_about_a_probe_pod_is_kept_because_its_events_go_with_it() -> None:
    pending = api_pod(name("gpu1"), **waiting("ContainerCreating"))
    events = [
        {"reason": "Failed", "message": "old", "lastTimestamp": "2026-01-01T00:00:01Z"},
        {"reason": "FailedCreatePodSandBox", "message": "fork/exec: permission denied", "lastTimestamp": "2026-01-01T00:00:02Z"},
        {"reason": "Failed", "message": "older", "lastTimestamp": None, "eventTime": "2026-01-01T00:00:00Z"},
    ]
    found, _clock, api = place([pending], [pending], events, timeout=0.4)
    only = found["gpu1"]
    assert only is not None
    assert only["waiting"] == ["ContainerCreating", "its last Event: FailedCreatePodSandBox: fork/exec: permission denied"]
    assert f"involvedObject.kind=Pod,involvedObject.name={name('gpu1')},type=Warning" in api.asked[-1]
    only = place([pending], [pending], [], timeout=0.4)[0]["gpu1"]
    assert only is not None
    assert only["waiting"] == ["ContainerCreating"]


def test_a_probe_pod_that_only_waits_has_the_whole_time_and_one_that_is_gone_none() -> None:
    _found, clock, _api = place([api_pod(name("gpu1"), phase="Pending")], timeout=40)
    assert clock.now == 40.5
    found, clock, _api = place([])
    assert (found, clock.now) == ({"gpu1": None}, 0.0)


def test_what_settles_at_once() -> None:
    assert settled(None, False)
    assert settled(cluster.pod(api_pod("p", phase="Failed")), False)
    assert not settled(cluster.pod(api_pod("p", **waiting("ErrImageNeverPull"))), False)
    assert not settled(cluster.pod(api_pod("p", **waiting("ContainerCreating"))), True)
    assert not settled(cluster.pod(api_pod("p", **waiting("PodInitializing"))), True)
    assert settled(cluster.pod(api_pod("p", **waiting("ErrImageNeverPull"))), True)
    assert settled(cluster.pod(api_pod("p", phase="Succeeded")), False)
    assert settled(cluster.pod(api_pod("p", **RUNNING)), False)
    nowhere = cluster.pod(api_pod("p", node="", phase="Pending"))
    assert (settled(nowhere, False), settled(nowhere, True)) == (False, True)
    both = {**cluster.pod(api_pod("p")), "waiting": ["ContainerCreating", "ErrImageNeverPull x"]}
    assert (settled(both, False), settled(both, True)) == (False, True)


class Users:
    """An API server with pods in several namespaces. rejects: words about pods, by their names, which kube-system alone takes. stuck: pods
    with a finalizer. gives: pods, by their names, to another scheduler, outside of kube-system; gates: those held back."""

    def __init__(
        self, *pods: tuple[str, str], rejects: dict[str, str] | None = None, stuck: tuple[str, ...] = (), gives: tuple[str, ...] = ()
    ) -> None:
        self.gives = gives
        self.pods = dict.fromkeys(pods, False)
        self.rejects = rejects or {}
        self.stuck = stuck
        self.limits = ""
        self.gates: tuple[str, ...] = ()
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], data: str | None) -> tuple[int, str, str]:
        arguments = argv[4:]
        self.asked.append(arguments)
        if arguments[0] == "create":
            return self._created(json.loads(data or ""))
        if arguments[:2] == ["delete", "pods"]:
            return self._deleted(arguments[3], [word for word in arguments[4:] if not word.startswith("--")])
        if arguments[:2] == ["get", "--raw"]:
            query = parse_qs(urlsplit(arguments[2]).query)
            assert query["labelSelector"] == ["gpushare.kubernetes/probe=verify"]
            return 0, json.dumps({"items": self._items(set(self.pods))}), ""
        if arguments[1].startswith("limitranges"):
            assert arguments[3] == "default"
            return 0, self.limits, ""
        assert arguments[:2] == ["get", "pods"]
        assert arguments[4:6] == ["--selector", "gpushare.kubernetes/probe=verify"]
        return 0, json.dumps({"kind": "List", "items": self._items({key for key in self.pods if key[0] == arguments[3]})}), ""

    def _created(self, objects: Json) -> tuple[int, str, str]:
        said = []
        for item in objects["items"]:
            key = item["metadata"]["namespace"], item["metadata"]["name"]
            rejects = key[0] != "kube-system" and key[1] in self.rejects
            if key in self.pods or rejects:
                words = self.rejects[key[1]] if rejects else f'object is being deleted: pods "{key[1]}" already exists'
                said.append(f'Error from server (Forbidden): error when creating "STDIN": {words}')
            else:
                self.pods[key] = False
        return (1, "", "\n".join(said)) if said else (0, "", "")

    def _deleted(self, namespace: str, names: list[str]) -> tuple[int, str, str]:
        for one in names:
            if one in self.stuck:
                self.pods[namespace, one] = True
            else:
                del self.pods[namespace, one]
        left = [one for one in names if one in self.stuck]
        return (1, "", f"error: timed out waiting for the condition on pods/{left[0]}") if left else (0, "", "")

    def _items(self, keys: set[tuple[str, str]]) -> list[Json]:
        items = []
        for namespace, one in sorted(keys):
            item = api_pod(one, memory=1, **RUNNING)
            item["metadata"]["namespace"] = namespace
            item["spec"]["schedulerName"] = "theirs" if one in self.gives and namespace != "kube-system" else "default-scheduler"
            if one in self.gates and namespace != "kube-system":
                item["spec"]["schedulingGates"] = [{"name": "queue"}]
            if self.pods[namespace, one]:
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            items.append(item)
        return items


def probes_of(api: Users, *nodes: str) -> Any:
    clock = Clock()
    pods = {node: probe_pod(node, "pause:3", MEMORY, "default-scheduler", "default") for node in nodes}
    return Probes(Kubectl(api, "/usr/bin/kubectl", "/admin.conf"), clock, clock.sleep).place(pods, 10)


def test_probe_pods_run_in_the_namespace_of_users() -> None:
    api = Users()
    placed = probes_of(api, "gpu1", "gpu2")
    assert (sorted(api.pods), placed.rejected) == ([("default", name("gpu1")), ("default", name("gpu2"))], "")
    assert {node: pod["namespace"] for node, pod in placed.pods.items()} == {"gpu1": "default", "gpu2": "default"}


def test_a_probe_pod_that_is_given_to_another_scheduler_has_one_in_kube_system_beside_it() -> None:
    """Unless that takes none, or gives it away, too."""
    api = Users(gives=(name("gpu2"),))
    placed = probes_of(api, "gpu1", "gpu2")
    assert sorted(api.pods) == [("default", name("gpu1")), ("default", name("gpu2")), ("kube-system", name("gpu2"))]
    assert {node: (pod["namespace"], pod["scheduler"]) for node, pod in placed.moved.items()} == {"gpu2": ("default", "theirs")}
    assert {node: pod["namespace"] for node, pod in placed.pods.items()} == {"gpu1": "default", "gpu2": "kube-system"}
    taken = Users(("kube-system", name("gpu2")), gives=(name("gpu2"),))
    placed = probes_of(taken, "gpu2")
    assert (placed.pods["gpu2"]["scheduler"], [*placed.moved]) == ("theirs", ["gpu2"])
    held = Users()
    held.gates = (name("gpu1"),)
    placed = probes_of(held, "gpu1", "gpu2")
    assert ([*placed.moved], placed.pods["gpu1"]["namespace"]) == (["gpu1"], "kube-system"), "a gate holds it back"


def test_probe_pods_that_a_namespace_does_not_take_run_in_kube_system_with_the_servers_words(golden: Golden) -> None:
    quota = f'pods "{name("gpu2")}" is forbidden: exceeded quota: gpus, requested: 1\x1b[31m ' + "x" * 400
    api = Users(rejects={name("gpu2"): quota})
    placed = probes_of(api, "gpu1", "gpu2")
    assert sorted(api.pods) == [("default", name("gpu1")), ("kube-system", name("gpu2"))]
    assert {node: pod["namespace"] for node, pod in placed.pods.items()} == {"gpu1": "default", "gpu2": "kube-system"}
    golden(placed.rejected)
    assert len(placed.rejected) == 300
    # A rejection by a LimitRange does not name it.
    api = Users(rejects={name("gpu1"): "maximum cpu usage per Container is 2"})
    api.limits = "limitrange/team\nresourcequota/gpus\n"
    assert probes_of(api, "gpu1").rejected.endswith("limitrange/team, resourcequota/gpus")


def test_who_may_have_given_a_probe_pod_resources_is_named() -> None:
    wanted = probe_pod("gpu1", "pause:3", MEMORY, "default-scheduler", "default")
    item = {**json.loads(json.dumps(wanted)), "status": {"phase": "Pending"}}
    item["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "64"}

    def api(argv: list[str], _data: str | None = None) -> tuple[int, str, str]:
        words = argv[4:]
        return 0, "limitrange/team" if words[1].startswith("limitranges") else json.dumps({"kind": "List", "items": [item]}), ""

    clock = Clock()
    placed = Probes(Kubectl(api, "/usr/bin/kubectl", "/admin.conf"), clock, clock.sleep).place({"gpu1": wanted}, 1)
    assert placed.pods["gpu1"] is not None
    changed, shaped = placed.pods["gpu1"]["changed"]
    assert (changed, shaped.split()[-1]) == ('resources.requests {"cpu": "64"}', "limitrange/team")


def test_a_pod_that_kube_system_does_not_take_either_is_an_error() -> None:
    api = Users(("kube-system", name("gpu1")), rejects={name("gpu1"): "no"})
    with pytest.raises(KubectlError, match="already exists"):
        probes_of(api, "gpu1")


def test_a_pod_of_before_that_a_finalizer_keeps_is_no_probe(golden: Golden) -> None:
    api = Users(("default", name("gpu1")), stuck=(name("gpu1"),))
    api.pods["default", name("gpu1")] = True
    placed = probes_of(api, "gpu1")
    assert placed.pods["gpu1"]["namespace"] == "kube-system"
    golden(placed.rejected)


def removed(api: Users, timeout: int = 5) -> list[str]:
    return Probes(Kubectl(api, "/usr/bin/kubectl", "/admin.conf")).remove(timeout)


def test_probe_pods_are_removed_from_every_namespace_and_only_where_there_are_any() -> None:
    api = Users()
    assert removed(api) == []
    assert [words[0] for words in api.asked] == ["get"]
    api = Users(("default", name("gpu2")), ("kube-system", name("gpu1")), ("team", name("gpu3")), ("team", "theirs"))
    assert removed(api) == [name("gpu1"), name("gpu2"), name("gpu3")]
    assert [*api.pods] == [("team", "theirs")], "the label alone makes no probe"
    assert api.asked[1] == [
        *("delete", "pods", "--namespace", "default", name("gpu2")),
        *("--ignore-not-found", "--now", "--wait=true", "--timeout=5s"),
    ]


def test_no_command_line_has_more_than_a_hundred_pods() -> None:
    api = Users(*(("default", name(f"n{number}")) for number in range(150)))
    assert len(removed(api)) == 150
    assert [len(words) - 8 for words in api.asked[1:]] == [100, 50]


def test_a_finalizer_of_users_does_not_stop_the_removal_of_the_others() -> None:
    api = Users(("default", name("gpu1")), ("team", name("gpu2")), stuck=(name("gpu1"),))
    assert removed(api) == [name("gpu1"), name("gpu2")]
    assert [*api.pods] == [("default", name("gpu1"))]
    with pytest.raises(KubectlError, match="timed out"):
        removed(Users(("kube-system", name("gpu1")), stuck=(name("gpu1"),)))


def test_all_probe_pods_are_waited_for_and_others_are_not_told() -> None:
    nodes = ("gpu1", "gpu2")
    slow = api_pod(name("gpu2"), phase="Pending")
    api, clock = Api([api_pod(name("gpu1"), **RUNNING), slow, api_pod("other", phase="Pending")]), Clock()
    pods = {node: probe_pod(node, "pause:3", MEMORY, "default-scheduler") for node in nodes}
    found = Probes(kubectl(api), clock, clock.sleep).place(pods, 3).pods
    assert set(found) == {*nodes}
    assert clock.now == 3.5
    assert api.asked[0] == ["create", "-f", "-"]

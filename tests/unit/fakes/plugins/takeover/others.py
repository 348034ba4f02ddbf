# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Device plugins of others as people have them, after the manifests that their projects publish; and an API server of a few objects."""

from __future__ import annotations

import copy
import json
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl

Json = dict[str, Any]


def daemon_set(
    name: str,
    image: str,
    container: str,
    *,
    namespace: str = "kube-system",
    labels: dict[str, str] | None = None,
    affinity: Json | None = None,
    selector: dict[str, str] | None = None,
    account: str = "",
    **metadata: Any,
) -> Json:
    labels = labels or {"name": name}
    pod: Json = {"containers": [{"name": container, "image": image}]}
    pod |= {"affinity": affinity} if affinity is not None else {}
    pod |= {"nodeSelector": selector} if selector else {}
    pod |= {"serviceAccountName": account} if account else {}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": {}, **metadata},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def nvidia(**changes: Any) -> Json:
    """NVIDIA's static manifest."""
    return daemon_set("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "nvidia-device-plugin-ctr", **changes)


def operators() -> Json:
    """Of the GPU Operator."""
    return daemon_set(
        "nvidia-device-plugin-daemonset",
        "nvcr.io/nvidia/k8s-device-plugin:v0.17.1@sha256:0123",
        "nvidia-device-plugin",
        namespace="gpu-operator",
        selector={"nvidia.com/gpu.deploy.device-plugin": "true"},
        ownerReferences=[{"kind": "ClusterPolicy", "name": "cluster-policy", "controller": True}],
    )


def cluster_policy(**device_plugin: Any) -> Json:
    """The object that the GPU Operator's chart makes, with the part about its device plugin."""
    spec: Json = {
        "operator": {"defaultRuntime": "containerd"},
        "daemonsets": {},
        "driver": {"enabled": False},
        "toolkit": {"enabled": True},
    }
    spec["devicePlugin"] = {"repository": "nvcr.io/nvidia", "image": "k8s-device-plugin", "version": "v0.20.0", **device_plugin}
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy", "resourceVersion": "1", "annotations": {}},
        "spec": spec,
    }


def hami() -> Json:
    """Of HAMi's chart."""
    return daemon_set(
        "hami-device-plugin",
        "docker.io/projecthami/hami:v2.5.0",
        "device-plugin",
        labels={"app.kubernetes.io/component": "hami-device-plugin"},
        selector={"gpu": "on"},
        annotations={"meta.helm.sh/release-name": "hami"},
    )


def original() -> Json:
    """The original's manifest."""
    return daemon_set(
        "gpushare-device-plugin-ds",
        "example.com/acs/k8s-gpushare-plugin:v2-1.11-aff8a23",
        "gpushare",
        labels={"component": "gpushare-device-plugin", "app": "gpushare", "name": "gpushare-device-plugin-ds"},
        selector={"gpushare": "true"},
        account="gpushare-device-plugin",
    )


def node(name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Json:
    return {"metadata": {"name": name, "resourceVersion": "1", "labels": labels or {}, "annotations": annotations or {}}}


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch, as RFC 7386 has it."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


class Api:
    """An API server with DaemonSets, whose controller is at work, and other lists. calls: what has written."""

    def __init__(self, daemon_sets: list[Json], nodes: list[Json], **lists: list[Json]) -> None:
        self.daemon_sets = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in daemon_sets}
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.lists = lists
        self.policies = {one["metadata"]["name"]: one for one in lists.get("clusterpolicies", ())}
        self.calls: list[list[str]] = []
        self.files: list[Json] = []
        self.conflicts: dict[str, int] = {}
        self.refusal = "Error from server (Conflict): the object has been modified"
        self.more_pods: list[Json] = []
        self.kubectl = Kubectl(self._run, "kubectl", "/k")

    def pods(self, daemon_set: Json) -> list[Json]:
        """The pods that its controller keeps: one on each node that its template allows."""
        pod, metadata = daemon_set["spec"]["template"]["spec"], daemon_set["metadata"]
        return [
            {
                "metadata": {"name": f"{metadata['name']}-{name}", "ownerReferences": [{"uid": metadata["uid"]}]},
                "spec": {"nodeName": name},
                "status": {"phase": "Running"},
            }
            for name, one in self.nodes.items()
            if runs_on(pod, one["metadata"].get("labels") or {})
        ]

    def _run(self, argv: list[str], data: str | None) -> tuple[int, str, str]:
        words = argv[4:]
        if words[:2] == ["get", "--raw"]:
            if words[2].startswith("/apis/nvidia.com"):
                return self._operator(words[2].split("/")[3:])
            return 0, json.dumps({"items": self._listed(words[2])}), ""
        namespace = words[1] if words[0] == "--namespace" else ""
        words = words[2:] if namespace else words
        if words[:2] == ["get", "pods"] and namespace:
            found = [pod for key, one in self.daemon_sets.items() if key[0] == namespace for pod in self.pods(one)]
            return 0, json.dumps({"kind": "List", "items": found + self.more_pods}), ""
        self.calls.append(words)
        if words[:2] == ["delete", "pod"]:
            return 0, "", ""
        if words[0] == "delete":
            self.files.append(json.loads(data or "null"))
            return 0, "", ""
        assert (words[0], words[3]) == ("patch", "--type=merge"), words
        if self.conflicts.get(words[1], 0):
            # As its controller does: a label of a node changes the status of DaemonSets.
            self.conflicts[words[1]] -= 1
            return 1, "", self.refusal
        patch = json.loads(words[4].removeprefix("--patch="))
        kept = {"node": self.nodes, "clusterpolicies.nvidia.com": self.policies}.get(words[1])
        if kept is not None:
            kept[words[2]] = merged(kept[words[2]], patch)
        else:
            self.daemon_sets[namespace, words[2]] = merged(self.daemon_sets[namespace, words[2]], patch)
        return 0, "patched", ""

    def _operator(self, steps: list[str]) -> tuple[int, str, str]:
        """Below /apis/nvidia.com: versions, kinds of one, objects."""
        if "clusterpolicies" not in self.lists:
            return 1, "", "Error from server (NotFound): the server could not find the requested resource"
        kinds = {"resources": [{"kind": "ClusterPolicy"}]}
        answers = ({"versions": [{"version": "v1"}]}, kinds, {"items": list(self.policies.values())})
        return 0, json.dumps(answers[len(steps)]), ""

    def _listed(self, path: str) -> list[Json]:
        if path == "/apis/apps/v1/daemonsets":
            return list(self.daemon_sets.values())
        if path == "/api/v1/nodes":
            return list(self.nodes.values())
        return self.lists.get(path.rpartition("/")[2], [])


def runs_on(pod: Json, labels: dict[str, str]) -> bool:
    """Whether a pod of this template may be on a node with these labels: nodeSelector and required terms, as Kubernetes reads them."""
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_matches(term, labels) for term in required.get("nodeSelectorTerms") or ())


def _matches(term: Json, labels: dict[str, str]) -> bool:
    expressions = term.get("matchExpressions") or []
    # A term of nothing matches no object; of fields there is only the name here.
    return bool(expressions) and all(_holds(one, labels) for one in expressions)


def _holds(one: Json, labels: dict[str, str]) -> bool:
    there, value = one["key"] in labels, labels.get(one["key"])
    return {
        "Exists": there,
        "DoesNotExist": not there,
        "In": there and value in one.get("values", ()),
        "NotIn": not there or value not in one.get("values", ()),
    }[one["operator"]]

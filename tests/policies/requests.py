# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Objects of requests, small and as large as the API server takes them."""

from __future__ import annotations

import copy
import itertools
import string
from typing import Any

from policies.engine import Json

#: Kubernetes counts the bytes of all keys and values.
MOST_BYTES = 262144


def pod(annotations: dict[str, str] | None = None, node: str = "", memory: str = "", **metadata: Any) -> Json:
    """A pod of the tenant. memory: of `aliyun.com/gpu-mem`."""
    container: Json = {"name": "main", "image": "example.org/x"}
    container |= {"resources": {"limits": {"aliyun.com/gpu-mem": memory}}} if memory else {}
    spec: Json = {"containers": [container]} | ({"nodeName": node} if node else {})
    about = {"name": "p", "namespace": "default", "annotations": annotations or {}, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def node(annotations: dict[str, str] | None = None, name: str = "gpu1") -> Json:
    about = {"name": name, "annotations": {"volumes.kubernetes.io/x": "true", **(annotations or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": {}, "status": {"capacity": {"cpu": "4"}}}


def binding(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> Json:
    about = {"name": "p", "namespace": "default", "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": {"kind": "Node", "name": "gpu1"}}


def config_map(name: str, namespace: str = "kube-system", data: dict[str, str] | None = None, **metadata: Any) -> Json:
    about = {"name": name, "namespace": namespace, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data or {"gpus": "0"}}


def event(component: str, host: str, count: int = 1, **of: Any) -> Json:
    """of: other fields. About a pod, as most are."""
    source = {"component": component, "host": host}
    about = {"name": "e", "namespace": "default"}
    pod = {"kind": "Pod", "namespace": "default", "name": "p"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": about, "involvedObject": pod, "source": source, "count": count, **of}


def misused_events(component: str, host: str) -> list[tuple[str, Json, Json | None, str]]:
    """(what it would be, the event, the event before, what the policies say) of what no daemon of gpushare may send."""
    own, before = event(component, host), event(component, host)
    crowd = [("labels", {"a": "b"}), ("annotations", {"a": "b" * 100_000}), ("finalizers", ["a/b"]), ("ownerReferences", [{"kind": "x"}])]
    return [
        ("an event in kubelet's name", event("kubelet", host), None, "in its own name only"),
        ("one in kubelet's name in the newer kind", {**own, "reportingComponent": "kubelet"}, None, "in its own name only"),
        ("one in no name", event("", host), None, "in its own name only"),
        ("one that becomes kubelet's", event("kubelet", host, 2), before, "in its own name only"),
        ("one about a Secret", event(component, host, involvedObject={"kind": "Secret", "name": "x"}), None, "about pods only"),
        ("one about no object", event(component, host, involvedObject={}), None, "about pods only"),
        ("one about another node", event(component, host, involvedObject={"kind": "Node", "name": "gpu2"}), None, "about pods only"),
        ("another pod's", event(component, host, 2, involvedObject={"kind": "Pod", "name": "q"}), before, "about pods only"),
        ("a long one", event(component, host, message="x" * 1025), None, "at most 1024 characters"),
        *((f"one with {key}", {**own, "metadata": {**own["metadata"], key: value}}, None, "no labels") for key, value in crowd),
    ]


def token_request(account: str, seconds: int, namespace: str = "kube-system") -> Json:
    about = {"name": account, "namespace": namespace}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": about, "spec": {"expirationSeconds": seconds}}


def changed(of: Json, /, status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Json:
    """The object with other fields; of the annotations those that are named, None for one that goes."""
    made = copy.deepcopy(of)
    made["status"] = {**made.get("status", {}), **(status or {})}
    made["spec"] |= spec or {}
    annotations = made["metadata"]["annotations"] | metadata.pop("annotations", {})
    made["metadata"] |= {**metadata, "annotations": {key: value for key, value in annotations.items() if value is not None}}
    return made


def many(number: int | None = None) -> dict[str, str]:
    """That many annotations with the shortest names; by default as many as an object may have."""
    found: dict[str, str] = {}
    left = MOST_BYTES
    letters = string.ascii_letters + string.digits
    names = ("".join(word) for size in (1, 2, 3) for word in itertools.product(letters, repeat=size))
    for name in names:
        left -= len(name)
        # Room for two of ours.
        if left < 100 or len(found) == number:
            break
        found[name] = ""
    return found

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""ResourceClaims as the API server of Kubernetes 1.37.2 has them, of two GPUs of the node gpu1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.dra.slices import slices

T4 = Gpu(0, "GPU-6406b1ff-e486-da64-8a09-584683bdfe67", 3, "0000:3b:00.0", "Tesla T4", 15360, 15)
A30 = Gpu(1, "GPU-404966e9-8716-c392-9c97-aff857c46602", 0, "0000:0b:00.0", "NVIDIA A30", 24576, 24)


def node(name: str = "gpu1") -> dict[str, Any]:
    """A node on which no device plugin of kubelet's has published anything."""
    labels = {"gpushare.kubernetes/node": "true"}
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"addresses": addresses, "allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def slices_of(*gpus: Gpu, name: str = "gpu1") -> list[dict[str, Any]]:
    """The slices that the device plugin of a node writes, with what the API server adds."""
    made = slices(name, "uid-of-node", Inventory(GIB, gpus or (T4, A30), isolation="watch"), 1)
    for one in made:
        one["metadata"] |= {"creationTimestamp": "2026-11-30T00:00:00Z", "generation": 1, "resourceVersion": "70", "uid": "uid-of-slice"}
    return made


def pod(uid: str, claims: dict[str, str], on: str | None = "gpu1", **metadata: Any) -> dict[str, Any]:
    """A pod as admission leaves it. claims: the name of each entry → of its ResourceClaim, "" before that is made."""
    statuses = [{"name": entry, "resourceClaimName": name} for entry, name in claims.items() if name]
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"claims": [{"name": entry} for entry in claims]},
        "env": [{"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "6"}],
    }
    return {
        "kind": "Pod",
        "metadata": {"name": uid, "namespace": "default", "uid": uid, **metadata},
        "spec": {
            **({"nodeName": on} if on else {}),
            "schedulerName": "default-scheduler",
            "containers": [container],
            "resourceClaims": [{"name": entry, "resourceClaimTemplateName": "gpushare"} for entry in claims],
        },
        "status": {"phase": "Running" if on else "Pending", **({"resourceClaimStatuses": statuses} if statuses else {})},
    }


def whole(uid: str, count: int, claim: str = "", on: str | None = "gpu1") -> dict[str, Any]:
    """A pod with whole GPUs. claim: that kube-scheduler has made for its limit, when it found a node."""
    made = pod(uid, {}, on)
    made["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-count": str(count)}}
    del made["spec"]["resourceClaims"]
    if claim:
        mappings = [{"containerName": "main", "resourceName": "aliyun.com/gpu-count", "requestName": "container-0-request-0"}]
        made["status"]["extendedResourceClaimStatus"] = {"requestMappings": mappings, "resourceClaimName": claim}
    return made


def claim(uid: str, parts: Sequence[tuple[Gpu, str]], name: str = "gpushare-m6", pods: Sequence[str] = ("p0",)) -> dict[str, Any]:
    """One that is allocated: of these GPUs so much memory. name: of its entry in the pod, "" for one that users or kube-scheduler made."""
    results = [
        {
            "request": "gpu",
            "driver": "gpushare.kubernetes",
            "pool": "gpu1",
            "device": gpu.uuid.lower(),
            "shareID": f"share-{place}",
            "consumedCapacity": {"memory": amount},
        }
        for place, (gpu, amount) in enumerate(parts)
    ]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpushare", "allocationMode": "ExactCount", "count": max(1, len(parts))}}
    annotations = {"resource.kubernetes.io/pod-claim-name": name} if name else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "annotations": annotations},
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }

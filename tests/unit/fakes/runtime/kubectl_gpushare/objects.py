# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""v1.Node and v1.Pod objects as the API server returns them, as far as inspect reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from unit.fakes.runtime.pods import container, gpu, inventory


def node(name: str, address: str, *units: int, gpus: Inventory | str | None = None) -> dict[str, Any]:
    """A node whose device plugin published GPUs of these sizes in GiB, or `gpus` (text: the annotation as it is)."""
    published = gpus if gpus is not None else inventory(*units)
    text = published if isinstance(published, str) else published.to_json()
    return {
        "metadata": {"name": name, "annotations": {"gpushare/gpus": text}},
        "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]},
    }


def original_node(name: str, address: str, *, memory: int, count: int) -> dict[str, Any]:
    """A node of the original plugin, which publishes totals only."""
    return {
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "allocatable": {"cpu": "8", "aliyun.com/gpu-mem": str(memory), "aliyun.com/gpu-count": str(count)},
        },
    }


def pod(
    name: str,
    on: str | None,
    *,
    gpu: int | str | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    namespace: str = "default",
    **limits: int,
) -> dict[str, Any]:
    """A pod with one container. GPU: its ALIYUN_COM_GPU_MEM_IDX; limits: mem=, count=."""
    said = {"ALIYUN_COM_GPU_MEM_IDX": str(gpu)} if gpu is not None else {}
    return {
        "metadata": {"uid": f"uid-{name}", "name": name, "namespace": namespace, "annotations": {**said, **(annotations or {})}},
        "spec": {"nodeName": on, "containers": [container(**limits)]},
        "status": {"phase": phase},
    }


def held(raw: dict[str, Any], **gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """The node, which reports this of its GPUs; gpu0=[…] for GPU 0."""
    by_uuid = {gpu(int(name.removeprefix("gpu")), 1).uuid: entries for name, entries in gpus.items()}
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": by_uuid, "rejected": []})
    return raw


def pending(name: str, message: str = "", namespace: str = "default", **limits: int) -> dict[str, Any]:
    raw = pod(name, None, phase="Pending", namespace=namespace, **limits)
    if message:
        raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    return raw


def allocation(containers: dict[str, dict[str, int]]) -> dict[str, str]:
    return {"scheduler.framework.gpushare.allocation": json.dumps(containers)}


def read_all(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Cluster:
    """The cluster of these objects."""
    cluster = Cluster()
    for raw in nodes:
        cluster.set_node(raw)
    for raw in pods:
        cluster.set_pod(raw)
    cluster.settle()
    return cluster

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the pods of the scheduler in the cluster run, and may run: not on a GPU node, whose root could read their token.

The Deployment's affinity holds for pods that are placed from now on. A node that becomes a GPU node keeps the pod that it has.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence

from .._cluster.kubectl import Kubectl
from .._cluster.names import GPUS, LABEL_NODE, LABEL_NVIDIA_GPU, MEMORY, NVIDIA_RESOURCES, SCHEDULER
from .._formats.failure import Failure
from .._formats.quantity import quantity
from .pods import is_ready
from .ready import Awaited, wait

#: Of the Deployment's pods.
_TOLERATED = "node-role.kubernetes.io/control-plane"
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_ENDED = ("Succeeded", "Failed")
_SHOWN = 20
#: Of nodes with GPUs, also those of others.
_RESOURCES = re.compile("|".join((re.escape(MEMORY), re.escape(GPUS), NVIDIA_RESOURCES)))


Node = Mapping[str, Any]


class ReplicaError(Failure):
    """Why a pod stays on a GPU node."""


def is_gpu_node(node: Node) -> bool:
    """Whether the Deployment's affinity keeps its pods off this node."""
    labels = node["metadata"].get("labels") or {}
    return LABEL_NODE in labels or labels.get(LABEL_NVIDIA_GPU) == "true"


def has_gpus(node: Node) -> bool:
    """The same, or it has GPUs and no label that says so."""
    capacity = (node.get("status") or {}).get("capacity") or {}
    return is_gpu_node(node) or any((quantity(capacity[name]) or 0) > 0 for name in capacity if _RESOURCES.fullmatch(name))


def homes(nodes: Sequence[Node], kept_off: Collection[str]) -> List[str]:
    """Names of nodes that may run the scheduler's pods, some of them where there are many. kept_off: those with GPUs or soon our label."""
    return [str(node["metadata"]["name"]) for node in nodes if _is_home(node) and node["metadata"]["name"] not in kept_off][:_SHOWN]


def _is_home(node: Node) -> bool:
    spec, linux = node.get("spec") or {}, (node["metadata"].get("labels") or {}).get("kubernetes.io/os", "linux") == "linux"
    taints = [taint for taint in spec.get("taints") or [] if taint.get("effect") in _KEEPS_OFF and taint.get("key") != _TOLERATED]
    return linux and not spec.get("unschedulable") and not taints and is_ready(node)


def displaced(pods: Sequence[Mapping[str, Any]], namespace: str, gpu_nodes: Collection[str]) -> Dict[str, str]:
    """The scheduler's pods on these nodes, with their nodes. pods: of any namespace."""
    found = {}
    for pod in pods:
        metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName")
        own = metadata.get("namespace") == namespace and (metadata.get("labels") or {}).get("app.kubernetes.io/name") == SCHEDULER
        if own and node in gpu_nodes and (pod.get("status") or {}).get("phase") not in _ENDED and "deletionTimestamp" not in metadata:
            found[str(metadata["name"])] = str(node)
    return found


def live(kubectl: Kubectl, namespace: str, coming: Collection[str] = (), known: Callable[[Node], bool] = is_gpu_node) -> Dict[str, str]:
    """The replicas that run on a GPU node now. coming: nodes that get our label; known: whether a node is one."""
    pods = kubectl.items(["get", "pods", "--namespace", namespace, "--selector", f"app.kubernetes.io/name={SCHEDULER}"])
    nodes = {str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods} - {""}
    found = kubectl.items(["get", "nodes", *sorted(nodes), "--ignore-not-found"]) if nodes else []
    return displaced(pods, namespace, {*coming, *(str(node["metadata"]["name"]) for node in found if known(node))})


def findings(kubectl: Kubectl, namespace: str) -> List[str]:
    """Of verify: as found, expected and what to do."""
    return [
        f"pod {name}: found the scheduler on the GPU node {node}, whose root can read its token; expected it on another node; give that "
        f"node the label {LABEL_NODE} or {LABEL_NVIDIA_GPU}=true, then kubectl -n {namespace} delete pod {name}"
        for name, node in sorted(live(kubectl, namespace, known=has_gpus).items())
    ]


def move(
    kubectl: Kubectl,
    namespace: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> List[str]:
    """End the scheduler's pods on GPU nodes one by one, each when all serve. Their titles; ReplicaError where a new one does not serve."""
    moved: List[str] = []
    while live(kubectl, namespace):
        # Another Deployment than before replaces them itself.
        late = wait(kubectl, Awaited(namespace, scheduler_only=True), seconds, clock, sleep)
        left = sorted(live(kubectl, namespace).items())
        if not left:
            break
        if late or f"Pod {namespace}/{left[0][0]}" in moved:
            words = "; ".join(late) or "it has not ended"
            raise ReplicaError(
                f"found that the scheduler's pod {left[0][0]} stays on the GPU node {left[0][1]} ({words}); expected it on another node. "
                "See `kubectl describe` of the scheduler's pods, and run again"
            )
        name = left[0][0]
        kubectl.text(["delete", "pod", name, "--namespace", namespace, "--ignore-not-found", "--wait=true", f"--timeout={seconds:g}s"])
        moved.append(f"Pod {namespace}/{name}")
    return moved

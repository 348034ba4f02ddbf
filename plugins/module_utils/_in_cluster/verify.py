# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verification of an installation in the cluster: a pod with one unit on each GPU node has the GPU that its annotation says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Tuple

from .._cluster.kubectl import Kubectl
from .._cluster.names import ANNOTATION_GPUS, LABEL_NODE, MEMORY
from .._evidence.cluster import pods as gpu_pods
from .._facts.capacity import AnnotationError, published
from .._formats.quantity import quantity
from .pods import PROBE, Image, Runs, probe
from .verdict import judge


def verify(kubectl: Kubectl, image: Image, seconds: int) -> Tuple[List[str], List[str], List[str]]:
    """(nodes that were verified, nodes without a free unit, findings)."""
    labelled = kubectl.items(["get", "nodes", "--selector", f"{LABEL_NODE}=true"])
    nodes: Dict[str, Mapping[str, Any]] = {str(item["metadata"]["name"]): item for item in labelled}
    full = _full(kubectl, nodes)
    chosen = sorted(set(nodes) - set(full))
    runs = Runs(kubectl, image.namespace, PROBE)
    runs.remove(seconds)
    try:
        ended = runs.run({node: probe(node, _of_users(image, nodes[node])) for node in chosen}, seconds)
    finally:
        runs.remove(seconds)
    findings = [words for pod in ended for words in judge(pod, nodes[pod.node])]
    if not nodes:
        findings = [f"found no node with the label {LABEL_NODE}=true; expected at least one; name the GPU nodes in gpushare_cluster_nodes"]
    return chosen, full, findings


def _of_users(image: Image, node: Mapping[str, Any]) -> Image:
    """As users' pods on that node run: CDI devices need no RuntimeClass."""
    try:
        by_cdi = published((node["metadata"].get("annotations") or {}).get(ANNOTATION_GPUS, "")).strategy == "cdi"
    except AnnotationError:
        by_cdi = False
    return replace(image, runtime_class="") if by_cdi else image


def _full(kubectl: Kubectl, nodes: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """The nodes whose pods ask for every unit: a probe would wait there, or take the place of a user's pod."""
    asked: Dict[str, int] = {}
    for pod in gpu_pods(kubectl):
        asked[pod["node"]] = asked.get(pod["node"], 0) + sum(container["units"] for container in pod["containers"])
    return sorted(
        name
        for name, item in nodes.items()
        if asked.get(name, 0) >= (quantity(((item.get("status") or {}).get("allocatable") or {}).get(MEMORY, 0)) or 0) > 0
    )

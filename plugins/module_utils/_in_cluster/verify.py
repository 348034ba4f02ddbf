# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verification of an installation in the cluster: a pod with one unit on each GPU node has the GPU that its annotation says, and one
that asks for nothing sees none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .._cluster.kubectl import Kubectl
from .._cluster.names import ANNOTATION_GPUS, LABEL_NODE, MEMORY, PREFIX, RUNTIME_CLASS, RUNTIME_HANDLER
from .._evidence.cluster import pods as gpu_pods
from .._facts.capacity import AnnotationError, published
from .._formats.answers import ModuleAnswer
from .._formats.quantity import quantity
from . import claims
from .facts import given_by_others
from .pods import PROBE, VISIBLE, Image, Runs, looks, probe
from .verdict import judge, judge_claim, judge_second, judge_visible

#: Device strategies, as nodes publish them.
CDI, ENVIRONMENT = "cdi", "envvar"
#: RuntimeClasses of others that are tried.
_CLASSES = 3


@dataclass(frozen=True)
class Proof(ModuleAnswer):
    """The answer of gpushare_in_cluster that verifies. unproven: nodes without a free unit."""

    nodes: List[str]
    unproven: List[str]
    findings: List[str]


def verify(kubectl: Kubectl, image: Image, seconds: int, wanted: Sequence[str] = ()) -> Tuple[List[str], List[str], List[str], List[str]]:
    """(nodes that were verified, nodes without a free unit, findings, warnings). wanted: none for all with our label."""
    labelled = kubectl.items(["get", "nodes", "--selector", f"{LABEL_NODE}=true"])
    nodes: Dict[str, Mapping[str, Any]] = {
        str(item["metadata"]["name"]): item for item in labelled if not wanted or item["metadata"]["name"] in wanted
    }
    devices = claims.offers(kubectl) if image.by_claims else {}
    full = _full_by_claims(devices, nodes) if image.by_claims else _full(kubectl, nodes)
    chosen = sorted(set(nodes) - set(full))
    runs = Runs(kubectl, image.namespace, PROBE)
    runs.remove(seconds)
    try:
        ended = runs.run({node: probe(node, _of_users(image, nodes[node])) for node in chosen}, seconds)
    finally:
        runs.remove(seconds)
    if image.by_claims:
        findings = [words for pod in ended for words in judge_claim(pod, devices.get(pod.node, []))]
    else:
        findings = [words for pod in ended for words in judge(pod, nodes[pod.node])]
    others = given_by_others(kubectl, image.namespace, set(nodes), image.by_claims)
    findings += [judge_second(node, found) for node, found in sorted(others.items())]
    if not nodes:
        findings = [f"found no node with the label {LABEL_NODE}=true; expected at least one; name the GPU nodes in gpushare_cluster_nodes"]
    visible, told = gpus_visible(kubectl, image, nodes, seconds)
    return chosen, full, [*findings, *visible], told


def gpus_visible(kubectl: Kubectl, image: Image, nodes: Mapping[str, Mapping[str, Any]], seconds: int) -> Tuple[List[str], List[str]]:
    """(findings, warnings) about pods that see GPUs without asking for them: by the default runtime of a node, and by each RuntimeClass of
    others with NVIDIA's runtime, which any pod may name. The strategy envvar means that they do.
    """
    classes = ["", *_of_nvidia(kubectl)]
    runs = Runs(kubectl, image.namespace, VISIBLE)
    found: List[str] = []
    told: List[str] = []
    for runtime_class in classes:
        used = replace(image, runtime_class=runtime_class)
        runs.remove(seconds)
        try:
            ended = runs.run({node: looks(node, used) for node in sorted(nodes)}, seconds)
        finally:
            runs.remove(seconds)
        for pod in ended:
            weak = bool(runtime_class) or _strategy(nodes[pod.node]) == ENVIRONMENT
            (told if weak else found).extend(judge_visible(pod, runtime_class))
    return found, told


def _of_nvidia(kubectl: Kubectl) -> List[str]:
    """Names of RuntimeClasses of others whose handler is NVIDIA's runtime, some where there are many."""
    items = kubectl.pages("/apis/node.k8s.io/v1/runtimeclasses", optional=True)
    names = [str(item["metadata"]["name"]) for item in items if str(item.get("handler", "")).startswith(RUNTIME_HANDLER)]
    return sorted(name for name in names if not name.startswith(PREFIX))[:_CLASSES]


def _strategy(node: Mapping[str, Any]) -> str:
    """As its device plugin has published it, "" where it has not."""
    try:
        return published((node["metadata"].get("annotations") or {}).get(ANNOTATION_GPUS, "")).strategy
    except AnnotationError:
        return ""


def _of_users(image: Image, node: Mapping[str, Any]) -> Image:
    """As users' pods on that node run: CDI devices need no RuntimeClass, and ours is for our own pods."""
    without = image.by_claims or image.runtime_class == RUNTIME_CLASS or _strategy(node) == CDI
    return replace(image, runtime_class="") if without else image


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


def _full_by_claims(devices: Mapping[str, List[claims.Device]], nodes: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """The same with the back end dra."""
    return sorted(node for node, found in devices.items() if node in nodes and not any(device.takes_one for device in found))

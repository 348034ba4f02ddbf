# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts about a cluster before gpushare is installed in it, through the API alone.

Every object is cut down to what is judged.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._cluster import dra
from .._cluster.dra import DraFacts
from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import (
    BY_CLAIMS,
    BY_EXTENDER,
    DRA_OWN,
    EXTENDER,
    LABEL_NODE,
    MANIFEST,
    NAMESPACE,
    NAMESPACES,
    NVIDIA_RESOURCES,
    PLUGIN,
    SCHEDULER,
)
from .._cluster.objects import served
from .._formats.answers import ModuleAnswer
from .._removal.cluster import MARKERS, gpu_pods, of_hosts, ours, waiting_pods
from .._takeover import operator as gpu_operator
from .._takeover.operator import OperatorFacts
from .._takeover.plugins import other_plugins, owner_of, place_of, short
from . import claims
from .pods import is_ready
from .replicas import displaced, has_gpus, homes
from .told import setting

ADMISSION = "admissionregistration.k8s.io/v1"
#: As many images as kubelet tells of by default; a node with fewer has told of all.
IMAGES_TOLD = 50
_OF_NVIDIA = re.compile(NVIDIA_RESOURCES)
_RBAC = "rbac.authorization.k8s.io/v1"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class ClusterNode:
    """A node of GPUs. platform: a provider's kind of node whose pods get no folder of the host, "" for another one.

    images: those that kubelet tells of; all: whether these are all that the node has.
    """

    name: str
    architecture: str
    platform: str
    ready: bool
    kubelet: str
    runtime: str
    images: List[str]
    all: bool


@dataclass(frozen=True)
class ServingPlugin:
    """A device plugin of others, and the nodes that it serves."""

    title: str
    kind: str
    nodes: List[str]


@dataclass(frozen=True)
class InstalledBackend:
    """An installation of which a part is there. owner: "" where this collection has applied it. release: Helm's."""

    backend: str
    namespace: str
    owner: str = ""
    release: str = ""


@dataclass(frozen=True)
class InClusterFacts:
    """The facts about a cluster. nodes: those of the run. number: of all. holders: pods with GPUs of NVIDIA's device plugin. pods, waiting:
    with GPU memory. unit: of the device plugin that is installed. scheduler: where the extender is, "own", "default" or "" for nowhere.
    may_grant: why this user may not grant the rights of our accounts, "" if it may."""

    version: str
    admission: List[str]
    openshift: bool
    nodes: List[ClusterNode]
    number: int
    homes: List[str]
    displaced: List[str]
    away: List[str]
    missing: List[str]
    runtime_classes: List[str]
    enforces: str
    on_hosts: List[str]
    others: List[ServingPlugin]
    holders: List[str]
    gpu_operator: OperatorFacts
    dra: DraFacts
    unit: str
    scheduler: str
    backends: List[InstalledBackend]
    lacks: List[str]
    pods: List[str]
    waiting: List[str]
    may_grant: str


@dataclass(frozen=True)
class FactsInCluster(ModuleAnswer):
    """The answer of gpushare_in_cluster about facts."""

    facts: InClusterFacts


def gather(
    kubectl: Kubectl, namespace: str, wanted: Sequence[str], rules: Sequence[Mapping[str, Any]] = (), backend: str = BY_EXTENDER
) -> InClusterFacts:
    """The facts of this cluster. wanted: names of the GPU nodes, none for those with our label. rules: of our accounts. KubectlError."""
    nodes = kubectl.pages("/api/v1/nodes", optional=True)
    daemon_sets, pods = _daemon_sets(kubectl), kubectl.pages("/api/v1/pods", optional=True)
    accounts = kubectl.pages(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", optional=True)
    own = [daemon_set for daemon_set in daemon_sets if place_of(daemon_set) == (namespace, PLUGIN)]
    coming = {str(item["metadata"]["name"]) for item in nodes if item["metadata"]["name"] in wanted or has_gpus(item)}
    backends = _backends(kubectl, daemon_sets)
    by_claim = claims.waiting(kubectl) if any(entry.backend == BY_CLAIMS for entry in backends) else []
    found = [_node(item) for item in nodes if item["metadata"]["name"] in wanted or (not wanted and _is_ours(item))]
    names = {node.name for node in found}
    return InClusterFacts(
        version=str((kubectl.raw("/version") or {}).get("gitVersion", "")),
        admission=sorted(served(ADMISSION, kubectl.raw)),
        openshift="SecurityContextConstraints" in served("security.openshift.io/v1", kubectl.raw),
        nodes=found,
        number=len(nodes),
        homes=homes(nodes, coming),
        displaced=[f"{pod} on {node}" for pod, node in sorted(displaced(pods, namespace, coming).items())],
        away=sorted(str(item["metadata"]["name"]) for item in nodes if wanted and _is_ours(item) and not is_ready(item)),
        missing=sorted(set(wanted) - names),
        runtime_classes=[str(item["metadata"]["name"]) for item in kubectl.pages("/apis/node.k8s.io/v1/runtimeclasses", optional=True)],
        enforces=_enforces(kubectl.raw(f"/api/v1/namespaces/{namespace}")),
        on_hosts=of_hosts(accounts),
        others=_others(namespace, daemon_sets, lambda: pods, names),
        holders=[f"{pod['pod']} on {pod['node']}" for pod in gpu_pods(pods, names, _OF_NVIDIA.fullmatch)],
        gpu_operator=gpu_operator.gathered(kubectl),
        dra=dra.gathered(kubectl),
        unit=_unit(own[0]) if own else "",
        scheduler=_scheduler(kubectl, namespace),
        backends=backends,
        lacks=claims.lacks(kubectl) if backend == BY_CLAIMS else [],
        pods=[f"{pod['pod']} on {pod['node']}" for pod in gpu_pods(pods, None)],
        waiting=sorted({*waiting_pods(pods), *by_claim}),
        may_grant=_may_grant(kubectl, rules),
    )


def when_told(
    gather_now: Callable[[], InClusterFacts],
    image: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> InClusterFacts:
    """The facts as soon as every GPU node has the image, at the latest after that many seconds: kubelet tells of a new one within 10 s."""
    deadline = clock() + seconds
    while True:
        facts = gather_now()
        if clock() >= deadline or all(image in node.images for node in facts.nodes):
            return facts
        sleep(_POLL_SECONDS)


def given_by_others(kubectl: Kubectl, namespace: str, nodes: Set[str], by_claims: bool = False) -> Dict[str, List[str]]:
    """Node to what else gives its GPUs to pods: device plugins by their DaemonSets, and drivers of dynamic resource allocation.

    by_claims: whether one of these drivers is ours.
    """
    found: Dict[str, List[str]] = {}
    for plugin in _others(namespace, _daemon_sets(kubectl), lambda: kubectl.pages("/api/v1/pods", optional=True), nodes):
        for node in plugin.nodes:
            found.setdefault(node, []).append(f"{plugin.title} ({plugin.kind})")
    for entry in dra.published(kubectl):
        if entry.node in nodes and not (by_claims and entry.driver == DRA_OWN):
            found.setdefault(entry.node, []).append(f"ResourceSlices of {entry.driver}")
    return found


def _daemon_sets(kubectl: Kubectl) -> List[Dict[str, Any]]:
    return kubectl.pages("/apis/apps/v1/daemonsets", optional=True)


def _others(
    namespace: str, daemon_sets: Sequence[Mapping[str, Any]], pods: Callable[[], Sequence[Mapping[str, Any]]], nodes: Set[str]
) -> List[ServingPlugin]:
    """Device plugins of others that serve one of these nodes: elsewhere they may stay. namespace: our own. pods: all, asked if need be."""
    daemon_sets = [daemon_set for daemon_set in daemon_sets if daemon_set["metadata"]["namespace"] != namespace]
    plugins = other_plugins(daemon_sets)
    on: Dict[str, Set[str]] = {}
    for pod in pods() if plugins else ():
        node = str(pod["spec"].get("nodeName") or "")
        if node in nodes and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            for owner in pod["metadata"].get("ownerReferences") or ():
                on.setdefault(str(owner.get("uid")), set()).add(node)
    uids = {place_of(daemon_set): str(daemon_set["metadata"].get("uid")) for daemon_set in daemon_sets}
    found = [(plugin, on.get(uids[plugin.namespace, plugin.name])) for plugin in plugins]
    return [ServingPlugin(plugin.title, plugin.kind, sorted(here)) for plugin, here in found if here]


def _is_ours(node: Mapping[str, Any]) -> bool:
    return (node["metadata"].get("labels") or {}).get(LABEL_NODE) == "true"


def _node(item: Mapping[str, Any]) -> ClusterNode:
    status = item.get("status") or {}
    info, images = status.get("nodeInfo") or {}, status.get("images") or []
    return ClusterNode(
        name=str(item["metadata"]["name"]),
        architecture=str(info.get("architecture", "")),
        platform=_platform(item["metadata"]),
        ready=is_ready(item),
        kubelet=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
        images=[str(name) for image in images for name in image.get("names") or []],
        all=len(images) < IMAGES_TOLD,
    )


def _platform(metadata: Mapping[str, Any]) -> str:
    """A provider's kind of node whose pods get no folder of the host, "" for another one.

    By label or name, as projects on GitHub that tell them apart do (read on 2026-11-25).
    """
    labels, name = metadata.get("labels") or {}, str(metadata["name"])
    if labels.get("eks.amazonaws.com/compute-type") == "fargate" or name.startswith("fargate-ip-"):
        return "Fargate"
    if labels.get("cloud.google.com/gke-autopilot") == "true" or name.startswith("gk3-"):
        return "GKE Autopilot"
    return ""


def _enforces(namespace: Optional[Mapping[str, Any]]) -> str:
    """The standard for pods that a namespace enforces, "" for none."""
    return str((((namespace or {}).get("metadata") or {}).get("labels") or {}).get(_ENFORCE, ""))


def _unit(daemon_set: Mapping[str, Any]) -> str:
    """The unit of the device plugin that is installed, "" where it says none."""
    return setting(daemon_set["spec"]["template"], "memoryUnit", "--memory-unit")


def _scheduler(kubectl: Kubectl, namespace: str) -> str:
    """Where the extender of an installation is: "own" beside a scheduler of its own, "default" beside the cluster's, "" nowhere."""
    paths = {"own": f"deployments/{SCHEDULER}", "default": f"daemonsets/{EXTENDER}"}
    found = [which for which, path in paths.items() if kubectl.raw(f"/apis/apps/v1/namespaces/{namespace}/{path}") is not None]
    return found[0] if found else ""


def _backends(kubectl: Kubectl, daemon_sets: Sequence[Mapping[str, Any]]) -> List[InstalledBackend]:
    """Each installation of which a part is there, in any namespace.

    A removal that ended in the middle has left a role; its namespace is "". Of a namespace that may be a tenant's only a binding for the
    whole cluster says that its objects are an installation.
    """
    kinds = [f"{kind}.rbac.authorization.k8s.io/{name}" for kind in ("clusterroles", "clusterrolebindings") for name in MARKERS]
    rights = kubectl.items(["get", *kinds, "--ignore-not-found", "--show-managed-fields"])
    bound = {str(subject.get("namespace")) for item in rights for subject in item.get("subjects") or ()}
    parts = [("DaemonSet", item, _backend_of(item)) for item in daemon_sets if item["metadata"]["name"] in (PLUGIN, EXTENDER)]
    for name, backend in MARKERS.items():
        found = kubectl.pages("/apis/apps/v1/deployments", optional=True, fieldSelector=f"metadata.name={name}")
        parts += [("Deployment", item, backend) for item in found]
    installed: Dict[Tuple[str, str], InstalledBackend] = {}
    for kind, item, backend in parts:
        metadata = item["metadata"]
        space, applied = str(metadata.get("namespace")), bool(ours([item], "apps/v1", kind))
        of_gpushare = (metadata.get("labels") or {}).get("app.kubernetes.io/part-of") == "gpushare"
        if (space in bound or re.fullmatch(NAMESPACES, space)) and (applied or of_gpushare):
            release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
            entry = InstalledBackend(backend, space)
            if not applied:
                entry = replace(entry, owner=owner_of(metadata) or MANIFEST, release=short(release or ""))
            installed.setdefault((backend, space), entry)
    left = {MARKERS[named.name] for named in ours([item for item in rights if item["kind"] == "ClusterRole"], _RBAC, "ClusterRole")}
    for backend in left - {entry.backend for entry in installed.values()}:
        installed[backend, ""] = InstalledBackend(backend, "")
    return [installed[place] for place in sorted(installed)]


def _backend_of(daemon_set: Mapping[str, Any]) -> str:
    template = (daemon_set.get("spec") or {}).get("template") or {}
    return BY_CLAIMS if setting(template, "backend", "") == BY_CLAIMS else BY_EXTENDER


def _may_grant(kubectl: Kubectl, rules: Sequence[Mapping[str, Any]]) -> str:
    """Why this user may not grant these rights, "" if it may: the API server's own word for a request that writes nothing."""
    role = {"apiVersion": _RBAC, "kind": "ClusterRole", "metadata": {"generateName": "gpushare-preflight-"}, "rules": list(rules)}
    try:
        kubectl.text(["create", "--dry-run=server", "-f", "-"], json.dumps(role))
    except KubectlError as error:
        return " ".join(str(error).split())[-300:]
    return ""

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings against an installation in the cluster: what its API server says, and what the variables ask for.

Pure. Every reason is found before anything is changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._cluster.names import BY_CLAIMS, BY_EXTENDER, LABEL_NODE, MANIFEST, NAMESPACES, RUNTIME_CLASS
from ...module_utils._facts.device_managers import OPERATOR
from ...module_utils._facts.device_strategy import by_status, off_by_default
from ...module_utils._formats.finding import Finding, HostFindings, few
from ...module_utils._formats.versions import numbers
from ...module_utils._in_cluster.claims import holders
from ...module_utils._takeover.operator import CHECK
from .._settings.rows import VARIABLE
from . import dra, gpu_operator
from .reasons import OLDEST_WITH_POLICIES, other_mode

_ARCHITECTURES = ("amd64", "arm64")
#: Of the back end dra: between 1.36 and 1.37.1 a dozen faults of its path were mended (changelogs of Kubernetes, read on 2026-11-29).
OLDEST_WITH_CLAIMS = (1, 37)
_MANIFESTS = {
    BY_EXTENDER: ("docs/manifests/gpushare.yaml", "docs/manifests/scheduler-name.yaml"),
    BY_CLAIMS: ("docs/manifests/dra/gpushare-dra.yaml",),
}
_QUOTED = 80
_TAG = re.compile(r":v?([0-9]{1,3})\.([0-9]{1,3})\.[0-9]+")


@dataclass(frozen=True)
class Bundled:
    """The images of a bundle, references by architecture, and the nodes on whose hosts they are imported."""

    images: Mapping[str, Collection[str]]
    nodes: Collection[str]

    def brings(self, image: str, node: Mapping[str, Any]) -> bool:
        """Whether the node gets it."""
        return node["name"] in self.nodes and image in self.images.get(node["architecture"], ())


@dataclass(frozen=True)
class InClusterSettings:
    """The installation that the variables describe. wires, changes: whether this run changes the hosts' kube-schedulers, and the mode.

    on_gpu_nodes: whether the scheduler's pods may run on GPU nodes.
    """

    image: str
    namespace: str
    scheduler_image: str
    runtime_class: str
    isolation: str
    memory_unit: str
    evicts: bool
    without_policies: bool
    scheduler: str = "own"
    wires: bool = False
    changes: bool = False
    bundle: Bundled | None = None
    operator: str = field(default=CHECK, metadata={VARIABLE: "gpushare_gpu_operator"})
    strategy: str = field(default="auto", metadata={VARIABLE: "gpushare_device_strategy"})
    on_gpu_nodes: bool = field(default=False, metadata={VARIABLE: "gpushare_scheduler_on_gpu_nodes"})
    backend: str = BY_EXTENDER

    @property
    def by_claims(self) -> bool:
        return self.backend == BY_CLAIMS


def judge(facts: Mapping[str, Any], asked: InClusterSettings) -> list[Finding]:
    """facts: of the module gpushare_in_cluster."""
    found = HostFindings("")
    _server(found, facts, asked)
    _nodes(found, facts, asked)
    _space(found, facts, asked)
    if facts["on_hosts"]:
        found.add(other_mode(f"accounts of services on hosts ({few(facts['on_hosts'])})", "keep the services"))
    nodes = [node["name"] for node in facts["nodes"]]
    gpu_operator.judge(found, facts["gpu_operator"], nodes, asked.operator)
    dra.judge(found, dra.of_others(facts["dra"]), facts["gpu_operator"], nodes)
    without = gpu_operator.goes(facts["gpu_operator"], asked.operator)
    staying = (plugin for plugin in facts["others"] if plugin["kind"] != OPERATOR or not without)
    others = [f"{plugin['title']} ({plugin['kind']}) on {few(plugin['nodes'])}" for plugin in staying]
    if others:
        cure = "remove it from these nodes: two device plugins would give the same GPUs twice"
        found.error("managers", f"another device plugin: {few(others)}", "none on the GPU nodes", cure)
    if facts["holders"]:
        cure = "end them first (kubectl drain NODE), because these GPUs would be given twice"
        found.error("managers", f"pods with GPUs of NVIDIA's device plugin: {few(facts['holders'])}", "none on the GPU nodes", cure)
    if asked.isolation == "mps":
        cure = "set gpushare_isolation to auto, watch, driver or none, or install with gpushare_deploy_mode: systemd"
        found.error("isolation", "gpushare_isolation: mps", "another one: each MPS control daemon needs a mount namespace of its own", cure)
    _change_of_backend(found, facts, asked)
    if asked.by_claims:
        _claims(found, facts, asked)
    else:
        _scheduler(found, facts, asked)
        _replicas(found, facts, asked)
    if facts["openshift"] and asked.isolation == "driver":
        cure = (
            "set gpushare_isolation to auto, watch or none: the constraints that OpenShift admits the device plugin by have no capability"
        )
        found.error("isolation", "gpushare_isolation: driver on OpenShift, which needs CAP_SYS_ADMIN", "another one", cure)
    pods = _with_gpus(facts)
    if facts["unit"] and facts["unit"] != asked.memory_unit and pods:
        seen = f"gpushare_memory_unit: {asked.memory_unit}, {facts['unit']} before, and pods with GPUs ({few(pods)})"
        found.error("memory_unit", seen, "no pod that was counted in the other unit", f"end these pods first, or keep {facts['unit']}")
    if facts["may_grant"]:
        cure = "name a kubeconfig that may in gpushare_kubeconfig (the cluster's administrator)"
        found.error("rights", f"no right to grant the scheduler its rights ({facts['may_grant']})", "that right", cure)
    return found.list


def _server(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    version = numbers(facts["version"])
    release = tuple(version[:2]) if version is not None else (0, 0)
    if "ValidatingAdmissionPolicy" not in facts["admission"]:
        oldest = ".".join(map(str, OLDEST_WITH_POLICIES))
        seen = f"an API server {facts['version']} without ValidatingAdmissionPolicy"
        cure = f"upgrade to {oldest}, or accept by gpushare_without_policies: true that each device plugin may write to every node"
        (found.warn if asked.without_policies and not asked.evicts else found.error)("policies", seen, f"{oldest} or newer", cure)
    if not asked.scheduler_image and not asked.by_claims:
        cure = f"name an image of kube-scheduler {release[0]}.{release[1]} in gpushare_scheduler_image"
        seen = f"an API server {facts['version'][:80]}, of which Kubernetes publishes no kube-scheduler"
        found.error("scheduler", seen, "a patch release of Kubernetes, such as v1.36.3", cure)
    tag = _TAG.search(asked.scheduler_image.partition("@")[0])
    if tag is not None and not asked.by_claims and release != (0, 0) and (int(tag[1]), int(tag[2])) != release:
        seen = f"{asked.scheduler_image[:120]} and an API server {facts['version']}"
        cure = "leave gpushare_scheduler_image out, or name an image of the API server's minor version"
        found.error("scheduler", seen, f"kube-scheduler {release[0]}.{release[1]}", cure)


def _change_of_backend(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    """Two back ends would give the same GPUs: what this run cannot remove, and pods that the other one has given a GPU, or was to give one.

    Pods keep their GPUs, and what admission has made of their limits.
    """
    for entry in facts["backends"]:
        elsewhere = entry["namespace"] not in ("", asked.namespace)
        if elsewhere or (entry["owner"] and entry["backend"] != asked.backend):
            seen = f"gpushare_backend: {asked.backend}, and an installation with {entry['backend']} in {entry['namespace'][:_QUOTED]}"
            by = f" by {entry['owner']}" if entry["owner"] else ""
            expected = f"none that this run does not remove: of this collection, in gpushare_namespace ({asked.namespace[:_QUOTED]})"
            found.error("backend", seen + by, expected, _removed_by(entry))
    former = former_of(facts, asked.backend)
    pods = _with_gpus(facts)
    # After a drain others would take their places, and wait.
    cure = f"scale their controllers to 0 first, and delete those that have none, or set gpushare_backend: {former[0]}" if former else ""
    if former and pods:
        seen = f"gpushare_backend: {asked.backend}, an installation with {former[0]}, and pods with GPUs ({few(pods)})"
        found.error("backend", seen, "no pod that the other back end has given a GPU", cure)
    if former and facts["waiting"]:
        seen = f"gpushare_backend: {asked.backend}, an installation with {former[0]}, and pods that wait for it ({few(facts['waiting'])})"
        found.error("backend", seen, "no pod that is written for the other back end, since it would wait for ever", cure)


def _with_gpus(facts: Mapping[str, Any]) -> list[str]:
    """The pods that have a GPU by either back end. A pod of claims names no resource of ours."""
    return sorted({*facts["pods"], *holders(facts["dra"])})


def former_of(facts: Mapping[str, Any], backend: str) -> list[str]:
    """The other back ends of which a part is there. A run removes them before it applies anything."""
    return sorted({entry["backend"] for entry in facts["backends"]} - {backend})


def _removed_by(entry: Mapping[str, str]) -> str:
    """How an installation is removed that no run with the namespace asked for can remove."""
    space = entry["namespace"][:_QUOTED]
    if entry["release"]:
        return f"end the pods with GPUs, then helm uninstall {entry['release'][:_QUOTED]} --namespace {space} --wait"
    if not entry["owner"]:
        return f"remove it first by the playbook cluster with gpushare_cluster_state: absent and gpushare_namespace: {space}"
    if entry["owner"] == MANIFEST:
        files = " ".join(f"-f {file}" for file in _MANIFESTS[entry["backend"]])
        return f"end the pods with GPUs, then kubectl delete {files}, with the namespace that was written into it"
    return f"end the pods with GPUs, then remove it by {entry['owner'][:_QUOTED]}"


def _claims(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    """Reasons against the back end dra: API server, kubelets and runtimes without its needs, and what it does not have."""
    oldest, keep = ".".join(map(str, OLDEST_WITH_CLAIMS)), "or set gpushare_backend: extender"
    dra_seen = f"gpushare_backend: {BY_CLAIMS}"
    if _older(facts["version"]):
        found.error("backend", f"{dra_seen} and an API server {facts['version'][:40]}", f"{oldest} or newer", f"upgrade it, {keep}")
    lacks = [*facts["lacks"], *([] if "MutatingAdmissionPolicy" in facts["admission"] else ["MutatingAdmissionPolicy"])]
    if lacks:
        cure = f"let it serve that (--feature-gates and --runtime-config of kube-apiserver), {keep}"
        found.error("backend", f"{dra_seen} and an API server without {few(lacks)}", "all that claims of GPU memory need", cure)
    old = [f"{node['name']} ({node['kubelet'][:40]})" for node in facts["nodes"] if _older(node["kubelet"])]
    if old:
        found.error("backend", f"{dra_seen} and kubelets of {few(old)}", f"{oldest} or newer", f"upgrade these nodes, {keep}")
    if facts["scheduler"] == "default":
        cure = "uninstall first with the inventory of the control planes: their kube-schedulers ask the extender"
        found.error("backend", f"{dra_seen}, and an installation with gpushare_scheduler: default", "no extender", cure)
    if facts["openshift"]:
        found.error("backend", f"{dra_seen} on OpenShift", "a cluster without SecurityContextConstraints", keep[3:])
    if asked.changes:
        cure = "change the mode with gpushare_backend: extender, then the back end by site"
        found.error("backend", f"{dra_seen} in a change of the mode", "one change at a time", cure)


def _older(version: str) -> bool:
    """Whether this release cannot be one of the back end dra; of an unknown version it is not said."""
    known = numbers(version)
    return known is not None and tuple(known[:2]) < OLDEST_WITH_CLAIMS


def _scheduler(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    default = asked.scheduler == "default"
    if default and not asked.wires:
        cure = "run site with the inventory of the control planes and gpushare_deploy_mode: kubernetes, or set gpushare_scheduler: own"
        found.error("scheduler", "gpushare_scheduler: default in a run that reaches no host", "own: kube-scheduler is a host's", cure)
    if default and asked.namespace == "kube-system":
        cure = "set gpushare_namespace: gpushare-system"
        found.error("scheduler", "gpushare_scheduler: default in kube-system, where services have their accounts", "another one", cure)
    if default and asked.changes:
        cure = "set gpushare_scheduler: own, or uninstall first"
        found.error("scheduler", "gpushare_scheduler: default in a change of the mode", "own", cure)
    if facts["scheduler"] not in ("", asked.scheduler):
        seen = f"gpushare_scheduler: {asked.scheduler}, and an installation with {facts['scheduler']}"
        cure = f"uninstall first, or set gpushare_scheduler: {facts['scheduler']}"
        found.error("scheduler", seen, "one of the two: both would give the same GPUs", cure)


def _replicas(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    """The nodes of the scheduler's pods. With kubeadm's own scheduler the extender is on control planes alone."""
    if asked.scheduler != "own":
        return
    expected = "other nodes for the scheduler's pods: root of their node can bind and delete pods of the whole cluster"
    if asked.on_gpu_nodes:
        where = f", although {few(facts['homes'])} can run them" if facts["homes"] else ""
        found.warn("scheduler_nodes", f"gpushare_scheduler_on_gpu_nodes: true{where}", expected, "set it to false if there is such a node")
    elif not facts["homes"]:
        cure = (
            "add a node without GPUs, or make one Ready, schedulable and free of taints other than that of control planes; or accept that "
            "root of each GPU node controls the cluster by gpushare_scheduler_on_gpu_nodes: true"
        )
        found.error("scheduler_nodes", "GPU nodes only", expected, cure)
    elif facts["displaced"]:
        cure = "nothing: this run ends them, and others begin elsewhere"
        found.warn("scheduler_nodes", f"the scheduler's pods {few(facts['displaced'])}, which are GPU nodes", expected, cure)


def _nodes(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    if facts["missing"]:
        found.error("node", f"no node {few(facts['missing'])}", "the names of GPU nodes", "correct gpushare_cluster_nodes")
    if not facts["nodes"]:
        cure = "name the GPU nodes in gpushare_cluster_nodes, or label them: kubectl label node NAME gpushare.kubernetes/node=true"
        found.error("node", "no GPU node", "at least one node with the label gpushare.kubernetes/node=true", cure)
    odd = [f"{node['name']} ({node['architecture']})" for node in facts["nodes"] if node["architecture"] not in _ARCHITECTURES]
    if odd:
        cure = "take them out of gpushare_cluster_nodes, or remove their label"
        found.error("image", f"nodes of another architecture: {few(odd)}", " or ".join(_ARCHITECTURES), cure)
    managed = [f"{node['name']} ({node['platform']})" for node in facts["nodes"] if node["platform"]]
    if managed:
        cure = "use nodes of another kind: a managed or own node group of EKS, a Standard cluster of GKE"
        found.error("node", f"nodes whose pods get no folder of the host: {few(managed)}", "nodes with hostPath and hostPID", cure)
    away = [node["name"] for node in facts["nodes"] if not node["ready"]]
    unlabel = f"remove their label (kubectl label node NAME {LABEL_NODE}-)"
    if away:
        cure = f"bring them back, or take them out of gpushare_cluster_nodes and {unlabel}"
        found.error("node", f"nodes that are not Ready: {few(away)}", "Ready", cure)
    # The DaemonSet counts them among the pods that an update waits for.
    others = sorted(set(facts["away"]) - set(away))
    if others:
        cure = f"bring them back, or {unlabel}: an update of the device plugin waits for them"
        found.warn("node", f"nodes with the label {LABEL_NODE}=true that are not Ready: {few(others)}", "Ready", cure)
    # Claims have their GPUs by CDI.
    asks, cdi = (f"gpushare_backend: {BY_CLAIMS}", True) if asked.by_claims else ("gpushare_device_strategy: cdi", asked.strategy == "cdi")
    old = [f"{node['name']}: {why}" for node in facts["nodes"] if (why := by_status(node["kubelet"], node["runtime"]))]
    if old and cdi:
        other = (
            "gpushare_backend to extender"
            if asked.by_claims
            else "gpushare_device_strategy to auto, by which each node has the strategy that it can"
        )
        found.error("strategy", f"{asks}, and {few(old)}", "nodes that pass CDI devices on", f"set {other}, or upgrade these nodes")
    off = [f"{node['name']}: {node['runtime'][:40]}" for node in facts["nodes"] if off_by_default(node["runtime"])]
    if off and cdi:
        other = "switch it on" if asked.by_claims else "set gpushare_device_strategy: envvar"
        cure = f"see enable_cdi in the configuration there; where CDI is off, {other}, or upgrade these nodes"
        found.warn("strategy", f"{asks}, and {few(off)}, which has CDI off by default", "CDI switched on", cure)
    # No node can pull such an image.
    if asked.image.startswith("localhost/") and (without := _without(facts, asked, asked.image)):
        cure = (
            "import it there (ctr -n k8s.io images import gpushare-VERSION-ARCH.tar; k0s and MicroK8s: "
            "docs/operate/clusters-of-others.md), or name an image of a registry in gpushare_image"
        )
        if asked.bundle is not None:
            cure = "put it into the bundle (gpushare_bundle_images), and the hosts of these nodes into the inventory"
        found.error("image", f"no image {asked.image} on {few(without)}", "the image on every GPU node", cure)
    if asked.bundle is not None and asked.scheduler_image and (without := _without(facts, asked, asked.scheduler_image)):
        cure = (
            "put it into the bundle (gpushare_bundle_images), and the hosts of these nodes into the inventory; or accept that they pull it "
            "from a registry of yours by gpushare_preflight_accept: [image]"
        )
        found.error("image", f"no image {asked.scheduler_image[:120]} on {few(without)}", "the scheduler's image on every node", cure)
    if asked.runtime_class not in ("", RUNTIME_CLASS, *facts["runtime_classes"]):
        known = few(facts["runtime_classes"]) or "none"
        cure = f"leave gpushare_runtime_class out for {RUNTIME_CLASS}, or set it to '' where NVIDIA's runtime is the nodes' default"
        found.error("runtime", f"no RuntimeClass {asked.runtime_class} ({known})", "it, for containers with GPUs", cure)


def _without(facts: Mapping[str, Any], asked: InClusterSettings, image: str) -> list[str]:
    """Nodes that neither have the image nor get it; of one whose kubelet has not told of all its images nothing is known."""
    nodes = [node for node in facts["nodes"] if node["all"] and image not in node["images"]]
    return [node["name"] for node in nodes if asked.bundle is None or not asked.bundle.brings(image, node)]


def _space(found: HostFindings, facts: Mapping[str, Any], asked: InClusterSettings) -> None:
    if not re.fullmatch(NAMESPACES, asked.namespace):
        cure = "correct gpushare_namespace"
        found.error("namespace", f"gpushare_namespace: {asked.namespace[:80]!r}", "kube-system, or a name that begins with gpushare-", cure)
    if facts["enforces"] not in ("", "privileged"):
        cure = (
            f"kubectl label namespace {asked.namespace} --overwrite pod-security.kubernetes.io/enforce=privileged, or name another in "
            "gpushare_namespace: the device plugin sees the host's processes"
        )
        found.error("namespace", f"namespace {asked.namespace} that enforces {facts['enforces']} pods", "privileged", cure)

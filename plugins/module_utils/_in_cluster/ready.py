# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until gpushare's pods serve, and says what keeps them from it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import BY_CLAIMS, BY_EXTENDER, CLAIMS, DASHBOARD, EXTENDER, LABEL_NODE, LABEL_ON_HOST, PLUGIN, SCHEDULER
from .._evidence.cluster import nodes as node_facts
from .._evidence.cluster import settled
from .._formats.finding import few
from . import claims
from .pods import LONGEST, is_ready, uid_of, warnings

POLL_SECONDS = 1.0
SELECT = "app.kubernetes.io/part-of=gpushare"
#: The template of a DaemonSet, as it numbers it, and of each of its pods (pkg/controller/daemon of Kubernetes).
_WRITTEN, _OF_POD = "deprecated.daemonset.template.generation", "pod-template-generation"


@dataclass(frozen=True)
class Awaited:
    """The installation that must serve.

    nodes: that must be served, none for all with our label. scheduler_only: nodes are served by services for now.
    """

    namespace: str
    backend: str = BY_EXTENDER
    default_scheduler: bool = False
    scheduler_only: bool = False
    nodes: Sequence[str] = ()


def wait(
    kubectl: Kubectl,
    awaited: Awaited,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> List[str]:
    """The parts that are still not ready after that many seconds, and why; nothing if all is."""
    deadline = clock() + seconds
    while True:
        left = unready(kubectl, awaited)
        if not left:
            return []
        if clock() > deadline:
            return [*left, *reasons(kubectl, awaited.namespace)]
        sleep(POLL_SECONDS)


def unready(kubectl: Kubectl, awaited: Awaited) -> List[str]:
    """The workloads, and the nodes, that do not serve yet."""
    namespace, by_claims, nodes = awaited.namespace, awaited.backend == BY_CLAIMS, awaited.nodes
    place = ["--namespace", namespace, "--ignore-not-found"]
    wanted = [("DaemonSet", EXTENDER) if awaited.default_scheduler else ("Deployment", CLAIMS if by_claims else SCHEDULER)]
    wanted += [] if awaited.scheduler_only else [("DaemonSet", PLUGIN)]
    # Only where it was asked for is there a dashboard.
    asked = [*wanted, *([] if awaited.scheduler_only else [("Deployment", DASHBOARD)])]
    found = kubectl.items(["get", *(f"{kind.lower()}s.apps/{name}" for kind, name in asked), *place])
    there = {(str(item["kind"]), str(item["metadata"]["name"])) for item in found}
    left = [f"{kind} {namespace}/{name} is not there" for kind, name in wanted if (kind, name) not in there]
    # A dead node of others counts in the status of the DaemonSet.
    pods = _plugin_pods(kubectl, namespace) if nodes and not awaited.scheduler_only else []
    left += [words for words in (_unready(item, nodes, pods) for item in found) if words]
    if left or awaited.scheduler_only:
        return left
    names = list(nodes) or [str(item["metadata"]["name"]) for item in _labelled(kubectl)]
    if by_claims:
        return claims.broken(kubectl, names, namespace)
    return [
        f"node {node['metadata']['name']}: kubelet does not have what the device plugin has published"
        for node in node_facts(kubectl, names)
        if not settled(node)
    ]


def beside(kubectl: Kubectl, awaited: Awaited) -> List[str]:
    """Troubles of what this run was not about: nodes with our label beside those of it, and namespaces that take no template."""
    nodes = awaited.nodes
    served = {_node_of(pod) for pod in _plugin_pods(kubectl, awaited.namespace) if is_ready(pod)} if nodes else set()
    others = [item["metadata"] for item in (_labelled(kubectl) if nodes else ())]
    names = [str(metadata["name"]) for metadata in others if LABEL_ON_HOST not in (metadata.get("labels") or {})]
    without = sorted(set(names) - set(nodes) - served)
    found = [
        f"found that no pod of the device plugin serves {few(without)}, which have the label {LABEL_NODE}=true and are not in "
        f"gpushare_cluster_nodes; expected GPU nodes, so bring them back, or remove the label: kubectl label node NAME {LABEL_NODE}-"
    ]
    return found * bool(without) + (claims.without_templates(kubectl) if awaited.backend == BY_CLAIMS else [])


def _labelled(kubectl: Kubectl) -> List[Dict[str, Any]]:
    return kubectl.items(["get", "nodes", "--selector", f"{LABEL_NODE}=true"])


def _plugin_pods(kubectl: Kubectl, namespace: str) -> List[Dict[str, Any]]:
    return kubectl.items(["get", "pods", "--namespace", namespace, "--selector", f"app.kubernetes.io/name={PLUGIN}"])


def _node_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _unready(item: Mapping[str, Any], nodes: Sequence[str], pods: Sequence[Mapping[str, Any]]) -> str:
    """Why a workload does not run as it is written; "" if it does. nodes: on which the device plugin must, none for all. pods: its own."""
    metadata, status = item["metadata"], item.get("status") or {}
    title = f"{item['kind']} {metadata['namespace']}/{metadata['name']}"
    if int(status.get("observedGeneration", 0)) < int(metadata.get("generation", 0)):
        return f"{title}: its controller has not seen it yet"
    if item["kind"] == "Deployment":
        want, new = int(item["spec"].get("replicas", 1)), int(status.get("updatedReplicas", 0))
        good, every = int(status.get("availableReplicas", 0)), int(status.get("replicas", 0))
        return "" if new == good == every == want else f"{title}: {good} of {want} pods serve, {new} of them as written"
    want, new = int(status.get("desiredNumberScheduled", 0)), int(status.get("updatedNumberScheduled", 0))
    good = int(status.get("numberReady", 0))
    if want and nodes and metadata["name"] == PLUGIN:
        here = [pod for pod in pods if _node_of(pod) in nodes and "deletionTimestamp" not in pod["metadata"]]
        written = (metadata.get("annotations") or {}).get(_WRITTEN)
        of_now = {_node_of(pod) for pod in here if (pod["metadata"].get("labels") or {}).get(_OF_POD) == written}
        want, new, good = len(nodes), len(of_now), len({_node_of(pod) for pod in here if is_ready(pod)})
    if not want:
        lacks = "the label of a control plane" if metadata["name"] == EXTENDER else f"the label {LABEL_NODE}=true"
        return f"{title}: no node has {lacks}"
    return "" if new == good == want else f"{title}: {good} of {want} pods serve, {new} of them as written"


def reasons(kubectl: Kubectl, namespace: str) -> List[str]:
    """The messages of the pods that do not serve, and the last warning about each."""
    pods = kubectl.items(["get", "pods", "--namespace", namespace, "--selector", SELECT])
    warned, found = warnings(kubectl, namespace), []
    for pod in pods:
        if not is_ready(pod):
            name = str(pod["metadata"]["name"])
            words = [*_states(pod), *([warned[uid_of(pod)]] if uid_of(pod) in warned else []), *_log(kubectl, namespace, name)]
            node = (pod.get("spec") or {}).get("nodeName") or "no node"
            found.append(f"pod {pod['metadata']['name']} on {node}: {'; '.join(words) or 'it says nothing'}")
    return found


def _log(kubectl: Kubectl, namespace: str, name: str) -> List[str]:
    """The last words of a pod that runs: our daemons say there what they wait for."""
    try:
        said = kubectl.text(["logs", name, "--namespace", namespace, "--all-containers", "--tail=1", "--limit-bytes=4000"])
    except KubectlError:
        return []
    return [" ".join(line.split())[:LONGEST] for line in said.splitlines()[-2:] if line.strip()]


def _states(pod: Mapping[str, Any]) -> List[str]:
    status = pod.get("status") or {}
    found = [
        str(condition.get("message", ""))
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and "message" in condition
    ]
    for container in status.get("containerStatuses") or []:
        for state in ((container.get("state") or {}).get("waiting"), (container.get("lastState") or {}).get("terminated")):
            if state:
                words = f"{container['name']}: {state.get('reason', '')} {state.get('message', '')} {state.get('exitCode', '')}"
                found.append(" ".join(words.split())[:LONGEST])
    return found

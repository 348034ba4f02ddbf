# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until gpushare's pods serve, and says what keeps them from it.

Private to this collection.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import LABEL_NODE, PLUGIN
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.cluster import nodes as node_facts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.cluster import settled

POLL_SECONDS = 1.0
SCHEDULER = "gpushare-scheduler"
SELECT = "app.kubernetes.io/part-of=gpushare"
_SHOWN = 300


def wait(
    kubectl: Kubectl,
    namespace: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> List[str]:
    """What is still not ready after that many seconds; nothing if all is."""
    deadline = clock() + seconds
    while True:
        left = unready(kubectl, namespace)
        if not left:
            return []
        if clock() > deadline:
            return [*left, *reasons(kubectl, namespace)]
        sleep(POLL_SECONDS)


def unready(kubectl: Kubectl, namespace: str) -> List[str]:
    """Which of the two workloads, and which nodes, do not serve yet."""
    place = ["--namespace", namespace, "--ignore-not-found"]
    found = kubectl.items(["get", f"deployments.apps/{SCHEDULER}", f"daemonsets.apps/{PLUGIN}", *place])
    there = {str(item["kind"]) for item in found}
    left = [
        f"{kind} {namespace}/{name} is not there" for kind, name in (("Deployment", SCHEDULER), ("DaemonSet", PLUGIN)) if kind not in there
    ]
    left += [words for words in map(_unready, found) if words]
    if left:
        return left
    labelled = kubectl.items(["get", "nodes", "--selector", f"{LABEL_NODE}=true"])
    names = [str(item["metadata"]["name"]) for item in labelled]
    return [
        f"node {one['metadata']['name']}: kubelet does not offer what the device plugin has published"
        for one in node_facts(kubectl, names)
        if not settled(one)
    ]


def _unready(item: Mapping[str, Any]) -> str:
    """Why a workload does not run as it is written; "" if it does."""
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
    if not want:
        return f"{title}: no node has the label {LABEL_NODE}=true"
    return "" if new == good == want else f"{title}: {good} of {want} pods serve, {new} of them as written"


def reasons(kubectl: Kubectl, namespace: str) -> List[str]:
    """What the pods that do not serve say, and the last warning about each."""
    pods = kubectl.items(["get", "pods", "--namespace", namespace, "--selector", SELECT])
    warnings: Dict[str, str] = {}
    for event in kubectl.items(["get", "events", "--namespace", namespace, "--field-selector", "type=Warning"]):
        name = str((event.get("involvedObject") or {}).get("name", ""))
        warnings[name] = " ".join(f"{event.get('reason', '')}: {event.get('message', '')}".split())[:_SHOWN]
    found = []
    for pod in pods:
        if not _serves(pod):
            name = str(pod["metadata"]["name"])
            words = [*_states(pod), *([warnings[name]] if name in warnings else []), *_log(kubectl, namespace, name)]
            node = (pod.get("spec") or {}).get("nodeName") or "no node"
            found.append(f"pod {pod['metadata']['name']} on {node}: {'; '.join(words) or 'it says nothing'}")
    return found


def _log(kubectl: Kubectl, namespace: str, name: str) -> List[str]:
    """The last words of a pod that runs: our daemons say there what they wait for."""
    try:
        said = kubectl.text(["logs", name, "--namespace", namespace, "--all-containers", "--tail=1", "--limit-bytes=4000"])
    except KubectlError:
        return []
    return [" ".join(line.split())[:_SHOWN] for line in said.splitlines()[-2:] if line.strip()]


def _serves(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _states(pod: Mapping[str, Any]) -> List[str]:
    status = pod.get("status") or {}
    found = [
        str(one.get("message", "")) for one in status.get("conditions") or [] if one.get("type") == "PodScheduled" and "message" in one
    ]
    for one in status.get("containerStatuses") or []:
        for state in ((one.get("state") or {}).get("waiting"), (one.get("lastState") or {}).get("terminated")):
            if state:
                words = f"{one['name']}: {state.get('reason', '')} {state.get('message', '')} {state.get('exitCode', '')}"
                found.append(" ".join(words.split())[:_SHOWN])
    return found

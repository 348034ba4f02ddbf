# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps in the cluster by which a node's device plugin, and then the scheduler, change between a service of a host and a pod.

A label keeps the DaemonSet off the nodes whose service serves them. Two schedulers with an extender each would give the same GPUs twice, so
one has ended before the other one begins.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from .._cluster.kubectl import Kubectl, as_list
from .._cluster.names import CLAIMS, LABEL_ON_HOST, NAMESPACE, PLUGIN, SCHEDULER
from .._cluster.objects import key
from .._evidence.cluster import nodes as node_facts
from .._evidence.cluster import settled
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._formats.finding import few
from .._removal.cluster import KINDS, ours, requested
from .pods import is_ready, until
from .removal import WORKLOADS

#: The policies that give pods the name of the scheduler in the cluster, or reject pods with another one.
NAME_POLICY = "gpushare-scheduler-name"
_POLICY_KINDS = (
    "mutatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicies",
)


@dataclass(frozen=True)
class ObjectsMoved(ModuleAnswer):
    """The answer of gpushare_in_cluster that changes something: titles of the objects."""

    objects: List[str]
    diff: List[DiffPart]


class HandoverError(Failure):
    """Why the next step is not taken: what was found, what was expected, what to do."""


class Handover:
    """seconds: for each step. clock and sleep: of this process, in seconds."""

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._place = ["--namespace", namespace]
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep

    def waiting(self, to_pods: bool) -> None:
        """HandoverError for pods that ask for GPUs and wait for the scheduler that is about to end: a pod keeps its scheduler's name.

        Also where there is no such scheduler, with the back end dra.
        """
        if self._kubectl.items(["get", f"deployments.apps/{CLAIMS}", "--namespace", self._namespace, "--ignore-not-found"]):
            raise HandoverError(
                f"found the Deployment {CLAIMS} of gpushare_backend: dra; expected the back end extender, which both modes have. End the "
                "pods with GPUs, run site with gpushare_backend: extender, and change the mode then. Nothing was changed"
            )
        left: List[str] = []

        def none() -> bool:
            pods = json.loads(self._kubectl.text(["get", "--raw", "/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending"]))
            left[:] = [_name(pod) for pod in pods["items"] if requested(pod["spec"]) and (_scheduler(pod) != SCHEDULER) == to_pods]
            return not left

        if not self._until(none):
            raise HandoverError(
                f"found pods that wait for GPUs and keep the name of their scheduler: {few(left, 8)}; expected none. "
                "Wait until they run, or delete them: what their controllers make again gets the new scheduler"
            )

    def mark(self, nodes: Sequence[str], dry: bool) -> List[str]:
        """Keep the DaemonSet off these nodes. The nodes that change."""
        there = {str(item["metadata"]["name"]): _labels(item) for item in self._kubectl.items(["get", "nodes"])}
        missing = [name for name in nodes if name in there and there[name].get(LABEL_ON_HOST) != "true"]
        if missing and not dry:
            self._kubectl.text(["label", "nodes", *missing, f"{LABEL_ON_HOST}=true", "--overwrite"])
        return [f"Node {name}" for name in missing]

    def to_pod(self, node: str, dry: bool) -> List[str]:
        """Let the DaemonSet have this node, and wait until its pod serves and kubelet provides what it publishes."""
        (item,) = self._kubectl.items(["get", "node", node])
        if LABEL_ON_HOST not in _labels(item):
            return []
        if not dry:
            self._kubectl.text(["label", "node", node, f"{LABEL_ON_HOST}-"])
            if not self._until(lambda: self._serves(node)):
                raise HandoverError(
                    f"found that the pod of the device plugin on {node} does not serve within {self._seconds:g} s; expected it to. See "
                    f"`kubectl -n {self._namespace} describe pods` and the pod's log, and run again"
                )
        return [f"Node {node}"]

    def to_host(self, node: str, dry: bool) -> List[str]:
        """Take the DaemonSet off this node, and wait until its pod is gone."""
        changed = self.mark([node], dry)
        if not dry and not self._until(lambda: not self._plugins(node)):
            raise HandoverError(
                f"found that the pod of the device plugin on {node} does not end within {self._seconds:g} s; expected it to. See whether "
                "kubelet runs there, and run again"
            )
        return changed

    def stop_scheduler(self, dry: bool) -> List[str]:
        """No pod of the scheduler is left, and new pods do not get its name: the role scheduler verifies kube-scheduler by one."""
        gone = self._delete(_POLICY_KINDS[:2], dry)
        found = self._kubectl.items(["get", f"deployments.apps/{SCHEDULER}", *self._place, "--ignore-not-found"])
        if not found or int(found[0]["spec"].get("replicas", 1)) == 0:
            return gone
        if not dry:
            self._kubectl.text(["scale", f"deployments.apps/{SCHEDULER}", *self._place, "--replicas=0"])
            if not self._until(lambda: not self._pods(SCHEDULER)):
                raise HandoverError(
                    f"found pods of {SCHEDULER} that do not end within {self._seconds:g} s; expected none. Delete those on nodes that are "
                    "gone, and run again"
                )
        return [*gone, f"Deployment {self._namespace}/{SCHEDULER}"]

    def open(self, dry: bool) -> List[str]:
        """Pods keep the name of the scheduler that they have."""
        return self._delete(_POLICY_KINDS, dry)

    def _delete(self, kinds: Sequence[str], dry: bool) -> List[str]:
        """The policies about the name of the scheduler, of these kinds."""
        gone = []
        for kind in kinds:
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{NAME_POLICY}"
            if self._kubectl.raw(path) is not None:
                gone.append(f"{kind}/{NAME_POLICY}")
        if gone and not dry:
            self._kubectl.text(["delete", *gone, "--ignore-not-found"])
        return gone

    def prune(self, keep: Sequence[Mapping[str, Any]], pods_too: bool, dry: bool) -> List[str]:
        """Remove our objects that are not among these. pods_too: also the pods' workloads and their namespace, and the nodes' label."""
        kept = {key(wanted) for wanted in keep}
        if not kept:
            raise HandoverError("found no object to keep; expected those of the new mode. This is an error of the playbook")
        gone: List[Dict[str, Any]] = []
        for path, version, kind in KINDS:
            items = (self._kubectl.raw(path) or {}).get("items") or []
            gone += [own.reference() for own in ours(items, version, kind) if (own.kind, own.namespace, own.name) not in kept]
        titles = [f"{reference['kind']} {reference['metadata'].get('namespace', '')}/{reference['metadata']['name']}" for reference in gone]
        found, spaces, labelled = self._of_pods() if pods_too else ([], [], [])
        if dry:
            return [*titles, *found, *spaces, *labelled]
        for resource in found:
            self._kubectl.text(["delete", resource, *self._place, "--ignore-not-found", "--wait=true", f"--timeout={self._seconds:g}s"])
        if gone:
            self._kubectl.text(["delete", "-f", "-", "--ignore-not-found"], as_list(gone))
        for space in spaces:
            self._kubectl.text(["delete", space, "--ignore-not-found", "--wait=true", f"--timeout={self._seconds:g}s"])
        if labelled:
            self._kubectl.text(["label", "nodes", *labelled, f"{LABEL_ON_HOST}-"])
        return [*titles, *found, *spaces, *labelled]

    def _of_pods(self) -> Tuple[List[str], List[str], List[str]]:
        """Workloads, the namespace, and nodes with the label."""
        found = [resource for _, _, resource in WORKLOADS if self._kubectl.items(["get", resource, *self._place, "--ignore-not-found"])]
        listed = (
            []
            if self._namespace == NAMESPACE
            else self._kubectl.items(["get", "namespace", self._namespace, "--ignore-not-found", "--show-managed-fields"])
        )
        spaces = [f"namespace/{self._namespace}"] if ours(listed, "v1", "Namespace") else []
        nodes = self._kubectl.items(["get", "nodes", "--selector", LABEL_ON_HOST])
        return found, spaces, [str(item["metadata"]["name"]) for item in nodes]

    def _serves(self, node: str) -> bool:
        ready = [pod for pod in self._plugins(node) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
        return bool(ready) and all(map(settled, node_facts(self._kubectl, [node])))

    def _plugins(self, node: str) -> List[Dict[str, Any]]:
        return [pod for pod in self._pods(PLUGIN) if (pod.get("spec") or {}).get("nodeName") == node]

    def _pods(self, name: str) -> List[Dict[str, Any]]:
        return self._kubectl.items(["get", "pods", *self._place, "--selector", f"app.kubernetes.io/name={name}"])

    def _until(self, holds: Callable[[], bool]) -> bool:
        return until(holds, self._seconds, self._clock, self._sleep)


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _scheduler(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("schedulerName") or "default-scheduler")

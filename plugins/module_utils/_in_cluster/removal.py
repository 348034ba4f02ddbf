# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes gpushare's pods out of a cluster, and what they have left on the nodes, through the API alone.

Accounts, policies and the nodes' fields go by `_removal/cluster.py`, as in the other mode.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

from .._cluster import dra
from .._cluster.kubectl import Kubectl, as_list
from .._cluster.names import (
    ANNOTATION_GPUS,
    ANNOTATION_SCHEDULER_CONFIG,
    BY_CLAIMS,
    CLAIMS,
    DASHBOARD,
    EXTENDER,
    LABEL_NODE,
    NAMESPACE,
    PLUGIN,
    SCHEDULER,
)
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._formats.finding import few
from .._removal.cluster import gpu_pods, in_namespace, of_hosts, ours, waiting_pods
from . import claims
from .pods import CLEANUP, Image, Runs, cleanup, until
from .told import setting

_SHOWN = 10
WORKLOADS = (
    ("apps/v1", "Deployment", f"deployments.apps/{SCHEDULER}"),
    ("apps/v1", "DaemonSet", f"daemonsets.apps/{PLUGIN}"),
    ("apps/v1", "DaemonSet", f"daemonsets.apps/{EXTENDER}"),
    ("apps/v1", "Deployment", f"deployments.apps/{CLAIMS}"),
    ("policy/v1", "PodDisruptionBudget", f"poddisruptionbudgets.policy/{SCHEDULER}"),
    ("networking.k8s.io/v1", "NetworkPolicy", f"networkpolicies.networking.k8s.io/{SCHEDULER}"),
    ("networking.k8s.io/v1", "NetworkPolicy", f"networkpolicies.networking.k8s.io/{PLUGIN}"),
    ("apps/v1", "Deployment", f"deployments.apps/{DASHBOARD}"),
    ("v1", "Service", f"services/{DASHBOARD}"),
    ("networking.k8s.io/v1", "NetworkPolicy", f"networkpolicies.networking.k8s.io/{DASHBOARD}"),
)


class RemovalError(Failure):
    """Why nothing is removed, or not all."""


@dataclass(frozen=True)
class PodsRemoved(ModuleAnswer):
    """The answer of gpushare_cluster that has removed the daemons in the cluster. nodes: those that they had served."""

    removed: List[str]
    nodes: List[str]
    diff: List[DiffPart]


class InClusterRemoval:
    """One run. It reads everything first, so that check mode says what `apply` then does. removed: messages; nodes: with our label.

    reinstalls: another back end comes at once, and the namespace stays with what others have in it.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        seconds: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        reinstalls: bool = False,
    ) -> None:
        self._reinstalls = reinstalls
        self._kubectl = kubectl
        self._clock = clock
        self._sleep = sleep
        self._namespace = namespace
        self._seconds = seconds
        place = ["--namespace", namespace, "--ignore-not-found", "--show-managed-fields"]
        self._found: Dict[str, Mapping[str, Any]] = {}
        for version, kind, resource in WORKLOADS:
            items = kubectl.items(["get", resource, *place])
            if ours(items, version, kind):
                self._found[resource] = items[0]
        accounts = kubectl.items(["get", "serviceaccounts", "--namespace", NAMESPACE, "--show-managed-fields"])
        self._on_hosts = of_hosts(accounts)
        nodes = kubectl.items(["get", "nodes"])
        self.nodes = sorted(str(node["metadata"]["name"]) for node in nodes if _served(node))
        spaces = [] if namespace == NAMESPACE or reinstalls else kubectl.items(["get", "namespace", namespace, *place[2:]])
        self._own_namespace = bool(ours(spaces, "v1", "Namespace"))
        # Those of kube-system go by `_removal/cluster.py`, which also takes away what they were granted.
        self._beside = [] if namespace == NAMESPACE or self._own_namespace else in_namespace(kubectl, namespace)
        self.removed = [f"{item['kind']} {namespace}/{item['metadata']['name']}" for item in self._found.values()]
        if self._plugin is not None:
            self.removed += [f"state folder, sockets and CDI spec on node {node}" for node in self.nodes]
        self.removed += [named.title for named in self._beside]
        self.removed += [f"Namespace {namespace}"] * self._own_namespace

    @property
    def _plugin(self) -> Any:
        return self._found.get(WORKLOADS[1][2])

    def check(self, force: bool) -> None:
        """RemovalError in a cluster of the other mode, whose objects are not ours to remove; and where pods with a share of a GPU run: they
        would lose what keeps others off their memory, and those with a claim could not end.
        """
        if self._on_hosts:
            raise RemovalError(
                f"found accounts of services on hosts: {', '.join(self._on_hosts[:_SHOWN])}; expected gpushare as pods. Run uninstall "
                "with the inventory of these hosts. Nothing was changed"
            )
        if f"daemonsets.apps/{EXTENDER}" in self._found:
            planes = self._kubectl.items(["get", "pods", "--namespace", NAMESPACE, "--selector", "component=kube-scheduler"])
            wired = [pod for pod in planes if ANNOTATION_SCHEDULER_CONFIG in (pod["metadata"].get("annotations") or {})]
            if wired:
                names = ", ".join(str(pod["metadata"]["name"]) for pod in wired[:_SHOWN])
                raise RemovalError(
                    f"found that {names} asks the extender; expected none. Run uninstall with the inventory of the control planes. Nothing "
                    "was changed"
                )
        if not self.removed:
            return
        by_claim = claims.holders(dra.facts(self._kubectl))
        if by_claim:
            raise RemovalError(
                f"found pods with a GPU by a claim: {few(by_claim, _SHOWN)}; expected none, also with gpushare_uninstall_force, because "
                "kubelet ends such a pod only after the device plugin has released its claim: without it they would stay Terminating for "
                "ever. End them first. Nothing was changed"
            )
        if force:
            return
        pods = json.loads(self._kubectl.text(["get", "--raw", "/api/v1/pods"]))["items"]
        by_own_claim = claims.waiting(self._kubectl) if f"deployments.apps/{CLAIMS}" in self._found else []
        waiting = sorted({*waiting_pods(pods), *by_own_claim}) if self._reinstalls else []
        if waiting:
            raise RemovalError(
                f"found pods that wait for a share of a GPU of this back end: {few(waiting, _SHOWN)}; expected none, because they would "
                "wait for ever. Scale their controllers to 0, and delete those that have none. Nothing was changed"
            )
        using = [f"{pod['pod']} on {pod['node']}" for pod in gpu_pods(pods, None)]
        if using:
            raise RemovalError(
                f"found pods with a share of a GPU: {few(using, _SHOWN)}; expected none. End them first, or set "
                "gpushare_uninstall_force: true. Nothing was changed"
            )

    def apply(self) -> None:
        """Do it. KubectlError or RemovalError as soon as something does not work; the next run continues.

        The DaemonSet goes last of what it is known by: until the files of all nodes are gone, the next run sees it.
        """
        place, wait = ["--namespace", self._namespace], ["--ignore-not-found", "--wait=true", f"--timeout={self._seconds}s"]
        runs = Runs(self._kubectl, self._namespace, CLEANUP)
        plugin = self._plugin
        if plugin is not None:
            # Without its pods on any node, but still there.
            patch = {"spec": {"template": {"spec": {"nodeSelector": {"gpushare.kubernetes/removed": "true"}}}}}
            self._kubectl.text(["patch", "daemonset", PLUGIN, *place, "--type=merge", "-p", json.dumps(patch)])
            self._until_gone([*place, "--selector", f"app.kubernetes.io/name={PLUGIN}"])
            template = plugin["spec"]["template"]
            cdi = setting(template, "cdiDir", "--cdi-dir")
            root = setting(template, "kubeletRoot", "--kubelet-root") if setting(template, "backend", "") == BY_CLAIMS else ""
            image = Image(template["spec"]["containers"][0]["image"], self._namespace)
            runs.remove(self._seconds)
            ended = runs.run({node: cleanup(node, image, cdi, root) for node in self.nodes}, self._seconds)
            runs.remove(self._seconds)
            bad = [f"{pod.node}: {pod.why}" for pod in ended if pod.phase != "Succeeded"]
            if bad:
                raise RemovalError(
                    f"found that files stay on {'; '.join(bad)}; expected that a pod removes them. Bring these nodes back, or remove the "
                    "label gpushare.kubernetes/node from those that are gone, and run again"
                )
        for resource in self._found:
            self._kubectl.text(["delete", resource, *place, *wait])
        if self._beside:
            document = as_list([named.reference() for named in self._beside])
            self._kubectl.text(["delete", "--ignore-not-found", "-f", "-"], document)
        if self._own_namespace:
            self._kubectl.text(["delete", "namespace", self._namespace, *wait])

    def _until_gone(self, select: Sequence[str]) -> None:
        left: List[str] = []

        def gone() -> bool:
            left[:] = [str(item["metadata"]["name"]) for item in self._kubectl.items(["get", "pods", *select])]
            return not left

        if not until(gone, self._seconds, self._clock, self._sleep):
            raise RemovalError(
                f"found that {', '.join(left[:_SHOWN])} do not end within {self._seconds} s; expected none of the device plugin. Bring "
                "back the nodes, or delete those that are gone, and run again"
            )


def _served(node: Mapping[str, Any]) -> bool:
    """Whether our device plugin has served this node."""
    metadata = node["metadata"]
    return (metadata.get("labels") or {}).get(LABEL_NODE) == "true" or ANNOTATION_GPUS in (metadata.get("annotations") or {})

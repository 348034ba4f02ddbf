# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the original gpushare in a cluster, the unit in which it counts memory, and its end, only once nothing of it is in use.

Until then its accounts and rights stay as they are, so that there is a way back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._cluster.kubectl import Kubectl, as_list
from .._cluster.names import FIELD_MANAGER
from .._cluster.objects import content, key, title
from .._formats.quantity import unit_mib
from .aside import TakeOverError
from .cluster import OtherPlugins
from .plugins import COMPONENT, ORIGINAL_EXTENDER, ORIGINAL_PLUGIN, owner_of, place_of

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
#: Names of its accounts, roles and bindings.
NAMES = (ORIGINAL_EXTENDER, ORIGINAL_PLUGIN)
_UNITS = ("GiB", "MiB")


@dataclass(frozen=True)
class Parts:
    """The objects of the original, as the API has them, in the order in which they go: what runs first, its accounts last."""

    daemon_sets: Tuple[Mapping[str, Any], ...]
    deployments: Tuple[Mapping[str, Any], ...]
    services: Tuple[Mapping[str, Any], ...]
    rights: Tuple[Mapping[str, Any], ...]

    @property
    def all(self) -> List[Mapping[str, Any]]:
        return [*self.daemon_sets, *self.deployments, *self.services, *self.rights]

    @property
    def writers(self) -> List[str]:
        """User names of its accounts, which write the annotations of pods as long as it runs."""
        found = set()
        for workload in (*self.daemon_sets, *self.deployments):
            pod = workload["spec"]["template"]["spec"]
            account = pod.get("serviceAccountName") or pod.get("serviceAccount") or "default"
            found.add(f"system:serviceaccount:{workload['metadata']['namespace']}:{account}")
        return sorted(found)

    @property
    def node_ports(self) -> List[int]:
        """Where kube-proxy takes connections for its extender, on every address of every node."""
        ports = {port.get("nodePort") for service in self.services for port in service["spec"].get("ports") or ()}
        return sorted(port for port in ports if isinstance(port, int))


def parts(kubectl: Kubectl, cluster: OtherPlugins) -> Parts:
    """The parts that there are. Objects that this collection has applied are not among them."""
    originals = {(plugin.namespace, plugin.name) for plugin in cluster.plugins if plugin.is_original}
    daemon_sets = [item for item in cluster.daemon_sets if place_of(item) in originals]
    deployments = [
        deployment for deployment in _items(kubectl, "/apis/apps/v1/deployments", "apps/v1", "Deployment") if _is_extender(deployment)
    ]
    services = [
        service
        for service in _items(kubectl, "/api/v1/services", "v1", "Service")
        if ((service.get("spec") or {}).get("selector") or {}).get(COMPONENT) == ORIGINAL_EXTENDER
    ]
    namespaces = sorted({str(workload["metadata"]["namespace"]) for workload in (*daemon_sets, *deployments)})
    rights: List[Mapping[str, Any]] = []
    for path, kind in (("clusterrolebindings", "ClusterRoleBinding"), ("clusterroles", "ClusterRole")):
        rights += [right for right in _items(kubectl, f"{_RBAC}/{path}", "rbac.authorization.k8s.io/v1", kind) if _is_theirs(right)]
    for namespace in namespaces:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        rights += [account for account in _items(kubectl, path, "v1", "ServiceAccount") if _is_theirs(account)]
    typed = [{"apiVersion": "apps/v1", "kind": "DaemonSet", **daemon_set} for daemon_set in daemon_sets]
    return Parts(tuple(typed), tuple(deployments), tuple(services), tuple(rights))


def memory_unit(registered: int, memories: Sequence[int]) -> Optional[str]:
    """The unit in which the original counts, which takes the first GPU for all: None where it cannot be told.

    registered: the number of its devices at kubelet. memories: MiB of each GPU.
    """
    possible = [
        unit
        for unit in _UNITS
        if any(len(memories) * (memory // (unit_mib(unit) or 1)) == registered for memory in memories) and registered
    ]
    return possible[0] if len(possible) == 1 else None


def check_unused(found: Parts, cluster: OtherPlugins, serving: Sequence[str]) -> None:
    """TakeOverError while the original still serves a node, or something would bring its parts back. serving: nodes that ours serves."""
    titles = {title(key(daemon_set)) for daemon_set in found.daemon_sets}
    running = sorted({pod.node for pod in cluster.pods if pod.plugin in titles})
    if running:
        raise TakeOverError(
            f"the original's device plugin runs on {', '.join(running[:8])}; expected it on no node. Run the playbook take_over for these "
            "nodes first. Nothing was changed."
        )
    if found.daemon_sets and not serving:
        raise TakeOverError(
            "no node has the annotation gpushare/gpus; expected the device plugin of this collection in the original's place. Run the "
            "playbook take_over first. Nothing was changed."
        )
    owned = [f"{title(key(part))} ({owner_of(part['metadata'])})" for part in found.all if owner_of(part["metadata"])]
    if owned:
        raise TakeOverError(
            f"{', '.join(owned[:8])} would come back: expected objects that nothing else brings to their state; remove the original there. "
            "Nothing was changed."
        )


def for_file(found: Parts) -> str:
    """All parts as one document for `kubectl apply -f`."""
    return as_list([_restorable(part) for part in found.all])


def retire(kubectl: Kubectl, found: Parts) -> None:
    for part in found.all:
        kubectl.text(["delete", "--ignore-not-found", "--wait=true", "--timeout=15s", "-f", "-"], json.dumps(_reference(part)))


def _items(kubectl: Kubectl, path: str, version: str, kind: str) -> List[Dict[str, Any]]:
    # A list's items have no kind of their own.
    return [{**item, "apiVersion": version, "kind": kind} for item in json.loads(kubectl.text(["get", "--raw", path]))["items"]]


def _is_extender(deployment: Mapping[str, Any]) -> bool:
    labels = (deployment["spec"]["template"].get("metadata") or {}).get("labels") or {}
    return labels.get(COMPONENT) == ORIGINAL_EXTENDER


def _is_theirs(item: Mapping[str, Any]) -> bool:
    managers = {claim.get("manager") for claim in item["metadata"].get("managedFields") or ()}
    return item["metadata"]["name"] in NAMES and FIELD_MANAGER not in managers


def _reference(item: Mapping[str, Any]) -> Dict[str, Any]:
    metadata = {key: item["metadata"][key] for key in ("name", "namespace") if item["metadata"].get(key)}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata}


def _restorable(item: Mapping[str, Any]) -> Dict[str, Any]:
    # The fields that the API server writes by itself, and would not take back.
    kept = content(item)
    if item["kind"] == "Service":
        kept["spec"] = {key: value for key, value in kept["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    return kept

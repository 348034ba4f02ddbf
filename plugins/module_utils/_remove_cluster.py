# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of the API server's objects is ours and goes, and which pods would miss it.

Private to this collection. Pure. Ours is an object whose name begins with `gpushare-` and that our field manager has applied, and a
ConfigMap `unhealthy-gpu-<node>` that only our device plugin has written; others use such names, too (the original gpushare has an account
gpushare-device-plugin, and such ConfigMaps).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

MANAGER = "gpushare.kubernetes"
PREFIX = "gpushare-"
OF_A_NODE = "gpushare-device-plugin-"
# The ConfigMap of a node that its device plugin makes, and the name under which it writes.
UNHEALTHY = "unhealthy-gpu-"
PLUGIN = "gpushare-device-plugin"
LABEL = "gpushare.kubernetes/node"
ANNOTATIONS = ("gpushare/cards", "gpushare/held")
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage")

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_SYSTEM = "namespaces/kube-system"
# (path of the list, apiVersion, kind), in the order in which they go: what restricts others, what grants, what is granted to.
KINDS = (
    (_ADMISSION + "/validatingadmissionpolicybindings", "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    (_ADMISSION + "/validatingadmissionpolicies", "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    (_RBAC + "/clusterrolebindings", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("%s/%s/rolebindings" % (_RBAC, _SYSTEM), "rbac.authorization.k8s.io/v1", "RoleBinding"),
    (_RBAC + "/clusterroles", "rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("%s/%s/roles" % (_RBAC, _SYSTEM), "rbac.authorization.k8s.io/v1", "Role"),
    ("/api/v1/%s/secrets" % _SYSTEM, "v1", "Secret"),
    ("/api/v1/%s/configmaps" % _SYSTEM, "v1", "ConfigMap"),
    ("/api/v1/%s/serviceaccounts" % _SYSTEM, "v1", "ServiceAccount"),
)
OPTIONAL = _ADMISSION  # an API server before 1.30 does not have it


class Named(NamedTuple):
    """One object of the cluster, without its content."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def title(self) -> str:
        return "%s %s%s" % (self.kind, self.namespace + "/" if self.namespace else "", self.name)

    def reference(self) -> Dict[str, Any]:
        """Enough of it for `kubectl delete -f`."""
        metadata = {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})}
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata}


class NodeTraces(NamedTuple):
    """What a node still has of ours. claimed: labels that we have applied; capacity: resource to number, as the node says; others:
    annotations of other people's."""

    name: str
    claimed: Tuple[str, ...]
    labelled_by_others: bool
    annotations: Tuple[str, ...]
    capacity: Dict[str, str]
    allocatable: Dict[str, str]
    others: Tuple[str, ...]

    @property
    def in_use(self) -> bool:
        """Whether a device plugin of ours seems to serve here."""
        return "gpushare/cards" in self.annotations and any(value != "0" for value in self.allocatable.values())


def ours(items: Sequence[Mapping[str, Any]], api_version: str, kind: str) -> List[Named]:
    """Those of a list's items that we have applied, or our device plugins have made."""
    found = []
    for item in items:
        metadata = item["metadata"]
        applied = str(metadata["name"]).startswith(PREFIX) and _applied(metadata)
        if applied or (kind == "ConfigMap" and str(metadata["name"]).startswith(UNHEALTHY) and _only_the_plugins(item)):
            found.append(Named(api_version, kind, str(metadata.get("namespace", "")), str(metadata["name"])))
    return found


def plugin_accounts(accounts: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """The accounts that we have made for device plugins, and those of nodes that there are not."""
    wanted = {OF_A_NODE + str(node["metadata"]["name"]) for node in nodes}
    found = sorted(one.name for one in ours(accounts, "v1", "ServiceAccount") if one.name.startswith(OF_A_NODE))
    return {"accounts": found, "without_node": [name for name in found if name not in wanted]}


def going(found: Sequence[Named], nodes: Sequence[str], everything: bool) -> List[Named]:
    """Those that go: all, or only what belongs to these nodes."""
    names = {prefix + node for node in nodes for prefix in (OF_A_NODE, UNHEALTHY)}
    return [one for one in found if everything or one.name in names]


def traces(node: Mapping[str, Any]) -> NodeTraces:
    """Look at a node."""
    metadata, status = node["metadata"], node.get("status") or {}
    annotations = metadata.get("annotations") or {}
    claimed = _claimed_labels(metadata)
    return NodeTraces(
        str(metadata["name"]),
        claimed,
        LABEL in (metadata.get("labels") or {}) and LABEL not in claimed,
        tuple(key for key in ANNOTATIONS if key in annotations),
        _numbers(status.get("capacity")),
        _numbers(status.get("allocatable")),
        tuple(sorted(key for key in annotations if key.startswith("gpushare/") and key not in ANNOTATIONS)),
    )


def forgotten(node: NodeTraces) -> bool:
    """Whether kubelet has let go of our resources: minutes after the plugin has gone it says a capacity of 0, and then no more."""
    return all(value == "0" for value in node.capacity.values())


def status_patch(node: NodeTraces) -> List[Dict[str, Any]]:
    """A JSON patch of the node's status that takes away resources of which kubelet has let go, and only if they still say 0."""
    operations: List[Dict[str, Any]] = []
    for part, values in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        for resource in sorted(values):
            path = "/status/%s/%s" % (part, resource.replace("~", "~0").replace("/", "~1"))
            operations += [{"op": "test", "path": path, "value": "0"}, {"op": "remove", "path": path}]
    return operations


def gpu_pods(pods: Sequence[Mapping[str, Any]], nodes: Optional[Set[str]]) -> List[Dict[str, str]]:
    """The pods on these nodes (None: on any) that ask for our resources and have not ended."""
    found = []
    for pod in pods:
        spec, metadata = pod["spec"], pod["metadata"]
        node = spec.get("nodeName")
        if not node or (nodes is not None and node not in nodes) or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        asks = sorted({resource for container in _containers(spec) for resource in RESOURCES if resource in _asked(container)})
        if asks:
            name = "%s/%s" % (metadata.get("namespace", ""), metadata["name"])
            found.append({"pod": name, "node": str(node), "asks": ", ".join(asks)})
    return sorted(found, key=lambda one: (one["node"], one["pod"]))


def _applied(metadata: Mapping[str, Any]) -> bool:
    return any(one.get("manager") == MANAGER and one.get("operation") == "Apply" for one in metadata.get("managedFields") or [])


def _claimed_labels(metadata: Mapping[str, Any]) -> Tuple[str, ...]:
    claims = [one.get("fieldsV1") or {} for one in metadata.get("managedFields") or [] if _applied({"managedFields": [one]})]
    fields = {field for claim in claims for field in (claim.get("f:metadata") or {}).get("f:labels") or {}}
    return tuple(sorted(field[2:] for field in fields if field.startswith("f:")))


def _only_the_plugins(item: Mapping[str, Any]) -> bool:
    """Whether nobody else has written this map. When it names no card any more, nobody manages anything of it."""
    managers = {one.get("manager") for one in item["metadata"].get("managedFields") or []}
    return managers == {PLUGIN} or (not managers and not item.get("data"))


def _numbers(quantities: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    return {resource: str(value) for resource, value in (quantities or {}).items() if resource in RESOURCES}


def _containers(spec: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _asked(container: Mapping[str, Any]) -> Set[str]:
    resources = container.get("resources") or {}
    return set(resources.get("limits") or {}) | set(resources.get("requests") or {})

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes our objects, and our traces on nodes, out of a cluster through kubectl, and tells ours from those of others.

Ours is an object whose name begins with `gpushare-` and that our field manager has applied, and a ConfigMap `unhealthy-gpu-<node>` that
only our device plugin has written; others use such names, too (the original gpushare has an account gpushare-device-plugin, and such
ConfigMaps).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypedDict

from .._cluster import taint
from .._cluster.kubectl import Kubectl, KubectlError, as_list
from .._cluster.names import (
    ANNOTATION_GPUS,
    ANNOTATION_HELD,
    ANNOTATION_USE,
    BY_CLAIMS,
    BY_EXTENDER,
    CLAIMS,
    DRA_OWN,
    EXTENDER,
    FIELD_MANAGER,
    GPUS,
    LABEL_NODE,
    MEMORY,
    NAMESPACE,
    PLUGIN,
    PLUGIN_ACCOUNT_PREFIX,
    PREFIX,
    RESOURCES,
    SCHEDULER,
    TEMPLATE,
    UNHEALTHY_PREFIX,
)
from .._cluster.public import PUBLIC
from .._formats.answers import DiffPart, LeftThing, ModuleAnswer

POLL_SECONDS = 2.0
ANNOTATIONS = (ANNOTATION_GPUS, ANNOTATION_HELD, ANNOTATION_USE)

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_DRA, _DRA_API = "/apis/resource.k8s.io/v1", "resource.k8s.io/v1"
_SYSTEM = f"namespaces/{NAMESPACE}"
# (path of the list, apiVersion, kind), in the order in which they go: what restricts others, what grants, what is granted to.
KINDS = (
    (_ADMISSION + "/validatingadmissionpolicybindings", "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    (_ADMISSION + "/validatingadmissionpolicies", "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    (_ADMISSION + "/mutatingadmissionpolicybindings", "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding"),
    (_ADMISSION + "/mutatingadmissionpolicies", "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"),
    ("/apis/security.openshift.io/v1/securitycontextconstraints", "security.openshift.io/v1", "SecurityContextConstraints"),
    ("/apis/node.k8s.io/v1/runtimeclasses", "node.k8s.io/v1", "RuntimeClass"),
    (_DRA + "/deviceclasses", _DRA_API, "DeviceClass"),
    (_RBAC + "/clusterrolebindings", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    (f"{_RBAC}/{_SYSTEM}/rolebindings", "rbac.authorization.k8s.io/v1", "RoleBinding"),
    (_RBAC + "/clusterroles", "rbac.authorization.k8s.io/v1", "ClusterRole"),
    (f"{_RBAC}/{_SYSTEM}/roles", "rbac.authorization.k8s.io/v1", "Role"),
    (f"{_RBAC}/namespaces/{PUBLIC}/rolebindings", "rbac.authorization.k8s.io/v1", "RoleBinding"),
    (f"{_RBAC}/namespaces/{PUBLIC}/roles", "rbac.authorization.k8s.io/v1", "Role"),
    (f"/api/v1/namespaces/{PUBLIC}/configmaps", "v1", "ConfigMap"),
    (f"/api/v1/{_SYSTEM}/secrets", "v1", "Secret"),
    (f"/api/v1/{_SYSTEM}/configmaps", "v1", "ConfigMap"),
    (f"/api/v1/{_SYSTEM}/serviceaccounts", "v1", "ServiceAccount"),
)
# An API server before 1.30 has none of the policies, one before 1.36 not all. Only OpenShift's has constraints, one before 1.20 has no
# RuntimeClass, and one before 1.34 no DeviceClass of this version.
OPTIONAL = (_ADMISSION, "/apis/security.openshift.io/", "/apis/node.k8s.io/", _DRA)
#: A back end's Deployment, and the ClusterRole of its account. The role goes last: until then the next run sees that something is left. It
#: grants nothing without its binding, which goes first.
MARKERS = {SCHEDULER: BY_EXTENDER, CLAIMS: BY_CLAIMS}
#: Objects that daemons of the back end dra make (a selector, the field manager). They go last, when no account may make them again.
_MADE = (
    (_DRA + "/resourceclaimtemplates", "ResourceClaimTemplate", f"metadata.name%3D{TEMPLATE}", CLAIMS),
    (_DRA + "/resourceslices", "ResourceSlice", f"spec.driver%3D{DRA_OWN}", PLUGIN),
)


@dataclass(frozen=True)
class Named:
    """One object of the cluster, without its content."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"

    def reference(self) -> Dict[str, Any]:
        """Enough of it for `kubectl delete -f`."""
        metadata = {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})}
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata}


class NodeTraces(NamedTuple):
    """The parts of ours that a node still has. claimed: labels that we have applied. capacity: resource to number, as the node says.
    others: annotations of other people's. tainted: by us."""

    name: str
    claimed: Tuple[str, ...]
    labelled_by_others: bool
    annotations: Tuple[str, ...]
    capacity: Dict[str, str]
    allocatable: Dict[str, str]
    others: Tuple[str, ...]
    tainted: bool

    @property
    def in_use(self) -> bool:
        """Whether a device plugin of ours seems to serve here."""
        return ANNOTATION_GPUS in self.annotations and any(value != "0" for value in self.allocatable.values())


class Removal:
    """One run. It reads everything first, so that check mode says what `apply` then does.

    wanted: nodes whose device plugin is gone. everything: what all hosts share goes, too. wait: seconds for kubelet to release them.
    dead: the nodes have no kubelet any more that would write the resources again. others: nodes that the original's device plugin serves
    again. reinstalls: another back end comes at once, and the nodes keep their labels and taints. removed, left: messages.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        wanted: Sequence[str],
        everything: bool,
        wait: float,
        dead: bool = False,
        others: Sequence[str] = (),
        reinstalls: bool = False,
    ) -> None:
        self.kubectl = kubectl
        self.wait = wait
        self.dead = dead
        self.others = frozenset(others)
        # Those where our device plugin has ended in this run: kubelet may not have told the API server yet.
        self.fresh: Set[str] = set()
        nodes = self.nodes()
        self.mine = [node for name, node in nodes.items() if name in wanted]
        if reinstalls:
            self.mine = [node._replace(claimed=(), labelled_by_others=False, tainted=False) for node in self.mine]
        objects = [named for path, version, kind in KINDS for named in self.listed(path, version, kind)]
        objects += [named for made in _MADE for named in self.made(*made)]
        accounts = {named.name for named in objects}
        using = [name for name, node in nodes.items() if name not in wanted and node.in_use and PLUGIN_ACCOUNT_PREFIX + name in accounts]
        everything = everything and not using
        self.objects = going(objects, wanted, everything)
        self.left: List[LeftThing] = [
            {"what": named.title, "why": "other hosts still use it" + (": " + ", ".join(using) if using else "; uninstall them, too")}
            for named in objects
            if named not in self.objects
        ]
        self.removed = [named.title for named in self.objects]
        for node in self.mine:
            self.read(node)

    def nodes(self) -> Dict[str, NodeTraces]:
        """Every node's traces by name."""
        items = json.loads(self.kubectl.text(["get", "--raw", "/api/v1/nodes"]))["items"]
        return {item["metadata"]["name"]: self.ours_of(traces(item)) for item in items}

    def ours_of(self, node: NodeTraces) -> NodeTraces:
        """Without the resources that the original's device plugin serves: the memory, and the number of GPUs as soon as kubelet has
        released ours.

        Then kubelet says 0, until the original writes its number, which it does at its start.
        """
        if node.name not in self.others:
            return node
        if ANNOTATION_GPUS in node.annotations:
            self.fresh.add(node.name)
        number = node.capacity.get(GPUS, "0")
        is_theirs = number == "0" or (node.name not in self.fresh and node.allocatable.get(GPUS) == number)
        theirs = (MEMORY, GPUS) if is_theirs else (MEMORY,)
        capacity, allocatable = (
            {resource: value for resource, value in part.items() if resource not in theirs} for part in (node.capacity, node.allocatable)
        )
        return node._replace(capacity=capacity, allocatable=allocatable)

    def listed(self, path: str, version: str, kind: str) -> List[Named]:
        """Our objects of one kind; none where the API server does not have the kind."""
        return ours(self._items(path), version, kind)

    def made(self, path: str, kind: str, selector: str, manager: str) -> List[Named]:
        """Objects that no other client than this daemon has written."""
        found = [item["metadata"] for item in self._items(f"{path}?fieldSelector={selector}") if _managers(item) == {manager}]
        return [Named(_DRA_API, kind, str(metadata.get("namespace", "")), str(metadata["name"])) for metadata in found]

    def _items(self, path: str) -> List[Dict[str, Any]]:
        try:
            return list(json.loads(self.kubectl.text(["get", "--raw", path]))["items"])
        except KubectlError as error:
            if path.startswith(OPTIONAL) and error.reason == "not_found":
                return []
            raise

    def read(self, node: NodeTraces) -> None:
        """Note what goes from a node and what stays."""
        self.removed += [f"label {label} of node {node.name}" for label in node.claimed]
        if node.tainted:
            self.removed.append(" ".join(filter(None, taint.key(node.name))))
        if node.labelled_by_others:
            self.left.append({"what": f"label {LABEL_NODE} of node {node.name}", "why": "this collection has not set it"})
        self.removed += [f"annotation {key} of node {node.name}" for key in node.annotations]
        self.left += [{"what": f"annotation {key} of node {node.name}", "why": "this collection does not set it"} for key in node.others]
        if self.wait or self.free(node):
            self.removed += [f"resource {resource} of node {node.name}" for resource in sorted(node.capacity)]
        else:
            self.keep(node)

    def keep(self, node: NodeTraces) -> None:
        """Say why a node still has our resources."""
        why = (
            "kubelet keeps it for five minutes after the device plugin has gone and then says 0; run again after that. If another device "
            "plugin serves it, or kubelet does not run, it stays"
        )
        what = [f"resource {resource} of node {node.name}" for resource, value in sorted(node.capacity.items())]
        self.left += [{"what": title, "why": why} for title in what]
        self.removed = [title for title in self.removed if title not in what]

    def apply(self) -> None:
        """Do it. KubectlError as soon as something does not work; the next run continues."""
        last = [named for named in self.objects if named.kind == "ClusterRole" and named.name in MARKERS]
        self.delete([named for named in self.objects if named not in last])
        for node in self.mine:
            if node.claimed:
                # An empty claim takes away what only we have claimed.
                claim = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
                manager = f"--field-manager={FIELD_MANAGER}"
                self.kubectl.text(["apply", "--server-side", manager, "-f", "-"], json.dumps(claim))
            if node.tainted:
                taint.put(self.kubectl, node.name, False)
            if node.annotations:
                self.kubectl.text(["annotate", "node", node.name, *(key + "-" for key in node.annotations)])
        self.remove_resources()
        self.delete(last)

    def delete(self, objects: Sequence[Named]) -> None:
        if objects:
            self.kubectl.text(["delete", "--ignore-not-found", "-f", "-"], as_list([named.reference() for named in objects]))

    def remove_resources(self) -> None:
        """Take our resources out of the status of each node whose kubelet has released them, within the time given."""
        names = {node.name for node in self.mine}
        deadline = time.monotonic() + self.wait
        while True:
            pending = [node for name, node in self.nodes().items() if name in names and (node.capacity or node.allocatable)]
            pending = [node for node in pending if not self.forget(node)]
            if not pending or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        if self.wait:
            for node in pending:
                self.keep(node)

    def free(self, node: NodeTraces) -> bool:
        """Whether no kubelet writes our resources into the node's status again."""
        return self.dead or forgotten(node)

    def forget(self, node: NodeTraces) -> bool:
        """Take our resources out of a node's status, if its kubelet has released them, or is dead."""
        if not self.free(node):
            return False
        patch = json.dumps(status_patch(node))
        try:
            self.kubectl.text(["patch", "node", node.name, "--subresource=status", "--type=json", "-p", patch])
        except KubectlError as error:
            # Between reading and writing a plugin has registered the resource again.
            if error.reason != "changed":
                raise
            return False
        return True


def in_namespace(kubectl: Kubectl, namespace: str) -> List[Named]:
    """Our objects in a namespace of the daemons, beside their workloads."""
    kinds = [(path.replace(f"/{_SYSTEM}/", f"/namespaces/{namespace}/"), *rest) for path, *rest in KINDS if f"/{_SYSTEM}/" in path]
    return [named for path, version, kind in kinds for named in ours(kubectl.pages(path, optional=True), version, kind)]


def ours(items: Sequence[Mapping[str, Any]], api_version: str, kind: str) -> List[Named]:
    """The items of a list that we have applied, or our device plugins have made."""
    found = []
    for item in items:
        metadata = item["metadata"]
        own = str(metadata["name"]).startswith(PREFIX) or (kind, metadata["name"]) == ("DeviceClass", TEMPLATE)
        applied = own and _applied(metadata)
        if applied or (kind == "ConfigMap" and str(metadata["name"]).startswith(UNHEALTHY_PREFIX) and _only_the_plugins(item)):
            found.append(Named(api_version, kind, str(metadata.get("namespace", "")), str(metadata["name"])))
    return found


def of_hosts(accounts: Sequence[Mapping[str, Any]]) -> List[str]:
    """The accounts that we have made for services on hosts."""
    found = [account.name for account in ours(accounts, "v1", "ServiceAccount")]
    return [name for name in found if name == EXTENDER or name.startswith(PLUGIN_ACCOUNT_PREFIX)]


class GpuPod(TypedDict):
    """A pod, as namespace/name, that asks for GPUs."""

    pod: str
    node: str
    asks: str


@dataclass(frozen=True)
class NodesOfCluster(ModuleAnswer):
    """The answer of gpushare_api about nodes. accounts: of device plugins, without_node: those of nodes that there are not. states: node
    to its condition Ready. pods: those that have a share of a GPU.
    """

    accounts: List[str]
    without_node: List[str]
    states: Dict[str, str]
    pods: List[GpuPod]


@dataclass(frozen=True)
class ObjectsRemoved(ModuleAnswer):
    """The answer of gpushare_cluster that has removed objects, by their titles."""

    removed: List[str]
    left: List[LeftThing]
    diff: List[DiffPart]


def plugin_accounts(accounts: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> Tuple[List[str], List[str]]:
    """(the accounts that we have made for device plugins, those of nodes that there are not)."""
    wanted = {PLUGIN_ACCOUNT_PREFIX + str(node["metadata"]["name"]) for node in nodes}
    found = sorted(account.name for account in ours(accounts, "v1", "ServiceAccount") if account.name.startswith(PLUGIN_ACCOUNT_PREFIX))
    return found, [name for name in found if name not in wanted]


def node_states(nodes: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    """The status of each node's condition Ready by the node's name: True, False or Unknown."""
    found = {}
    for node in nodes:
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready = (str(condition.get("status")) for condition in conditions if condition.get("type") == "Ready")
        found[str(node["metadata"]["name"])] = next(ready, "Unknown")
    return found


def going(found: Sequence[Named], nodes: Sequence[str], everything: bool) -> List[Named]:
    """The objects that go: all, or only what belongs to these nodes."""
    names = {prefix + node for node in nodes for prefix in (PLUGIN_ACCOUNT_PREFIX, UNHEALTHY_PREFIX)}
    return [named for named in found if everything or named.name in names]


def traces(node: Mapping[str, Any]) -> NodeTraces:
    metadata, status = node["metadata"], node.get("status") or {}
    annotations = metadata.get("annotations") or {}
    claimed = _claimed_labels(metadata)
    return NodeTraces(
        str(metadata["name"]),
        claimed,
        LABEL_NODE in (metadata.get("labels") or {}) and LABEL_NODE not in claimed,
        tuple(key for key in ANNOTATIONS if key in annotations),
        _of_our_resources(status.get("capacity")),
        _of_our_resources(status.get("allocatable")),
        tuple(sorted(key for key in annotations if key.startswith("gpushare/") and key not in ANNOTATIONS)),
        taint.is_tainted(node),
    )


def forgotten(node: NodeTraces) -> bool:
    """Whether kubelet has released our resources: minutes after the plugin has gone it says a capacity of 0, and then no more."""
    return all(value == "0" for value in node.capacity.values())


def status_patch(node: NodeTraces) -> List[Dict[str, Any]]:
    """A JSON patch of the node's status that takes away our resources, and only if they still have the numbers that were read."""
    operations: List[Dict[str, Any]] = []
    for part, values in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        for resource in sorted(values):
            path = f"/status/{part}/{resource.replace('~', '~0').replace('/', '~1')}"
            operations += [{"op": "test", "path": path, "value": values[resource]}, {"op": "remove", "path": path}]
    return operations


def gpu_pods(
    pods: Sequence[Mapping[str, Any]], nodes: Optional[Set[str]], is_gpu: Callable[[str], object] = RESOURCES.__contains__
) -> List[GpuPod]:
    """The pods on these nodes (None: on any) that have not ended and ask for a resource for which is_gpu holds: by default ours."""
    found: List[GpuPod] = []
    for pod in pods:
        spec, metadata = pod["spec"], pod["metadata"]
        node = spec.get("nodeName")
        if not node or (nodes is not None and node not in nodes) or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        asks = requested(spec, is_gpu)
        if asks:
            name = f"{metadata.get('namespace', '')}/{metadata['name']}"
            found.append({"pod": name, "node": str(node), "asks": ", ".join(asks)})
    return sorted(found, key=lambda holder: (holder["node"], holder["pod"]))


def waiting_pods(pods: Sequence[Mapping[str, Any]]) -> List[str]:
    """The pods without a node that ask for a share in the way of either back end: for our resources, our scheduler, or by our template.

    Admission has written that into them for good. Those with a claim of their own are in `waiting` of `_in_cluster/claims.py`.
    """
    placeless = (pod for pod in pods if not pod["spec"].get("nodeName"))
    live = (pod for pod in placeless if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"))
    return sorted(f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}" for pod in live if _is_for_us(pod["spec"]))


def _is_for_us(spec: Mapping[str, Any]) -> bool:
    claims = (claim.get("resourceClaimTemplateName") for claim in spec.get("resourceClaims") or ())
    return bool(requested(spec)) or spec.get("schedulerName") == SCHEDULER or TEMPLATE in claims


def requested(spec: Mapping[str, Any], is_gpu: Callable[[str], object] = RESOURCES.__contains__) -> List[str]:
    """The resources for which is_gpu holds that a pod of this spec asks for, by default ours."""
    return sorted({resource for container in _containers(spec) for resource in _asked(container) if is_gpu(resource)})


def _applied(metadata: Mapping[str, Any]) -> bool:
    return any(claim.get("manager") == FIELD_MANAGER and claim.get("operation") == "Apply" for claim in metadata.get("managedFields") or [])


def _claimed_labels(metadata: Mapping[str, Any]) -> Tuple[str, ...]:
    claims = [claim.get("fieldsV1") or {} for claim in metadata.get("managedFields") or [] if _applied({"managedFields": [claim]})]
    fields = {field for claim in claims for field in (claim.get("f:metadata") or {}).get("f:labels") or {}}
    return tuple(sorted(field[2:] for field in fields if field.startswith("f:")))


def _managers(item: Mapping[str, Any]) -> Set[Any]:
    return {claim.get("manager") for claim in item["metadata"].get("managedFields") or []}


def _only_the_plugins(item: Mapping[str, Any]) -> bool:
    """Whether no other client has written this map. When it names no GPU any more, no client manages anything of it."""
    managers = _managers(item)
    return managers == {PLUGIN} or (not managers and not item.get("data"))


def _of_our_resources(quantities: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    return {resource: str(value) for resource, value in (quantities or {}).items() if resource in RESOURCES}


def _containers(spec: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _asked(container: Mapping[str, Any]) -> Set[str]:
    resources = container.get("resources") or {}
    return set(resources.get("limits") or {}) | set(resources.get("requests") or {})

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings objects of a cluster to what they shall be, through kubectl: as few calls as can be, none that writes if nothing differs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from . import taint
from .kubectl import Kubectl, as_list
from .names import FIELD_MANAGER, LABEL_NODE, LABEL_PLACEMENT, LABEL_SCHEDULE, NAMESPACE, TEMPLATE
from .public import PUBLIC, SIZES, is_public

Key = Tuple[str, str, str]
Object = Mapping[str, Any]

# Fields that the server writes by itself, and fields that differ although nothing of ours does.
_OF_THE_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
# Of a Node we apply labels alone. Device plugins, kubelet and controllers may change these between our reading and the dry run.
_OF_OTHERS: Mapping[str, Tuple[str, ...]] = {"Node": ("annotations", "spec")}

#: The extender writes into it at any time.
_SIZES_KEY: Key = ("ConfigMap", PUBLIC, SIZES)

_RBAC, _ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
# Kind to (its API, its namespace or "" for none) of what this collection makes of its own.
_OWN = {
    "ServiceAccount": ("v1", NAMESPACE),
    "Role": (_RBAC, NAMESPACE),
    "RoleBinding": (_RBAC, NAMESPACE),
    "ClusterRole": (_RBAC, ""),
    "ClusterRoleBinding": (_RBAC, ""),
    "ValidatingAdmissionPolicy": (_ADMISSION, ""),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, ""),
}
#: The same for daemons that are pods; "*" for the namespace that they have.
_ANY = "*"
_OWN_IN_CLUSTER = {
    **_OWN,
    **dict.fromkeys(("Role", "RoleBinding"), (_RBAC, _ANY)),
    "ServiceAccount": ("v1", _ANY),
    "ConfigMap": ("v1", _ANY),
    "Deployment": ("apps/v1", _ANY),
    "Service": ("v1", _ANY),
    "DaemonSet": ("apps/v1", _ANY),
    "PodDisruptionBudget": ("policy/v1", _ANY),
    "NetworkPolicy": ("networking.k8s.io/v1", _ANY),
    "Namespace": ("v1", ""),
    "RuntimeClass": ("node.k8s.io/v1", ""),
    "SecurityContextConstraints": ("security.openshift.io/v1", ""),
    "MutatingAdmissionPolicy": (_ADMISSION, ""),
    "MutatingAdmissionPolicyBinding": (_ADMISSION, ""),
    "DeviceClass": ("resource.k8s.io/v1", ""),
}
#: The role of Kubernetes by which kube-scheduler finds who its callers are.
_AUTH_READER = "extension-apiserver-authentication-reader"
_NAME = re.compile(r"gpushare-(?=.{1,244}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NODE_LABELS = (LABEL_NODE, LABEL_PLACEMENT, LABEL_SCHEDULE)


class ForeignError(Failure):
    """An object that this collection never makes; says which, and what was expected."""


@dataclass(frozen=True)
class WantedObjects:
    """apply: complete objects. create: whether those that are not there may be made. namespace: of daemons that are pods, "" for none.

    taints: node name to whether it has our taint. gone: references of objects that shall not be there, such as those of older releases.
    removed: titles of objects that a step before has removed, or in check mode would have.
    """

    apply: Sequence[Object] = ()
    namespace: str = ""
    create: bool = True
    skip_unserved: bool = False
    field_manager: str = FIELD_MANAGER
    taints: Mapping[str, bool] = field(default_factory=dict)
    gone: Sequence[Object] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True)
class ObjectChange:
    """One object that is created or altered: before is None for one that was not there. Values of Secrets are left out."""

    key: Key
    before: Optional[Dict[str, Any]]
    after: Dict[str, Any]

    @property
    def title(self) -> str:
        return title(self.key)


@dataclass(frozen=True)
class ObjectsApplied(ModuleAnswer):
    """The answer of gpushare_cluster about objects: titles of those that changed, that this API server does not serve (unserved), and that
    are missing and may not be created.
    """

    objects: List[str]
    unserved: List[str]
    missing: List[str]
    diff: List[DiffPart]


def check_ours(wanted: WantedObjects) -> None:
    """ForeignError unless all of them are of kinds and names that this collection makes."""
    stranger = foreign(wanted.apply, wanted.namespace) or next((title(key(item)) for item in wanted.gone if not _goes(item)), None)
    if stranger is not None:
        raise ForeignError(f"not an object of gpushare's: {stranger}; nothing was changed")


def diff_of(titles: Sequence[str], gone: bool = True) -> List[DiffPart]:
    """For --diff: objects that go, or come or change, by their titles alone."""
    return [
        {"before_header": title, "after_header": title, "before": f"{title}\n" if gone else "", "after": "" if gone else f"{title}\n"}
        for title in titles
    ]


def converge(kubectl: Kubectl, wanted: WantedObjects, check_mode: bool) -> ObjectsApplied:
    """Apply what is wanted. KubectlError with kubectl's words."""
    unserved: List[str] = []
    apply = list(wanted.apply)
    if wanted.skip_unserved:
        apply, unserved = _split(kubectl, apply)
    found, missing = _apply(kubectl, apply, wanted, check_mode)
    gone = _live(kubectl, wanted.gone, wanted.removed) if wanted.gone else []
    if gone and not check_mode:
        kubectl.text(["delete", "--ignore-not-found", "-f", "-"], as_list(gone))
    for name, before, after in taint.taint(kubectl, wanted.taints, check_mode):
        found.append(ObjectChange(taint.key(name), {"taints": before}, {"taints": after}))
    return ObjectsApplied(
        changed=bool(found or gone),
        objects=[*(change.title for change in found), *(title(key(item)) for item in gone)],
        unserved=unserved,
        missing=missing,
        diff=[*diff(found), *diff_of([title(key(item)) for item in gone])],
    )


def _apply(kubectl: Kubectl, objects: Sequence[Object], wanted: WantedObjects, check_mode: bool) -> Tuple[List[ObjectChange], List[str]]:
    """The changes, and the titles of those that are not there and may not be made."""
    missing: List[str] = []
    if not objects:
        return [], missing
    document = as_list(objects)
    command = ["apply", "--server-side", "--force-conflicts", f"--field-manager={wanted.field_manager}", "-f", "-"]
    live = _live(kubectl, objects, wanted.removed)
    if not wanted.create:
        there = {key(item) for item in live}
        missing = absent(live, objects)
        document = as_list([item for item in objects if key(item) in there])
        if not there:
            return [], missing
    found = _predicted(kubectl, [*command, "--dry-run=server"], live, objects if wanted.create else json.loads(document)["items"])
    if found and not check_mode:
        kubectl.text(command, document)
    return found, missing


def _live(kubectl: Kubectl, objects: Sequence[Object], removed: Sequence[str]) -> List[Object]:
    """Those of the objects that are there."""
    found = kubectl.items(["get", "--ignore-not-found", "-f", "-"], as_list(objects))
    return [item for item in found if title(key(item)) not in removed]


def _predicted(kubectl: Kubectl, command: Sequence[str], live: Sequence[Object], objects: Sequence[Object]) -> List[ObjectChange]:
    """The changes, by the server's dry run. In a namespace that is only to be made it makes none: there everything is new."""
    there = {key(item) for item in live}
    coming = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"} - {
        name for kind, _, name in there if kind == "Namespace"
    }
    asked = [item for item in objects if item["metadata"].get("namespace") not in coming]
    found = changes(live, kubectl.items(command, as_list(asked)))
    return found + [ObjectChange(key(item), None, content(item)) for item in objects if item not in asked]


def _split(kubectl: Kubectl, objects: Sequence[Object]) -> Tuple[List[Object], List[str]]:
    """(those of kinds that the API server has, the titles of the others)."""
    kinds = {version: served(version, kubectl.raw) for version in sorted({str(item["apiVersion"]) for item in objects})}
    kept = [item for item in objects if item["kind"] in kinds[item["apiVersion"]]]
    return kept, [title(key(item)) for item in objects if item not in kept]


def foreign(objects: Sequence[Mapping[str, Any]], namespace: str = "") -> Optional[str]:
    """Which of the objects this collection never makes, and why, as a message; None if they are all its own.

    namespace: of daemons that are pods, "" for none.

    This collection applies objects with all rights over the cluster. Of a node, which is not ours, there are two labels.
    """
    for item in objects:
        why = _foreign(item, namespace)
        if why is not None:
            return f"{str(item.get('kind'))[:80]!r} {str((item.get('metadata') or {}).get('name'))[:80]!r}: {why}"
    return None


def _foreign(item: Mapping[str, Any], pods_namespace: str) -> Optional[str]:
    kind, metadata = item.get("kind"), item.get("metadata") or {}
    if kind == "Node":
        if set(item) != {"apiVersion", "kind", "metadata"} or set(metadata) != {"name", "labels"} or item["apiVersion"] != "v1":
            return "expected a node's name and labels, nothing else"
        return None if set(metadata["labels"]) <= set(_NODE_LABELS) else f"expected no other labels than {', '.join(_NODE_LABELS)}"
    if metadata.get("namespace") == PUBLIC:
        return None if is_public(item, pods_namespace) else f"expected in {PUBLIC} sizes of GPUs, where Prometheus is, and rights to these"
    own = _OWN_IN_CLUSTER if pods_namespace else _OWN
    place = own.get(str(kind))
    if place is None:
        return f"expected one of the kinds {', '.join(own)}"
    version, namespace = place[0], pods_namespace if place[1] == _ANY else place[1]
    # The role that kube-scheduler's callers are found by is one of kube-system.
    namespaces = (namespace, NAMESPACE) if pods_namespace and kind == "RoleBinding" else (namespace,)
    if item.get("apiVersion") != version or metadata.get("namespace", "") not in namespaces:
        return f"expected {version}" + (f" in the namespace {namespace}" if namespace else " without a namespace")
    if kind == "DeviceClass":
        return None if metadata.get("name") == TEMPLATE else f"expected the name {TEMPLATE}"
    if not _NAME.fullmatch(str(metadata.get("name"))) or (kind == "Namespace" and metadata["name"] != pods_namespace):
        return "expected a name that begins with gpushare-"
    if str(kind).endswith("RoleBinding"):
        role, subjects = item["roleRef"]["name"], item["subjects"]
        known = _NAME.fullmatch(role) or (pods_namespace and kind == "RoleBinding" and role == _AUTH_READER)
        if not known or [subject for subject in subjects if not _NAME.fullmatch(subject["name"]) or subject["kind"] != "ServiceAccount"]:
            return "expected roles and ServiceAccounts whose names begin with gpushare-"
    return None


def _goes(item: Mapping[str, Any]) -> bool:
    """Whether this collection may delete it: by its kind and name it is one of its own."""
    return str(item.get("kind")) in _OWN_IN_CLUSTER and bool(_NAME.fullmatch(str((item.get("metadata") or {}).get("name"))))


def changes(live: Sequence[Mapping[str, Any]], applied: Sequence[Mapping[str, Any]]) -> List[ObjectChange]:
    """The objects of `applied` (as a dry run returns them) that differ from `live`, in their order."""
    before = {key(item): content(item) for item in live}
    found = []
    for item in applied:
        after = content(item)
        if before.get(key(item)) != after:
            found.append(ObjectChange(key(item), _shown(before.get(key(item))), _shown(after) or {}))
    return found


def absent(live: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> List[str]:
    """The titles of the wanted objects that the cluster does not have."""
    there = {key(item) for item in live}
    return [title(key(item)) for item in wanted if key(item) not in there]


def served(group_version: str, ask: Callable[[str], Optional[Mapping[str, Any]]]) -> Set[str]:
    """The kinds that the API server has of a group and version such as "apps/v1". ask: path to its answer, None for 404."""
    found = ask(("/apis/" if "/" in group_version else "/api/") + group_version) or {}
    return {str(resource["kind"]) for resource in found.get("resources") or ()}


def title(identity: Key) -> str:
    """Such as "ClusterRole gpushare-extender" or "Secret kube-system/gpushare-extender"."""
    kind, namespace, name = identity
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def key(item: Mapping[str, Any]) -> Key:
    """Kind, namespace ("" if it has none) and name."""
    metadata = item["metadata"]
    return str(item["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])


def diff(found: Sequence[ObjectChange]) -> List[DiffPart]:
    """The changes in the form that Ansible prints."""
    return [
        {
            "before_header": change.title,
            "after_header": change.title,
            "before": "" if change.before is None else _text(change.before),
            "after": _text(change.after),
        }
        for change in found
    ]


def content(item: Mapping[str, Any]) -> Dict[str, Any]:
    """The object without its status, and without the fields that the server writes by itself, or others at any time."""
    others = _OF_OTHERS.get(str(item.get("kind")), ("data",) if key(item) == _SIZES_KEY else ())
    metadata = {name: value for name, value in item["metadata"].items() if name not in (*_OF_THE_SERVER, *others)}
    return {**{name: value for name, value in item.items() if name not in ("metadata", "status", *others)}, "metadata": metadata}


def _shown(known: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    if known is None or known.get("kind") != "Secret":
        return known
    return {name: value for name, value in known.items() if name not in ("data", "stringData")}


def _text(known: Mapping[str, Any]) -> str:
    return json.dumps(known, indent=2, sort_keys=True) + "\n"

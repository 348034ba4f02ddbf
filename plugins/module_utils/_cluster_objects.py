# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What applying objects to a cluster, or deleting them, would change: live objects against the server's own dry run.

Private to this collection. Pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

Key = Tuple[str, str, str]

# What the server writes by itself and what differs although nothing of ours does.
_OF_THE_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")

_RBAC, _ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
# Kind to (its API, its namespace or "" for none) of what this collection makes of its own.
_OWN = {
    "ServiceAccount": ("v1", "kube-system"),
    "Role": (_RBAC, "kube-system"),
    "RoleBinding": (_RBAC, "kube-system"),
    "ClusterRole": (_RBAC, ""),
    "ClusterRoleBinding": (_RBAC, ""),
    "ValidatingAdmissionPolicy": (_ADMISSION, ""),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, ""),
}
_DELETED_ONLY = {"Secret": ("v1", "kube-system")}
_NAME = re.compile(r"gpushare-(?=.{1,244}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NODE_LABELS = ("gpushare.kubernetes/node", "ack.node.gpu.placement")


@dataclass(frozen=True)
class Change:
    """One object that is created, altered or deleted: before or after is None. Values of Secrets are left out."""

    key: Key
    before: Optional[Dict[str, Any]]
    after: Optional[Dict[str, Any]]

    @property
    def title(self) -> str:
        return title(self.key)


def foreign(objects: Sequence[Mapping[str, Any]], deleting: bool = False) -> Optional[str]:
    """Which of the objects this collection never makes or deletes, and why, in words; None if they are all its own.

    What is applied here is applied with all rights over the cluster. Of a node, which is somebody else's, there are two labels.
    """
    for item in objects:
        why = _foreign(item, deleting)
        if why is not None:
            return f"{str(item.get('kind'))[:80]!r} {str((item.get('metadata') or {}).get('name'))[:80]!r}: {why}"
    return None


def _foreign(item: Mapping[str, Any], deleting: bool) -> Optional[str]:
    kind, metadata = item.get("kind"), item.get("metadata") or {}
    if kind == "Node" and not deleting:
        if set(item) != {"apiVersion", "kind", "metadata"} or set(metadata) != {"name", "labels"} or item["apiVersion"] != "v1":
            return "expected a node's name and labels, nothing else"
        return None if set(metadata["labels"]) <= set(_NODE_LABELS) else f"expected no other labels than {', '.join(_NODE_LABELS)}"
    place = {**_OWN, **(_DELETED_ONLY if deleting else {})}.get(str(kind))
    if place is None:
        return f"expected one of the kinds {', '.join(_OWN)}"
    if place != (item.get("apiVersion"), metadata.get("namespace", "")):
        return f"expected {place[0]}" + (f" in the namespace {place[1]}" if place[1] else " without a namespace")
    if not _NAME.fullmatch(str(metadata.get("name"))):
        return "expected a name that begins with gpushare-"
    if str(kind).endswith("RoleBinding") and not deleting:
        named = [item["roleRef"], *item["subjects"]]
        if [one for one in named if not _NAME.fullmatch(one["name"])] or {one["kind"] for one in item["subjects"]} != {"ServiceAccount"}:
            return "expected roles and ServiceAccounts whose names begin with gpushare-"
    return None


def changes(live: Sequence[Mapping[str, Any]], applied: Sequence[Mapping[str, Any]]) -> List[Change]:
    """The objects of `applied` (as a dry run returns them) that differ from `live`, in their order."""
    before = {key(item): _content(item) for item in live}
    found = []
    for item in applied:
        content = _content(item)
        if before.get(key(item)) != content:
            found.append(Change(key(item), _shown(before.get(key(item))), _shown(content) or {}))
    return found


def deletions(live: Sequence[Mapping[str, Any]]) -> List[Change]:
    """What deleting these changes."""
    return [Change(key(item), _shown(_content(item)), None) for item in live]


def absent(live: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> List[str]:
    """The titles of the wanted objects that the cluster does not have."""
    there = {key(item) for item in live}
    return [title(key(item)) for item in wanted if key(item) not in there]


def served(group_version: str, ask: Callable[[str], Optional[Mapping[str, Any]]]) -> Set[str]:
    """The kinds that the API server has of a group and version such as "apps/v1". ask: path to its answer, None for 404."""
    found = ask(("/apis/" if "/" in group_version else "/api/") + group_version) or {}
    return {str(resource["kind"]) for resource in found.get("resources") or ()}


def title(of: Key) -> str:
    """Such as "ClusterRole gpushare-extender" or "Secret kube-system/gpushare-extender"."""
    kind, namespace, name = of
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def key(item: Mapping[str, Any]) -> Key:
    """Kind, namespace ("" if it has none) and name."""
    metadata = item["metadata"]
    return str(item["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])


def diff(found: Sequence[Change]) -> List[Dict[str, str]]:
    """The changes in the form that Ansible prints."""
    return [
        {
            "before_header": change.title,
            "after_header": change.title,
            "before": "" if change.before is None else _text(change.before),
            "after": "" if change.after is None else _text(change.after),
        }
        for change in found
    ]


def _content(item: Mapping[str, Any]) -> Dict[str, Any]:
    metadata = {name: value for name, value in item["metadata"].items() if name not in _OF_THE_SERVER}
    return {**{name: value for name, value in item.items() if name not in ("metadata", "status")}, "metadata": metadata}


def _shown(content: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    if content is None or content.get("kind") != "Secret":
        return content
    return {name: value for name, value in content.items() if name not in ("data", "stringData")}


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"

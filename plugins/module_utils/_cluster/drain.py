# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons a node and evicts its pods within their disruption budgets, and makes it schedulable again where it was we who cordoned it.

kubectl drain evicts; the node's annotation says that the cordon is ours, so that a run that was killed is known by the next one, and an
administrator's own cordon stays.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._formats.finding import few
from .kubectl import Kubectl, KubectlError

#: Of one attempt, of which tasks/drain.yml of the roles counts as many as fit: nothing on the way may take the connection for dead.
SECONDS = 20
#: On a node that we cordoned: the role that did.
ANNOTATION = "gpushare/cordoned-by"
#: The reason beside it, for administrators who find the node after its run.
REASON = "gpushare/cordon-reason"
#: Whose change the API server says it was. An administrator who takes our cordon back leaves the annotation, and may cordon later.
MANAGER = "gpushare-drain"
_MIRROR = "kubernetes.io/config.mirror"
_REJECTED = re.compile(r'error when (?:evicting|deleting) pods/"?([^"\s]+)"? -n "?([^"\s]+?)"?(?:\s*\(will retry[^)]*\))?: ([^\n]{1,300})')
# kubectl's last words about each pod that is left: they do not say why.
_TIMEOUT = "global timeout reached"
_MOST = 8
# Part of a reason comes from the host.
_REASON_CHARACTERS = 500


@dataclass(frozen=True)
class Drained(ModuleAnswer):
    """The answer of gpushare_node that drains. done: nothing is left to evict. left: pods that are still there, as namespace/name. why:
    what kubectl reported of them.
    """

    done: bool
    left: "tuple[str, ...]" = ()
    why: str = ""
    diff: List[DiffPart] = field(default_factory=list)


class DrainError(Failure):
    """The node cannot be drained; says why."""


def drain(kubectl: Kubectl, node: str, owner: str, seconds: int, force: bool, dry: bool, reason: str = "") -> Drained:
    """Cordon the node and evict for at most `seconds`. force: also pods that no controller brings back. reason: as for `cordon`."""
    schedulable = not (_node(kubectl, node).get("spec") or {}).get("unschedulable")
    pods = evictable(kubectl.items(["get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={node}"]))
    alone = [name_of(pod) for pod in pods if _controller(pod) is None]
    if alone and not force:
        raise DrainError(
            f"found pods on node {node} that no controller would bring back: {few(alone, _MOST)}; expected none. Nothing was changed: "
            "delete them yourself, or set gpushare_drain_force: true"
        )
    if dry:
        return Drained(schedulable or bool(pods), not pods, tuple(map(name_of, pods)))
    if schedulable:
        _cordon(kubectl, node, owner, reason)
    why = ""
    if pods:
        options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s", *(["--force"] if force else [])]
        try:
            kubectl.text(["drain", node, *options])
        except KubectlError as error:
            why = rejections(str(error))
    left = evictable(kubectl.items(["get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={node}"]))
    return Drained(schedulable or bool(pods), not left, tuple(map(name_of, left)), why if left else "")


def cordon(kubectl: Kubectl, node: str, owner: str, dry: bool, reason: str = "") -> bool:
    """Keep new pods away, where no cordon does already; whether anything changes. Pods that are there stay.

    reason: what the node's annotation says, of a cordon of ours that was there before, too; "" leaves what it says.
    """
    found = _node(kubectl, node, "--show-managed-fields")
    annotations = (found.get("metadata") or {}).get("annotations") or {}
    schedulable = not (found.get("spec") or {}).get("unschedulable")
    explained = bool(reason) and ANNOTATION in annotations and _is_ours(found) and annotations.get(REASON) != _shown(reason)
    if schedulable and not dry:
        _cordon(kubectl, node, owner, reason)
    elif explained and not dry:
        _patch(kubectl, node, {"metadata": {"annotations": {REASON: _shown(reason)}}})
    return schedulable or explained


def uncordon(kubectl: Kubectl, node: str, dry: bool) -> bool:
    """Make the node schedulable where our annotation is on it and the cordon is ours; whether that was so."""
    found = _node(kubectl, node, "--show-managed-fields")
    if ANNOTATION not in ((found.get("metadata") or {}).get("annotations") or {}) or not _is_ours(found):
        return False
    if not dry:
        _patch(kubectl, node, {"spec": {"unschedulable": None}, "metadata": {"annotations": {ANNOTATION: None, REASON: None}}})
    return True


def evictable(pods: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """The pods that a drain evicts: neither a DaemonSet's, nor a static pod, nor one that has ended."""
    return [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        and _MIRROR not in (pod["metadata"].get("annotations") or {})
        and (_controller(pod) or {}).get("kind") != "DaemonSet"
    ]


def rejections(words: str) -> str:
    """The report of kubectl drain about each pod that was not evicted, once; else its last words."""
    found: Dict[str, str] = {}
    for name, namespace, why in _REJECTED.findall(words):
        if not why.startswith(_TIMEOUT):
            found.setdefault(f"{namespace}/{name}", " ".join(why.split()))
    shown = [f"{name}: {why}" for name, why in list(found.items())[:_MOST]]
    return "; ".join(shown) or " ".join(words.split())[-300:]


def name_of(pod: Mapping[str, Any]) -> str:
    """namespace/name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _node(kubectl: Kubectl, node: str, *options: str) -> Dict[str, Any]:
    found = kubectl.json(["get", "node", node, "--ignore-not-found", *options])
    if found is None:
        cure = "join the host to the cluster, or set gpushare_node_name"
        raise DrainError(f"the cluster has no node {node}; expected the node of this host: {cure}")
    return dict(found)


def _cordon(kubectl: Kubectl, node: str, owner: str, reason: str) -> None:
    # The reason of a cordon that an administrator took back goes.
    _patch(
        kubectl, node, {"spec": {"unschedulable": True}, "metadata": {"annotations": {ANNOTATION: owner, REASON: _shown(reason) or None}}}
    )


def _shown(reason: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in reason)[:_REASON_CHARACTERS].strip()


def _patch(kubectl: Kubectl, node: str, patch: Mapping[str, Any]) -> None:
    kubectl.text(["patch", "node", node, "--type=merge", f"--field-manager={MANAGER}", f"--patch={json.dumps(patch)}"])


def _is_ours(node: Mapping[str, Any]) -> bool:
    """Whether only we cordoned it."""
    fields = (node.get("metadata") or {}).get("managedFields") or ()
    who = [claim.get("manager") for claim in fields if "f:unschedulable" in ((claim.get("fieldsV1") or {}).get("f:spec") or {})]
    return all(manager == MANAGER for manager in who)


def _controller(pod: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    return next((owner for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")), None)

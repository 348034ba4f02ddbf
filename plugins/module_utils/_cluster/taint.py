# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The taint of GPU nodes that keeps pods without GPUs off them as long as others have room. No taint of another key is touched.

A node's taints are one list without keys to merge by (`kubectl explain node.spec.taints`), which kubelet, controllers and administrators
write too. So ours is put in and taken out by a JSON patch that fails if the node was written in between.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .kubectl import Kubectl, KubectlError, as_list
from .names import FIELD_MANAGER, TAINT

EFFECT = "PreferNoSchedule"
_TRIES = 5

Taints = List[Dict[str, Any]]


def is_tainted(node: Mapping[str, Any]) -> bool:
    return any(map(_is_ours, _taints(node)))


def taint(kubectl: Kubectl, wanted: Mapping[str, bool], dry: bool) -> List[Tuple[str, Taints, Taints]]:
    """(node, its taints before, after) of each that changes. wanted: by the node's name; nodes that are not there are left out."""
    names = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in wanted]
    live = kubectl.items(["get", "--ignore-not-found", "-f", "-"], as_list(names)) if names else []
    found = []
    for node in live:
        name = str(node["metadata"]["name"])
        if is_tainted(node) != wanted[name]:
            found.append((name, _taints(node), _after(node, wanted[name])))
            if not dry:
                put(kubectl, name, wanted[name])
    return found


def put(kubectl: Kubectl, name: str, wanted: bool) -> None:
    """Put the taint on the node, or take it away. KubectlError if others write the node every time."""
    for tries in range(_TRIES, 0, -1):
        node = kubectl.json(["get", "node", name, "--ignore-not-found"])
        operations = patch(node, wanted) if node is not None else None
        if operations is None:
            return
        try:
            kubectl.text(["patch", "node", name, "--type=json", f"--field-manager={FIELD_MANAGER}", f"--patch={json.dumps(operations)}"])
            return
        except KubectlError as error:
            # Between reading and writing another client has written the node.
            if tries == 1 or error.reason != "changed":
                raise


def patch(node: Mapping[str, Any], wanted: bool) -> Optional[List[Dict[str, Any]]]:
    """A JSON patch, None where nothing is to be changed."""
    if is_tainted(node) == wanted:
        return None
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    return [unchanged, {"op": "add", "path": "/spec/taints", "value": _after(node, wanted)}]


def _after(node: Mapping[str, Any], wanted: bool) -> Taints:
    others = [known for known in _taints(node) if not _is_ours(known)]
    return [*others, {"key": TAINT, "effect": EFFECT}] if wanted else others


def _taints(node: Mapping[str, Any]) -> Taints:
    return list((node.get("spec") or {}).get("taints") or ())


def _is_ours(known: Mapping[str, Any]) -> bool:
    # The same key with another effect is another owner's.
    return known.get("key") == TAINT and known.get("effect") == EFFECT


def key(name: str) -> Tuple[str, str, str]:
    """As of an object, for the change of one node's taint."""
    return f"taint {TAINT} of node", "", name

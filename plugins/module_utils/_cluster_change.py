# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring objects of a cluster to what they shall be, through kubectl: as few calls as can be, none that writes if nothing differs.

Private to this collection.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils import _cluster_objects
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubectl import Kubectl, KubectlError, as_list

Object = Mapping[str, Any]


class ForeignError(RuntimeError):
    """An object that this collection never makes or deletes; says which, and what was expected."""


@dataclass(frozen=True)
class Wanted:
    """apply: complete objects; delete: what names them counts. timeout: seconds for deleted ones to be gone."""

    apply: Sequence[Object] = ()
    delete: Sequence[Object] = ()
    create: bool = True
    skip_unserved: bool = False
    timeout: int = 60
    field_manager: str = "gpushare.kubernetes"


def check_ours(wanted: Wanted) -> None:
    """ForeignError unless all of them are of kinds and names that this collection makes."""
    foreign = _cluster_objects.foreign(wanted.apply) or _cluster_objects.foreign(wanted.delete, deleting=True)
    if foreign is not None:
        raise ForeignError(f"not an object of gpushare's: {foreign}; nothing was changed")


def converge(kubectl: Kubectl, wanted: Wanted, check_mode: bool) -> Dict[str, Any]:
    """The module's result. KubectlError with kubectl's words."""
    unserved: List[str] = []
    apply, delete = list(wanted.apply), list(wanted.delete)
    if wanted.skip_unserved:
        apply, unserved = _split(kubectl, apply)
        delete, gone = _split(kubectl, delete)
        # What the API server has not cannot be there: only what shall be there is worth a word.
        unserved = unserved if wanted.apply else gone
    changes, missing = _apply(kubectl, apply, wanted, check_mode)
    changes += _delete(kubectl, delete, wanted, check_mode)
    return {
        "changed": bool(changes),
        "objects": [change.title for change in changes],
        "skipped": unserved,
        "missing": missing,
        "diff": _cluster_objects.diff(changes),
    }


def _apply(
    kubectl: Kubectl, objects: Sequence[Object], wanted: Wanted, check_mode: bool
) -> Tuple[List[_cluster_objects.Change], List[str]]:
    """The changes, and the titles of those that are not there and may not be made."""
    missing: List[str] = []
    if not objects:
        return [], missing
    document = as_list(objects)
    command = ["apply", "--server-side", "--force-conflicts", f"--field-manager={wanted.field_manager}", "-f", "-"]
    live = kubectl.items(["get", "--ignore-not-found", "-f", "-"], document)
    if not wanted.create:
        there = {_cluster_objects.key(item) for item in live}
        missing = _cluster_objects.absent(live, objects)
        document = as_list([item for item in objects if _cluster_objects.key(item) in there])
        if not there:
            return [], missing
    changes = _cluster_objects.changes(live, kubectl.items([*command, "--dry-run=server"], document))
    if changes and not check_mode:
        kubectl.text(command, document)
    return changes, missing


def _delete(kubectl: Kubectl, objects: Sequence[Object], wanted: Wanted, check_mode: bool) -> List[_cluster_objects.Change]:
    if not objects:
        return []
    live = kubectl.items(["get", "--ignore-not-found", "-f", "-"], as_list(objects))
    if live and not check_mode:
        kubectl.text(["delete", "--ignore-not-found", "--wait", f"--timeout={wanted.timeout}s", "-f", "-"], as_list(live))
    return _cluster_objects.deletions(live)


def _split(kubectl: Kubectl, objects: Sequence[Object]) -> Tuple[List[Object], List[str]]:
    """(those of kinds that the API server has, the titles of the others)."""

    def ask(path: str) -> Optional[Mapping[str, Any]]:
        try:
            found: Mapping[str, Any] = json.loads(kubectl.text(["get", "--raw", path]))
        except KubectlError as error:
            if "NotFound" in str(error) or "the server could not find the requested resource" in str(error):
                return None
            raise
        return found

    kinds = {version: _cluster_objects.served(version, ask) for version in sorted({str(item["apiVersion"]) for item in objects})}
    kept = [item for item in objects if item["kind"] in kinds[item["apiVersion"]]]
    return kept, [_cluster_objects.title(_cluster_objects.key(item)) for item in objects if item not in kept]

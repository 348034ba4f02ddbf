# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What applying objects to a cluster would change: live objects against the server's own dry run.

Private to this collection. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

Key = Tuple[str, str, str]

# What the server writes by itself and what differs although nothing of ours does.
_OF_THE_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")


@dataclass(frozen=True)
class Change:
    """One object that applying creates or alters. before is None for a new one; values of Secrets are left out."""

    key: Key
    before: Optional[Dict[str, Any]]
    after: Dict[str, Any]

    @property
    def title(self) -> str:
        """Such as "ClusterRole gpushare-extender" or "Secret kube-system/gpushare-extender"."""
        kind, namespace, name = self.key
        return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def changes(live: Sequence[Mapping[str, Any]], applied: Sequence[Mapping[str, Any]]) -> List[Change]:
    """The objects of `applied` (as a dry run returns them) that differ from `live`, in their order."""
    before = {key(item): _content(item) for item in live}
    found = []
    for item in applied:
        content = _content(item)
        if before.get(key(item)) != content:
            found.append(Change(key(item), _shown(before.get(key(item))), _shown(content) or {}))
    return found


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
            "after": _text(change.after),
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

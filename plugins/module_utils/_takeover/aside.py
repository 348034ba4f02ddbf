# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes of a node and a DaemonSet when another device plugin is moved aside, and when it is given back.

Pure. The state before stands in an annotation of the object itself, so that any control plane, and a run after this one, can give it back.
Parts that others have changed since stay; then exactly our part goes.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .._cluster.names import ANNOTATION_MOVED_ASIDE, ANNOTATION_TAKEN_OVER
from .._formats.answers import DiffPart
from .._formats.failure import Failure
from .plugins import EXPRESSION, LABELS, Switch, is_empty, is_prepared, short, terms_of

VERSION = 1
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MOST_BYTES = 64 * 1024

#: Label → (its value before, its value as we left it); None for none.
Moves = Mapping[str, Tuple[Optional[str], Optional[str]]]


class TakeOverError(Failure):
    """Something that cannot be moved aside or given back: what was found, what was expected, what to do."""


@dataclass(frozen=True)
class MergePatch:
    """One object. patch: a merge patch, with its resourceVersion; before, after: what of it changes, to be shown."""

    kind: str
    namespace: str
    name: str
    patch: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"

    def diff(self) -> DiffPart:
        """In the form that Ansible prints."""
        before, after = (json.dumps(value, indent=2, sort_keys=True) + "\n" for value in (self.before, self.after))
        return {"before_header": self.title, "after_header": self.title, "before": before, "after": after}

    @property
    def resource(self) -> str:
        """As kubectl names it. Only the kinds of others have their group in it."""
        return "clusterpolicies.nvidia.com" if self.kind == "ClusterPolicy" else self.kind.lower()


def moves_of(node: Mapping[str, Any]) -> Dict[str, Tuple[Optional[str], Optional[str]]]:
    """The changes of a node by take-overs that were not given back. TakeOverError if that cannot be read."""
    text = (node["metadata"].get("annotations") or {}).get(ANNOTATION_TAKEN_OVER)
    if text is None:
        return {}
    data = loaded(text, f"annotation {ANNOTATION_TAKEN_OVER} of node {node['metadata']['name']}")
    labels = data.get("labels")
    moves = {str(key): value for key, value in labels.items()} if isinstance(labels, dict) else {}
    if not isinstance(labels, dict) or not all(_is_move(key, value) for key, value in moves.items()):
        raise TakeOverError(
            f"annotation {ANNOTATION_TAKEN_OVER} of node {node['metadata']['name']} has labels {short(labels)}; expected "
            f"{', '.join(sorted(LABELS))} with two values each. Correct it, or remove it and set these labels by hand"
        )
    return {key: (value[0], value[1]) for key, value in moves.items()}


def node_aside(node: Mapping[str, Any], switches: Iterable[Switch]) -> Optional[MergePatch]:
    """The node without these plugins; None if that changes nothing."""
    moves, labels = moves_of(node), node["metadata"].get("labels") or {}
    wanted = dict(moves)
    for switch in switches:
        now = labels.get(switch.label)
        # Also one that others have set again since the last move.
        if now != switch.away:
            wanted[switch.label] = (now, switch.away)
    return _of_node(node, {label: away for label, (_before, away) in wanted.items()}, wanted)


def node_returned(node: Mapping[str, Any]) -> Tuple[Optional[MergePatch], List[str]]:
    """The node as it was, None if nothing was moved; and the labels that others have changed since, which stay."""
    moves, labels = moves_of(node), node["metadata"].get("labels") or {}
    if ANNOTATION_TAKEN_OVER not in (node["metadata"].get("annotations") or {}):
        return None, []
    kept = sorted(label for label, (_before, away) in moves.items() if labels.get(label) != away)
    restored = {label: before for label, (before, _away) in moves.items() if label not in kept}
    return _of_node(node, restored, {}), kept


def daemon_set_aside(item: Mapping[str, Any]) -> Optional[MergePatch]:
    """The DaemonSet with our expression in each term of its affinity; None if it has it."""
    affinity = item["spec"]["template"]["spec"].get("affinity")
    if is_prepared(affinity):
        return None
    remembered = json.dumps({"v": VERSION, "affinity": affinity}, separators=(",", ":"), sort_keys=True)
    return _of_daemon_set(item, with_expression(affinity), remembered)


def daemon_set_returned(item: Mapping[str, Any]) -> Optional[MergePatch]:
    """The DaemonSet as it was before it was moved aside; None for one that was not moved by us."""
    text = (item["metadata"].get("annotations") or {}).get(ANNOTATION_MOVED_ASIDE)
    if text is None:
        return None
    title = f"DaemonSet {item['metadata']['namespace']}/{item['metadata']['name']}"
    original = loaded(text, f"annotation {ANNOTATION_MOVED_ASIDE} of {title}").get("affinity")
    if original is not None and not isinstance(original, dict):
        raise TakeOverError(
            f"annotation {ANNOTATION_MOVED_ASIDE} of {title} has the affinity {short(original)}; expected an object. Correct it, or "
            "remove it and the expression in the affinity by hand"
        )
    affinity = item["spec"]["template"]["spec"].get("affinity")
    untouched = affinity == with_expression(original)
    return _of_daemon_set(item, original if untouched else without_expression(affinity), None)


def with_expression(affinity: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """The affinity with our expression in each term that matches something, or in a new one."""
    wanted: Dict[str, Any] = copy.deepcopy(dict(affinity or {}))
    node = wanted["nodeAffinity"] = dict(wanted.get("nodeAffinity") or {})
    required = node[_REQUIRED] = dict(node.get(_REQUIRED) or {})
    terms = [dict(term) for term in required.get("nodeSelectorTerms") or ()] or [{"matchExpressions": []}]
    only = not terms_of(affinity)
    for term in terms:
        expressions = list(term.get("matchExpressions") or ())
        if (only or not is_empty(term)) and EXPRESSION not in expressions:
            term["matchExpressions"] = [*expressions, dict(EXPRESSION)]
    required["nodeSelectorTerms"] = terms
    return wanted


def without_expression(affinity: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The affinity without our expression, and without what has then nothing in it."""
    if affinity is None:
        return None
    wanted: Dict[str, Any] = copy.deepcopy(dict(affinity))
    kept: List[Dict[str, Any]] = []
    for term in terms_of(wanted):
        expressions = [expression for expression in term.get("matchExpressions") or () if expression != EXPRESSION]
        rest = {key: value for key, value in term.items() if key != "matchExpressions"}
        cleaned = {**rest, "matchExpressions": expressions} if expressions else rest
        # A term without anything matches no node: one that had only our expression goes.
        if not is_empty(cleaned) or is_empty(term):
            kept.append(cleaned)
    if not terms_of(wanted):
        return wanted
    if kept:
        wanted["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"] = kept
        return wanted
    del wanted["nodeAffinity"][_REQUIRED]
    if not wanted["nodeAffinity"]:
        del wanted["nodeAffinity"]
    return wanted or None


def _of_node(node: Mapping[str, Any], labels: Mapping[str, Optional[str]], moves: Moves) -> Optional[MergePatch]:
    metadata = node["metadata"]
    now = metadata.get("labels") or {}
    values = {label: list(pair) for label, pair in moves.items()}
    remembered = json.dumps({"v": VERSION, "labels": values}, separators=(",", ":"), sort_keys=True) if moves else None
    before = {label: now.get(label) for label in labels}
    annotation = (metadata.get("annotations") or {}).get(ANNOTATION_TAKEN_OVER)
    if before == dict(labels) and annotation == remembered:
        return None
    patch = {
        "metadata": {
            "resourceVersion": metadata.get("resourceVersion"),
            "labels": dict(labels),
            "annotations": {ANNOTATION_TAKEN_OVER: remembered},
        }
    }
    return MergePatch("Node", "", str(metadata["name"]), patch, {"labels": before}, {"labels": dict(labels)})


def _of_daemon_set(item: Mapping[str, Any], affinity: Optional[Mapping[str, Any]], remembered: Optional[str]) -> MergePatch:
    metadata, now = item["metadata"], item["spec"]["template"]["spec"].get("affinity")
    merged = None if affinity is None else _merge(now or {}, affinity)
    patch = {
        "metadata": {"resourceVersion": metadata.get("resourceVersion"), "annotations": {ANNOTATION_MOVED_ASIDE: remembered}},
        "spec": {"template": {"spec": {"affinity": merged}}},
    }
    return MergePatch("DaemonSet", str(metadata["namespace"]), str(metadata["name"]), patch, {"affinity": now}, {"affinity": affinity})


def _merge(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The merge patch that makes the one the other: what is not wanted is null."""
    patch: Dict[str, Any] = {key: None for key in now if key not in wanted}
    for key, value in wanted.items():
        before = now.get(key)
        patch[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch


def loaded(text: str, what: str) -> Dict[str, Any]:
    """The content of one of our annotations. `what`: its name in a message, for the TakeOverError about one that is none of ours."""
    try:
        data = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("v") != VERSION:
        raise TakeOverError(f"{what} is {short(text)}; expected JSON of version {VERSION}. Correct it, or remove it and its part by hand")
    return data


def _is_move(label: str, values: Any) -> bool:
    return label in LABELS and isinstance(values, list) and len(values) == 2 and all(map(_is_value, values))


def _is_value(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _LABEL_VALUE.fullmatch(value) is not None)

# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler of OpenShift up to 4.9: a policy in a ConfigMap that the object Scheduler/cluster names, with our extender in it.

An annotation of the ConfigMap has the state before, so that any run can restore it. The fields are those of openshift/api,
config/v1/types_scheduling.go (read on 2026-08-21), where `policy` is deprecated.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.kubectl import Kubectl
from .._cluster.names import ANNOTATION_POLICY
from .._formats.answers import DiffPart, ModuleAnswer
from .manifest import SchedulerError
from .policy import KEY, merge_policy, unmerge_policy
from .releases import LAST_POLICY, release_of
from .scheduler_config import ExtenderEntry

NAMESPACE, NAME = "openshift-config", "scheduler-policy"
SCHEDULERS = "schedulers.config.openshift.io"
_CLUSTER = "cluster"
_VERSION = 1
_MOST_BYTES = 64 * 1024
_QUOTED = 80
_INDENT = re.compile(r"\n([ \t]+)\S")


@dataclass(frozen=True)
class SchedulerObjects:
    """Both objects. version: of the API server. config_map: the one that Scheduler/cluster names, or the one to make, None for none."""

    version: str
    scheduler: Mapping[str, Any]
    config_map: Optional[Mapping[str, Any]]

    @property
    def named(self) -> str:
        return str(((self.scheduler.get("spec") or {}).get("policy") or {}).get("name") or "")

    @property
    def name(self) -> str:
        """Of the ConfigMap that is read."""
        return self.named or NAME

    @property
    def text(self) -> Optional[str]:
        return ((self.config_map or {}).get("data") or {}).get(KEY)


@dataclass(frozen=True)
class Call:
    """One call of kubectl, with the document for its standard input, "" for none. before, after: to be shown."""

    title: str
    args: Tuple[str, ...]
    document: str
    before: str
    after: str

    def diff(self) -> DiffPart:
        return {"before_header": self.title, "after_header": self.title, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class PolicyMerged(ModuleAnswer):
    """The answer of gpushare_cluster about the scheduler's policy of OpenShift."""

    notes: List[str]
    diff: List[DiffPart]


def read(kubectl: Kubectl) -> SchedulerObjects:
    """KubectlError with kubectl's words; SchedulerError in a cluster that has no such object."""
    version = str((kubectl.raw("/version") or {}).get("gitVersion", ""))
    scheduler = kubectl.raw(f"/apis/config.openshift.io/v1/schedulers/{_CLUSTER}")
    if scheduler is None:
        raise SchedulerError(f"found no Scheduler/{_CLUSTER} of config.openshift.io; expected OpenShift. Leave gpushare_openshift out")
    named = SchedulerObjects(version, scheduler, None).name
    if not re.fullmatch(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", named):
        raise SchedulerError(f"found spec.policy.name {named[:_QUOTED]!r} of Scheduler/{_CLUSTER}; expected a ConfigMap's name. Correct it")
    return SchedulerObjects(version, scheduler, kubectl.raw(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{named}"))


def present(found: SchedulerObjects, extender: ExtenderEntry) -> List[Call]:
    """The calls that add the extender, none if it is there. SchedulerError where it cannot be."""
    release = release_of("", found.version)
    if release is None or release > LAST_POLICY:
        raise SchedulerError(
            f"found Kubernetes {found.version[:_QUOTED]}; expected 1.22 or older (OpenShift 4.9), because later schedulers read no policy. "
            "Run the playbook cluster instead"
        )
    before = found.text
    after = _text(before, merge_policy(_loaded(before), extender))
    steps = []
    if after != before:
        known = _remembered(found)
        kept = known if known is not None else {"text": before, "policy": (found.scheduler.get("spec") or {}).get("policy")}
        steps.append(_config_map(found, after, {"v": _VERSION, **kept, "left": _digest(after)}))
    if found.named != found.name:
        steps.append(_scheduler(found, {"name": found.name}))
    return steps


def absent(found: SchedulerObjects, extender: ExtenderEntry) -> Tuple[List[Call], List[str]]:
    """The calls that restore both objects, and notes. The scheduler goes first: it would not start without its policy."""
    known = _remembered(found)
    if known is None:
        return [], []
    notes, steps = [], []
    policy = known.get("policy")
    name = str((policy or {}).get("name") or "")
    if found.named and found.named != name:
        steps.append(_scheduler(found, policy))
    before = known.get("text")
    if known.get("left") == _digest(found.text or ""):
        after = before
    else:
        notes.append(f"policy of ConfigMap {NAMESPACE}/{found.name}, which was changed since: only the extender was removed")
        after = _text(found.text, unmerge_policy(_loaded(found.text) or {}, extender, _loaded(before)))
    steps.append(_config_map(found, after, None))
    return steps, notes


def apply(kubectl: Kubectl, steps: List[Call]) -> None:
    """KubectlError as soon as one does not work, also where another client has changed the object since. The next run continues."""
    for step in steps:
        kubectl.text(list(step.args), step.document or None)


def _config_map(found: SchedulerObjects, text: Optional[str], remembered: Optional[Mapping[str, Any]]) -> Call:
    """The ConfigMap with that policy, None for none: then it goes, if it has nothing else."""
    title, where = f"ConfigMap {NAMESPACE}/{found.name}", ("--namespace", NAMESPACE)
    note = None if remembered is None else json.dumps(remembered, separators=(",", ":"), sort_keys=True)
    if found.config_map is None:
        metadata = {"name": found.name, "namespace": NAMESPACE, "annotations": {ANNOTATION_POLICY: note}}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}
        return Call(title, ("create", "-f", "-"), json.dumps(made), "", text or "")
    others = set(found.config_map.get("data") or {}) - {KEY}
    if text is None and not others:
        return Call(title, (*where, "delete", "configmap", found.name), "", found.text or "", "")
    version = found.config_map["metadata"].get("resourceVersion")
    patch = {"metadata": {"resourceVersion": version, "annotations": {ANNOTATION_POLICY: note}}, "data": {KEY: text}}
    call = (*where, "patch", "configmap", found.name, "--type=merge", f"--patch={json.dumps(patch)}")
    return Call(title, call, "", found.text or "", text or "")


def _scheduler(found: SchedulerObjects, policy: Optional[Mapping[str, Any]]) -> Call:
    before = (found.scheduler.get("spec") or {}).get("policy")
    version = found.scheduler["metadata"].get("resourceVersion")
    patch = json.dumps({"metadata": {"resourceVersion": version}, "spec": {"policy": dict(policy) if policy is not None else None}})
    shown = [json.dumps({"policy": value}, sort_keys=True) + "\n" for value in (before, policy)]
    return Call(f"Scheduler {_CLUSTER}", ("patch", SCHEDULERS, _CLUSTER, "--type=merge", f"--patch={patch}"), "", shown[0], shown[1])


def _remembered(found: SchedulerObjects) -> Optional[Dict[str, Any]]:
    """The content of our annotation, None for none. SchedulerError for one that is not ours."""
    text = ((found.config_map or {}).get("metadata") or {}).get("annotations") or {}
    note = text.get(ANNOTATION_POLICY)
    if note is None:
        return None
    try:
        data = json.loads(note) if len(note) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        data = None
    kinds = {"text": (str, type(None)), "policy": (dict, type(None)), "left": (str,)}
    good = isinstance(data, dict) and data.get("v") == _VERSION and all(isinstance(data.get(key), kind) for key, kind in kinds.items())
    if not good or not isinstance(data, dict):
        raise SchedulerError(
            f"annotation {ANNOTATION_POLICY} of ConfigMap {NAMESPACE}/{found.name} is {note[:_QUOTED]}; expected what this collection has "
            "written. Remove it, and correct the policy by hand"
        )
    return {key: data.get(key) for key in kinds}


def _loaded(text: Optional[str]) -> Optional[Any]:
    if text is None:
        return None
    try:
        return json.loads(text) if len(text) <= _MOST_BYTES else {}
    except (ValueError, RecursionError) as error:
        raise SchedulerError(f"{KEY} is not JSON ({str(error)[:_QUOTED]}): convert it first") from None


def _text(before: Optional[str], wanted: Any) -> str:
    """In the form that it has: its indentation, and whether it ends its last line."""
    if before is None:
        return json.dumps(wanted, indent=2) + "\n"
    if _loaded(before) == wanted:
        return before
    indent = _INDENT.search(before)
    return json.dumps(wanted, indent=indent.group(1) if indent else None, ensure_ascii=False) + ("\n" if before.endswith("\n") else "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

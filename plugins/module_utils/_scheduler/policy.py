# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler's Policy, which Kubernetes up to 1.22 reads, with our extender in it. Predicates and priorities stay as they are.

Pure: works on what the file loads as, and never changes its arguments.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from .manifest import SchedulerError
from .scheduler_config import ExtenderEntry, policy_entry, with_extender, without_extender

KIND = "Policy"
#: The key of a ConfigMap with a policy.
KEY = "policy.cfg"


@dataclass(frozen=True)
class PolicyMap:
    """A policy in a ConfigMap of the cluster. version: the object's resourceVersion."""

    namespace: str
    name: str
    text: str
    version: str

    @property
    def path(self) -> str:
        """The name of this policy in the journal and in the header of a diff."""
        return f"configmap:{self.namespace}/{self.name}/{KEY}"


def check_policy(policy: Any) -> Dict[str, Any]:
    """The policy itself. SchedulerError for anything that is not a policy."""
    if not isinstance(policy, dict) or policy.get("kind") != KIND or policy.get("apiVersion") != "v1":
        found = policy if not isinstance(policy, dict) else {key: policy.get(key) for key in ("apiVersion", "kind")}
        raise SchedulerError(f"the scheduler's policy must have apiVersion v1 and kind {KIND}; found {str(found)[:80]}")
    if not isinstance(policy.get("extenders") or [], list):
        raise SchedulerError("the scheduler's policy must have a list of extenders")
    return policy


def merge_policy(current: Optional[Any], extender: ExtenderEntry) -> Dict[str, Any]:
    """The policy with our extender in it: `current` and nothing else changed, or a new one.

    A new one has neither predicates nor priorities: then kube-scheduler takes its own.
    """
    merged = {"kind": KIND, "apiVersion": "v1"} if current is None else copy.deepcopy(check_policy(current))
    return with_extender(merged, extender, policy_entry(extender))


def unmerge_policy(policy: Mapping[str, Any], extender: ExtenderEntry, before: Any = None) -> Dict[str, Any]:
    """The policy without our extender. before: the policy as it was before us, as `without_extender` needs it."""
    return without_extender(check_policy(policy), extender, before)

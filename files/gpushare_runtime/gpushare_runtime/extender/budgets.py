# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How many evictions would violate a PodDisruptionBudget, counted as kube-scheduler counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare_runtime.ledger import Holder


@dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget (policy/v1). allowed: evictions that it still takes; disrupted: pods already on their way out."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...]
    allowed: int
    disrupted: frozenset[str]

    def covers(self, pod: Holder) -> bool:
        """Whether evicting this pod counts against it. As for kube-scheduler, an empty selector covers none, and none a bare pod."""
        if pod.namespace != self.namespace or pod.name in self.disrupted or not (self.labels or self.expressions) or not pod.labels:
            return False
        labels = dict(pod.labels)
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            _holds(labels, *expression) for expression in self.expressions
        )


def read_budget(raw: Mapping[str, Any]) -> Budget:
    """From a PodDisruptionBudget as JSON."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    selector = (raw.get("spec") or {}).get("selector") or {}
    return Budget(
        namespace=metadata["namespace"],
        name=metadata["name"],
        labels=selector.get("matchLabels") or {},
        expressions=tuple((e["key"], e["operator"], tuple(e.get("values") or ())) for e in selector.get("matchExpressions") or ()),
        allowed=status.get("disruptionsAllowed") or 0,
        disrupted=frozenset(status.get("disruptedPods") or ()),
    )


def violations(pods: Sequence[Holder], budgets: Iterable[Budget]) -> list[bool]:
    """For each pod, evicted in this order, whether a budget is used up by then."""
    namespaces = {pod.namespace for pod in pods}
    left: dict[str, list[tuple[Budget, list[int]]]] = {}
    for budget in budgets:
        if budget.namespace in namespaces:
            left.setdefault(budget.namespace, []).append((budget, [budget.allowed]))
    found = []
    for pod in pods:
        violates = False
        for budget, allowed in left.get(pod.namespace, ()):
            if budget.covers(pod):
                allowed[0] -= 1
                violates = violates or allowed[0] < 0
        found.append(violates)
    return found


def _holds(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) == (operator == "Exists")

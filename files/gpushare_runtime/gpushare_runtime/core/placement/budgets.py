# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cluster's disruption budgets, and which evictions violate them, counted as kube-scheduler counts. Pure.

A person who may edit a namespace may make thousands of budgets with any selectors, and one preemption asks about thousands of pods. So
budgets are found by what their selectors want, and of those a pod is compared with few: a pod with more counts as one whose budgets are
used up. That gives its owner no more than a budget that allows nothing, and such pods can still be evicted where nothing else helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from gpushare_runtime.core.pods import AllocatedPod

MOST_BUDGETS: Final = 16
"""That one pod is compared with. The Eviction API knows no pod with more than one."""
MOST_REQUIREMENTS: Final = 16
"""Labels and expressions of one selector."""
MOST_VALUES: Final = 64
"""In all expressions of one selector."""
MOST_LABELS: Final = 64
"""Of a pod."""
MOST_COMPARED: Final = 400_000
"""Labels and expressions of selectors that one question of the scheduler compares with pods: a tenth of a second. 4000 pods of two budgets
each with three labels are 24,000."""
MOST_COMPARED_OF_ONE: Final = 100_000
"""Of these, those of one namespace."""
_ANY: Final = None
"""In the place of what a selector wants, where it only wants something not to be there."""


@dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget (policy/v1). allowed: evictions that it still takes; disrupted: pods already on their way out.

    too_long: its selector has more than is compared, and is not kept.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    expressions: tuple[tuple[str, str, frozenset[str]], ...]
    allowed: int
    disrupted: frozenset[str]
    too_long: bool = False

    def covers(self, pod: AllocatedPod, labels: Mapping[str, str]) -> bool:
        """Whether evicting this pod of its namespace, which has these labels, counts against it."""
        if pod.name in self.disrupted or not self.labels.items() <= labels.items():
            return False
        # It is asked for every pod of a hundred nodes: no generator.
        for key, operator, values in self.expressions:
            if operator in ("In", "NotIn"):
                holds = (labels.get(key) in values) == (operator == "In")
            else:
                holds = (key in labels) == (operator == "Exists")
            if not holds:
                return False
        return True

    @property
    def requirements(self) -> int:
        """The number of labels and expressions that a pod is compared with."""
        return len(self.labels) + len(self.expressions)

    def wants(self) -> Iterator[Sequence[object]]:
        """For each requirement the labels or keys of which every pod that meets it has one; nothing where a label must be absent."""
        yield from ([pair] for pair in self.labels.items())
        for key, operator, values in self.expressions:
            if operator == "In":
                yield [(key, value) for value in values]
            elif operator == "Exists":
                yield [key]


def read_budget(raw: Mapping[str, Any]) -> Budget:
    """From a PodDisruptionBudget as JSON."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    selector = (raw.get("spec") or {}).get("selector") or {}
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    too_long = len(labels) + len(expressions) > MOST_REQUIREMENTS or sum(len(e.get("values") or ()) for e in expressions) > MOST_VALUES
    return Budget(
        namespace=metadata["namespace"],
        name=metadata["name"],
        labels={} if too_long else labels,
        expressions=() if too_long else tuple((e["key"], e["operator"], frozenset(e.get("values") or ())) for e in expressions),
        allowed=status.get("disruptionsAllowed") or 0,
        disrupted=frozenset(status.get("disruptedPods") or ()),
        too_long=too_long,
    )


class _Namespace:
    """The budgets of one namespace: each once for every pod, below what fewest others want of those things that it wants."""

    def __init__(self) -> None:
        self.budgets: dict[str, Budget] = {}
        self.too_long: set[str] = set()
        self._wanted: dict[object, dict[str, Budget]] = {}
        self._below: dict[str, Sequence[object]] = {}

    def put(self, budget: Budget) -> None:
        self.drop(budget.name)
        self.budgets[budget.name] = budget
        if budget.too_long:
            self.too_long.add(budget.name)
        elif budget.labels or budget.expressions:
            # As for kube-scheduler, an empty selector covers none.
            below = min(
                budget.wants(), key=lambda wants: max((len(self._wanted.get(want, ())) for want in wants), default=0), default=[_ANY]
            )
            self._below[budget.name] = below
            for want in below:
                self._wanted.setdefault(want, {})[budget.name] = budget

    def drop(self, name: str) -> None:
        self.budgets.pop(name, None)
        self.too_long.discard(name)
        for want in self._below.pop(name, ()):
            del self._wanted[want][name]
            if not self._wanted[want]:
                del self._wanted[want]

    def candidates(self, labels: Mapping[str, str]) -> Iterator[Budget]:
        """All that may cover a pod of these labels, none twice."""
        for want in chain((_ANY,), labels, labels.items()):
            yield from self._wanted.get(want, {}).values()


class Effort:
    """The comparisons that are left to one question of the scheduler."""

    def __init__(self) -> None:
        self._left = MOST_COMPARED
        self._of: dict[str, int] = {}
        self.beyond: set[str] = set()
        """Namespaces of which more would have had to be compared."""

    def take(self, namespace: str, requirements: int) -> bool:
        """Whether so many more of this namespace's budgets may be compared."""
        allowance = self._of.get(namespace, MOST_COMPARED_OF_ONE)
        if requirements > min(allowance, self._left):
            self.beyond.add(namespace)
            return False
        self._of[namespace] = allowance - requirements
        self._left -= requirements
        return True


class Budgets:
    """All of them, kept current by a watch."""

    def __init__(self, budgets: Iterable[Budget] = ()) -> None:
        self._namespaces: dict[str, _Namespace] = {}
        self.replace(budgets)

    def __iter__(self) -> Iterator[Budget]:
        return (budget for namespace in self._namespaces.values() for budget in namespace.budgets.values())

    def replace(self, budgets: Iterable[Budget]) -> None:
        """All, from a fresh list."""
        self._namespaces.clear()
        for budget in budgets:
            self._put(budget)

    def event(self, kind: str, budget: Budget) -> None:
        """A budget was "ADDED", "MODIFIED" or "DELETED"."""
        if kind != "DELETED":
            self._put(budget)
            return
        namespace = self._namespaces.get(budget.namespace)
        if namespace is not None:
            namespace.drop(budget.name)
            if not namespace.budgets:
                del self._namespaces[budget.namespace]

    def _put(self, budget: Budget) -> None:
        self._namespaces.setdefault(budget.namespace, _Namespace()).put(budget)

    def covering(self, pod: AllocatedPod, effort: Effort) -> Sequence[Budget] | None:
        """The budgets that evicting this pod counts against; None where too much would have to be compared to say that."""
        namespace = self._namespaces.get(pod.namespace)
        # kube-scheduler does not count a bare pod either.
        if namespace is None or not pod.labels:
            return ()
        if namespace.too_long or len(pod.labels) > MOST_LABELS or pod.namespace in effort.beyond:
            return None
        labels = dict(pod.labels)
        candidates = list(islice(namespace.candidates(labels), MOST_BUDGETS + 1))
        if len(candidates) > MOST_BUDGETS or not effort.take(pod.namespace, sum(budget.requirements for budget in candidates)):
            return None
        return [budget for budget in candidates if budget.covers(pod, labels)]


def violations(pods: Iterable[AllocatedPod], covering: Callable[[AllocatedPod], Sequence[Budget] | None]) -> list[bool]:
    """For each pod, evicted in this order, whether a budget is used up by then. covering: as `Budgets.covering`, without effort."""
    left: dict[tuple[str, str], int] = {}
    found = []
    for pod in pods:
        budgets = covering(pod)
        for budget in budgets or ():
            key = budget.namespace, budget.name
            left[key] = left.get(key, budget.allowed) - 1
        found.append(budgets is None or any(left[budget.namespace, budget.name] < 0 for budget in budgets))
    return found

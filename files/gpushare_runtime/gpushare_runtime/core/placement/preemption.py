# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the evictions that kube-scheduler considers make room on a GPU, and which more it takes. Pure.

Room that was made by evictions belongs to the pod that
it was made for. The scheduler before 1.38 asks only where a node's totals are too small: a pod that finds enough in total but not on
one GPU cannot be helped by eviction through an extender.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.placement.budgets import Budget, Budgets, Effort, violations
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.view import seen_by
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.request import Request

MOST_NODES: Final = 100
"""kube-scheduler proposes a hundred nodes, or a tenth of them all."""


@dataclass(frozen=True)
class Victims:
    """UIDs of the pods to evict from one node, and how many of those evictions violate a disruption budget."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass
class Preemption:
    """One question of the scheduler. uncounted: namespaces with pods of which too many budgets would have to be read."""

    ledger: Ledger
    policy: Policy
    budgets: Budgets = field(default_factory=Budgets)
    uncounted: set[str] = field(default_factory=set)
    _effort: Effort = field(default_factory=Effort)
    _covering: dict[str, Sequence[Budget] | None] = field(default_factory=dict)

    def victims(self, pod: PendingPod, proposed: Mapping[str, Victims]) -> dict[str, Victims]:
        """Of the nodes that the scheduler proposes, those that evictions can help, each with all victims that it takes.

        One without victims has room by its sums. kube-scheduler proposes such nodes from 1.38 on (kubernetes/kubernetes#135486).
        Of very many the cheaper ones by the scheduler's count: it takes one, and does not wait long for the answer.
        """
        found: dict[str, Victims] = {}
        for name, victims in sorted(proposed.items(), key=lambda item: (item[1].violations, len(item[1].uids))):
            node = self.ledger.node(name)
            if node is None:
                continue
            helped = node.guarded(partial(self._on_node, pod, node, victims), None)
            if helped is not None:
                found[name] = helped
                if len(found) == MOST_NODES:
                    break
        return found

    def _on_node(self, pod: PendingPod, node: NodeLedger, proposed: Victims) -> Victims | None:
        seen = seen_by(self.ledger, self.policy, node, pod)
        # A terminating pod need not be evicted.
        gone = {*proposed.uids, pod.uid, *(other.uid for other in node.pods if other.terminating)}
        if seen.simulate(without=gone).remaining_after(pod.request) is not None:
            return proposed if proposed.uids else None
        lesser = [h for h in node.pods if h.priority < pod.priority and h.uid not in gone and self._is_bound(h)]
        gpus = _Gpus(seen, pod.request, gone.union(h.uid for h in lesser))
        if not gpus.enough:
            return None
        earlier = [h for h in node.pods if h.uid in proposed.uids]
        more = self._fewest(node, gpus, lesser, {gpu for h in earlier for gpu in node.gpus_of(h) or ()})
        added = violations([*earlier, *more], self._covered_by)[len(earlier) :]
        return Victims((*proposed.uids, *(h.uid for h in more)), proposed.violations + sum(added))

    def _fewest(self, node: NodeLedger, gpus: _Gpus, lesser: Sequence[AllocatedPod], opened: Set[int]) -> list[AllocatedPod]:
        """Spare whom it can, as kube-scheduler does: first those whose budget is used up, then the more important.

        opened: GPUs that get room anyway; of equals, those on other GPUs are spared first.
        """
        ordered = sorted(lesser, key=lambda h: (-h.priority, h.uid))
        protected = dict(zip((h.uid for h in ordered), violations(ordered, self._covered_by), strict=True))
        beside = {h.uid: not opened.isdisjoint(node.gpus_of(h) or ()) for h in ordered}
        spared = {
            pod.uid
            for pod in sorted(ordered, key=lambda h: (not protected[h.uid], -h.priority, beside[h.uid], h.uid))
            if gpus.put_back(pod)
        }
        return [pod for pod in ordered if pod.uid not in spared]

    def _covered_by(self, pod: AllocatedPod) -> Sequence[Budget] | None:
        """`Budgets.covering`, once for each pod."""
        if pod.uid not in self._covering:
            self._covering[pod.uid] = covering = self.budgets.covering(pod, self._effort)
            if covering is None:
                self.uncounted.add(pod.namespace)
        return self._covering[pod.uid]

    def _is_bound(self, pod: AllocatedPod) -> bool:
        """Only who the scheduler knows on the node can be named to it."""
        return not self.ledger.is_assumed(pod.uid) and not self.ledger.is_reserved(pod.uid)


class _Gpus:
    """The GPUs of a node that take a request when some pods are away, which return one after the other.

    One copy of the node, and what is left of each GPU: a pod's return is a subtraction on the GPUs that it has.
    """

    def __init__(self, node: NodeLedger, request: Request, without: Collection[str]) -> None:
        self._node, self._request = node.simulate(without=without), request
        self._least = request.gpus
        self._open = {state.gpu.index: state for state in self._node.candidates(request)}
        self._said = {entry.uid for entry in node.record.held.entries}

    @property
    def enough(self) -> bool:
        """Whether it fits."""
        return bool(self._open)

    def put_back(self, pod: AllocatedPod) -> bool:
        """Whether it fits also beside this pod; if not, that one stays away."""
        self._node.put(pod)
        states = self._remaining(pod)
        closed = [index for index, state in states.items() if self._node.exclusion(self._request, state)]
        if len(self._open) - len(closed) < self._least:
            self._node.drop(pod.uid)
            return False
        self._open.update(states)
        for index in closed:
            del self._open[index]
        return True

    def _remaining(self, pod: AllocatedPod) -> dict[int, GpuState]:
        """The GPUs that it changes as they are then, as far as they matter."""
        known = self._node.gpus_of(pod)
        if known is None or pod.uid in self._said:
            # On whichever GPU, or where its node has counted it all along: seldom, so from the whole node.
            return {state.gpu.index: state for state in self._node.gpu_states if state.gpu.index in self._open}
        core, whole, clients = pod.request.core, pod.whole, pod.request.clients
        return {index: self._open[index].after(units, core, whole, clients) for index, units in known.items() if index in self._open}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""preempt: whether the evictions that kube-scheduler considers make room on a card, and which more it takes. Pure.

The scheduler asks only where a node's totals are too small. A pod that finds enough in total but not on one card is not asked
about, so that fragmentation between cards cannot be cured by eviction through an extender.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from gpushare_runtime.extender.budgets import Budget, violations
from gpushare_runtime.extender.nominated import seen_by
from gpushare_runtime.extender.wire import Victims
from gpushare_runtime.ledger import Holder, Ledger, NodeLedger
from gpushare_runtime.placement import Policy
from gpushare_runtime.request import Request


@dataclass(frozen=True)
class Preemptor:
    """The pod that needs room. request: with its bearer where that matters."""

    uid: str
    priority: int
    request: Request


@dataclass
class Preemption:
    """budgets: those of the cluster, as they are now."""

    ledger: Ledger
    policy: Policy
    budgets: Collection[Budget] = field(default_factory=tuple)

    def victims(self, pod: Preemptor, proposed: Mapping[str, Victims]) -> dict[str, Victims]:
        """Of the nodes that the scheduler proposes, those that evictions can help, each with all victims that it takes."""
        found = {name: self._on_node(pod, name, victims) for name, victims in proposed.items()}
        return {name: victims for name, victims in found.items() if victims is not None}

    def _on_node(self, pod: Preemptor, name: str, proposed: Victims) -> Victims | None:
        node = self.ledger.node(name)
        if node is None or not proposed.uids:
            return None
        seen = seen_by(self.ledger, self.policy, node, pod.uid, pod.priority)
        # Who is leaving by itself need not be evicted.
        gone = {*proposed.uids, pod.uid, *(holder.uid for holder in node.holders if holder.leaving)}
        if self._fits(pod, seen, gone):
            return proposed
        lesser = [h for h in node.holders if h.priority < pod.priority and h.uid not in gone and self._is_bound(h)]
        if not self._fits(pod, seen, gone.union(h.uid for h in lesser)):
            return None
        earlier = [h for h in node.holders if h.uid in proposed.uids]
        more = self._fewest(pod, seen, gone, lesser, {card for h in earlier for card in node.known(h) or ()})
        added = violations([*earlier, *more], self.budgets)[len(earlier) :]
        return Victims((*proposed.uids, *(h.uid for h in more)), proposed.violations + sum(added))

    def _fewest(self, pod: Preemptor, node: NodeLedger, gone: Collection[str], lesser: Sequence[Holder], opened: Set[int]) -> list[Holder]:
        """Spare whom it can, as kube-scheduler does: first those whose budget is used up, then the more important.

        opened: cards that get room anyway; of equals, those on other cards are spared first.
        """
        ordered = sorted(lesser, key=lambda h: (-h.priority, h.uid))
        protected = dict(zip((h.uid for h in ordered), violations(ordered, self.budgets), strict=True))
        victims = {h.uid: h for h in ordered}
        beside = {h.uid: not opened.isdisjoint(node.known(h) or ()) for h in ordered}
        for holder in sorted(ordered, key=lambda h: (not protected[h.uid], -h.priority, beside[h.uid], h.uid)):
            if self._fits(pod, node, {*gone, *victims} - {holder.uid}):
                del victims[holder.uid]
        return list(victims.values())

    def _fits(self, pod: Preemptor, node: NodeLedger, without: Collection[str]) -> bool:
        return node.supposing(without=without).leftover(pod.request) is not None

    def _is_bound(self, holder: Holder) -> bool:
        """Only who the scheduler knows on the node can be named to it."""
        return not self.ledger.is_assumed(holder.uid) and not self.ledger.is_reserved(holder.uid)

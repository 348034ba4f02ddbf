# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""preempt: whether the evictions that kube-scheduler considers make room on a card, and which more it takes. Pure.

The scheduler asks only where a node's totals are too small. A pod that finds enough in total but not on one card is not asked
about, so that fragmentation between cards cannot be cured by eviction through an extender.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime.extender.budgets import Budget, violations
from gpushare_runtime.extender.nominated import seen_by
from gpushare_runtime.extender.wire import Victims
from gpushare_runtime.ledger import CardState, Holder, Ledger, NodeLedger
from gpushare_runtime.placement import Policy
from gpushare_runtime.request import Request

MOST_NODES: Final = 100
"""kube-scheduler proposes a hundred nodes, or a tenth of them all."""


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
        """Of the nodes that the scheduler proposes, those that evictions can help, each with all victims that it takes.

        Of very many the cheaper ones by the scheduler's count: it takes one, and does not wait long for the answer.
        """
        found: dict[str, Victims] = {}
        for name, victims in sorted(proposed.items(), key=lambda item: (item[1].violations, len(item[1].uids))):
            helped = self._on_node(pod, name, victims)
            if helped is not None:
                found[name] = helped
                if len(found) == MOST_NODES:
                    break
        return found

    def _on_node(self, pod: Preemptor, name: str, proposed: Victims) -> Victims | None:
        node = self.ledger.node(name)
        if node is None or not proposed.uids:
            return None
        seen = seen_by(self.ledger, self.policy, node, pod.uid, pod.priority)
        # Who is leaving by itself need not be evicted.
        gone = {*proposed.uids, pod.uid, *(holder.uid for holder in node.holders if holder.leaving)}
        if seen.supposing(without=gone).leftover(pod.request) is not None:
            return proposed
        lesser = [h for h in node.holders if h.priority < pod.priority and h.uid not in gone and self._is_bound(h)]
        cards = _Cards(seen, pod.request, gone.union(h.uid for h in lesser))
        if not cards.enough:
            return None
        earlier = [h for h in node.holders if h.uid in proposed.uids]
        more = self._fewest(node, cards, lesser, {card for h in earlier for card in node.known(h) or ()})
        added = violations([*earlier, *more], self.budgets)[len(earlier) :]
        return Victims((*proposed.uids, *(h.uid for h in more)), proposed.violations + sum(added))

    def _fewest(self, node: NodeLedger, cards: _Cards, lesser: Sequence[Holder], opened: Set[int]) -> list[Holder]:
        """Spare whom it can, as kube-scheduler does: first those whose budget is used up, then the more important.

        opened: cards that get room anyway; of equals, those on other cards are spared first.
        """
        ordered = sorted(lesser, key=lambda h: (-h.priority, h.uid))
        protected = dict(zip((h.uid for h in ordered), violations(ordered, self.budgets), strict=True))
        beside = {h.uid: not opened.isdisjoint(node.known(h) or ()) for h in ordered}
        spared = {
            holder.uid
            for holder in sorted(ordered, key=lambda h: (not protected[h.uid], -h.priority, beside[h.uid], h.uid))
            if cards.put_back(holder)
        }
        return [holder for holder in ordered if holder.uid not in spared]

    def _is_bound(self, holder: Holder) -> bool:
        """Only who the scheduler knows on the node can be named to it."""
        return not self.ledger.is_assumed(holder.uid) and not self.ledger.is_reserved(holder.uid)


class _Cards:
    """The cards of a node that take a request when some pods are away, which are put back one after the other.

    One copy of the node, and what is left of each card: a pod's return is a subtraction on the cards that it has.
    """

    def __init__(self, node: NodeLedger, request: Request, without: Collection[str]) -> None:
        self._node, self._request = node.supposing(without=without), request
        self._least = request.cards or request.cards_per_pod
        self._open = {state.card.index: state for state in self._node.candidates(request)}
        self._said = {entry.uid for entry in node.record.held.entries}

    @property
    def enough(self) -> bool:
        """Whether it fits."""
        return bool(self._open)

    def put_back(self, holder: Holder) -> bool:
        """Whether it fits also beside this pod; if not, that one stays away."""
        self._node.put(holder)
        states = self._beside(holder)
        closed = [index for index, state in states.items() if self._node.against(self._request, state)]
        if len(self._open) - len(closed) < self._least:
            self._node.drop(holder.uid)
            return False
        self._open.update(states)
        for index in closed:
            del self._open[index]
        return True

    def _beside(self, holder: Holder) -> dict[int, CardState]:
        """What is left then of the cards that it changes, as far as they matter."""
        known = self._node.known(holder)
        if known is None or holder.uid in self._said:
            # On whichever card, or where its node has counted it all along: seldom, so from the whole node.
            return {state.card.index: state for state in self._node.cards if state.card.index in self._open}
        core, whole = holder.request.core, holder.whole
        return {index: self._open[index].beside(units, core, whole) for index, units in known.items() if index in self._open}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Policies: which card of a node a pod gets, and which node is best. Pure functions of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.ledger import CardState, NodeLedger
from gpushare_runtime.request import Request

BEST_SCORE: Final = 10
"""kube-scheduler's extenders score from 0 to this."""


class Policy(Protocol):
    """Stateless; both methods expect a request that `Request.unsupported` lets pass."""

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """The allocation on this node, None if it does not fit."""

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """Node name → 0 … 10: the best exactly one gets 10, the others at most 9. Nodes where it does not fit get 0."""


class Binpack:
    """Fill the fullest card, and the fullest node, that still takes the pod; ties go to the lowest index and name."""

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        if request.cards:
            return _whole(request, sorted(_empty(node), key=lambda s: (s.card.units, s.card.index)))
        fitting = [s for s in node.usable if s.free >= request.units]
        if not fitting:
            return None
        best = min(fitting, key=lambda s: (s.free, s.card.index))
        return Allocation.of({c.index: {best.card.index: c.units} for c in request.containers})

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        left: dict[str, int] = {}
        scores: dict[str, int] = {}
        best: tuple[int, int, str] | None = None
        for node in nodes:
            leftover = node.leftover(request)
            if leftover is None:
                scores[node.name] = 0
                continue
            left[node.name] = leftover
            if best is None or leftover <= best[0]:
                key = (leftover, node.free, node.name)
                if best is None or key < best:
                    best = key
        if best is None:
            return scores
        widest = max(left.values()) or 1
        top = BEST_SCORE - 1
        scores.update((name, top - top * leftover // widest) for name, leftover in left.items())
        scores[best[2]] = BEST_SCORE
        return scores


def _empty(node: NodeLedger) -> Iterator[CardState]:
    return (state for state in node.usable if state.empty)


def _whole(request: Request, candidates: list[CardState]) -> Allocation | None:
    if len(candidates) < request.cards:
        return None
    cards = iter(candidates)
    taken = {c.index: [next(cards).card for _ in range(c.cards)] for c in request.containers}
    return Allocation.of({index: {card.index: card.units for card in of} for index, of in taken.items()})

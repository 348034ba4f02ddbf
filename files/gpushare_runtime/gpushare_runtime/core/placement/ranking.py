# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""All nodes in the order in which one kind of request would take them, kept from pod to pod. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import Final, TypeVar, cast

from gpushare_runtime.core.node_ledger import NodeLedger

T = TypeVar("T")

BEST_SCORE: Final = 10
"""kube-scheduler's extenders score from 0 to this."""

NodeCost = tuple[int, int, str]
"""(cost, tie, name) of a node that takes the request: the least is the best."""

_FEW: Final = 32
"""New weights that are put into the order one by one; with more it is sorted anew."""

_cost = itemgetter(0)


def scores_of(weights: Sequence[NodeCost], most: int | None = None) -> tuple[str, dict[str, int]]:
    """(the best node, "" for none; node name → 1 … 10: exactly the best one gets 10, nodes that get 0 are left out).

    most: the highest cost, where some of those that cost it are not in `weights`.
    """
    if not weights:
        return "", {}
    # Few costs, many nodes: comparing all weights as they are would take most of a decision's time.
    costs = set(map(_cost, weights))
    least, top = min(costs), BEST_SCORE - 1
    best = min(weight for weight in weights if weight[0] == least)[-1]
    widest = (max(costs) if most is None else most) - least
    scores: dict[str, int] = {}
    # Where all cost the same only the tie is left to decide, and other plugins' points must not outweigh it.
    if widest:
        score_of = {cost: top - top * (cost - least) // widest for cost in costs}
        scores = {name: score_of[cost] for cost, _, name in weights if score_of[cost]}
    scores[best] = BEST_SCORE
    return best, scores


def names_of(weights: Sequence[NodeCost]) -> list[str]:
    """The nodes that these are the weights of."""
    return [weight[-1] for weight in weights]


class Ranking:
    """The weights of one kind of request on each node. A node is weighed when it is first asked about, and again after `forget`.

    nodes: those of the ledger, as they are at any time; weigh: of one of them, None where the request does not fit.
    """

    def __init__(self, nodes: Mapping[str, NodeLedger], weigh: Callable[[NodeLedger], NodeCost | None]) -> None:
        self._nodes = nodes
        self._weigh = weigh
        self._weights: dict[str, NodeCost | None] = {}
        self._order: list[NodeCost] = []
        self._unfit: set[str] = set()
        self._stale: set[str] = set()
        self._notes: dict[str, object] = {}
        # The names that were last asked about, and are all known: filter and prioritize ask about the same.
        self._last: Sequence[str] = ()

    def forget(self, name: str) -> None:
        """A node has changed."""
        if name in self._weights:
            self._stale.add(name)

    def change(self, change: Callable[[NodeLedger, NodeCost], NodeCost | None]) -> None:
        """All weights are other ones now, while the nodes where the request fits stay the same."""
        for name in [name for name in self._stale if self._nodes.get(name) is None]:
            self._stale.discard(name)
            self._drop(name)
            self._last = ()
        for weight in self._order:
            name = weight[-1]
            node = self._nodes[name]
            changed = node.guarded(partial(change, node, weight), None)
            if changed is None:
                self._stale.add(name)
            else:
                self._weights[name] = changed
        self._order = sorted(filter(None, self._weights.values()))

    def weights(self, names: Sequence[str]) -> list[NodeCost | None]:
        """Of each of these, in their order; None also where nothing is known of one."""
        self._all_known(names)
        return list(map(self._weights.get, names))

    def fitting(self, names: Sequence[str], most: int = 0) -> tuple[Sequence[str], Collection[str]]:
        """(those of the names where the request fits, the others). most: only the best so many of those that fit; 0: all."""
        known = self._all_known(names)
        unfit = self._unfit.intersection(names) if self._unfit else set()
        if not known:
            unfit.update(name for name in names if name not in self._weights)
        fitting = [name for name in names if name not in unfit] if unfit else names
        if most and len(fitting) > most:
            whole = len(fitting) == len(self._order)
            fitting = names_of(self._order[:most] if whole else nsmallest(most, filter(None, map(self._weights.get, fitting))))
        return fitting, unfit

    def scores(self, names: Sequence[str]) -> tuple[str, Mapping[str, int]]:
        """As `scores_of`, of the names, which are different ones."""
        if self._all_known(names) and self._order:
            most, fit = self._order[-1][0], len(names) - len(self._unfit.intersection(names) if self._unfit else ())
            front = bisect_left(self._order, most, key=_cost)
            if front < fit:
                # Some of them cost most and score 0: of thousands only those in front of these matter.
                asked = self._weights if fit == len(self._order) else set(names)
                weights = [weight for weight in self._order[:front] if weight[-1] in asked]
                return scores_of(weights or [next(weight for weight in islice(self._order, front, None) if weight[-1] in asked)], most)
        return scores_of(list(filter(None, map(self._weights.get, names))))

    def noted(self, names: Iterable[str], look: Callable[[NodeLedger], T]) -> dict[str, T]:
        """The answers of `look` for each of these nodes, of which `fitting` was asked before; kept like the weights: always the same
        `look`."""
        found: dict[str, T] = {}
        for name in names:
            note = self._notes.get(name)
            if note is None:
                node = self._nodes.get(name)
                note = look(NodeLedger(name) if node is None else node)
                if node is not None:
                    self._notes[node.name] = note
            found[name] = cast(T, note)
        return found

    def _all_known(self, names: Sequence[str]) -> bool:
        """Weigh those of them that have changed or are new; whether something is known of every one."""
        if self._stale:
            for name in self._stale:
                self._drop(name)
            if not self._learn(self._stale):
                self._last = ()
            self._stale.clear()
        # In C for thousands of names: most questions find all of them.
        if names is self._last or all(map(self._weights.__contains__, names)):
            self._last = names
            return True
        return self._learn([name for name in dict.fromkeys(names) if name not in self._weights])

    def _learn(self, names: Collection[str]) -> bool:
        """Weigh these; whether something is known of every one."""
        weights, weigh = [], self._weigh
        for name in names:
            node = self._nodes.get(name)
            if node is not None:
                # Of thousands hardly one fails: the second try notes that at the node.
                try:
                    weight = weigh(node)
                except Exception:
                    weight = node.guarded(partial(weigh, node), None)
                # The node's own string: the caller's is one of thousands that would stay, once for each kind of request.
                self._weights[node.name] = weight
                if weight is None:
                    self._unfit.add(name)
                else:
                    weights.append(weight)
        if len(weights) > _FEW:
            self._order.extend(weights)
            self._order.sort()
        else:
            for weight in weights:
                insort(self._order, weight)
        return all(map(self._weights.__contains__, names))

    def _drop(self, name: str) -> None:
        self._notes.pop(name, None)
        weight = self._weights.pop(name)
        if weight is None:
            self._unfit.discard(name)
        else:
            del self._order[bisect_left(self._order, weight)]

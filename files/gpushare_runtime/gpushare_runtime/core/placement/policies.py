# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Policies: which GPUs of a node a pod gets, and which node is best. Pure functions of a ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from gpushare_runtime.core.allocation import Allocation, allocate
from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import Likeness
from gpushare_runtime.core.placement.ranking import NodeCost, Ranking, scores_of
from gpushare_runtime.core.placement.scarcity import Scarcity, Surcharge
from gpushare_runtime.core.request import Request

FIRST_FIT: Final = "first-fit"
"""Of the back end DRA; no extender has it."""
_ALIKE: Final = 1024
"""Costs that are remembered by what nodes have free."""


class Policy(Protocol):
    """All methods expect a request that `Request.unsupported` lets pass."""

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """The allocation on this node, None if it does not fit."""

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """Node name → 0 … 10: the best exactly one gets 10, the others at most 9. Nodes where it does not fit get 0."""

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """The cost by which the node is ranked, None if it does not fit."""

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """`node_cost` of all nodes, kept for the next request of this kind."""


class Rule(ABC):
    """One way to place. Of two nodes the one whose cost is less is better: cost, then tie, then name."""

    @abstractmethod
    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        """As many of the candidates as the request needs."""

    @abstractmethod
    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """As `Policy.node_cost`."""

    @abstractmethod
    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """As `Policy.ranking`."""

    def kept_for(self, request: Request, node: NodeLedger) -> str:
        """As `Placement.kept_for`."""
        del request, node
        return ""

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """As `Policy.choose`."""
        candidates = node.candidates(request)
        if not candidates:
            return None
        return allocate(request, [(state.gpu.index, state.gpu.units) for state in self.choose_gpus(request, node, candidates)])

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """As `Policy.rank`."""
        weights = {node.name: self.node_cost(request, node) for node in nodes}
        return {**dict.fromkeys(weights, 0), **scores_of(list(filter(None, weights.values())))[1]}


class Binpack(Rule):
    """Fill the fullest GPU that still takes the pod, but not one that is scarce; whole GPUs are the smallest that are empty.

    A node costs what stays free on the GPU, in coarse steps, and a surcharge for GPUs that are scarce and of use there. Of nodes that
    cost the same the first is taken, so that they fill up one after the other, with CPU and all; but one without pods is broken into last.
    """

    def __init__(self, scarcity: Scarcity | None = None) -> None:
        self._scarcity = scarcity or Scarcity({})

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        surcharge, count = self._scarcity.surcharge(request), request.gpus
        extra = {state.gpu.index: surcharge.on(node, node.class_of(state.gpu)) for state in candidates}
        if request.whole_gpus:
            return _linked(request, node, candidates, lambda s: (extra[s.gpu.index], s.gpu.units))
        coarse = (lambda s: extra[s.gpu.index]) if count > 1 else None
        return _linked(request, node, candidates, lambda s: count * s.free + surcharge.step * extra[s.gpu.index], coarse)

    def kept_for(self, request: Request, node: NodeLedger) -> str:
        chosen = self.choose_gpus(request, node, node.candidates(request))
        return self._scarcity.kept_for(request, node, {node.class_of(state.gpu) for state in chosen})

    def _cost(self, request: Request, surcharge: Surcharge, node: NodeLedger) -> int | None:
        left = node.remaining_after(request)
        if left is None or not surcharge.prices:
            return left if left is None else self._steps(request, surcharge, left)
        if node.only_class is not None:
            # Of nearly all nodes the GPUs are alike: whichever it gets.
            return self._steps(request, surcharge, left) + surcharge.on(node, node.only_class)
        return node.remembered((surcharge.key, request.key), lambda: self._mixed(request, surcharge, node))

    def _steps(self, request: Request, surcharge: Surcharge, left: int) -> int:
        # Empty GPUs that stay cost nothing: the tie decides.
        return 0 if request.whole_gpus else left // surcharge.step

    def _mixed(self, request: Request, surcharge: Surcharge, node: NodeLedger) -> int:
        chosen = self.choose_gpus(request, node, node.candidates(request))
        extra = sum(surcharge.on(node, node.class_of(state.gpu)) for state in chosen) // len(chosen)
        return self._steps(request, surcharge, sum(state.free - request.per_gpu for state in chosen)) + extra

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        return self.charged(request, self._scarcity.surcharge(request), node)

    def charged(self, request: Request, surcharge: Surcharge, node: NodeLedger) -> NodeCost | None:
        """`node_cost` with this surcharge."""
        # The node remembers how much stays free: the rest is quickly added.
        cost = self._cost(request, surcharge, node)
        return None if cost is None else (cost, _breaks_into(request, node), node.name)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        surcharge = self._scarcity.surcharge(request)
        kept = ledger.derived(("binpack", request.key), lambda: _Charged(self, request, surcharge, ledger.nodes))
        kept.charge(surcharge)
        return kept


class _Charged(Ranking):
    """The order for binpack, which stays when the surcharge becomes another one: only its difference is added."""

    def __init__(self, rule: Binpack, request: Request, surcharge: Surcharge, nodes: Mapping[str, NodeLedger]) -> None:
        self._rule, self._request, self._surcharge = rule, request, surcharge
        # The cost of nodes that are alike: of thousands few differ.
        self._alike: dict[tuple[Likeness, int], tuple[int, int] | None] = {}
        super().__init__(nodes, self._charged if request.by_likeness else self._charged_alone)

    def _charged(self, node: NodeLedger) -> NodeCost | None:
        likeness = node.likeness
        if likeness is None:
            return self._charged_alone(node)
        alike = likeness, self._surcharge.on(node, likeness.only_class)
        try:
            found = self._alike[alike]
        except KeyError:
            cost = self._charged_alone(node)
            if len(self._alike) >= _ALIKE:
                self._alike.clear()
            found = self._alike[alike] = None if cost is None else cost[:2]
        return None if found is None else (found[0], found[1], node.name)

    def _charged_alone(self, node: NodeLedger) -> NodeCost | None:
        return self._rule.charged(self._request, self._surcharge, node)

    def charge(self, surcharge: Surcharge) -> None:
        """This is the surcharge now."""
        before, self._surcharge = self._surcharge, surcharge
        if before is not surcharge and before.key != surcharge.key:
            self._alike.clear()
            alike = before.step == surcharge.step

            def change(node: NodeLedger, weight: NodeCost) -> NodeCost | None:
                if alike and node.only_class is not None:
                    more = surcharge.on(node, node.only_class) - before.on(node, node.only_class)
                    return weight[0] + more, weight[1], weight[2]
                return self._rule.charged(self._request, surcharge, node)

            self.change(change)


def _breaks_into(request: Request, node: NodeLedger) -> bool:
    """Whether all of the node's GPUs are empty, and some would stay so."""
    return request.whole_gpus < node.empty_gpus() == len(node.free_units)


class Spread(Rule):
    """Take the emptiest GPU, and the node with the smallest part of its memory in use."""

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        if request.whole_gpus:
            return _linked(request, node, candidates, lambda s: s.gpu.units)
        return _linked(request, node, candidates, lambda s: -s.free, (lambda s: 0) if request.gpus > 1 else None)

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        return None if node.remaining_after(request) is None else (_use(node), -node.free, node.name)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        return ledger.derived(("spread", request.key), lambda: Ranking(ledger.nodes, partial(self.node_cost, request)))


class FirstFit(Rule):
    """The choice of Kubernetes' own scheduler for claims: the first GPU with room. Between nodes it goes by other things than GPUs; this
    takes the first by name."""

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        return candidates[: request.gpus]

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        return None if node.remaining_after(request) is None else (0, 0, node.name)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        return ledger.derived(("first-fit", request.key), lambda: Ranking(ledger.nodes, partial(self.node_cost, request)))


class Placement:
    """The cluster's policy. GPUs: between the GPUs of a node, where its label does not say otherwise; nodes: between nodes.

    scarcity: what binpack knows of scarce GPUs; without, none are.
    A pod's own annotation goes before both. ValueError if a name is not known.
    """

    def __init__(self, nodes: str = "binpack", gpus: str = "", scarcity: Scarcity | None = None) -> None:
        self._rules: Mapping[str, Rule] = {"binpack": Binpack(scarcity), "spread": Spread(), FIRST_FIT: FirstFit()}
        self._nodes, self._gpus = self._rule(nodes), self._rule(gpus or nodes)

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """As `Policy.choose`."""
        rule = self._rules.get(request.rules.placement) or self._rules.get(node.record.placement) or self._gpus
        return rule.choose(request, node)

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """As `Policy.rank`."""
        return (self._rules.get(request.rules.placement) or self._nodes).rank(request, nodes)

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """As `Policy.node_cost`."""
        return (self._rules.get(request.rules.placement) or self._nodes).node_cost(request, node)

    def kept_for(self, request: Request, node: NodeLedger) -> str:
        """A message for whom this node's GPUs are kept that it would get; "" if all may have them."""
        return (self._rules.get(request.rules.placement) or self._nodes).kept_for(request, node)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """As `Policy.ranking`."""
        return (self._rules.get(request.rules.placement) or self._nodes).ranking(request, ledger)

    def _rule(self, name: str) -> Rule:
        if name not in self._rules:
            raise ValueError(f"placement {name!r} is not known; use one of {', '.join(PLACEMENTS)}")
        return self._rules[name]


def _linked(
    request: Request,
    node: NodeLedger,
    candidates: Sequence[GpuState],
    cost: Callable[[GpuState], Any],
    coarse: Callable[[GpuState], Any] | None = None,
) -> Sequence[GpuState]:
    """As many of the candidates as the request needs: those that cost least; where links are known, of equals the best linked.

    coarse: a cost in which more are equals, for links that are worth more than the rest of the cost.
    """
    # They come in the order of their indexes, and sorting keeps that of equals.
    ranked = sorted(candidates, key=cost)
    count, links = request.gpus, node.inventory.links if node.inventory is not None else None
    if links is None or len(ranked) == count:
        return ranked[:count]
    by_index = {state.gpu.index: state for state in ranked}
    if request.rules.links and count > 1:
        chosen = links.choose((), tuple(by_index), count, connected=True)
    else:
        costs = {state.gpu.index: (coarse or cost)(state) for state in ranked}
        last = sorted(costs.values())[count - 1]
        must = [index for index, each in costs.items() if each < last]
        may = [index for index, each in costs.items() if each == last]
        # Where others share the GPUs, another way over PCIe is not worth a hole.
        chosen = links.choose(must, may, count, fine=bool(request.whole_gpus))
    return [by_index[index] for index in chosen]


def _use(node: NodeLedger) -> int:
    """Thousandths of the usable GPUs' units that are allocated."""
    total = sum(state.gpu.units for state in node.usable)
    return 1000 * (total - node.free) // total if total else 1000

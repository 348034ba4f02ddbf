# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Policies: which GPUs of a node a pod gets, and which node is best. Pure functions of a ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from gpushare_runtime.core.allocation import Allocation, allocate
from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.placement.fragmentation import CHOICES, Workload, fragmentation_increase
from gpushare_runtime.core.placement.ranking import NodeCost, Ranking, scores_of
from gpushare_runtime.core.placement.scarcity import STEPS, Scarcity
from gpushare_runtime.core.request import Request

MANY_NODES: Final = 500
FEW_CHOICES: Final = 8
"""Of GPUs on a node, where there are more nodes than that: whoever asks for fgd does not keep the scheduler waiting."""
_REMEMBERED: Final = 10_000


class Policy(Protocol):
    """Both methods expect a request that `Request.unsupported` lets pass."""

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """The allocation on this node, None if it does not fit."""

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """Node name → 0 … 10: the best exactly one gets 10, the others at most 9. Nodes where it does not fit get 0."""

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """What the node is ranked by, None if it does not fit."""

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """`weigh` of all nodes, kept for the next request of this kind."""


class Rule(ABC):
    """One way to place, by what it costs: the cheapest wins, ties go to `tie`, then to the lowest name or index."""

    @abstractmethod
    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        """As many of the candidates as the request needs."""

    @abstractmethod
    def cost(self, request: Request, node: NodeLedger) -> int | None:
        """Of placing it on this node, None if it does not fit."""

    @abstractmethod
    def key(self, request: Request) -> Hashable:
        """What a node remembers the cost by until it changes."""

    def tie_break(self, node: NodeLedger) -> int:
        """Of two nodes that cost the same, the one with less of this is better."""
        return node.free

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """As `Policy.choose`."""
        candidates = node.candidates(request)
        if not candidates:
            return None
        return allocate(request, [(state.gpu.index, state.gpu.units) for state in self.choose_gpus(request, node, candidates)])

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """As `Policy.rank`."""
        weights = {node.name: self.node_cost(request, node) for node in nodes}
        return {**dict.fromkeys(weights, 0), **scores_of([weight for weight in weights.values() if weight])}

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """As `Policy.weigh`."""
        key = self.key(request)
        cost: int | None
        try:
            cost = node.memo[key]  # type: ignore[assignment]
        except KeyError:
            cost = self.cost(request, node)
            node.remember(key, cost)
        return None if cost is None else (cost, self.tie_break(node), node.name)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """As `Policy.ranking`."""
        return ledger.derived(self.key(request), lambda: Ranking(ledger.nodes, lambda node: self.node_cost(request, node)))


class Binpack(Rule):
    """Fill the fullest GPU that still takes the pod, but not one that is scarce; whole GPUs are the smallest that are empty.

    A node costs what stays free on the GPU, and for each unit taken what its class is scarce.
    """

    def __init__(self, scarcity: Scarcity | None = None) -> None:
        self._scarcity = scarcity or Scarcity({})

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        parts = partial(self._parts, node)
        if request.whole_gpus:
            return sorted(candidates, key=lambda s: (parts(s), s.gpu.units, s.gpu.index))[: request.whole_gpus]
        # They come in the order of their indexes, and sorting keeps that of equals.
        return sorted(candidates, key=lambda s: STEPS * s.free + request.per_gpu * parts(s))[: request.gpus_per_pod]

    def _parts(self, node: NodeLedger, state: GpuState) -> int:
        """How scarce the GPU is, in parts of STEPS."""
        scarce = self._scarcity.picture.scarce
        return scarce.get(node.class_of(state.gpu), 0) if scarce else 0

    def cost(self, request: Request, node: NodeLedger) -> int | None:
        left, scarce = node.remaining_after(request), self._scarcity.picture.scarce
        if left is None or not scarce:
            return left
        if node.only_class is not None:
            # Of nearly all nodes the GPUs are alike: whichever it gets.
            taken = request.whole_gpus * node.only_class.units or request.per_gpu * request.gpus_per_pod
            return left + scarce.get(node.only_class, 0) * taken // STEPS
        return node.remembered(("scarce", self._scarcity.picture.version, request.key), lambda: self._mixed(request, node, left))

    def _mixed(self, request: Request, node: NodeLedger, left: int) -> int:
        chosen = self.choose_gpus(request, node, node.candidates(request))
        if request.whole_gpus:
            return left + sum(self._parts(node, state) * state.gpu.units for state in chosen) // STEPS
        return sum(STEPS * (state.free - request.per_gpu) + request.per_gpu * self._parts(node, state) for state in chosen) // STEPS

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        # What the node remembers is what stays free: the rest is quickly added.
        cost = self.cost(request, node)
        return None if cost is None else (cost, node.free, node.name)

    def key(self, request: Request) -> Hashable:
        return ("binpack", self._scarcity.picture.version, request.key) if self._scarcity.picture.scarce else request.key


class Spread(Rule):
    """Take the emptiest GPU, and the node with the smallest part of its memory in use."""

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        if request.whole_gpus:
            return _smallest(request, candidates)
        return sorted(candidates, key=lambda s: (-s.free, s.gpu.index))[: request.gpus_per_pod]

    def cost(self, request: Request, node: NodeLedger) -> int | None:
        return None if node.remaining_after(request) is None else _use(node)

    def key(self, request: Request) -> Hashable:
        return "spread", request.key

    def tie_break(self, node: NodeLedger) -> int:
        return -node.free


class Fgd(Rule):
    """Make the least memory useless to what pods usually ask for: fragmentation gradient descent.

    Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent, USENIX ATC
    2023; here in units of memory, with whole GPUs and several GPUs per pod.

    choices: how many choices of GPUs are tried on each node.
    """

    def __init__(self, workload: Workload, choices: int = CHOICES) -> None:
        self._workload = workload
        self._choices = choices
        self._costs: dict[Hashable, int] = {}
        self._hasty = Fgd(workload, FEW_CHOICES) if choices > FEW_CHOICES else self

    def choose_gpus(self, request: Request, node: NodeLedger, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
        if request.whole_gpus:
            return _smallest(request, candidates)
        return fragmentation_increase(request, tuple(node.usable), candidates, self._workload, self._choices)[1]

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        if len(ledger.nodes) > MANY_NODES and self._hasty is not self:
            return self._hasty.ranking(request, ledger)
        return super().ranking(request, ledger)

    def key(self, request: Request) -> Hashable:
        return "fgd", self._choices, self._workload.version, request.key

    def cost(self, request: Request, node: NodeLedger) -> int | None:
        candidates: Sequence[GpuState] = node.candidates(request)
        if not candidates:
            return None
        if request.whole_gpus:
            candidates = self.choose_gpus(request, node, candidates)
        # Many nodes are alike, and cost the same.
        fits = {state.gpu.index for state in candidates}
        usable = tuple(node.usable)
        alike = (self.key(request), tuple(sorted((s.free, s.empty, s.gpu.index in fits) for s in usable)))
        if alike not in self._costs:
            if len(self._costs) >= _REMEMBERED:
                self._costs.clear()
            self._costs[alike] = fragmentation_increase(request, usable, candidates, self._workload, self._choices)[0]
        return self._costs[alike]


class Placement:
    """The cluster's policy. GPUs: between the GPUs of a node, where its label does not say otherwise; nodes: between nodes.

    scarcity: what binpack knows of scarce GPUs; without, none are.
    A pod's own annotation goes before both. ValueError if a name is not known.
    """

    def __init__(self, nodes: str = "binpack", gpus: str = "", workload: Workload | None = None, scarcity: Scarcity | None = None) -> None:
        self._rules: Mapping[str, Rule] = {"binpack": Binpack(scarcity), "spread": Spread(), "fgd": Fgd(workload or Workload())}
        self._nodes, self._gpus = self._rule(nodes), self._rule(gpus or nodes)

    def choose(self, request: Request, node: NodeLedger) -> Allocation | None:
        """As `Policy.choose`."""
        rule = self._rules.get(request.rules.placement) or self._rules.get(node.record.placement) or self._gpus
        return rule.choose(request, node)

    def rank(self, request: Request, nodes: Iterable[NodeLedger]) -> dict[str, int]:
        """As `Policy.rank`."""
        return (self._rules.get(request.rules.placement) or self._nodes).rank(request, nodes)

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        """As `Policy.weigh`."""
        return (self._rules.get(request.rules.placement) or self._nodes).node_cost(request, node)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        """As `Policy.ranking`."""
        return (self._rules.get(request.rules.placement) or self._nodes).ranking(request, ledger)

    def _rule(self, name: str) -> Rule:
        if name not in self._rules:
            raise ValueError(f"placement {name!r} is not known; use one of {', '.join(self._rules)}")
        return self._rules[name]


def _smallest(request: Request, candidates: Sequence[GpuState]) -> Sequence[GpuState]:
    return sorted(candidates, key=lambda s: (s.gpu.units, s.gpu.index))[: request.whole_gpus]


def _use(node: NodeLedger) -> int:
    """Thousandths of the usable GPUs' units that are held."""
    total = sum(state.gpu.units for state in node.usable)
    return 1000 * (total - node.free) // total if total else 1000

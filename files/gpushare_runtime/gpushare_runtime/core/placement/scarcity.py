# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs are scarce: those of a class that some pods must have, because they name its model or fit on nothing smaller. Pure.

Of a class of GPU (its model and size), what is asked for by pods that accept only some classes is set against what all pods ask for.
A pod's units are spread over the classes that it accepts, by their capacity. So a class of which such pods ask for half of what would
be its share of the whole demand is scarce by a half; the most is 1.

GPUs are kept only where those for whom they are kept could run: a node that has CPU for such pods on half of its empty GPUs asks half
the price for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest
from operator import itemgetter
from typing import Final

from gpushare_runtime.core.bounds import QUOTED, as_text
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.node_ledger import GpuClass, NodeLedger
from gpushare_runtime.core.request import Request

PARTS: Final = 16
"""Scarcity is counted in parts of so many."""
STEP_PER_CENT: Final = 8
"""Of a GPU: nodes that differ by less cost the same. With finer steps up to 1.2 % less of a cluster is in use where CPU is short."""
_MOST_NEEDS: Final = 128
_MOST_CLASSES: Final = 64
"""More than these are left out, the least asked for and the rarest: users write models, and nodes report them."""
_MEMORY: Final = 20_000
"""After so many requests older ones count half."""
_MOST_CPU: Final = 64_000
"""Thousandths of a CPU for each GPU: a pod of more counts as one of so much, lest one that fits nowhere makes all GPUs free for all."""
_NEARLY: Final = 8
"""A mean that differs from the last one by less than this part of it is the same one: the order of all nodes is kept for it."""
_FIRST: Final = 8
_REMEMBERED: Final = 1024


@dataclass(frozen=True)
class Need:
    """The GPUs that a request accepts. per_gpu: units on each GPU, 0 for whole ones."""

    rules: Rules
    per_gpu: int

    @classmethod
    def of(cls, request: Request) -> Need:
        rules = request.rules
        return cls(Rules(models=rules.models, models_refused=rules.models_refused), 0 if request.whole_gpus else request.per_gpu)

    def accepts(self, gpu: GpuClass) -> bool:
        """Whether GPUs of this class will do."""
        return self.per_gpu <= gpu.units and self.rules.accept("", gpu.models)

    def __str__(self) -> str:
        models, refused = (as_text(", ".join(names), QUOTED) for names in (self.rules.models, self.rules.models_refused))
        if self.rules.models:
            return f"pods that name {models}"
        return f"pods that exclude {refused}" if self.rules.models_refused else f"pods of {self.per_gpu} units"


@dataclass(frozen=True)
class Surcharge:
    """The price of scarce GPUs for one request, in steps: by class, for all GPUs that it takes. Classes without are left out.

    step: units. cpu: thousandths of a CPU that the pods for whom a class is kept need with each GPU. key: equal where everything is.
    """

    step: int = 1
    prices: Mapping[GpuClass, int] = field(default_factory=dict)
    cpu: Mapping[GpuClass, int] = field(default_factory=dict)

    @cached_property
    def key(self) -> Hashable:
        return self.step, frozenset(self.prices.items()), frozenset(self.cpu.items())

    def on(self, node: NodeLedger, gpu: GpuClass | None) -> int:
        """The price of this class there: that of the GPUs for which the node still has CPU, spread over all that are empty."""
        price = self.prices.get(gpu, 0) if gpu is not None else 0
        if not price or gpu is None:
            return 0
        each, free = self.cpu.get(gpu, 0), node.free_cpu
        if not each or free is None:
            return price
        empty = max(1, node.empty_gpus())
        return price * min(empty, free // each) // empty


@dataclass(frozen=True)
class Picture:
    """The classes that are scarce now, with their parts, the need that makes each so most, and as in `Surcharge` the CPU of all such."""

    scarce: Mapping[GpuClass, int] = field(default_factory=dict)
    kept_for: Mapping[GpuClass, Need] = field(default_factory=dict)
    cpu: Mapping[GpuClass, int] = field(default_factory=dict)


@dataclass
class _Asked:
    """The sum of all requests with one need: units, or whole GPUs, and thousandths of a CPU."""

    units: int = 0
    pods: int = 0
    cpu: int = 0

    def half(self) -> _Asked:
        return _Asked(self.units // 2, self.pods // 2, self.cpu // 2)


class Scarcity:
    """Counts the requests of each pod once, as told. classes: units of the usable GPUs by class, as the ledger keeps them.

    Its picture is another one after the counts have grown by half or the classes have changed, and not by small differences.
    """

    def __init__(self, classes: Mapping[GpuClass, int]) -> None:
        self._classes = classes
        self._picture = Picture()
        self._asked: dict[Need, _Asked] = {}
        # By the key of the request: quicker to find.
        self._alike: dict[Hashable, _Asked] = {}
        self._total = 0
        self._due = _FIRST
        self._seen: dict[GpuClass, int] = {}
        self._step = 1
        self._surcharges: dict[Hashable, Surcharge] = {}

    def observe(self, requests: Iterable[Request]) -> None:
        """Requests of pods not seen before."""
        for request in requests:
            asked = self._alike.get(request.key)
            if asked is None:
                if len(self._alike) >= _REMEMBERED:
                    self._alike.clear()
                asked = self._alike[request.key] = self._asked.setdefault(Need.of(request), _Asked())
            asked.units += request.whole_gpus or request.per_gpu * request.gpus_per_pod
            asked.cpu += min(request.cpu, _MOST_CPU * request.gpus)
            asked.pods += 1
            self._total += 1
        if self._total > _MEMORY:
            self._asked = {need: demand.half() for need, demand in self._asked.items() if demand.pods > 1}
            self._alike.clear()
            self._total = sum(demand.pods for demand in self._asked.values())
            self._due = 0
        if len(self._asked) > _REMEMBERED:
            self._asked = dict(nlargest(_REMEMBERED // 2, self._asked.items(), key=lambda each: each[1].pods))
            self._alike.clear()

    @property
    def picture(self) -> Picture:
        """The classes that are scarce now."""
        if self._total >= self._due or self._seen != self._classes:
            self._look()
        return self._picture

    def surcharge(self, request: Request) -> Surcharge:
        """Of this request now. The same one where two pictures differ in nothing that matters to it."""
        picture = self.picture
        found = self._surcharges.get(request.key)
        if found is None:
            if len(self._surcharges) >= _REMEMBERED:
                self._surcharges.clear()
            steps = self._steps(picture, request)
            cpu = {gpu: picture.cpu[gpu] for gpu in steps if gpu in picture.cpu}
            found = self._surcharges[request.key] = Surcharge(self._step, steps, cpu)
        return found

    def kept_for(self, request: Request, node: NodeLedger, gpus: Collection[GpuClass]) -> str:
        """A message for whom one of these classes of the node is kept; "" where they cost this request nothing besides."""
        surcharge = self.surcharge(request)
        prices = {gpu: price for gpu in gpus if (price := surcharge.on(node, gpu))}
        dearest = max(prices, key=prices.__getitem__, default=None)
        need = self._picture.kept_for.get(dearest) if dearest is not None else None
        return f"kept for {need}" if need is not None else ""

    def _steps(self, picture: Picture, request: Request) -> dict[GpuClass, int]:
        if not picture.scarce:
            return {}
        need, steps = Need.of(request), {}
        for gpu in self._seen:
            if need.accepts(gpu):
                taken = request.whole_gpus * gpu.units or request.per_gpu * request.gpus_per_pod
                steps[gpu] = round(picture.scarce.get(gpu, 0) * taken / (PARTS * self._step))
        # The least of them makes no difference: it must pay that anyway.
        least = min(steps.values(), default=0)
        return {gpu: count - least for gpu, count in steps.items() if count > least}

    def _look(self) -> None:
        self._due = max(_FIRST, self._total + self._total // 2)
        self._seen = dict(self._classes)
        classes = dict(Counter({gpu: units for gpu, units in self._seen.items() if units}).most_common(_MOST_CLASSES))
        usual = next(iter(classes), None)
        self._step = max(1, usual.units * STEP_PER_CENT // 100) if usual is not None else 1
        self._picture = self._scarce(classes)
        self._surcharges.clear()

    def _scarce(self, classes: Mapping[GpuClass, int]) -> Picture:
        shares: dict[GpuClass, dict[Need, float]] = {}
        cpu: dict[GpuClass, float] = {}
        total = 0.0
        for need, asked in nlargest(_MOST_NEEDS, ((need, demand.units) for need, demand in self._asked.items()), key=itemgetter(1)):
            accepted = {gpu: units for gpu, units in classes.items() if need.accepts(gpu)}
            whole = not need.per_gpu
            room, everything = (
                sum(units // (gpu.units if whole else 1) for gpu, units in totals.items()) for totals in (accepted, classes)
            )
            if not room:
                continue
            total += asked / everything
            if len(accepted) < len(classes):
                for gpu in accepted:
                    shares.setdefault(gpu, {})[need] = asked / room
                    cpu[gpu] = cpu.get(gpu, 0) + self._asked[need].cpu / room * (1 if whole else gpu.units)
        before = self._picture.scarce
        exact = {gpu: min(PARTS, PARTS * sum(by_need.values()) / total) for gpu, by_need in shares.items()}
        scarce = {
            gpu: before[gpu] if abs(parts - before.get(gpu, 0)) < 1 and gpu in before else round(parts) for gpu, parts in exact.items()
        }
        most = {gpu: max(by_need, key=by_need.__getitem__) for gpu, by_need in shares.items()}
        scarce = {gpu: parts for gpu, parts in scarce.items() if parts}
        return Picture(scarce, {gpu: most[gpu] for gpu in scarce}, {gpu: self._cpu(gpu, cpu[gpu], shares[gpu].values()) for gpu in scarce})

    def _cpu(self, gpu: GpuClass, cpu: float, shares: Collection[float]) -> int:
        """The mean of each GPU; the one of the last picture, if that is nearly as much."""
        mean, before = round(cpu / sum(shares)), self._picture.cpu.get(gpu, 0)
        return before if abs(mean - before) * _NEARLY < before else mean

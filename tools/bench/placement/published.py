# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The anchor: FGD, best fit and random by the rules of the simulator that Weng et al. published with their paper (USENIX ATC 2023).

Its rules, as read in hkust-adsl/kubernetes-scheduler-simulator, commit 8f3d641, on 2026-11-25:

- A node takes a pod that its CPU, its memory, its GPUs' free thousandths and their model suffice for. A pod of whole GPUs gets the
  first empty ones.
- FGD: a node's fragmentation is what is free on GPUs that a typical pod cannot use, or all that is free where it cannot run, CPU
  included; the mean over typical pods. Those are the most frequent kinds that make up 95 % of all pods, pods without GPUs too, of
  which none can use a GPU. Score: int(100 × sigmoid(how much less fragmentation, in GPUs)). The first GPU of the best score.
- Best fit: int(100 × (1 - half of (CPU left / 128 CPU + GPUs left / 8))); the fullest GPU.
- Random: any node, any GPU.
- Of equal scores the node that comes first in an order drawn by the seed.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.placement.workload import Machine, Pod

GPU: Final = 1000
TYPICAL: Final = 0.95
MOST_CPU: Final = 128_000
MOST_GPU: Final = 8000

Frees = tuple[int, ...]


@dataclass
class State:
    """What is left of a node. place: in the order drawn by the seed."""

    place: int
    cpu: int
    memory: int
    frees: Frees
    model: str
    version: int = 0


class Rule(ABC):
    """One way to score; a score of a node is kept for each kind of pod until the node changes."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        del pods

    @abstractmethod
    def look(self, pod: Pod, node: State) -> tuple[int, int]:
        """(score, GPU for a part of one; -1 where it is not chosen here)."""


class BestFit(Rule):
    def look(self, pod: Pod, node: State) -> tuple[int, int]:
        left = (node.cpu - pod.cpu) / MOST_CPU * 0.5 + (sum(node.frees) - pod.asked) / MOST_GPU * 0.5
        fits = [(free, index) for index, free in enumerate(node.frees) if free >= pod.milli] if pod.shares else []
        return int((1.0 - left) * 100.0), min(fits)[1] if fits else -1


class Random(Rule):
    def look(self, pod: Pod, node: State) -> tuple[int, int]:
        return 0, -1


class Fgd(Rule):
    def __init__(self, pods: Sequence[Pod]) -> None:
        super().__init__(pods)
        counts = Counter((pod.cpu, pod.milli, pod.count, pod.models) for pod in pods)
        ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
        typical, seen = [], 0
        for kind, count in ordered:
            if seen >= TYPICAL * len(pods):
                break
            typical.append((kind, count))
            seen += count
        self._cpus = sorted({kind[0] for kind, _ in typical})
        self._by_need: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for (cpu, milli, count, models), weight in typical:
            if milli:
                self._by_need.setdefault((milli, count, models), []).append((cpu, weight / seen))
        self._weights: dict[tuple[int, str], list[tuple[int, int, float]]] = {}
        self._useful: dict[tuple[int, str, Frees], float] = {}

    def _usable(self, cpu: int, model: str, frees: Frees) -> float:
        """Of the free thousandths those that typical pods can use, in the mean. frees: sorted."""
        level = bisect_right(self._cpus, cpu)
        key = level, model, frees
        found = self._useful.get(key)
        if found is None:
            weights = self._weights.get((level, model))
            if weights is None:
                weights = []
                for (milli, count, models), of in self._by_need.items():
                    weight = sum(share for needs, share in of if needs <= cpu)
                    if weight and (not models or model in models):
                        weights.append((milli, count, weight))
                self._weights[level, model] = weights
            found = 0.0
            for milli, count, weight in weights:
                fitting = [free for free in frees if free >= milli]
                if len(fitting) >= count:
                    found += weight * sum(fitting)
            self._useful[key] = found
        return found

    def look(self, pod: Pod, node: State) -> tuple[int, int]:
        frees, cpu = node.frees, node.cpu - pod.cpu
        now = sum(frees) - self._usable(node.cpu, node.model, tuple(sorted(frees)))
        left = sum(frees) - pod.asked
        best, chosen, tried = -1, -1, set()
        if not pod.shares:
            after, missing = sorted(frees), pod.count
            for index, free in enumerate(after):
                if missing and free >= pod.milli:
                    after[index], missing = free - pod.milli, missing - 1
            return _sigmoid(now - (left - self._usable(cpu, node.model, tuple(sorted(after))))), -1
        for index, free in enumerate(frees):
            if free < pod.milli or free in tried:
                continue
            tried.add(free)
            after = [*frees[:index], free - pod.milli, *frees[index + 1 :]]
            score = _sigmoid(now - (left - self._usable(cpu, node.model, tuple(sorted(after)))))
            if score > best:
                best, chosen = score, index
        return best, chosen


RULES: Final[Mapping[str, Callable[[Sequence[Pod]], Rule]]] = {"FGD": Fgd, "best fit": BestFit, "random": Random}


def _sigmoid(less: float) -> int:
    return int(100.0 / (1.0 + math.exp(-less / GPU)))


class Anchor:
    """The nodes, filled by one of the rules."""

    def __init__(self, rule: str, machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> None:
        self._rule, self._draw = RULES[rule](pods), random.Random(seed + 1)
        order = list(range(len(machines)))
        self._draw.shuffle(order)
        self.nodes = [State(place, m.cpu, m.memory, (GPU,) * m.gpus, m.model) for place, m in zip(order, machines, strict=True)]
        self.nodes.sort(key=lambda node: node.place)
        # For each kind of pod: for each node (version, score, GPU), score -1 where it does not fit.
        self._known: dict[object, list[tuple[int, int, int]]] = {}

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""
        known = self._known.setdefault(pod.kind, [(-1, -1, -1)] * len(self.nodes))
        best = -1
        fitting = []
        for place, node in enumerate(self.nodes):
            version, score, _ = known[place]
            if version != node.version:
                score, gpu = self._rule.look(pod, node) if _fits(pod, node) else (-1, -1)
                known[place] = node.version, score, gpu
            if score > best:
                best, fitting = score, [place]
            elif score == best and score >= 0:
                fitting.append(place)
        if not fitting:
            return False
        at_random = isinstance(self._rule, Random)
        place = self._draw.choice(fitting) if at_random else fitting[0]
        self._take(pod, self.nodes[place], known[place][2], at_random)
        return True

    def _take(self, pod: Pod, node: State, gpu: int, at_random: bool) -> None:
        frees, count = list(node.frees), pod.count
        if pod.shares:
            if at_random:
                gpu = self._draw.choice([index for index, free in enumerate(frees) if free >= pod.milli])
            frees[gpu] -= pod.milli
        elif pod.milli:
            for index, free in enumerate(frees):
                if count and free == GPU:
                    frees[index], count = 0, count - 1
        node.cpu, node.memory, node.frees = node.cpu - pod.cpu, node.memory - pod.memory, tuple(frees)
        node.version += 1


def _fits(pod: Pod, node: State) -> bool:
    if pod.cpu > node.cpu or pod.memory > node.memory:
        return False
    if not pod.milli:
        return True
    if pod.models and node.model not in pod.models:
        return False
    return sum(free >= pod.milli for free in node.frees) >= pod.count

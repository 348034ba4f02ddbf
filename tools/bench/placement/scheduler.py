# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kube-scheduler with our extender as a model: our own core/placement decides, kube-scheduler's own scores are added.

Of kube-scheduler 1.36 with its defaults, as far as nodes differ by it: NodeResourcesFit (LeastAllocated of CPU and memory, weight 1),
NodeResourcesBalancedAllocation (weight 1; since 1.36 by how a pod changes the balance, kubernetes/kubernetes pull request 135573, read
on 2026-11-25), TaintToleration where GPU nodes have the taint PreferNoSchedule, and the extender's 0 to 10 as 0 to 100 points times its
weight. Every node is scored, and a draw decides between equal ones.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from bench.placement.workload import Machine, Pod, arrivals, total, turnover
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.kubectl_gpushare.trace import ledger_of

MOST_OWN: Final = 200
"""Points by which kube-scheduler's own scores of two nodes can differ at most, taints aside, which weigh 300."""
WARM: Final = 1.0
MEASURED: Final = 1.0
"""Mean lifetimes of a pod: before anything is measured, and while it is."""

Learn = Callable[[Request], None]
Make = Callable[[Ledger], tuple[Policy, Learn]]
"""A policy for a ledger, and what it learns of each new pod's request."""


@dataclass
class Node:
    """What kube-scheduler counts of a node."""

    name: str
    cpu: int
    memory: int
    gpus: int
    all_cpu: int
    all_memory: int
    version: int = 0


class Scheduler:
    """A cluster that pods come to and leave. weight: of the extender, 0: its scores do not count; tainted: GPU nodes prefer GPU pods."""

    def __init__(self, make: Make, weight: int, machines: Sequence[Machine], seed: int, *, tainted: bool = True) -> None:
        self.ledger = ledger_of([(m.name, m.gpus, m.model, m.cpu) for m in machines])
        self.policy, self._learn = make(self.ledger)
        self._weight, self._draw, self._tainted = weight, random.Random(seed + 2), tainted
        self.nodes = {m.name: Node(m.name, m.cpu, m.memory, m.gpus, m.cpu, m.memory) for m in machines}
        self._with, self._without = ([n for n in self.nodes.values() if bool(n.gpus) is gpus] for gpus in (True, False))
        self._own: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        self._uid = count()

    def place(self, pod: Pod) -> tuple[str, str]:
        """(node, UID), "" where it fits on none."""
        uid = f"{next(self._uid)}"
        request = pod.of.request
        if request is None:
            # No other point outweighs the taint: of the rest none can win.
            fits = self._fits(pod, self._without) if self._tainted else []
            best = self._best(pod, fits or self._fits(pod, self.nodes.values()), {})
        else:
            self._learn(request)
            fits = self._fits(pod, self._with)
            ranking = self.policy.ranking(request, self.ledger)
            fitting, _ = ranking.fitting(fits)
            _, scores = ranking.scores(fitting)
            if self._weight:
                # Of the others none can win.
                least = max(scores.values(), default=0) - MOST_OWN // (10 * self._weight) if scores else 0
                fitting = fitting if least <= 0 else [name for name in fitting if scores.get(name, 0) >= least]
            best = self._best(pod, fitting, scores)
        if best:
            if request is not None:
                allocation = self.policy.choose(request, self.ledger.nodes[best])
                assert allocation is not None
                self.ledger.apply(AllocatedPod(uid, "trace", uid, best, request, allocation))
            self._take(best, pod, 1)
        return best, uid

    @staticmethod
    def _fits(pod: Pod, nodes: Iterable[Node]) -> list[str]:
        cpu, memory = pod.cpu, pod.memory
        return [node.name for node in nodes if node.cpu >= cpu and node.memory >= memory]

    def leave(self, pod: Pod, node: str, uid: str) -> None:
        """It has ended."""
        if pod.of.request is not None:
            self.ledger.remove(uid)
        self._take(node, pod, -1)

    def _take(self, name: str, pod: Pod, sign: int) -> None:
        node = self.nodes[name]
        node.cpu, node.memory, node.version = node.cpu - sign * pod.cpu, node.memory - sign * pod.memory, node.version + 1

    def _best(self, pod: Pod, names: Sequence[str], scores: Mapping[str, int]) -> str:
        own = self._own.setdefault((pod.cpu, pod.memory), {})
        best, most, alike, factor = "", -1, 0, 10 * self._weight
        for name in names:
            node = self.nodes[name]
            known = own.get(name)
            if known is None or known[0] != node.version:
                known = own[name] = node.version, _own_points(node, pod)
            points = known[1] + factor * scores.get(name, 0)
            if points > most:
                best, most, alike = name, points, 1
            elif points == most:
                alike += 1
                if self._draw.randrange(alike) == 0:
                    best = name
        return best


def _own_points(node: Node, pod: Pod) -> int:
    cpu, memory = node.cpu - pod.cpu, node.memory - pod.memory
    least = (100 * cpu // node.all_cpu + 100 * memory // node.all_memory) // 2
    before = abs(node.cpu / node.all_cpu - node.memory / node.all_memory) / 2
    after = abs(cpu / node.all_cpu - memory / node.all_memory) / 2
    return least + int(100 * (0.75 + (before - after) / 2))


def fill(scheduler: Scheduler, machines: Sequence[Machine], pods: Sequence[Pod], seed: int, marks: Sequence[float]) -> dict[str, float]:
    """Nobody leaves. Per cent of all GPUs in use when the pods have asked for so much of them: by mark."""
    capacity, left, found = total(machines), sorted(marks), {}
    asked = used = 0
    for pod in arrivals(pods, capacity, seed):
        if asked + pod.asked > left[0] * capacity:
            found[f"{left.pop(0):.1f}"] = 100 * used / capacity
            if not left:
                break
        asked += pod.asked
        used += pod.asked if scheduler.place(pod)[0] else 0
    for mark in left:
        found[f"{mark:.1f}"] = 100 * used / capacity
    return found


def churn(scheduler: Scheduler, machines: Sequence[Machine], pods: Sequence[Pod], seed: int, demand: float) -> tuple[float, float]:
    """Pods live for a time drawn from an exponential distribution, and others come as soon as what is asked for, placed or not, is less
    than so much of the GPUs. (per cent of all GPUs in use, per cent of the demand that found no room), as means over time."""
    capacity, draw, coming = total(machines), random.Random(seed + 3), turnover(pods, seed + 4)
    alive: list[tuple[float, int, Pod, str, str]] = []
    order = count()
    clock, asked, used = 0.0, 0, 0
    in_use = wanted = 0.0
    following = arrivals(pods, capacity, seed)
    following.reverse()
    pod = following.pop()
    while clock < WARM + MEASURED:
        while asked + pod.asked <= demand * capacity:
            node, uid = scheduler.place(pod)
            asked, used = asked + pod.asked, used + (pod.asked if node else 0)
            heapq.heappush(alive, (clock + draw.expovariate(1.0), next(order), pod, node, uid))
            pod = following.pop() if following else next(coming)
        before = clock
        clock, _, gone, node, uid = heapq.heappop(alive)
        if clock > WARM:
            span = min(clock, WARM + MEASURED) - max(before, WARM)
            in_use, wanted = in_use + span * used, wanted + span * asked
        asked -= gone.asked
        if node:
            used -= gone.asked
            scheduler.leave(gone, node, uid)
    return 100 * in_use / MEASURED / capacity, 100 * (1 - in_use / wanted)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a decision costs in process: filter, prioritize and the choice of GPUs, without JSON, HTTP and TLS."""

from __future__ import annotations

import gc
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from bench.placement.scheduler import Make
from bench.placement.workload import Machine, Pod, arrivals, total
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.kubectl_gpushare.trace import ledger_of

FULL: Final = 0.9
"""Part of all GPUs that is in use while decisions are measured: one pod goes for each that comes."""
WARM: Final = 1000
MEASURED: Final = 3000
TURN: Final = 100


@dataclass(frozen=True)
class Cost:
    """Milliseconds of CPU. first: the slowest of those that were the first of their kind of request; policy: its name."""

    trace: str
    policy: str
    nodes: int
    mean: float
    median: float
    first: float


def enlarged(machines: Sequence[Machine], nodes: int) -> list[Machine]:
    """So many, by repeating them with other names."""
    repeated = -(-nodes // len(machines))
    found = [replace(machine, name=f"{machine.name}-{turn}") for turn in range(repeated) for machine in machines]
    return found[:nodes]


def costs(trace: str, makes: Mapping[str, Make], machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> Iterator[Cost]:
    """Of these policies by name, in turns: what else the machine does meets them alike. machines: with GPUs."""
    runs = {name: _Run(make, machines, pods, seed) for name, make in makes.items()}
    # The pods of the trace are none of the extender's: its collector does not look at them.
    gc.freeze()
    left = list(runs.values())
    while left:
        left = [run for run in left if run.turn()]
    for name, run in runs.items():
        mean, median = round(statistics.mean(run.times), 3), round(statistics.median(run.times), 3)
        yield Cost(trace, name, len(machines), mean, median, round(run.first, 1))


class _Run:
    """One policy's. times: milliseconds of each measured decision."""

    def __init__(self, make: Make, machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> None:
        self._ledger = ledger_of([(m.name, m.gpus, m.model, m.cpu) for m in machines])
        self._policy, self._learn = make(self._ledger)
        for node in self._ledger.nodes.values():
            # Of the process's start, whatever the policy.
            assert node.likeness is None or node.free
        self._names, self._full = list(self._ledger.nodes), FULL * total(machines)
        self._coming = iter([pod for pod in arrivals(pods, total(machines), seed, 3.0) if pod.of.request is not None])
        self._here: deque[tuple[str, int]] = deque()
        self._seen: set[object] = set()
        self._number = self._used = self._after = 0
        self.first = 0.0
        self.times: list[float] = []

    def turn(self) -> bool:
        """Some decisions; whether there are more to measure."""
        before = self._number
        for pod in islice(self._coming, TURN):
            if len(self.times) >= MEASURED:
                return False
            self._decide(pod)
        return self._number > before

    def _decide(self, pod: Pod) -> None:
        self._number += 1
        while self._used + pod.asked > self._full:
            uid, asked = self._here.popleft()
            self._ledger.remove(uid)
            self._used -= asked
            self._after = self._after or self._number
        request = pod.of.request
        assert request is not None
        begin = time.process_time()
        self._learn(request)
        ranking = self._policy.ranking(request, self._ledger)
        fitting, _ = ranking.fitting(self._names)
        best, _ = ranking.scores(fitting)
        node = self._ledger.nodes.get(best)
        placed = _placed(self._policy.choose(request, node), request, best, self._number) if node is not None else None
        if placed is not None:
            self._ledger.apply(placed)
        took = 1000 * (time.process_time() - begin)
        if request.key not in self._seen:
            self._seen.add(request.key)
            self.first = max(self.first, took)
        if self._after and self._number >= self._after + WARM:
            self.times.append(took)
        if placed is not None:
            self._here.append((placed.uid, pod.asked))
            self._used += pod.asked


def _placed(allocation: object, request: Request, node: str, number: int) -> AllocatedPod:
    return AllocatedPod(str(number), "trace", str(number), node, request, allocation)  # type: ignore[arg-type]

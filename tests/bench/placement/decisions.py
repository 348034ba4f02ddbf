# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a decision costs in process: filter, prioritize and the choice of GPUs, without JSON, HTTP and TLS."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


def cost(trace: str, name: str, make: Make, machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> Cost:
    """Of one policy. machines: with GPUs."""
    ledger = ledger_of([(m.name, m.gpus, m.model) for m in machines])
    policy, learn = make(ledger)
    for node in ledger.nodes.values():
        # Of the process's start, whatever the policy.
        assert node.likeness is None or node.free
    names, capacity = list(ledger.nodes), total(machines)
    here: deque[tuple[str, int]] = deque()
    seen: set[object] = set()
    used, first, times = 0, 0.0, []
    coming = [pod for pod in arrivals(pods, capacity, seed, 3.0) if pod.of.request is not None]
    after = 0
    for number, pod in enumerate(coming):
        while used + pod.asked > FULL * capacity:
            uid, asked = here.popleft()
            ledger.remove(uid)
            used -= asked
            after = after or number
        request = pod.of.request
        assert request is not None
        begin = time.process_time()
        learn(request)
        ranking = policy.ranking(request, ledger)
        fitting, _ = ranking.fitting(names)
        best, _ = ranking.scores(fitting)
        placed = _placed(policy.choose(request, ledger.nodes[best]), request, best, number) if best else None
        if placed is not None:
            ledger.apply(placed)
        took = 1000 * (time.process_time() - begin)
        if request.key not in seen:
            seen.add(request.key)
            first = max(first, took)
        if after and number >= after + WARM:
            times.append(took)
        if placed is not None:
            here.append((placed.uid, pod.asked))
            used += pod.asked
        if len(times) >= MEASURED:
            break
    return Cost(trace, name, len(machines), round(statistics.mean(times), 3), round(statistics.median(times), 3), round(first, 1))


def _placed(allocation: object, request: Request, node: str, number: int) -> AllocatedPod:
    return AllocatedPod(str(number), "trace", str(number), node, request, allocation)  # type: ignore[arg-type]

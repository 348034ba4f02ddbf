# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods of a trace come in which order, and when they leave."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from gpushare_runtime.kubectl_gpushare.trace import UNITS, TracePod, read_hosts, read_pods

MOST_LOAD: Final = 1.3


@dataclass(frozen=True)
class Machine:
    """A node. CPU in thousandths, memory in MiB; model: "" without GPUs."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True)
class Pod:
    """milli: thousandths of each of `count` GPUs, 0 without GPUs; models: that it accepts, () for any."""

    of: TracePod
    cpu: int
    memory: int
    milli: int
    count: int
    models: tuple[str, ...]

    @cached_property
    def asked(self) -> int:
        """Thousandths of GPUs, together."""
        return self.milli * self.count

    @cached_property
    def shares(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return 0 < self.milli < UNITS

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """Equal for pods that are placed alike."""
        return self.cpu, self.memory, self.milli, self.count, self.models


def read_machines(file: Path) -> list[Machine]:
    hosts, ledger = read_hosts(file)
    found = []
    for host in hosts:
        node = ledger.node(host.name)
        gpus = node.inventory.gpus if node is not None and node.inventory is not None else ()
        found.append(Machine(host.name, host.cpu, host.memory, len(gpus), gpus[0].model if gpus else ""))
    return found


def read_trace(file: Path) -> list[Pod]:
    return [_pod(pod) for pod in read_pods(file)]


def _pod(pod: TracePod) -> Pod:
    request = pod.request
    if request is None:
        return Pod(pod, pod.cpu, pod.memory, 0, 0, ())
    milli, count = (UNITS, request.whole_gpus) if request.whole_gpus else (request.units, 1)
    return Pod(pod, pod.cpu, pod.memory, milli, count, request.rules.models)


def total(machines: Sequence[Machine]) -> int:
    """Thousandths of all GPUs."""
    return UNITS * sum(machine.gpus for machine in machines)


def arrivals(pods: Sequence[Pod], capacity: int, seed: int, load: float = MOST_LOAD) -> list[Pod]:
    """All pods in an order drawn by the seed, then others of them drawn at random, until they ask for `load` of the capacity."""
    draw = random.Random(seed)
    found = list(pods)
    draw.shuffle(found)
    asked = sum(pod.asked for pod in found)
    while True:
        pod = draw.choice(pods)
        if asked + pod.asked > load * capacity:
            return found
        asked += pod.asked
        found.append(pod)


def eighth(machines: Sequence[Machine]) -> list[Machine]:
    """Of each kind of nodes an eighth, some 190 of openb's."""
    return sorted(machines, key=lambda one: (one.model, one.gpus, one.cpu, one.memory, one.name))[::8]


def first(pods: Sequence[Pod], capacity: int, seed: int) -> list[Pod]:
    """In an order drawn by the seed, as many as ask for the capacity."""
    order, asked, found = list(pods), 0, []
    random.Random(seed).shuffle(order)
    for pod in order:
        asked += pod.asked
        if asked > capacity:
            break
        found.append(pod)
    return found


def turnover(pods: Sequence[Pod], seed: int) -> Iterator[Pod]:
    """Who comes next, for ever."""
    draw = random.Random(seed)
    while True:
        yield draw.choice(pods)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How kubelet hands the ids of one resource to the containers of one pod. Pure.

As in kubelet's device manager (pkg/kubelet/cm/devicemanager, Kubernetes 1.20 to 1.36): the ids of an ordinary init container
go into a pool; every later container takes from the pool first, in random order, and asks the device plugin only for what is
missing. What a sidecar or an app container has taken leaves the pool. Nothing goes back before the whole pod has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One container's turn, in ids. pool: what init containers left before it; reused: taken from there; new: asked for."""

    pool: int
    reused: int
    new: int

    @property
    def at_random(self) -> bool:
        """Whether kubelet picks from the pool at random: it holds more than this container takes."""
        return 0 < self.reused < self.pool


def steps(asks: Iterable[tuple[bool, int]]) -> Iterator[Step]:
    """asks: (whether it keeps its ids: sidecars and app containers do, how many) in the order in which kubelet admits."""
    pool = 0
    for keeps, amount in asks:
        reused = min(pool, amount)
        yield Step(pool, reused, amount - reused)
        pool = pool - reused if keeps else max(pool, amount)


def held(asks: Iterable[tuple[bool, int]]) -> int:
    """The ids that kubelet keeps for the pod as long as it lives; equals the pod's effective request in Kubernetes."""
    return sum(step.new for step in steps(asks))

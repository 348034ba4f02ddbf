# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the churn does next, at random from a seed: pods that fit, most of them same-size ones on several GPUs, and deletions. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.churn_log import Plan, Pod

NAMES = tuple(f"churn-{number:02d}" for number in range(32))
# Twins are of these sizes; the others too, and of larger ones.
SMALL = (2, 3, 4, 5, 6, 7, 8)
# So often of each: same-size pods for several GPUs, pods of any size, with two containers, on two GPUs, for any node.
SHAPES = ("twins",) * 13 + ("mixed",) * 2 + ("containers",) * 2 + ("gpus",) + ("anywhere",) * 2
GRACE = (3, 7)
"""Seconds that processes which ignore SIGTERM live on: from, to."""
SLOW, AGAIN = (2, 6), (1, 3)
"""Seconds from admission to the containers of a slow pod; seconds after which a container ends to be started again."""


@dataclass(frozen=True)
class Make:
    """Create these pods at once; early: and delete them before they run. force: without waiting for kubelet."""

    plans: tuple[Plan, ...]
    early: bool = False
    force: bool = False


@dataclass(frozen=True)
class Delete:
    """again: create a pod of the same name and size at once, which is to wait for the end of this one's processes."""

    uid: str
    force: bool
    again: Plan | None = None


Step = Make | Delete


@dataclass(frozen=True)
class View:
    """free: node → GPU → units that nobody holds by the churn's own sums, of nodes where no pod waits for room; running: pods
    that may be deleted; names: that no pod has."""

    free: Mapping[str, Mapping[int, int]]
    running: Sequence[Pod]
    names: Sequence[str]


class Planner:
    """Every group of pods that it makes has room at once, on whichever GPUs the scheduler puts them one after the other."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._group = 0
        self._deck: list[str] = []

    def next(self, view: View, left: int) -> list[Step]:
        """The next steps; none if nothing can be done until something changes. left: pods to be made yet."""
        rng = self._rng
        roomy = sum(sum(gpus.values()) for gpus in view.free.values())
        if roomy >= 8 and rng.random() < 0.75 and (plans := self._pods(view)) and len(plans) <= min(left, len(view.names)):
            early = len(plans) == 1 and rng.random() < 0.25
            return [Make(plans, early, force=early and rng.random() < 0.5)]
        if not view.running:
            return []
        return self._deletions(view, left)

    def _deletions(self, view: View, left: int) -> list[Step]:
        rng = self._rng
        chosen = rng.sample(sorted(view.running, key=lambda pod: pod.plan.name), min(len(view.running), rng.randint(1, 3)))
        steps: list[Step] = []
        for pod in chosen:
            force = rng.random() < (0.8 if pod.plan.stubborn else 0.2)
            again = force and pod.plan.stubborn and left > len(steps) and rng.random() < 0.3
            steps.append(Delete(pod.uid, force, self._again(pod) if again else None))
        return steps

    def _again(self, pod: Pod) -> Plan:
        self._group += 1
        return self._manner(Plan(pod.plan.name, pod.plan.units, pod.node, pod.plan.spread, room=False, group=self._group))

    def _manner(self, plan: Plan) -> Plan:
        """How its processes come, end and come again."""
        rng = self._rng
        stubborn = rng.random() < 0.45
        slow = rng.randint(*SLOW) if rng.random() < 0.15 else 0
        again = rng.randint(*AGAIN) if rng.random() < 0.4 else 0
        return replace(plan, stubborn=stubborn, grace=rng.randint(*GRACE) if stubborn else 2, slow=slow, again=again)

    def _pods(self, view: View) -> tuple[Plan, ...]:
        """Of the shape that has waited longest among those that are possible now."""
        if not self._deck:
            self._deck = self._rng.sample(SHAPES, len(SHAPES))
        node = self._rng.choice(sorted(view.free))
        free = sorted(units for units in view.free[node].values() if units > 0)
        for shape in self._deck:
            sizes = self._sizes(shape, view, free)
            if sizes and len(sizes) <= len(view.names):
                self._deck.remove(shape)
                self._group += 1
                where, spread = "" if shape == "anywhere" else node, 2 if shape == "gpus" else 1
                names = self._rng.sample(list(view.names), len(sizes))
                plans = (Plan(n, s, where, spread, group=self._group) for n, s in zip(names, sizes, strict=True))
                return tuple(map(self._manner, plans))
        return ()

    def _sizes(self, shape: str, view: View, free: Sequence[int]) -> list[tuple[int, ...]]:
        """Units per container of each pod, none if this is not possible. free: units of a node's GPUs with room, ascending."""
        rng = self._rng
        if shape == "anywhere":
            best = max((units for gpus in view.free.values() for units in gpus.values()), default=0)
            return [(rng.randint(1, best),)] if best else []
        if shape == "containers" and free and free[-1] >= 2:
            first = rng.randint(1, min(6, free[-1] - 1))
            return [(first, rng.randint(1, min(6, free[-1] - first)))]
        if shape == "twins":
            return [(size,) for size in self._twins(free)]
        if shape == "gpus" and len(free) == 2:
            return [(2 * rng.randint(1, min(6, free[0])),)]
        if shape == "mixed" and free:
            # Whichever GPU takes the first, another one is enough for the second.
            return [(rng.randint(1, free[0]),) for _ in free]
        return []

    def _twins(self, free: Sequence[int]) -> list[int]:
        """Two to four equal sizes that no single GPU can take all of, and all GPUs together can."""
        choices = []
        for size in SMALL:
            room = [units // size for units in free]
            choices += [(size, n) for n in range(max(room, default=0) + 1, sum(room) + 1) if 2 <= n <= 4]
        if not choices:
            return []
        size, count = self._rng.choice(choices)
        return [size] * count

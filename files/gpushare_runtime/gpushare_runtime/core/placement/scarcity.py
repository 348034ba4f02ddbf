# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs are scarce: those of a class that some pods must have, because they name its model or fit on nothing smaller. Pure.

Of a class of GPU (its model and size), what is asked for by pods that accept only some classes is set against what all pods ask for.
A pod's units are spread over the classes that it accepts, by their capacity. So a class of which such pods ask for half of what would
be its share of the whole demand is scarce by a half; the most is 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.node_ledger import GpuClass
from gpushare_runtime.core.request import Request

STEPS: Final = 16
"""Scarcity is counted in parts of so many, so that small changes change nothing."""
_MOST_NEEDS: Final = 128
_MOST_CLASSES: Final = 64
"""More than these are left out, the least asked for and the rarest: users write models, and nodes report them."""
_MEMORY: Final = 20_000
"""After so many requests older ones count half."""
_FIRST: Final = 8


@dataclass(frozen=True)
class Need:
    """What a request accepts. per_gpu: units on each GPU, 0 for whole ones."""

    models: tuple[str, ...]
    models_refused: tuple[str, ...]
    per_gpu: int

    def accepts(self, gpu: GpuClass) -> bool:
        """Whether GPUs of this class will do."""
        return self.per_gpu <= gpu.units and Rules(models=self.models, models_refused=self.models_refused).accept("", gpu.models)


@dataclass(frozen=True)
class Picture:
    """What is scarce now. version: another one, other costs; scarce: parts of STEPS by class, without those that are not."""

    version: int = 0
    scarce: Mapping[GpuClass, int] = field(default_factory=dict)


class Scarcity:
    """Counts the requests of each pod once, as told. classes: units of the usable GPUs by class, as the ledger keeps them.

    Its picture is looked at anew when the counts have grown by a quarter or the classes have changed, and stays while it is the same.
    """

    def __init__(self, classes: Mapping[GpuClass, int]) -> None:
        self._classes = classes
        self._picture = Picture()
        self._asked: Counter[Need] = Counter()
        self._pods: Counter[Need] = Counter()
        self._total = 0
        self._due = _FIRST
        self._seen: dict[GpuClass, int] = {}

    def observe(self, requests: Iterable[Request]) -> None:
        """Requests of pods not seen before."""
        for request in requests:
            rules, whole = request.rules, request.whole_gpus
            need = Need(rules.models, rules.models_refused, 0 if whole else request.per_gpu)
            self._asked[need] += whole or request.per_gpu * request.gpus_per_pod
            self._pods[need] += 1
            self._total += 1
        if self._total > _MEMORY:
            self._asked = Counter({need: units // 2 for need, units in self._asked.items() if self._pods[need] > 1})
            self._pods = Counter({need: count // 2 for need, count in self._pods.items() if count > 1})
            self._total = sum(self._pods.values())
            self._due = 0

    @property
    def picture(self) -> Picture:
        """What is scarce now."""
        if self._total >= self._due or self._seen != self._classes:
            self._look()
        return self._picture

    def _look(self) -> None:
        self._due = max(_FIRST, self._total + self._total // 4)
        self._seen = dict(self._classes)
        classes = dict(Counter(self._seen).most_common(_MOST_CLASSES))
        scarce = self._scarce(classes)
        if scarce != self._picture.scarce:
            self._picture = Picture(self._picture.version + 1, scarce)

    def _scarce(self, classes: Mapping[GpuClass, int]) -> dict[GpuClass, int]:
        shares: dict[GpuClass, float] = {}
        total = 0.0
        for need, asked in self._asked.most_common(_MOST_NEEDS):
            accepted = {gpu: units for gpu, units in classes.items() if need.accepts(gpu)}
            whole = not need.per_gpu
            room, everything = (sum(units // (gpu.units if whole else 1) for gpu, units in of.items()) for of in (accepted, classes))
            if not room:
                continue
            total += asked / everything
            if len(accepted) < len(classes):
                for gpu in accepted:
                    shares[gpu] = shares.get(gpu, 0.0) + asked / room
        return {gpu: parts for gpu, share in shares.items() if (parts := min(STEPS, round(STEPS * share / total)))}

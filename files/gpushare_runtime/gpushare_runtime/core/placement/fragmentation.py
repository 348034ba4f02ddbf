# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How much free memory is of no use to what pods usually ask for, and by how much a placement makes it grow. Pure.

After Weng et al., USENIX ATC 2023: a node's fragmentation for one kind of request is the free memory on GPUs that do not
take it, or all of its free memory where the node does not take it at all; for a workload it is the mean over its requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations, islice
from typing import Final

from gpushare_runtime.core.ledger import GpuState
from gpushare_runtime.core.request import Request

_KINDS: Final = 24
"""As many kinds of request are looked at, the most frequent; the others are too rare to leave room for."""
_MEMORY: Final = 20_000
"""After so many requests older ones count half."""
_FIRST_VERSION: Final = 8
CHOICES: Final = 70
"""All choices of four of eight GPUs; of more than these the first are tried."""

Kind = tuple[int, int, int]
"""(units per GPU, GPUs of memory, whole GPUs) of a request."""
Free = tuple[tuple[int, bool], ...]
"""(free units, empty) of each usable GPU of a node, sorted."""


@dataclass(frozen=True, eq=False)
class TypicalRequests:
    """What pods ask for; compared by identity, since it is looked up often. kinds: with how often each was seen."""

    version: int = 0
    kinds: tuple[tuple[Kind, int], ...] = ()


class Workload:
    """Counts the requests of each pod once, as told. Its picture changes when the counts have grown by a quarter."""

    def __init__(self) -> None:
        self.popular = TypicalRequests()
        self._counts: dict[Kind, int] = {}
        self._total = 0
        self._due = _FIRST_VERSION

    @property
    def version(self) -> int:
        """Another one, another picture."""
        return self.popular.version

    def observe(self, requests: Iterable[Request]) -> None:
        """Requests of pods not seen before."""
        for request in requests:
            kind = _kind(request)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._total += 1
        if self._total > _MEMORY:
            self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
            self._total = sum(self._counts.values())
            self._due = 0
        if self._total >= self._due or not self.popular.kinds:
            ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
            self.popular = TypicalRequests(self.popular.version + 1, tuple(ordered[:_KINDS]))
            self._due = max(_FIRST_VERSION, self._total + self._total // 4)


def fragmentation_increase(
    request: Request, usable: Sequence[GpuState], candidates: Sequence[GpuState], workload: Workload, choices: int = CHOICES
) -> tuple[int, Sequence[GpuState]]:
    """(by how much the node's fragmentation grows, the GPUs by which it grows least): unit × pods seen.

    Equal choices go to the fuller GPUs, then to the smaller, then to the lowest indexes. candidates: enough for the request;
    choices: how many choices of GPUs are tried, beginning with the fullest.
    """
    popular = workload.popular if workload.popular.kinds else TypicalRequests(-1, ((_kind(request), 1),))
    now = fragmentation(tuple(sorted((s.free, s.empty) for s in usable)), popular)
    ordered = sorted(candidates, key=lambda s: (s.free, s.gpu.units, s.gpu.index))
    best: tuple[int, Sequence[GpuState]] | None = None
    tried = set()
    for choice in islice(combinations(ordered, request.whole_gpus or request.gpus_per_pod), choices):
        alike = tuple((state.free, state.empty) for state in choice)
        if alike in tried:
            continue
        tried.add(alike)
        taken = {state.gpu.index for state in choice}
        left = 0 if request.whole_gpus else request.per_gpu
        after = (((s.free - left if left else 0), False) if s.gpu.index in taken else (s.free, s.empty) for s in usable)
        grown = fragmentation(tuple(sorted(after)), popular) - now
        if best is None or grown < best[0]:
            best = grown, choice
    assert best is not None
    return best


# Of nodes of 64 GPUs these are 90 MiB, of 8 GPUs a tenth.
@lru_cache(maxsize=16_384)
def fragmentation(gpus: Free, popular: TypicalRequests) -> int:
    """Free units that are of no use, summed over all pods seen. GPUs: the usable ones of one node."""
    frees = [free for free, _ in gpus]
    empties = [free for free, empty in gpus if empty]
    # Of the GPUs from each one on: those with enough free for a kind are the last ones.
    sums = [0, *accumulate(reversed(frees))]
    total, on_empty, useless = sums[-1], sum(empties), 0
    for (units, several, whole), count in popular.kinds:
        if whole:
            useful = on_empty if len(empties) >= whole else 0
        else:
            fitting = len(frees) - bisect_left(frees, units)
            useful = sums[fitting] if fitting >= several else 0
        useless += count * (total - useful)
    return useless


def _kind(request: Request) -> Kind:
    return (0, 0, request.whole_gpus) if request.whole_gpus else (request.per_gpu, request.gpus_per_pod, 0)

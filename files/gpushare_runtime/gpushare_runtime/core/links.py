# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Links between the GPUs of a node, and the set of GPUs with the best links that leaves good sets to others.

The points of a pair and the choice are those of NVIDIA's own device plugin (go-gpuallocator, besteffort_policy.go, read 2026-11-29),
which does not know links through NVSwitches: here they count as links to each GPU behind the switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from gpushare_runtime.core.bounds import ReportError, quote

WAYS: Final[Mapping[str, str]] = {"?": "", "s": "SYS", "n": "NODE", "h": "PHB", "m": "PXB", "p": "PIX", "b": "PSB"}
"""The way over PCIe, far to near, → its name in `nvidia-smi topo -m`. PSB: two GPUs of one board."""
MOST_NVLINKS: Final = 35
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NVLINK_POINTS: Final = 100
_WAY_POINTS: Final = {way: 10 * place for place, way in enumerate(WAYS)}
_SEARCHED: Final = 10
"""The most GPUs for which every set is compared."""
_REMEMBERED: Final = 256
_NO_WORST: Final = 10**9


class GpuLink(NamedTuple):
    """The links between two GPUs. way: over PCIe, of WAYS. nvlinks: direct ones, or each one's to NVSwitches that both have."""

    way: str
    nvlinks: int

    def points(self, *, fine: bool) -> int:
        """The worth of a pair. fine: where there are NVLinks, too, the way over PCIe counts."""
        return _NVLINK_POINTS * self.nvlinks + (_WAY_POINTS[self.way] if fine or not self.nvlinks else 0)

    def __str__(self) -> str:
        """The name in `nvidia-smi topo -m`, "" if nothing is known."""
        return f"NV{self.nvlinks}" if self.nvlinks else WAYS[self.way]


UNKNOWN: Final = GpuLink("?", 0)


@dataclass(frozen=True)
class GpuLinks:
    """The links of a node's physical GPUs. indexes: NVML's, ascending. rows: of each GPU, its links to those before it."""

    indexes: tuple[int, ...]
    rows: tuple[tuple[GpuLink, ...], ...]

    def between(self, gpu: int, other: int) -> GpuLink:
        """The link of two GPUs, UNKNOWN where it is not known."""
        return self._pairs.get((gpu, other), UNKNOWN)

    def among(self, indexes: tuple[int, ...]) -> GpuLinks:
        """The links of these GPUs."""
        if indexes == self.indexes:
            return self
        rows = (tuple(self.between(index, other) for other in indexes[:place]) for place, index in enumerate(indexes))
        return GpuLinks(indexes, tuple(rows))

    def to_json(self) -> list[str]:
        """A row for each GPU: two characters for each GPU before it, its way and its NVLinks in base 36."""
        return ["".join(f"{link.way}{_DIGITS[link.nvlinks]}" for link in row) for row in self.rows]

    def connected(self, among: Iterable[int]) -> list[frozenset[int]]:
        """The sets in which each GPU reaches each other one by NVLinks and GPUs of the set."""
        left, found = {*among}, []
        while left:
            reached, new = set(), {min(left)}
            while new:
                reached |= new
                new = {other for other in left - reached if any(self.between(index, other).nvlinks for index in new)}
            found.append(frozenset(reached))
            left -= reached
        return found

    def in_words(self, gpus: Sequence[int]) -> str:
        """The worst link of some GPUs, as `linked by NV2`; "" for one GPU, and where nothing is known."""
        pairs = [self.between(*pair) for pair in combinations(gpus, 2)]
        worst = min(pairs, key=lambda link: link.points(fine=True), default=UNKNOWN)
        at_least = " or more" if worst.nvlinks and any(link.nvlinks > worst.nvlinks for link in pairs) else ""
        return f"linked by {worst}{at_least}" if str(worst) else ""

    def best_of(self, gpu: int) -> str:
        """The best links of a GPU and the GPUs that they lead to, as `NV2:1,3`; "" where nothing is known."""
        others = [other for other in self.indexes if other != gpu]
        best = max((self.between(gpu, other) for other in others), key=lambda link: link.points(fine=True), default=UNKNOWN)
        there = [str(other) for other in others if self.between(gpu, other).points(fine=True) == best.points(fine=True)]
        return f"{best}:{'all' if len(there) == len(others) > 1 else ','.join(there)}" if str(best) else ""

    def choose(self, must: Sequence[int], may: Sequence[int], count: int, *, fine: bool = True, connected: bool = False) -> tuple[int, ...]:
        """The best `count` GPUs: all of `must`, the rest of `may`, whose order decides between equals.

        The GPUs are shared out to sets of this size so that all sets together have the most points, and of such ways so that the worst
        set has the most; of the sets it is the one with most points. fine: as `GpuLink.points`. connected: only sets whose GPUs reach each
        other by NVLinks.
        """
        key = tuple(must), tuple(may), count, fine, connected
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            found = self._chosen[key] = self._choose(tuple(must), tuple(may), count, fine, connected)
        return found

    def _choose(self, must: tuple[int, ...], may: tuple[int, ...], count: int, fine: bool, connected: bool) -> tuple[int, ...]:
        everyone = *must, *may
        points = {pair: self.between(*pair).points(fine=fine) for pair in combinations(everyone, 2)}
        if count >= len(everyone) or (not connected and len({*points.values()}) <= 1):
            return everyone[:count]
        if len(self.indexes) <= _SEARCHED and {*self.indexes} >= {*everyone}:
            return self._search(fine).best(must, may, count, lambda some: not connected or len(self.connected(some)) == 1)
        points |= {(other, gpu): each for (gpu, other), each in points.items()}
        return _grown(must, may, count, points, lambda gpu, other: not connected or bool(self.between(gpu, other).nvlinks))

    def _search(self, fine: bool) -> _Search:
        found = self._searches.get(fine)
        if found is None:
            found = self._searches[fine] = _Search(self.indexes, lambda gpu, other: self.between(gpu, other).points(fine=fine))
        return found

    @cached_property
    def _searches(self) -> dict[bool, _Search]:
        return {}

    @cached_property
    def _pairs(self) -> Mapping[tuple[int, int], GpuLink]:
        found = {}
        for place, row in enumerate(self.rows):
            for other, link in enumerate(row):
                first, second = self.indexes[place], self.indexes[other]
                found[first, second] = found[second, first] = link
        return found

    @cached_property
    def _chosen(self) -> dict[object, tuple[int, ...]]:
        return {}


def read_links(rows: object, indexes: tuple[int, ...]) -> GpuLinks:
    """Parse what `GpuLinks.to_json` makes of the GPUs with these indexes. ReportError says what is wrong.

    Nodes that are alike have one object in common, which remembers its choices.
    """
    if not isinstance(rows, list) or len(rows) != len(indexes) or not all(isinstance(row, str) for row in rows):
        raise ReportError(f"links must be a list of {len(indexes)} texts, one for each physical GPU, found {quote(rows)}")
    return _shared(tuple(rows), indexes)


@lru_cache(_REMEMBERED)
def _shared(rows: tuple[str, ...], indexes: tuple[int, ...]) -> GpuLinks:
    return GpuLinks(indexes, tuple(tuple(_row(row, place)) for place, row in enumerate(rows)))


def _row(text: str, place: int) -> Iterator[GpuLink]:
    links = [text[at : at + 2] for at in range(0, len(text), 2)]
    if len(text) != 2 * place or not all(link[0] in WAYS and link[1] in _DIGITS for link in links):
        known = "".join(WAYS)
        raise ReportError(f"links[{place}] must be {place} times a character of {known} and one of 0-9a-z, found {quote(text)}")
    return (GpuLink(link[0], _DIGITS.index(link[1])) for link in links)


class _Search:
    """All sets of a node's few GPUs, as numbers whose bits are places in `gpus`. Each is computed once."""

    def __init__(self, gpus: Sequence[int], points: Callable[[int, int], int]) -> None:
        self._bits = {gpu: 1 << place for place, gpu in enumerate(gpus)}
        pairs = [[points(gpu, other) if gpu != other else 0 for other in gpus] for gpu in gpus]
        self._points = [0] * (1 << len(gpus))
        for mask in range(1, len(self._points)):
            first = (mask & -mask).bit_length() - 1
            rest = mask & (mask - 1)
            self._points[mask] = self._points[rest] + sum(pairs[first][place] for place in _places(rest))
        self._shared_out: dict[tuple[int, int], tuple[int, int]] = {}

    def best(self, must: tuple[int, ...], may: tuple[int, ...], count: int, allowed: Callable[[Iterable[int]], bool]) -> tuple[int, ...]:
        """As `GpuLinks.choose`."""
        fixed, everyone = sum(self._bits[gpu] for gpu in must), sum(self._bits[gpu] for gpu in (*must, *may))
        # Alone a GPU has no links: it leaves the best pairs.
        size = max(count, 2)
        best: tuple[tuple[int, int, int], tuple[int, ...]] | None = None
        for some in combinations(may, count - len(must)):
            mask = fixed | sum(map(self._bits.__getitem__, some))
            own, (left, worst) = self._points[mask], self._left(everyone ^ mask, size)
            worth = own + left, min(own, worst), own
            if (best is None or worth > best[0]) and allowed((*must, *some)):
                best = worth, (*must, *some)
        return best[1] if best is not None else (*must, *may)[:count]

    def _left(self, mask: int, size: int) -> tuple[int, int]:
        """The points of the best sets of this size that these GPUs make, with the smaller set of those that are over; the worst's."""
        if not mask:
            return 0, _NO_WORST
        found = self._shared_out.get((mask, size))
        if found is None:
            found = self._shared_out[mask, size] = max(self._ways(mask, size))
        return found

    def _ways(self, mask: int, size: int) -> Iterator[tuple[int, int]]:
        """As `_left`, for each way to choose one of the sets: the smaller one, or else the one with the first GPU."""
        over = mask.bit_count() % size
        first, others = (0, _places(mask)) if over else (mask & -mask, _places(mask & (mask - 1)))
        for places in combinations(others, over or size - 1):
            some = first | sum(1 << place for place in places)
            own, (total, worst) = self._points[some], self._left(mask ^ some, size)
            yield own + total, worst if over else min(own, worst)


def _places(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _grown(
    must: Sequence[int], may: Sequence[int], count: int, worth: Mapping[tuple[int, int], int], allowed: Callable[[int, int], bool]
) -> tuple[int, ...]:
    """The best of the sets that grow from each of many GPUs, each time by the GPU with the best links to those that it has.

    worth: the points of each pair. allowed: whether the links of two GPUs may join one to the other's set.
    """
    best: tuple[tuple[int, int], tuple[int, ...]] | None = None
    everyone = *must, *may
    total = {gpu: sum(worth[gpu, other] for other in everyone if other != gpu) for gpu in everyone}
    for seed in must[:1] or may:
        chosen, left = [*must] or [seed], [gpu for gpu in may if gpu != seed]
        gain = {gpu: sum(worth[gpu, has] for has in chosen) for gpu in left}
        while len(chosen) < count:
            near = [gpu for gpu in left if any(allowed(gpu, has) for has in chosen)]
            if not near:
                break
            # Of equals the one whose links to all are the worst, which others want least.
            new = max(near, key=lambda gpu: (gain[gpu], -total[gpu]))
            left.remove(new)
            chosen.append(new)
            for gpu in left:
                gain[gpu] += worth[gpu, new]
        inside = sum(worth[pair] for pair in combinations(chosen, 2))
        cut = sum(total[gpu] for gpu in chosen) - 2 * inside
        if len(chosen) == count and (best is None or (inside, -cut) > best[0]):
            best = (inside, -cut), tuple(sorted(chosen))
    return best[1] if best is not None else tuple(everyone[:count])

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the original's matching would have made of admissions that took place on real nodes: wrong GPUs and over-booked ones. Pure.

Who asked, in which order, what the annotations said and how long the processes lived is taken as it was; only which GPU a
container gets is the model's. Where the order of two admissions is not certain it is the one that suits the original.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from take_over.matching import Answer, Candidate, allocate


@dataclass(frozen=True)
class Bound:
    """A pod that the scheduler has put on a node. pending_from, pending_to: while the API server showed it there as Pending;
    gpus: those that its annotations mean."""

    uid: str
    node: str
    units: int
    assume_time: int
    index: int
    gpus: frozenset[int]
    pending_from: float
    pending_to: float


@dataclass(frozen=True)
class Admission:
    """kubelet asks for ids for one container. end: of its process; None if none came of it, as when it was rejected here."""

    t: float
    pod: Bound
    container: str
    ids: tuple[str, ...]
    end: float | None


@dataclass
class Errors:
    """other: containers of one GPU that got another one than annotated; none: that got no GPU at all; fewer: that got one of
    the several that are annotated; over_booked: admissions by which a GPU had more units than it has; with_orphans: of these, pods
    that here had to wait for the end of others' processes, and would not have had to; GPUs: the GPUs so over-booked."""

    admissions: int = 0
    other: int = 0
    none: int = 0
    fewer: int = 0
    over_booked: int = 0
    with_orphans: int = 0
    gpus: set[tuple[str, int]] = field(default_factory=set)

    @property
    def wrong(self) -> int:
        return self.other + self.none + self.fewer

    def __str__(self) -> str:
        return (
            f"{self.wrong} of {self.admissions} containers with a wrong GPU ({self.other} on another one, {self.none} without any, "
            f"{self.fewer} with too few), {self.over_booked} admissions that over-booked a GPU ({self.with_orphans} beside processes "
            f"of deleted pods), on {len(self.gpus)} GPUs"
        )


@dataclass(frozen=True)
class Hasty:
    """A pod that had to wait here until processes of deleted pods had ended.

    The original's extender counts a pod as gone once it has a deletionTimestamp, and its device plugin has no memory of ids:
    nothing there makes such a pod wait. free: minor → units that no pod held by the API server's word when it was made;
    live: minor → units of processes that lived when kubelet would have admitted it.
    """

    node: str
    units: int
    free: Mapping[int, int]
    live: Mapping[int, int]


def best_fit(units: int, free: Mapping[int, int]) -> int | None:
    """The GPU that the original's extender takes: the fullest on which it fits, of equals the first."""
    return min((gpu for gpu in sorted(free) if free[gpu] >= units), key=lambda gpu: free[gpu], default=None)


def replay(
    admissions: Iterable[Admission], pods: Sequence[Bound], gpus: Mapping[str, Mapping[int, int]], hasty: Iterable[Hasty] = ()
) -> Errors:
    """gpus: node → minor → units."""
    errors = Errors()
    assigned: set[str] = set()
    booked: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    ordered = sorted(admissions, key=lambda a: (a.t, a.pod.assume_time, a.container))
    for one in ordered:
        answer = _answer(one, pods, assigned, gpus[one.pod.node])
        if answer.pod is not None:
            assigned.add(answer.pod)
        errors.admissions += 1
        _judge(one, answer, errors)
        if answer.gpu is not None:
            _book(one, (one.pod.node, answer.gpu), booked, gpus[one.pod.node][answer.gpu], errors)
    for pod in hasty:
        gpu = best_fit(pod.units, pod.free)
        if gpu is not None and pod.live.get(gpu, 0) + pod.units > gpus[pod.node][gpu]:
            errors.over_booked += 1
            errors.with_orphans += 1
            errors.gpus.add((pod.node, gpu))
    return errors


def _answer(one: Admission, pods: Iterable[Bound], assigned: set[str], gpus: Mapping[int, int]) -> Answer:
    """Whoever is being admitted is there, even if the word of it came late."""
    pending = [
        Candidate(pod.uid, pod.units, pod.assume_time, "true" if pod.uid in assigned else "false", pod.index)
        for pod in pods
        if pod.node == one.pod.node and (pod.uid == one.pod.uid or pod.pending_from <= one.t < pod.pending_to)
    ]
    return allocate(one.ids, pending, gpus)


def _judge(one: Admission, answer: Answer, errors: Errors) -> None:
    if answer.gpu is None:
        errors.none += 1
    elif answer.gpu not in one.pod.gpus:
        errors.other += 1
    elif len(one.pod.gpus) > 1:
        errors.fewer += 1


def _book(one: Admission, gpu: tuple[str, int], booked: dict[tuple[str, int], list[tuple[float, int]]], size: int, errors: Errors) -> None:
    """booked: GPU → (end, units) of the containers on it. A rejected container would have started at once, beside these."""
    held = sum(units for end, units in booked[gpu] if end > one.t)
    if held + len(one.ids) > size:
        errors.over_booked += 1
        errors.gpus.add(gpu)
    if one.end is not None:
        booked[gpu].append((one.end, len(one.ids)))

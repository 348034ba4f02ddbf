# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of any shape played through kubelet's device manager: what is placed ends on the GPUs planned, whatever kubelet picks.

Kubelet's part is devicesToAllocate and Allocate of pkg/kubelet/cm/devicemanager/manager.go (1.36.3), on sets whose order is random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import hypothesis.strategies as st
from hypothesis import HealthCheck, assume, given, settings

from gpushare_runtime.core import request
from gpushare_runtime.core.allocation import Allocation, allocate, allocation_of, wanted
from gpushare_runtime.core.request import ContainerRequest, Kind, Request

GPUS = range(6)
SLOTS = 60
Id = tuple[int, int]


class Kubelet:
    """One pod's admission. ids: (GPU, slot); the plugin prefers what the allocation wants, with those that it must."""

    def __init__(self, request: Request, allocation: Allocation, random: Random) -> None:
        self.request, self.allocation, self.random = request, allocation, random
        self.whole = request.whole_gpus > 0
        self.free = {(gpu, slot) for gpu in GPUS for slot in range(1 if self.whole else SLOTS)}
        self.reusable: set[Id] = set()
        self.given: dict[int, set[Id]] = {}

    def admit(self) -> None:
        for container in self.request.containers:
            ids = self.devices_to_allocate(container)
            self.given[container.key] = ids
            if container.kind is Kind.INIT:
                self.reusable |= ids
            else:
                self.reusable -= ids

    def devices_to_allocate(self, container: ContainerRequest) -> set[Id]:
        needed = container.whole_gpus or container.units
        allocated = set(self.random.sample(sorted(self.reusable), min(needed, len(self.reusable))))
        if len(allocated) < needed:
            preferred = self.preferred(container, allocated, needed)
            assert len(preferred) == needed, "kubelet would fill up at random"
            allocated |= preferred
        self.free -= allocated
        return allocated

    def preferred(self, container: ContainerRequest, must: set[Id], size: int) -> set[Id]:
        """The device plugin's answer: as many of each wanted GPU as are missing."""
        wants = Counter(wanted(self.request, self.allocation, container))
        if self.whole:
            wants = Counter(dict.fromkeys(wants, 1))
        chosen = set(must)
        missing = wants - Counter(gpu for gpu, _ in must)
        if self.whole:
            # Any GPU of the pod is as good where the planned one has gone to another of its containers.
            spare = [gpu for gpu in self.allocation.by_gpu if (gpu, 0) in self.free and gpu not in missing]
            gpus = [gpu for gpu in missing if (gpu, 0) in self.free] + spare
            return chosen | {(gpu, 0) for gpu in gpus[: size - len(must)]}
        for gpu, count in missing.items():
            chosen |= set(self.random.sample(sorted(i for i in self.free if i[0] == gpu), count))
        return chosen

    def actual(self) -> Allocation | None:
        """As the device plugin reads it from kubelet's record."""
        keeps = {c.key for c in self.request.containers if c.keeps}
        own = {key: per_gpu(ids, self.whole) for key, ids in self.given.items() if key in keeps}
        kept = set().union(*(ids for key, ids in self.given.items() if key in keeps))
        return allocation_of(self.request, own, per_gpu(set().union(*self.given.values()) - kept, self.whole))


def per_gpu(ids: set[Id], whole: bool) -> Mapping[int, int]:
    return {gpu: SLOTS if whole else count for gpu, count in Counter(gpu for gpu, _ in ids).items()}


@st.composite
def requests(draw: st.DrawFn, whole: bool = False) -> Request:
    several = 1 if whole else draw(st.integers(1, 3))
    amount = st.integers(1, 2) if whole else st.integers(1, 6).map(lambda n: n * several)
    init = draw(st.lists(st.tuples(st.sampled_from([Kind.INIT, Kind.SIDECAR]), amount), max_size=3))
    apps = draw(st.lists(st.tuples(st.just(Kind.APP), amount), min_size=0 if init else 1, max_size=3))
    containers = [
        ContainerRequest(kind, index, f"{kind.name}{index}", **{"whole_gpus" if whole else "units": size})
        for of in (init, apps)
        for index, (kind, size) in enumerate(of)
    ]
    return Request(tuple(containers), several)


def plan(request: Request, random: Random) -> Allocation:
    assume(request.whole_gpus <= len(GPUS))
    gpus = random.sample(list(GPUS), request.whole_gpus or request.gpus_per_pod)
    return allocate(request, [(gpu, SLOTS) for gpu in gpus])


def play(request: Request, allocation: Allocation, seed: int) -> Kubelet:
    kubelet = Kubelet(request, allocation, Random(seed))
    kubelet.admit()
    return kubelet


@given(requests(), st.integers())
def test_memory_ends_exactly_where_it_was_planned(request: Request, seed: int) -> None:
    assume(request.unsupported is None)
    allocation = plan(request, Random(seed))
    kubelet = play(request, allocation, seed)
    assert kubelet.actual() == allocation
    for container in request.containers:
        even = dict.fromkeys(allocation.by_gpu, container.units // request.gpus_per_pod)
        assert per_gpu(kubelet.given[container.key], False) == even


@given(requests(whole=True), st.integers())
def test_whole_gpus_are_those_planned_though_containers_may_have_swapped_them(request: Request, seed: int) -> None:
    assert request.unsupported is None
    allocation = plan(request, Random(seed))
    kubelet = play(request, allocation, seed)
    actual = kubelet.actual()
    assert actual is not None
    assert actual.by_gpu == allocation.by_gpu


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(requests().filter(lambda request: request.unsupported is not None))
def test_only_shapes_that_can_go_wrong_are_rejected(request: Request) -> None:
    allocation = plan(request, Random(0))

    def goes_wrong(seed: int) -> bool:
        try:
            given_ = play(request, allocation, seed).given
        except (AssertionError, ValueError):
            return True
        counts = [list(per_gpu(ids, False).values()) for ids in given_.values()]
        return any(len(of) < request.gpus_per_pod or len(set(of)) > 1 for of in counts)

    assert any(goes_wrong(seed) for seed in range(200))


def test_only_what_is_less_than_the_pool_is_taken_at_random() -> None:
    turns = [(False, 4), (True, 0), (True, 1), (False, 3), (True, 4)]
    assert [(step.pool, step.reused, step.new, step.at_random) for step in request.steps(turns)] == [
        (0, 0, 4, False), (4, 0, 0, False), (4, 1, 0, True), (3, 3, 0, False), (3, 3, 1, False),
    ]  # fmt: skip
    assert request.kept(turns) == 5

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The allocation of a pod is what its containers' ids add up to, whichever of them later containers have from init containers."""

from __future__ import annotations

from collections import Counter
from random import Random

from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.device_plugin.node.ids import actual_allocation
from unit.fakes.runtime.pods import inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(4, 6, 8)
IDS = {
    MEMORY: {f"GPU-{gpu.index:08d}-_-{slot}": (gpu.index, 1) for gpu in NODE.gpus for slot in range(gpu.units)},
    GPUS: {f"GPU-{gpu.index:08d}": (gpu.index, gpu.units) for gpu in NODE.gpus},
}
"""Resource → id → (GPU, units)."""


def drawn(random: Random) -> tuple[Request, dict[tuple[str, str], list[str]]]:
    """A pod and the ids of its containers; those of ordinary init containers may be had by later ones."""
    containers, given = [], {}
    for index in range(random.randint(1, 3)):
        kind, gpus = random.choice((Kind.INIT, Kind.SIDECAR, Kind.APP)), random.choice((0, 0, 1, 2))
        one = ContainerRequest(kind, index, f"{kind.name}-{index}", units=0 if gpus else random.randint(1, 5), whole_gpus=gpus)
        containers.append(one)
        for resource, amount in ((MEMORY, one.units), (GPUS, one.whole_gpus)):
            if amount:
                given[one.name, resource] = random.sample(sorted(IDS[resource]), amount)
    return Request(tuple(containers)), given


def total(ids: set[tuple[str, str]]) -> Counter[int]:
    """GPU → units of these (resource, id)."""
    units: Counter[int] = Counter()
    for resource, device_id in ids:
        gpu, amount = IDS[resource][device_id]
        units[gpu] += amount
    return units


def test_each_container_that_stays_has_its_ids_and_the_first_init_container_what_nobody_has() -> None:
    random = Random(0)
    for _ in range(2000):
        request, given = drawn(random)
        allocation = actual_allocation(request, given, NODE)
        assert allocation is not None
        ids = {c: {(r, i) for (name, r), of in given.items() if name == c.name for i in of} for c in request.containers}
        kept = set().union(*(of for c, of in ids.items() if c.keeps))
        extra = set().union(*ids.values()) - kept
        expected = {c.key: dict(total(of)) for c, of in ids.items() if c.keeps}
        if extra:
            expected[next(c.key for c in request.containers if c.kind is Kind.INIT)] = dict(total(extra))
        assert {key: dict(gpus) for key, gpus in allocation.containers} == expected


def test_nothing_is_known_while_a_container_has_no_ids_or_ids_of_no_gpu() -> None:
    random = Random(1)
    for _ in range(500):
        request, given = drawn(random)
        key = random.choice(sorted(given))
        assert actual_allocation(request, {k: ids for k, ids in given.items() if k != key}, NODE) is None
        gone = "GPU-gone" if key[1] == GPUS else "GPU-gone-_-0"
        assert actual_allocation(request, given | {key: [gone, *given[key][1:]]}, NODE) is None

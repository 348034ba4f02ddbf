# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container has how many units of which GPU, and its only codec to and from pod annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_ALLOCATION_BYTES, MOST_UNITS, quote
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.errors import GpushareError


class AllocationError(GpushareError, ValueError):
    """Allocation annotations that cannot be read; quotes the annotation."""


@dataclass(frozen=True)
class Allocation:
    """Container → NVML GPU index → units, ascending; app containers first.

    A container is numbered as in `ContainerRequest.key`. One that has whole GPUs has all units of each. An ordinary init
    container is here only with what no later container of the pod has and kubelet keeps all the same; all of that stands
    under the first of them that asks. So the sums are what the pod takes from its GPUs.
    """

    containers: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

    @classmethod
    def of(cls, containers: Mapping[int, Mapping[int, int]] | Iterable[tuple[int, Mapping[int, int]]]) -> Allocation:
        """From {container: {gpu: units}}; units must be positive."""
        items = dict(containers)
        return cls(tuple((c, tuple(sorted(items[c].items()))) for c in sorted(items, key=lambda key: (key < 0, abs(key)))))

    @cached_property
    def by_gpu(self) -> Mapping[int, int]:
        """Units per GPU index, of all containers together."""
        total: dict[int, int] = {}
        for _, gpus in self.containers:
            for gpu, units in gpus:
                total[gpu] = total.get(gpu, 0) + units
        return total

    @property
    def first_gpu(self) -> int:
        """The GPU that the five old annotations name: the first one of the first container."""
        return self.containers[0][1][0][0]

    @property
    def units(self) -> int:
        return sum(self.by_gpu.values())

    def container(self, index: int) -> Mapping[int, int]:
        """{gpu: units} of one container; empty if it has none."""
        return dict(dict(self.containers).get(index, ()))

    def to_annotations(self, inventory: Inventory, assume_time_ns: int, *, assigned: bool = False) -> dict[str, str]:
        """All six annotations, together, as the Binding carries them. assume_time_ns: Unix time in nanoseconds."""
        return {
            protocol.ANNOTATION_INDEX: str(self.first_gpu),
            protocol.ANNOTATION_GPU_UNITS: str(inventory.by_index[self.first_gpu].units),
            protocol.ANNOTATION_POD_UNITS: str(self.units),
            protocol.ANNOTATION_ASSIGNED: "true" if assigned else "false",
            protocol.ANNOTATION_ASSUME_TIME: str(assume_time_ns),
            protocol.ANNOTATION_ALLOCATION: json.dumps(
                {str(c): {str(gpu): units for gpu, units in gpus} for c, gpus in self.containers}, separators=(",", ":")
            ),
        }


def allocation_of(request: Request, own: Mapping[int, Mapping[int, int]], extra: Mapping[int, int]) -> Allocation | None:
    """From what the pod's containers have, None if that is nothing.

    own: {container: {gpu: units}} of app containers and sidecars; extra: {gpu: units} that only ordinary init containers had.
    """
    containers = {key: dict(gpus) for key, gpus in own.items() if gpus}
    if extra:
        containers[next(c.key for c in request.containers if c.kind is Kind.INIT)] = dict(extra)
    return Allocation.of(containers) if containers else None


def allocate(request: Request, gpus: Sequence[tuple[int, int]]) -> Allocation:
    """The pod on exactly these GPUs: (index, units of the GPU), as many as `gpus_per_pod`, or as it needs whole."""
    if not request.whole_gpus:
        return _spread(request, [index for index, _ in gpus])
    units = dict(gpus)
    fresh = [index for index, _ in gpus]
    pool: list[int] = []
    own: dict[int, list[int]] = {}
    for container in request.containers:
        taken = pool[: container.whole_gpus]
        new, fresh = fresh[: container.whole_gpus - len(taken)], fresh[container.whole_gpus - len(taken) :]
        if container.keeps:
            own[container.key] = [*taken, *new]
            pool = pool[len(taken) :]
        else:
            pool += new
    made = allocation_of(request, {key: {i: units[i] for i in had} for key, had in own.items()}, {i: units[i] for i in pool})
    assert made is not None
    return made


def _spread(request: Request, gpus: Sequence[int]) -> Allocation:
    """Memory, evenly on these GPUs."""

    def evenly(units: int) -> dict[int, int]:
        return dict.fromkeys(gpus, units // len(gpus)) if units else {}

    own = {c.key: evenly(c.units) for c in request.containers if c.keeps}
    made = allocation_of(request, own, evenly(request.units - sum(c.units for c in request.containers if c.keeps)))
    assert made is not None
    return made


def wanted(request: Request, allocation: Allocation, container: ContainerRequest) -> Mapping[int, int]:
    """{gpu: units} that this container, of any kind, should be given; {} if that cannot be said."""
    if container.keeps:
        return allocation.container(container.key)
    gpus = allocation.by_gpu
    if container.units:
        if container.units % len(gpus):
            return {}
        return dict.fromkeys(sorted(gpus), container.units // len(gpus))
    # Sidecars that were started before keep theirs; the others' GPUs pass through this one's hands first.
    before = request.containers[: request.containers.index(container)]
    taken = {gpu for c in before if c.keeps for gpu in allocation.container(c.key)}
    left = [gpu for gpu in sorted(gpus) if gpu not in taken]
    return {gpu: gpus[gpu] for gpu in left[: container.whole_gpus]} if len(left) >= container.whole_gpus else {}


def read_allocation(annotations: Mapping[str, str], request: Request) -> Allocation | None:
    """The allocation that a pod's annotations state, None if they do not say on which GPUs it is.

    The JSON form wins; a pod that carries only the original's five has all its containers on GPU IDX.
    AllocationError if an annotation is there and cannot be read, or is not what such a pod can have.
    """
    if bool(request.units) == bool(request.whole_gpus):
        # It requests both resources, or compute alone. Only a pod that was put on its node without the scheduler can be so: no form of
        # the annotations describes it.
        return None
    text = annotations.get(protocol.ANNOTATION_ALLOCATION)
    if text:
        stated = _from_json(text)
        return _checked(stated, request, text) if stated else None
    index = annotations.get(protocol.ANNOTATION_INDEX)
    if index is None or index == "-1":
        return None
    gpu = _number(protocol.ANNOTATION_INDEX, index)
    if request.whole_gpus == 0:
        _check_total(annotations, request)
        return _spread(request, [gpu])
    if request.whole_gpus == 1 and protocol.ANNOTATION_GPU_UNITS in annotations:
        units = _number(protocol.ANNOTATION_GPU_UNITS, annotations[protocol.ANNOTATION_GPU_UNITS])
        return allocate(request, [(gpu, units)])
    return None


def _check_total(annotations: Mapping[str, str], request: Request) -> None:
    text = annotations.get(protocol.ANNOTATION_POD_UNITS)
    # The original adds up spec.containers alone.
    apps = sum(c.units for c in request.containers if c.kind is Kind.APP)
    if text is not None and _number(protocol.ANNOTATION_POD_UNITS, text) not in (apps, request.units):
        raise AllocationError(f"{protocol.ANNOTATION_POD_UNITS} is {quote(text)}, but the pod asks for {request.units}")


def _checked(stated: dict[int, dict[int, int]], request: Request, text: str) -> Allocation | None:
    """The stated allocation, completed where its writer leaves something out; None if a pod with this request cannot have it."""
    asking = {c.key: c for c in request.containers}
    where = protocol.ANNOTATION_ALLOCATION
    for key, gpus in stated.items():
        container = asking.get(key)
        if container is None:
            raise AllocationError(f"{where} gives GPUs to container {key}, which asks for none: {quote(text)}")
        if container.keeps and (len(gpus) if container.whole_gpus else sum(gpus.values())) != (container.whole_gpus or container.units):
            asked = f"{container.whole_gpus} whole GPUs" if container.whole_gpus else f"{container.units} units"
            raise AllocationError(f"{where} does not give container {container.name!r} the {asked} that it asks for: {quote(text)}")
    own = {key: gpus for key, gpus in stated.items() if asking[key].keeps}
    missing = [c for c in request.containers if c.keeps and c.key not in own]
    if any(c.kind is Kind.APP for c in missing):
        raise AllocationError(f"{where} leaves out container {missing[0].name!r}, which asks for some: {quote(text)}")
    extra = {gpu: units for key, gpus in stated.items() if not asking[key].keeps for gpu, units in gpus.items()}
    gpus_of_pod = {gpu for gpus in stated.values() for gpu in gpus}
    if not request.whole_gpus and len(gpus_of_pod) == request.gpus_per_pod:
        for container in missing:
            own[container.key] = dict.fromkeys(gpus_of_pod, container.units // len(gpus_of_pod))
        missing = []
        left = request.units - sum(c.units for c in request.containers if c.keeps)
        extra = extra or (dict.fromkeys(gpus_of_pod, left // len(gpus_of_pod)) if left else {})
    if missing:
        return None
    return _complete(request, own, extra, text)


def _complete(request: Request, own: Mapping[int, Mapping[int, int]], extra: Mapping[int, int], text: str) -> Allocation | None:
    """None where what only init containers had is not stated.

    They may have more than the request says: after kubelet has lost its record each gets its own again.
    """
    if request.whole_gpus:
        given = [gpu for gpus in (*own.values(), extra) for gpu in gpus]
        short, doubled = request.whole_gpus - len(given), len(given) - len(set(given))
    else:
        short, doubled = request.units - sum(sum(gpus.values()) for gpus in (*own.values(), extra)), 0
    before = sum(c.whole_gpus or c.units for c in request.containers if not c.keeps)
    more = (len(extra) if request.whole_gpus else sum(extra.values())) > before
    if doubled or (short > 0 and extra) or (short < 0 and more):
        raise AllocationError(f"{protocol.ANNOTATION_ALLOCATION} is not what such a pod can have: {quote(text)}")
    return allocation_of(request, own, extra) if short <= 0 else None


def _from_json(text: str) -> dict[int, dict[int, int]]:
    where = protocol.ANNOTATION_ALLOCATION
    if len(text) > MOST_ALLOCATION_BYTES:
        raise AllocationError(f"{where} has {len(text)} characters; no pod's has more than {MOST_ALLOCATION_BYTES}")
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AllocationError(f"{where} is not JSON ({error}): {quote(text)}") from None
    if not isinstance(data, dict) or not all(isinstance(gpus, dict) for gpus in data.values()):
        raise AllocationError(f"{where} must be {{container: {{gpu: units}}}}, found {quote(text)}")
    containers: dict[int, dict[int, int]] = {}
    for name, gpus in data.items():
        container = -_number(where, name[1:]) if name.startswith("-") else _number(where, name)
        for gpu, units in gpus.items():
            if isinstance(units, bool) or not isinstance(units, int) or not 0 < units <= MOST_UNITS:
                raise AllocationError(f"{where} must give a positive number of units per GPU, found {quote(text)}")
            containers.setdefault(container, {})[_number(where, gpu)] = units
    return containers


def _number(where: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) > MOST_UNITS:
        raise AllocationError(f"{where} must be a whole number, found {quote(text)}")
    return int(text)

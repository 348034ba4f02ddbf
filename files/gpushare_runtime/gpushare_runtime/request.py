# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What one pod asks for, made once from the pod at the edge, with an error that names the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from gpushare_runtime import protocol
from gpushare_runtime.quantity import Unit, parse_quantity


class RequestError(ValueError):
    """A pod that asks in a way that cannot be meant; says which field, what was found and what to write."""


class Kind(Enum):
    """How a container runs: with the pod, before it, or from before it to its end."""

    APP = "containers"
    INIT = "initContainers"
    SIDECAR = "initContainers with restartPolicy Always"


@dataclass(frozen=True)
class ContainerRequest:
    """One container that asks for something of ours.

    index: its place in spec.containers (or spec.initContainers for INIT and SIDECAR);
    units: of `aliyun.com/gpu-mem`; cards: whole ones, of `aliyun.com/gpu-count`;
    core: per cent of a card's compute; written: the memory quantity as the user wrote it.
    """

    kind: Kind
    index: int
    name: str
    units: int = 0
    cards: int = 0
    core: int = 0
    written: str = ""


@dataclass(frozen=True)
class Request:
    """What one pod asks for; never empty. cards_per_pod: ACK's label, over how many cards the memory is spread."""

    containers: tuple[ContainerRequest, ...]
    cards_per_pod: int = 1

    @cached_property
    def units(self) -> int:
        """Units of card memory that the running pod holds (app containers and sidecars)."""
        return sum(c.units for c in self.containers if c.kind is not Kind.INIT)

    @cached_property
    def cards(self) -> int:
        """Whole cards that the running pod holds."""
        return sum(c.cards for c in self.containers if c.kind is not Kind.INIT)

    @property
    def unsupported(self) -> str | None:
        """Why this release does not place such a pod, or None. Refused in filter, never half placed."""
        if self.cards_per_pod > 1:
            return (
                f"the pod label {protocol.LABEL_CARDS_PER_POD}: {str(self.cards_per_pod)!r} asks for memory on several "
                "cards, which this release does not place; ask for one card, or for whole cards in limits"
            )
        for container in self.containers:
            if container.kind is not Kind.APP:
                return (
                    f"{container.kind.value}: {container.name!r} asks for a GPU before the pod's containers run, "
                    "which this release does not place; move the request to spec.containers"
                )
            if container.core:
                return (
                    f"container {container.name!r} asks for {protocol.RESOURCE_CORE}, which this release does not "
                    f"share out; ask for {protocol.RESOURCE_MEMORY} alone"
                )
        return None


def parse_request(pod: Mapping[str, Any], *, bound: bool = False) -> Request | None:
    """The request of a pod (a v1.Pod as JSON), None if it asks for nothing of ours. RequestError if it makes no sense.

    bound: it is on a node already, whoever put it there; what it holds counts, also where it would be refused now.
    """
    containers = tuple(_containers(pod.get("spec") or {}))
    if not containers:
        return None
    if bound:
        return Request(containers)
    if any(c.units or c.core for c in containers) and any(c.cards for c in containers):
        raise RequestError(
            f"the pod asks for {protocol.RESOURCE_MEMORY} and {protocol.RESOURCE_CARDS} at once: "
            f"memory of a shared card, or whole cards, but not both; remove one of them"
        )
    return Request(containers, _cards_per_pod(pod, containers))


def _cards_per_pod(pod: Mapping[str, Any], containers: tuple[ContainerRequest, ...]) -> int:
    label = ((pod.get("metadata") or {}).get("labels") or {}).get(protocol.LABEL_CARDS_PER_POD)
    if label is None or not any(c.units for c in containers):
        return 1
    if not (isinstance(label, str) and label.isascii() and label.isdigit() and int(label) >= 1):
        raise RequestError(f'the pod label {protocol.LABEL_CARDS_PER_POD} must be the number of cards, such as "2"; found {label!r}')
    return int(label)


def _containers(spec: Mapping[str, Any]) -> Iterator[ContainerRequest]:
    for index, container in enumerate(spec.get("initContainers") or ()):
        kind = Kind.SIDECAR if container.get("restartPolicy") == "Always" else Kind.INIT
        yield from _container(kind, index, container)
    for index, container in enumerate(spec.get("containers") or ()):
        yield from _container(Kind.APP, index, container)


def _container(kind: Kind, index: int, container: Mapping[str, Any]) -> Iterator[ContainerRequest]:
    resources = container.get("resources")
    if not resources:
        return
    limits = resources.get("limits") or {}
    requests = resources.get("requests") or {}
    asked = {name: limits.get(name, requests.get(name)) for name in protocol.RESOURCES if name in limits or name in requests}
    if not asked:
        return
    name = str(container.get("name", ""))
    amounts = {resource: _amount(name, resource, value) for resource, value in asked.items()}
    if any(amounts.values()):
        yield ContainerRequest(
            kind,
            index,
            name,
            units=amounts.get(protocol.RESOURCE_MEMORY, 0),
            cards=amounts.get(protocol.RESOURCE_CARDS, 0),
            core=amounts.get(protocol.RESOURCE_CORE, 0),
            written=str(asked.get(protocol.RESOURCE_MEMORY, "")),
        )


def _amount(container: str, resource: str, value: object) -> int:
    try:
        amount = parse_quantity(value)
    except ValueError as error:
        raise RequestError(f"container {container!r}, {resource}: {error}") from None
    if amount < 0:
        raise RequestError(f"container {container!r}, {resource}: {value} is negative; write how many it needs, such as 8")
    if amount > _LARGEST:
        raise RequestError(f"container {container!r}, {resource}: {value} is more than any machine has; write how many it needs, such as 8")
    return amount


# 2**63-1 is the largest value that the API server keeps exactly.
_LARGEST: Final = 2**63 - 1
# What is at least this large was meant in bytes: 64 MiB of units would be the memory of no machine.
_BYTES: Final = 64 * 1024 * 1024
# What is at least this large, in units of 1 GiB, was meant in MiB.
_MEBIBYTES: Final = 512


def explain_size(container: ContainerRequest, unit: Unit, largest: int) -> str | None:
    """What a request that exceeds every card says, and what to write instead; None if a card of `largest` units is enough."""
    if container.units <= largest:
        return None
    text = f"{container.written} means {container.units} units of {unit}; the largest card has {largest}"
    meant = 0
    if container.units >= _BYTES:
        meant = -(-container.units // (unit.mib * 1024 * 1024))
    elif container.units >= _MEBIBYTES and unit.mib > 1:
        meant = -(-container.units // unit.mib)
    if 0 < meant <= largest:
        return f"{text}; write {meant}"
    return f"{text}; write at most {largest}"

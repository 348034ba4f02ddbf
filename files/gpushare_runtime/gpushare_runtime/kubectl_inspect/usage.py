# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the nodes and pods of a cluster say about who holds which card. Pure: JSON in, dataclasses out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.core.bounds import MOST_CARDS, MOST_UNITS, as_text
from gpushare_runtime.core.inventory import Inventory, InventoryError
from gpushare_runtime.core.node_report import Held, HeldError
from gpushare_runtime.core.quantity import parse_quantity
from gpushare_runtime.core.request import Request, RequestError, parse_request

_MOST_ADDRESS: Final = 64
# The original's guess: no card of its time had more GiB than this, and none fewer MiB.
_MOST_GIB: Final = 100


@dataclass(frozen=True)
class PodUsage:
    """What one bound pod holds: units per card index, and units whose card is not known.

    name: with " (orphaned)" behind it when the pod was deleted and its processes have not ended.
    """

    namespace: str
    name: str
    by_card: Mapping[int, int]
    pending: int = 0


@dataclass(frozen=True)
class NodeUsage:
    """One node. unit: the name of what is counted ("GiB"); total: units of all cards; cards: units by index."""

    name: str
    address: str
    unit: str
    total: int
    cards: Mapping[int, int]
    pods: Sequence[PodUsage] = ()

    @cached_property
    def columns(self) -> int:
        """How many columns GPU0 … its cards need."""
        return max(self.cards, default=-1) + 1

    @cached_property
    def by_card(self) -> Mapping[int, int]:
        """Units held per card index."""
        return {index: sum(pod.by_card.get(index, 0) for pod in self.pods) for index in self.cards}

    @cached_property
    def pending(self) -> int:
        """Units held on cards that are not known."""
        return sum(pod.pending for pod in self.pods)

    @property
    def allocated(self) -> int:
        return sum(self.by_card.values()) + self.pending


@dataclass(frozen=True)
class Usage:
    """All nodes that have shared cards, by name, and what could not be read, in words."""

    nodes: Sequence[NodeUsage]
    warnings: Sequence[str]


def read_usage(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Usage:
    """From v1.Node and v1.Pod objects as JSON. Pods that are finished or not bound hold nothing."""
    warnings: list[str] = []
    read = [(_node(raw, warnings), _said(raw, warnings)) for raw in nodes]
    found = {node.name: node for node, _ in read if node.total > 0}
    said = {node.name: by_uid for node, by_uid in read}
    held: dict[str, list[PodUsage]] = {}
    for raw in pods:
        name = (raw.get("spec") or {}).get("nodeName")
        if name in found and (raw.get("status") or {}).get("phase") not in protocol.FINISHED_PHASES:
            by_node = said[name].pop(raw["metadata"].get("uid"), None)
            pod = _pod(raw, found[name], by_node, warnings)
            if pod is not None:
                held.setdefault(name, []).append(pod)
    for name in found:
        # Pods that the node alone still knows.
        held.setdefault(name, []).extend(replace(pod, name=f"{pod.name} (orphaned)") for pod in said[name].values())
    units = {node.name: node.unit for node in found.values()}
    if len(set(units.values())) > 1:
        each = ", ".join(f"{name}: {units[name]}" for name in sorted(units))
        warnings.append(f"the nodes count in different units ({each}): the cluster's totals add unlike numbers")
    usages = [
        NodeUsage(node.name, node.address, node.unit, node.total, node.cards, tuple(held.get(name, ())))
        for name, node in sorted(found.items())
    ]
    return Usage(usages, warnings)


def _node(raw: Mapping[str, Any], warnings: list[str]) -> NodeUsage:
    metadata, status = raw["metadata"], raw.get("status") or {}
    name = metadata["name"]
    addresses = (a["address"] for a in status.get("addresses") or () if a.get("type") == "InternalIP")
    # Whatever the node has written there goes to a terminal.
    address = as_text(next(addresses, "unknown"), _MOST_ADDRESS)
    text = (metadata.get("annotations") or {}).get(protocol.ANNOTATION_CARDS)
    if text is not None:
        try:
            inventory = Inventory.from_json(text)
        except InventoryError as error:
            warnings.append(
                f"node {name}: annotation {protocol.ANNOTATION_CARDS} cannot be used ({error}); its cards are taken to be of equal size"
            )
        else:
            cards = {card.index: card.units for card in inventory.cards}
            return NodeUsage(name, address, inventory.unit.name, inventory.units, cards)
    # A node of the original plugin says only how much there is, and on how many cards.
    try:
        total, count = _allocatable(status, protocol.RESOURCE_MEMORY, MOST_UNITS), _allocatable(status, protocol.RESOURCE_CARDS, MOST_CARDS)
    except ValueError as error:
        warnings.append(f"node {name}: {error}; it is left out")
        total, count = 0, 0
    size = total // count if count else 0
    return NodeUsage(name, address, "MiB" if size > _MOST_GIB else "GiB", total, dict.fromkeys(range(count), size))


def _said(raw: Mapping[str, Any], warnings: list[str]) -> dict[str, PodUsage]:
    """What the node says is held although the pods do not say it, by the pod's UID."""
    name, annotations = raw["metadata"]["name"], raw["metadata"].get("annotations") or {}
    text = annotations.get(protocol.ANNOTATION_HELD)
    if text is None:
        return {}
    try:
        held, inventory = Held.from_json(text), Inventory.from_json(annotations.get(protocol.ANNOTATION_CARDS, ""))
    except HeldError as error:
        warnings.append(f"node {name}: annotation {protocol.ANNOTATION_HELD} cannot be used ({error}); what it holds is not counted")
        return {}
    except InventoryError:
        return {}
    cards = {card.uuid: card for card in inventory.cards}
    found: dict[str, PodUsage] = {}
    for entry in held.entries:
        if entry.card in cards:
            card = cards[entry.card]
            namespace, _, pod = entry.pod.partition("/")
            before = found.get(entry.uid)
            units = card.units if entry.whole else entry.units + (before.by_card.get(card.index, 0) if before else 0)
            found[entry.uid] = PodUsage(namespace, pod, {**(before.by_card if before else {}), card.index: units})
    return found


def _allocatable(status: Mapping[str, Any], resource: str, most: int) -> int:
    """ValueError where it is no such number, or more than any node has."""
    amount = parse_quantity((status.get("allocatable") or {}).get(resource, 0))
    if not 0 <= amount <= most:
        raise ValueError(f"its {resource} of {amount} cannot be; a node has at most {most}")
    return amount


def _pod(raw: Mapping[str, Any], node: NodeUsage, by_node: PodUsage | None, warnings: list[str]) -> PodUsage | None:
    """What the pod holds, None if that is nothing. by_node: what its node says of it, where the pod's annotations do not."""
    metadata = raw["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        request = parse_request(raw, bound=True)
    except RequestError as error:
        warnings.append(f"pod {namespace}/{name} on {node.name} is not counted: {error}")
        return None
    if request is None or not (request.units or request.cards):
        return None
    annotations = metadata.get("annotations") or {}
    if protocol.ANNOTATION_MIRROR in annotations:
        # Anybody may make what looks like the copy of a static pod: its node alone can say what it has.
        return by_node
    allocation: Allocation | None = None
    try:
        allocation = read_allocation(annotations, request)
    except AllocationError as error:
        warnings.append(f"pod {namespace}/{name} on {node.name}: its card is not known: {error}")
    if allocation is None:
        return by_node or PodUsage(namespace, name, {}, _unplaced(request, node))
    known = {index: units for index, units in allocation.by_card.items() if index in node.cards}
    if len(known) < len(allocation.by_card):
        gone = sorted(set(allocation.by_card) - set(known))
        warnings.append(f"pod {namespace}/{name}: node {node.name} has no card {', '.join(map(str, gone))} that its annotation names")
    return PodUsage(namespace, name, known, allocation.units - sum(known.values()))


def _unplaced(request: Request, node: NodeUsage) -> int:
    """The units that such a pod holds somewhere; whole cards count as the largest that the node has."""
    return request.units + request.cards * max(node.cards.values(), default=0)

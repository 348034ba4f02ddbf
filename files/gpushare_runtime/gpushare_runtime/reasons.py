# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a request does not fit on a node, in numbers, in a bounded number of wordings per answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.ledger import NodeLedger
from gpushare_runtime.quantity import GIB, Unit
from gpushare_runtime.request import Request

MOST_WORDINGS: Final = 10
"""kube-scheduler copies every distinct reason into the pod's condition at each attempt."""


def refusals(request: Request, nodes: Iterable[NodeLedger]) -> dict[str, str]:
    """Node name → why the request does not fit there. Up to ten nodes are named each with its numbers, more in groups."""
    refused = list(nodes)
    if len(refused) <= MOST_WORDINGS:
        return {node.name: f"{node.name}: {exact(request, node)}" for node in refused}
    groups = {node.name: _group(request, node) for node in refused}
    if len(set(groups.values())) > MOST_WORDINGS:
        return {name: f"no node has {_wanted(request, None)}" for name in groups}
    return groups


def exact(request: Request, node: NodeLedger) -> str:
    """The numbers of one node."""
    if node.inventory is None:
        return _no_inventory(node)
    usable = [state.card for state in node.usable]
    wanted = _wanted(request, node.inventory.unit)
    out = len(node.inventory.cards) - len(usable)
    without = f", {out} not usable" if out else ""
    if request.cards:
        return f"needs {wanted}, {node.empty_cards()} of {len(node.cards)} cards are empty{without}"
    size, total = max((card.units for card in usable), default=0), sum(card.units for card in usable)
    if request.units > size:
        return f"needs {wanted}, its largest card has {size} ({total} in total on {_cards(len(usable))}{without})"
    return f"needs {wanted}, at most {node.largest_free()} are free on one ({node.free} of {total} in total{without})"


def _group(request: Request, node: NodeLedger) -> str:
    if node.inventory is None:
        return _no_inventory(node)
    wanted = _wanted(request, node.inventory.unit)
    if request.cards:
        return f"needs {wanted}, {node.empty_cards()} are empty"
    return f"needs {wanted}, at most {node.largest_free()} are free on one"


def _no_inventory(node: NodeLedger) -> str:
    if node.inventory_error:
        return f"its annotation {protocol.ANNOTATION_CARDS} cannot be used: {node.inventory_error}"
    return f"no annotation {protocol.ANNOTATION_CARDS} on the node: gpushare-device-plugin has not run there"


def _wanted(request: Request, unit: Unit | None) -> str:
    if request.cards:
        return f"{request.cards} whole {'card' if request.cards == 1 else 'cards'}"
    name = "units" if unit is None else unit.name if unit == GIB else f"units of {unit}"
    return f"{request.units} {name} on one card"


def _cards(count: int) -> str:
    return f"{count} {'card' if count == 1 else 'cards'}"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a request does not fit on a node, in numbers, in a bounded number of wordings per answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from gpushare_runtime.core import protocol
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.quantity import GIB, Unit
from gpushare_runtime.core.request import Request


def amount(request: Request) -> str:
    """What a request asks for, for a log line."""
    if request.cards:
        return f"{request.cards} whole {'card' if request.cards == 1 else 'cards'}"
    several = f" on {request.cards_per_pod} cards" if request.cards_per_pod > 1 else ""
    core = f" and {request.core} % of compute" if request.core else ""
    return f"{request.units} {'unit' if request.units == 1 else 'units'}{core}{several}"


MOST_WORDINGS: Final = 10
"""kube-scheduler copies every distinct reason into the pod's condition at each attempt."""
FAULT: Final = "an internal fault in looking at this node; the log of gpushare-extender says which"


class NoFit(NamedTuple):
    """Why a request does not fit on one of many nodes. hopeless: no eviction could help; fault: what could not be computed there."""

    words: str
    hopeless: bool
    fault: str


def no_fit(request: Request, node: NodeLedger) -> NoFit:
    """Of a node where it does not fit."""
    words = _guarded(_group, request, node)
    return NoFit(words, not node.guarded(partial(node.fits_when_empty, request), True), node.fault)


def refusals(request: Request, refused: Mapping[str, NoFit], node_of: Callable[[str], NodeLedger]) -> dict[str, str]:
    """Node name → why the request does not fit there. Up to ten nodes are named each with its numbers, more in groups."""
    if len(refused) <= MOST_WORDINGS:
        return {name: f"{name}: {_guarded(exact, request, node_of(name))}" for name in refused}
    groups = {name: one.words for name, one in refused.items()}
    if len(set(groups.values())) > MOST_WORDINGS:
        return dict.fromkeys(groups, f"no node has {_wanted(request, None)}")
    return groups


def _guarded(words: Callable[[Request, NodeLedger], str], request: Request, node: NodeLedger) -> str:
    found = node.guarded(partial(words, request, node), FAULT)
    return FAULT if node.fault else found


def exact(request: Request, node: NodeLedger) -> str:
    """The numbers of one node."""
    if node.inventory is None:
        return _no_inventory(node)
    wanted = _wanted(request, node.inventory.unit)
    if request.core and not node.inventory.core:
        return f"needs {wanted}, but its mode does not share out compute ({protocol.RESOURCE_CORE})"
    usable = [state.card for state in node.usable]
    out = len(node.inventory.cards) - len(usable)
    without = f", {out} not usable" if out else ""
    kept = _kept_back(request, node)
    if request.cards:
        return f"needs {wanted}, {node.empty_cards()} of {len(node.cards)} cards are empty{without}{kept}"
    size, total = max((card.units for card in usable), default=0), sum(card.units for card in usable)
    if request.per_card > size:
        return f"needs {wanted}, its largest card has {size} ({total} in total on {_cards(len(usable))}{without})"
    return f"needs {wanted}, {_most(request, node)} ({node.free} of {total} in total{without}){kept}"


def _group(request: Request, node: NodeLedger) -> str:
    if node.inventory is None:
        return _no_inventory(node)
    wanted = _wanted(request, node.inventory.unit)
    if request.core and not node.inventory.core:
        return f"needs {wanted}, but its mode does not share out compute ({protocol.RESOURCE_CORE})"
    if request.cards:
        return f"needs {wanted}, {node.empty_cards()} are empty{_kept_back(request, node)}"
    return f"needs {wanted}, {_most(request, node)}{_kept_back(request, node)}"


def _most(request: Request, node: NodeLedger) -> str:
    if request.cards_per_pod > 1:
        fitting = sum(state.free >= request.per_card for state in node.usable)
        return f"{fitting} {'card has' if fitting == 1 else 'cards have'} that free"
    most = f"at most {node.largest_free()} are free on one"
    if not request.core:
        return most
    core = max((state.core for state in node.usable if state.free >= request.per_card), default=0)
    return f"{most}, and at most {core} % of compute beside such memory"


def _kept_back(request: Request, node: NodeLedger) -> str:
    """Cards that have the room, and why they are not given all the same."""
    whys = [node.rejection(request, state) for state in node.cards]
    parts = [f"{_cards(whys.count(why))} {text}" for why, text in _KEPT_BACK.items() if why in whys]
    return f"; {', '.join(parts)}" if parts else ""


_KEPT_BACK: Final = {
    "refused": "not of a model or UUID that the pod accepts",
    "company": "with other pods than the pods' rules allow",
    "held back": "held back because the node refused a pod of this size there",
}


def _no_inventory(node: NodeLedger) -> str:
    if node.inventory_error:
        return f"its annotation {protocol.ANNOTATION_CARDS} cannot be used: {node.inventory_error}"
    return f"no annotation {protocol.ANNOTATION_CARDS} on the node: gpushare-device-plugin has not run there"


def _wanted(request: Request, unit: Unit | None) -> str:
    if request.cards:
        return f"{request.cards} whole {'card' if request.cards == 1 else 'cards'}"
    name = "units" if unit is None else unit.name if unit == GIB else f"units of {unit}"
    core = f" and {request.core} % of compute" if request.core else ""
    if request.cards_per_pod > 1:
        return f"{request.per_card} {name} on each of {request.cards_per_pod} cards"
    return f"{request.units} {name}{core} on one card"


def _cards(count: int) -> str:
    return f"{count} {'card' if count == 1 else 'cards'}"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger as JSON: GET /inspect as the original answers it, and all that is known, with a version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from gpushare_runtime.core.ledger import CardState, Ledger, NodeLedger
from gpushare_runtime.core.placement.explain import FAULT
from gpushare_runtime.core.pods import AllocatedPod, PendingPod

VERSION: Final = 1


def inspect(ledger: Ledger, name: str | None = None) -> dict[str, Any]:
    """The answer to GET /inspect, or /inspect/<name>. A node that is not known is an `error`, not a broken connection."""
    if name is None:
        nodes = [node for _, node in sorted(ledger.nodes.items()) if node.inventory]
        return {"nodes": [_inspect(node) for node in nodes]}
    node = ledger.node(name)
    if node is None or node.inventory is None:
        why = f": {node.inventory_error}" if node is not None and node.inventory_error else ""
        known = ", ".join(sorted(n.name for n in ledger.nodes.values() if n.inventory)) or "none"
        return {"nodes": [], "error": f"node {name} has no cards that are known{why}; nodes with cards: {known}"}
    return {"nodes": [_inspect(node)]}


def _inspect(node: NodeLedger) -> dict[str, Any]:
    return node.guarded(partial(_inspected, node), None) or _inspected(NodeLedger(node.name))


def _inspected(node: NodeLedger) -> dict[str, Any]:
    cards = [
        {"id": state.card.index, "totalGPU": state.card.units, "usedGPU": state.card.units - state.free, "pods": list(_pods(node, state))}
        for state in node.card_states
    ]
    return {
        "name": node.name,
        "totalGPU": sum(card["totalGPU"] for card in cards),
        "usedGPU": sum(card["usedGPU"] for card in cards),
        "devs": cards,
    }


def _pods(node: NodeLedger, state: CardState) -> Iterable[dict[str, Any]]:
    for pod in node.pods:
        units = (node.cards_of(pod) or {}).get(state.card.index)
        if units is not None:
            yield {"name": pod.name, "namespace": pod.namespace, "usedGPU": units}


def ledger_json(ledger: Ledger, problems: Sequence[str] = ()) -> dict[str, Any]:
    """All of it. A change that readers could misunderstand raises `v`; new fields do not. Units are those of each node.

    problems: what is wrong beyond the single node.
    """
    nodes = [node_json(ledger, node) for _, node in sorted(ledger.nodes.items())]
    return {"v": VERSION, "problems": list(problems), "nodes": nodes}


def node_json(ledger: Ledger, node: NodeLedger) -> dict[str, Any]:
    """One node of `ledger_json`. A pod's state is "bound", "terminating", "assumed" (its Binding is under way), "reserved" or
    "deleted" (deleted by force a moment ago)."""
    found = node.guarded(partial(_node, ledger, node), None)
    return found or {**_node(ledger, NodeLedger(node.name)), "error": FAULT, "problems": [node.fault]}


def _node(ledger: Ledger, node: NodeLedger) -> dict[str, Any]:
    inventory = node.inventory
    return {
        "name": node.name,
        "unit": inventory.unit.name if inventory else None,
        "core": inventory.core if inventory else 0,
        "error": node.inventory_error,
        "placement": node.record.placement,
        "model": node.record.model,
        "cards": [_card(node, state) for state in node.card_states],
        "pods": [_pod(ledger, node, pod) for pod in sorted(node.pods, key=lambda h: (h.namespace, h.name, h.uid))],
        "held": [
            {"card": e.card, "uid": e.uid, "pod": e.pod, "units": e.units, "why": e.why, "whole": e.whole} for e in node.record.held.entries
        ],
        "rejected": [{"card": r.card, "uid": r.uid, "units": r.units, "until": r.until, "whole": r.whole} for r in node.rejections],
        "nominated": [_nominee(nominee) for nominee in ledger.nominees.get(node.name, {}).values()],
        "problems": node.problems(),
    }


def _card(node: NodeLedger, state: CardState) -> dict[str, Any]:
    card = state.card
    return {
        "index": card.index,
        "uuid": card.uuid,
        "minor": card.minor,
        "pci": card.pci,
        "model": card.model,
        "units": card.units,
        "free": state.free,
        "core_free": state.core,
        "empty": state.empty,
        "health": card.health,
        "cordoned": card.cordoned,
    }


def _pod(ledger: Ledger, node: NodeLedger, pod: AllocatedPod) -> dict[str, Any]:
    known = node.cards_of(pod)
    states = (
        (ledger.is_held_until(pod.uid), "deleted"),
        (ledger.is_reserved(pod.uid), "reserved"),
        (ledger.is_assumed(pod.uid), "assumed"),
        (pod.terminating, "terminating"),
    )
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "units": pod.request.units,
        "cards": pod.request.whole_cards,
        "core": pod.request.core,
        "whole": pod.whole,
        "priority": pod.priority,
        "state": next((state for is_so, state in states if is_so), "bound"),
        "by_card": None if known is None else {str(index): units for index, units in sorted(known.items())},
    }


def _nominee(nominee: PendingPod) -> dict[str, Any]:
    return {"namespace": nominee.namespace, "name": nominee.name, "uid": nominee.uid, "priority": nominee.priority}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger as JSON, as the extender's GET /ledger and `kubectl gpushare -o json` give it: docs/reference/ledger-v1.schema.json. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import FAULT
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod

VERSION: Final = 1
MOST_REASON: Final = 4096
"""Characters of why a pod is pending: kube-scheduler's message has ten wordings at most, but a node's name may be long."""


def ledger_json(
    ledger: Ledger,
    problems: Sequence[str] = (),
    pending: Iterable[PendingPod | InvalidPod] = (),
    reasons: Mapping[str, str] | None = None,
    complete: bool = True,
) -> dict[str, Any]:
    """All of it. A change that readers could misunderstand raises `v`; new fields do not. Units are those of each node.

    problems: what is wrong beyond the single node. pending: the pods on no node. reasons: by UID, what kube-scheduler reported of
    them. complete: False where not every pod could be read, so that it is unknown what is free, and null is written for it.
    """
    nodes = [node_json(ledger, node, complete) for _, node in sorted(ledger.nodes.items())]
    waiting = sorted(pending, key=lambda pod: (pod.namespace, pod.name, pod.uid))
    return {
        "v": VERSION,
        "complete": complete,
        "problems": list(problems),
        "nodes": nodes,
        "pending": [_pending(pod, (reasons or {}).get(pod.uid, "")) for pod in waiting],
    }


def node_json(ledger: Ledger, node: NodeLedger, complete: bool = True) -> dict[str, Any]:
    """One node of `ledger_json`. A pod's state is "bound", "terminating", "assumed" (its Binding is under way), "reserved" or
    "deleted" (deleted by force a moment ago)."""
    found = node.guarded(partial(_node, ledger, node, complete), None)
    return found or {**_node(ledger, NodeLedger(node.name), complete), "error": FAULT, "problems": [node.fault]}


def _node(ledger: Ledger, node: NodeLedger, complete: bool) -> dict[str, Any]:
    inventory, states = node.inventory, node.gpu_states
    return {
        "name": node.name,
        "unit": inventory.unit.name if inventory else None,
        "unit_mib": inventory.unit.mib if inventory else None,
        "core": inventory.core if inventory else 0,
        "strategy": inventory.strategy if inventory else "",
        "isolation": inventory.isolation if inventory else "",
        "error": node.inventory_error,
        "placement": node.record.placement,
        "model": node.record.model,
        "gpus": [_gpu(state, complete) for state in states],
        "pods": [_pod(ledger, node, pod) for pod in sorted(node.pods, key=lambda h: (h.namespace, h.name, h.uid))],
        "held": [
            {"gpu": e.gpu, "uid": e.uid, "pod": e.pod, "units": e.units, "why": e.why, "whole": e.whole} for e in node.record.held.entries
        ],
        "rejected": [{"gpu": r.gpu, "uid": r.uid, "units": r.units, "until": r.until, "whole": r.whole} for r in node.rejections],
        "nominated": [_nominee(nominee) for nominee in ledger.nominees.get(node.name, {}).values()],
        "problems": node.problems() if complete else [],
    }


def _gpu(state: GpuState, complete: bool) -> dict[str, Any]:
    gpu = state.gpu
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "pci": gpu.pci,
        "model": gpu.model,
        "mib": gpu.mib,
        "numa": gpu.numa,
        "units": gpu.units,
        "free": state.free if complete else None,
        "core_free": state.core if complete else None,
        "empty": state.empty if complete else None,
        "usable": gpu.usable,
        "health": gpu.health,
        "cordoned": gpu.cordoned,
        "used_mib": None,
    }


def _pod(ledger: Ledger, node: NodeLedger, pod: AllocatedPod) -> dict[str, Any]:
    # Without an inventory its own annotations are all that is known.
    known = node.gpus_of(pod) if node.inventory or pod.allocation is None else pod.allocation.by_gpu
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
        "gpus": pod.request.whole_gpus,
        "core": pod.request.core,
        "whole": pod.whole,
        "priority": pod.priority,
        "state": next((state for is_so, state in states if is_so), "bound"),
        "by_gpu": None if known is None else {str(index): units for index, units in sorted(known.items())},
        "used_mib": None,
    }


def _pending(pod: PendingPod | InvalidPod, reason: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"units": None, "gpus": None, "core": None, "gpus_per_pod": None, "priority": None, "nominated": ""}
    if isinstance(pod, PendingPod):
        request = pod.request
        asked = {
            "units": request.units,
            "gpus": request.whole_gpus,
            "core": request.core,
            "gpus_per_pod": request.gpus_per_pod,
            "priority": pod.priority,
            "nominated": pod.nominated,
        }
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, **asked, "reason": as_text(why_pending(pod, reason), MOST_REASON)}


def why_pending(pod: PendingPod | InvalidPod, reported: str = "") -> str:
    """The reason that keeps a pod from every GPU: what is wrong with it, or else what kube-scheduler reported; "" where nothing is
    known."""
    if isinstance(pod, InvalidPod):
        return pod.error
    return pod.request.unsupported or reported


def _nominee(nominee: PendingPod) -> dict[str, Any]:
    return {"namespace": nominee.namespace, "name": nominee.name, "uid": nominee.uid, "priority": nominee.priority}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /inspect, as the original answers it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from gpushare_runtime.core.ledger import GpuState, Ledger, NodeLedger


def inspect(ledger: Ledger, name: str | None = None) -> dict[str, Any]:
    """The answer to GET /inspect, or /inspect/<name>. A node that is not known is an `error`, not a broken connection."""
    if name is None:
        nodes = [node for _, node in sorted(ledger.nodes.items()) if node.inventory]
        return {"nodes": [_inspect(node) for node in nodes]}
    node = ledger.node(name)
    if node is None or node.inventory is None:
        why = f": {node.inventory_error}" if node is not None and node.inventory_error else ""
        known = ", ".join(sorted(n.name for n in ledger.nodes.values() if n.inventory)) or "none"
        return {"nodes": [], "error": f"node {name} has no GPUs that are known{why}; nodes with GPUs: {known}"}
    return {"nodes": [_inspect(node)]}


def _inspect(node: NodeLedger) -> dict[str, Any]:
    return node.guarded(partial(_inspected, node), None) or _inspected(NodeLedger(node.name))


def _inspected(node: NodeLedger) -> dict[str, Any]:
    gpus = [
        {"id": state.gpu.index, "totalGPU": state.gpu.units, "usedGPU": state.gpu.units - state.free, "pods": list(_pods(node, state))}
        for state in node.gpu_states
    ]
    return {
        "name": node.name,
        "totalGPU": sum(gpu["totalGPU"] for gpu in gpus),
        "usedGPU": sum(gpu["usedGPU"] for gpu in gpus),
        "devs": gpus,
    }


def _pods(node: NodeLedger, state: GpuState) -> Iterable[dict[str, Any]]:
    for pod in node.pods:
        units = (node.gpus_of(pod) or {}).get(state.gpu.index)
        if units is not None:
            yield {"name": pod.name, "namespace": pod.namespace, "usedGPU": units}

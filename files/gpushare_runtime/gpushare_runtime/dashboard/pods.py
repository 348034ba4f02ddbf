# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The page of one pod: where it is and what it has, or why it waits, with the verdict on each node."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.explain import amount
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.dashboard.rows import MOST_NAME
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Waiting, reason_of
from gpushare_runtime.kubectl_gpushare.explain import NOT_JUDGED, NodeVerdict, document, headline, ranked, usual, verdicts
from gpushare_runtime.kubectl_gpushare.views import Share, gpus_of, is_over, share_state, shares

MOST_VERDICTS: Final = 200
_STEP_SECONDS: Final = 0.02


async def pod_page(cluster: Cluster, namespace: str, name: str, lock: asyncio.Lock) -> list[dict[str, Any]]:
    """Of each pod of that name: usually one. [] if none requests GPUs or has some. lock: one explanation at a time."""
    found = [_bound(cluster, node, share) for node, share in _shares(cluster, namespace, name)]
    for wait in list(cluster.waiting.values()):
        if (wait.pod.namespace, wait.pod.name) == (namespace, name):
            async with lock:
                found.append(await _waiting(cluster, wait))
    return found


def _shares(cluster: Cluster, namespace: str, name: str) -> list[tuple[NodeLedger, Share]]:
    wanted = f"{namespace}/{name}"
    nodes = [
        node
        for node in cluster.nodes
        if any(pod.name == name and pod.namespace == namespace for pod in node.pods)
        or any(entry.pod == wanted for entry in node.record.held.entries)
    ]
    return [(node, share) for node in nodes for share in shares(node) if (share.namespace, share.name) == (namespace, name)]


def _bound(cluster: Cluster, node: NodeLedger, share: Share) -> dict[str, Any]:
    by_index = node.inventory.by_index if node.inventory else {}
    states = {view.gpu.index: as_text(view.states()) for view in gpus_of(node, with_pods=False)}
    gpus = [
        {
            "index": index,
            "units": units,
            "of": by_index[index].units if index in by_index else None,
            "model": as_text(by_index[index].model) if index in by_index else "",
            "uuid": as_text(by_index[index].uuid) if index in by_index else "",
            "state": states.get(index, ""),
        }
        for index, units in sorted((share.by_gpu or {}).items())
    ]
    return {
        "kind": "bound",
        "namespace": as_text(share.namespace, MOST_NAME),
        "name": as_text(share.name, MOST_NAME),
        "uid": as_text(share.uid, MOST_NAME),
        "state": share_state(share, is_over(cluster, share, node))[0],
        "node": as_text(node.name, MOST_NAME),
        "unit": node.inventory.unit.name if node.inventory else None,
        "gpus": None if share.by_gpu is None else gpus,
        "request": as_text(amount(share.pod.request)) if share.pod else "",
        "priority": share.pod.priority if share.pod else None,
    }


async def _waiting(cluster: Cluster, wait: Waiting) -> dict[str, Any]:
    """`document` of `kubectl gpushare explain`, with at most so many nodes, best first."""
    pod, reason = wait.pod, reason_of(wait, cluster.largest())
    head = {"uid": as_text(pod.uid, MOST_NAME), "namespace": as_text(pod.namespace, MOST_NAME), "name": as_text(pod.name, MOST_NAME)}
    if isinstance(pod, InvalidPod):
        return {"kind": "invalid", **head, "reason": reason}
    found = await _verdicts(cluster, pod)
    sentence = headline(pod, found, wait.reported, cluster.largest(), wait.scheduler)
    made = document(pod, reason, found[:MOST_VERDICTS], as_text(sentence, 1024))
    for node in made["nodes"]:
        node["name"], node["reason"] = as_text(node["name"], MOST_NAME), as_text(node["reason"])
        node["cures"] = [as_text(cure) for cure in node["cures"]]
    counts = {"all_nodes": len(found), "fitting_nodes": sum(verdict.fits for verdict in found)}
    return {"kind": "pending", **made, **head, **counts, "priority": pod.priority, "note": NOT_JUDGED}


async def _verdicts(cluster: Cluster, pod: PendingPod) -> list[NodeVerdict]:
    """As `explain`, while other requests and the watches go on: of 5000 nodes it takes a second or two."""
    placement, found, until = usual(cluster), [], time.monotonic() + _STEP_SECONDS
    for verdict in verdicts(cluster, pod, placement):
        found.append(verdict)
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _STEP_SECONDS
    return ranked(cluster, pod, found, placement)

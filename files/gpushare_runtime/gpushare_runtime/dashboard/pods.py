# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The page of one pod: where it is and what it has, or why it waits, with the verdict on each node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.explain import amount, asked
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.dashboard import cures, visible
from gpushare_runtime.dashboard.rows import MOST_NAME, MOST_REASON, own_reason
from gpushare_runtime.dashboard.viewers import Viewer
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Waiting
from gpushare_runtime.kubectl_gpushare.explain import NOT_JUDGED, NodeVerdict, conclude, document, ranked, usual, verdicts, who_of
from gpushare_runtime.kubectl_gpushare.views import Share, gpus_of, is_over, share_state, shares

ALL: Final = Viewer()
MOST_VERDICTS: Final = 200
MOST_KEPT: Final = 500
"""Sentences."""
_KEPT_SECONDS: Final = 2.0
_KEPT_FACTOR: Final = 20
_REST_FACTOR: Final = 3
_MOST_REST_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.02


class Verdicts:
    """The sentence about each pod that waits, for people with the list of them in front of them.

    One at a time, and after each a rest of three times as long: of 5000 nodes a sentence takes a second or two of the processor that
    follows the cluster. It holds for twenty times as long as it took. Pods that ask for the same share it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rests_until = 0.0
        self._kept: dict[object, tuple[float, dict[str, Any]]] = {}

    async def of(self, cluster: Cluster, uid: str, viewer: Viewer = ALL) -> dict[str, Any]:
        """{verdict, copy}; both "" for a pod that does not wait, that the viewer may not see, or that too little is known to judge."""
        wait = cluster.waiting.get(uid)
        if wait is None or not isinstance(wait.pod, PendingPod) or not cluster.complete or not viewer.sees(wait.pod.namespace):
            return {"verdict": "", "copy": ""}
        pod = wait.pod
        group = pod.group and pod.group.at_once
        key = (cluster.ledger.for_pod(pod).key, pod.priority, group, wait.reported, wait.scheduler, viewer.namespaces)
        async with self._lock:
            kept = self._kept.get(key)
            if kept is None or self._clock() >= kept[0]:
                await asyncio.sleep(max(0.0, self._rests_until - self._clock()))
                began = self._clock()
                found = await _verdicts(cluster, pod, viewer)
                took = self._clock() - began
                said = _sentence(cluster, wait, pod, found)
                while len(self._kept) >= MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                kept = self._kept[key] = self._clock() + max(_KEPT_SECONDS, _KEPT_FACTOR * took), said
                self._rests_until = self._clock() + min(_REST_FACTOR * took, _MOST_REST_SECONDS)
            return kept[1]


def _sentence(cluster: Cluster, wait: Waiting, pod: PendingPod, found: list[NodeVerdict]) -> dict[str, Any]:
    conclusion = conclude(pod, found, wait.reported, cluster.largest(), wait.scheduler)
    copied = cures.of_conclusion(conclusion, pod, cluster.largest())
    return {"verdict": as_text(conclusion.sentence, MOST_REASON), "copy": as_text(copied, MOST_REASON)}


async def pod_page(cluster: Cluster, namespace: str, name: str, lock: asyncio.Lock, viewer: Viewer = ALL) -> list[dict[str, Any]]:
    """Of each pod of that name: usually one. [] if none requests GPUs or has some, or the viewer may not see it. lock: one explanation at
    a time."""
    if not viewer.sees(namespace):
        return []
    found = [_bound(cluster, node, share) for node, share in _shares(cluster, namespace, name)]
    for wait in list(cluster.waiting.values()):
        if (wait.pod.namespace, wait.pod.name) == (namespace, name):
            async with lock:
                found.append(await _waiting(cluster, wait, viewer))
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
        "request": as_text(amount(share.pod.request, node.inventory.unit if node.inventory else None)) if share.pod else "",
        "priority": share.pod.priority if share.pod else None,
        "used": cluster.used.by_pod.get(share.uid),
        "busy": cluster.used.busy_pods.get(share.uid),
        "idle": int(cluster.used.idle.get(share.uid, 0)),
    }


async def _waiting(cluster: Cluster, wait: Waiting, viewer: Viewer) -> dict[str, Any]:
    """`document` of `kubectl gpushare explain`, with at most so many nodes, best first, and what to copy of each cure."""
    pod = wait.pod
    head = {"uid": as_text(pod.uid, MOST_NAME), "namespace": as_text(pod.namespace, MOST_NAME), "name": as_text(pod.name, MOST_NAME)}
    if isinstance(pod, InvalidPod):
        return {"kind": "invalid", **head, "reason": own_reason(wait, cluster.largest())}
    request = as_text(asked(pod.request, cluster.largest(), cluster.unit()))
    said = {"reported": as_text(wait.reported, MOST_REASON), "who": who_of(wait.scheduler), "request": request}
    if not cluster.complete:
        own = own_reason(wait, cluster.largest())
        copy = cures.of_size(pod, cluster.largest())
        return {"kind": "pending", **head, **said, "priority": pod.priority, "judged": False, "verdict": own, "copy": copy}
    found = await _verdicts(cluster, pod, viewer)
    made = document(pod, wait.reported, found[:MOST_VERDICTS])
    del made["reason"]
    for node, verdict in zip(made["nodes"], found, strict=False):
        name = verdict.node
        node["name"], node["reason"] = as_text(name, MOST_NAME), as_text(node["reason"])
        node["cures"] = [{"text": as_text(cure.text), "copy": cures.of_node(cure, name, pod)} for cure in verdict.cures]
    counts = {"all_nodes": len(found), "fitting_nodes": sum(verdict.fits for verdict in found)}
    more = {**_sentence(cluster, wait, pod, found), "priority": pod.priority, "note": NOT_JUDGED, "judged": True}
    return {"kind": "pending", **made, **head, **said, **counts, **more}


async def _verdicts(cluster: Cluster, pod: PendingPod, viewer: Viewer) -> list[NodeVerdict]:
    """As `explain`, as far as the viewer may know, while other requests and the watches go on: of 5000 nodes it takes a second or two."""
    placement, found, until = usual(cluster), [], time.monotonic() + _STEP_SECONDS
    for verdict in verdicts(cluster, pod, placement):
        found.append(verdict if viewer.namespaces is None else visible.verdict(verdict, viewer.namespaces))
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _STEP_SECONDS
    return ranked(cluster, pod, found, placement)

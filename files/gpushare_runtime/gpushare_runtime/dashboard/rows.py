# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A node, a waiting pod and the sums as the page gets them: compact JSON, of which 5000 nodes are 5 MB. Pure.

A node is an object: `gpus` has [index, model, units, allocated, free or null, used MiB or null, marks, state, percent of its SMs that are
busy or null] of each GPU, and `pods` has [namespace, name, state, {gpu: units} or null, Unix time of its creation or 0, used MiB or null,
percent of SMs or null, Unix time since when it has kept nothing busy or 0] of each pod. Marks are those of `views.LEGEND`. All texts are
printable and bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.ledger_json import node_json
from gpushare_runtime.core.node_ledger import FAULT
from gpushare_runtime.core.placement.explain import Largest, asked
from gpushare_runtime.core.pods import InvalidPod
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.dashboard import cures
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, UNKNOWN_POD, Cluster, Waiting, reason_of
from gpushare_runtime.kubectl_gpushare.views import Share, gpus_of, is_over, share_state, shares

MOST_NAME: Final = 253
MOST_PROBLEMS: Final = 20
"""Of one node; the page of the node shows them."""
MOST_REASON: Final = 1024


@dataclass(frozen=True)
class Sums:
    """Memory in MiB and counts. free: on usable GPUs; pods: with something of a GPU."""

    nodes: int = 0
    gpus: int = 0
    usable: int = 0
    total: int = 0
    allocated: int = 0
    free: int = 0
    pods: int = 0
    problems: int = 0

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        """With `other` added, or with sign -1 taken off."""
        return Sums(*(mine + sign * its for mine, its in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        return self.nodes, self.gpus, self.usable, self.total, self.allocated, self.free, self.pods, self.problems

    def to_json(self) -> dict[str, int]:
        """By name."""
        return dict(zip(self.__dataclass_fields__, self.values(), strict=True))


@dataclass(frozen=True)
class Row:
    """data: JSON of one node or one waiting pod; sums: what it adds to those of the cluster."""

    data: bytes
    sums: Sums = Sums()


def node_row(cluster: Cluster, name: str) -> Row | None:
    """None for a node that has nothing to show."""
    node = cluster.ledger.node(name)
    if node is None:
        return None
    made = node.guarded(partial(_node_row, cluster, node), None)
    return made or Row(orjson.dumps(_node(cluster, NodeLedger(name), [], [], [f"{FAULT}: {node.fault}"])), Sums(nodes=1, problems=1))


def _node_row(cluster: Cluster, node: NodeLedger) -> Row:
    views, mib = gpus_of(node), node.inventory.unit.mib if node.inventory else 0
    gpus = [
        [
            view.gpu.index,
            as_text(view.gpu.model),
            view.gpu.units,
            view.allocated,
            view.free if cluster.complete else None,
            cluster.used.by_gpu.get(view.gpu.uuid),
            view.marks,
            as_text(view.states()),
            cluster.used.busy_gpus.get(view.gpu.uuid),
        ]
        for view in views
    ]
    pods = [
        [
            as_text(share.namespace, MOST_NAME),
            as_text(share.name, MOST_NAME),
            share_state(share, is_over(cluster, share, node))[0],
            None if share.by_gpu is None else {str(gpu): units for gpu, units in share.by_gpu.items()},
            int(cluster.pods.get(share.uid, UNKNOWN_POD).created),
            used_by(cluster, node, share),
            cluster.used.busy_pods.get(share.uid),
            int(cluster.used.idle.get(share.uid, 0)),
        ]
        for share in shares(node)
    ]
    pods.sort(key=lambda pod: (pod[0], pod[1]))
    said = [*node.pods_without_gpu(), *node.problems()] if cluster.complete else []
    problems = [as_text(problem) for problem in said[:MOST_PROBLEMS]]
    sums = Sums(
        nodes=1,
        gpus=len(views),
        usable=sum(view.gpu.usable for view in views),
        total=sum(view.gpu.units for view in views) * mib,
        allocated=sum(view.allocated for view in views) * mib,
        free=sum(view.free or 0 for view in views) * mib,
        pods=len(pods),
        problems=len(problems) + bool(node.inventory_error),
    )
    return Row(orjson.dumps(_node(cluster, node, gpus, pods, problems)), sums)


def used_by(cluster: Cluster, node: NodeLedger, share: Share) -> int | None:
    """MiB that a pod uses: 0 for one without a process on GPUs that answer, as rules.yml of the monitoring has it; None: unknown."""
    used = cluster.used.by_pod.get(share.uid)
    if used is not None or not cluster.used.by_gpu or not share.by_gpu or node.inventory is None:
        return used
    by_index = node.inventory.by_index
    known = (index in by_index and by_index[index].uuid in cluster.used.by_gpu for index in share.by_gpu)
    return 0 if all(known) else None


def _node(cluster: Cluster, node: NodeLedger, gpus: list[Any], pods: list[Any], problems: list[str]) -> dict[str, Any]:
    return {
        "name": as_text(node.name, MOST_NAME),
        "unit": node.inventory.unit.name if node.inventory else None,
        "mib": node.inventory.unit.mib if node.inventory else 0,
        "error": as_text(node.inventory_error),
        "cordoned": cluster.infos.get(node.name, UNKNOWN_NODE).cordoned,
        "gpus": gpus,
        "pods": pods,
        "problems": problems,
    }


def waiting_row(wait: Waiting, largest: Largest | None, unit: Unit | None) -> Row:
    """A pod on no node. largest, unit: as `Cluster` has them. verdict: "" where it takes all nodes to find it."""
    pod, verdict = wait.pod, own_reason(wait, largest)
    data = {
        "uid": as_text(pod.uid, MOST_NAME),
        "namespace": as_text(pod.namespace, MOST_NAME),
        "name": as_text(pod.name, MOST_NAME),
        "request": "" if isinstance(pod, InvalidPod) else as_text(asked(pod.request, largest, unit)),
        "invalid": isinstance(pod, InvalidPod),
        "verdict": verdict,
        "copy": "" if isinstance(pod, InvalidPod) else cures.of_size(pod, largest),
        "reported": as_text(wait.reported, MOST_REASON),
    }
    return Row(orjson.dumps(data))


def own_reason(wait: Waiting, largest: Largest | None) -> str:
    """The reason that keeps a pod from every GPU, without what its scheduler has reported: its own fault, or that no GPU is as large."""
    return reason_of(replace(wait, reported=""), largest)[:MOST_REASON]


def node_page(cluster: Cluster, name: str) -> Mapping[str, Any] | None:
    """All of one node, as `docs/reference/ledger-v1.schema.json` has it; None if there is none of that name."""
    node = cluster.ledger.node(name)
    return None if node is None else node_json(cluster.ledger, node, cluster.complete)

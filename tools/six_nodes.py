# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A made-up cluster for pictures: six nodes with eight GPUs each; three pods wait. On the last three nodes one GPU has failed, one is
cordoned, and one has memory of a pod that is gone; the first two are the cluster of a picture without trouble. Nodes and pods
are those of the Kubernetes API, so that the product's own programs read them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.placement.explain import exact
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.fakes.runtime.pods import gpu

Json = dict[str, Any]

#: Letter to namespace, name, GiB (None: the whole GPU) and age in hours.
KINDS: Final[dict[str, tuple[str, str, int | None, int]]] = {
    "L": ("serving", "llama-8b", 24, 500),
    "E": ("serving", "embed", 6, 500),
    "N": ("notebooks", "notebook", 10, 27),
    "J": ("notebooks", "jupyter", 40, 27),
    "T": ("research", "train", 40, 6),
    "S": ("research", "score", 8, 30),
    "D": ("vision", "detect", 12, 170),
    "O": ("vision", "ocr", 4, 170),
    "W": ("research", "bench", None, 3),
}
A100: Final = ("NVIDIA A100-SXM4-80GB", 80)
L40S: Final = ("NVIDIA L40S", 44)
#: Node to its model and the pods of each GPU; "-" for none.
NODES: Final[dict[str, tuple[tuple[str, int], str]]] = {
    "gpu1": (A100, "LLL LLLE TT TDDD LTD LLLO NNNNNN LLEDO"),
    "gpu2": (A100, "LLLE LLL TLD TNNDE DDDLO JL EEELL LLEDE"),
    "gpu3": (L40S, "DDD LDO NNNN EEEEE LE DD OOL NL"),
    "gpu4": (A100, "TT LLLO DDDDN LTE W NNNLN S LLD"),
    "gpu5": (A100, "TT TT W LLES TDE LLN NNNEL -"),
    "gpu6": (L40S, "DDDO LNE NNE LDE EEEN DOD N OL"),
}
FAILED: Final = ("gpu4", 6, "XID 79")
CORDONED: Final = ("gpu5", 7)
#: Node, GPU, pod and GiB.
ORPHANED: Final = ("gpu6", 6, "research/train-gone", 20)
#: Namespace, name, GiB, minutes: the pod that `explain` explains is the first. No usable GPU has half of what
#: it asks for, so that the end of a pod helps, and no smaller request.
WAITING: Final = (("notebooks", "notebook-large", 30, 42), ("research", "sweep-large", 90, 120), ("vision", "video-index", 66, 3))


def _created(one: Json, now: datetime, age: timedelta) -> Json:
    one["metadata"]["creationTimestamp"] = (now - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    if one["metadata"].get("namespace"):
        one["metadata"]["uid"] = str(uuid5(NAMESPACE_OID, one["metadata"]["name"]))
    return one


def _gpus(name: str, model: str, units: int) -> tuple[Gpu, ...]:
    made = [gpu(index, units, uuid=f"GPU-{name}-{index}", model=model) for index in range(8)]
    bad, index, health = FAILED
    if name == bad:
        made[index] = replace(made[index], health=health)
    if name == CORDONED[0]:
        made[CORDONED[1]] = replace(made[CORDONED[1]], cordoned=True)
    return tuple(made)


def six_nodes(first: int = 6) -> tuple[list[Json], list[Json]]:
    """Nodes and pods. first: how many of the nodes, from the beginning."""
    now = datetime.now(timezone.utc)
    nodes, pods, count = [], [], Counter[str]()
    for at, (name, ((model, units), places)) in enumerate(list(NODES.items())[:first], 1):
        inventory = Inventory(GIB, _gpus(name, model, units), strategy="cdi")
        nodes.append(_created(node(name, f"10.0.0.{at}", gpus=inventory), now, timedelta(days=40)))
        for index, kinds in enumerate(places.split()):
            for kind in kinds.replace("-", ""):
                namespace, word, mem, hours = KINDS[kind]
                count[word] += 1
                said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(index): mem or units}})}
                make = partial(pod, f"{word}-{count[word]}", name, annotations=said, namespace=namespace)
                made = make(mem=mem) if mem else make(count=1)
                made["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": word, "controller": True}]
                pods.append(_created(made, now, timedelta(hours=hours)))
    name, index, gone, units = ORPHANED
    left = {f"GPU-{name}-{index}": {"uid": "uid-gone", "pod": gone, "units": units, "why": "orphaned"}}
    for one in nodes:
        if one["metadata"]["name"] == name:
            one["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": left})
    for namespace, word, mem, minutes in WAITING:
        pods.append(_created(pod(word, None, mem=mem, namespace=namespace, phase="Pending"), now, timedelta(minutes=minutes)))
    _explain(nodes, pods)
    return nodes, pods


def _explain(nodes: list[Json], pods: list[Json]) -> None:
    """Give each waiting pod the condition that kube-scheduler makes of the extender's answer."""
    cluster = Cluster()
    for one in nodes:
        cluster.set_node(one)
    for one in pods:
        cluster.set_pod(one)
    cluster.settle()
    for one in pods[-len(WAITING) :]:
        waiting = cluster.waiting[one["metadata"]["uid"]].pod
        assert isinstance(waiting, PendingPod)
        reasons = ", ".join(f"1 {node.name}: {exact(cluster.ledger.for_pod(waiting), node)}" for node in cluster.nodes)
        message = f"0/{len(nodes)} nodes are available: {reasons}."
        one["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]

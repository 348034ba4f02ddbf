# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pods and what they have of which GPU, for the tables: the extender's ledger, made once from a cluster's nodes and pods. Pure: JSON
in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare_runtime.core.inventory import Inventory, physical_index
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.dra.pods import ClaimedPods
from gpushare_runtime.kubectl_gpushare.cluster import address_of, read_gpus


@dataclass(frozen=True)
class PodUsage:
    """The allocation of one bound pod: units per GPU index (those of MIG instances at their GPU's), and units whose GPU is not known.

    name: with " (orphaned)" behind it when the pod was deleted and its processes have not ended.
    """

    namespace: str
    name: str
    by_gpu: Mapping[int, int]
    pending: int = 0


@dataclass(frozen=True)
class NodeUsage:
    """One node. unit: the name of what is counted ("GiB"). total: units of all GPUs. GPUs: units by index.
    by_gpu: units allocated by index. pending: units allocated on GPUs that are not known. strategy: how containers get GPUs, ""
    if the node does not publish it."""

    name: str
    address: str
    unit: str
    total: int
    gpus: Mapping[int, int]
    by_gpu: Mapping[int, int]
    pods: Sequence[PodUsage]
    pending: int
    strategy: str = ""

    @property
    def columns(self) -> int:
        """How many columns GPU0 … its GPUs need."""
        return max(self.gpus, default=-1) + 1

    @property
    def allocated(self) -> int:
        return sum(self.by_gpu.values()) + self.pending


@dataclass(frozen=True)
class ClusterUsage:
    """All nodes that have shared GPUs, by name, and messages about what is wrong."""

    nodes: Sequence[NodeUsage]
    warnings: Sequence[str]


def read_usage(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], by_claims: Iterable[Mapping[str, Any]] = ()
) -> ClusterUsage:
    """From v1.Node and v1.Pod objects as JSON. Pods that are finished or not bound have nothing. by_claims: the slices and claims."""
    warnings: list[str] = []
    ledger, read_pod, claims = Ledger(), PodReader(warnings.append), ClaimedPods(warnings.append)
    for raw in by_claims:
        _ = claims.set_slice(raw) if raw["kind"] == "ResourceSlice" else claims.set_claim(raw)
    found: dict[str, tuple[str, int]] = {}
    for raw in nodes:
        record, total = read_gpus(raw, warnings.append, claims)
        if total > 0:
            ledger.set_node(record)
            found[record.name] = address_of(raw), total
    for raw in pods:
        if (raw.get("spec") or {}).get("nodeName") in found:
            asked = claims.pod(raw)
            pod = read_pod(asked) if not isinstance(asked, str) else None
            if isinstance(pod, AllocatedPod):
                ledger.apply(pod)
    usages = [_usage(ledger.nodes[name], *found[name]) for name in sorted(found)]
    warnings += [
        f"node {name}: {problem}"
        for name in sorted(found)
        for problem in (*ledger.nodes[name].problems(), *ledger.nodes[name].pods_without_gpu())
    ]
    if len({node.unit for node in usages}) > 1:
        each = ", ".join(f"{node.name}: {node.unit}" for node in usages)
        warnings.append(f"the nodes count in different units ({each}): the cluster's totals add unlike numbers")
    return ClusterUsage(usages, warnings)


def _usage(node: NodeLedger, address: str, total: int) -> NodeUsage:
    inventory = node.inventory or Inventory(GIB, ())
    gpus = _physical({gpu.index: gpu.units for gpu in inventory.gpus})
    pods = [_pod(node, pod, max(gpus.values(), default=0)) for pod in node.pods]
    bound = {pod.uid for pod in node.pods}
    orphans = {entry.uid: entry.pod for entry in node.record.held.entries if entry.uid not in bound}
    for uid, pod in orphans.items():
        namespace, _, name = pod.partition("/")
        pods.append(PodUsage(namespace, f"{name} (orphaned)", _physical(node.units_of(uid) or {})))
    shown = tuple(pod for pod in pods if pod.by_gpu or pod.pending)
    used = _physical(node.usage().used)
    by_gpu = {index: used.get(index, 0) for index in gpus}
    pending = sum(pod.pending for pod in pods)
    return NodeUsage(node.name, address, inventory.unit.name, total, gpus, by_gpu, shown, pending, inventory.strategy)


def _pod(node: NodeLedger, pod: AllocatedPod, largest: int) -> PodUsage:
    """largest: units of the node's largest GPU, as which whole GPUs count that are not known."""
    units = node.units_of(pod.uid)
    if units is None:
        return PodUsage(pod.namespace, pod.name, {}, pod.request.units + pod.request.whole_gpus * largest)
    return PodUsage(pod.namespace, pod.name, _physical(units))


def _physical(units: Mapping[int, int]) -> dict[int, int]:
    """The original's tables have a column for each GPU from 0 on, and none for MIG instances: their units are their GPU's."""
    found: dict[int, int] = {}
    for index, count in units.items():
        found[physical_index(index)] = found.get(physical_index(index), 0) + count
    return found

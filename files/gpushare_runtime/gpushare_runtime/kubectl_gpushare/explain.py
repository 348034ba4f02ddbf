# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare explain`: on which nodes the GPUs have room for a pod, why not on the others, and what would change that. Pure.

Every cure that is named was tried on a copy of the node's ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.explain import amount, exact
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, Cluster
from gpushare_runtime.kubectl_gpushare.layout import ABSENT, BAD, GOOD, Cell, Column, Row, Table

VERSION: Final = 1
NOT_JUDGED: Final = "Only GPUs are judged: not CPU, main memory, taints, selectors or volumes."
_NAMED: Final = 3


@dataclass(frozen=True)
class Verdict:
    """One node. GPUs: those that the pod would get, () where it does not fit; reason: why not; cures: each alone makes it fit."""

    node: str
    gpus: Sequence[int]
    reason: str = ""
    cures: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        return bool(self.gpus)


def explain(cluster: Cluster, pod: PendingPod, placement: Placement | None = None) -> list[Verdict]:
    """Of every node with GPUs: those where it fits first, best first as the policy ranks them."""
    placement = placement or Placement()
    return ranked(cluster, pod, list(verdicts(cluster, pod, placement)), placement)


def verdicts(cluster: Cluster, pod: PendingPod, placement: Placement) -> Iterator[Verdict]:
    """As `explain`, one node after the other, in no order: a few milliseconds each."""
    request = cluster.ledger.for_pod(pod)
    for node in cluster.nodes:
        if node.inventory or node.inventory_error:
            yield _verdict(cluster, node, request, placement)


def ranked(cluster: Cluster, pod: PendingPod, found: Collection[Verdict], placement: Placement) -> list[Verdict]:
    """In the order of `explain`."""
    fit, request = {one.node for one in found if one.fits}, cluster.ledger.for_pod(pod)
    ranks = placement.rank(request, [node for node in cluster.nodes if node.name in fit]) if fit else {}
    return sorted(found, key=lambda one: (not one.fits, -ranks.get(one.node, 0), one.node))


def _verdict(cluster: Cluster, node: NodeLedger, request: Request, placement: Placement) -> Verdict:
    if request.unsupported is not None:
        return Verdict(node.name, (), request.unsupported)
    allocation = placement.choose(request, node)
    if cluster.infos.get(node.name, UNKNOWN_NODE).cordoned:
        return Verdict(
            node.name, (), "the node takes no new pods (kubectl cordon)", (f"kubectl uncordon {node.name}",) if allocation else ()
        )
    if allocation is not None:
        return Verdict(node.name, sorted(allocation.by_gpu))
    return Verdict(node.name, (), exact(request, node), tuple(_cures(node, request)))


def _cures(node: NodeLedger, request: Request) -> Iterator[str]:
    if node.inventory is None:
        return
    smaller = _largest(node, request)
    if smaller:
        each = f" on each of {request.gpus_per_pod} GPUs" if request.gpus_per_pod > 1 else ""
        what = f"{smaller} whole {'GPU' if smaller == 1 else 'GPUs'}" if request.whole_gpus else f"{smaller} units{each}"
        yield f"ask for at most {what}"
    in_the_way = _in_the_way(node, request)
    if in_the_way:
        more = f" and {len(in_the_way) - _NAMED} more" if len(in_the_way) > _NAMED else ""
        yield f"end {', '.join(in_the_way[:_NAMED])}{more}"
    for what, change in (("uncordon", {"cordoned": False}), ("repair", {"health": "ok"})):
        gpus = [gpu.index for gpu in node.inventory.gpus if any(getattr(gpu, name) != value for name, value in change.items())]
        for index in gpus:
            changed = tuple(replace(gpu, **change) if gpu.index == index else gpu for gpu in node.inventory.gpus)
            other = node.simulate()
            other.set_record(replace(node.record, inventory=replace(node.inventory, gpus=changed)))
            if other.candidates(request):
                yield f"{what} GPU {index}"
                break


def _largest(node: NodeLedger, request: Request) -> int:
    """The largest request of this shape that fits: units per GPU, or whole GPUs; 0 if only the size is not the reason."""
    possible = [state for state in node.gpu_states if node.exclusion(request, state) in ("", "room")]
    if request.whole_gpus:
        return sum(state.empty for state in possible)
    frees = sorted((state.free for state in possible if state.core >= request.core), reverse=True)
    return frees[request.gpus_per_pod - 1] if len(frees) >= request.gpus_per_pod else 0


def _in_the_way(node: NodeLedger, request: Request) -> list[str]:
    """The fewest pods found without which it fits, as namespace/name; [] if that would not help."""
    wanted = request.whole_gpus or request.gpus_per_pod
    options: list[tuple[int, int, list[str]]] = []
    for state in node.gpu_states:
        if not node.exclusion(request, state):
            options.append((0, 0, []))
        elif node.exclusion(request, state) == "room" and state.gpu.units >= request.per_gpu:
            uids, freed = _fewest(node, state.gpu.index, request.per_gpu - state.free, bool(request.whole_gpus))
            if uids:
                options.append((len(uids), freed, uids))
    chosen = sorted(options)[:wanted]
    uids_to_end = {uid for _, _, uids in chosen for uid in uids}
    if len(chosen) < wanted or not node.simulate(without=uids_to_end).candidates(request):
        return []
    return sorted(f"{pod.namespace}/{pod.name}" for pod in node.pods if pod.uid in uids_to_end)


def _fewest(node: NodeLedger, index: int, missing: int, everything: bool) -> tuple[list[str], int]:
    """(UIDs of pods of a GPU, largest first, that free what is missing; the units that they free)."""
    on_gpu = []
    for pod in node.pods:
        units = (node.gpus_of(pod) or {}).get(index, 0)
        if units:
            on_gpu.append((units, pod.uid))
    uids: list[str] = []
    freed = 0
    for units, uid in sorted(on_gpu, reverse=True):
        if freed >= missing and not everything:
            break
        uids.append(uid)
        freed += units
    return uids, freed


def table_of(verdicts: Iterable[Verdict]) -> Table:
    """One row per node."""
    columns = (Column("NODE"), Column("FITS"), Column("GPU"), Column("REASON", flexible=True))
    table = Table(columns, legend=[NOT_JUDGED])
    for one in verdicts:
        cures = f"; it fits if you {', or '.join(one.cures)}" if one.cures else ""
        cells = [
            Cell(as_text(one.node, 253)),
            Cell("yes", GOOD) if one.fits else Cell("no", BAD),
            Cell(",".join(map(str, one.gpus)) or ABSENT),
            Cell(as_text(f"{one.reason}{cures}", 4096)),
        ]
        table.rows.append(Row(f"node/{as_text(one.node, 253)}", cells))
    return table


def document(pod: PendingPod, reason: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """As JSON. reason: what kube-scheduler reported, or what is wrong with the pod."""
    nodes = [
        {"name": one.node, "fits": one.fits, "gpus": list(one.gpus), "reason": one.reason, "cures": list(one.cures)} for one in verdicts
    ]
    return {
        "v": VERSION,
        "namespace": pod.namespace,
        "name": pod.name,
        "request": amount(pod.request),
        "reason": reason,
        "fits": any(one.fits for one in verdicts),
        "nodes": nodes,
    }

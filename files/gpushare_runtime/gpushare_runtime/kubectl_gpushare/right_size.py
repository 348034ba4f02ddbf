# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare simulate --as-used`: the requests that would do for what pods use, by workload, and the GPUs for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.kubectl_gpushare import simulate
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, UNKNOWN_POD, Cluster
from gpushare_runtime.kubectl_gpushare.layout import ABSENT, WARN, Cell, Column, Table, TableRow
from gpushare_runtime.kubectl_gpushare.views import Selection, Share, age, closed, gib, owner_of, selected_shares

VERSION: Final = 1
MOST_TRIED: Final = 300_000
"""Pods times nodes: to place all of them takes seconds."""
SHORT_SECONDS: Final = 3600.0
"""Memory that was watched for less says little."""
_NEARLY_ALL: Final = 90
_MOST_NAME: Final = 512
_UNKNOWN: Final = "its use is not known"
_UNUSED: Final = "none of it was seen in use"
_WHOLE: Final = "a whole GPU: it may be there for the compute"
_GREEDY: Final = "uses nearly all that it has: if its framework takes what it gets, set the framework's limit first"
_SHORT: Final = "watched for less than an hour"
_NOTHING: Final = Cell(ABSENT, "", -1.0)


@dataclass(frozen=True)
class Peaks:
    """by_pod: pod UID → the most MiB that it has used on one of its GPUs, of those of which it is known. seconds: pod UID → for how long
    it has been measured. source: a sentence for people."""

    source: str
    by_pod: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Workload:
    """The pods of one owner that ask alike. units: on each of `gpus` GPUs. whole: all of these. used: MiB, the most of any of its pods on
    one GPU. needs: units that would do; None where nothing is known. seconds: for how long its use has been measured. most: units of the
    largest of its GPUs."""

    namespace: str
    name: str
    unit: Unit
    units: int
    gpus: int
    whole: bool
    most: int
    pods: list[Share] = field(default_factory=list)
    unknown: int = 0
    used: int | None = None
    needs: int | None = None
    seconds: float | None = None

    @property
    def asked_mib(self) -> int:
        return self.units * self.unit.mib * self.gpus * len(self.pods)

    @property
    def as_used(self) -> int:
        """Units on each of its GPUs: as requested where nothing is known, and of whole GPUs."""
        return self.units if self.needs is None or self.whole else self.needs

    @property
    def needed_mib(self) -> int:
        return self.as_used * self.unit.mib * self.gpus * len(self.pods)

    def notes(self) -> Iterator[str]:
        if self.used is None:
            yield _UNKNOWN
            return
        if not self.used:
            yield _UNUSED
        if self.whole:
            yield _WHOLE
        elif 100 * self.used >= _NEARLY_ALL * self.units * self.unit.mib:
            yield _GREEDY
        if self.unknown:
            yield f"the use of {self.unknown} of its pods is not known"
        if self.seconds is not None and self.seconds < SHORT_SECONDS:
            yield _SHORT


@dataclass(frozen=True)
class InUse:
    """The GPUs that have a pod. as_requested, as_used: if all pods were placed on an empty cluster. unplaced_as_requested, unplaced: pods
    that find no place then."""

    now: int
    as_requested: int
    as_used: int
    unplaced: int = 0
    unplaced_as_requested: int = 0


def workloads(cluster: Cluster, select: Selection, peaks: Peaks, margin: int) -> list[Workload]:
    """The workloads that would release most first. margin: percent."""
    found: dict[tuple[object, ...], Workload] = {}
    now, nodes = cluster.now(), {node.name: node for node in cluster.nodes}
    for share in selected_shares(cluster, select):
        node, info = nodes[share.node], cluster.pods.get(share.uid, UNKNOWN_POD)
        unit = cluster.unit_of(node)
        if share.pod is None or share.pod.terminating or not share.by_gpu or unit is None:
            continue
        kind, name = owner_of(share, info)
        units, gpus, whole = max(share.by_gpu.values()), len(share.by_gpu), share.whole
        key = share.namespace, kind, name or share.name, unit, units, gpus, whole
        known = found.get(key)
        if known is None:
            label = f"{kind}/{name}" if kind else f"Pod/{share.name}"
            known = found[key] = Workload(share.namespace, label, unit, units, gpus, whole, 0)
        known.pods.append(share)
        known.most = max(known.most, _largest(node, share))
        used = peaks.by_pod.get(share.uid)
        if used is None:
            known.unknown += 1
            continue
        known.used = max(known.used or 0, used)
        lasted = peaks.seconds.get(share.uid)
        if lasted is not None:
            known.seconds = max(known.seconds or 0.0, min(lasted, max(0.0, now - info.created)))
    for workload in found.values():
        if workload.used is not None:
            mib = -(-workload.used * (100 + margin) // 100)
            units = -(-mib // workload.unit.mib)
            workload.needs = max(1, min(units, workload.most or units))
    return sorted(found.values(), key=lambda w: (w.needed_mib - w.asked_mib, w.namespace, w.name, w.units))


def _largest(node: NodeLedger, share: Share) -> int:
    """Units of the largest of its GPUs: nothing needs more."""
    by_index = node.inventory.by_index if node.inventory else {}
    return max((by_index[index].units for index in share.by_gpu or () if index in by_index), default=0)


def table_of(found: Sequence[Workload], select: Selection) -> Table:
    """One row per workload."""
    columns = (
        Column("NAMESPACE"),
        Column("WORKLOAD"),
        Column("PODS", right=True),
        Column("REQUEST", right=True),
        Column("PEAK", right=True),
        Column("NEEDS", right=True),
        Column("SAVES", right=True),
        Column("SEEN", right=True, clock=True),
        Column("NOTE", flexible=True),
    )
    table = Table(columns[1:] if select.namespace else columns)
    for workload in found:
        saves = workload.asked_mib - workload.needed_mib
        cells = [
            Cell(as_text(workload.namespace, _MOST_NAME)),
            Cell(as_text(workload.name, _MOST_NAME)),
            Cell(str(len(workload.pods)), "", len(workload.pods)),
            _amount(workload, workload.units),
            _NOTHING if workload.used is None else Cell(_gib(workload.used), "", workload.used),
            _NOTHING if workload.needs is None else _amount(replace(workload, whole=False), workload.needs),
            Cell(_gib(saves), WARN if saves < 0 else "", saves),
            _NOTHING if workload.seconds is None else age(1.0, 1.0 + workload.seconds),
            Cell("; ".join(workload.notes())),
        ]
        row = f"{workload.namespace}/{workload.name}"
        table.rows.append(TableRow(as_text(row, _MOST_NAME), cells[1:] if select.namespace else cells))
    return table


def _gib(mib: int) -> str:
    return f"{gib(mib).text} GiB"


def _amount(workload: Workload, units: int) -> Cell:
    if workload.whole:
        return Cell(f"{workload.gpus} whole {'GPU' if workload.gpus == 1 else 'GPUs'}", "", units * workload.unit.mib * workload.gpus)
    several = f" on {workload.gpus} GPUs" if workload.gpus > 1 else ""
    return Cell(f"{workload.unit.amount(units * workload.gpus)}{several}", "", units * workload.unit.mib * workload.gpus)


def sentences(found: Sequence[Workload], peaks: Peaks, margin: int, in_use: InUse | None) -> list[str]:
    """The sums, the GPUs, and where the use comes from."""
    asked, needed = sum(w.asked_mib for w in found), sum(w.needed_mib for w in found)
    lines = [
        f"requested: {_gib(asked)}; as used, with a margin of {margin} %: {_gib(needed)}",
        f"PEAK is {peaks.source}; SEEN is for how long",
    ]
    if in_use is not None:
        lines.insert(
            1,
            f"GPUs with pods: {in_use.now} now. If all were placed on an empty cluster, the largest first: {in_use.as_requested} as "
            f"requested{_left(in_use.unplaced_as_requested)}, {in_use.as_used} as used{_left(in_use.unplaced)}",
        )
    return lines


def _left(pods: int) -> str:
    return f" with {pods} {'pod' if pods == 1 else 'pods'} left without a place" if pods else ""


def gpus_in_use(cluster: Cluster, found: Iterable[Workload], policy: str) -> InUse | None:
    """The GPUs that all pods of the cluster need. None where that cannot be said: units differ by node, or there are too many pods.

    policy: by which they are placed. Whole GPUs stay whole, and a pod whose use is not known keeps its request.
    """
    nodes = [node for node in cluster.nodes if node.inventory]
    pods = [(workload, share.pod) for workload in found for share in workload.pods if share.pod]
    if cluster.unit() is None or len(pods) * len(nodes) > MOST_TRIED:
        return None
    now = sum(bool(node.usage().used.get(state.gpu.index)) for node in nodes for state in node.gpu_states)
    as_requested, without = _placed(cluster, nodes, [(workload.units, workload, pod) for workload, pod in pods], policy)
    as_used, unplaced = _placed(cluster, nodes, [(workload.as_used, workload, pod) for workload, pod in pods], policy)
    return InUse(now, as_requested, as_used, unplaced, without)


def _placed(
    cluster: Cluster, nodes: Collection[NodeLedger], pods: Iterable[tuple[int, Workload, AllocatedPod]], policy: str
) -> tuple[int, int]:
    """(GPUs that have a pod, pods without a place), of an empty cluster. pods: with the units that each gets on each of its GPUs."""
    ledger = Ledger()
    for node in nodes:
        ledger.set_inventory(node.name, node.inventory)
    shut = {node.name for node in nodes if closed(node, cluster.infos.get(node.name, UNKNOWN_NODE))}
    ranked = sorted(pods, key=lambda item: (not item[1].whole, -item[1].gpus, -item[0], item[2].namespace, item[2].name))
    asking = [PendingPod(pod.uid, pod.namespace, pod.name, _request(pod.request, units), pod.labels) for units, _, pod in ranked]
    placed = simulate.run(policy, ledger, asking, has_room=lambda _pod, node: node not in shut, reasons=False)
    used = {(outcome.node, index) for outcome in placed for index in outcome.gpus}
    return len(used), sum(not outcome.node for outcome in placed)


def _request(request: Request, units: int) -> Request:
    """The request with so many units on each of its GPUs, as one container."""
    if request.whole_gpus:
        container = ContainerRequest(Kind.APP, 0, "all", whole_gpus=request.whole_gpus)
    else:
        container = ContainerRequest(Kind.APP, 0, "all", units=units * request.gpus_per_pod, core=request.core)
    return replace(request, containers=(container,), context=None)


def document(found: Sequence[Workload], peaks: Peaks, margin: int, in_use: InUse | None) -> dict[str, Any]:
    """As JSON."""
    return {
        "v": VERSION,
        "source": peaks.source,
        "margin_percent": margin,
        "gpus": None if in_use is None else asdict(in_use),
        "workloads": [
            {
                "namespace": workload.namespace,
                "workload": workload.name,
                "pods": len(workload.pods),
                "unknown": workload.unknown,
                "unit": workload.unit.name,
                "gpus": workload.gpus,
                "whole": workload.whole,
                "units": workload.units,
                "peak_mib": workload.used,
                "needed_units": workload.needs,
                "seconds": None if workload.seconds is None else int(workload.seconds),
                "notes": list(workload.notes()),
            }
            for workload in found
        ],
    }

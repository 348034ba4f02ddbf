# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The views of `kubectl gpushare`: nodes, GPUs, pods, namespaces, models. A cluster and a selection → rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.constraints import Labels
from gpushare_runtime.core.inventory import HEALTHY, Gpu, physical_index
from gpushare_runtime.core.ledger import GpuState, NodeLedger
from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.node_ledger import gone_in_words
from gpushare_runtime.core.node_report import GONE, ORPHANED, HeldEntry
from gpushare_runtime.core.placement.explain import amount, asked
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod
from gpushare_runtime.kubectl_gpushare.cluster import NOTHING_KNOWN, UNKNOWN_NODE, UNKNOWN_POD, Cluster, NodeInfo, PodInfo, Waiting
from gpushare_runtime.kubectl_gpushare.endings import Owned, OwnersPods, ending
from gpushare_runtime.kubectl_gpushare.layout import ABSENT, BAD, GOOD, ODD, WARN, Cell, Column, Table, TableRow

_MOST_NAME: Final = 253
LEGEND: Final = {"B": "bad", "C": "cordoned", "O": "orphaned units", "W": "whole GPU"}
CLOSED: Final = {"N": "node not ready", "S": "node cordoned", "P": "device plugin away"}
RECORD_LOST: Final = "record lost"
"""The state of a pod that the API server has and of which kubelet has no record any more: it runs, and keeps its GPU."""
RECORD_IN_WORDS: Final = "kubelet has no record of it (its checkpoint was lost): it keeps its GPU; delete it when convenient"
GPU_BAD, GPU_CORDONED, GPU_GONE, OVER = "GPU bad", "GPU cordoned", "GPU gone", "over"
NOT_TRIED: Final = "kube-scheduler has reported nothing yet"
_NOTHING: Final = Cell(ABSENT, "", -1.0)
OF_PODS: Final = ("pods", "top", "idle", "namespaces")
"""The views whose objects are pods or their namespaces; a tenant may see those of his own."""


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown. names: of the view's objects, all if empty. namespace: "" for all. labels: which labels will do.

    node, gpu: of pods, only those on this node, and on the GPU of this index or UUID; "" for all.
    """

    names: Collection[str] = ()
    namespace: str = ""
    labels: Callable[[Labels], bool] = lambda labels: True
    node: str = ""
    gpu: str = ""


class Share(NamedTuple):
    """The share that one pod has of one node, as far as it is known. by_gpu: None if unknown. why: what its node reports
    of it beside the API, "" for nothing; RECORD_LOST of a pod that the API has. mark: what is wrong with one of its GPUs, "" if nothing is.
    gone: UUID of each of its GPUs that is not in the node any more."""

    namespace: str
    name: str
    uid: str
    node: str
    by_gpu: Mapping[int, int] | None
    whole: bool
    why: str
    pod: AllocatedPod | None
    mark: str = ""
    gone: Mapping[str, HeldEntry] = MappingProxyType({})


def _text(value: str) -> str:
    return as_text(value, _MOST_NAME)


def _count(number: int, style: str = "") -> Cell:
    return Cell(str(number), style, number)


def selected_nodes(cluster: Cluster, select: Selection) -> list[NodeLedger]:
    """By name; a node that could not be read has none of what pods say about it."""
    nodes = [node for node in cluster.nodes if not select.names or node.name in select.names]
    return [node for node in nodes if select.labels(cluster.infos.get(node.name, UNKNOWN_NODE).labels)]


def shares(node: NodeLedger) -> Iterator[Share]:
    """Of each pod that has something of the node: those of the API, and those that only the node still knows."""
    bound = set()
    bad = {gpu.index for gpu in node.inventory.gpus if gpu.health != HEALTHY} if node.inventory else set()
    cordoned = {gpu.index for gpu in node.inventory.gpus if gpu.cordoned} - bad if node.inventory else set()

    def mark(units: Mapping[int, int] | None) -> str:
        on = units.keys() if units else set[int]()
        return GPU_BAD if bad & on else GPU_CORDONED if cordoned & on else ""

    reported = [entry for entry in node.record.held.entries if entry.why != GONE]
    orphaned = {entry.uid for entry in orphans(node)}
    whys = {entry.uid: RECORD_LOST if entry.why == ORPHANED and entry.uid not in orphaned else entry.why for entry in reported}
    for pod in node.pods:
        bound.add(pod.uid)
        units = node.units_of(pod.uid)
        if units is None and node.inventory is None and pod.allocation is not None:
            units = pod.allocation.by_gpu
        gone = node.gone.get(pod.uid, {})
        if not units and not pod.mirror and not gone:
            # Its GPU is not known, and its node reports none.
            units = None
        if units or units is None or gone:
            wrong, why = GPU_GONE if gone else mark(units), whys.get(pod.uid, "")
            if why == RECORD_LOST and pod.terminating:
                why = ""
            yield Share(pod.namespace, pod.name, pod.uid, node.name, units, pod.whole, why, pod, wrong, gone)
    for uid, pods in {entry.uid: entry.pod for entry in reported if entry.uid not in bound}.items():
        namespace, _, name = pods.partition("/")
        whole = any(held for _, held in node.record.held.by_uid[uid].values())
        units = node.units_of(uid) or {}
        yield Share(namespace, name, uid, node.name, units, whole, whys[uid], None, mark(units))


def orphans(node: NodeLedger) -> list[HeldEntry]:
    """The units of processes whose pod the API server does not have. The node reports those of a pod whose record kubelet has lost, too."""
    found = [entry for entry in node.record.held.entries if entry.why == ORPHANED]
    known = _known(node) if found else frozenset()
    return [entry for entry in found if entry.uid not in known and entry.pod not in known]


def lost_records(node: NodeLedger) -> dict[str, AllocatedPod]:
    """By UID, the pods that the API server has and whose ids kubelet could give to others: it has lost its record of them. One that is
    being deleted is none of them: kubelet has ended it."""
    reported = {name for entry in node.record.held.entries if entry.why == ORPHANED for name in (entry.uid, entry.pod)}
    pods = [pod for pod in node.pods if not pod.terminating] if reported else []
    return {pod.uid: pod for pod in pods if pod.uid in reported or (pod.mirror and f"{pod.namespace}/{pod.name}" in reported)}


def _known(node: NodeLedger) -> frozenset[str]:
    """UIDs of the node's pods, and the names of its static ones, which have another UID on the node than in the API."""
    return frozenset(name for pod in node.pods for name in (pod.uid, *([f"{pod.namespace}/{pod.name}"] if pod.mirror else [])))


def gone_gpus(node: NodeLedger) -> dict[str, dict[str, HeldEntry]]:
    """UUID of each GPU that pods have and their node has no more → namespace/name of each of these pods, and what it had of it."""
    found: dict[str, dict[str, HeldEntry]] = {}
    for pod in node.pods if node.gone else ():
        for uuid, entry in node.gone.get(pod.uid, {}).items():
            found.setdefault(uuid, {})[f"{pod.namespace}/{pod.name}"] = entry
    return dict(sorted(found.items()))


class GpuView(NamedTuple):
    """One GPU, and what may be said of it. allocated: units that pods are known to have; marks: as in LEGEND."""

    state: GpuState
    gpu: Gpu
    marks: str
    allocated: int
    pods: int
    whole: bool
    orphaned: int
    held_back: bool

    @property
    def free(self) -> int | None:
        """Units for new pods; None where no new pod may be placed."""
        return self.state.free if self.gpu.usable else None

    @property
    def style(self) -> str:
        if self.gpu.health != HEALTHY:
            return BAD
        if self.gpu.cordoned:
            return WARN
        return ODD if self.orphaned else "" if self.allocated else GOOD

    def states(self) -> str:
        """All that is to be said, "ok" if nothing."""
        found = [f"bad: {self.gpu.health}"] if self.gpu.health != HEALTHY else []
        found += ["cordoned"] if self.gpu.cordoned else []
        found += [f"{self.orphaned} orphaned"] if self.orphaned else []
        found += ["whole"] if self.whole else []
        found += ["held back after a rejection"] if self.held_back else []
        return ", ".join(found) or "ok"


def closed(node: NodeLedger, info: NodeInfo) -> str:
    """Why the node takes no new pods, as a key of CLOSED; "" where it does. No pod can get its free units."""
    if not info.ready:
        return "N"
    if info.cordoned:
        return "S"
    return "P" if info.offered == 0 and node.inventory and any(gpu.usable and gpu.units for gpu in node.inventory.gpus) else ""


def gpus_of(node: NodeLedger, *, with_pods: bool = True) -> list[GpuView]:
    """By index. with_pods: whether pods are counted, which takes longer than all the rest."""
    sums = node.usage()
    orphaned: dict[str, int] = {}
    for entry in orphans(node):
        orphaned[entry.gpu] = orphaned.get(entry.gpu, 0) + entry.units
    rejected = {rejection.gpu for rejection in node.rejections}
    counts: dict[int, int] = {}
    for share in shares(node) if with_pods else ():
        for index in share.by_gpu or ():
            counts[index] = counts.get(index, 0) + 1
    views = []
    for state in node.gpu_states:
        gpu = state.gpu
        index, uuid = gpu.index, gpu.uuid
        of_gone, whole = orphaned.get(uuid, 0), bool(sums.whole.get(index))
        marks = "B" * (gpu.health != HEALTHY) + "C" * gpu.cordoned + "O" * bool(of_gone) + "W" * whole
        views.append(GpuView(state, gpu, marks, sums.used.get(index, 0), counts.get(index, 0), whole, of_gone, uuid in rejected))
    return views


def _unit(node: NodeLedger) -> str:
    return node.inventory.unit.name if node.inventory else ABSENT


def gib(mib: float) -> Cell:
    text = f"{mib / 1024:.2f}".rstrip("0").rstrip(".")
    return Cell(text, "", mib)


def _used(mib: int | None, node: NodeLedger | None = None) -> Cell:
    """In units of the node, as what is allocated; without a node in GiB."""
    if mib is None:
        return _NOTHING
    size = node.inventory.unit.mib if node is not None and node.inventory else 1024
    return Cell(f"{mib / size:.2f}".rstrip("0").rstrip("."), "", mib)


def nodes_view(cluster: Cluster, select: Selection) -> Table:
    """One row per node, with one cell per GPU."""
    nodes = selected_nodes(cluster, select)
    units = {_unit(node) for node in nodes if node.inventory}
    known = bool(cluster.used.by_gpu)
    columns = (
        Column("NAME"),
        Column("GPUS", right=True),
        Column("USED/ALLOC/TOTAL" if known else "ALLOC/TOTAL", right=True),
        Column("LARGEST", right=True),
        Column("UNIT", wide=len(units) < 2),
        Column("ISOLATION"),
        Column("FREE", right=True, wide=True),
        Column("EMPTY", right=True, wide=True),
        Column("ADDRESS", wide=True),
        Column("MODEL", wide=True),
        Column("STRATEGY", wide=True),
        Column("STATE", wide=True),
    )
    views = {node.name: gpus_of(node, with_pods=False) for node in nodes}
    # One cell for each physical GPU: those of MIG instances would be a column for every place that an instance can have.
    cells_of = {name: _by_physical(view) for name, view in views.items()}
    most = max((index + 1 for found in cells_of.values() for index in found), default=0)
    table = Table(columns, grid=[f"GPU{index}" for index in range(most)])
    seen: set[str] = set()
    for node in nodes:
        view = views[node.name]
        info = cluster.infos.get(node.name, UNKNOWN_NODE)
        shut = closed(node, info)
        seen.update("".join([gpu.marks for gpu in view]) + shut)
        allocated, total = sum(gpu.allocated for gpu in view), sum(gpu.gpu.units for gpu in view)
        usable = sum(gpu.gpu.usable for gpu in view)
        models = ",".join(sorted({gpu.gpu.model for gpu in view})) or ABSENT
        used = [cluster.used.by_gpu[gpu.gpu.uuid] for gpu in view if gpu.gpu.uuid in cluster.used.by_gpu]
        of_used = f"{_used(sum(used) if used else None, node).text}/" if known else ""
        cells = [
            Cell(_text(node.name), BAD if node.inventory is None else ""),
            Cell(f"{usable}/{len(view)}{' ' if shut else ''}{shut}", WARN if usable < len(view) or shut else "", usable),
            Cell(f"{of_used}{allocated}/{total}", "", allocated),
            _count(node.largest_free()) if usable and not shut else _NOTHING,
            Cell(_unit(node)),
            Cell((node.inventory.isolation if node.inventory else "") or ABSENT),
            _count(node.free) if usable and not shut else _NOTHING,
            _count(node.empty_gpus()),
            Cell(info.address),
            Cell(_text(models)),
            Cell((node.inventory.strategy if node.inventory else "") or ABSENT),
            Cell(_node_state(node, info, view)),
        ]
        gpus = [cells_of[node.name].get(index) for index in range(most)]
        shares = [None if gpu is None else gpu.allocated / (gpu.gpu.units or 1) for gpu in gpus]
        table.rows.append(
            TableRow(f"node/{_text(node.name)}", cells, [_grid_cell(gpu) for gpu in gpus], shares, [_glyph(gpu) for gpu in gpus])
        )
    table.marks = "  ".join(f"{mark} {text}" for mark, text in {**LEGEND, **CLOSED}.items() if mark in seen)
    unit = "" if units <= {"GiB"} or len(units) > 1 else f"one unit is {units.copy().pop()}; "
    table.legend = [unit + _total(cluster, nodes, views)]
    nodes_in_words = "".join(f"  {mark} {text}" for mark, text in CLOSED.items() if mark in seen)
    table.glyphs = f"GPUs: · empty  ▁ to █ allocated  x bad  c cordoned{nodes_in_words}"
    return table


def _by_physical(view: list[GpuView]) -> dict[int, GpuView]:
    """NVML index → the GPU, or all MIG instances of it as one: usable as long as one of them is."""
    found: dict[int, GpuView] = {}
    for gpu in view:
        index = physical_index(gpu.gpu.index)
        if (other := found.get(index)) is None:
            found[index] = gpu
            continue
        health = other.gpu.health if gpu.gpu.health != HEALTHY else HEALTHY
        cordoned = gpu.gpu.cordoned and other.gpu.cordoned
        together = replace(other.gpu, units=gpu.gpu.units + other.gpu.units, health=health, cordoned=cordoned)
        marks = "".join(mark for mark in LEGEND if mark in gpu.marks + other.marks)
        found[index] = gpu._replace(
            gpu=together, marks=marks, allocated=gpu.allocated + other.allocated, orphaned=gpu.orphaned + other.orphaned
        )
    return found


def _glyph(gpu: GpuView | None) -> str:
    return " " if gpu is None else "x" if "B" in gpu.marks else "c" if "C" in gpu.marks else ""


def _grid_cell(gpu: GpuView | None) -> Cell:
    if gpu is None:
        return Cell(ABSENT)
    return Cell(f"{gpu.allocated}/{gpu.gpu.units}{' ' if gpu.marks else ''}{gpu.marks}", gpu.style)


def _node_state(node: NodeLedger, info: NodeInfo, gpus: list[GpuView]) -> str:
    if node.inventory is None:
        return as_text(node.inventory_error) or "no GPUs are known"
    bad, cordoned = sum(gpu.gpu.health != HEALTHY for gpu in gpus), sum(gpu.gpu.cordoned for gpu in gpus)
    orphaned = sum(gpu.orphaned for gpu in gpus)
    shut = closed(node, info)
    found = [CLOSED[shut]] if shut else []
    found += [f"{bad} bad"] if bad else []
    found += [f"{cordoned} cordoned"] if cordoned else []
    found += [f"{orphaned} orphaned"] if orphaned else []
    return ", ".join(found) or "ok"


def _total(cluster: Cluster, nodes: list[NodeLedger], views: Mapping[str, list[GpuView]]) -> str:
    mib = {node.name: node.inventory.unit.mib for node in nodes if node.inventory}
    total = sum(node.inventory.units * mib[node.name] for node in nodes if node.inventory)
    allocated = sum(gpu.allocated * mib[name] for name, view in views.items() for gpu in view)
    open_to_pods = [node for node in nodes if not closed(node, cluster.infos.get(node.name, UNKNOWN_NODE))]
    free = sum(node.free * mib.get(node.name, 0) for node in open_to_pods)
    share = f" ({100 * allocated // total} %)" if total else ""
    pending = len(cluster.waiting)
    return (
        f"{gib(allocated).text} of {gib(total).text} GiB allocated{share}, {gib(free).text} GiB free on usable GPUs, "
        f"{pending} {'pod' if pending == 1 else 'pods'} pending"
    )


def gpus_view(cluster: Cluster, select: Selection) -> Table:
    """One row per GPU."""
    nodes = selected_nodes(cluster, select)
    columns = (
        Column("NODE"),
        Column("GPU", right=True),
        Column("MODEL"),
        Column("ALLOCATED", right=True),
        Column("TOTAL", right=True),
        Column("FREE", right=True),
        Column("UNIT", wide={_unit(node) for node in nodes if node.inventory} == {"GiB"}),
        Column("PODS", right=True),
        Column("USED", right=True, wide=not cluster.used.by_gpu),
        Column("SM", right=True, wide=not cluster.used.busy_gpus),
        Column("MIB", right=True, wide=True),
        Column("NUMA", right=True, wide=True),
        Column("LINKS", wide=True),
        Column("MINOR", right=True, wide=True),
        Column("PCI", wide=True),
        Column("UUID", wide=True),
        Column("STATE", flexible=True),
    )
    table = Table(columns)
    for node in nodes:
        shut = closed(node, cluster.infos.get(node.name, UNKNOWN_NODE))
        for view in gpus_of(node):
            gpu = view.gpu
            states = view.states() if not shut else CLOSED[shut] + ("" if view.states() == "ok" else f", {view.states()}")
            cells = [
                Cell(_text(node.name)),
                _count(gpu.index),
                Cell(_text(gpu.model) or ABSENT),
                _count(view.allocated),
                _count(gpu.units),
                _NOTHING if view.free is None or shut else _count(view.free),
                Cell(_unit(node)),
                _count(view.pods),
                _used(cluster.used.by_gpu.get(gpu.uuid), node),
                _percent(cluster.used.busy_gpus.get(gpu.uuid)),
                _count(gpu.mib),
                _NOTHING if gpu.numa is None else _count(gpu.numa),
                Cell(node.inventory.links.best_of(gpu.index) or ABSENT) if node.inventory and node.inventory.links else _NOTHING,
                _count(gpu.minor),
                Cell(_text(gpu.pci) or ABSENT),
                Cell(_text(gpu.uuid)),
                Cell(as_text(states), view.style or (WARN if shut else "")),
            ]
            table.rows.append(TableRow(f"gpu/{_text(node.name)}/{gpu.index}", cells))
        for uuid, had in gone_gpus(node).items():
            cells = [
                Cell(_text(node.name)),
                *[_NOTHING] * 2,
                _count(sum(entry.units for entry in had.values())),
                *[_NOTHING] * 2,
                Cell(_unit(node)),
                _count(len(had)),
                *[_NOTHING] * 7,
                Cell(_text(uuid)),
                Cell(f"gone: not in this node any more; UUID {_text(uuid)}", BAD),
            ]
            table.rows.append(TableRow(f"gpu/{_text(node.name)}/{_text(uuid)}", cells))
    return table


def selected_shares(cluster: Cluster, select: Selection) -> Iterator[Share]:
    """By namespace and name."""
    yield from sorted(_shares(cluster, select), key=lambda share: (share.namespace, share.name, share.uid))


def _shares(cluster: Cluster, select: Selection) -> Iterator[Share]:
    for node in cluster.nodes:
        if select.node and node.name != select.node:
            continue
        indexes = {gpu.index for gpu in node.inventory.gpus if select.gpu in (str(gpu.index), gpu.uuid)} if node.inventory else set()
        for share in shares(node):
            if _is_selected(share, select) and (not select.gpu or indexes & set(share.by_gpu or ()) or select.gpu in share.gone):
                yield share


def _is_selected(share: Share, select: Selection) -> bool:
    if (select.namespace and share.namespace != select.namespace) or (select.names and share.name not in select.names):
        return False
    return select.labels(share.pod.labels if share.pod else ())


def selected_waiting(cluster: Cluster, select: Selection) -> list[Waiting]:
    """By namespace and name."""
    if select.node or select.gpu:
        return []
    found = [
        wait
        for wait in cluster.waiting.values()
        if (not select.namespace or wait.pod.namespace == select.namespace)
        and (not select.names or wait.pod.name in select.names)
        and select.labels(wait.labels)
    ]
    return sorted(found, key=lambda wait: (wait.pod.namespace, wait.pod.name, wait.pod.uid))


def pods_view(cluster: Cluster, select: Selection) -> Table:
    """One row per pod that has something of a GPU or waits for it; the waiting ones last."""
    columns = (
        Column("NAMESPACE"),
        Column("NAME"),
        Column("NODE"),
        Column("GPU"),
        Column("ALLOCATED", right=True),
        Column("USED", right=True, wide=not cluster.used.by_pod),
        Column("SM", right=True, wide=not cluster.used.busy_pods),
        Column("AGE", right=True, clock=True),
        Column("OWNER", wide=True),
        Column("PRIORITY", right=True, wide=True),
        Column("REQUEST", wide=True),
        Column("UID", wide=True),
        Column("STATE"),
        Column("REASON", flexible=True),
    )
    table = _table_of_pods(columns, select)
    on = {node.name: (Cell(_text(node.name)), node) for node in cluster.nodes}
    now = cluster.now()
    for share in selected_shares(cluster, select):
        table.rows.append(_row_of_pod(share, _share_cells(cluster, share, *on[share.node], now), select))
    reasons, largest, unit = cluster.reasons(), cluster.largest(), cluster.unit()
    for wait in selected_waiting(cluster, select):
        pod, info = wait.pod, cluster.pods.get(wait.pod.uid, UNKNOWN_POD)
        cells = [
            Cell(_text(pod.namespace)),
            Cell(_text(pod.name)),
            *[_NOTHING] * 5,
            age(info.created, now),
            Cell(_text(info.owner) or ABSENT),
            _NOTHING if isinstance(pod, InvalidPod) else _count(pod.priority),
            _NOTHING if isinstance(pod, InvalidPod) else Cell(asked(pod.request, largest, unit)),
            Cell(_text(pod.uid)),
            Cell("invalid", BAD) if isinstance(pod, InvalidPod) else Cell("pending", WARN),
            Cell(reasons[pod.uid] or NOT_TRIED),
        ]
        table.rows.append(_row_of_pod(pod, cells, select))
    return table


def _table_of_pods(columns: tuple[Column, ...], select: Selection) -> Table:
    """columns: the namespace first, which goes without saying where only one was asked for."""
    return Table(columns[1:] if select.namespace else columns)


def _row_of_pod(pod: Share | PendingPod | InvalidPod, cells: list[Cell], select: Selection) -> TableRow:
    """cells: for all columns of `_table_of_pods`."""
    if select.namespace:
        return TableRow(f"pod/{_text(pod.name)}", cells[1:])
    return TableRow(f"pod/{_text(pod.namespace)}/{_text(pod.name)}", cells)


def age(created: float, now: float) -> Cell:
    """In the largest unit of which there are two at least, as kubectl has it for most ages."""
    if not created:
        return _NOTHING
    seconds = max(0, int(now - created))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return Cell(f"{seconds // size}{unit}", "", seconds)
    return Cell(f"{seconds}s", "", seconds)


def _memory(cluster: Cluster, units: int, node: NodeLedger) -> Cell:
    """With its unit; the key is MiB."""
    unit = cluster.unit_of(node)
    return Cell(unit.amount(units) if unit else f"{units} units", "", units * (unit.mib if unit else 1))


def _share_cells(cluster: Cluster, share: Share, name: Cell, node: NodeLedger, now: float) -> list[Cell]:
    """name: of the node."""
    gpus = sorted(share.by_gpu or ())
    info = cluster.pods.get(share.uid, UNKNOWN_POD)
    state, style = share_state(share, is_over(cluster, share, node))
    reason = ""
    if share.by_gpu is None:
        reason = "its GPU is not known"
    elif share.gone and node.inventory:
        reason = f"it has {gone_in_words(share.gone, node.inventory.unit)}: delete it"
    elif share.why == RECORD_LOST:
        reason = RECORD_IN_WORDS
    elif share.pod is None:
        reason = "the pod object is gone, its processes are not"
    elif share.why == "unmanaged":
        reason = "no scheduler gave it this GPU"
    elif share.mark == GPU_BAD and node.inventory:
        reason = next((f"GPU {gpu.index}: {gpu.health}" for gpu in node.inventory.gpus if gpu.index in gpus and gpu.health != HEALTHY), "")
    return [
        Cell(_text(share.namespace)),
        Cell(_text(share.name)),
        name,
        _gpu_cell(share),
        _memory(cluster, sum(share.by_gpu.values()), node) if share.by_gpu else _NOTHING,
        _used_memory(cluster.used.by_pod.get(share.uid)),
        _percent(cluster.used.busy_pods.get(share.uid)),
        age(info.created, now),
        Cell(_text(info.owner) or ABSENT),
        _count(share.pod.priority) if share.pod else _NOTHING,
        Cell(amount(share.pod.request, cluster.unit_of(node))) if share.pod else _NOTHING,
        Cell(_text(share.uid)),
        Cell(state, style),
        Cell(as_text(reason)),
    ]


def _gpu_cell(share: Share) -> Cell:
    return Cell("?", ODD) if share.by_gpu is None else Cell(",".join(map(str, sorted(share.by_gpu))) or ABSENT)


def _percent(value: int | None) -> Cell:
    return _NOTHING if value is None else Cell(f"{value}%", "", value)


def _idle(since: float | None, now: float) -> Cell:
    """For how long."""
    if since is None:
        return _NOTHING
    lasts = age(since, now)
    return Cell(lasts.text, WARN, lasts.key)


def _used_memory(mib: int | None) -> Cell:
    return _NOTHING if mib is None else Cell(f"{gib(mib).text} GiB", "", mib)


def allocated_mib(share: Share, node: NodeLedger) -> int | None:
    """None where it is unknown."""
    return None if share.by_gpu is None or node.inventory is None else sum(share.by_gpu.values()) * node.inventory.unit.mib


def is_over(cluster: Cluster, share: Share, node: NodeLedger) -> bool:
    """Whether the pod uses more than it was allocated, as far as Prometheus knows."""
    used = cluster.used.by_pod.get(share.uid)
    due = None if used is None else allocated_mib(share, node)
    return used is not None and due is not None and used > due


def share_state(share: Share, over: bool = False) -> tuple[str, str]:
    """(state, style): bound, whole, terminating, or why the API does not show it; then what is wrong with its GPU, or that it is over."""
    state, style = _state_of(share)
    marks = [*([share.mark] if share.mark else []), *([OVER] if over else [])]
    return ", ".join([state, *marks]), BAD if {GPU_BAD, GPU_GONE} & {*marks} or over else WARN if marks else style


def _state_of(share: Share) -> tuple[str, str]:
    if share.why:
        return _text(share.why), ODD
    if share.pod and share.pod.terminating:
        return "terminating", WARN
    return ("whole", "") if share.whole else ("bound", "")


def top_view(cluster: Cluster, select: Selection) -> Table:
    """One row per pod that has something of a GPU, by what it uses, most first."""
    columns = (
        Column("NAMESPACE"),
        Column("NAME"),
        Column("NODE"),
        Column("GPU"),
        Column("USED", right=True),
        Column("ALLOCATED", right=True),
        Column("%", right=True),
        Column("SM", right=True),
        Column("IDLE", right=True, clock=True),
        Column("STATE"),
    )
    table, nodes = _table_of_pods(columns, select), {node.name: node for node in cluster.nodes}
    found, now = sorted(selected_shares(cluster, select), key=lambda share: -cluster.used.by_pod.get(share.uid, -1)), cluster.now()
    for share in found:
        node, used = nodes[share.node], cluster.used.by_pod.get(share.uid)
        due = allocated_mib(share, node)
        state, style = share_state(share, is_over(cluster, share, node))
        percent = None if used is None or not due else 100 * used // due
        cells = [
            Cell(_text(share.namespace)),
            Cell(_text(share.name)),
            Cell(_text(share.node)),
            _gpu_cell(share),
            _used_memory(used),
            _memory(cluster, sum(share.by_gpu.values()), node) if share.by_gpu else _NOTHING,
            _NOTHING if percent is None else _count(percent, BAD if percent > 100 else ""),
            _percent(cluster.used.busy_pods.get(share.uid)),
            _idle(cluster.used.idle.get(share.uid), now),
            Cell(state, style),
        ]
        table.rows.append(_row_of_pod(share, cells, select))
    return table


def idle_view(cluster: Cluster, select: Selection) -> Table:
    """One row per pod that keeps none of its GPUs busy, those that have most of them for longest first, with the command that ends it."""
    columns = (
        Column("NAMESPACE"),
        Column("NAME"),
        Column("NODE"),
        Column("GPU"),
        Column("ALLOCATED", right=True),
        Column("USED", right=True),
        Column("IDLE", right=True, clock=True),
        Column("OWNER", wide=True),
        Column("COMMAND", flexible=True),
    )
    table, nodes, now = _table_of_pods(columns, select), {node.name: node for node in cluster.nodes}, cluster.now()
    since = cluster.used.idle
    of_owner: dict[tuple[str, str, str], dict[str, Owned]] = {}
    for share in _shares(cluster, Selection()):
        pod = _owned(share, cluster)
        of_owner.setdefault((pod.namespace, pod.kind, pod.owner), {})[share.uid] = pod
    counted = {owner: OwnersPods(pods.values()) for owner, pods in of_owner.items()}
    waiting = {(wait.pod.namespace, wait.pod.name) for wait in cluster.waiting.values()}

    def rank(share: Share) -> tuple[float, str, str]:
        held = allocated_mib(share, nodes[share.node]) or 0
        return -held * (now - since[share.uid]), share.namespace, share.name

    for share in sorted((share for share in selected_shares(cluster, select) if share.uid in since), key=rank):
        node, pod = nodes[share.node], _owned(share, cluster)
        cells = [
            Cell(_text(share.namespace)),
            Cell(_text(share.name)),
            Cell(_text(share.node)),
            _gpu_cell(share),
            _memory(cluster, sum(share.by_gpu.values()), node) if share.by_gpu else _NOTHING,
            _used_memory(cluster.used.by_pod.get(share.uid)),
            _idle(since[share.uid], now),
            Cell(_text(cluster.pods.get(share.uid, UNKNOWN_POD).owner) or ABSENT),
            Cell(ending(pod, counted[pod.namespace, pod.kind, pod.owner], waiting)),
        ]
        table.rows.append(_row_of_pod(share, cells, select))
    return table


def owner_of(share: Share, info: PodInfo) -> tuple[str, str]:
    """(kind, name), of the Deployment where a ReplicaSet is one's."""
    kind, _, name = info.owner.partition("/")
    code = dict(share.pod.labels).get("pod-template-hash") if share.pod else None
    return ("Deployment", name.removesuffix(f"-{code}")) if kind == "ReplicaSet" and code and name.endswith(f"-{code}") else (kind, name)


def _owned(share: Share, cluster: Cluster) -> Owned:
    info, known = cluster.pods.get(share.uid, UNKNOWN_POD), share.pod is not None and not share.pod.mirror
    kind, name = owner_of(share, info)
    return Owned(share.namespace, share.name, kind, name, share.uid in cluster.used.idle, info.ready, known)


@dataclass
class _Sums:
    pods: int = 0
    pending: int = 0
    mib: float = 0
    wholes: int = 0
    used: int | None = None
    busy: int | None = None
    idle: int = 0


def namespaces_view(cluster: Cluster, select: Selection) -> Table:
    """One row per namespace. names: of namespaces."""
    columns = (
        Column("NAMESPACE"),
        Column("PODS", right=True),
        Column("PENDING", right=True),
        Column("WHOLE", right=True),
        Column("GIB", right=True),
        Column("USED", right=True, wide=True),
        Column("SM", right=True, wide=not cluster.used.busy_pods),
        Column("IDLE", right=True, wide=not cluster.used.busy_pods),
        Column("SHARE", right=True),
    )
    names, found = select.names, dict[str, _Sums]()
    every = Selection((), select.namespace, select.labels)
    mib_of = {node.name: unit.mib for node in cluster.nodes if (unit := cluster.unit_of(node))}
    for share in selected_shares(cluster, every):
        sums = found.setdefault(share.namespace, _Sums())
        sums.pods += 1
        sums.mib += sum((share.by_gpu or {}).values()) * mib_of.get(share.node, 0)
        sums.wholes += len(share.by_gpu or ()) if share.whole else 0
        if share.uid in cluster.used.by_pod:
            sums.used = (sums.used or 0) + cluster.used.by_pod[share.uid]
        if share.uid in cluster.used.busy_pods:
            sums.busy = (sums.busy or 0) + cluster.used.busy_pods[share.uid]
        sums.idle += share.uid in cluster.used.idle
    for wait in selected_waiting(cluster, every):
        found.setdefault(wait.pod.namespace, _Sums()).pending += 1
    total = sum(node.inventory.units * mib_of[node.name] for node in cluster.nodes if node.inventory)
    table = Table(columns)
    for name, sums in sorted(found.items()):
        if names and name not in names:
            continue
        cells = [
            Cell(_text(name)),
            _count(sums.pods),
            _count(sums.pending, WARN if sums.pending else ""),
            _count(sums.wholes),
            gib(sums.mib) if mib_of else _NOTHING,
            _used(sums.used),
            _percent(sums.busy),
            _NOTHING if sums.busy is None else _count(sums.idle, WARN if sums.idle else ""),
            Cell(f"{100 * sums.mib / total:.1f}%", "", sums.mib) if total else _NOTHING,
        ]
        table.rows.append(TableRow(f"namespace/{_text(name)}", cells))
    return table


def models_view(cluster: Cluster, select: Selection) -> Table:
    """One row per model of GPU and unit. names: of models."""
    columns = (
        Column("MODEL"),
        Column("NODES", right=True),
        Column("GPUS", right=True),
        Column("USABLE", right=True),
        Column("EMPTY", right=True),
        Column("ALLOCATED", right=True),
        Column("TOTAL", right=True),
        Column("FREE", right=True),
        Column("LARGEST", right=True),
        Column("UNIT"),
    )
    groups: dict[tuple[str, str], list[tuple[str, GpuView]]] = {}
    for node in selected_nodes(cluster, Selection((), "", select.labels)):
        for gpu in gpus_of(node):
            if not select.names or gpu.gpu.model in select.names:
                groups.setdefault((gpu.gpu.model, _unit(node)), []).append((node.name, gpu))
    shut = {node.name for node in cluster.nodes if closed(node, cluster.infos.get(node.name, UNKNOWN_NODE))}
    table = Table(columns)
    for (model, unit), gpus in sorted(groups.items()):
        views = [gpu for _, gpu in gpus]
        usable = [gpu for name, gpu in gpus if gpu.gpu.usable and name not in shut]
        cells = [
            Cell(_text(model) or ABSENT),
            _count(len({name for name, _ in gpus})),
            _count(len(views)),
            _count(len(usable), WARN if len(usable) < len(views) else ""),
            _count(sum(gpu.state.empty for gpu in usable)),
            _count(sum(gpu.allocated for gpu in views)),
            _count(sum(gpu.gpu.units for gpu in views)),
            _count(sum(gpu.state.free for gpu in usable)),
            _count(max((gpu.state.free for gpu in usable), default=0)),
            Cell(unit),
        ]
        table.rows.append(TableRow(f"model/{_text(model) or ABSENT}", cells))
    return table


VIEWS: Final[Mapping[str, Callable[[Cluster, Selection], Table]]] = {
    "nodes": nodes_view,
    "gpus": gpus_view,
    "pods": pods_view,
    "top": top_view,
    "idle": idle_view,
    "namespaces": namespaces_view,
    "models": models_view,
}


def names_of(cluster: Cluster, view: str, select: Selection) -> set[str]:
    """The names that a view can show, whatever names were asked for."""
    every = Selection((), select.namespace, select.labels)
    if view in OF_PODS:
        found = {(share.namespace, share.name) for share in _shares(cluster, every)}
        found |= {(wait.pod.namespace, wait.pod.name) for wait in selected_waiting(cluster, every)}
        return {namespace if view == "namespaces" else name for namespace, name in found}
    nodes = selected_nodes(cluster, every)
    if view == "models":
        return {state.gpu.model for node in nodes for state in node.gpu_states}
    return {node.name for node in nodes}


def shows_any(cluster: Cluster, view: str, select: Selection) -> bool:
    """Whether there is anything to show, whatever names were asked for; it reads no more than that takes."""
    every = Selection((), select.namespace, select.labels)
    if view in OF_PODS:
        return any(True for _ in _shares(cluster, every)) or bool(selected_waiting(cluster, every))
    return bool(names_of(cluster, view, every))


def document(cluster: Cluster, view: str, select: Selection) -> dict[str, Any]:
    """`ledger_json` of what a view shows: of views of pods the chosen pods, with their nodes; of others the chosen nodes, whole."""
    waiting = [wait.pod for wait in cluster.waiting.values()]
    if view not in OF_PODS:
        names = {node.name for node in selected_nodes(cluster, Selection(() if view == "models" else select.names, "", select.labels))}
    else:
        by_namespace = view == "namespaces"
        chosen = replace(select, names=()) if by_namespace else select
        found = [s for s in selected_shares(cluster, chosen) if not by_namespace or not select.names or s.namespace in select.names]
        uids, names = {share.uid for share in found}, {share.node for share in found}
        waiting = [wait.pod for wait in selected_waiting(cluster, chosen)]
        waiting = [pod for pod in waiting if not by_namespace or not select.names or pod.namespace in select.names]
    made = ledger_json(cluster.ledger, cluster.warnings, waiting, cluster.reasons(), cluster.complete)
    made["nodes"] = [node for node in made["nodes"] if node["name"] in names]
    if cluster.used != NOTHING_KNOWN:
        for node in made["nodes"]:
            for gpu in node["gpus"]:
                gpu["used_mib"] = cluster.used.by_gpu.get(gpu["uuid"])
                gpu["sm_percent"] = cluster.used.busy_gpus.get(gpu["uuid"])
            for pod in node["pods"]:
                pod["used_mib"] = cluster.used.by_pod.get(pod["uid"])
                pod["sm_percent"] = cluster.used.busy_pods.get(pod["uid"])
                pod["idle_since"] = cluster.used.idle.get(pod["uid"])
    if view in OF_PODS:
        for node in made["nodes"]:
            node["pods"] = [pod for pod in node["pods"] if pod["uid"] in uids]
            node["held"] = [entry for entry in node["held"] if entry["uid"] in uids]
    if view == "models" and select.names:
        made["nodes"] = [node for node in made["nodes"] if _has_model(node["gpus"], select.names)]
    return made


def _has_model(gpus: Iterable[Mapping[str, Any]], names: Collection[str]) -> bool:
    return any(gpu["model"] in names for gpu in gpus)

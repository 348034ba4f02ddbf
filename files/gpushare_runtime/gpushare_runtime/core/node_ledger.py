# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One node's GPUs, who has what of them, and the sums. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.bounds import MOST_HELD, as_text, quote
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.node_report import GONE, NOTHING_HELD, Held, HeldEntry, Rejection, Share
from gpushare_runtime.core.overuse import NO_EVICTIONS, Evictions
from gpushare_runtime.core.pod_affinity import Neighbours, neighbours
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.core.request import Request

FAULT: Final = "an internal fault while this node was computed; the log of gpushare-extender says which"
T = TypeVar("T")
_REMEMBERED: Final = 64
"""Answers of one node, some for each kind of request."""
_FOR_GOOD: Final = ("unusable", "isolation", "incompatible")
"""Reasons against a GPU that stay when every pod has gone."""
_NAMED: Final = 3
_BY_REPORT: Final = "its node does not say that it holds any, so it does not count"


class GpuClass(NamedTuple):
    """The facts by which a request can tell GPUs apart. models: every name that it goes by."""

    models: tuple[str, ...]
    units: int


class Likeness(NamedTuple):
    """The memory and GPUs that are free on a node whose usable GPUs are all of one class. frees: units, the least first; empty: GPUs that
    no pod has any of."""

    only_class: GpuClass
    frees: tuple[int, ...]
    empty: int


class GpuState(NamedTuple):
    """One GPU and what is left of it. free: units, never negative. empty: no pod has any of it. core: per cent free.

    clients: containers that it still takes; None for no limit.
    """

    gpu: Gpu
    free: int
    empty: bool
    core: int = 0
    clients: int | None = None

    def after(self, units: int, core: int, whole: bool, clients: int = 1) -> GpuState:
        """The GPU after one pod more."""
        free, core = (0, 0) if whole else (max(0, self.free - units), max(0, self.core - core))
        return self._replace(free=free, empty=False, core=core, clients=None if self.clients is None else max(0, self.clients - clients))


@dataclass(frozen=True)
class NodeRecord:
    """The report of a node about itself, in its metadata.

    inventory: None with error "" when no device plugin has published any GPUs; model, placement: its labels, "" without.
    evictions: makes no difference to the ledger.
    """

    name: str
    inventory: Inventory | None
    error: str = ""
    held: Held = NOTHING_HELD
    model: str = ""
    placement: str = ""
    evictions: Evictions = field(default=NO_EVICTIONS, compare=False)


@dataclass
class GpuUsage:
    """The allocated units, by GPU index. whole: how many pods have it whole; unknown: pods whose GPU is unknown.

    clients: containers that use it. as_stated: every pod has what its annotations state, and the node reports nothing besides.
    """

    used: dict[int, int] = field(default_factory=dict)
    core: dict[int, int] = field(default_factory=dict)
    clients: dict[int, int] = field(default_factory=dict)
    whole: dict[int, int] = field(default_factory=dict)
    unknown: list[AllocatedPod] = field(default_factory=list)
    as_stated: bool = False

    def add(self, gpus: Mapping[int, int], core: int, whole: bool, clients: int = 1) -> None:
        for index, units in gpus.items():
            self.used[index] = self.used.get(index, 0) + units
            self.clients[index] = self.clients.get(index, 0) + clients
            if core:
                self.core[index] = self.core.get(index, 0) + core
            if whole:
                self.whole[index] = self.whole.get(index, 0) + 1

    def and_one(self, pod: AllocatedPod, gpus: Mapping[int, int]) -> GpuUsage:
        """With one pod more, that has what its annotations state."""
        more = GpuUsage(**{name: copy(value) for name, value in vars(self).items()})
        more.add(gpus, pod.request.core, pod.whole, pod.request.clients)
        return more


@dataclass
class _Facts:
    """All that a node is: every answer follows from this. A copy has every field, also those that come later.

    pods: by UID. unreported: rejections of pods that failed there, until the node reports something itself. ended: those of the report
    that are over. by_report: UIDs of the pods that count by the node's report. with_rules, cpu: sums over the pods; what comes after them
    follows from the record.
    """

    record: NodeRecord
    pods: dict[str, AllocatedPod] = field(default_factory=dict)
    unreported: tuple[Rejection, ...] = ()
    ended: frozenset[Rejection] = frozenset()
    by_report: frozenset[str] = frozenset()
    with_rules: int = 0
    cpu: int = 0
    label_counts: bool = False
    classes: Counter[GpuClass] = field(default_factory=Counter)
    only_class: GpuClass | None = None
    gone: Mapping[str, Mapping[str, HeldEntry]] = field(default_factory=dict)

    def copy(self) -> _Facts:
        # Of the mutable ones only the pods change in place.
        return replace(self, pods=dict(self.pods))

    def put(self, pod: AllocatedPod) -> None:
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        self.with_rules += bool(pod.request.rules.not_with) - bool(before and before.request.rules.not_with)
        self.cpu += pod.request.cpu - (before.request.cpu if before else 0)

    def drop(self, uid: str) -> None:
        gone = self.pods.pop(uid)
        self.with_rules -= bool(gone.request.rules.not_with)
        self.cpu -= gone.request.cpu
        self.by_report -= {uid}


class NodeLedger:
    """Only `Ledger` changes it; placement reads it. record: what the node reports. pods: by UID.

    on_change: called with the name when something is allocated or free that was not before; fault: why something about this node
    could not be computed, "" if all could.
    """

    def __init__(self, name: str, on_change: Callable[[str], None] = lambda name: None) -> None:
        self.name = name
        self._on_change = on_change
        self._facts = _Facts(NodeRecord(name, None))
        self._gpus: tuple[GpuState, ...] | None = None
        self._totals: tuple[int, int, int] | None = None
        self._frees: tuple[int, ...] | None = None
        self._usage: GpuUsage | None = None
        self._over: frozenset[int] = frozenset()
        self._unknown: tuple[str, ...] = ()
        self._rejected: dict[str, list[Rejection]] | None = None
        self.fault = ""
        self.memo: dict[object, object] = {}
        """What is remembered until the node changes: filter and prioritize ask the same of every node again and again."""

    @property
    def record(self) -> NodeRecord:
        return self._facts.record

    @property
    def classes(self) -> Counter[GpuClass]:
        """Units of its usable GPUs by class."""
        return self._facts.classes

    @property
    def only_class(self) -> GpuClass | None:
        """Of its usable GPUs, where they are all alike."""
        return self._facts.only_class

    @property
    def inventory(self) -> Inventory | None:
        return self._facts.record.inventory

    @property
    def inventory_error(self) -> str:
        return self.record.error

    @property
    def pods(self) -> Collection[AllocatedPod]:
        return self._facts.pods.values()

    def pod(self, uid: str) -> AllocatedPod:
        """KeyError when it has nothing here."""
        return self._facts.pods[uid]

    @property
    def gpu_states(self) -> tuple[GpuState, ...]:
        """Every GPU of the inventory by index, with what is left of it; () without an inventory."""
        if self._gpus is None:
            nothing: tuple[GpuState, ...] = ()
            self._gpus = self.guarded(self._compute, nothing)
        return self._gpus

    @property
    def unknown(self) -> Collection[str]:
        """UIDs of the pods that count against every GPU, since theirs are unknown."""
        return self._unknown if self.gpu_states else ()

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """The admissions that the node rejected a moment ago, for which its GPUs take no pod."""
        facts = self._facts
        return tuple(r for r in (*facts.record.held.rejected, *facts.unreported) if r not in facts.ended)

    def reject(self, pod: AllocatedPod) -> None:
        """The pod failed there, because one of its GPUs does not have what it should get. The node's own report is better."""
        by_index = self.inventory.by_index if self.inventory else {}
        if pod.allocation is None or any(rejection.uid == pod.uid for rejection in self.rejections):
            return
        gpus = [by_index[index].uuid for index in pod.allocation.by_gpu if index in by_index]
        more = tuple(Rejection(pod.uid, gpu, pod.request.per_gpu, 0.0, pod.whole) for gpu in gpus)
        self._facts.unreported = (*self._facts.unreported, *more)[-MOST_HELD:]
        self._changed()

    def guarded(self, compute: Callable[[], T], otherwise: T) -> T:
        """`compute()`, something about this node; `otherwise` where that fails: a fault about one node concerns that node only."""
        try:
            return compute()
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace is not None else ""
            self.fault = f"{type(error).__name__}{where}: {quote(str(error))}"
            return otherwise

    @property
    def usable(self) -> Iterator[GpuState]:
        """The GPUs that may take new pods."""
        return (state for state in self.gpu_states if state.gpu.usable)

    @property
    def free(self) -> int:
        """Units free on all usable GPUs together."""
        return self._summary[0]

    def largest_free(self) -> int:
        """Units free on the usable GPU that has most free."""
        return self._summary[1]

    def empty_gpus(self) -> int:
        """Usable GPUs of which no pod has any."""
        return self._summary[2]

    @property
    def free_cpu(self) -> int | None:
        """Thousandths of a CPU that pods with GPUs leave free; None where the node does not say how much it has. Others are not known."""
        offered = self.inventory.cpu if self.inventory else 0
        return max(0, offered - self._facts.cpu) if offered else None

    @property
    def _summary(self) -> tuple[int, int, int]:
        if self._totals is None:
            usable = list(self.usable)
            frees = [state.free for state in usable]
            self._totals = sum(frees), max(frees, default=0), sum(state.empty for state in usable)
        return self._totals

    def remembered(self, key: object, compute: Callable[[], T]) -> T:
        """`compute()`, once per key until the node changes."""
        try:
            return self.memo[key]  # type: ignore[return-value]
        except KeyError:
            value = compute()
            self.remember(key, value)
            return value

    def remember(self, key: object, value: object) -> None:
        """For as long as the node does not change, and no more than so many: there are as many kinds of requests as users like."""
        if len(self.memo) >= _REMEMBERED:
            self.memo.clear()
        self.memo[key] = value

    def remaining_after(self, request: Request) -> int | None:
        """The size that stays free on the fullest GPUs that take the request: units, or empty GPUs. None if it does not fit."""
        # It is asked for every node at every attempt: no call more than needed.
        try:
            return self.memo[request.key]  # type: ignore[return-value]
        except KeyError:
            left = self.guarded(lambda: self._remaining_after(request), None)
            self.remember(request.key, left)
            return left

    def _remaining_after(self, request: Request) -> int | None:
        if request.is_plain and not self._rejected_on and not (self.inventory and self.inventory.clients):
            # Nearly all requests: only free units decide. Where others' rules matter the request has a context, see `Ledger.for_pod`.
            least = min((free for free in self.free_units if free >= request.per_gpu), default=None)
            return None if least is None else least - request.per_gpu
        found = self.candidates(request)
        if not found:
            return None
        if request.whole_gpus:
            return len(found) - request.whole_gpus
        frees = sorted(state.free for state in found)[: request.gpus_per_pod]
        return sum(frees) - request.per_gpu * request.gpus_per_pod

    @property
    def free_units(self) -> tuple[int, ...]:
        """Units free on each usable GPU."""
        if self._frees is None:
            self._frees = tuple(state.free for state in self.usable)
        return self._frees

    @property
    def likeness(self) -> Likeness | None:
        """Nodes that have the same are all the same to requests `by_likeness`; None for a node that is like no other."""
        return self.remembered("likeness", lambda: self.guarded(self._alike, None))

    def _alike(self) -> Likeness | None:
        inventory = self.inventory
        if inventory is None or inventory.clients or inventory.isolation == protocol.ISOLATION_MPS:
            return None
        if self.only_class is None or self._facts.with_rules or self._rejected_on:
            return None
        return Likeness(self.only_class, tuple(sorted(self.free_units)), self.empty_gpus())

    def candidates(self, request: Request) -> tuple[GpuState, ...]:
        """The GPUs of which any `gpus_per_pod` (or any `gpus`, whole) will do; () if they are too few."""
        return self.remembered(("gpus", request.key), lambda: self._candidates(request))

    def _candidates(self, request: Request) -> tuple[GpuState, ...]:
        found = tuple(state for state, why in zip(self.gpu_states, self.exclusions(request), strict=True) if not why)
        return found if len(found) >= request.gpus else ()

    def fits_when_empty(self, request: Request) -> bool:
        """Whether it would fit on the empty node."""
        return self.remembered(("empty", request.key), lambda: self._fits_when_empty(request))

    def _fits_when_empty(self, request: Request) -> bool:
        if self.inventory is None or request.core > self.inventory.core:
            return False
        if self.inventory.clients and request.clients > self.inventory.clients:
            return False
        if not self._isolates(request):
            return False
        whys = zip(self.gpu_states, self.exclusions(request), strict=True)
        suitable = [state for state, why in whys if why not in _FOR_GOOD and state.gpu.units >= request.per_gpu]
        return len(suitable) - len(self._unlinked(request, suitable)) >= request.gpus

    def exclusions(self, request: Request) -> Sequence[str]:
        """`exclusion` of each of `gpu_states`, remembered: a cluster has many, and a pod's rules are long."""
        return self.remembered(("why", request.key), lambda: self._all_exclusions(request))

    def _all_exclusions(self, request: Request) -> Sequence[str]:
        whys = self._exclusions(request, self.gpu_states)
        if request.rules.links and request.gpus > 1:
            unlinked = self._unlinked(request, [state for state, why in zip(self.gpu_states, whys, strict=True) if not why])
            return ["links" if state in unlinked else why for state, why in zip(self.gpu_states, whys, strict=True)]
        return whys

    def exclusion(self, request: Request, state: GpuState) -> str:
        """Why a GPU of this node does not take (its part of) a request, in a word; "" if it does. Of links it knows nothing."""
        return self._exclusions(request, (state,))[0]

    def _exclusions(self, request: Request, states: Iterable[GpuState]) -> list[str]:
        # The answers that are the same for all of them come first.
        isolates, rejected, rules = self._isolates(request), self._rejected_on, request.rules
        about_gpus, affinity = rules.about_gpus, bool(self._facts.with_rules or rules.about_pods)
        whole, units, core, clients = request.whole_gpus, request.per_gpu, request.core, request.clients
        whys = []
        for state in states:
            gpu, why = state.gpu, ""
            if not gpu.usable:
                why = "unusable"
            elif not isolates:
                why = "isolation"
            elif about_gpus and not rules.accept(gpu.uuid, self._models(gpu)):
                why = "incompatible"
            elif not state.empty if whole else state.free < units or state.core < core:
                why = "room"
            elif state.clients is not None and state.clients < clients:
                why = "clients"
            elif rejected and self._held_back(request, gpu):
                why = "held back"
            elif affinity and not self._neighbours(request).allow(request, gpu.index):
                why = "affinity"
            whys.append(why)
        return whys

    def _unlinked(self, request: Request, found: Sequence[GpuState]) -> Sequence[GpuState]:
        """Those of the GPUs that do not reach as many others of them by NVLinks as the pod requires."""
        if not request.rules.links or request.gpus <= 1:
            return ()
        links = self.inventory.links if self.inventory is not None else None
        sets = links.connected(state.gpu.index for state in found) if links is not None else []
        enough = frozenset[int]().union(*(some for some in sets if len(some) >= request.gpus))
        return [state for state in found if state.gpu.index not in enough]

    def _neighbours(self, request: Request) -> Neighbours:
        def found() -> Neighbours:
            return neighbours(request, self._facts.pods.values(), self.gpus_of, [state.gpu.index for state in self.gpu_states])

        return self.remembered(("affinity", request.key), found)

    def _isolates(self, request: Request) -> bool:
        """Whether what keeps the pod to its units is what it requires, and can. No other pod is on whole GPUs."""
        wanted, has = request.rules.isolation, self.inventory.isolation if self.inventory is not None else ""
        if has == protocol.ISOLATION_MPS and request.gpus_per_pod > 1:
            # A process speaks to one control daemon, and each GPU has its own.
            return False
        return not wanted or bool(request.whole_gpus) or has == wanted

    def _models(self, gpu: Gpu) -> tuple[str, ...]:
        """The node's label speaks for its GPUs only where they are all alike."""
        return (gpu.model, self.record.model) if self._facts.label_counts else (gpu.model,)

    def class_of(self, gpu: Gpu) -> GpuClass:
        """The class of one of its GPUs."""
        return GpuClass(self._models(gpu), gpu.units)

    def _classes(self) -> Counter[GpuClass]:
        found: Counter[GpuClass] = Counter()
        for gpu in self.inventory.gpus if self.inventory else ():
            if gpu.usable:
                found[self.class_of(gpu)] += gpu.units
        return found

    def _held_back(self, request: Request, gpu: Gpu) -> bool:
        """The node rejected a pod of this size on this GPU a moment ago: the same again would be a loop."""
        return any(
            rejection.whole if request.whole_gpus else not rejection.whole and request.per_gpu >= rejection.units
            for rejection in self._rejected_on.get(gpu.uuid, ())
        )

    @property
    def _rejected_on(self) -> Mapping[str, Collection[Rejection]]:
        """By GPU."""
        if self._rejected is None:
            self._rejected = {}
            for rejection in self.rejections:
                self._rejected.setdefault(rejection.gpu, []).append(rejection)
        return self._rejected

    def still_valid(self, pod: AllocatedPod) -> bool:
        """Whether a pod that is here already can still be admitted to the GPUs that it was given."""
        inventory, allocation = self.inventory, pod.allocation
        if inventory is None or allocation is None or self.gpus_of(pod) is not allocation.by_gpu:
            return False
        mine = [state.gpu for state in self.gpu_states if state.gpu.index in allocation.by_gpu]
        return all(gpu.usable and gpu.index not in self._over and not self._held_back(pod.request, gpu) for gpu in mine)

    def copy(self, on_change: Callable[[str], None] = lambda name: None) -> NodeLedger:
        """A ledger that answers as this one, which stays as it is whatever happens to the copy."""
        other = NodeLedger(self.name, on_change)
        other._facts = self._facts.copy()
        return other

    def simulate(self, add: Iterable[AllocatedPod] = (), without: Collection[str] = ()) -> NodeLedger:
        """A copy with these pods more, and without those UIDs."""
        other = self.copy()
        for uid in self._facts.pods.keys() & set(without):
            other._facts.drop(uid)
        for pod in add:
            other.put(pod)
        return other

    def overbooked(self) -> dict[int, int]:
        """GPU index → units allocated beyond what it has, or to others beside a pod with the whole GPU. {} when the ledger is sound."""
        return self._overbooked(self._stated()) if self.inventory else {}

    def _overbooked(self, sums: GpuUsage) -> dict[int, int]:
        excess: dict[int, int] = {}
        by_index = self.inventory.by_index if self.inventory else {}
        for index, units in sums.used.items():
            gpu = by_index.get(index)
            over = units - (gpu.units if gpu else 0)
            if sums.whole.get(index, 0) > 1:
                over = max(over, 1)
            if over > 0:
                excess[index] = over
        return excess

    def _stated(self) -> GpuUsage:
        """The allocations that the pods' annotations state, possible or not; without pods with a GPU that is gone."""
        sums = GpuUsage()
        for pod in self._facts.pods.values():
            if pod.allocation is not None and pod.uid not in self._facts.gone:
                sums.add(pod.allocation.by_gpu, pod.request.core, pod.whole)
        return sums

    def problems(self) -> list[str]:
        """Contradictions, one line each; [] when the ledger is sound."""
        nothing: list[str] = []
        found = self.guarded(self._problems, nothing)
        return [*found, f"computing this node failed: {self.fault}"] if self.fault else found

    def _problems(self) -> list[str]:
        if self.inventory is None:
            return []
        usage = self.usage()
        stated = usage if usage.as_stated else self._stated()
        found = [
            f"GPU {index}: {units} units are allocated beyond what it has" for index, units in sorted(self._overbooked(stated).items())
        ]
        for index, core in sorted(stated.core.items()):
            if core > self.inventory.core:
                found.append(f"GPU {index}: {core} % of its compute are allocated, it shares out {self.inventory.core} %")
        for pod in self._facts.pods.values() if not usage.as_stated else ():
            known = self.gpus_of(pod)
            if known is None or (pod.uid in self._facts.by_report and not known and pod.uid not in self._facts.gone):
                counts = "it counts against every GPU that could hold it" if known is None else _BY_REPORT
                found.append(f"pod {pod.namespace}/{pod.name}: {_unknown(pod)}; {counts}")
        unknown = sorted({entry.gpu for entry in self.record.held.entries if entry.why != GONE} - set(self.inventory.by_uuid))
        return found + [f"the node says that pods hold GPU {uuid}, which is not among its GPUs" for uuid in unknown]

    def gpus_of(self, pod: AllocatedPod) -> Mapping[int, int] | None:
        """{gpu: units} that this pod has; None if that is not known, or cannot be.

        Of a pod with a GPU that is gone the annotations name GPUs by indexes that others may have now: its node's report counts.
        """
        if self.inventory is None:
            return None
        gone = pod.uid in self._facts.gone
        if pod.allocation is not None and not pod.mirror and not gone and self.possible(pod.allocation):
            return pod.allocation.by_gpu
        reported = {index: units for index, (units, _) in self._reported(pod.uid).items()}
        if pod.mirror or gone or pod.uid in self._facts.by_report:
            return reported
        enough = len(reported) >= pod.request.whole_gpus if pod.whole else sum(reported.values()) >= pod.request.units
        return reported if reported and enough else None

    def possible(self, allocation: Allocation) -> bool:
        """Whether the node has such GPUs."""
        by_index = self.inventory.by_index if self.inventory else {}
        # It is asked for every pod of a node that has changed: no generator.
        for index, units in allocation.by_gpu.items():
            gpu = by_index.get(index)
            if gpu is None or units > gpu.units:
                return False
        return True

    def _reported(self, uid: str) -> dict[int, Share]:
        """The units that a pod has by the node's own report, by GPU index."""
        by_uuid = self.inventory.by_uuid if self.inventory else {}
        reported = self.record.held.by_uid.get(uid, {})
        return {by_uuid[uuid].index: share for uuid, share in reported.items() if uuid in by_uuid}

    @property
    def gone(self) -> Mapping[str, Mapping[str, HeldEntry]]:
        """Pod UID → UUID of each GPU of the pod that is not in this node any more, and what the pod has of it."""
        return self._facts.gone

    def pods_without_gpu(self) -> list[str]:
        """A line for each pod with a GPU that is not in this node any more."""
        if self.inventory is None or not self._facts.gone:
            return []
        unit, gone = self.inventory.unit, self._facts.gone
        pods = sorted((pod for pod in self.pods if pod.uid in gone), key=lambda pod: (pod.namespace, pod.name))
        return [f"pod {pod.namespace}/{pod.name} has {gone_in_words(gone[pod.uid], unit)}: delete it" for pod in pods]

    def units_of(self, uid: str) -> Mapping[int, int] | None:
        """{gpu: units} that a pod has by its annotations and by its node's report; None if that is not known.

        The node may report a pod that is gone, or one on another GPU than its annotations name: both GPUs are taken then.
        """
        known = self._known(uid)
        if known is None or uid not in self.record.held.by_uid:
            # Of nearly all pods their node reports nothing besides.
            return known
        return {**known, **{index: units for index, units, _ in self._more_than(known, uid)}}

    def _known(self, uid: str) -> Mapping[int, int] | None:
        """The GPUs of the pod, as `gpus_of`; {} for a pod that only the report of the node names."""
        pod = self._facts.pods.get(uid)
        if pod is None:
            return {}
        if self._usage is not None and self._usage.as_stated and pod.allocation is not None:
            return pod.allocation.by_gpu
        return self.gpus_of(pod)

    def _more_than(self, known: Mapping[int, int], uid: str) -> Iterator[tuple[int, int, bool]]:
        """(GPU, units, whether as the whole GPU) of the GPUs of which the node reports more than these units for a pod."""
        return ((index, units, whole) for index, (units, whole) in self._reported(uid).items() if units > known.get(index, 0))

    def usage(self) -> GpuUsage:
        """The sums of `units_of` over all pods, and the pods whose GPUs are unknown. Not to be changed."""
        if self._usage is None:
            self._usage = self._sum_up()
        return self._usage

    def _sum_up(self) -> GpuUsage:
        sums, as_stated = GpuUsage(), not self.record.held.entries
        for pod in self._facts.pods.values():
            known = self.gpus_of(pod)
            if known is None:
                sums.unknown.append(pod)
            else:
                sums.add(known, pod.request.core, pod.whole, pod.request.clients)
            as_stated = as_stated and pod.allocation is not None and known is pod.allocation.by_gpu
        sums.as_stated = as_stated
        for uid in self.record.held.by_uid:
            known = self._known(uid)
            if known is not None:
                for index, units, whole in self._more_than(known, uid):
                    sums.add({index: units - known.get(index, 0)}, 0, whole)
        return sums

    def _compute(self) -> tuple[GpuState, ...]:
        if self.inventory is None:
            return ()
        sums, offered = self.usage(), self.inventory.core
        self._unknown = tuple(pod.uid for pod in sums.unknown)
        over, states = set(), []
        for gpu in self.inventory.gpus:
            units, core = sums.used.get(gpu.index, 0), sums.core.get(gpu.index, 0)
            whole, clients = sums.whole.get(gpu.index, 0), sums.clients.get(gpu.index, 0)
            # A pod whose GPU is not known counts against every GPU.
            for pod in sums.unknown:
                if pod.whole:
                    whole, units = whole + 1, units + gpu.units
                else:
                    units, core = units + min(pod.request.per_gpu, gpu.units), core + pod.request.core
                clients += pod.request.clients
            if units > gpu.units or core > offered or whole > 1:
                over.add(gpu.index)
            free, core = (0, 0) if whole else (max(0, gpu.units - units), max(0, offered - core))
            left = max(0, self.inventory.clients - clients) if self.inventory.clients else None
            states.append(GpuState(gpu, free, gpu.index not in sums.used and not sums.unknown, core, left))
        self._over = frozenset(over)
        return tuple(states)

    def count_by_report(self, uid: str) -> None:
        """The GPU of this pod has been unknown for `UNKNOWN_SECONDS`: from now on the pod counts as the node's report says."""
        if uid in self._facts.pods:
            self._facts.by_report |= {uid}
            self._changed()

    def end_rejections(self, ended: Collection[Rejection]) -> None:
        """These no longer keep a GPU from other pods."""
        facts = self._facts
        facts.ended |= set(ended).intersection(self.record.held.rejected)
        facts.unreported = tuple(rejection for rejection in facts.unreported if rejection not in ended)
        self._changed()

    def set_record(self, record: NodeRecord) -> None:
        if record != self.record:
            facts = self._facts
            facts.record, facts.unreported = record, ()
            gpus = record.inventory.gpus if record.inventory and record.model else ()
            facts.label_counts = len({gpu.model for gpu in gpus}) == 1
            facts.classes = self.guarded(self._classes, Counter[GpuClass]())
            facts.only_class = next(iter(facts.classes)) if len(facts.classes) == 1 else None
            facts.ended &= set(record.held.rejected)
            facts.gone = record.held.gone(record.inventory.by_uuid) if record.inventory else {}
            self._changed()

    def put(self, pod: AllocatedPod) -> bool:
        """Whether that makes a difference."""
        before, usage = self._facts.pods.get(pod.uid), self._usage
        self._facts.put(pod)
        if before is not None and before.counts_as(pod):
            return False
        self._changed()
        if before is None and usage is not None and usage.as_stated and pod.allocation is not None:
            # Each pod that is placed changes a node so: the sums over its other pods stay.
            gpus = self.gpus_of(pod)
            self._usage = usage.and_one(pod, gpus) if gpus is pod.allocation.by_gpu else None
        return True

    def drop(self, uid: str) -> None:
        self._facts.drop(uid)
        self._changed()

    def _changed(self) -> None:
        self._gpus = self._totals = self._frees = self._rejected = self._usage = None
        self.fault = ""
        self.memo.clear()
        self._on_change(self.name)


def gone_in_words(gone: Mapping[str, HeldEntry], unit: Unit) -> str:
    """The GPUs that a pod has and its node has not: "20 GiB of GPU GPU-…, which is not in this node any more". gone: by UUID."""
    parts = [f"{'the whole' if had.whole else unit.amount(had.units) + ' of'} GPU {as_text(uuid)}" for uuid, had in sorted(gone.items())]
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return f"{', '.join(parts[:_NAMED])}{more}, which {'is' if len(parts) == 1 else 'are'} not in this node any more"


def _unknown(pod: AllocatedPod) -> str:
    if pod.allocation is None:
        return "its GPU is not known"
    named = ", ".join(map(str, sorted(pod.allocation.by_gpu)))
    return f"no pod can have what its annotations say of GPU {named}"

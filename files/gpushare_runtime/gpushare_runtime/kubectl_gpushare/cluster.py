# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster's nodes and pods as JSON → the ledger, the pending pods, and what people want to read beside them. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_GPUS, MOST_UNITS, ReportError, as_text, shared
from gpushare_runtime.core.constraints import Labels, labels_of
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.ledger import UNKNOWN_SECONDS, Ledger, NodeLedger, NodeRecord
from gpushare_runtime.core.ledger_json import MOST_REASON, why_pending
from gpushare_runtime.core.node_report import NOTHING_HELD
from gpushare_runtime.core.objects import PodReader, read_node
from gpushare_runtime.core.placement.explain import Largest, largest_of, too_large
from gpushare_runtime.core.placement.gpu_sizes import GpuSizes
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod
from gpushare_runtime.core.quantity import UNITS, Unit, parse_quantity
from gpushare_runtime.core.use_report import UseReport
from gpushare_runtime.dra.pods import ClaimedPods
from gpushare_runtime.kubectl_gpushare.stalls import Stall, not_ready_since, stall_in

SYSTEM: Final = "kube-system"
_MOST_ADDRESS: Final = 64
_MOST_WORDS: Final = 64
_MOST_SCHEDULER: Final = 80
_MOST_WARNINGS: Final = 1000
# The original's guess: no GPU of its time had more GiB than this, and none fewer MiB.
_MOST_GIB: Final = 100


@dataclass(frozen=True)
class NodeInfo:
    """The facts that are shown of a node beside its GPUs.

    cordoned: `kubectl cordon`, which concerns the node, not a GPU. ready: what the node's condition says. `offered`: units of GPU memory
    that kubelet reports, None where it knows of none.
    """

    address: str
    labels: Labels = ()
    cordoned: bool = False
    ready: bool = True
    offered: int | None = None


UNKNOWN_NODE: Final = NodeInfo("unknown")


@dataclass(frozen=True)
class PodInfo:
    """The facts that are shown of a pod beside its GPUs. created: Unix time, 0 if unknown. owner: as KIND/NAME, "" without one. stall: of a
    pod on a node that does not run. scheduler: spec.schedulerName of a pod on a node. ready: whether kubelet says so."""

    created: float = 0.0
    owner: str = ""
    stall: Stall | None = None
    scheduler: str = ""
    ready: bool = False


UNKNOWN_POD: Final = PodInfo()


def restart_of(cluster: Cluster, uid: str) -> str:
    """The clause about the next start of a pod that ends."""
    owner = cluster.pods.get(uid, UNKNOWN_POD).owner
    return "its owner starts it on another GPU" if owner else "it has no owner that would start it again, so create it again"


@dataclass(frozen=True)
class Waiting:
    """A pod on no node. reported: what its scheduler reported of the last attempt, "" before the first; scheduler: spec.schedulerName."""

    pod: PendingPod | InvalidPod
    reported: str
    labels: Labels
    scheduler: str = ""


@dataclass
class Changed:
    """nodes: names; waiting: UIDs of pods that wait, or did."""

    nodes: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)

    def take(self) -> Changed:
        """The objects that have changed since the last call."""
        taken = Changed(self.nodes, self.waiting)
        self.nodes, self.waiting = set(), set()
        return taken


@dataclass(frozen=True)
class Used:
    """The use of GPUs, as far as it is known. by_pod: pod UID → MiB, rounded up, on all of its GPUs; by_gpu: GPU UUID → by any process.

    busy_pods: pod UID → percent of one GPU's SMs, the sum of its GPUs; busy_gpus: GPU UUID → percent. idle: pod UID → Unix time since when
    it has kept none of its GPUs busy.
    """

    by_pod: Mapping[str, int] = field(default_factory=dict)
    by_gpu: Mapping[str, int] = field(default_factory=dict)
    busy_pods: Mapping[str, int] = field(default_factory=dict)
    busy_gpus: Mapping[str, int] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)


NOTHING_KNOWN: Final = Used()


class Cluster:
    """The cluster, filled by `set_node` and `set_pod`, kept current with `remove_node` and `remove_pod` as well. Of one whose own scheduler
    counts GPU memory also by `set_slice` and `set_claim`, in any order; `claims` makes of them what the others would have said.

    schedulers: UID → name of each pod of kube-system that is a kube-scheduler by its name or image.
    named: the pods with the name `remember`, as they were set, whatever they request.
    complete: whether it has every pod. Where it has not, it is unknown what is free. knows_nodes: whether nodes could be read.
    sizes: of the GPUs, where nodes could not be read. told: pod UID → the extender's Event about a pod that waits, where not even these are
    known.
    uses: node → what it publishes of the use of its GPUs.
    changed: the nodes and the waiting pods that may have changed. A view that shows only differences empties it.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.infos: dict[str, NodeInfo] = {}
        self.pods: dict[str, PodInfo] = {}
        self.now: Callable[[], float] = time.time
        self.waiting: dict[str, Waiting] = {}
        self.warnings: list[str] = []
        self.complete = True
        self.knows_nodes = True
        self.sizes: GpuSizes | None = None
        self.told: dict[str, str] = {}
        self.used: Used = NOTHING_KNOWN
        self.uses: dict[str, UseReport] = {}
        self.changed = Changed()
        self.schedulers: dict[str, str] = {}
        self.remember = ""
        self.named: list[Mapping[str, Any]] = []
        self.claims = ClaimedPods(self._warn)
        self._loose: set[str] = set()
        self._read_pod = PodReader(self._warn)

    def _warn(self, text: str) -> None:
        # Each reading of an object finds its faults again.
        if len(self.warnings) < _MOST_WARNINGS and text not in self.warnings:
            self.warnings.append(text)

    def set_node(self, raw: Mapping[str, Any]) -> str:
        """A v1.Node as it is now; its name. A node without GPUs is kept only where pods have some there."""
        record, _ = read_gpus(raw, self._warn, self.claims)
        self.ledger.set_node(record)
        self.changed.nodes.add(record.name)
        spec = raw.get("spec") or {}
        labels, cordoned = labels_of(raw["metadata"]), bool(spec.get("unschedulable"))
        self.infos[record.name] = NodeInfo(address_of(raw), labels, cordoned, _ready(raw) is not False, _offered(raw))
        self._forget_offered(record.name)
        self._set_use(record.name, (raw["metadata"].get("annotations") or {}).get(protocol.ANNOTATION_USE))
        return record.name

    def set_slice(self, raw: Mapping[str, Any]) -> str:
        """A v1.ResourceSlice as it is now; its name."""
        self._renew(self.claims.set_slice(raw))
        return str(raw["metadata"]["name"])

    def remove_slice(self, name: str) -> None:
        """The slice is gone."""
        self._renew(self.claims.remove_slice(name))

    def _renew(self, node: str) -> None:
        """The slices of a node have changed: its GPUs, and what its pods have of them."""
        if node:
            self.ledger.set_inventory(node, self.claims.inventories.get(node), self.claims.errors.get(node, ""))
            self._forget_offered(node)
            self.changed.nodes.add(node)
            for raw in self.claims.pods_on(node):
                self._set_pod(raw)

    def _forget_offered(self, node: str) -> None:
        """Of a node with slices: kubelet keeps the 0 of a device plugin that it had before."""
        if node in self.claims.inventories and node in self.infos:
            self.infos[node] = replace(self.infos[node], offered=None)

    def set_claim(self, raw: Mapping[str, Any]) -> tuple[str, str]:
        """A v1.ResourceClaim as it is now; its namespace and name."""
        key = self.claims.set_claim(raw)
        for pod in self.claims.pods_of(key):
            self._set_pod(pod)
        return key

    def remove_claim(self, key: tuple[str, str]) -> None:
        """The claim is gone."""
        self.claims.remove_claim(key)
        for pod in self.claims.pods_of(key):
            self._set_pod(pod)

    def _set_use(self, name: str, text: object) -> None:
        self.uses.pop(name, None)
        if isinstance(text, str):
            try:
                self.uses[name] = UseReport.from_json(text)
            except ReportError as error:
                self._warn(f"node {name}: annotation {protocol.ANNOTATION_USE} cannot be used: {error}")

    def remove_node(self, name: str) -> None:
        """The node is gone; its pods go by themselves."""
        self.infos.pop(name, None)
        self.uses.pop(name, None)
        self.changed.nodes.add(name)
        self.ledger.set_node(NodeRecord(name, None))

    def set_pod(self, raw: Mapping[str, Any]) -> str:
        """A v1.Pod as it is now; its UID. A pod that requests no GPUs, and one that has ended, is not kept."""
        if self.remember and raw["metadata"]["name"] == self.remember:
            self.named.append(raw)
        return self._set_pod(raw)

    def _set_pod(self, raw: Mapping[str, Any]) -> str:
        uid, asked = str(raw["metadata"]["uid"]), self.claims.pod(raw)
        record = self._read_pod(asked) if not isinstance(asked, str) else _invalid(raw["metadata"], asked)
        if raw["metadata"]["namespace"] == SYSTEM and _is_kube_scheduler(raw):
            self.schedulers[uid] = str(raw["metadata"]["name"])
        self._touch(uid)
        self.waiting.pop(uid, None)
        if isinstance(record, AllocatedPod):
            self.ledger.apply(record)
            self.changed.nodes.add(record.node)
            self.pods[uid] = _info_of(raw["metadata"], stall_of(raw), shared(scheduler_of(raw)), _ready(raw) is True)
            return uid
        self.ledger.remove(uid)
        self.pods.pop(uid, None)
        if isinstance(record, (PendingPod, InvalidPod)):
            self.pods[uid] = _info_of(raw["metadata"])
            nominee = record.nominee if isinstance(record, PendingPod) else None
            self.ledger.nominate(uid, nominee)
            self.waiting[uid] = Waiting(record, _reported(raw), labels_of(raw["metadata"]), scheduler_of(raw))
            self.changed.waiting.add(uid)
        return uid

    def _touch(self, uid: str) -> None:
        """Something about this pod changes: note where it was."""
        before = self.ledger.pod(uid)
        if before is not None:
            self.changed.nodes.add(before.node)
        if uid in self.waiting:
            self.changed.waiting.add(uid)

    def remove_pod(self, uid: str) -> None:
        """The pod is gone."""
        self.schedulers.pop(uid, None)
        self.claims.forget(uid)
        self._touch(uid)
        self.waiting.pop(uid, None)
        self.pods.pop(uid, None)
        self.ledger.nominate(uid, None)
        self.ledger.remove(uid)

    def settle(self) -> None:
        """Count pods of unknown GPUs as the extender does when it has known of them for a while: by their nodes' word. Of claims without a
        pod on a node each counts as one."""
        loose = {str(raw["metadata"]["uid"]): raw for raw in self.claims.loose(lambda uid: self.ledger.pod(uid) is not None)}
        for uid in self._loose - loose.keys():
            self.remove_pod(uid)
        for uid, raw in loose.items():
            record = self._read_pod(raw)
            if isinstance(record, AllocatedPod) and record != self.ledger.pod(uid):
                self.ledger.apply(record)
                self.changed.nodes.add(record.node)
                self.pods[uid] = PodInfo(owner=f"ResourceClaim/{record.name}")
        self._loose = set(loose)
        self.ledger.expire(0.0)
        self.ledger.expire(UNKNOWN_SECONDS)

    @property
    def nodes(self) -> Sequence[NodeLedger]:
        """By name."""
        return [node for _, node in sorted(self.ledger.nodes.items())]

    def problems(self) -> list[str]:
        """The problems, a line each."""
        found = list(self.warnings)
        if self.complete:
            found += [f"node {node.name}: {problem}" for node in self.nodes for problem in node.problems()]
        return found

    def reasons(self) -> dict[str, str]:
        """By UID of each waiting pod, what keeps it from a GPU: its own fault, or no GPU is large enough, or kube-scheduler's words."""
        largest = self.largest()
        return {uid: reason_of(wait, largest, self.told.get(uid, "")) for uid, wait in self.waiting.items()}

    def largest(self) -> Largest | None:
        """The largest GPU, and the most GPUs of a node; None where it is unknown."""
        if not self.knows_nodes:
            return self.sizes.largest if self.sizes else None
        return largest_of(node.inventory for node in self.ledger.nodes.values() if node.inventory)

    def unit_of(self, node: NodeLedger) -> Unit | None:
        """The unit that amounts of the node are in; None where it is unknown."""
        return node.inventory.unit if node.inventory else self.sizes.unit if self.sizes and not self.knows_nodes else None

    def unit(self) -> Unit | None:
        """The unit that amounts of every node are in; None where it is unknown or they differ."""
        if not self.knows_nodes:
            return self.sizes.unit if self.sizes else None
        found = {node.inventory.unit for node in self.ledger.nodes.values() if node.inventory}
        return found.pop() if len(found) == 1 else None


def why_never(pod: PendingPod | InvalidPod, largest: Largest | None) -> str:
    """Why a pod could not run on an empty cluster either, and what to write instead; "" if it could, as far as is known."""
    reason = why_pending(pod)
    if not reason and largest and isinstance(pod, PendingPod):
        found = too_large(pod.request, largest)
        reason = found.words if found else ""
    return reason


def reason_of(wait: Waiting, largest: Largest | None, told: str = "") -> str:
    """The reason that keeps a pod from a GPU: its own fault, or no GPU is as large, or kube-scheduler's words. told: by the extender."""
    return as_text(why_never(wait.pod, largest) or told or wait.reported, MOST_REASON)


def _invalid(metadata: Mapping[str, Any], why: str) -> InvalidPod:
    return InvalidPod(str(metadata["uid"]), str(metadata["namespace"]), str(metadata["name"]), why)


def stall_of(raw: Mapping[str, Any]) -> Stall | None:
    """Of a v1.Pod; None for one that runs, or is on no node."""
    stall = stall_in(raw, 0.0)
    if stall is None:
        return None
    since = not_ready_since((raw.get("status") or {}).get("conditions")) or raw["metadata"].get("creationTimestamp")
    return replace(stall, since=_time_of(since))


def _info_of(metadata: Mapping[str, Any], stall: Stall | None = None, scheduler: str = "", ready: bool = False) -> PodInfo:
    owners = metadata.get("ownerReferences")
    owner = next((reference for reference in owners if isinstance(reference, dict)), {}) if isinstance(owners, list) else {}
    created = _time_of(metadata.get("creationTimestamp"))
    return PodInfo(created, f"{owner.get('kind')}/{owner.get('name')}" if owner else "", stall, scheduler, ready)


def _time_of(text: object) -> float:
    """Unix time; 0 for text that is not a time of Kubernetes."""
    try:
        # Ten times as fast as strptime, and there are 50,000 pods.
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if isinstance(text, str) and len(text) < 40 else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _ready(raw: Mapping[str, Any]) -> bool | None:
    """The condition of a v1.Node or v1.Pod; None without one."""
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if isinstance(condition, dict) and condition.get("type") == "Ready":
            return condition.get("status") == "True"
    return None


def _offered(raw: Mapping[str, Any]) -> int | None:
    allocatable = (raw.get("status") or {}).get("allocatable")
    text = allocatable.get(protocol.RESOURCE_MEMORY) if isinstance(allocatable, dict) else None
    try:
        return None if text is None else parse_quantity(text)
    except ValueError:
        return None


def _reported(raw: Mapping[str, Any]) -> str:
    """In kube-scheduler's own words."""
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return as_text(str(condition.get("message") or condition.get("reason") or ""), MOST_REASON)
    return ""


def _is_kube_scheduler(raw: Mapping[str, Any]) -> bool:
    containers = (raw.get("spec") or {}).get("containers") or ()
    images = (str(container.get("image") or "") for container in containers)
    return "kube-scheduler" in str(raw["metadata"]["name"]) or any("kube-scheduler" in image for image in images)


def has_no_configuration(raw: Mapping[str, Any]) -> bool:
    """Whether a v1.Pod runs a kube-scheduler without a file or a policy: it places pods of default-scheduler, and calls no extender."""
    for container in (raw.get("spec") or {}).get("containers") or ():
        words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
        text = " ".join(words)
        if any(word.rpartition("/")[2] == "kube-scheduler" for word in text.split()[:_MOST_WORDS]):
            flags = {word.partition("=")[0] for word in text.split()}
            return not flags & {"--config", "--policy-config-file", "--policy-configmap"}
    return False


def scheduler_of(raw: Mapping[str, Any]) -> str:
    """The name of the scheduler that a pod asks for, "" for none."""
    return as_text(str((raw.get("spec") or {}).get("schedulerName") or ""), _MOST_SCHEDULER)


def address_of(raw: Mapping[str, Any]) -> str:
    """The node's InternalIP, "unknown" without one."""
    addresses = (a["address"] for a in (raw.get("status") or {}).get("addresses") or () if a.get("type") == "InternalIP")
    # The text that the node has written there goes to a terminal.
    return as_text(next(addresses, "unknown"), _MOST_ADDRESS)


def read_gpus(raw: Mapping[str, Any], warn: Callable[[str], None], claims: ClaimedPods) -> tuple[NodeRecord, int]:
    """The node, and the units of all its GPUs. A node of the original plugin publishes totals only: its GPUs are of equal size. One with
    ResourceSlices has no annotations that are still true."""
    record = read_node(raw)
    if record.name in claims.inventories or record.name in claims.errors:
        record = replace(record, inventory=claims.inventories.get(record.name), error=claims.errors.get(record.name, ""), held=NOTHING_HELD)
    if record.inventory is not None:
        return record, record.inventory.units
    status = raw.get("status") or {}
    total = count = 0
    try:
        total, count = _allocatable(status, protocol.RESOURCE_MEMORY, MOST_UNITS), _allocatable(status, protocol.RESOURCE_GPUS, MOST_GPUS)
    except ValueError as error:
        warn(f"node {record.name}: {error}; it is left out")
    if record.error:
        warn(f"node {record.name}: {record.error}{'; its GPUs are taken to be of equal size' if total else ''}")
    if not total:
        return record, 0
    size = total // count if count else 0
    gpus = tuple(Gpu(index, str(index), index, "", "", 0, size) for index in range(count))
    return replace(record, inventory=Inventory(UNITS["MiB" if size > _MOST_GIB else "GiB"], gpus), error=""), total


def _allocatable(status: Mapping[str, Any], resource: str, most: int) -> int:
    """ValueError where it is not such a number, or more than any node has."""
    amount = parse_quantity((status.get("allocatable") or {}).get(resource, 0))
    if not 0 <= amount <= most:
        raise ValueError(f"its {resource} of {amount} cannot be; a node has at most {most}")
    return amount

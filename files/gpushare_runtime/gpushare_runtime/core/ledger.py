# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pod has what of which GPU. It is built from pods and inventories; pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar, cast

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import GpuClass, GpuState, NodeLedger, NodeRecord
from gpushare_runtime.core.node_report import Rejection
from gpushare_runtime.core.pod_affinity import Namespaces
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.core.reservation import CYCLE_SECONDS, RESERVED_SECONDS, Group

__all__ = ["AllocatedPod", "GpuState", "Ledger", "NodeLedger", "NodeRecord", "PendingPod"]


_DERIVED: Final = 32
"""Kinds of answers that are kept of all nodes: 5000 nodes are half a MiB of each."""
REJECTED_SECONDS: Final = 60.0
"""A GPU is held back for so long after its node's rejection, from when it is first seen here: the node's clock need not be right."""
UNKNOWN_SECONDS: Final = 15.0
"""As long a pod of which nobody knows the GPU counts against every GPU of its node. By then kubelet has admitted it, and the
device plugin has corrected its annotations or says in gpushare/held what it has; what has nothing by then is in nobody's way."""


class CapacityFreed(Protocol):
    """The callback for units that become free. by: the group of which only a reservation has ended."""

    def __call__(self, by: str = "") -> None: ...


def _nobody(by: str = "") -> None:
    """Does nothing."""


class Derived(Protocol):
    """Something about all nodes that is kept until they change."""

    def forget(self, name: str) -> None:
        """A node has changed."""


K = TypeVar("K", bound=Derived)


@dataclass
class _Cycle:
    """The scheduler's cycle of one group, from its first question about a member until its last bind.

    uids: the pods that are reserved for. until: when all these reservations end, None: some seconds after the next reading of the clock.
    binds: the cycle has found nodes for the group, whose pods are being bound.
    """

    uids: set[str] = field(default_factory=set)
    until: float | None = None
    binds: bool = False


class Ledger:
    """All nodes and all allocated pods, by UID; the only writer of its `NodeLedger`s.

    A pod whose Binding is likely to come is reserved for, one whose Binding is under way is assumed, and confirmed when the
    pod is seen bound. The reservations of a group that is placed at once end together, with the scheduler's cycle.
    on_capacity_freed: called when units become free, for any reason.
    """

    def __init__(self, on_capacity_freed: CapacityFreed = _nobody) -> None:
        self._on_capacity_freed = on_capacity_freed
        self.expired = 0
        """Reservations that ran out since the start."""
        self._nodes: dict[str, NodeLedger] = {}
        self._node_of: dict[str, str] = {}
        self._assumed: set[str] = set()
        self._reserved: dict[str, float] = {}
        self._cycles: dict[str, _Cycle] = {}
        self._held_until: dict[str, float] = {}
        self._nominees: dict[str, dict[str, PendingPod]] = {}
        self._rejections: dict[str, dict[Rejection, float | None]] = {}
        self._unknown: dict[str, float] = {}
        self._touched: set[str] = set()
        self._namespaces = Namespaces()
        self._derived: dict[Hashable, Derived] = {}
        self.classes: Final[Counter[GpuClass]] = Counter()
        """Units of all usable GPUs by class."""
        self.inventory_changes = 0
        """How often the GPUs of a node have changed, so that what is known of all of them is not found anew without need."""

    def copy(self) -> Ledger:
        """The same of every node, which stays as it is whatever happens to the copy. There nothing is under way or runs out."""
        other = Ledger()
        for name, node in self._nodes.items():
            other._nodes[name] = node.copy(other._changed)
            other.classes.update(node.classes)
            for pod in node.pods:
                other._node_of[pod.uid] = name
                other._namespaces.add(pod)
        return other

    def derived(self, key: Hashable, make: Callable[[], K]) -> K:
        """A value that `make` has made for this key, told of every node that changes since. Those used last are kept.

        For what is asked of every node for one pod after the other, of which each changes one node.
        """
        kept = self._derived.pop(key, None)
        if kept is None:
            kept = make()
            if len(self._derived) >= _DERIVED:
                del self._derived[next(iter(self._derived))]
        self._derived[key] = kept
        return cast(K, kept)

    def _changed(self, name: str) -> None:
        self._touched.add(name)
        for kept in self._derived.values():
            kept.forget(name)

    @property
    def nodes(self) -> Mapping[str, NodeLedger]:
        return self._nodes

    def node(self, name: str) -> NodeLedger | None:
        return self._nodes.get(name)

    def set_node(self, record: NodeRecord) -> None:
        """This is now the report of a node. Its pods stay."""
        node = self._ensure(record.name)
        before, inventory = node.classes, node.inventory
        node.set_record(record)
        self.inventory_changes += node.inventory != inventory
        if before != node.classes:
            self.classes.subtract(before)
            self.classes.update(node.classes)
            for gone in before.keys() & {gpu for gpu, units in self.classes.items() if not units}:
                del self.classes[gone]
        for uid in self._held_until.keys() & record.held.by_uid.keys():
            # Of other nodes' pods it has no say.
            if self._node_of.get(uid) == record.name:
                self.remove(uid)
        seen = self._rejections.pop(record.name, {})
        if node.rejections:
            self._rejections[record.name] = {rejection: seen.get(rejection) for rejection in node.rejections}
        self._drop_if_idle(record.name)

    def reject(self, uid: str) -> None:
        """This pod failed on its node, because its GPUs do not have what it should get: they take no pod until the node reports."""
        node = self._nodes.get(self._node_of.get(uid, ""))
        if node is not None:
            node.reject(node.pod(uid))
            seen = self._rejections.get(node.name, {})
            self._rejections[node.name] = {rejection: seen.get(rejection) for rejection in node.rejections}

    def set_inventory(self, name: str, inventory: Inventory | None, error: str = "") -> None:
        """Replace a node's GPUs; None: it has none that can be used, for the reason `error`. Its pods stay."""
        node = self._nodes.get(name)
        before = node.record if node is not None else NodeRecord(name, None)
        self.set_node(replace(before, inventory=inventory, error=error))

    def expire(self, clock: float) -> bool:
        """Forget what is over: nodes' rejections, reservations, and pods whose GPU is unknown; whether there was any.

        clock: as in `reserve`.
        """
        rejections = [name for name in list(self._rejections) if self._expire_rejections(name, clock)]
        unknown = self._expire_unknown(clock)
        cycles = self._expire_cycles(clock)
        reservations = [uid for uid, until in self._reserved.items() if until <= clock]
        self.expired += len(reservations)
        over = [*reservations, *(uid for uid, until in self._held_until.items() if until <= clock)]
        for uid in over:
            self.remove(uid)
        return bool(rejections or unknown or cycles or over)

    def _expire_cycles(self, clock: float) -> bool:
        """Whether some reservations of groups are over."""
        for cycle in self._cycles.values():
            if cycle.until is None:
                cycle.until = clock + RESERVED_SECONDS
        over = [name for name, cycle in self._cycles.items() if cycle.until is not None and cycle.until <= clock]
        ended = [self._end_cycle(name) for name in over]
        self.expired += sum(ended)
        return any(ended)

    def _end_cycle(self, name: str) -> int:
        """How many reservations of the group were left."""
        left = self._cycles.pop(name).uids
        for uid in left:
            self.release(uid)
        return len(left)

    def _expire_rejections(self, name: str, clock: float) -> bool:
        """Whether some of a node's are over."""
        begun = {rejection: clock + REJECTED_SECONDS if until is None else until for rejection, until in self._rejections.pop(name).items()}
        node, ended = self._nodes.get(name), {rejection for rejection, until in begun.items() if until <= clock}
        if node is None:
            return False
        if len(ended) < len(begun):
            self._rejections[name] = {rejection: until for rejection, until in begun.items() if rejection not in ended}
        if ended:
            node.end_rejections(ended)
            self._on_capacity_freed()
        return bool(ended)

    def _expire_unknown(self, clock: float) -> bool:
        """Whether some pods of unknown GPU count by their nodes' word from now on."""
        for name in self._touched & self._nodes.keys():
            for uid in self._nodes[name].unknown:
                self._unknown.setdefault(uid, clock + UNKNOWN_SECONDS)
        self._touched.clear()
        over = [uid for uid, until in self._unknown.items() if until <= clock]
        still = {uid: self._nodes[self._node_of[uid]] for uid in over}
        still = {uid: node for uid, node in still.items() if uid in node.unknown}
        for uid in over:
            del self._unknown[uid]
        for uid, node in still.items():
            node.count_by_report(uid)
        if still:
            self._on_capacity_freed()
        return bool(still)

    def apply(self, pod: AllocatedPod) -> None:
        """A pod was seen bound: it has these GPUs, whatever was assumed or known of it before."""
        readable = self._readable(pod)
        self._binds(self._end_reservation(pod.uid))
        self._put(readable)
        self._assumed.discard(pod.uid)
        self._held_until.pop(pod.uid, None)

    def _readable(self, pod: AllocatedPod) -> AllocatedPod:
        """With the GPUs that it was bound with, where its annotations were broken since: that gives nothing away and blocks nothing."""
        before = self.pod(pod.uid) if pod.uid not in self._reserved else None
        if before is None or before.node != pod.node or before.allocation is None or pod.mirror:
            return pod
        node = self._nodes[pod.node]
        if (pod.allocation is not None and node.possible(pod.allocation)) or not node.possible(before.allocation):
            return pod
        return replace(pod, allocation=before.allocation)

    def assume(self, pod: AllocatedPod) -> None:
        """A Binding of this pod is about to be sent."""
        self._end_reservation(pod.uid)
        self._binds(pod.group)
        self._put(pod)
        self._assumed.add(pod.uid)

    def reserve(self, pod: AllocatedPod, until: float) -> None:
        """This pod will probably be bound there, before `until` (seconds of any clock), or with its group that is placed at once.

        Without effect when it has GPUs for good or is being bound.
        """
        if pod.uid not in self._node_of or pod.uid in self._reserved:
            self._end_reservation(pod.uid)
            self._put(pod)
            if pod.group is not None and pod.group.at_once:
                self._cycles.setdefault(pod.group.name, _Cycle()).uids.add(pod.uid)
                until = math.inf
            self._reserved[pod.uid] = until

    def asked(self, uid: str, group: Group | None, clock: float) -> None:
        """The scheduler asks about this pod of this group: its last attempt is over, and so is the cycle of every other group.

        Reservations of a cycle that is over end, unless binds follow within `CYCLE_SECONDS`. clock: as in `reserve`.
        """
        mine = group.name if group is not None and group.at_once else ""
        cycle = self._cycles.get(mine)
        if cycle is not None and uid in cycle.uids and not cycle.binds:
            # Its last cycle came to nothing, since it is tried again: what was kept for the others is in the way of this one.
            self._end_cycle(mine)
        self.release(uid)
        for name, other in [item for item in self._cycles.items() if item[0] != mine and not item[1].binds]:
            over = clock + CYCLE_SECONDS
            other.until = over if other.until is None else min(other.until, over)
            if other.until <= clock:
                self.expired += self._end_cycle(name)
        if mine:
            cycle = self._cycles.setdefault(mine, _Cycle())
            cycle.until, cycle.binds = clock + RESERVED_SECONDS, False

    def going(self, uid: str, node: str, until: float) -> None:
        """The scheduler has nominated the pod to this node. One of a group that is reserved for there is kept room for until then.

        It does so for each pod of a group whose cycle has found nodes, and that waits for volumes.
        """
        pod = self.pod(uid)
        if pod is not None and pod.node == node and self._reserved.get(uid) == math.inf:
            self._binds(self._end_reservation(uid))
            self._reserved[uid] = until

    def _end_reservation(self, uid: str) -> Group | None:
        """The pod's group, if it was reserved for and its group is placed at once."""
        pod = self.pod(uid) if self._reserved.pop(uid, None) is not None else None
        if pod is None or pod.group is None or not pod.group.at_once:
            return None
        if pod.group.name in self._cycles:
            self._cycles[pod.group.name].uids.discard(uid)
        return pod.group

    def _binds(self, group: Group | None) -> None:
        """A pod of this group goes to a node: the others do, too."""
        cycle = self._cycles.get(group.name) if group is not None and group.at_once else None
        if cycle is not None:
            cycle.until, cycle.binds = None, True

    def hold_until(self, uid: str, until: float) -> None:
        """The outcome of the pod's Binding is unknown. It keeps its GPUs until this time, or until the watch or its node shows more.

        until: seconds of the same clock as in `reserve`.
        """
        if uid in self._node_of:
            self._held_until.setdefault(uid, until)

    @property
    def in_flight(self) -> Set[str]:
        """UIDs of the pods that are assumed or reserved for."""
        return self._assumed | self._reserved.keys()

    @property
    def held_until(self) -> Set[str]:
        """UIDs of the pods of which it is unknown whether they have their GPUs."""
        return self._held_until.keys()

    def is_held_until(self, uid: str) -> bool:
        return uid in self._held_until

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def is_reserved(self, uid: str) -> bool:
        return uid in self._reserved

    def forget(self, uid: str) -> None:
        """The assumed Binding did not happen. Without effect when the pod was seen bound meanwhile."""
        if uid in self._assumed:
            self.remove(uid)

    def release(self, uid: str) -> None:
        """A GPU that was only reserved is free again. Without effect when more is known of the pod."""
        if uid in self._reserved:
            self.remove(uid)

    def remove(self, uid: str) -> None:
        """The pod is finished or gone."""
        group = self._end_reservation(uid)
        self._assumed.discard(uid)
        self._held_until.pop(uid, None)
        self._unknown.pop(uid, None)
        name = self._node_of.pop(uid, None)
        if name is not None:
            self._namespaces.remove(self._nodes[name].pod(uid))
            self._nodes[name].drop(uid)
            self._drop_if_idle(name)
            self._on_capacity_freed(group.name if group is not None else "")

    @property
    def nominees(self) -> Mapping[str, Mapping[str, PendingPod]]:
        """By node and UID; usually there are none."""
        return self._nominees

    def nominate(self, uid: str, nominee: PendingPod | None) -> None:
        """The pod with this UID is nominated to a node now; None: to none (any more)."""
        for name in [name for name, nominees in self._nominees.items() if uid in nominees and nominees[uid] != nominee]:
            del self._nominees[name][uid]
            if not self._nominees[name]:
                del self._nominees[name]
            self._on_capacity_freed()
        if nominee is not None:
            self._nominees.setdefault(nominee.nominated, {})[uid] = nominee

    def replace(
        self, bound: Iterable[AllocatedPod], existing: Collection[str], finished: Collection[str] = (), until: float | None = None
    ) -> None:
        """A fresh list of all pods: `bound` have GPUs, `existing` are the UIDs of every unfinished pod, bound or not.

        An assumed or reserved allocation stays while its pod exists: the list may be older than the Binding. finished: UIDs of pods that
        have ended; one that is neither and had not ended was deleted by force: it stays until then, None: it is gone at once.
        """
        current = {pod.uid: pod for pod in bound}
        for uid, name in list(self._node_of.items()):
            in_flight = (uid in self._assumed or uid in self._reserved) and uid in existing
            if uid in current or in_flight or uid in self._held_until:
                continue
            if until is not None and uid not in finished and self._nodes[name].pod(uid).alive:
                self.hold_until(uid, until)
            else:
                self.remove(uid)
        for pod in current.values():
            self.apply(pod)

    def pod(self, uid: str) -> AllocatedPod | None:
        """The GPUs that this pod has, also where that is only reserved or assumed."""
        name = self._node_of.get(uid)
        return self._nodes[name].pod(uid) if name is not None else None

    def for_pod(self, pod: PendingPod) -> Request:
        """Its request, with the pod's context where anybody's rules about other pods make that matter."""
        return self._namespaces.request_of(pod)

    def _put(self, pod: AllocatedPod) -> None:
        before = self._node_of.get(pod.uid)
        known = before == pod.node
        if known:
            self._namespaces.remove(self._nodes[pod.node].pod(pod.uid))
        elif before is not None:
            self.remove(pod.uid)
        if self._ensure(pod.node).put(pod) and known:
            # It may have other GPUs now.
            self._on_capacity_freed()
        self._node_of[pod.uid] = pod.node
        self._namespaces.add(pod)

    def _ensure(self, name: str) -> NodeLedger:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeLedger(name, self._changed)
        return node

    def _drop_if_idle(self, name: str) -> None:
        node = self._nodes[name]
        if node.inventory is None and not node.inventory_error and not node.pods:
            del self._nodes[name]
            self._rejections.pop(name, None)
            self._changed(name)

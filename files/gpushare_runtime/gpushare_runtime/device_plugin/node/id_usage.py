# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container has which device ids, of both resources, and all questions about it. `id_recorder.py` alone changes it. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.unit_ids import gpu_of, gpu_of_unit, gpu_uuids_of
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PendingContainer, PodTable
from gpushare_runtime.device_plugin.node.pod_state import PodState, Record, Watched, WatchState

# kubelet writes its checkpoint within milliseconds of an Allocate that it accepted.
_UNCONFIRMED_SECONDS: Final = 30.0


class Processes(Protocol):
    """The processes on this host."""

    def pods(self, uids: Set[str]) -> Set[str]:
        """The pods among these that have a process, or may have one. Takes some milliseconds."""

    def containers(self, uid: str) -> Set[str] | None:
        """The names of the pod's containers that have a process; None if a process cannot be attributed."""


@dataclass(frozen=True)
class UnconfirmedAllocation:
    """Ids that the plugin allocated and kubelet's checkpoint does not list yet."""

    resource: str
    ids: frozenset[str]
    container: PendingContainer | None
    at: float
    moment: int


@dataclass(frozen=True)
class ContainerUsage:
    """The ids of one resource that one container has. gpu_uuids: those that the ids name; moment: when they were listed."""

    ids: frozenset[str]
    gpu_uuids: Set[str]
    listed: bool = True  # by kubelet's checkpoint
    moment: int = 0
    index: int | None = None  # of the GPU that another device plugin gave it, whatever its ids


@dataclass(frozen=True)
class GpuUsers:
    """The pods (UID) that use each GPU (UUID); "" for an unknown pod that was admitted a moment ago."""

    memory: Mapping[str, Collection[str]]
    whole: Mapping[str, str]


class Usage:
    """Ids of all containers of this node. It is used from one event loop only.

    entries: kubelet's checkpoint as last read. moment: counts the grants and the listings. gpus_by_index: the node's GPUs by NVML index.
    table: one line for each container and resource. states: by pod UID. unconfirmed: grants that no checkpoint has listed yet. unrecorded:
    pod UID → since when kubelet's record lacks ids of the pod. admitted: UIDs of pods that have a process of their own before any
    container has started, so that kubelet has admitted them. kept: ids that a running container has although kubelet's record lists
    others, and its container ID (None if unknown); kubelet allocates again for a running container if it is resized in place after its
    record was lost.
    """

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        self.entries: tuple[CheckpointEntry, ...] = ()
        self.moment = 0
        self.gpus_by_index: Mapping[int, Gpu] = {}
        self.pods = pods
        self.clock = clock
        self.table: dict[DeviceKey, ContainerUsage] = {}
        self.states: dict[str, PodState] = {}
        self.unconfirmed: list[UnconfirmedAllocation] = []
        self.unrecorded: dict[str, float] = {}
        self.admitted: set[str] = set()
        self.kept: dict[DeviceKey, tuple[ContainerUsage, str | None]] = {}

    # The end of a pod.

    def is_starting(self, key: DeviceKey) -> bool:
        """Whether the runtime may be creating the container."""
        state, last, now = self.states.get(key.pod), self.last_seen(key.pod), self.clock()
        return state is not None and any(key.container in names and state.may_be_creating(names, last, now) for names in state.starts)

    def may_run(self, key: DeviceKey, running: Callable[[str], Set[str] | None]) -> bool:
        """Whether the container may use ids that kubelet does not count. running: see Processes.containers.

        Of a pod that kubelet no longer counts, any process may use them.
        """
        if not self.record_lost(key.pod) or self.is_starting(key):
            return True
        names = running(key.pod)
        return names is None or key.container in names

    def listed_keys(self) -> set[DeviceKey]:
        return {key for key, usage in self.table.items() if usage.listed}

    def lacks_record(self, pod: LocalPod, listed: Set[DeviceKey], resource: str = "") -> bool:
        """Whether kubelet's record lacks some ids that the pod requests."""
        requested = (
            DeviceKey(pod.uid, devices.container, devices.resource)
            for devices in pod.container_devices
            if resource in ("", devices.resource)
        )
        return pod.active and any(key not in listed for key in requested)

    def _was_admitted(self, pod: LocalPod) -> bool:
        """Whether kubelet has admitted the pod, with all of its containers."""
        # During the init phase a pod is Pending; a container ID shows it, and what kubelet has recorded before.
        started = pod.phase == "Running" or any(pod.container_ids.values())
        return started or pod.uid in self.admitted or (pod.uid in self.states and self.states[pod.uid].record is not Record.LISTED)

    def any_record_lost(self, resource: str) -> bool:
        """Whether kubelet lacks the record of a container with this resource that runs or will run again."""
        listed = self.listed_keys()
        for uid, since in self.unrecorded.items():
            pod, state = self.pods.get(uid), self.states.get(uid)
            # Immediately if the checkpoint is lost and the pod has a process; else when watch and checkpoint had time to agree.
            plain = state is not None and state.record is Record.LOST and state.alive
            if not pod or not self._was_admitted(pod) or not self.lacks_record(pod, listed, resource):
                continue
            if plain or self.watch_state().has_passed(since):
                return True
        return False

    def record_lost(self, uid: str) -> bool:
        """Whether kubelet has lost its record of a pod that it still counts."""
        state = self.states.get(uid)
        return state is not None and state.lost(self.pods.get(uid))

    def lost(self, key: DeviceKey) -> bool:
        """Whether kubelet has lost its record of this container, and the plugin has it."""
        usage = self.table.get(key)
        return usage is not None and not usage.listed and self.record_lost(key.pod) and not self.states[key.pod].released

    def dropped_by_kubelet(self) -> set[str]:
        """UIDs of the pods that kubelet no longer counts, even if the watch still shows them."""
        return {uid for uid, state in self.states.items() if state.uncounted(self.pods.get(uid))}

    # The ids and GPUs in use.

    def watched(self, uid: str) -> Watched:
        return Watched(self.pods.get(uid), self.pods.removed(uid), self.watch_state())

    def watch_state(self) -> WatchState:
        return WatchState(self.pods.synced, self.pods.last_contact())

    def last_seen(self, uid: str) -> LocalPod | None:
        return self.pods.get(uid) or self.pods.removed(uid)

    def recent_grants(self) -> list[UnconfirmedAllocation]:
        now = self.clock()
        return [allocation for allocation in self.unconfirmed if now - allocation.at < _UNCONFIRMED_SECONDS]

    def _in_use(self, *, orphaned: bool = False) -> Iterator[tuple[DeviceKey, ContainerUsage]]:
        """orphaned: only what kubelet may allocate to others although it is in use."""
        for key, usage in self.table.items():
            state = self.states[key.pod]
            if not state.released and not (orphaned and usage.listed and not state.ending):
                yield key, usage
        for key, (usage, _) in self.kept.items():
            if not self.states[key.pod].released:
                yield key, usage

    def gpu_users(self) -> GpuUsers:
        """The pods that use each GPU."""
        memory: dict[str, set[str]] = {}
        whole: dict[str, str] = {}
        used = [(key.pod, key.resource, self._gpus_of(usage)) for key, usage in self._in_use()]
        used += [(a.container.pod.uid if a.container else "", a.resource, gpu_uuids_of(a.resource, a.ids)) for a in self.recent_grants()]
        for uid, resource, gpu_uuids in used:
            for gpu in gpu_uuids:
                if resource == protocol.RESOURCE_GPUS:
                    whole[gpu] = uid
                else:
                    memory.setdefault(gpu, set()).add(uid)
        return GpuUsers(memory, whole)

    def _gpus_of(self, usage: ContainerUsage) -> Set[str]:
        """The GPUs whose memory or ids it has."""
        gpu = None if usage.index is None else self.gpus_by_index.get(usage.index)
        return usage.gpu_uuids if gpu is None else {*usage.gpu_uuids, gpu.uuid}

    def given_index(self, keys: Iterable[DeviceKey]) -> int | None:
        """The GPU (NVML index) that another device plugin gave one of these containers; None if their ids name their GPUs."""
        return next((self.table[key].index for key in keys if key in self.table and self.table[key].index is not None), None)

    def keys_of(self, uid: str) -> list[DeviceKey]:
        """The pod's containers that have ids."""
        return [key for key in self.table if key.pod == uid]

    def displaced(self, *, orphaned: bool = False) -> dict[str, int]:
        """GPU UUID → units that containers have of it without its ids, less the ids of it that they have without its memory.

        Another device plugin gave them their GPUs without reading the ids that kubelet chose.
        """
        shifts: Counter[str] = Counter()
        seen: set[tuple[str, str]] = set()
        for key, usage in self._in_use(orphaned=orphaned):
            gpu = None if usage.index is None else self.gpus_by_index.get(usage.index)
            # Init containers pass their ids on.
            new = [i for i in usage.ids if (key.pod, i) not in seen] if gpu is not None else []
            seen.update((key.pod, i) for i in new)
            if gpu is not None:
                shifts[gpu.uuid] += len(new)
                shifts.subtract(gpu_of_unit(i) for i in new)
        return {uuid: shift for uuid, shift in shifts.items() if shift}

    def still_in_use(self, resource: str) -> dict[DeviceKey, frozenset[str]]:
        """The ids that containers use although kubelet may list them as free."""
        used: dict[DeviceKey, frozenset[str]] = {}
        for key, usage in self._in_use(orphaned=True):
            if key.resource == resource:
                used[key] = used.get(key, frozenset()) | usage.ids
        return used

    def _counted(self, resource: str) -> Iterator[tuple[DeviceKey, frozenset[str]]]:
        """The ids that kubelet has given to containers and counts for them."""
        for key, usage in self.table.items():
            state = self.states[key.pod]
            if key.resource == resource and usage.listed and not state.freed and not state.ending:
                yield key, usage.ids

    def of_other_gpus(self, resource: str, uuids: Container[str]) -> dict[DeviceKey, frozenset[str]]:
        """The ids that kubelet counts for containers, of GPUs that are none of these.

        Without those of containers whose GPUs another device plugin chose: there ids say nothing of GPUs.
        """
        found: dict[DeviceKey, frozenset[str]] = {}
        for key, ids in self._counted(resource):
            usage = self.table[key]
            if usage.index is None and not all(uuid in uuids for uuid in usage.gpu_uuids):
                found[key] = frozenset(i for i in ids if (uuid := gpu_of(resource, i)) and uuid not in uuids)
        return {key: ids for key, ids in found.items() if ids}

    def counted_ids(self, resource: str) -> frozenset[str]:
        """The ids that kubelet counts for containers, or has just been given for them."""
        return frozenset().union(*(ids for _, ids in self._counted(resource)), *(a.ids for a in self._granted(resource)))

    def _granted(self, resource: str) -> Iterator[UnconfirmedAllocation]:
        """The ids that kubelet has just been given for containers of pods that have not ended since."""
        for allocation in self.recent_grants():
            pod = self.pods.get(allocation.container.pod.uid) if allocation.container else None
            if allocation.resource == resource and not (pod is not None and pod.finished):
                yield allocation

    def recorded_twice(self, key: DeviceKey) -> str | None:
        """UID of another active pod for which kubelet's record has all the ids of this container, or had some of them before it."""
        mine, own = self.table[key], self.pods.get(key.pod)
        for other, usage in self.table.items() if mine.listed and own is not None and own.active else ():
            pod = self.pods.get(other.pod) if usage.listed and other.pod != key.pod and other.resource == key.resource else None
            if pod is not None and pod.active and (usage.ids == mine.ids or (usage.moment < mine.moment and usage.ids & mine.ids)):
                return other.pod
        return None

    def allocated_to_others(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> str | None:
        """UID of the pod to one of whose containers kubelet has given some of these ids; None if there is none.

        An ordinary init container passes its ids on to later containers of its pod, which may be unknown here.
        """
        mine = container.key if container else None
        counted = [*self._counted(resource), *((a.container.key, a.ids) for a in self._granted(resource) if a.container)]
        for key, given in counted:
            pod = self.pods.get(key.pod)
            passes_on = pod is None or key.container in pod.ordinary_init
            if key != mine and not passes_on and not given.isdisjoint(ids):
                return key.pod
        return None

    def former_ids(self, key: DeviceKey) -> frozenset[str]:
        """The ids of this container in a record that kubelet lost, without those that another container has. Init containers of its pod
        passed theirs on to it."""
        mine = self.table.get(key)
        if mine is None or mine.listed or not self.record_lost(key.pod):
            return frozenset()
        ids, pod = self.kept[key][0].ids if key in self.kept else mine.ids, self.pods.get(key.pod)
        own = {(key.pod, name, key.resource) for name in (pod.ordinary_init if pod else ())} | {key}
        granted = (a.ids for a in self._granted(key.resource))
        return ids.difference(
            *(usage.ids for other, usage in self._in_use() if other not in own and other.resource == key.resource), *granted
        )

    def ids_of(self, resource: str, gpu_uuids: Collection[str], *, orphaned: bool = False) -> set[str]:
        """The ids in use by containers that have some of these GPUs. orphaned: only by pods that are terminated."""
        used = self._in_use(orphaned=orphaned)
        ids = {i for key, usage in used if key.resource == resource and not usage.gpu_uuids.isdisjoint(gpu_uuids) for i in usage.ids}
        return ids if orphaned else ids.union(*(a.ids for a in self.recent_grants() if a.resource == resource))

    def gpu_uuids(self) -> dict[DeviceKey, Collection[str]]:
        """The GPUs that each container of the pods that are not terminated has."""
        found: dict[DeviceKey, Collection[str]] = {key: usage.gpu_uuids for key, usage in self._in_use() if usage.listed}
        found.update({a.container.key: gpu_uuids_of(a.resource, a.ids) for a in self.recent_grants() if a.container})
        return found

    def orphaned(self) -> dict[tuple[str, str], frozenset[str]]:
        """(pod UID, resource) → ids that the pod uses although it is terminated."""
        ids: dict[tuple[str, str], frozenset[str]] = {}
        for key, usage in self._in_use(orphaned=True):
            recorded = self.table[key].ids if key in self.kept else usage.ids
            ids[key.pod, key.resource] = ids.get((key.pod, key.resource), frozenset()) | usage.ids | recorded
        return ids

    def recorded_ids(self, uid: str, resource: str) -> frozenset[str]:
        """The ids that kubelet's checkpoint lists for this pod; none if it is terminated."""
        state = self.states.get(uid)
        if state is None or state.ending:
            return frozenset()
        return frozenset().union(*(u.ids for key, u in self.table.items() if u.listed and key.pod == uid and key.resource == resource))

    def units_by_gpu(self, inventory: Inventory | None, *, orphaned: bool = False) -> dict[str, int]:
        """GPU UUID → units in use. orphaned: only by pods that are terminated."""
        units: dict[str, int] = {}
        shifts = self.displaced(orphaned=orphaned)
        for gpu in inventory.gpus if inventory else ():
            whole = self.ids_of(protocol.RESOURCE_GPUS, [gpu.uuid], orphaned=orphaned)
            memory = self.ids_of(protocol.RESOURCE_MEMORY, [gpu.uuid], orphaned=orphaned)
            named = sum(gpu_of_unit(i) == gpu.uuid for i in memory) + shifts.get(gpu.uuid, 0)
            units[gpu.uuid] = gpu.units if gpu.uuid in whole else named
        return units

    def units_by_pod(self, inventory: Inventory | None) -> dict[tuple[str, str], int]:
        """(pod UID, GPU UUID) → units in use; all units of a whole GPU. Units that several containers of a pod share count once."""
        uids: set[str] = set()
        units: Counter[tuple[str, str]] = Counter()
        of_gpu = {gpu.uuid: gpu.units for gpu in inventory.gpus} if inventory else {}
        for (uid, _, resource), usage in self._in_use():
            if resource == protocol.RESOURCE_GPUS:
                units.update({(uid, gpu): of_gpu[gpu] for gpu in usage.gpu_uuids if gpu in of_gpu and (uid, gpu) not in units})
            else:
                uids.add(uid)
        for uid in uids:
            units.update({(uid, gpu): count for gpu, count in self.memory_of(uid).items() if gpu in of_gpu})
        return dict(units)

    def memory_of(self, uid: str) -> dict[str, int]:
        """GPU UUID → units of memory that the containers of this pod have; what they share counts once."""
        units: Counter[str] = Counter()
        seen: set[str] = set()
        for key, usage in self._in_use():
            if key.pod == uid and key.resource == protocol.RESOURCE_MEMORY:
                gpu = None if usage.index is None else self.gpus_by_index.get(usage.index)
                units.update(gpu.uuid if gpu is not None else gpu_of_unit(i) for i in usage.ids if i not in seen)
                seen |= usage.ids
        return dict(units)

    def allocated(self) -> set[DeviceKey]:
        """The containers that have their ids."""
        return self.listed_keys() | {allocation.container.key for allocation in self.recent_grants() if allocation.container}

    def entries_of(self, uid: str) -> list[CheckpointEntry]:
        """The ids of this pod's containers, by kubelet's checkpoint or by the record that kubelet lost."""
        lost = self.record_lost(uid)
        mine = ((key, usage) for key, usage in self.table.items() if key.pod == uid and (usage.listed or lost))
        had = ((key, self.kept[key][0] if key in self.kept else usage) for key, usage in mine)
        return [CheckpointEntry(*key, usage.ids, usage.index) for key, usage in had]

    def version(self, uid: str) -> int:
        """Another number after each change of what this pod has."""
        state = self.states.get(uid)
        return state.version if state is not None else 0

    def was_allocated(self, uid: str) -> bool:
        """Whether a container of this pod has ids, or had."""
        return uid in self.states or any(a.container and a.container.pod.uid == uid for a in self.recent_grants())

    def containers_with(self, resource: str, ids: frozenset[str]) -> list[DeviceKey]:
        """The containers that have exactly these ids, including released ones."""
        return [key for key, usage in self.table.items() if key.resource == resource and usage.ids == ids]

    def released(self, uid: str) -> bool:
        """Whether this pod of the table uses its ids no longer."""
        return self.states[uid].released

    def name(self, uid: str) -> str:
        """Namespace and name of a pod; "" if the watch never showed it."""
        pod, state = self.last_seen(uid), self.states.get(uid)
        return str(pod) if pod else state.name if state else ""

    def pod_name(self, uid: str) -> str:
        """The pod in a message."""
        name = self.name(uid)
        return f"pod {name}" if name else f"the pod with UID {uid}" if uid else "a pod admitted just now"

    # The contents of the usage file.

    def snapshot(self) -> dict[DeviceKey, frozenset[str]]:
        """All ids in use."""
        return {key: usage.ids for key, usage in self.table.items() if not self.states[key.pod].released}

    def names(self) -> Mapping[str, str]:
        """Pod UID → namespace and name, of the pods that use something."""
        return {uid: state.name for uid, state in self.states.items() if state.name and not state.released}

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container has which device ids, of both resources: one table, and one rule that ends a line of it.

A container has its ids while kubelet's checkpoint lists them. That ends when kubelet lists the ids as free again, or the API server reports
that the pod is finished. The container then keeps them until its pod has no process left. kubelet itself frees them earlier: after a
forced delete before the processes end, after a lost checkpoint while the pod runs. No I/O: clock and processes are arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey, gpu_of_unit, gpu_uuids_of
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PendingContainer, PodTable

# kubelet writes its checkpoint within milliseconds of an Allocate that it accepted.
_UNCONFIRMED_SECONDS: Final = 30.0
# Longer than the watch lags behind kubelet, and kubelet behind its own file.
_GRACE: Final = 10.0
# After an interruption the plugin takes in what the watch sends at once within this time.
_BURST: Final = 2.0
# A pod may be force-deleted while the runtime creates its container: that has no process yet, and soon has one.
START_GRACE: Final = 2.0
# The runtime creates a container between kubelet's PreStartContainer and the first process.
_CREATION_SECONDS: Final = 30.0
# The API server sends each watch a bookmark about every minute.
_SILENCE: Final = 90.0


class Processes(Protocol):
    """The processes on this host."""

    def pods(self, uids: Set[str]) -> Set[str]:
        """Those of these pods that have a process, or may have one. Takes some milliseconds."""

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


@dataclass
class PodState:
    """The known facts about the end of a pod in the table. Times are of the usage's clock."""

    seen_at: float  # in kubelet's checkpoint for the first time
    version: int = 0  # the moment when its ids changed last
    name: str = ""  # namespace/name; "" before the watch showed the pod
    dropped_at: float | None = None  # kubelet's checkpoint no longer lists something that it listed
    record_lost: bool = False  # kubelet lost its record, and did not forget the pod
    freed: bool = False  # kubelet reported some of its ids as available
    offered_at: float | None = None  # the same, although the API server shows it as active
    missing_since: float | None = None  # the API server should have reported it by then, and did not
    terminated_at: float | None = None  # kubelet or the API server no longer counts it
    alive: bool = False  # it had a process at the last scan
    ran: bool = False  # it had a process at a scan since terminated_at and its last start
    released: bool = False  # it is terminated, and no process is left or about to start
    starts: dict[tuple[str, ...], tuple[float, list[str]]] = field(default_factory=dict)
    """Containers, one of which kubelet was about to start (their ids are equal) → when, and the container IDs before."""


@dataclass(frozen=True)
class GpuUsers:
    """The pods (UID) that use each GPU (UUID); "" for an unknown pod that was admitted a moment ago."""

    memory: Mapping[str, Collection[str]]
    whole: Mapping[str, str]


class Usage:
    """The table. It is used from one event loop only. entries: kubelet's checkpoint as last read. moment: counts what was granted or
    listed.

    kept: (pod UID, container, resource) → ids that a running container has although kubelet's record lists others, and its container ID
    (None if unknown). kubelet allocates again for a running container if it is resized in place after its record was lost.
    """

    def __init__(self, pods: PodTable, clock: Callable[[], float]) -> None:
        self.entries: tuple[CheckpointEntry, ...] = ()
        self.changes = pods.changes
        self.gpus_by_index: Callable[[], Mapping[int, Gpu]] = dict
        """The GPUs of the node by NVML index; set by whoever has read them."""
        self.running: Callable[[str], Set[str] | None] = lambda _: None
        """As Processes.containers; set by whoever has them."""
        self._pods = pods
        pods.recorded = lambda uid: any(entry.pod == uid for entry in self.entries)
        self._clock = clock
        self._table: dict[DeviceKey, ContainerUsage] = {}
        self._states: dict[str, PodState] = {}
        self._unconfirmed: list[UnconfirmedAllocation] = []
        self._unrecorded: dict[str, float] = {}
        # UIDs of pods that have a process of their own before any container has started: kubelet has admitted them.
        self._admitted: set[str] = set()
        self.moment = 0
        self.kept: dict[DeviceKey, tuple[ContainerUsage, str | None]] = {}

    # The report of kubelet.

    def set_checkpoint(self, entries: tuple[CheckpointEntry, ...], age: float = 0.0) -> None:
        """Take kubelet's checkpoint. age: seconds since kubelet wrote it; it has had these pods for at least that long."""
        now = self._clock()
        self.moment += 1
        listed = {(entry.pod, entry.container, entry.resource): entry for entry in entries}
        counted = {key[0] for key in listed}
        for key, usage in self._table.items():
            if usage.listed and key not in listed:
                self._table[key] = replace(usage, listed=False)
                # kubelet forgets pods one by one and completely: all at once, or a part of one, is a lost record.
                state = self._states[key[0]]
                state.dropped_at, state.record_lost, state.freed = now, not entries or key[0] in counted, False
                state.version = self.moment
        for key, entry in listed.items():
            ids, before, state = entry.ids, self._table.get(key), self._states.setdefault(key[0], PodState(now - age))
            known = self._pods.removed(key[0]) is not None if before is None else not before.listed and state.dropped_at is not None
            if known:
                # kubelet allocates again when it starts a container, and does not call PreStartContainer. The pod may have gone meanwhile.
                state.starts[key[1],] = now, self._container_ids(key[0], [key[1]])
            # Mostly the very same object: comparing it costs nothing.
            if before is None or not (before.ids is ids or before.ids == ids):
                if before is not None and not before.listed and not before.ids <= ids and not state.released:
                    if self._runs(key):
                        self.kept.setdefault(key, (replace(before, listed=False), self._container_ids(key[0], [key[1]])[0] or None))
                    else:
                        self._exchange(key, before.ids, ids)
                self._table[key] = ContainerUsage(ids, gpu_uuids_of(key[2], ids), moment=self.moment, index=entry.index)
                self._set_counted(state)
            elif not before.listed or entry.index not in (None, before.index):
                # Only the checkpoint itself has the index: not the file of the process before, nor podresources.
                index = before.index if entry.index is None else entry.index
                self._table[key] = ContainerUsage(ids, before.gpu_uuids, moment=self.moment, index=index)
                self._set_counted(state)
            elif not before.moment:
                self._table[key] = replace(before, moment=self.moment)
        self._remove(key for key, usage in self._table.items() if not usage.listed and self._states[key[0]].released)
        for uid in {key[0] for key in self._table} - {key[0] for key, usage in self._table.items() if not usage.listed}:
            self._states[uid].dropped_at, self._states[uid].record_lost = None, False
        self.entries = entries
        # kubelet forgets the pod that had these ids before it allocates them: a listing is of the new pod.
        self._unconfirmed = [allocation for allocation in self._unconfirmed if not self._confirms(allocation)]
        self._changed()

    def _exchange(self, key: DeviceKey, left: frozenset[str], got: frozenset[str]) -> None:
        """A container starts with other ids than it had before kubelet lost its record: no request says which container it is for.

        A container that had these ids, and waits for its own start, has those that it left. Those that init containers passed on to one
        of the two go with it.
        """
        pod = self._pods.get(key[0])
        mine = {(key[0], name, key[2]) for name in (pod.ordinary_init if pod is not None else ())}
        moved = {key[0]: (left, got)}
        others = [other for other, usage in self._table.items() if other != key and not usage.listed and other[2] == key[2]]
        for other in others:
            if self._table[other].ids == got and other not in {*mine, *self.kept} and self.record_lost(other[0]):
                self._have(other, left)
                moved.setdefault(other[0], (got, left))
        for other in others:
            pod, ids = self._pods.get(other[0]), self._table[other].ids
            before, now = moved.get(other[0], (frozenset(), frozenset()))
            if pod is not None and other[1] in pod.ordinary_init and ids & before and len(ids) <= len(now):
                self._have(other, frozenset(sorted(now)[: len(ids)]))

    def _have(self, key: DeviceKey, ids: frozenset[str]) -> None:
        self._table[key] = replace(self._table[key], ids=ids, gpu_uuids=gpu_uuids_of(key[2], ids), index=None)
        self._states[key[0]].version = self.moment

    def _runs(self, key: DeviceKey) -> bool:
        names = self.running(key[0])
        return names is None or key[1] in names

    def _set_counted(self, state: PodState) -> None:
        """kubelet allocated ids to the pod: earlier signs of its end were wrong."""
        state.freed, state.released, state.terminated_at, state.ran, state.offered_at = False, False, None, False, None
        state.version = self.moment

    def _confirms(self, allocation: UnconfirmedAllocation) -> bool:
        return any(entry.resource == allocation.resource and allocation.ids <= entry.ids for entry in self.entries)

    def record_grant(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> None:
        """The plugin has just allocated these ids. It wakes nothing: kubelet's checkpoint lists them within milliseconds, and that does."""
        self.moment += 1
        self._unconfirmed.append(UnconfirmedAllocation(resource, ids, container, self._clock(), self.moment))

    def observe_available(self, resource: str, ids: Collection[str], moment: int | None = None) -> None:
        """kubelet had these ids free at that moment, None for now: it rejected the allocations that had them, and no longer counts the
        pods that have them.

        It did not know what came later. And it may list as free ids of a pod that it counts: a client asked podresources while it waited
        for that pod's Allocate. So a pod that the API server shows as active has not ended by that alone.
        """
        available = ids if isinstance(ids, (set, frozenset)) else set(ids)
        known = self.moment if moment is None else moment
        self._unconfirmed = [a for a in self._unconfirmed if a.resource != resource or a.moment > known or a.ids.isdisjoint(available)]
        for (uid, _, of), usage in self._table.items():
            if usage.listed and usage.moment <= known and of == resource and not usage.ids.isdisjoint(available):
                state, pod = self._states[uid], self._pods.get(uid)
                if pod is None or not pod.active:
                    state.freed = True
                elif state.offered_at is None:
                    state.offered_at = self._clock()

    def record_start(self, keys: Collection[DeviceKey]) -> None:
        """kubelet is about to start one of these containers of one pod in the table: it will soon have a process."""
        [uid] = {key[0] for key in keys}
        state, names = self._states[uid], tuple(sorted(key[1] for key in keys))
        state.starts[names] = self._clock(), self._container_ids(uid, names)
        state.ran = False
        if state.released:
            state.released = False
            self._changed()

    def forget_start(self, resource: str, ids: frozenset[str]) -> None:
        """The container with these ids is not started after all."""
        for uid, container, _ in self.containers_with(resource, ids):
            starts = self._states[uid].starts
            self._states[uid].starts = {names: start for names, start in starts.items() if container not in names}

    def _container_ids(self, uid: str, containers: Collection[str]) -> list[str]:
        pod = self._last_seen(uid)
        return [pod.container_ids.get(name, "") if pod else "" for name in containers]

    # When a pod's ids are free.

    def release_terminated(self, live: Callable[[Set[str]], Set[str]]) -> None:
        """Release the ids of terminated pods without a process. live: returns those of the UIDs that have a process."""
        doubtful = self.terminated_pods()
        if doubtful:
            self.apply_process_scan(doubtful, live(doubtful))

    def terminated_pods(self) -> frozenset[str]:
        """Detect terminated pods, and release those that kubelet reported as stopped. Returns the UIDs of the others.

        Their processes decide. They keep their ids until `apply_process_scan` releases them.
        """
        now, stopped, changed = self._clock(), [], self._forget_kept()
        for uid, state in self._states.items():
            terminated = self._is_terminated(uid, state, now)
            if terminated != (state.terminated_at is not None):
                state.terminated_at = now if terminated else None
                state.alive = state.ran = state.released = False
                changed = True
            pod = self._last_seen(uid)
            if terminated and not state.released and pod is not None and pod.stopped:
                stopped.append(uid)
        self._update_unrecorded(now)
        if stopped or changed:
            self._release(stopped)
        kept = frozenset(key[0] for key in self.kept)
        kept |= {u for u, since in self._unrecorded.items() if u not in self._states and self._watch_has_passed(since)} - self._admitted
        return kept.union(u for u, s in self._states.items() if (s.terminated_at is not None and not s.released) or self.record_lost(u))

    def _forget_kept(self) -> bool:
        """Forget what containers had before they were started again; whether there was any."""
        before = len(self.kept)
        for key, (usage, container_id) in list(self.kept.items()):
            now = self._container_ids(key[0], [key[1]])[0]
            if container_id is None and now:
                self.kept[key] = usage, now
            elif now and now != container_id:
                self._forget(key)
                if key in self._table:
                    self._exchange(key, usage.ids, self._table[key].ids)
        return len(self.kept) != before

    def _forget(self, key: DeviceKey) -> None:
        del self.kept[key]
        self.moment += 1
        self._states[key[0]].version = self.moment

    def apply_process_scan(self, scanned: Set[str], live: Set[str]) -> None:
        """Of `scanned`, which `terminated_pods` returned before the scan, only the pods in `live` have a process."""
        now, ended, changed = self._clock(), [], False
        self._admitted = (self._admitted | (scanned & live)) & self._unrecorded.keys()
        for uid in scanned & self._states.keys():
            state = self._states[uid]
            for key in [key for key in self.kept if key[0] == uid and uid not in live and not self.is_starting(key)]:
                self._forget(key)
                changed = True
            if state.terminated_at is None and not self.record_lost(uid):
                continue
            changed = changed or state.alive != (uid in live)
            state.alive = uid in live
            state.ran = state.ran or state.alive
            if state.terminated_at is not None and not state.alive and not state.released and self._has_no_start_ahead(uid, state, now):
                ended.append(uid)
        if ended or changed:
            self._release(ended)

    def _release(self, uids: Collection[str]) -> None:
        for uid in uids:
            self._states[uid].released = True
        self._remove(key for key, usage in self._table.items() if not usage.listed and key[0] in uids)
        self._changed()

    def _remove(self, keys: Iterable[DeviceKey]) -> None:
        for key in list(keys):
            del self._table[key]
        left = {key[0] for key in self._table}
        self._states = {uid: state for uid, state in self._states.items() if uid in left}
        self.kept = {key: usage for key, usage in self.kept.items() if key[0] in left}

    def _changed(self) -> None:
        for uid, state in self._states.items():
            pod = None if state.name else self._pods.get(uid)
            state.name = str(pod) if pod is not None else state.name
        self.changes.notify()

    def _is_terminated(self, uid: str, state: PodState, now: float) -> bool:
        """Whether kubelet no longer counts the pod, or the API server does not although kubelet's checkpoint lists it."""
        pod = self._pods.get(uid)
        if state.offered_at is not None and pod is not None:
            # Of a pod that has run, processes decide; before that nothing shows that kubelet is about to start it.
            patience = _GRACE if pod.phase == "Running" else _SILENCE
            heard = self._pods.last_contact()
            if self._watch_has_passed(state.offered_at):
                state.offered_at = None
            elif now - max(state.offered_at, state.offered_at if heard is None else heard) >= patience:
                state.freed = True
        if state.freed or (state.dropped_at is not None and not state.record_lost):
            return True
        if pod is not None:
            return pod.finished
        if state.terminated_at is not None or self._pods.removed(uid) is not None:
            return True
        # The watch never showed the pod: it may lag behind kubelet, for as long as it is interrupted.
        if not self._watch_has_passed(state.seen_at):
            state.missing_since = None
            return False
        state.missing_since = now if state.missing_since is None else state.missing_since
        return now - state.missing_since >= _BURST

    def _watch_has_passed(self, time: float) -> bool:
        """Whether the API server's last contact is so late that the watch has shown what kubelet knew at that time."""
        contact = self._pods.last_contact()
        return self._pods.synced and contact is not None and contact > time + _GRACE

    def _has_no_start_ahead(self, uid: str, state: PodState, now: float) -> bool:
        """Whether a pod without a process will not get one any more."""
        if state.ran:
            return True
        if any(self._may_be_creating(uid, containers) for containers in state.starts):
            return False
        pod = self._last_seen(uid)
        if pod is not None and pod.phase != "Pending":
            return True
        return state.terminated_at is not None and now - state.terminated_at >= START_GRACE

    def _may_be_creating(self, uid: str, containers: tuple[str, ...]) -> bool:
        """Whether the runtime may be creating one of them: kubelet has not reported a new one since the start."""
        at, before = self._states[uid].starts[containers]
        return self._clock() - at < _CREATION_SECONDS and self._container_ids(uid, containers) == before

    def is_starting(self, key: DeviceKey) -> bool:
        """Whether the runtime may be creating the container."""
        state = self._states.get(key[0])
        return state is not None and any(key[1] in containers and self._may_be_creating(key[0], containers) for containers in state.starts)

    def may_run(self, key: DeviceKey, running: Callable[[str], Set[str] | None]) -> bool:
        """Whether the container may use ids that kubelet does not count. running: see Processes.containers.

        Of a pod that kubelet no longer counts, any process may use them.
        """
        if not self.record_lost(key[0]) or self.is_starting(key):
            return True
        names = running(key[0])
        return names is None or key[1] in names

    # The ids that kubelet's checkpoint should list, and does not.

    def _update_unrecorded(self, now: float) -> None:
        listed = self._listed()
        self._unrecorded = {pod.uid: self._unrecorded.get(pod.uid, now) for pod in self._pods if self._lacks_record(pod, listed)}
        for uid, since in self._unrecorded.items():
            state = self._states.get(uid)
            if state is not None and state.dropped_at is not None and self._watch_has_passed(since):
                # Had kubelet forgotten a deleted pod, the API server would have reported its end by now.
                state.record_lost = True

    def _listed(self) -> set[DeviceKey]:
        return {key for key, usage in self._table.items() if usage.listed}

    def _lacks_record(self, pod: LocalPod, listed: Set[DeviceKey], resource: str = "") -> bool:
        """Whether kubelet's record lacks some ids that the pod requests."""
        requested = ((pod.uid, of.container, of.resource) for of in pod.container_devices if resource in ("", of.resource))
        return pod.active and any(key not in listed for key in requested)

    def _was_admitted(self, pod: LocalPod) -> bool:
        """Whether kubelet has admitted the pod, with all of its containers."""
        # During the init phase a pod is Pending; a container ID shows it, and what kubelet has recorded before.
        started = pod.phase == "Running" or any(pod.container_ids.values())
        return started or pod.uid in self._admitted or (pod.uid in self._states and self._states[pod.uid].dropped_at is not None)

    def any_record_lost(self, resource: str) -> bool:
        """Whether kubelet lacks the record of a container with this resource that runs or will run again."""
        listed = self._listed()
        for uid, since in self._unrecorded.items():
            pod, state = self._pods.get(uid), self._states.get(uid)
            # Immediately if the checkpoint is lost and the pod has a process; else when watch and checkpoint had time to agree.
            plain = state is not None and state.record_lost and state.alive
            if not pod or not self._was_admitted(pod) or not self._lacks_record(pod, listed, resource):
                continue
            if plain or self._watch_has_passed(since):
                return True
        return False

    def record_lost(self, uid: str) -> bool:
        """Whether kubelet has lost its record of a pod that it still counts."""
        state, pod = self._states.get(uid), self._pods.get(uid)
        return state is not None and state.record_lost and pod is not None and pod.active

    def lost(self, key: DeviceKey) -> bool:
        """Whether kubelet has lost its record of this container, and the plugin has it."""
        usage = self._table.get(key)
        return usage is not None and not usage.listed and self.record_lost(key[0]) and not self._states[key[0]].released

    def dropped_by_kubelet(self) -> set[str]:
        """UIDs of the pods that kubelet no longer counts, even if the watch still shows them."""
        return {u for u, state in self._states.items() if state.freed or (state.dropped_at is not None and not self.record_lost(u))}

    # Queries.

    def _last_seen(self, uid: str) -> LocalPod | None:
        return self._pods.get(uid) or self._pods.removed(uid)

    def _recent(self) -> list[UnconfirmedAllocation]:
        now = self._clock()
        self._unconfirmed = [allocation for allocation in self._unconfirmed if now - allocation.at < _UNCONFIRMED_SECONDS]
        return self._unconfirmed

    def _in_use(self, *, orphaned: bool = False) -> Iterator[tuple[DeviceKey, ContainerUsage]]:
        """orphaned: only what kubelet may allocate to others although it is in use."""
        for key, usage in self._table.items():
            state = self._states[key[0]]
            if not state.released and not (orphaned and usage.listed and state.terminated_at is None):
                yield key, usage
        for key, (usage, _) in self.kept.items():
            if not self._states[key[0]].released:
                yield key, usage

    def gpu_users(self) -> GpuUsers:
        """The pods that use each GPU."""
        memory: dict[str, set[str]] = {}
        whole: dict[str, str] = {}
        used = [(key[0], key[2], self._gpus_of(usage)) for key, usage in self._in_use()]
        used += [(a.container.pod.uid if a.container else "", a.resource, gpu_uuids_of(a.resource, a.ids)) for a in self._recent()]
        for uid, resource, gpu_uuids in used:
            for gpu in gpu_uuids:
                if resource == protocol.RESOURCE_GPUS:
                    whole[gpu] = uid
                else:
                    memory.setdefault(gpu, set()).add(uid)
        return GpuUsers(memory, whole)

    def _gpus_of(self, usage: ContainerUsage) -> Set[str]:
        """The GPUs whose memory or ids it has."""
        gpu = None if usage.index is None else self.gpus_by_index().get(usage.index)
        return usage.gpu_uuids if gpu is None else {*usage.gpu_uuids, gpu.uuid}

    def given_index(self, keys: Iterable[DeviceKey]) -> int | None:
        """The GPU (NVML index) that another device plugin gave one of these containers; None if their ids name their GPUs."""
        return next((self._table[key].index for key in keys if key in self._table and self._table[key].index is not None), None)

    def keys_of(self, uid: str) -> list[DeviceKey]:
        """The pod's containers that have ids."""
        return [key for key in self._table if key[0] == uid]

    def displaced(self, *, orphaned: bool = False) -> dict[str, int]:
        """GPU UUID → units that containers have of it without its ids, less the ids of it that they have without its memory.

        Another device plugin gave them their GPUs without reading the ids that kubelet chose.
        """
        shifts: Counter[str] = Counter()
        seen: set[tuple[str, str]] = set()
        for key, usage in self._in_use(orphaned=orphaned):
            gpu = None if usage.index is None else self.gpus_by_index().get(usage.index)
            # Init containers pass their ids on.
            new = [i for i in usage.ids if (key[0], i) not in seen] if gpu is not None else []
            seen.update((key[0], i) for i in new)
            if gpu is not None:
                shifts[gpu.uuid] += len(new)
                shifts.subtract(gpu_of_unit(i) for i in new)
        return {uuid: shift for uuid, shift in shifts.items() if shift}

    def still_in_use(self, resource: str) -> dict[DeviceKey, frozenset[str]]:
        """The ids that containers use although kubelet may list them as free."""
        used: dict[DeviceKey, frozenset[str]] = {}
        for key, usage in self._in_use(orphaned=True):
            if key[2] == resource:
                used[key] = used.get(key, frozenset()) | usage.ids
        return used

    def _counted(self, resource: str) -> Iterator[tuple[DeviceKey, frozenset[str]]]:
        """The ids that kubelet has given to containers and counts for them."""
        for key, usage in self._table.items():
            state = self._states[key[0]]
            if key[2] == resource and usage.listed and not state.freed and state.terminated_at is None:
                yield key, usage.ids

    def counted_ids(self, resource: str) -> frozenset[str]:
        """The ids that kubelet counts for containers, or has just been given for them."""
        return frozenset().union(*(ids for _, ids in self._counted(resource)), *(a.ids for a in self._granted(resource)))

    def _granted(self, resource: str) -> Iterator[UnconfirmedAllocation]:
        """The ids that kubelet has just been given for containers of pods that have not ended since."""
        for allocation in self._recent():
            pod = self._pods.get(allocation.container.pod.uid) if allocation.container else None
            if allocation.resource == resource and not (pod is not None and pod.finished):
                yield allocation

    def recorded_twice(self, key: DeviceKey) -> str | None:
        """UID of another active pod for which kubelet's record has all the ids of this container, or had some of them before it."""
        mine, own = self._table[key], self._pods.get(key[0])
        for other, usage in self._table.items() if mine.listed and own is not None and own.active else ():
            pod = self._pods.get(other[0]) if usage.listed and other[0] != key[0] and other[2] == key[2] else None
            if pod is not None and pod.active and (usage.ids == mine.ids or (usage.moment < mine.moment and usage.ids & mine.ids)):
                return other[0]
        return None

    def allocated_to_others(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> str | None:
        """UID of the pod to one of whose containers kubelet has given some of these ids; None if there is none.

        An ordinary init container passes its ids on to later containers of its pod, which may be unknown here.
        """
        mine = container.key if container else None
        counted = [*self._counted(resource), *((a.container.key, a.ids) for a in self._granted(resource) if a.container)]
        for key, of in counted:
            pod = self._pods.get(key[0])
            passes_on = pod is None or key[1] in pod.ordinary_init
            if key != mine and not passes_on and not of.isdisjoint(ids):
                return key[0]
        return None

    def former_ids(self, key: DeviceKey) -> frozenset[str]:
        """The ids of this container in a record that kubelet lost, without those that another container has. Init containers of its pod
        passed theirs on to it."""
        mine = self._table.get(key)
        if mine is None or mine.listed or not self.record_lost(key[0]):
            return frozenset()
        ids, pod = self.kept[key][0].ids if key in self.kept else mine.ids, self._pods.get(key[0])
        own = {(key[0], name, key[2]) for name in (pod.ordinary_init if pod else ())} | {key}
        granted = (a.ids for a in self._granted(key[2]))
        return ids.difference(*(usage.ids for other, usage in self._in_use() if other not in own and other[2] == key[2]), *granted)

    def ids_of(self, resource: str, gpu_uuids: Collection[str], *, orphaned: bool = False) -> set[str]:
        """The ids in use by containers that have some of these GPUs. orphaned: only by pods that are terminated."""
        used = self._in_use(orphaned=orphaned)
        ids = {i for key, usage in used if key[2] == resource and not usage.gpu_uuids.isdisjoint(gpu_uuids) for i in usage.ids}
        return ids if orphaned else ids.union(*(a.ids for a in self._recent() if a.resource == resource))

    def gpu_uuids(self) -> dict[DeviceKey, Collection[str]]:
        """The GPUs that each container of the pods that are not terminated has."""
        found: dict[DeviceKey, Collection[str]] = {key: usage.gpu_uuids for key, usage in self._in_use() if usage.listed}
        found.update({a.container.key: gpu_uuids_of(a.resource, a.ids) for a in self._recent() if a.container})
        return found

    def orphaned(self) -> dict[tuple[str, str], frozenset[str]]:
        """(pod UID, resource) → ids that the pod uses although it is terminated."""
        ids: dict[tuple[str, str], frozenset[str]] = {}
        for key, usage in self._in_use(orphaned=True):
            of = self._table[key].ids if key in self.kept else usage.ids
            ids[key[0], key[2]] = ids.get((key[0], key[2]), frozenset()) | usage.ids | of
        return ids

    def recorded_ids(self, uid: str, resource: str) -> frozenset[str]:
        """The ids that kubelet's checkpoint lists for this pod; none if it is terminated."""
        state = self._states.get(uid)
        if state is None or state.terminated_at is not None:
            return frozenset()
        return frozenset().union(*(u.ids for key, u in self._table.items() if u.listed and key[0] == uid and key[2] == resource))

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
            if key[0] == uid and key[2] == protocol.RESOURCE_MEMORY:
                gpu = None if usage.index is None else self.gpus_by_index().get(usage.index)
                units.update(gpu.uuid if gpu is not None else gpu_of_unit(i) for i in usage.ids if i not in seen)
                seen |= usage.ids
        return dict(units)

    def allocated(self) -> set[DeviceKey]:
        """The containers that have their ids."""
        return self._listed() | {allocation.container.key for allocation in self._recent() if allocation.container}

    def entries_of(self, uid: str) -> list[CheckpointEntry]:
        """The ids of this pod's containers, by kubelet's checkpoint or by the record that kubelet lost."""
        lost = self.record_lost(uid)
        mine = ((key, usage) for key, usage in self._table.items() if key[0] == uid and (usage.listed or lost))
        of = ((key, self.kept[key][0] if key in self.kept else usage) for key, usage in mine)
        return [CheckpointEntry(*key, usage.ids, usage.index) for key, usage in of]

    def version(self, uid: str) -> int:
        """Another number after each change of what this pod has."""
        state = self._states.get(uid)
        return state.version if state is not None else 0

    def was_allocated(self, uid: str) -> bool:
        """Whether a container of this pod has ids, or had."""
        return uid in self._states or any(a.container and a.container.pod.uid == uid for a in self._recent())

    def containers_with(self, resource: str, ids: frozenset[str]) -> list[DeviceKey]:
        """The containers that have exactly these ids, including released ones."""
        return [key for key, usage in self._table.items() if key[2] == resource and usage.ids == ids]

    def released(self, uid: str) -> bool:
        """Whether this pod of the table uses its ids no longer."""
        return self._states[uid].released

    def name(self, uid: str) -> str:
        """Namespace and name of a pod; "" if the watch never showed it."""
        pod, state = self._last_seen(uid), self._states.get(uid)
        return str(pod) if pod else state.name if state else ""

    def pod_name(self, uid: str) -> str:
        """The pod in a message."""
        name = self.name(uid)
        return f"pod {name}" if name else f"the pod with UID {uid}" if uid else "a pod admitted just now"

    # The contents of the usage file.

    def snapshot(self) -> dict[DeviceKey, frozenset[str]]:
        """All ids in use."""
        return {key: usage.ids for key, usage in self._table.items() if not self._states[key[0]].released}

    def names(self) -> Mapping[str, str]:
        """Pod UID → namespace and name, of the pods that use something."""
        return {uid: state.name for uid, state in self._states.items() if state.name and not state.released}

    def restore(
        self,
        snapshot: Mapping[DeviceKey, frozenset[str]],
        names: Mapping[str, str],
        kept: Mapping[DeviceKey, tuple[frozenset[str], str | None]] | None = None,
    ) -> None:
        """Take what was in use when the previous process ended. Call it before the first checkpoint, which is newer."""
        now = self._clock()
        for key, ids in snapshot.items():
            self._table[key] = ContainerUsage(ids, gpu_uuids_of(key[2], ids))
            self._states.setdefault(key[0], PodState(now, name=names.get(key[0], "")))
        for key, (ids, container_id) in (kept or {}).items():
            if key in self._table:
                self.kept[key] = ContainerUsage(ids, gpu_uuids_of(key[2], ids), listed=False), container_id
        self._changed()

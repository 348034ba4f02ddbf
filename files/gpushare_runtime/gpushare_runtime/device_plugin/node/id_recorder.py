# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Changes of which container has which device ids: one rule that ends a line of the table of id_usage.py.

A container has its ids while kubelet's checkpoint lists them. That ends when kubelet lists the ids as free again, or the API server reports
that the pod is finished. The container then keeps them until its pod has no process left. kubelet itself frees them earlier: after a
forced delete before the processes end, after a lost checkpoint while the pod runs. No I/O: clock and processes are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace

from gpushare_runtime.core.unit_ids import gpu_uuids_of
from gpushare_runtime.device_plugin.node.id_usage import ContainerUsage, UnconfirmedAllocation, Usage
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer
from gpushare_runtime.device_plugin.node.pod_state import PodState, Record, Stage, container_ids


class UsageRecorder:
    """Takes what kubelet, the API server and the host's processes say of a node's ids. It is used from one event loop only.

    running: as Processes.containers.
    """

    def __init__(self, usage: Usage, running: Callable[[str], Set[str] | None]) -> None:
        self._usage = usage
        self._running = running

    # The report of kubelet.

    def set_checkpoint(self, entries: tuple[CheckpointEntry, ...], age: float = 0.0) -> None:
        """Take kubelet's checkpoint. age: seconds since kubelet wrote it; it has had these pods for at least that long."""
        now = self._usage.clock()
        self._usage.moment += 1
        listed = {DeviceKey(entry.pod, entry.container, entry.resource): entry for entry in entries}
        counted = {key.pod for key in listed}
        for key, usage in self._usage.table.items():
            if usage.listed and key not in listed:
                self._usage.table[key] = replace(usage, listed=False)
                # kubelet forgets pods one by one and completely: all at once, or a part of one, is a lost record.
                self._usage.states[key.pod].drop(not entries or key.pod in counted, self._usage.moment)
        for key, entry in listed.items():
            ids, before, state = entry.ids, self._usage.table.get(key), self._usage.states.setdefault(key.pod, PodState(now - age))
            known = (
                self._usage.pods.removed(key.pod) is not None if before is None else not before.listed and state.record is not Record.LISTED
            )
            if known:
                # kubelet allocates again when it starts a container, and does not call PreStartContainer. The pod may have gone meanwhile.
                state.has_started(key.container, self._container_ids(key.pod, [key.container]), now)
            # Mostly the very same object: comparing it costs nothing.
            if before is None or not (before.ids is ids or before.ids == ids):
                if before is not None and not before.listed and not before.ids <= ids and not state.released:
                    if self._runs(key):
                        self._usage.kept.setdefault(
                            key, (replace(before, listed=False), self._container_ids(key.pod, [key.container])[0] or None)
                        )
                    else:
                        self._exchange(key, before.ids, ids)
                self._usage.table[key] = ContainerUsage(ids, gpu_uuids_of(key.resource, ids), moment=self._usage.moment, index=entry.index)
                state.count(self._usage.moment)
            elif not before.listed or entry.index not in (None, before.index):
                # Only the checkpoint itself has the index: not the file of the process before, nor podresources.
                index = before.index if entry.index is None else entry.index
                self._usage.table[key] = ContainerUsage(ids, before.gpu_uuids, moment=self._usage.moment, index=index)
                state.count(self._usage.moment)
            elif not before.moment:
                self._usage.table[key] = replace(before, moment=self._usage.moment)
        self._remove(key for key, usage in self._usage.table.items() if not usage.listed and self._usage.states[key.pod].released)
        for uid in {key.pod for key in self._usage.table} - {key.pod for key, usage in self._usage.table.items() if not usage.listed}:
            self._usage.states[uid].relist()
        self._usage.entries = entries
        self._usage.pods.recorded = frozenset(entry.pod for entry in entries)
        # kubelet forgets the pod that had these ids before it allocates them: a listing is of the new pod.
        self._usage.unconfirmed = [allocation for allocation in self._usage.unconfirmed if not self._confirms(allocation)]
        self._changed()

    def _exchange(self, key: DeviceKey, left: frozenset[str], got: frozenset[str]) -> None:
        """A container starts with other ids than it had before kubelet lost its record: no request says which container it is for.

        A container that had these ids, and waits for its own start, has those that it left. Those that init containers passed on to one
        of the two go with it.
        """
        pod = self._usage.pods.get(key.pod)
        mine = {(key.pod, name, key.resource) for name in (pod.ordinary_init if pod is not None else ())}
        moved = {key.pod: (left, got)}
        others = [
            other for other, usage in self._usage.table.items() if other != key and not usage.listed and other.resource == key.resource
        ]
        for other in others:
            if self._usage.table[other].ids == got and other not in {*mine, *self._usage.kept} and self._usage.record_lost(other.pod):
                self._have(other, left)
                moved.setdefault(other.pod, (got, left))
        for other in others:
            pod, ids = self._usage.pods.get(other.pod), self._usage.table[other].ids
            before, now = moved.get(other.pod, (frozenset(), frozenset()))
            if pod is not None and other.container in pod.ordinary_init and ids & before and len(ids) <= len(now):
                self._have(other, frozenset(sorted(now)[: len(ids)]))

    def _have(self, key: DeviceKey, ids: frozenset[str]) -> None:
        self._usage.table[key] = replace(self._usage.table[key], ids=ids, gpu_uuids=gpu_uuids_of(key.resource, ids), index=None)
        self._usage.states[key.pod].change(self._usage.moment)

    def _runs(self, key: DeviceKey) -> bool:
        names = self._running(key.pod)
        return names is None or key.container in names

    def _confirms(self, allocation: UnconfirmedAllocation) -> bool:
        return any(entry.resource == allocation.resource and allocation.ids <= entry.ids for entry in self._usage.entries)

    def record_grant(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> None:
        """The plugin has just allocated these ids. It wakes nothing: kubelet's checkpoint lists them within milliseconds, and that does."""
        self._usage.moment += 1
        self._usage.unconfirmed = [
            *self._usage.recent_grants(),
            UnconfirmedAllocation(resource, ids, container, self._usage.clock(), self._usage.moment),
        ]

    def observe_available(self, resource: str, ids: Collection[str], moment: int | None = None) -> None:
        """kubelet had these ids free at that moment, None for now: it rejected the allocations that had them, and no longer counts the
        pods that have them.

        It did not know what came later. And it may list as free ids of a pod that it counts: a client asked podresources while it waited
        for that pod's Allocate. So a pod that the API server shows as active has not ended by that alone.
        """
        available = ids if isinstance(ids, (set, frozenset)) else set(ids)
        known = self._usage.moment if moment is None else moment
        self._usage.unconfirmed = [
            a for a in self._usage.unconfirmed if a.resource != resource or a.moment > known or a.ids.isdisjoint(available)
        ]
        for key, usage in self._usage.table.items():
            if usage.listed and usage.moment <= known and key.resource == resource and not usage.ids.isdisjoint(available):
                self._usage.states[key.pod].note_free_ids(self._usage.pods.get(key.pod), self._usage.clock())

    def record_start(self, keys: Collection[DeviceKey]) -> None:
        """kubelet is about to start one of these containers of one pod in the table: it will soon have a process."""
        [uid] = {key.pod for key in keys}
        names = tuple(sorted(key.container for key in keys))
        if self._usage.states[uid].start(names, self._container_ids(uid, names), self._usage.clock()):
            self._changed()

    def forget_start(self, resource: str, ids: frozenset[str]) -> None:
        """The container with these ids is not started after all."""
        for uid, container, _ in self._usage.containers_with(resource, ids):
            self._usage.states[uid].forget_start(container)

    def _container_ids(self, uid: str, containers: Collection[str]) -> list[str]:
        return container_ids(self._usage.last_seen(uid), containers)

    # When a pod's ids are free.

    def release_terminated(self, live: Callable[[Set[str]], Set[str]]) -> None:
        """Release the ids of terminated pods without a process. live: returns those of the UIDs that have a process."""
        doubtful = self.detect_terminated()
        if doubtful:
            self.apply_process_scan(doubtful, live(doubtful))

    def detect_terminated(self) -> frozenset[str]:
        """Detect terminated pods, and release those that kubelet reported as stopped. Returns the UIDs of the others.

        Their processes decide. They keep their ids until `apply_process_scan` releases them.
        """
        now, stopped, changed = self._usage.clock(), [], self._forget_kept()
        for uid, state in self._usage.states.items():
            watched = self._usage.watched(uid)
            changed = state.judge(watched, now) or changed
            if state.stage is Stage.ENDING and watched.last is not None and watched.last.stopped:
                stopped.append(uid)
        self._update_unrecorded(now)
        if stopped or changed:
            self._release(stopped)
        kept = frozenset(key.pod for key in self._usage.kept)
        kept |= {
            u for u, since in self._usage.unrecorded.items() if u not in self._usage.states and self._usage.watch_state().has_passed(since)
        } - self._usage.admitted
        return kept.union(uid for uid, state in self._usage.states.items() if state.stage is Stage.ENDING or self._usage.record_lost(uid))

    def _forget_kept(self) -> bool:
        """Forget what containers had before they were started again; whether there was any."""
        before = len(self._usage.kept)
        for key, (usage, container_id) in list(self._usage.kept.items()):
            now = self._container_ids(key.pod, [key.container])[0]
            if container_id is None and now:
                self._usage.kept[key] = usage, now
            elif now and now != container_id:
                self._forget(key)
                if key in self._usage.table:
                    self._exchange(key, usage.ids, self._usage.table[key].ids)
        return len(self._usage.kept) != before

    def _forget(self, key: DeviceKey) -> None:
        del self._usage.kept[key]
        self._usage.moment += 1
        self._usage.states[key.pod].change(self._usage.moment)

    def apply_process_scan(self, scanned: Set[str], live: Set[str]) -> None:
        """Of `scanned`, which `detect_terminated` returned before the scan, only the pods in `live` have a process."""
        now, ended, changed = self._usage.clock(), [], False
        self._usage.admitted = (self._usage.admitted | (scanned & live)) & self._usage.unrecorded.keys()
        for uid in scanned & self._usage.states.keys():
            state = self._usage.states[uid]
            for key in [key for key in self._usage.kept if key.pod == uid and uid not in live and not self._usage.is_starting(key)]:
                self._forget(key)
                changed = True
            watched = self._usage.watched(uid)
            changed = state.scan(uid in live, watched.pod) or changed
            if state.is_over(watched, now):
                ended.append(uid)
        if ended or changed:
            self._release(ended)

    def _release(self, uids: Collection[str]) -> None:
        for uid in uids:
            self._usage.states[uid].release()
        self._remove(key for key, usage in self._usage.table.items() if not usage.listed and key.pod in uids)
        self._changed()

    def _remove(self, keys: Iterable[DeviceKey]) -> None:
        for key in list(keys):
            del self._usage.table[key]
        left = {key.pod for key in self._usage.table}
        self._usage.states = {uid: state for uid, state in self._usage.states.items() if uid in left}
        self._usage.kept = {key: usage for key, usage in self._usage.kept.items() if key.pod in left}

    def _changed(self) -> None:
        for uid, state in self._usage.states.items():
            state.identify(None if state.name else self._usage.pods.get(uid))
        self._usage.pods.changes.notify()

    # The ids that kubelet's checkpoint should list, and does not.

    def _update_unrecorded(self, now: float) -> None:
        listed = self._usage.listed_keys()
        self._usage.unrecorded = {
            pod.uid: self._usage.unrecorded.get(pod.uid, now) for pod in self._usage.pods if self._usage.lacks_record(pod, listed)
        }
        for uid, since in self._usage.unrecorded.items():
            state = self._usage.states.get(uid)
            if state is not None and state.record is not Record.LISTED and self._usage.watch_state().has_passed(since):
                # Had kubelet forgotten a deleted pod, the API server would have reported its end by now.
                state.lose()

    # The usage file of the process before.

    def restore(
        self,
        snapshot: Mapping[DeviceKey, frozenset[str]],
        names: Mapping[str, str],
        kept: Mapping[DeviceKey, tuple[frozenset[str], str | None]] | None = None,
        age: float = 0.0,
    ) -> None:
        """Take what was in use when the previous process ended. Call it before the first checkpoint, which is newer.

        age: seconds since that process wrote it; kubelet has had these pods for at least that long. Else those that ended between the two
        processes would keep their units until the watch of a quiet node has something to say, which may take a minute.
        """
        now = self._usage.clock() - age
        for key, ids in snapshot.items():
            self._usage.table[key] = ContainerUsage(ids, gpu_uuids_of(key.resource, ids))
            self._usage.states.setdefault(key.pod, PodState(now, name=names.get(key.pod, "")))
        for key, (ids, container_id) in (kept or {}).items():
            if key in self._usage.table:
                self._usage.kept[key] = ContainerUsage(ids, gpu_uuids_of(key.resource, ids), listed=False), container_id
        self._changed()

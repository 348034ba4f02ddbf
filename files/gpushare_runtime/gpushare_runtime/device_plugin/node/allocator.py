# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The three decisions for kubelet: which ids it should allocate, what a container with ids gets, and whether a container may start.

kubelet requests devices for one container after another, and knows which ids of a resource are free. The plugin decides what kubelet
cannot: both resources share the same GPUs, the scheduler planned a GPU, processes may still use ids. Before every start of a
container kubelet waits at most 30 s for the plugin, and retries a rejected start. The plugin publishes a rejection, so that the
scheduler does not choose that GPU for that size again. No I/O: clocks are arguments.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.constraints import Labels, selects
from gpushare_runtime.core.inventory import HEALTHY, Gpu
from gpushare_runtime.core.mps import client_access
from gpushare_runtime.core.node_report import Rejection
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.candidates import CandidateGpu, Candidates
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.ids import DeviceKey, gpu_uuids_of
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PendingContainer, PodTable
from gpushare_runtime.device_plugin.node.messages import gpu_name, requested, unavailable
from gpushare_runtime.device_plugin.node.pending import PendingContainers
from gpushare_runtime.device_plugin.node.strategy import GpuAccess, access_to
from gpushare_runtime.device_plugin.node.usage import Usage
from gpushare_runtime.device_plugin.node.usage_table import Processes

# Longer than a controller takes to create the next pod, for which the scheduler would choose the GPU again.
LIFETIME: Final = 60.0
# Two clocks differ by less from one reading to the next, unless one of them was set.
_CLOCK_SET: Final = 2.0


class AllocationRejected(Exception):
    """The plugin rejects an allocation or a start; kubelet reports the text in the pod's status."""


class Rejections:
    """The allocations that the plugin rejected. Each expires, or ends as soon as other pods use the GPU.

    clock: monotonic seconds. now: Unix time, which a person may set. users_of: returns the users of a GPU.
    """

    def __init__(self, clock: Callable[[], float], now: Callable[[], float], users_of: Callable[[str], Hashable], changes: Changes) -> None:
        self.changes = changes
        self._clock = clock
        self._now = now
        self._users_of = users_of
        self._known: dict[tuple[str, str], tuple[Rejection, float, Hashable]] = {}

    def add(self, uid: str, gpu: str, units: int, *, whole: bool) -> None:
        rejection = Rejection(uid, gpu, units, self._now() + LIFETIME, whole)
        self._known[uid, gpu] = rejection, self._clock() + LIFETIME, self._users_of(gpu)
        self.changes.notify()

    def current(self) -> list[Rejection]:
        """Those in force, oldest first."""
        clock, now = self._clock(), self._now()
        kept = {}
        for key, (rejection, end, users) in self._known.items():
            if end > clock and self._users_of(rejection.gpu) == users:
                until = now + end - clock
                # The published time changes only if the host's clock was set.
                kept[key] = (replace(rejection, until=until) if abs(until - rejection.until) > _CLOCK_SET else rejection), end, users
        self._known = kept
        return [rejection for rejection, _, _ in kept.values()]


@dataclass(frozen=True)
class AllocateResult:
    """The response to Allocate. access: what makes the container runtime hand over the GPUs."""

    environment: Mapping[str, str]
    access: GpuAccess
    gpus: tuple[Gpu, ...]
    container: PendingContainer | None
    as_planned: bool | None  # whether these are the GPUs that the scheduler planned; None if it planned none


def allocate_response(
    resource: str,
    ids: Collection[str],
    gpus: tuple[Gpu, ...],
    container: PendingContainer | None,
    strategy: str = protocol.STRATEGY_ENVIRONMENT,
    unit_mib: int = 0,
    isolation: str = "",
    cdi_kind: str = protocol.CDI_KIND,
) -> AllocateResult:
    """gpus: those of the ids, by index. strategy: of protocol.STRATEGIES. unit_mib: size of a unit. isolation, cdi_kind: of this node."""
    units = len(ids) if resource == protocol.RESOURCE_MEMORY else sum(gpu.units for gpu in gpus)
    pod_units, as_planned = units, None
    if container is not None:
        planned = container.devices.units_by_gpu
        if container.pod.allocation is not None:
            pod_units = container.pod.allocation.units
            if resource == protocol.RESOURCE_GPUS:
                # Other GPUs than the planned ones may have another size.
                pod_units += units - (sum(planned.values()) or units)
        elif container.pod.request is not None and resource == protocol.RESOURCE_MEMORY:
            pod_units = container.pod.request.units
        as_planned = set(planned) == {gpu.index for gpu in gpus} if planned else None
    access = access_to(strategy, gpus, cdi_kind)
    environment = {
        protocol.ENV_VISIBLE_DEVICES: access.visible,
        protocol.ENV_INDEX: str(gpus[0].index),
        protocol.ENV_GPU_UNITS: str(gpus[0].units),
        protocol.ENV_CONTAINER_UNITS: str(units),
        protocol.ENV_POD_UNITS: str(pod_units),
    }
    if isolation == protocol.ISOLATION_MPS and len(gpus) == 1:
        # Whole GPUs have no limits. Several of them have no common control daemon: one process may use each.
        mib = units * unit_mib if resource == protocol.RESOURCE_MEMORY else None
        client = client_access(gpus[0].uuid, mib, _core_of(container))
        environment.update(client.environment)
        access = replace(access, mounts=(*access.mounts, *client.mounts))
    return AllocateResult(environment, access, gpus, container, as_planned)


def _core_of(container: PendingContainer | None) -> int:
    """Per cent of the GPU's compute that the container requests; 0 without a request."""
    request = container.pod.request if container is not None else None
    return next((c.core for c in request.containers if c.name == container.devices.container), 0) if container and request else 0


_DELETE_POD: Final = "delete the pod so that the scheduler places it again"
_RETRIES: Final = "kubelet will retry the start"
# kubelet requests devices for a few containers at a time, and allocates what it prefers immediately.
_REMEMBERED: Final = 8
# Each one takes about a millisecond.
_MOST_TRIED: Final = 16
# kubelet tries again after 10 to 15 s, and within a minute what has ended is gone.
_SHORTAGES: Final = 5
# More than all GPUs of a node have MPS clients.
_MOST_SHARES: Final = 4096


@dataclass(frozen=True)
class Allocator:
    """It is used from one event loop only."""

    pods: PodTable
    devices: Devices
    usage: Usage
    pending: PendingContainers
    candidates: Candidates
    rejections: Rejections
    processes: Processes  # of this host; scanned only if a pod may run without a record of kubelet
    preferred: dict[str, OrderedDict[frozenset[str], PendingContainer | None]] = field(default_factory=dict)
    """Resource → ids that the plugin preferred → the container that they were for."""
    shares: OrderedDict[frozenset[str], int] = field(default_factory=OrderedDict)
    """Ids of memory → per cent of the GPU's compute in the environment that their container got, with MPS."""
    starts_never: dict[str, int] = field(default_factory=dict)
    """UID of a pod that cannot start with what it got, or what others have left of it → a GPU of it (NVML index)."""
    shortages: Counter[str] = field(default_factory=Counter)
    """UID of a pod that kubelet started without a record → how often its GPUs lacked its units."""

    def release_terminated(self) -> None:
        """Release the ids of terminated pods without a process. Scans processes if there are terminated pods."""
        self.usage.release_terminated(self.processes.pods)

    # GetPreferredAllocation.

    def prefer(
        self, resource: str, available: Collection[str], must_include: Collection[str], size: int, moment: int | None = None
    ) -> tuple[list[str], PendingContainer | None]:
        """The ids that kubelet should allocate, and the container that the request seems to be for.

        It raises AllocationRejected if the GPUs lack them. available: all ids that kubelet has free, with `must_include`, which kubelet
        kept from an init container of the same pod. moment: the usage's, when the request came; None for now.
        """
        free, required = set(available), set(must_include)
        self.usage.observe_available(resource, free.difference(required) if required else free, moment)
        doubtful = self.usage.terminated_pods()
        container = self.pending.match(resource, size)
        admitted = container is None
        if admitted:
            container = self.pending.match(resource, size, late=True)
        ids, candidates = self.candidates.choose(resource, free, required, size, container)
        if doubtful and (ids is None or not self.candidates.as_planned(resource, ids, container)):
            # A scan takes time: only where released ids would make a difference.
            self.release_terminated()
            ids, candidates = self.candidates.choose(resource, free, required, size, container)
        if ids is None and admitted and container is not None:
            self._note_shortage(container)
            ids, container = self._for_another(resource, free, required, size, container)
        if ids is None:
            raise self._reject(container, self._shortage(resource, size, candidates, container))
        remembered = self.preferred.setdefault(resource, OrderedDict())
        remembered[frozenset(ids)] = container
        remembered.move_to_end(frozenset(ids))
        if len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        return ids, container

    def _for_another(
        self, resource: str, free: Collection[str], must_include: Collection[str], size: int, lacking: PendingContainer
    ) -> tuple[list[str] | None, PendingContainer]:
        """The ids for another container of this size that kubelet may be starting, where `lacking` finds none."""
        tried = {lacking.key}
        while len(tried) < _MOST_TRIED and (other := self.pending.match(resource, size, late=True, not_for=tried)) is not None:
            ids, _ = self.candidates.choose(resource, free, must_include, size, other)
            if ids is not None:
                return ids, other
            tried.add(other.key)
        return None, lacking

    def _note_shortage(self, container: PendingContainer) -> None:
        """After a lost record other pods may have what this one needs, and keep it."""
        uid = container.pod.uid
        for gone in [known for known in self.shortages if self.pods.get(known) is None]:
            del self.shortages[gone]
        self.shortages[uid] += 1
        if self.shortages[uid] >= _SHORTAGES:
            self.starts_never[uid] = min(container.devices.units_by_gpu, default=0)

    def _forget_failures(self, uid: str) -> None:
        self.starts_never.pop(uid, None)
        self.shortages.pop(uid, None)

    def never_start(self) -> dict[str, int]:
        """As `starts_never`, of pods of which nothing runs. One that runs had its ids by another's request."""
        for uid in [uid for uid in self.starts_never if (pod := self.pods.get(uid)) is None or pod.running]:
            self._forget_failures(uid)
        return self.starts_never

    # Allocate.

    def allocate(self, resource: str, ids: Collection[str]) -> AllocateResult:
        """The response for a container with these ids. It raises AllocationRejected if it must not have one of their GPUs."""
        given = frozenset(ids)
        doubtful = self.usage.terminated_pods()
        remembered = self.preferred.get(resource, OrderedDict())
        # Without a preceding request for a preference kubelet reuses the ids of an init container of the pod that it admits.
        container = remembered.pop(given) if given in remembered else self.pending.match(resource, len(given))
        gpus = self._gpus_of(resource, given, container)
        conflict = self._conflict(resource, given, gpus, container)
        if conflict and doubtful:
            self.release_terminated()
            conflict = self._conflict(resource, given, gpus, container)
        if conflict:
            raise self._reject(container, f"{resource}: {conflict}; {_DELETE_POD}")
        self.usage.record_grant(resource, given, container)
        if container is not None:
            self._forget_failures(container.pod.uid)
        if self.devices.isolation == protocol.ISOLATION_MPS and resource == protocol.RESOURCE_MEMORY:
            self.shares[given] = _core_of(container)
            self.shares.move_to_end(given)
            while len(self.shares) > _MOST_SHARES:
                self.shares.popitem(last=False)
        unit = self.devices.inventory.unit.mib if self.devices.inventory else 0
        devices = self.devices
        return allocate_response(resource, given, gpus, container, devices.strategy, unit, devices.isolation, devices.cdi_kind)

    def _gpus_of(self, resource: str, ids: frozenset[str], container: PendingContainer | None) -> tuple[Gpu, ...]:
        known = self.devices.gpu_of(resource)
        unknown = sorted(i for i in ids if i not in known)
        if unknown or not ids:
            found = f"id {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "") if unknown else "no id"
            gpus = ", ".join(gpu_name(gpu) for gpu in self.devices.gpus)
            text = f"{resource}: kubelet gives {found}, of no GPU in this node ({gpus or 'which has none'}); {_DELETE_POD}"
            raise self._reject(container, text)
        units: dict[Gpu, int] = {}
        for i in ids:
            units[known[i]] = units.get(known[i], 0) + 1
        needed = self.pending.gpus_per_pod(resource, len(ids), container)
        if resource == protocol.RESOURCE_MEMORY and (len(units) != needed or len(set(units.values())) != 1):
            parts = ", ".join(f"{units[gpu]} of {gpu_name(gpu)}" for gpu in sorted(units, key=lambda c: c.index))
            needs = "one GPU" if needed == 1 else f"the same on each of {needed} GPUs"
            text = f"{resource}: kubelet gives one container units of {len(units)} GPUs ({parts}), it needs {needs}; {_DELETE_POD}"
            raise self._reject(container, text)
        return tuple(sorted(units, key=lambda gpu: gpu.index))

    def _conflict(self, resource: str, ids: frozenset[str], gpus: Collection[Gpu], container: PendingContainer | None) -> str:
        """Why these ids are not available now; "" if they are."""
        users = self.usage.gpu_users()
        for gpu in gpus:
            why = unavailable(resource, gpu, users, self.usage.pod_name)
            if why:
                return f"{gpu_name(gpu)} {why}"
        if uid := self.usage.allocated_to_others(resource, ids, container):
            return f"kubelet gives ids that {self.usage.pod_name(uid)} has"
        return self._used_by_others(resource, ids, {container.key} if container else set())

    # PreStartContainer.

    def may_start(self, resource: str, ids: Collection[str]) -> bool:
        """Whether kubelet's checkpoint lists these ids, which are in use from now on. It raises AllocationRejected for a start that must
        not be."""
        given, usage = frozenset(ids), self.usage
        doubtful = usage.terminated_pods()
        known, owners = self.devices.gpu_of(resource), usage.containers_with(resource, given)
        elsewhere = usage.given_index(owners)
        if elsewhere is None and self.devices.inventory and not given <= known.keys():
            raise AllocationRejected(f"{resource}: {len(given - known.keys())} of its ids are of no GPU in this node; {_DELETE_POD}")
        named = {known[i] for i in given if i in known}
        gpus = sorted(named if elsewhere is None else {c for c in self.devices.gpus if c.index == elsewhere}, key=lambda c: c.index)
        for gpu in gpus:
            if gpu.health != HEALTHY:
                raise AllocationRejected(f"{resource}: {gpu_name(gpu)} is not usable ({gpu.health}); {_RETRIES}")
        recorded = [key for key in owners if not usage.released(key.pod)]
        for key in owners:
            if other := usage.recorded_twice(key):
                names = f"{usage.pod_name(key.pod)} and {usage.pod_name(other)}"
                raise AllocationRejected(
                    f"{resource}: kubelet's record has the same ids for {names}; delete the one that was created later"
                )
        uids = {key.pod for key in recorded}
        try:
            self._check_gpus(resource, gpus, recorded)
            self._check_share(resource, given, recorded)
        except AllocationRejected:
            self.starts_never.update(dict.fromkeys(uids, gpus[0].index) if gpus else {})
            raise
        for uid in uids:
            self._forget_failures(uid)
        if self._used_by_others(resource, given, recorded) and doubtful:
            self.release_terminated()
            recorded = [key for key in recorded if key in usage.snapshot()]
        if used := self._used_by_others(resource, given, recorded):
            raise AllocationRejected(f"{resource}: {used}; {_RETRIES}")
        if not recorded:
            # By the state of now: another container may have what the plugin has just released.
            self._check_overlap(resource, given)
            if others := self._taken(resource, gpus, {uid for uid, _, _ in owners}):
                raise AllocationRejected(f"{resource}: {others}; {_DELETE_POD}")
            if not owners:
                usage.record_grant(resource, given, None)
        for uid in {key.pod for key in recorded or owners}:
            usage.record_start([key for key in recorded or owners if key.pod == uid])
        return bool(recorded)

    def _check_share(self, resource: str, ids: frozenset[str], recorded: Collection[DeviceKey]) -> None:
        """The environment of a container cannot be changed any more: it must be that of its owner, which only now is certain."""
        share = self.shares.get(ids)
        for uid, container, of_resource in recorded:
            pod = self.pods.get(uid)
            if share is None or of_resource != resource or pod is None or pod.request is None:
                continue
            wanted = next((c.core for c in pod.request.containers if c.name == container), 0)
            if wanted != share:
                raise AllocationRejected(
                    f"{resource}: container {container} of {self.usage.pod_name(uid)} requests {wanted} % of the GPU's compute and got "
                    f"{share} %, which was meant for a pod of the same size; {_DELETE_POD}"
                )

    def _check_overlap(self, resource: str, ids: frozenset[str]) -> None:
        """Ids without a record may belong to a lost one; ids of another container never belong to this one."""
        for (uid, container, of_resource), their_ids in self.usage.snapshot().items():
            if of_resource == resource and (shared := ids & their_ids) and not self._may_be_of_init(uid, resource, len(ids)):
                raise AllocationRejected(
                    f"{resource}: {len(shared)} of its {len(ids)} ids ({min(shared)} …) are those of container {container} of "
                    f"{self.usage.pod_name(uid)} by kubelet's record; restart kubelet on this node if this stays, and {_DELETE_POD}"
                )

    def _may_be_of_init(self, uid: str, resource: str, size: int) -> bool:
        """Whether an ordinary init container of that pod may have them: later containers reuse them, and podresources omits it."""
        pod = self.pods.get(uid)
        if pod is None or pod.request is None:
            return False
        allocated = self.usage.allocated()
        requests = [
            request
            for request in pod.container_devices
            if request.container in pod.ordinary_init and (request.resource, request.size) == (resource, size)
        ]
        return any((uid, request.container, resource) not in allocated for request in requests)

    def _check_gpus(self, resource: str, gpus: Collection[Gpu], recorded: Collection[DeviceKey]) -> None:
        """Only now is the owner of the ids certain: at Allocate they may have been meant for a pod of the same size."""
        for uid, container, _ in recorded:
            pod = self.pods.get(uid)
            devices = next((d for d in pod.container_devices if (d.container, d.resource) == (container, resource)), None) if pod else None
            if pod is None or devices is None:
                continue
            if resource == protocol.RESOURCE_MEMORY and len(gpus) != devices.gpus_per_pod:
                raise AllocationRejected(
                    f"{resource}: container {container} of pod {pod} has units of {len(gpus)} GPUs, "
                    f"it needs {'one GPU' if devices.gpus_per_pod == 1 else f'{devices.gpus_per_pod} GPUs'}; {_DELETE_POD}"
                )
            for gpu in gpus:
                if why := self._incompatible(pod, gpu):
                    raise AllocationRejected(f"{resource}: container {container} of pod {pod} has {gpu_name(gpu)}, {why}; {_DELETE_POD}")

    def _incompatible(self, pod: LocalPod, gpu: Gpu) -> str:
        """Why the constraints of the pod, or of a pod on the GPU, exclude this GPU; "" if they do not."""
        if pod.request is None:
            return ""
        rules = pod.request.rules
        # If all GPUs are of one model, the pod may name the node's label instead, and the model distinguishes no GPU.
        models = {other.model for other in self.devices.gpus}
        about = rules if len(models) > 1 else replace(rules, models=(), models_refused=())
        if about.about_gpus and not about.accept(gpu.uuid, [gpu.model]):
            return "which its own annotations reject"
        if pod.phase != "Pending":
            # The pod that was there first stays.
            return ""
        for (uid, _, _), gpu_uuids in self.usage.gpu_uuids().items():
            other = self.pods.get(uid)
            if other is None or gpu.uuid not in gpu_uuids or uid == pod.uid or other.namespace != pod.namespace or other.request is None:
                continue
            if selects(rules.not_with, tuple(other.labels.items())):
                return f"beside pod {other}, with which it is not to be"
            if selects(other.request.rules.not_with, tuple(pod.labels.items())):
                return f"beside pod {other}, which is not to be with it"
        return self._lacks_company(pod, gpu, rules.same_gpu_as) if rules.same_gpu_as else ""

    def _lacks_company(self, pod: LocalPod, gpu: Gpu, company: Labels) -> str:
        """Why no pod on this GPU matches `company`; "" if one does, or if the scheduler could choose the GPU freely.

        The scheduler could not if a matching pod had GPUs before. That pod may have gone by now: then the GPU is right.
        """
        has: dict[str, set[str]] = {}
        for (uid, _, _), gpu_uuids in self.usage.gpu_uuids().items():
            has.setdefault(uid, set()).update(gpu_uuids)
        first = ""
        for other in self.pods.seen():
            if other.uid == pod.uid or other.namespace != pod.namespace or not selects(company, tuple(other.labels.items())):
                continue
            if gpu.uuid in has.get(other.uid, ()) or (other.allocation and gpu.index in other.allocation.by_gpu):
                return ""
            if other.uid in has and 0 < other.placed_at < pod.placed_at:
                first = first or f"not beside pod {other}, with which it is to be"
        return first

    # Why something is not available.

    def _used_by_others(self, resource: str, ids: frozenset[str], owners: Collection[DeviceKey]) -> str:
        """Which of these ids the processes of others still use, although kubelet has freed them; "" if none.

        owners: the containers that should have them. Those of one pod have an init container's ids one after another.
        """
        pods = {uid for uid, _, _ in owners}
        for key, used in self.usage.still_in_use(resource).items():
            shared = used & ids
            passed_on = key.pod in pods and not self.usage.record_lost(key.pod)
            if shared and key not in owners and not passed_on and self.usage.may_run(key, self.processes.containers):
                return f"id {min(shared)!r} is still used by processes of {self.usage.pod_name(key.pod)}, though kubelet has freed it"
        return ""

    def _taken(self, resource: str, gpus: Collection[Gpu], owners: Collection[str]) -> str:
        """Which of these GPUs another pod uses by the other resource; "" if none. owners: UIDs."""
        users = self.usage.gpu_users()
        for gpu in gpus:
            others = {users.whole[gpu.uuid]} if gpu.uuid in users.whole else set()
            if resource == protocol.RESOURCE_GPUS:
                others = set(users.memory.get(gpu.uuid, ()))
            if strangers := sorted(others.difference(owners)):
                return f"{gpu_name(gpu)} is allocated to {', '.join(map(self.usage.pod_name, strangers))}"
        return ""

    def _shortage(self, resource: str, size: int, candidates: Collection[CandidateGpu], container: PendingContainer | None) -> str:
        inventory, memory = self.devices.inventory, resource == protocol.RESOURCE_MEMORY
        if inventory is None or not inventory.gpus:
            return f"{resource}: this node has no GPUs that answer; see the status of gpushare-device-plugin on it"
        orphaned: dict[str, set[str]] = {}
        for (uid, _, _), ids in self.usage.still_in_use(resource).items():
            for uuid in gpu_uuids_of(resource, ids):
                orphaned.setdefault(uuid, set()).add(self.usage.pod_name(uid))
        users, by_uuid = self.usage.gpu_users(), {candidate.gpu.uuid: candidate for candidate in candidates}
        gpus = []
        for gpu in inventory.gpus:
            candidate = by_uuid.get(gpu.uuid)
            free = len(candidate.ids) if candidate else 0
            has = f"has {free} free" if memory else "is free" if free else "is taken"
            if candidate and not candidate.fallback:
                has += " but is not the one it was placed on"
            if gpu.uuid in orphaned:
                has += f" (processes of {', '.join(sorted(orphaned[gpu.uuid]))} use some that kubelet has freed)"
            gpus.append(f"GPU {gpu.index} {unavailable(resource, gpu, users, self.usage.pod_name) or has}")
        asked = requested(resource, size, container.devices.gpus_per_pod if container else 1, inventory)
        return f"{resource}: asked for {asked}, but {', '.join(gpus)}; {_DELETE_POD}"

    def _reject(self, container: PendingContainer | None, text: str) -> AllocationRejected:
        if container is None:
            return AllocationRejected(text)
        self.pending.reject(container.pod)
        whole, inventory = container.devices.resource == protocol.RESOURCE_GPUS, self.devices.inventory
        for index, units in container.devices.units_by_gpu.items():
            gpu = inventory.by_index.get(index) if inventory else None
            if gpu is not None:
                self.rejections.add(container.pod.uid, gpu.uuid, units, whole=whole)
        if container.pod.allocation is None:
            text += f". The scheduler extender has not placed pod {container.pod}: check that kube-scheduler is configured to call it"
        return AllocationRejected(text)

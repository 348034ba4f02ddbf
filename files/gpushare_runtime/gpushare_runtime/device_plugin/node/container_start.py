# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a container with ids may start: PreStartContainer's answer. Only now is it certain whose ids they are. No I/O.

Before every start of a container kubelet waits at most 30 s for the plugin, and retries a rejected start. Some starts can never succeed:
the container has what another pod was meant to have, or others have what it needs. Such pods are remembered, for their eviction.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.constraints import Labels, selects
from gpushare_runtime.core.inventory import HEALTHY, Gpu
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Processes, Usage
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PendingContainer, PodTable
from gpushare_runtime.device_plugin.node.rejections import DELETE_POD, RETRIES, AllocationRejected
from gpushare_runtime.device_plugin.node.sentences import gpu_name, taken, used_by_others

# kubelet tries again after 10 to 15 s, and within a minute what has ended is gone.
_SHORTAGES: Final = 5
# More than all GPUs of a node have MPS clients.
_MOST_SHARES: Final = 4096


@dataclass(frozen=True)
class ContainerStarts:
    """The check before a container starts, for one event loop only."""

    pods: PodTable
    devices: Devices
    usage: Usage
    recorder: UsageRecorder
    processes: Processes  # of this host; scanned only if a pod may run without a record of kubelet
    shares: OrderedDict[frozenset[str], int] = field(default_factory=OrderedDict)
    """Ids of memory → per cent of the GPU's compute in the environment that their container got, with MPS."""
    starts_never: dict[str, int] = field(default_factory=dict)
    """UID of a pod that cannot start with what it got, or what others have left of it → a GPU of it (NVML index)."""
    shortages: Counter[str] = field(default_factory=Counter)
    """UID of a pod that kubelet started → how often its GPUs lacked its units, or were not in this node any more."""

    def may_start(self, resource: str, ids: Collection[str]) -> bool:
        """Whether kubelet's checkpoint lists these ids, which are in use from now on. It raises AllocationRejected for a start that must
        not be."""
        given, usage = frozenset(ids), self.usage
        doubtful = self.recorder.detect_terminated()
        known, owners = self.devices.gpu_of(resource), usage.containers_with(resource, given)
        elsewhere = usage.given_index(owners)
        if elsewhere is None and self.devices.inventory and not given <= known.keys():
            for uid in {key.pod for key in owners}:
                pod = self.pods.get(uid)
                self._count_failure(uid, min(pod.allocation.by_gpu, default=0) if pod is not None and pod.allocation is not None else 0)
            raise AllocationRejected(
                f"{resource}: {len(given - known.keys())} of its ids are of no GPU in this node; {DELETE_POD}", "unknown-ids"
            )
        named = {known[i] for i in given if i in known}
        gpus = sorted(named if elsewhere is None else {c for c in self.devices.gpus if c.index == elsewhere}, key=lambda c: c.index)
        for gpu in gpus:
            if gpu.health != HEALTHY:
                raise AllocationRejected(f"{resource}: {gpu_name(gpu)} is not usable ({gpu.health}); {RETRIES}", "unhealthy")
        recorded = [key for key in owners if not usage.released(key.pod)]
        for key in owners:
            if other := usage.recorded_twice(key):
                names = f"{usage.pod_name(key.pod)} and {usage.pod_name(other)}"
                raise AllocationRejected(
                    f"{resource}: kubelet's record has the same ids for {names}; delete the one that was created later", "recorded-twice"
                )
        uids = {key.pod for key in recorded}
        try:
            self._check_gpus(resource, gpus, recorded)
            self._check_share(resource, given, recorded)
        except AllocationRejected:
            self.starts_never.update(dict.fromkeys(uids, gpus[0].index) if gpus else {})
            raise
        for uid in uids:
            self.forget_failures(uid)
        if used_by_others(resource, given, recorded, usage, self.processes) and doubtful:
            self.recorder.release_terminated(self.processes.pods)
            recorded = [key for key in recorded if key in usage.snapshot()]
        if used := used_by_others(resource, given, recorded, usage, self.processes):
            raise AllocationRejected(f"{resource}: {used}; {RETRIES}", "in-use")
        if not recorded:
            # By the state of now: another container may have what the plugin has just released.
            self._check_overlap(resource, given)
            if others := taken(resource, gpus, {uid for uid, _, _ in owners}, usage):
                raise AllocationRejected(f"{resource}: {others}; {DELETE_POD}", "in-use")
            if not owners:
                self.recorder.record_grant(resource, given, None)
        for uid in {key.pod for key in recorded or owners}:
            self.recorder.record_start([key for key in recorded or owners if key.pod == uid])
        return bool(recorded)

    def _check_share(self, resource: str, ids: frozenset[str], recorded: Collection[DeviceKey]) -> None:
        """The environment of a container cannot be changed any more: it must be that of its owner, which only now is certain."""
        share = self.shares.get(ids)
        for uid, container, _ in recorded:
            pod = self.pods.get(uid)
            if share is None or pod is None or pod.request is None:
                continue
            wanted = next((c.core for c in pod.request.containers if c.name == container), 0)
            if wanted != share:
                raise AllocationRejected(
                    f"{resource}: container {container} of {self.usage.pod_name(uid)} requests {wanted} % of the GPU's compute and got "
                    f"{share} %, which was meant for a pod of the same size; {DELETE_POD}",
                    "wrong-share",
                )

    def _check_overlap(self, resource: str, ids: frozenset[str]) -> None:
        """Ids without a record may belong to a lost one; ids of another container never belong to this one."""
        for (uid, container, of_resource), their_ids in self.usage.snapshot().items():
            if of_resource == resource and (shared := ids & their_ids) and not self._may_be_of_init(uid, resource, len(ids)):
                raise AllocationRejected(
                    f"{resource}: {len(shared)} of its {len(ids)} ids ({min(shared)} …) are those of container {container} of "
                    f"{self.usage.pod_name(uid)} by kubelet's record; restart kubelet on this node if this stays, and {DELETE_POD}",
                    "unavailable",
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
                    f"it needs {'one GPU' if devices.gpus_per_pod == 1 else f'{devices.gpus_per_pod} GPUs'}; {DELETE_POD}",
                    "gpu-count",
                )
            for gpu in gpus:
                if why := self._incompatible(pod, gpu):
                    raise AllocationRejected(
                        f"{resource}: container {container} of pod {pod} has {gpu_name(gpu)}, {why}; {DELETE_POD}", "incompatible"
                    )

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

    # Pods that never start.

    def note_shortage(self, container: PendingContainer) -> None:
        """After a lost record other pods may have what this one needs, and keep it."""
        self._count_failure(container.pod.uid, min(container.devices.units_by_gpu, default=0))

    def _count_failure(self, uid: str, gpu: int) -> None:
        """gpu: one of the pod's (NVML index)."""
        for gone in [known for known in self.shortages if self.pods.get(known) is None]:
            del self.shortages[gone]
        self.shortages[uid] += 1
        if self.shortages[uid] >= _SHORTAGES:
            self.starts_never[uid] = gpu

    def forget_failures(self, uid: str) -> None:
        self.starts_never.pop(uid, None)
        self.shortages.pop(uid, None)

    def never_start(self) -> dict[str, int]:
        """As `starts_never`, of pods of which nothing runs. One that runs had its ids by another's request."""
        for uid in [uid for uid in self.starts_never if (pod := self.pods.get(uid)) is None or pod.running]:
            self.forget_failures(uid)
        return self.starts_never

    # With MPS.

    def note_share(self, ids: frozenset[str], share: int) -> None:
        """The per cent of compute that the container with these ids has in its environment."""
        self.shares[ids] = share
        self.shares.move_to_end(ids)
        while len(self.shares) > _MOST_SHARES:
            self.shares.popitem(last=False)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Events about a GPU that becomes unusable or usable again: on the node, and on each pod that has something of the GPU.

A GPU that is not in the node any more is unusable, as long as pods have ids of it.
The plugin's state file keeps what they have told, so that a restart reports only what differs from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.inventory import HEALTHY, Gpu
from gpushare_runtime.device_plugin.node.devices import MPS_UNKNOWN
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState, Told
from gpushare_runtime.kube.events import EventRecorder, ObjectReference

# One failure has several signs, such as an XID and then no answer: the last one is reported.
SETTLE_SECONDS: Final = 1.0
_NAMED: Final = 3


class GpuEvents:
    """name: of the node. A cordon is an administrator's own doing, and a GPU without a CDI spec has an Event of its own."""

    def __init__(self, node: NodeState, events: EventRecorder, name: str, settle: float = SETTLE_SECONDS) -> None:
        self._node = node
        self._events = events
        self._name = name
        self._settle = settle

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        changes = self._node.changes
        while True:
            seen = changes.count
            told = self._node.told
            if self._bad() != told.bad or self._now_gone().keys() != told.gone:
                await changes.after(changes.count, self._settle)
                self._node.told = Told(self._report_changes(), self._report_gone())
                changes.notify()
            await changes.after(seen)

    def _bad(self) -> Mapping[str, str]:
        """GPU UUID → why it is unusable now; what is not known, or has another Event, is as it was reported."""
        inventory, specs, before = self._node.devices.inventory, self._node.devices.unusable_specs(), self._node.told.bad
        if inventory is None:
            return before
        unknown = {gpu.uuid for gpu in inventory.gpus if gpu.health == MPS_UNKNOWN or gpu.uuid in specs}
        now = {gpu.uuid: before.get(gpu.uuid, HEALTHY) if gpu.uuid in unknown else gpu.health for gpu in inventory.gpus}
        return {uuid: why for uuid, why in now.items() if why != HEALTHY}

    def _report_changes(self) -> Mapping[str, str]:
        """The GPUs that are bad now, by UUID, and why."""
        before, now = self._node.told.bad, self._bad()
        by_reason: dict[str, list[Gpu]] = {}
        for uuid, why in now.items():
            if before.get(uuid) != why:
                by_reason.setdefault(why, []).append(self._node.devices.by_uuid[uuid])
        for why, gpus in by_reason.items():
            self._report_bad(gpus, why, before)
        back = [gpu for gpu in self._node.devices.gpus if gpu.uuid in before and gpu.uuid not in now]
        if back:
            text = f"{_named(back)} passed the checks: new pods may use {'it' if len(back) == 1 else 'them'} again"
            self._events.emit(self._about_node, "Normal", protocol.EVENT_GPU_USABLE, text)
        return now

    def _now_gone(self) -> Mapping[tuple[str, str], LocalPod | None]:
        """As Told.gone, with the pods; what was reported, while it is not known which GPUs and pods there are."""
        devices = self._node.devices
        if devices.inventory is None or devices.one_is_silent or not self._node.pods.synced:
            return dict.fromkeys(self._node.told.gone)
        pods = ((self._node.pods.get(uid), uuids) for uid, uuids in devices.gone().items())
        return {
            (pod.mirror_uid or pod.uid, as_text(uuid)): pod for pod, uuids in pods for uuid in uuids if pod is not None and not pod.finished
        }

    def _report_gone(self) -> frozenset[tuple[str, str]]:
        """The pods and GPUs of which the GPU is gone now."""
        now = self._now_gone()
        new: dict[str, list[LocalPod]] = {}
        for key, pod in sorted(now.items(), key=lambda item: item[0]):
            if key not in self._node.told.gone and pod is not None:
                new.setdefault(key[1], []).append(pod)
        for uuid, pods in new.items():
            there = _names(map(str, pods))
            text = f"GPU {uuid} is not in this node any more. Pods that have it: {there}. Delete them, unless it comes back"
            self._events.emit(self._about_node, "Warning", protocol.EVENT_GPU_UNUSABLE, text)
            for pod in pods:
                text = (
                    f"Its GPU {uuid} is not in node {self._name} any more: no container that has it can start again. "
                    "Delete the pod: its owner starts it on another GPU"
                )
                self._events.emit(_about(pod), "Warning", protocol.EVENT_GPU_UNUSABLE, text)
        return frozenset(now)

    def _report_bad(self, gpus: list[Gpu], why: str, before: Mapping[str, str]) -> None:
        pods = {str(pod) for gpu in gpus for pod in self._pods_of(gpu)}
        there = f"Pods there: {_names(pods)}" if pods else "No pod is there"
        text = f"{_named(gpus)}: {why}. New pods go to other GPUs. {there}"
        self._events.emit(self._about_node, "Warning", protocol.EVENT_GPU_UNUSABLE, text)
        for gpu in gpus:
            if gpu.uuid in before:
                continue  # Its pods know already that it is bad.
            text = f"{_named([gpu])} of node {self._name}: {why}. Delete the pod if it does not work: its owner starts it on another GPU"
            for pod in self._pods_of(gpu):
                self._events.emit(_about(pod), "Warning", protocol.EVENT_GPU_UNUSABLE, text)

    def _pods_of(self, gpu: Gpu) -> Iterator[LocalPod]:
        users = self._node.usage.gpu_users()
        uids = {*users.memory.get(gpu.uuid, ()), *((users.whole[gpu.uuid],) if gpu.uuid in users.whole else ())}
        for uid in sorted(uids):
            pod = self._node.pods.get(uid)
            if pod is not None and not pod.finished:
                yield pod

    @property
    def _about_node(self) -> ObjectReference:
        # kubelet's own Events on its node have the name as UID as well.
        return ObjectReference("Node", self._name, self._name)


def _about(pod: LocalPod) -> ObjectReference:
    return ObjectReference("Pod", pod.name, pod.uid, pod.namespace)


def _names(pods: Iterable[str]) -> str:
    names = sorted(pods)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _named(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.model}, {gpu.uuid})" for gpu in gpus)

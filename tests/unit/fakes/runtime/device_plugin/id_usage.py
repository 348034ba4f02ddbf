# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A table of usage, with what kubelet, the API server and processes say of it."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer, PodTable, parse_local_pod
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.pods import inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
# For so long the watch may be behind kubelet; for so long what was given may be missing in kubelet's file.
WATCH_GRACE, GRANT_LIFETIME = 10.0, 30.0
# For so long what the watch brings after an interruption; for so long a container is in the making.
BURST, MAKING = 2.0, 30.0
NODE = inventory(16, 16)


def units(*slots: int, gpu: int = 0) -> frozenset[str]:
    return frozenset(f"GPU-{gpu:08d}-_-{slot}" for slot in slots)


def entry(pod: str, *slots: int, gpu: int = 0, container: str = "main") -> CheckpointEntry:
    return CheckpointEntry(pod, container, MEMORY, units(*slots, gpu=gpu))


def whole(pod: str, gpu: int) -> CheckpointEntry:
    return CheckpointEntry(pod, "main", GPUS, frozenset({f"GPU-{gpu:08d}"}))


class Case:
    """Usage of one node. live: UIDs with a process; looks: how often that was asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.live: set[str] = set()
        self.looks = 0
        self.heard = True
        self.pods = PodTable(lambda: self.now if self.heard else None)
        self.pods.replace([])
        self.running: Callable[[str], Set[str] | None] = lambda _: None
        self.usage = Usage(self.pods, lambda: self.now)
        self.recorder = UsageRecorder(self.usage, lambda uid: self.running(uid))

    def add(self, uid: str, phase: str = "Running", **changes: Any) -> dict[str, Any]:
        pod = memory(NODE, 0, 2, uid=uid, name=uid, phase=phase, **changes)
        self.pods.event("ADDED", parse_local_pod(pod))
        return pod

    def record(self, *entries: CheckpointEntry) -> None:
        self.recorder.set_checkpoint(entries)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def delete(self, pod: dict[str, Any]) -> None:
        self.pods.event("DELETED", parse_local_pod(pod))

    def still_in_use(self, resource: str) -> dict[str, str]:
        """id → UID of the pod that still uses it although kubelet may offer it."""
        return {i: key[0] for key, ids in self.usage.still_in_use(resource).items() for i in ids}

    def former_ids(self, uid: str, resource: str = MEMORY) -> frozenset[str]:
        return self.usage.former_ids(DeviceKey(uid, "main", resource))

    def pending(self, uid: str) -> PendingContainer:
        pod = self.pods.get(uid)
        assert pod is not None
        return PendingContainer(pod, pod.container_devices[0])

    def release(self) -> set[str]:
        """The UIDs of the pods that use something then."""

        def scan(uids: Set[str]) -> set[str]:
            self.looks += 1
            return self.live & uids

        self.recorder.release_terminated(scan)
        return {uid for uids in self.usage.gpu_users().memory.values() for uid in uids}

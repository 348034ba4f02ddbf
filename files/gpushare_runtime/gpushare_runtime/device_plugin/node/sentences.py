# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Sentences for a pod's status and events: why a GPU is not available, and which GPUs a pod has without a plan. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory
from gpushare_runtime.core.unit_ids import gpu_uuids_of
from gpushare_runtime.device_plugin.node.id_usage import GpuUsers, Processes, Usage
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import LocalPod


def gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def unavailable(resource: str, gpu: Gpu, users: GpuUsers, name: Callable[[str], str]) -> str:
    """Why this GPU is not available as this resource; "" if it is. name: returns a pod's name from its UID."""
    if not gpu.usable:
        return "is cordoned" if gpu.health == HEALTHY else f"is not usable ({gpu.health})"
    if resource == protocol.RESOURCE_MEMORY and gpu.uuid in users.whole:
        return f"is allocated whole to {name(users.whole[gpu.uuid])}"
    if resource == protocol.RESOURCE_GPUS and gpu.uuid in users.memory:
        return f"has memory allocated to {', '.join(sorted(map(name, users.memory[gpu.uuid])))}"
    return ""


def used_by_others(resource: str, ids: frozenset[str], owners: Collection[DeviceKey], usage: Usage, processes: Processes) -> str:
    """Which of these ids the processes of others still use, although kubelet has freed them; "" if none.

    owners: the containers that should have them. Those of one pod have an init container's ids one after another.
    """
    pods = {uid for uid, _, _ in owners}
    for key, used in usage.still_in_use(resource).items():
        shared = used & ids
        passed_on = key.pod in pods and not usage.record_lost(key.pod)
        if shared and key not in owners and not passed_on and usage.may_run(key, processes.containers):
            return f"id {min(shared)!r} is still used by processes of {usage.pod_name(key.pod)}, though kubelet has freed it"
    return ""


def taken(resource: str, gpus: Collection[Gpu], owners: Collection[str], usage: Usage) -> str:
    """Which of these GPUs another pod uses by the other resource; "" if none. owners: UIDs."""
    users = usage.gpu_users()
    for gpu in gpus:
        others = {users.whole[gpu.uuid]} if gpu.uuid in users.whole else set()
        if resource == protocol.RESOURCE_GPUS:
            others = set(users.memory.get(gpu.uuid, ()))
        if strangers := sorted(others.difference(owners)):
            return f"{gpu_name(gpu)} is allocated to {', '.join(map(usage.pod_name, strangers))}"
    return ""


def requested(resource: str, size: int, gpus_per_pod: int, inventory: Inventory) -> str:
    """The request of a container."""
    if resource == protocol.RESOURCE_GPUS:
        return f"{size} whole {'GPU' if size == 1 else 'GPUs'}"
    return f"{size} units of {inventory.unit} on {'one GPU' if gpus_per_pod == 1 else f'{gpus_per_pod} GPUs'}"


def gpus_in_words(by_gpu: Mapping[int, int], inventory: Inventory) -> str:
    """The GPUs that a pod has, by GPU index: "8 GiB of GPU 2 (NVIDIA A100 80GB)"."""
    parts = []
    for index, units in sorted(by_gpu.items()):
        gpu = inventory.by_index.get(index)
        parts.append(f"{inventory.unit.amount(units)} of GPU {index}{f' ({gpu.model})' if gpu and gpu.model else ''}")
    return " and ".join(parts)


def moved(before: Allocation | None, after: Allocation, node: str) -> str:
    """For a pod that kubelet gave other GPUs than its annotations had. before: None where these could not be read."""
    to = f"{_indexes(after)} of {node}"
    if before is None:
        return f"It is on {to}; its annotations could not be read, and now name it"
    if set(before.by_gpu) == set(after.by_gpu):
        return f"Its containers have other shares of {to} than planned; its annotations now have them"
    return f"Moved from {_indexes(before)} to {to}: kubelet gave it other units than planned; its annotations now name them"


def _indexes(allocation: Allocation) -> str:
    return " and ".join(f"GPU {index}" for index in sorted(allocation.by_gpu))


def never_placed(has: str) -> str:
    """For a pod without an allocation. has: its GPUs now."""
    return (
        f"No scheduler extender placed it; it has {has} by what was free on the node. "
        "Check that it goes through a kube-scheduler that calls the extender"
    )


def explain_unannotatable(pod: LocalPod, usage: Usage, inventory: Inventory) -> str:
    """For a pod whose annotations cannot report its GPUs; "" before it has any."""
    parts = []
    for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS):
        ids = usage.recorded_ids(pod.uid, resource)
        for uuid in sorted(gpu_uuids_of(resource, ids)):
            gpu = inventory.by_uuid.get(uuid)
            if gpu is not None:
                units = len([i for i in ids if i.startswith(uuid)]) if resource == protocol.RESOURCE_MEMORY else 0
                parts.append(f"{f'{units} units of' if units else 'the whole'} {gpu_name(gpu)}")
    if not parts:
        return ""
    has = f"it has {', '.join(parts)} by what was free on the node"
    if pod.static:
        return f"No scheduler places a static pod; {has}. To have its GPU chosen, make it an ordinary pod"
    why = pod.problem or f"it requests both {protocol.RESOURCE_MEMORY} and {protocol.RESOURCE_GPUS}"
    return f"No scheduler extender can place it ({why}); {has}. Correct the request and create the pod again"

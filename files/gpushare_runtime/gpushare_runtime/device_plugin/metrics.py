# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The metrics of the device plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import Metric

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY
from gpushare_runtime.daemon import exposition
from gpushare_runtime.daemon.exposition import family, maybe, single
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.state import NodeState


class Limit(Protocol):
    """A pod's limit on one GPU and its use, in bytes. most: None without a limit."""

    @property
    def most(self) -> int | None: ...

    @property
    def used(self) -> int: ...


class Limits(Protocol):
    """The limits of all pods, see gpu/pod_limits.py."""

    @property
    def active(self) -> bool: ...

    @property
    def use(self) -> Mapping[tuple[str, str], Limit]: ...

    @property
    def unlimited(self) -> int: ...

    @property
    def corrections(self) -> int: ...


class MeasuredMemory(Protocol):
    """See gpu/pod_memory.py."""

    @property
    def by_pod(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def by_gpu(self) -> Mapping[str, int]: ...


class Memory(Protocol):
    """The use of the GPUs' memory, see gpu/pod_memory.py."""

    @property
    def use(self) -> MeasuredMemory: ...

    @property
    def over(self) -> int: ...


def families(
    node: NodeState, counters: Counters, limits: Limits, memory: Memory, *, healthy: bool, token_expires: float | None
) -> Iterator[Metric]:
    """All metrics of the device plugin. healthy: as in /healthz; token_expires: Unix time in seconds, None without a token."""
    yield single("gpushare_device_plugin_healthy", "gauge", "1 if the plugin is ready and no part of it is degraded, else 0.", healthy)
    text = "When the token for the API server expires, if the plugin renews one."
    yield maybe("gpushare_device_plugin_token_expiry_timestamp_seconds", text, token_expires)
    yield from _gpus(node)
    yield from _pods(node)
    yield from _memory(node, limits, memory)
    yield from _events(counters)
    yield from exposition.of_process("gpushare_device_plugin")


def _gpus(node: NodeState) -> Iterator[Metric]:
    gpus, inventory = node.devices.gpus, node.devices.inventory
    labels = {gpu.uuid: {"gpu": str(gpu.index), "uuid": gpu.uuid} for gpu in gpus}
    unit = inventory.unit.mib * 1024 * 1024 if inventory else 0

    def gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
        return family(f"gpushare_device_plugin_gpu_{name}", "gauge", text, [(value, labels[uuid]) for uuid, value in values.items()])

    yield family(
        "gpushare_device_plugin_strategy_info",
        "gauge",
        "How containers get their GPUs; the value is 1.",
        [(1, {"strategy": node.devices.strategy})],
    )
    yield family(
        "gpushare_device_plugin_isolation_info",
        "gauge",
        "Isolation of the node; the value is 1.",
        [(1, {"isolation": node.devices.isolation})],
    )
    yield single("gpushare_device_plugin_unit_bytes", "gauge", f"Size of one unit of {protocol.RESOURCE_MEMORY}.", unit)
    yield family(
        "gpushare_device_plugin_gpu_info",
        "gauge",
        "Properties of each GPU; the value is 1.",
        [(1, {**labels[c.uuid], "minor": str(c.minor), "pci": c.pci, "model": c.model, "numa": str(c.numa)}) for c in gpus],
    )
    yield gauge("units", "Units of each GPU.", {c.uuid: c.units for c in gpus})
    yield gauge("units_allocated", "Units allocated to pods, including orphaned pods.", node.usage.units_by_gpu(inventory))
    orphaned = node.usage.units_by_gpu(inventory, orphaned=True)
    yield gauge("units_orphaned", "Units used by processes of pods that no longer exist.", orphaned)
    remainder = {c.uuid: c.mib * 1024 * 1024 - c.units * unit for c in gpus}
    yield gauge("remainder_bytes", "Memory that does not fill a unit and is not allocatable.", remainder)
    text = "0 if the GPU does not answer, fails a check, or lacks its CDI spec or a working MPS daemon, else 1."
    yield gauge("healthy", text, {c.uuid: c.health == HEALTHY for c in gpus})
    without_spec = node.devices.unusable_specs()
    text = "0 if the strategy is cdi and no CDI spec fits the GPU, else 1."
    yield gauge("cdi_usable", text, {c.uuid: c.uuid not in without_spec for c in gpus})
    yield gauge("cordoned", "1 if an administrator cordoned the GPU, else 0.", {c.uuid: c.cordoned for c in gpus})


def _labels_of(node: NodeState, uid: str) -> dict[str, str]:
    namespace, _, pod = node.usage.name(uid).partition("/")
    return {"namespace": namespace, "pod": pod, "uid": uid}


def _pods(node: NodeState) -> Iterator[Metric]:
    units = sorted(node.usage.units_by_pod(node.devices.inventory).items())
    orphaned = {uid for uid, _ in node.usage.orphaned()}
    states = {uid: "orphaned" if uid in orphaned else "allocated" for (uid, _), _ in units}
    infos = [(1, {**_labels_of(node, uid), "state": state}) for uid, state in states.items()]
    yield family("gpushare_device_plugin_pod_info", "gauge", "Pods that have units of this node's GPUs; the value is 1.", infos)
    values = [(amount, {**_labels_of(node, uid), "uuid": gpu}) for (uid, gpu), amount in units]
    yield family("gpushare_device_plugin_pod_units", "gauge", "Units of the GPU that the pod has.", values)


def _memory(node: NodeState, limits: Limits, memory: Memory) -> Iterator[Metric]:
    def gauge(name: str, text: str, values: Iterable[tuple[float, tuple[str, str]]]) -> Metric:
        samples = [(value, {**_labels_of(node, uid), "uuid": gpu}) for value, (uid, gpu) in values]
        return family(f"gpushare_device_plugin_pod_{name}", "gauge", text, samples)

    yield single("gpushare_device_plugin_memory_limits", "gauge", "1 if the driver limits each pod to its units, else 0.", limits.active)
    known = sorted(limits.use.items())
    # The driver's own figure where it has one: NVML's list leaves out processes that are in doubt.
    used = {**{key: size for key, size in memory.use.by_pod.items() if node.usage.name(key[0])}, **{key: use.used for key, use in known}}
    yield gauge("memory_limit_bytes", "Limit of the pod on the GPU.", ((use.most, key) for key, use in known if use.most is not None))
    yield gauge("memory_used_bytes", "Memory of the GPU that the pod uses.", ((size, key) for key, size in sorted(used.items())))
    labels = {gpu.uuid: {"gpu": str(gpu.index), "uuid": gpu.uuid} for gpu in node.devices.gpus}
    of_gpus = [(size, labels[uuid]) for uuid, size in memory.use.by_gpu.items() if uuid in labels]
    yield family("gpushare_device_plugin_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use.", of_gpus)
    yield single("gpushare_device_plugin_pods_exceeding", "gauge", "Pods that use more memory than their units.", memory.over)
    text = "Pods without a limit, because they started before there was one."
    yield single("gpushare_device_plugin_pods_unlimited", "gauge", text, limits.unlimited)
    text = "Memory limits that differed from the pod's units and were set again."
    yield single("gpushare_device_plugin_limit_corrections_total", "counter", text, limits.corrections)


def _events(counters: Counters) -> Iterator[Metric]:
    def counter(name: str, text: str, value: int) -> Metric:
        return single(f"gpushare_device_plugin_{name}_total", "counter", text, value)

    yield counter("allocations", "Containers that got GPUs.", counters.allocations)
    yield counter("rejections", "Allocations that the plugin rejected.", counters.rejections)
    text = "Containers that got other GPUs than the scheduler planned, or that it did not place."
    yield counter("unplanned_allocations", text, counters.unplanned)
    yield counter("annotation_corrections", "Pods whose annotations the plugin corrected to their actual GPUs.", counters.corrections)
    yield counter("start_rejections", "Starts of containers that the plugin rejected.", counters.start_rejections)
    yield counter("unrecorded_starts", "Starts of containers whose ids kubelet's checkpoint did not list.", counters.unrecorded_starts)
    text = "Containers for which kubelet's checkpoint and its podresources API list different ids, and pairs of pods with the same id."
    yield counter("checkpoint_mismatches", text, counters.checkpoint_mismatches)
    yield family(
        "gpushare_device_plugin_xid_errors_total",
        "counter",
        "XID errors that the driver reported.",
        [(count, {"uuid": uuid, "xid": str(xid)}) for (uuid, xid), count in counters.xids.items()],
    )
    yield from counters.seconds.collect()

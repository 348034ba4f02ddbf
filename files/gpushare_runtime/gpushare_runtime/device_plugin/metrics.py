# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The metrics of the device plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from prometheus_client.core import Metric

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY, physical_index
from gpushare_runtime.core.load import FULL, Load
from gpushare_runtime.daemon import exposition
from gpushare_runtime.daemon.exposition import family, maybe, single
from gpushare_runtime.device_plugin.gpu.discovery import CLOCK_REASONS, Sensors
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.state import NodeState

_ENGINES: Final = {"sm": "an SM", "memory": "the memory's bus", "encoder": "the encoder", "decoder": "the decoder"}
"""Fields of Load and Sensors."""
_NAMES: Final = {
    "sm": "sm_utilization",
    "memory": "memory_bandwidth_utilization",
    "encoder": "encoder_utilization",
    "decoder": "decoder_utilization",
}
_GAUGES: Final = {
    "temperature_celsius": ("celsius", 1.0, "Temperature of the GPU."),
    "power_watts": ("watts", 1.0, "Power that the GPU takes."),
    "power_limit_watts": ("watts_limit", 1.0, "Power that the GPU may take."),
    "sm_clock_hertz": ("sm_clock", 1e6, "Clock of the GPU's SMs."),
    "memory_clock_hertz": ("memory_clock", 1e6, "Clock of the GPU's memory."),
}
"""Name → (field of Sensors, factor, text)."""
_TOTALS: Final = (
    (
        "memory_errors",
        "kind",
        {"corrected": "corrected", "uncorrected": "uncorrected"},
        "Errors of the GPU's memory (ECC) since its driver was loaded.",
    ),
    ("pcie_bytes", "direction", {"sent": "pcie_sent", "received": "pcie_received"}, "Bytes over PCIe, as seen from the GPU."),
    ("nvlink_bytes", "direction", {"sent": "nvlink_sent", "received": "nvlink_received"}, "Bytes over all NVLinks of the GPU."),
)
"""(name, label, its value → field of Sensors, text)."""


_NO_MORE: Final[Mapping[str, str]] = MappingProxyType({})


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


class MeasuredUse(Protocol):
    """See gpu/use.py."""

    @property
    def by_pod(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def by_gpu(self) -> Mapping[str, int]: ...

    @property
    def sensors(self) -> Mapping[int, Sensors]: ...

    def bytes_of(self, key: tuple[str, str]) -> int | None: ...


class Memory(Protocol):
    """The use of the GPUs, see gpu/pod_memory.py."""

    @property
    def use(self) -> MeasuredUse: ...

    @property
    def loads(self) -> Mapping[tuple[str, str], Load]: ...

    @property
    def idle(self) -> Mapping[tuple[str, str], float]: ...

    @property
    def by_container(self) -> Mapping[tuple[str, str, str], int]: ...

    @property
    def container_loads(self) -> Mapping[tuple[str, str, str], Load]: ...

    @property
    def over(self) -> int: ...


def families(
    node: NodeState,
    counters: Counters,
    limits: Limits,
    memory: Memory,
    *,
    healthy: bool,
    token_expires: float | None,
    claims: int | None = None,
) -> Iterator[Metric]:
    """All metrics of the device plugin. healthy: as in /healthz; token_expires: Unix time in seconds, None without a token. claims: how
    many are prepared, None with the back end extender."""
    yield single("gpushare_device_plugin_healthy", "gauge", "1 if the plugin is ready and no part of it is degraded, else 0.", healthy)
    text = "When the token for the API server expires, if the plugin renews one."
    yield maybe("gpushare_device_plugin_token_expiry_timestamp_seconds", text, token_expires)
    yield maybe("gpushare_device_plugin_claims_prepared", "ResourceClaims that containers may use, with the back end dra.", claims)
    yield from _gpus(node)
    yield from _pods(node)
    yield from _memory(node, limits, memory)
    yield from _loads(node, memory)
    yield from _sensors(node, memory.use.sensors)
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
    keys = {*memory.use.by_pod, *node.usage.units_by_pod(node.devices.inventory)}
    # Without a process it is 0. An unknown size has no series.
    listed = {key: size for key in keys if node.usage.name(key[0]) and (size := memory.use.bytes_of(key)) is not None}
    # The driver's own figure where it has one: NVML's list leaves out processes that are in doubt.
    used = {**listed, **{key: use.used for key, use in known}}
    yield gauge("memory_limit_bytes", "Limit of the pod on the GPU.", ((use.most, key) for key, use in known if use.most is not None))
    yield gauge("memory_used_bytes", "Memory of the GPU that the pod uses.", ((size, key) for key, size in sorted(used.items())))
    containers = sorted((key, size) for key, size in memory.by_container.items() if key[:2] in used)
    values = [(size, {**_labels_of(node, uid), "container": name, "uuid": gpu}) for (uid, gpu, name), size in containers]
    text = "Memory of the GPU that the container uses."
    yield family("gpushare_device_plugin_container_memory_used_bytes", "gauge", text, values)
    labels = {gpu.uuid: {"gpu": str(gpu.index), "uuid": gpu.uuid} for gpu in node.devices.gpus}
    of_gpus = [(size, labels[uuid]) for uuid, size in memory.use.by_gpu.items() if uuid in labels]
    yield family("gpushare_device_plugin_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use.", of_gpus)
    yield single("gpushare_device_plugin_pods_exceeding", "gauge", "Pods that use more memory than their units.", memory.over)
    text = "Pods without a limit, because they started before there was one."
    yield single("gpushare_device_plugin_pods_unlimited", "gauge", text, limits.unlimited)
    text = "Memory limits that differed from the pod's units and were set again."
    yield single("gpushare_device_plugin_limit_corrections_total", "counter", text, limits.corrections)


def _loads(node: NodeState, memory: Memory) -> Iterator[Metric]:
    gpus = {gpu.uuid: {"gpu": str(gpu.index), "uuid": gpu.uuid, "model": gpu.model} for gpu in node.devices.gpus}
    known = [(key, load) for key, load in sorted(memory.loads.items()) if key[1] in gpus]
    labels = {key: {**_labels_of(node, key[0]), **gpus[key[1]]} for key, _ in known}
    for name, text in _ENGINES.items():
        values = [(getattr(load, name) / FULL, labels[key]) for key, load in known]
        about = f"Part of the last minute in which the pod kept {text} of the GPU busy."
        yield family(f"gpushare_device_plugin_pod_{_NAMES[name]}_ratio", "gauge", about, values)
    containers = sorted(memory.container_loads.items())
    parts = [(load.sm / FULL, {**labels[key[:2]], "container": key[2]}) for key, load in containers if key[:2] in labels]
    text = "Part of the last minute in which the container kept an SM of the GPU busy."
    yield family("gpushare_device_plugin_container_sm_utilization_ratio", "gauge", text, parts)
    since = [(at, labels[key]) for key, at in sorted(memory.idle.items()) if key in labels]
    text = "Since when the pod has kept nothing of the GPU busy, if it does not now."
    yield family("gpushare_device_plugin_pod_idle_since_timestamp_seconds", "gauge", text, since)


def _sensors(node: NodeState, sensors: Mapping[int, Sensors]) -> Iterator[Metric]:
    """One series for each physical GPU: instances of a GPU have its sensors in common."""
    models = {physical_index(gpu.index): gpu.model for gpu in node.devices.gpus}
    known = [(index, found) for index, found in sorted(sensors.items()) if index in models]
    labels = {index: {"gpu": str(index), "uuid": found.uuid, "model": models[index]} for index, found in known}

    def values(name: str, scale: float = 1.0, more: Mapping[str, str] = _NO_MORE) -> list[tuple[float, dict[str, str]]]:
        found = ((getattr(read, name), index) for index, read in known)
        return [(value * scale, {**labels[index], **more}) for value, index in found if value is not None]

    for name, text in _ENGINES.items():
        about = f"Part of the time in which {text} of the GPU was busy."
        yield family(f"gpushare_device_plugin_gpu_{_NAMES[name]}_ratio", "gauge", about, values(name, 1 / FULL))
    for name, (field, scale, text) in _GAUGES.items():
        yield family(f"gpushare_device_plugin_gpu_{name}", "gauge", text, values(field, scale))
    reasons = [
        (bool(read.reasons & bit), {**labels[index], "reason": reason})
        for index, read in known
        if read.reasons is not None
        for bit, reason in CLOCK_REASONS.items()
    ]
    text = "1 if the clocks of the GPU are lower for this reason, else 0."
    yield family("gpushare_device_plugin_gpu_clocks_limited", "gauge", text, reasons)
    text = "Energy that the GPU has taken since its driver was loaded."
    yield family("gpushare_device_plugin_gpu_energy_joules_total", "counter", text, values("joules"))
    for name, label, kinds, text in _TOTALS:
        counts = [value for kind, field in kinds.items() for value in values(field, more={label: kind})]
        yield family(f"gpushare_device_plugin_gpu_{name}_total", "counter", text, counts)


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

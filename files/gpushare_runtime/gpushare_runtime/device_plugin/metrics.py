# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What happened since the start, and all of it and of the cards as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import Histogram
from prometheus_client.core import Metric

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY
from gpushare_runtime.daemon import metrics
from gpushare_runtime.daemon.metrics import family, latencies, single
from gpushare_runtime.device_plugin.node.allocator import NodeState


@dataclass
class Counters:
    """allocations, refusals, unsteered: containers; corrections: pods; xids: by (card UUID, number)."""

    allocations: int = 0
    refusals: int = 0
    unsteered: int = 0
    corrections: int = 0
    start_refusals: int = 0
    unrecorded_starts: int = 0
    record_mismatches: int = 0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: Histogram = field(default_factory=lambda: latencies("gpushare_answer_seconds", "Time to answer kubelet", "method"))

    def took(self, method: str, seconds: float) -> None:
        """An answer to kubelet took so long."""
        self.seconds.labels(method).observe(seconds)


def families(node: NodeState, counters: Counters) -> Iterator[Metric]:
    """Everything that the device plugin measures."""
    yield from _cards(node)
    yield from _events(counters)
    yield from metrics.of_process("gpushare_device_plugin")


def _cards(node: NodeState) -> Iterator[Metric]:
    cards = node.inventory.cards if node.inventory else ()
    of = {card.uuid: {"card": str(card.index), "uuid": card.uuid} for card in cards}
    unit = node.inventory.unit.mib * 1024 * 1024 if node.inventory else 0
    held, outlived = node.holders.units(node.inventory), node.holders.units(node.inventory, outlived=True)

    def gauge(name: str, text: str, values: dict[str, float]) -> Metric:
        return family(f"gpushare_card_{name}", "gauge", text, [(value, of[uuid]) for uuid, value in values.items()])

    yield single("gpushare_unit_bytes", "gauge", f"Size of one unit of {protocol.RESOURCE_MEMORY}", unit)
    yield family(
        "gpushare_card_info",
        "gauge",
        "What each card is",
        [(1, {**of[c.uuid], "minor": str(c.minor), "pci": c.pci, "model": c.model, "numa": str(c.numa)}) for c in cards],
    )
    yield gauge("units", "Units of each card", {c.uuid: c.units for c in cards})
    yield gauge("units_held", "Units that pods hold", {c.uuid: held.get(c.uuid, 0) for c in cards})
    yield gauge("units_outlived", "Units held by processes of pods that are gone", {c.uuid: outlived.get(c.uuid, 0) for c in cards})
    remainder = {c.uuid: c.mib * 1024 * 1024 - c.units * unit for c in cards}
    yield gauge("remainder_bytes", "Memory that does not fill a unit and is not offered", dict(remainder))
    yield gauge("healthy", "Whether the card answers and passes its checks", {c.uuid: c.health == HEALTHY for c in cards})
    yield gauge("cordoned", "Whether an administrator keeps new pods off the card", {c.uuid: c.cordoned for c in cards})


def _events(counters: Counters) -> Iterator[Metric]:
    def counter(name: str, text: str, value: int) -> Metric:
        return single(f"gpushare_{name}_total", "counter", text, value)

    yield counter("allocations", "Containers that were given cards", counters.allocations)
    yield counter("refusals", "Containers whose cards were refused to kubelet", counters.refusals)
    yield counter("unsteered", "Containers that got other cards than the scheduler chose, or were not placed by it", counters.unsteered)
    yield counter("corrections", "Pods whose annotations were corrected to the cards that they really have", counters.corrections)
    yield counter("start_refusals", "Starts of containers that were refused", counters.start_refusals)
    yield counter("unrecorded_starts", "Starts of containers that kubelet's record on disk does not have", counters.unrecorded_starts)
    yield counter(
        "record_mismatches", "Containers whose ids kubelet's checkpoint and its podresources API disagree on", counters.record_mismatches
    )
    yield family(
        "gpushare_xid_errors_total",
        "counter",
        "XID errors that the driver reported",
        [(count, {"uuid": uuid, "xid": str(xid)}) for (uuid, xid), count in counters.xids.items()],
    )
    yield from counters.seconds.collect()

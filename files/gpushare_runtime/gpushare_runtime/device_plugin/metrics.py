# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What happened since the start, and all of it and of the cards as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY
from gpushare_runtime.daemon import metrics
from gpushare_runtime.daemon.metrics import Family, Histogram, Sample
from gpushare_runtime.device_plugin.node.state import NodeState


@dataclass
class Counters:
    """allocations, rejections, unplanned: containers; corrections: pods; xids: by (card UUID, number)."""

    allocations: int = 0
    rejections: int = 0
    unplanned: int = 0
    corrections: int = 0
    start_rejections: int = 0
    unrecorded_starts: int = 0
    checkpoint_mismatches: int = 0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)

    def observe(self, method: str, seconds: float) -> None:
        """An answer to kubelet took so long."""
        self.seconds.setdefault(method, Histogram()).observe(seconds)


def families(node: NodeState, counters: Counters) -> Iterator[Family]:
    """Everything that the device plugin measures."""
    yield from _cards(node)
    yield from _events(counters)
    yield from metrics.families("gpushare-device-plugin")


def _cards(node: NodeState) -> Iterator[Family]:
    cards = node.devices.inventory.cards if node.devices.inventory else ()
    of = {card.uuid: {"card": str(card.index), "uuid": card.uuid} for card in cards}
    unit = node.devices.inventory.unit.mib * 1024 * 1024 if node.devices.inventory else 0
    held, outlived = node.usage.units_by_card(node.devices.inventory), node.usage.units_by_card(node.devices.inventory, orphaned=True)

    def gauge(name: str, text: str, values: dict[str, float]) -> Family:
        return Family(f"gpushare_card_{name}", "gauge", text, [Sample(value, of[uuid]) for uuid, value in values.items()])

    yield Family("gpushare_unit_bytes", "gauge", f"Size of one unit of {protocol.RESOURCE_MEMORY}", [Sample(unit)])
    yield Family(
        "gpushare_card_info",
        "gauge",
        "What each card is",
        [Sample(1, {**of[c.uuid], "minor": str(c.minor), "pci": c.pci, "model": c.model, "numa": str(c.numa)}) for c in cards],
    )
    yield gauge("units", "Units of each card", {c.uuid: c.units for c in cards})
    yield gauge("units_held", "Units that pods hold", {c.uuid: held.get(c.uuid, 0) for c in cards})
    yield gauge("units_outlived", "Units held by processes of pods that are gone", {c.uuid: outlived.get(c.uuid, 0) for c in cards})
    remainder = {c.uuid: c.mib * 1024 * 1024 - c.units * unit for c in cards}
    yield gauge("remainder_bytes", "Memory that does not fill a unit and is not offered", dict(remainder))
    yield gauge("healthy", "Whether the card answers and passes its checks", {c.uuid: c.health == HEALTHY for c in cards})
    yield gauge("cordoned", "Whether an administrator keeps new pods off the card", {c.uuid: c.cordoned for c in cards})


def _events(counters: Counters) -> Iterator[Family]:
    def counter(name: str, text: str, value: int) -> Family:
        return Family(f"gpushare_{name}_total", "counter", text, [Sample(value)])

    yield counter("allocations", "Containers that were given cards", counters.allocations)
    yield counter("refusals", "Containers whose cards were refused to kubelet", counters.rejections)
    yield counter("unsteered", "Containers that got other cards than the scheduler chose, or were not placed by it", counters.unplanned)
    yield counter("corrections", "Pods whose annotations were corrected to the cards that they really have", counters.corrections)
    yield counter("start_refusals", "Starts of containers that were refused", counters.start_rejections)
    yield counter("unrecorded_starts", "Starts of containers that kubelet's record on disk does not have", counters.unrecorded_starts)
    yield counter(
        "record_mismatches",
        "Containers whose ids kubelet's checkpoint and its podresources API disagree on",
        counters.checkpoint_mismatches,
    )
    yield Family(
        "gpushare_xid_errors_total",
        "counter",
        "XID errors that the driver reported",
        [Sample(count, {"uuid": uuid, "xid": str(xid)}) for (uuid, xid), count in counters.xids.items()],
    )
    yield Family(
        "gpushare_answer_seconds",
        "histogram",
        "Time to answer kubelet",
        [sample for method, histogram in counters.seconds.items() for sample in histogram.samples({"method": method})],
    )

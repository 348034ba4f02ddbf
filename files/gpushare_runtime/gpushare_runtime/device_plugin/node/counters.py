# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The counts of the device plugin, from which `metrics.py` makes families."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import Histogram

from gpushare_runtime.daemon.exposition import latencies


@dataclass
class Counters:
    """Counts since the start; the metrics below have the same names."""

    allocations: int = 0
    rejections: int = 0
    unplanned: int = 0
    corrections: int = 0
    start_rejections: int = 0
    unrecorded_starts: int = 0
    checkpoint_mismatches: int = 0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)  # by (GPU UUID, XID)
    seconds: Histogram = field(
        default_factory=lambda: latencies("gpushare_device_plugin_rpc_duration_seconds", "Duration of kubelet's requests.", "method")
    )

    def observe(self, method: str, seconds: float) -> None:
        """A request of kubelet took so long."""
        self.seconds.labels(method).observe(seconds)

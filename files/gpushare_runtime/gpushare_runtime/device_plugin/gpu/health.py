# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Health state of each GPU: XID errors, the GPU's own checks, and when pods may use a GPU again. No I/O."""

from __future__ import annotations

import threading
from typing import Final

from gpushare_runtime.core.inventory import HEALTHY

# Errors of the application, not of the GPU, which remains usable (NVIDIA's XID catalogue; NVIDIA's device plugin ignores the same).
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
# Consecutive checks that a failed GPU must pass before pods may use it again.
CHECKS: Final = 3


class GpuHealth:
    """Remembers failures by GPU UUID. Used from several threads. checks: number that a failed GPU must pass consecutively."""

    def __init__(self, checks: int = CHECKS) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._failures: dict[str, str] = {}
        self._passed: dict[str, int] = {}

    def xid(self, uuid: str, number: int) -> bool:
        """Take an XID error that the driver reported for a GPU. Returns whether the GPU becomes unhealthy."""
        if number in APPLICATION_XIDS:
            return False
        self._set(uuid, f"XID {number}: see `dmesg` and NVIDIA's XID catalogue; pods may use it again when it passes its checks")
        return True

    def fails(self, uuid: str, why: str) -> str:
        """The GPU does not answer, or fails a check. Returns the failure."""
        return self._set(uuid, why)

    def answers(self, uuid: str, unfit: str = "") -> str:
        """The GPU answers. Returns "ok" or the failure. unfit: why pods must not use it again after a failure."""
        with self._lock:
            if uuid not in self._failures:
                return HEALTHY
            self._passed[uuid] = 0 if unfit else self._passed[uuid] + 1
            if self._passed[uuid] >= self._checks:
                del self._failures[uuid], self._passed[uuid]
                return HEALTHY
            return f"{self._failures[uuid]} ({unfit})" if unfit else self._failures[uuid]

    def _set(self, uuid: str, why: str) -> str:
        with self._lock:
            self._failures[uuid], self._passed[uuid] = why, 0
        return why

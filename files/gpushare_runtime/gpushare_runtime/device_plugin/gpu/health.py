# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which cards are well: XID errors, what a card's own checks say, and when one that was in trouble may be used again. No I/O."""

from __future__ import annotations

import threading
from typing import Final

from gpushare_runtime.core.inventory import HEALTHY

# Errors of the application that ran, not of the card: it may go on being used (NVIDIA's XID catalogue; the same that its own
# device plugin passes over).
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
# Checks in a row that a card must pass to be used again.
CHECKS: Final = 3


class CardHealth:
    """Remembers what befell each card, by UUID. Used from several threads. checks: how many a card must pass in a row."""

    def __init__(self, checks: int = CHECKS) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._trouble: dict[str, str] = {}
        self._passed: dict[str, int] = {}

    def xid(self, uuid: str, number: int) -> bool:
        """The driver reported this error of a card; whether that takes it out of use."""
        if number in APPLICATION_XIDS:
            return False
        self._set(uuid, f"XID {number}: see `dmesg` and NVIDIA's XID catalogue; it is used again when it answers and passes its checks")
        return True

    def fails(self, uuid: str, why: str) -> str:
        """The card does not answer, or fails a check; what is wrong."""
        return self._set(uuid, why)

    def answers(self, uuid: str, unfit: str = "") -> str:
        """The card answers; "ok", or what is wrong. unfit: what keeps a card that was in trouble from being used again."""
        with self._lock:
            if uuid not in self._trouble:
                return HEALTHY
            self._passed[uuid] = 0 if unfit else self._passed[uuid] + 1
            if self._passed[uuid] >= self._checks:
                del self._trouble[uuid], self._passed[uuid]
                return HEALTHY
            return f"{self._trouble[uuid]} ({unfit})" if unfit else self._trouble[uuid]

    def _set(self, uuid: str, why: str) -> str:
        with self._lock:
            self._trouble[uuid], self._passed[uuid] = why, 0
        return why

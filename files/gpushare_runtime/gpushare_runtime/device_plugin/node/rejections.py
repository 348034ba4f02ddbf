# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The allocations and starts that the plugin rejects. It publishes them, so that the scheduler does not choose that GPU for that size
again. No I/O: clocks are arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from gpushare_runtime.core.node_report import Rejection
from gpushare_runtime.core.reasons import RejectionReason
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.errors import GpushareError

DELETE_POD: Final = "delete the pod so that the scheduler places it again"
RETRIES: Final = "kubelet will retry the start"
# Longer than a controller takes to create the next pod, for which the scheduler would choose the GPU again.
LIFETIME: Final = 60.0
# Two clocks differ by less from one reading to the next, unless one of them was set.
_CLOCK_SET: Final = 2.0


class AllocationRejected(GpushareError):
    """The plugin rejects an allocation or a start; kubelet reports the text in the pod's status."""

    def __init__(self, words: str, reason: RejectionReason) -> None:
        super().__init__(words)
        self.reason: RejectionReason = reason


class Rejections:
    """The allocations that the plugin rejected. Each expires, or ends as soon as other pods use the GPU.

    clock: monotonic seconds. now: Unix time, which a person may set. users_of: returns the users of a GPU.
    """

    def __init__(self, clock: Callable[[], float], now: Callable[[], float], users_of: Callable[[str], Hashable], changes: Changes) -> None:
        self.changes = changes
        self._clock = clock
        self._now = now
        self._users_of = users_of
        self._known: dict[tuple[str, str], tuple[Rejection, float, Hashable]] = {}

    def add(self, uid: str, gpu: str, units: int, *, whole: bool) -> None:
        rejection = Rejection(uid, gpu, units, self._now() + LIFETIME, whole)
        self._known[uid, gpu] = rejection, self._clock() + LIFETIME, self._users_of(gpu)
        self.changes.notify()

    def current(self) -> list[Rejection]:
        """The rejections in force, oldest first."""
        clock, now = self._clock(), self._now()
        kept = {}
        for key, (rejection, end, users) in self._known.items():
            if end > clock and self._users_of(rejection.gpu) == users:
                until = now + end - clock
                # The published time changes only if the host's clock was set.
                kept[key] = (replace(rejection, until=until) if abs(until - rejection.until) > _CLOCK_SET else rejection), end, users
        self._known = kept
        return [rejection for rejection, _, _ in kept.values()]

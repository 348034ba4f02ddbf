# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The memory limits of this node's driver, as the state file keeps them for the next process. No I/O."""

from __future__ import annotations

from collections.abc import Set

from gpushare_runtime.daemon.sync import Changes

PodOnGpu = tuple[str, str]
"""(pod UID, GPU UUID)."""


class KnownLimits:
    """Limits that the driver has got, and where it has none. changes: see PodTable.

    pods: the pods that have their limit on a GPU; they must have it as long as they exist, also after a reboot. gpus: UUIDs of the GPUs on
    which every pod gets a limit, but those of `exempt`, which started before the driver limited the GPU.
    """

    def __init__(self, changes: Changes) -> None:
        self.pods: frozenset[PodOnGpu] = frozenset()
        self.gpus: frozenset[str] = frozenset()
        self.exempt: frozenset[PodOnGpu] = frozenset()
        self._changes = changes

    def add(self, pods: Set[PodOnGpu]) -> None:
        """The driver has got these limits."""
        self._set(self.pods | pods, self.gpus, self.exempt)

    def remove(self, pods: Set[PodOnGpu]) -> None:
        """Forget pods that have ended."""
        self._set(self.pods - pods, self.gpus, self.exempt)

    def set_gpus(self, gpus: Set[str], exempt: Set[PodOnGpu]) -> None:
        """Take on which GPUs pods get limits, and which pods do not."""
        self._set(self.pods, frozenset(gpus), frozenset(exempt))

    def restore(self, pods: Set[PodOnGpu], gpus: Set[str], exempt: Set[PodOnGpu]) -> None:
        """Add the limits of the process before."""
        self._set(self.pods | pods, self.gpus | gpus, self.exempt | exempt)

    def _set(self, pods: frozenset[PodOnGpu], gpus: frozenset[str], exempt: frozenset[PodOnGpu]) -> None:
        if (pods, gpus, exempt) != (self.pods, self.gpus, self.exempt):
            self.pods, self.gpus, self.exempt = pods, gpus, exempt
            self._changes.notify()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Gives the group of each container the limit of its pod, so that the programs in it see the limit: it stops nothing by itself.

A program sees the limit of the nearest group in which the kernel's controller dmem counts. runc lets it count in each container's group,
where no limit is set: there `cudaMemGetInfo` reports the whole GPU, although the pod's limit holds. Sources: NVIDIA, MPS v3 Memory
Partitioning, "Setting on a leaf versus a parent"; NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS", "Verified Behavior", which
was measured on driver 615.71.09. Both were read on 2026-11-29.

The limits of dmem nest, so the pod's still bounds all its containers together. The
driver's other back end has no nested limits: a limit of a container would count instead of the pod's. So a group gets one only where the
kernel itself has the pod's limit.

Groups that a container makes below its own are not touched: dmem counts there only if the container has enabled it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.daemon.inotify import FolderWatch
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError
from gpushare_runtime.device_plugin.gpu.dmem import limits_of, region_of

log = logging.getLogger(__name__)

# With systemd the runtime enables the controllers of a group only after it was made, and no event tells of that.
AGAIN_SECONDS: Final = 2.0
_QUOTED: Final = 80


class ContainerLimits:
    """groups_in: the groups directly below a group, may block. pci: the address of a GPU by UUID, "" if it is unknown."""

    def __init__(self, driver: Nvml, groups_in: Callable[[str], Sequence[str]], pci: Callable[[str], str]) -> None:
        self._driver = driver
        self._groups_in = groups_in
        self._pci = pci
        # The pod's group → GPU UUID → bytes, for limits that nest.
        self._due: dict[str, dict[str, int]] = {}
        self._failing: set[str] = set()
        # The pod's group → until when it is read again.
        self._until: dict[str, float] = {}

    def took(self, group: str, limits: Mapping[str, int]) -> None:
        """The driver has these limits (GPU UUID → bytes) for a pod's group. Limit what is below it, now and from now on. Blocks."""
        known = limits_of(group)
        nested = {gpu: most for gpu, most in limits.items() if known.get(region_of(self._pci(gpu))) == most}
        if nested:
            self._due[group] = {**self._due.get(group, {}), **nested}
            self._limit(group)

    async def follow(self, watch: FolderWatch, now: float) -> None:
        """Limit the groups that have appeared. now: monotonic seconds."""
        watch.watch(list(self._due))
        self._until.update(dict.fromkeys(watch.take(), now + AGAIN_SECONDS))
        if self._until:
            await in_thread(partial(self._look, list(self._until)))
            self._until = {group: until for group, until in self._until.items() if until > now}

    def _look(self, groups: Sequence[str]) -> None:
        for group in groups:
            self._limit(group)

    def _limit(self, group: str) -> None:
        due = self._due.get(group, {})
        if not os.path.isdir(group):
            self._due.pop(group, None)
            self._failing.discard(group)
            return
        why = ""
        for container in self._groups_in(group):
            for gpu, most in due.items():
                try:
                    self._set(container, gpu, most)
                except (NvmlError, OSError) as error:
                    # Otherwise the container has ended.
                    if os.path.isdir(container):
                        why = f"{as_text(os.path.basename(container), _QUOTED)} on GPU {gpu}: {error}"
        if why and group not in self._failing:
            log.warning("a container does not see the memory limit of its pod, but the whole GPU: %s; retrying each minute", why)
        (self._failing.add if why else self._failing.discard)(group)

    def _set(self, container: str, gpu: str, most: int) -> None:
        region = region_of(self._pci(gpu))
        found = limits_of(container)
        # Where dmem does not count, the container sees the pod's limit.
        if region not in found or found[region] == most:
            return
        self._driver.limit_memory(gpu, container, most)
        after = limits_of(container).get(region, most)
        if after != most:
            raise NvmlError(f"the kernel has a limit of {after} bytes after one of {most} was set")

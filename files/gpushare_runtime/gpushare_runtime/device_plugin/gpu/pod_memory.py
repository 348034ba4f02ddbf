# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How much of each GPU's memory each pod uses, by NVML's processes, and which pods use more than their units.

A process counts only if it is certainly the one that NVML means: its number may belong to another process a moment later. So NVML is
asked twice, and the process must be the same before and after the second answer. Memory in doubt counts for no pod: a pod that
seems to use too much does use too much.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core.inventory import HEALTHY, Gpu
from gpushare_runtime.core.overuse import Excess, Key, Overuse
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.gpu.discovery import Nvml, NvmlError
from gpushare_runtime.device_plugin.gpu.pod_limits import limits_due
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
_MIB: Final = 1024 * 1024


class Identities(Protocol):
    """The processes of this host."""

    def identify(self, pid: int) -> tuple[int, str] | None:
        """When the process started (in the kernel's ticks) and the UID of its pod, "" without one; None if it does not exist."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes. by_pod: (pod UID, GPU UUID); by_gpu: all that is in use there, of GPUs that answer."""

    by_pod: Mapping[tuple[str, str], int] = field(default_factory=dict)
    by_gpu: Mapping[str, int] = field(default_factory=dict)


def read_use(nvml: Nvml, identities: Identities, gpus: Sequence[Gpu]) -> MemoryUse:
    """The use of these GPUs. Blocks. A GPU that does not answer is not in it."""
    by_pod: Counter[tuple[str, str]] = Counter()
    by_gpu: dict[str, int] = {}
    for gpu in gpus:
        try:
            before = {pid: identities.identify(pid) for pid, _ in nvml.processes(gpu.uuid)}
            processes = nvml.processes(gpu.uuid)
            used = nvml.memory_used(gpu.uuid)
        except NvmlError as error:
            log.debug("the memory use of GPU %s is unknown: %s", gpu.uuid, error, extra=about(gpu=gpu.index))
            continue
        by_gpu[gpu.uuid] = used
        for pid, size in processes:
            known = before.get(pid)
            if size is not None and known is not None and known[1] and identities.identify(pid) == known:
                by_pod[known[1], gpu.uuid] += size
    return MemoryUse(by_pod, by_gpu)


class MemoryWatch:
    """Reads the use every few seconds. It is used from one event loop only.

    exceeded: reports a pod that uses too much, with a message; None if no pod is limited to its units.
    """

    def __init__(self, node: NodeState, nvml: Nvml, identities: Identities, exceeded: Callable[[LocalPod, str], None] | None) -> None:
        self.use = MemoryUse()
        self._node = node
        self._nvml = nvml
        self._identities = identities
        self._exceeded = exceeded
        self._overuse = Overuse()

    @property
    def over(self) -> int:
        """How many pods use more than their units."""
        return len({uid for uid, _ in self._overuse.reported()})

    def lasting(self, seconds: float) -> Mapping[Key, Excess]:
        """The pods that have used more than their units for so long, by GPU."""
        return self._overuse.lasting(seconds, time.monotonic())

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            gpus = [gpu for gpu in self._node.devices.gpus if gpu.health == HEALTHY]
            self.use = await in_thread(partial(read_use, self._nvml, self._identities, gpus)) if gpus else MemoryUse()
            if self._exceeded is not None:
                self._compare(self._exceeded)
            await asyncio.sleep(INTERVAL_SECONDS)

    def _compare(self, exceeded: Callable[[LocalPod, str], None]) -> None:
        uids = {uid for uid, _, _ in self._node.usage.snapshot()}
        due = {(uid, gpu): most for uid in uids for gpu, most in limits_due(self._node, uid).items()}
        began, ended = self._overuse.observe(due, self.use.by_pod, self.use.by_gpu, time.monotonic())
        for uid, gpu in began:
            self._report(uid, gpu, self.use.by_pod[uid, gpu], due[uid, gpu], exceeded)
        for uid, gpu in ended:
            log.info(
                "%s uses no more than its units of GPU %s again", self._node.usage.pod_name(uid), gpu, extra=self._node.about(uid, gpu)
            )

    def _report(self, uid: str, gpu: str, used: int, due: int, exceeded: Callable[[LocalPod, str], None]) -> None:
        pod, known = self._node.pods.get(uid), self._node.devices.by_uuid.get(gpu)
        index = known.index if known else gpu
        text = (
            f"It uses {used // _MIB} MiB of GPU {index} and requested {due // _MIB} MiB there: other pods of the GPU may run out of "
            "memory; reduce its use, or request more"
        )
        log.warning("%s: %s", self._node.usage.pod_name(uid), text, extra=self._node.about(uid, gpu))
        if pod is not None:
            exceeded(pod, text)

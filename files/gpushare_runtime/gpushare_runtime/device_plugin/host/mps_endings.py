# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tells gpushare-mps whose clients of MPS to terminate: those of pods that kubelet is about to kill.

A client that is killed with work on the GPU can leave its MPS server unable to take others. NVIDIA's documentation of MPS has
`terminate_client` for that, before the process is ended. A program that ends by itself within its grace period needs none of it. So this
begins only shortly before kubelet sends SIGKILL. The API server does not announce what the kernel kills for want of memory, and what
kubelet kills because of a failed probe, or by itself (pressure on the node, activeDeadlineSeconds).

The processes are those in the pod's control group, each with the time of its start. A pod cannot put another's processes there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core.mps import MOST_ENDING, ending_to_json
from gpushare_runtime.daemon.files import replace_file
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.node.local_pods import Deletion, LocalPod
from gpushare_runtime.device_plugin.node.state import NodeState

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
LEAD_SECONDS: Final = 5.0
"""Before kubelet kills it; half of the grace period of a pod that has less than twice as much."""


class PodProcesses(Protocol):
    """The processes of this host."""

    def processes_of(self, uid: str, most: int) -> Sequence[tuple[int, int]]:
        """At most so many processes of this pod: number and start, in the kernel's ticks. May block."""


def patience(deletion: Deletion, now: float) -> float:
    """Seconds from now on, a Unix time, for which the programs of a pod with this deletion are left to end by themselves."""
    left = min(max(deletion.at - now, 0.0), deletion.seconds)
    return max(left - min(LEAD_SECONDS, deletion.seconds / 2), 0.0)


class EndingClients:
    """path: of the file that gpushare-mps reads. clock: monotonic; now: Unix time. It is used from one event loop only."""

    def __init__(
        self,
        node: NodeState,
        processes: PodProcesses,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._processes = processes
        self._path = path
        self._clock = clock
        self._now = now
        self._due: dict[str, tuple[Deletion | None, float]] = {}
        self._written: bytes | None = None
        self._problem = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            gpus = self._gpus(self._ending())
            text = await in_thread(partial(self._render, gpus)) if gpus else ending_to_json({})
            if text != self._written:
                await in_thread(partial(self._write, text))
            await asyncio.sleep(INTERVAL_SECONDS)

    def _ending(self) -> Sequence[str]:
        """UIDs of the pods whose time to end by themselves is over.

        Only a deletion counts, which the API server never takes back. It may show an older state for a while, in which a pod is missing.
        """
        now, known = self._clock(), self._due
        # kubelet runs a static pod on, also if the API server's copy is deleted.
        ending = (pod for pod in self._node.pods.seen() if pod.terminating and not pod.static and not pod.finished)
        self._due = {pod.uid: self._deadline(pod, known.get(pod.uid), now) for pod in ending}
        return [uid for uid, (_, at) in self._due.items() if at <= now]

    def _deadline(self, pod: LocalPod, known: tuple[Deletion | None, float] | None, now: float) -> tuple[Deletion | None, float]:
        """kubelet counts from when it hears of a deletion, and a second one may shorten the time."""
        if known is not None and known[0] == pod.deletion:
            return known
        return pod.deletion, now + (patience(pod.deletion, self._now()) if pod.deletion else 0.0)

    def _gpus(self, uids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """GPU UUID → the pods of these that have something of it."""
        if not uids:
            return {}
        users, wanted = self._node.usage.gpu_users(), set(uids)
        found = {gpu: sorted(wanted.intersection(pods)) for gpu, pods in users.memory.items()}
        for gpu, uid in users.whole.items():
            found[gpu] = sorted(wanted.intersection({*users.memory.get(gpu, ()), uid}))
        return {gpu: pods for gpu, pods in found.items() if pods}

    def _render(self, gpus: Mapping[str, Sequence[str]]) -> bytes:
        of_pod = {uid: self._processes.processes_of(uid, MOST_ENDING) for uid in {uid for pods in gpus.values() for uid in pods}}
        return ending_to_json({gpu: [process for uid in pods for process in of_pod[uid]] for gpu, pods in gpus.items()})

    def _write(self, text: bytes) -> None:
        try:
            replace_file(self._path, text, 0o700)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s cannot be written (%s): clients of MPS are killed without being terminated first", self._path, error)
            return
        self._written, self._problem = text, ""

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Terminates the clients of pods that kubelet is about to kill, by the list that the device plugin writes.

Only what is a client of this GPU's own servers is terminated, and only if it started when the device plugin says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.mps import MOST_ENDING_BYTES, MpsProcess, ending_of
from gpushare_runtime.daemon.processes import started
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.mps.control import ControlDaemon, ControlError

log = logging.getLogger(__name__)

# A program may start CUDA in its last seconds. One that lives on after that is not about to be killed.
_SECONDS: Final = 60.0


class Endings:
    """Of one GPU. file: of the device plugin. started_at: when a process started, in the kernel's ticks; None if it does not exist."""

    def __init__(
        self,
        daemon: ControlDaemon,
        file: Path,
        uuid: str,
        started_at: Callable[[int], int | None] = started,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        """Why the list cannot be used; "" if it can, or there is none."""
        self._daemon = daemon
        self._file = file
        self._uuid = uuid
        self._started_at = started_at
        self._clock = clock
        self._since: dict[MpsProcess, float] = {}
        self._done: set[MpsProcess] = set()

    async def follow(self) -> list[str]:
        """Terminate what is listed and was not terminated before. Returns why that failed, one text for each. ControlError."""
        listed, now = await in_thread(self._read), self._clock()
        self._since = {process: self._since.get(process, now) for process in listed}
        self._done &= listed
        due = {process.pid: process for process, since in self._since.items() if process not in self._done and now - since < _SECONDS}
        failed: list[str] = []
        for server in await self._daemon.servers() if due else ():
            for client in await self._daemon.clients(server):
                process = due.pop(client, None)
                if process is not None and await in_thread(partial(self._started_at, client)) == process.started:
                    self._done.add(process)
                    failed += await self._terminate(server, client)
        return failed

    async def _terminate(self, server: int, client: int) -> list[str]:
        try:
            await self._daemon.terminate(server, client)
        except ControlError as error:
            log.error("process %d of a pod that ends could not be terminated as a client of server %d: %s", client, server, error)
            return [str(error)]
        log.info("process %d of a pod that ends was terminated as a client of server %d", client, server)
        return []

    def _read(self) -> frozenset[MpsProcess]:
        try:
            with self._file.open("rb") as file:
                found = ending_of(file.read(MOST_ENDING_BYTES + 1), self._uuid)
        except FileNotFoundError:
            self.problem = ""
            return frozenset()
        except (OSError, ReportError) as error:
            self.problem = f"{self._file}: {error}"
            return frozenset()
        self.problem = ""
        return found

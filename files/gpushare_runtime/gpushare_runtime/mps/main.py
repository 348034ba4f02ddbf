# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-mps GPU: the compute mode of a GPU, its MPS control daemon, and its state for the device plugin.

The daemon's end is this process's end: systemd starts both again. Clients of a daemon that ended are lost, and kubelet starts
their containers again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.core import mps
from gpushare_runtime.core.mps import MpsState
from gpushare_runtime.daemon import runner
from gpushare_runtime.daemon.files import replace_file
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.runner import FatalError, Signals, Status, keep_alive, run, run_all
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.mps.canary import AGAIN_SECONDS, Canary, NoCanary
from gpushare_runtime.mps.control import PROGRAM, ControlDaemon, ControlError
from gpushare_runtime.mps.endings import Endings
from gpushare_runtime.mps.folders import empty
from gpushare_runtime.mps.gpu import ComputeModes, ExclusiveMode, GpuError, withheld
from gpushare_runtime.mps.shares import Shares

log = logging.getLogger(__name__)

NAME: Final = "gpushare-mps"
INTERVAL_SECONDS: Final = 5.0
CANARY_SECONDS: Final = 60.0
ENDINGS_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 60.0
"""Without an answer of the daemon, until it is started anew if no container has the GPU."""
SHARES_SECONDS: Final = 0.2
"""A container waits for the limit that it needs."""
_COARSE_SECONDS: Final = 1.0
"""Times of files lag behind the clock by less."""
_PART: Final = "control daemon"
_LIMIT: Final = "memory limit"
_CANARY: Final = "canary"
_ENDINGS: Final = "ends of pods"
_MOST_SECONDS: Final = 86400.0
_GPU: Final = re.compile(r"GPU-[0-9A-Za-z-]{8,60}")


@dataclass(frozen=True)
class MpsSettings:
    """uuid: of the GPU. run, logs: folders for those of all GPUs. state: a folder that a reboot keeps. program: path or name.

    usage: the record of the device plugin. canary: seconds between two tries to start CUDA, 0 for none.
    """

    uuid: str
    run: Path
    logs: Path
    state: Path
    program: str
    usage: Path = Path(mps.USAGE_FILE)
    canary: float = CANARY_SECONDS
    log_level: str = "info"


def parse_arguments(arguments: Sequence[str] | None = None) -> MpsSettings:
    """The settings by arguments; None: this process's. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(prog=NAME, description="Run the MPS control daemon of one GPU.")
    parser.add_argument("gpu", type=_gpu, help="UUID of the GPU, as `nvidia-smi -L` prints it")
    parser.add_argument("--run-dir", type=Path, default=Path(mps.RUN_FOLDER), help="default %(default)s")
    parser.add_argument("--log-dir", type=Path, default=Path(mps.LOG_FOLDER), help="default %(default)s")
    state = Path(os.environ.get("STATE_DIRECTORY", "/var/lib/gpushare-mps").split(":")[0])
    parser.add_argument("--state-dir", type=Path, default=state, help="(or STATE_DIRECTORY) default %(default)s")
    parser.add_argument("--control", default=PROGRAM, metavar="PROGRAM", help="default %(default)s")
    parser.add_argument(
        "--usage-file",
        type=Path,
        default=Path(mps.USAGE_FILE),
        metavar="FILE",
        help="record of the device plugin; default: the one in its state folder",
    )
    parser.add_argument(
        "--canary-seconds",
        type=_seconds,
        default=CANARY_SECONDS,
        metavar="SECONDS",
        help="between two programs that find out whether new ones can start CUDA; 0: none; default %(default)g",
    )
    runner.add_options(parser)
    given = parser.parse_args(arguments)
    places = given.run_dir, given.log_dir, given.state_dir
    return MpsSettings(given.gpu, *places, given.control, given.usage_file, given.canary_seconds, given.log_level)


def _gpu(text: str) -> str:
    if _GPU.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not the UUID of a GPU; write for example GPU-8f6f2c31-…, see `nvidia-smi -L`")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds <= _MOST_SECONDS:
        return seconds
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of seconds from 0 to {_MOST_SECONDS:.0f}")


class MpsOfGpu:
    """The daemon of one GPU, from its compute mode to its end."""

    def __init__(self, settings: MpsSettings, nvml: ComputeModes, interval: float = INTERVAL_SECONDS) -> None:
        self.status = Status(required=[_PART])
        folder = settings.run / settings.uuid
        self._uuid = settings.uuid
        self._state = folder / mps.STATE_NAME
        self._mode = ExclusiveMode(nvml, settings.uuid, settings.state / f"{settings.uuid}.mode")
        self._daemon = ControlDaemon(settings.program, settings.uuid, folder, settings.logs / settings.uuid)
        self._usage = settings.usage
        self._endings = Endings(self._daemon, settings.usage.with_name(mps.ENDING_NAME), settings.uuid)
        self._canary = Canary(self._daemon)
        self._canary_seconds = settings.canary
        self._look_now = asyncio.Event()
        self._shared_memory = folder / mps.SHARED_MEMORY
        self._tidied = 0.0
        self._interval = interval
        self._limit = 0
        self._servers = 0
        self._writing = asyncio.Lock()

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until `stop` is set. FatalError if the GPU cannot have MPS, or the daemon ends."""
        try:
            gpu = await in_thread(self._mode.enter)
        except GpuError as error:
            await self._write(str(error))
            raise FatalError(str(error), restart=True) from None
        except OSError as error:
            raise FatalError(f"the compute mode of before cannot be stored: {error}", restart=True) from None
        try:
            await self._start(gpu.mib)
            shares = await in_thread(partial(Shares, self._usage, self._uuid, gpu.mib))
            parts = [self._watch(), self._answer(shares), self._follow(shares), self._end_clients(), keep_alive(lambda: self.status.ready)]
            if self._canary_seconds:
                parts.append(self._look(shares, gpu.mib))
            await run_all(parts, stop)
        finally:
            await self._daemon.stop()
            await self._write("it was stopped")
            try:
                await in_thread(self._mode.leave)
            except GpuError as error:
                log.error("the compute mode of before could not be set again: %s", error)

    async def _start(self, mib: int) -> None:
        try:
            await self._daemon.start()
            await self._daemon.bound_clients(mib)
        except (ControlError, OSError) as error:
            await self._write(str(error))
            raise FatalError(str(error), restart=True) from None
        self._limit = mib
        log.info("GPU %s: the MPS control daemon answers; no client gets more than %d MiB", self._uuid, mib, extra=about(gpu=self._uuid))

    async def _watch(self) -> NoReturn:
        how = await self._daemon.ended()
        raise FatalError(f"the MPS control daemon of GPU {self._uuid} ended, and its clients are lost: {how}", restart=True)

    async def _answer(self, shares: Shares) -> NoReturn:
        answered = time.monotonic()
        while True:
            if node := await in_thread(withheld):
                # systemd takes the numbers of drivers from the kernel when it starts the service.
                raise FatalError(
                    f"found {node}, which this service may not open: its driver was loaded after the service began", restart=True
                )
            try:
                servers = len(await self._daemon.servers())
            except (ControlError, OSError) as error:
                self.status.degraded(_PART, str(error))
                await self._write(str(error))
                if time.monotonic() - answered > SILENT_SECONDS and not shares.used:
                    raise FatalError(f"GPU {self._uuid}: {error}, and no container has it", restart=True) from None
            else:
                answered = time.monotonic()
                self.status.ok(_PART, f"answers, {servers} servers")
                self._servers = servers
                await self._write(self._stuck, servers)
            await asyncio.sleep(self._interval)

    @property
    def _stuck(self) -> str:
        """Why the server takes no new programs, although the daemon answers; "" if it does."""
        why = self._canary.problem
        return f"{why}; it is restarted once no program uses the GPU: delete the pods there" if why else ""

    async def _end_clients(self) -> NoReturn:
        while True:
            try:
                failed = await self._endings.follow()
            except (ControlError, OSError):
                # `_answer` reports a daemon that does not.
                failed = []
            if failed:
                self._look_now.set()
            if self._endings.problem:
                self.status.degraded(_ENDINGS, self._endings.problem)
            else:
                self.status.ok(_ENDINGS, "clients of pods that end are terminated first")
            await asyncio.sleep(ENDINGS_SECONDS)

    async def _look(self, shares: Shares, mib: int) -> NoReturn:
        """Find a server that takes no new programs, and end it with its daemon once no program uses it."""
        time_of = asyncio.get_running_loop().time
        while True:
            await self._try_canary(lambda: mib - shares.together)
            until = time_of() + (AGAIN_SECONDS if self._canary.in_doubt else self._canary_seconds)
            while not self._look_now.is_set() and time_of() < until:
                if self._canary.problem and (not shares.used or await self._has_no_clients()):
                    raise FatalError(f"GPU {self._uuid}: {self._canary.problem}, and no program uses it", restart=True)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._look_now.wait(), min(self._interval, max(until - time_of(), 0.0)))
            self._look_now.clear()

    async def _try_canary(self, room: Callable[[], int]) -> None:
        try:
            await self._canary.look(room)
        except NoCanary as error:
            self.status.degraded(_CANARY, f"no program can be tried: {error}")
            return
        except (ControlError, OSError):
            # `_answer` reports a daemon that does not.
            return
        if self._canary.problem:
            self.status.degraded(_CANARY, self._stuck)
            await self._write(self._stuck, self._servers)
        else:
            self.status.ok(_CANARY, "new programs can start CUDA")

    async def _has_no_clients(self) -> bool:
        try:
            return await self._canary.idle()
        except (ControlError, OSError):
            return False

    async def _follow(self, shares: Shares) -> NoReturn:
        """Keep the limit of clients that unset their own at the largest share that a container of this GPU has.

        Nothing that containers leave in shared memory outlasts the last of them.
        """
        while True:
            began = time.time()
            wanted = await in_thread(shares.largest)
            problem = shares.problem
            if wanted != self._limit:
                try:
                    await self._daemon.bound_clients(wanted)
                except (ControlError, OSError) as error:
                    problem = str(error)
                else:
                    self._limit = wanted
                    log.info(
                        "GPU %s: no new client gets more than %d MiB, the largest share of a container",
                        self._uuid,
                        wanted,
                        extra=about(gpu=self._uuid),
                    )
                    await self._write(self._stuck, self._servers)
            if problem:
                self.status.degraded(_LIMIT, problem)
            else:
                self.status.ok(_LIMIT, f"{self._limit} MiB")
            if not shares.used and time.monotonic() >= self._tidied + self._interval:
                self._tidied = time.monotonic()
                await self._tidy(began - _COARSE_SECONDS)
            await asyncio.sleep(SHARES_SECONDS)

    async def _tidy(self, before: float) -> None:
        """Once no container has any of the GPU: end the servers, and remove what was in shared memory before this time.

        A container that starts now makes its files later.
        """
        try:
            left = set(await in_thread(partial(os.listdir, self._shared_memory)))
            if left.difference((mps.INJECTED_LIBRARY,)) and await self._daemon.end_servers():
                await in_thread(partial(empty, self._shared_memory, before, (mps.INJECTED_LIBRARY,)))
        except (ControlError, OSError) as error:
            log.warning("%s is not emptied: %s", self._shared_memory, error)

    async def _write(self, problem: str, servers: int = 0) -> None:
        text = MpsState(int(time.monotonic()), problem, servers, self._limit).to_json()
        try:
            async with self._writing:
                await in_thread(partial(replace_file, self._state, text.encode()))
        except OSError as error:
            log.error("%s cannot be written: %s", self._state, error)


async def serve(settings: MpsSettings, nvml: ComputeModes, signals: Signals) -> None:
    """Run until SIGTERM or SIGINT. FatalError."""
    await MpsOfGpu(settings, nvml).run(signals.stop)


def main(argv: Sequence[str] | None = None, nvml: ComputeModes | None = None) -> int:
    """The console command. Returns the exit status. nvml: None for the installed one."""
    settings = parse_arguments(argv)
    if nvml is None:
        from gpushare_runtime.mps.gpu import PynvmlGpus

        nvml = PynvmlGpus()
    return run(partial(serve, settings, nvml), settings.log_level)


if __name__ == "__main__":
    sys.exit(main())

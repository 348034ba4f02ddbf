# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""nvidia-cuda-mps-control: the daemon of one GPU as a child process, and the dialogue with it.

The program is both: with -f it is the daemon, without it sends what stands on its standard input to the daemon of the pipe directory.
It exits with 0 after an unknown command, and prints what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare_runtime.core import mps
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.mps.folders import empty

log = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-cuda-mps-control"
ANSWER_SECONDS: Final = 5.0
TERMINATE_SECONDS: Final = 8.0
_QUIT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 * 1024
_START_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
# Of its log. Lines about its dialogue with this module, and the time and the process before each line.
_KEPT_BYTES: Final = 4096
_DIALOGUE: Final = ("Accepting connection", "NEW UI", "Cmd:", "UI closed")
_ORIGIN: Final = re.compile(r"^\[[^\]]{0,80}\] *")


class ControlError(GpushareError):
    """The daemon does not run, does not answer, or answers something else; the message says what and what to do."""


class SilenceError(ControlError):
    """The daemon takes the command and does not answer it."""


def _states(answer: str, mib: int) -> bool:
    """Whether an answer is that of a daemon with this limit.

    It keeps all of a limit, and states whole GiB of one of 1 GiB or more: "79G" of 81559 MiB (driver 580.159.04 on an H100, 2026-11-26).
    """
    return answer.removesuffix("B") in (f"{mib}M", f"{mib // 1024}G")


class ControlDaemon:
    """The daemon of one GPU. program: its path. uuid: of the GPU. folder, logs: of this GPU's files."""

    def __init__(self, program: str, uuid: str, folder: Path, logs: Path) -> None:
        self._program = program
        self._uuid = uuid
        self._folder = folder
        self._logs = logs
        self._process: asyncio.subprocess.Process | None = None
        self._logged = b""
        self._reading: asyncio.Task[None] | None = None
        # It takes one connection at a time, and turns others away (580 on a B200, 2026-08).
        self._turn = asyncio.Lock()

    @property
    def environment(self) -> Mapping[str, str]:
        """The daemon sees this GPU alone: its clients know it as device 0."""
        own = {mps.ENV_PIPES: str(self._folder / mps.PIPES), mps.ENV_LOGS: str(self._logs), "CUDA_VISIBLE_DEVICES": self._uuid}
        return {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), **own}

    async def start(self) -> None:
        """Start it and wait until it answers. ControlError."""
        self._make_folders()
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._program,
                "-f",
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise ControlError(
                f"{self._program} cannot be run ({error.strerror}): install the part of the driver that has it, such as "
                "nvidia-cuda-mps or nvidia-compute-utils"
            ) from None
        assert self._process.stdout is not None
        self._reading = asyncio.ensure_future(self._listen(self._process.stdout))
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            try:
                await self.servers()
            except ControlError as error:
                if asyncio.get_running_loop().time() > deadline or self._process.returncode is not None:
                    raise ControlError(f"the daemon does not answer after its start: {error}{await self._last_words()}") from None
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return

    def _make_folders(self) -> None:
        # Clients run as any user: they connect in the first one and make files in the second one.
        for path, mode in ((self._folder / mps.PIPES, 0o755), (self._folder / mps.SHARED_MEMORY, 0o1777), (self._logs, 0o755)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
        # The daemon opens its own files by their names, and follows links. Sockets of a former one keep it from its place.
        if left := empty(self._folder / mps.PIPES):
            raise ControlError(
                f"found {len(left)} files in {self._folder / mps.PIPES} that cannot be removed ({left[0][:80]!r}): remove them"
            )

    async def _listen(self, output: asyncio.StreamReader) -> None:
        """Keep the end of the log: with -f the daemon and its servers write it to the output, not to files (580.159.04, 2026-11-26)."""
        while chunk := await output.read(_KEPT_BYTES):
            self._logged = (self._logged + chunk)[-_KEPT_BYTES:]

    async def _last_words(self) -> str:
        """The last two lines of the log that are not about this module's dialogue, to append to a message; "" without any."""
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_POLL_SECONDS)
        lines = [_ORIGIN.sub("", line).strip()[:80] for line in self._logged.decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not line.startswith(_DIALOGUE)][-2:]
        return f"; it logged last: {' | '.join(said)!r}" if said else ""

    async def ended(self) -> str:
        """Once the daemon has ended: its exit status, and what it logged last."""
        if self._process is None:
            raise ControlError("the daemon was not started")
        return f"status {await self._process.wait()}{await self._last_words()}"

    async def ask(self, command: str, within: float | None = None) -> str:
        """The daemon's answer to a command, without the line end. One command at a time. ControlError.

        within: seconds, ANSWER_SECONDS by default.
        """
        async with self._turn:
            return await self._ask(command, within or ANSWER_SECONDS)

    async def _ask(self, command: str, within: float) -> str:
        process = await asyncio.create_subprocess_exec(
            self._program,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            out, _dummy = await asyncio.wait_for(process.communicate(f"{command}\n".encode()), within)
        except asyncio.TimeoutError:
            raise SilenceError(f"no answer to {command!r} within {within:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        answer = out[:_MOST_BYTES].decode(errors="replace").strip()
        if process.returncode != 0 or answer.startswith("Unknown command"):
            raise ControlError(f"{command!r} was answered with {answer[:80]!r} (exit status {process.returncode})")
        return answer

    async def servers(self) -> list[int]:
        """The processes of its servers; one for each user that has clients."""
        return await self._numbers("get_server_list")

    async def clients(self, server: int) -> list[int]:
        """The processes that are clients of this server; none if it has ended. ControlError."""
        try:
            return await self._numbers(f"get_client_list {server}")
        except SilenceError:
            raise
        except ControlError:
            if server in await self.servers():
                raise
            return []

    async def _numbers(self, command: str) -> list[int]:
        answer = await self.ask(command)
        if not all(word.isascii() and word.isdigit() for word in answer.split()):
            raise ControlError(f"{command!r} was answered with {answer[:80]!r}; expected process numbers")
        return [int(word) for word in answer.split()]

    async def terminate(self, server: int, client: int) -> None:
        """End what this process has on the GPU, and leave the process. ControlError if it may still have something there.

        The answer comes once its work has ended, and is a CUresult. It may never come (2 of 560 on a B200 with 580, 2026-08), so it
        is waited for as long as the state of the daemon stays fresh.
        """
        answer = await self.ask(f"terminate_client {server} {client}", TERMINATE_SECONDS)
        if answer != "0":
            raise ControlError(f"'terminate_client {server} {client}' was answered with {answer[:80]!r}; expected '0'")

    async def end_servers(self) -> bool:
        """Whether there are none. Those that there are end once they have no clients. ControlError."""
        servers = await self.servers()
        for server in servers:
            await self.ask(f"shutdown_server {server}")
        return not servers

    async def bound_clients(self, mib: int) -> None:
        """No client that starts from now on gets more than this of the GPU, whatever its own environment says.

        It reads the limits back, and raises ControlError where one differs.

        The daemon's default is that of servers to come. One that runs has its own, for its clients to come.
        """
        await self.ask(f"set_default_device_pinned_mem_limit 0 {mib}M")
        answer = await self.ask("get_default_device_pinned_mem_limit 0")
        if not _states(answer, mib):
            raise ControlError(f"the daemon's memory limit is {answer[:80]!r} after {mib}M was set")
        for server in await self.servers():
            await self._bound_clients_of(server, mib)

    async def _bound_clients_of(self, server: int, mib: int) -> None:
        answer = ""
        try:
            await self.ask(f"set_device_pinned_mem_limit {server} 0 {mib}M")
            answer = await self.ask(f"get_device_pinned_mem_limit {server} 0")
        except ControlError as error:
            answer = str(error)
        # One that has ended meanwhile has no clients any more.
        if not _states(answer, mib) and server in await self.servers():
            raise ControlError(f"the memory limit of server {server} is {answer[:80]!r} after {mib}M was set")

    async def stop(self) -> None:
        """End it and its servers. Never raises."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ControlError, OSError):
            await self.ask("quit")
        for end in (None, signal.SIGTERM, signal.SIGKILL):
            if end is not None:
                log.warning("the MPS control daemon of %s does not end: sending it %s", self._uuid, end.name, extra=about(gpu=self._uuid))
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(end)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _QUIT_SECONDS)
                return

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a new program can start CUDA with the MPS server of a GPU, by one that tries it now and then.

After a client was killed with work on the GPU, a server may take no others any more, while its control daemon answers as usual. Only a
client notices. So this one runs now and then where a server does, and no second one beside it. It has the user of the server: the daemon
lets another user's client wait until the server has ended. It takes memory only where no container has a share of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core import mps
from gpushare_runtime.daemon.processes import user_of
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.mps import canary_client
from gpushare_runtime.mps.canary_client import COMPUTE, CONNECT
from gpushare_runtime.mps.control import ControlDaemon, ControlError

log = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 30.0
"""Much longer than a start of CUDA on a busy host."""
AGAIN_SECONDS: Final = 10.0
"""A server recovers from a client's fault by itself, and turns others away until it has."""
ROOM_MIB: Final = 1024
"""A client's context took 576 MiB of an H100 (580.159.04, 2026-11-26)."""
_THREADS: Final = "10"
_KILLED_SECONDS: Final = 5.0
_MOST_BYTES: Final = 4096
# The server answers, and has no room: cuda.h has CUDA_ERROR_OUT_OF_MEMORY, …_MPS_MAX_CLIENTS_REACHED, …_MPS_MAX_CONNECTIONS_REACHED.
_FULL: Final = frozenset(("2", "808", "809"))


class NoCanary(GpushareError):
    """The canary itself cannot run here, and so says nothing about the server; the message says why."""


class Canary:
    """Of one GPU. seconds: after which a try has failed, DEADLINE_SECONDS by default."""

    def __init__(self, daemon: ControlDaemon, seconds: float | None = None) -> None:
        self.problem = ""
        """Why no new program can start CUDA, after two tries; "" if one can, or nothing runs there."""
        self._daemon = daemon
        self._seconds = seconds or DEADLINE_SECONDS
        self._failed = ""
        self._left: asyncio.subprocess.Process | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the last try failed, and no other one has confirmed it yet."""
        return bool(self._failed) and not self.problem

    async def look(self, room: Callable[[], int]) -> None:
        """Try each server. room: MiB that no container has a share of. NoCanary, ControlError."""
        found = ""
        for server in await self._daemon.servers():
            clients = await self._daemon.clients(server)
            fits = room() >= ROOM_MIB and len(clients) < mps.MOST_CLIENTS
            found = found or await self._try(server, COMPUTE if fits else CONNECT)
        self.problem = found if found and self._failed else ""
        self._failed = found

    async def idle(self) -> bool:
        """Whether no program uses the GPU. ControlError."""
        own = self._left.pid if self._left is not None else None
        for server in await self._daemon.servers():
            if any(client != own for client in await self._daemon.clients(server)):
                return False
        return True

    async def _try(self, server: int, what: str) -> str:
        """Why a client of this server fails; "" if it does not."""
        if self._left is not None and self._left.returncode is None:
            return "a program that was killed there does not end"
        user = await in_thread(partial(user_of, server))
        if user is None:
            return ""
        process = await self._start(user, what)
        output = asyncio.ensure_future(process.communicate())
        try:
            done, _ = await asyncio.wait([output], timeout=self._seconds)
            if not done:
                # A kill in the driver would be one more of those that the server may not survive.
                with contextlib.suppress(ControlError, OSError):
                    await self._daemon.terminate(server, process.pid)
        finally:
            if process.returncode is None:
                await self._kill(process, output)
        if done:
            return judge(process.returncode, output.result()[0])
        lines = output.result()[0][:_MOST_BYTES].decode(errors="replace").split() if not output.cancelled() else []
        return f"a new program hangs in {lines[-1][:80] if lines else 'the driver'} (more than {self._seconds:.0f} s)"

    async def _kill(self, process: asyncio.subprocess.Process, output: asyncio.Future[Any]) -> None:
        """It may be in the driver, and not end."""
        self._left = process
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait([output], timeout=_KILLED_SECONDS)
        if output.cancel():
            await asyncio.wait([output])

    async def _start(self, user: tuple[int, int], what: str) -> asyncio.subprocess.Process:
        other: Mapping[str, Any] = {"user": user[0], "group": user[1], "extra_groups": []} if user[0] != os.geteuid() else {}
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-IS",
                str(Path(canary_client.__file__)),
                what,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd="/",
                **other,
            )
        except (OSError, ValueError) as error:
            raise NoCanary(f"no program can be started as user {user[0]}: {error}") from None

    @property
    def _environment(self) -> Mapping[str, str]:
        """Of the daemon's, the pipes and where libraries are. A client counts the server's GPUs, and takes little with few threads."""
        daemon = self._daemon.environment
        library = {"LD_LIBRARY_PATH": path} if (path := os.environ.get("LD_LIBRARY_PATH")) else {}
        return {**library, "PATH": daemon["PATH"], mps.ENV_PIPES: daemon[mps.ENV_PIPES], mps.ENV_THREADS: _THREADS}


def judge(status: int | None, output: bytes) -> str:
    """The problem that a try has found; "" if the server takes clients. NoCanary if it says nothing about the server."""
    lines = output[:_MOST_BYTES].decode(errors="replace").splitlines()
    if status == 0 or (len(lines) > 1 and lines[-1] in _FULL):
        return ""
    if len(lines) > 1 and lines[-1].isascii() and lines[-1].isdigit() and lines[-2].startswith("cu"):
        return f"a new program fails in {lines[-2][:80]} with CUDA error {lines[-1][:80]}"
    raise NoCanary(f"it ended with {status}: {lines[-1][:80] if lines else 'it printed nothing'!r}")

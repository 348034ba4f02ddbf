# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""MPS: what a program that is killed in the middle of a kernel leaves to the others, and a variable that names a GPU which is not there.

NVIDIA says that such a kill can leave a server in an undefined state. So it is a measured value what it does here; a client that was
terminated first must leave nothing, the canary must see what a new program sees, and a new daemon must end it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from gpu_proof import hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.limits import SHARE_MIB
from gpu_proof.workload import Program, programs
from gpushare_runtime.core import mps
from gpushare_runtime.mps.canary import Canary, NoCanary
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import PynvmlGpus, obstacle

_STEP_MIB: Final = 64
_HOLDS_MIB: Final = 256
_NEW_SECONDS: Final = 15.0
_TWO_GPUS: Final = "0=2G,1=4G"
"""Of a program that has one."""


def run(context: Context, findings: Findings) -> None:
    facts = hardware.first(hardware.opened(), SHARE_MIB + 2048)
    try:
        program = hardware.mps_program(context)
        if why := obstacle(facts.uuid, PynvmlGpus().read(facts.uuid)):
            raise NotPossible(why)
        asyncio.run(_Kills(context, findings, program, facts.uuid, facts.mib).run())
    except NotPossible as error:
        findings.cannot("MPS", error)
    except ControlError as error:
        findings.check("the MPS control daemon", str(error), "it starts, and answers", good=False)


class _Kills:
    def __init__(self, context: Context, findings: Findings, program: str, uuid: str, mib: int) -> None:
        self._context, self._findings = context, findings
        self._program, self._uuid, self._mib = program, uuid, mib

    async def run(self) -> None:
        await self._malformed()
        await self._terminated_first()
        await self._killed()

    @asynccontextmanager
    async def _daemon(self, name: str) -> AsyncIterator[tuple[ControlDaemon, Mapping[str, str]]]:
        """A daemon of its own, and the environment of its clients."""
        # Paths of sockets are short.
        folder = self._context.folder / name
        folder.mkdir(exist_ok=True)
        daemon = ControlDaemon(self._program, self._uuid, folder, folder / "log")
        try:
            await daemon.start()
            await daemon.bound_clients(self._mib)
            yield daemon, {mps.ENV_PIPES: str(folder / mps.PIPES)}
        finally:
            await daemon.stop()

    async def _malformed(self) -> None:
        async with self._daemon("v") as (daemon, environment):
            await daemon.bound_clients(SHARE_MIB)
            with programs(self._context.driver, 1, {**environment, mps.ENV_MEMORY: _TWO_GPUS}) as (one,):
                answer = await asyncio.to_thread(one.ask, "allocate", _STEP_MIB, SHARE_MIB + 1024)
        found = f"{answer['allocated_mib']} MiB {answer['error']}".rstrip()
        name = f"MPS: a program with {mps.ENV_MEMORY}={_TWO_GPUS} asks for 1 GiB more than the daemon's {SHARE_MIB} MiB"
        self._findings.check(name, found, "it is stopped before", good=answer["error"] != "")

    async def _terminated_first(self) -> None:
        async with self._daemon("t") as (daemon, environment):
            with programs(self._context.driver, 2, environment) as (ends, other):
                await self._begin(ends, other)
                attached = [(server, ends.pid) for server in await daemon.servers() if ends.pid in await daemon.clients(server)]
                self._findings.check("MPS: servers that list the program as their client", len(attached), 1)
                for server, client in attached:
                    began = time.monotonic()
                    try:
                        await daemon.terminate(server, client)
                        self._findings.value("MPS: seconds of terminate_client in a kernel", round(time.monotonic() - began, 3))
                        said = "0"
                    except ControlError as error:
                        said = str(error)
                    self._findings.check("MPS: terminate_client for a program in the middle of a kernel", said, "0")
                await asyncio.to_thread(ends.kill)
                again = await asyncio.to_thread(other.ask, "work", "chain", self._context.seconds, seconds=_NEW_SECONDS)
                self._findings.check("MPS: another program computes after that", again["error"], "")
                self._findings.check("MPS: a new program after that", await self._new(environment), "")
                self._findings.check("MPS: the canary after that", await self._canary(daemon), "")

    async def _killed(self) -> None:
        async with self._daemon("k") as (daemon, environment):
            with programs(self._context.driver, 2, environment) as (ends, other):
                await self._begin(ends, other)
                await asyncio.to_thread(ends.kill)
                again = await asyncio.to_thread(other.ask, "work", "chain", self._context.seconds, seconds=_NEW_SECONDS)
                self._findings.value("MPS: another program after a kill in a kernel", again["error"] or "computes")
                new, seen = await self._new(environment), await self._canary(daemon)
                self._findings.value("MPS: a new program after a kill in a kernel", new or "computes")
                self._findings.value("MPS: the canary after a kill in a kernel", seen or "new programs can start CUDA")
                self._findings.check("MPS: the canary sees what a new program sees", bool(seen), bool(new))
                if not other.lives or new:
                    await asyncio.to_thread(other.kill)
        async with self._daemon("k") as (_, environment):
            self._findings.check("MPS: a new program once the daemon was started anew", await self._new(environment), "")

    async def _begin(self, ends: Program, other: Program) -> None:
        """One is in the middle of a kernel, the other one has memory."""
        answer = await asyncio.to_thread(other.ask, "hold", _HOLDS_MIB)
        self._findings.check("MPS: one of two programs allocates", answer["error"], "")
        answer = await asyncio.to_thread(ends.ask, "spin")
        self._findings.check("MPS: the other is in the middle of a kernel", answer["error"], "")

    async def _new(self, environment: Mapping[str, str]) -> str:
        """The error of a program that starts now; "" for none."""
        with programs(self._context.driver, 1, environment) as (one,):
            answer = await asyncio.to_thread(one.ask, "hold", _HOLDS_MIB, seconds=_NEW_SECONDS)
            if answer["error"]:
                await asyncio.to_thread(one.kill)
        return str(answer["error"])

    async def _canary(self, daemon: ControlDaemon) -> str:
        """What it says after two tries."""
        canary = Canary(daemon, _NEW_SECONDS)
        try:
            for _ in range(2):
                await canary.look(lambda: self._mib)
        except NoCanary as error:
            return f"it cannot run: {error}"
        return canary.problem

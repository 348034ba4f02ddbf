# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""MPS: limits that hold, a program without variables, a read-only pipe folder, the end of one client. The driver's limits by control group.

The compute mode stays as it is: `make isolation` measures what the exclusive mode adds.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pynvml

from bench.isolation import OUT_OF_MEMORY, STOPPED, group_of_its_own, judged, without_driver_limits
from gpu_proof import groups, hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.node import node
from gpu_proof.workload import Program, programs
from gpushare_runtime.core import mps, protocol
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import PynvmlGpus, obstacle

SHARE_MIB: Final = 4096
_STEP_MIB: Final = 64
_BESIDE_MIB: Final = 256
_OTHER_USER: Final = 65534
_WAITS_SECONDS: Final = 5.0
_CHOSEN_SECONDS: Final = 10.0
_UNSHARE: Final = ("unshare", "--mount", "--propagation", "private")
# What a container's read-only mount is to a client.
_READ_ONLY: Final = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/made" 2>/dev/null && exec "$@"'


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    facts = hardware.first(nvml, SHARE_MIB + 2048)
    try:
        program = hardware.mps_program(context)
        gpu = PynvmlGpus().read(facts.uuid)
        if why := obstacle(facts.uuid, gpu):
            raise NotPossible(why)
        asyncio.run(_with_mps(context, findings, program, facts.uuid, facts.mib))
    except (NotPossible, ControlError) as error:
        if isinstance(error, ControlError):
            findings.check("the MPS control daemon", str(error), "it starts, and answers", good=False)
        else:
            findings.cannot("MPS", error)
    driver = pynvml.nvmlSystemGetDriverVersion()
    why = without_driver_limits(driver.decode() if isinstance(driver, bytes) else str(driver))
    limited = not why and _with_driver(context, findings, nvml, facts.uuid)
    if why:
        findings.cannot("memory limits of the driver", why)
    asyncio.run(_chosen(findings, protocol.ISOLATION_DRIVER if limited else protocol.ISOLATION_WATCH))


async def _with_mps(context: Context, findings: Findings, program: str, uuid: str, mib: int) -> None:
    # Paths of sockets are short.
    folder = context.folder / "m"
    folder.mkdir()
    daemon = ControlDaemon(program, uuid, folder, folder / "log")
    pipes = folder / mps.PIPES
    given = dict(mps.client_access(uuid, SHARE_MIB, 0).environment)
    with_limit = {**given, mps.ENV_PIPES: str(pipes)}
    plain = {mps.ENV_PIPES: str(pipes)}
    try:
        await daemon.start()
        await daemon.bound_clients(mib)
        await _stops(context, findings, "a program with its container's environment", with_limit)
        await daemon.bound_clients(SHARE_MIB)
        await _stops(context, findings, "a program without a limit of its own, by the daemon's default", plain)
        await daemon.bound_clients(mib)
        await _read_only(context, findings, pipes, with_limit)
        await _end_of_one(context, findings, daemon, plain)
        await _of_managed_memory(context, findings, with_limit)
        await _of_two_users(context, findings, plain)
        await _after_a_fault(context, findings, plain)
    finally:
        await daemon.stop()


async def _stops(context: Context, findings: Findings, how: str, environment: Mapping[str, str]) -> None:
    with programs(context.driver, 1, environment) as (one,):
        answer = await asyncio.to_thread(one.ask, "allocate", _STEP_MIB, SHARE_MIB + 1024)
    attempt = judged(protocol.ISOLATION_MPS, how, SHARE_MIB, answer, STOPPED)
    found = f"{attempt.outcome} at {attempt.allocated_mib} MiB {attempt.error}".rstrip()
    findings.check(f"MPS: {how} asks for 1 GiB more than its {SHARE_MIB} MiB", found, f"{STOPPED} by {OUT_OF_MEMORY}", attempt.as_expected)
    findings.value(f"MPS: {how}", asdict(attempt))


async def _read_only(context: Context, findings: Findings, pipes: Path, environment: Mapping[str, str]) -> None:
    name = "MPS: a program whose pipe folder is read-only"
    done = await asyncio.to_thread(
        subprocess.run, [*_UNSHARE, "sh", "-c", _READ_ONLY, str(pipes), "true"], capture_output=True, check=False
    )
    if done.returncode:
        findings.cannot(
            name, f"found that nothing can be mounted ({done.stderr.decode(errors='replace').strip()[:200]}); expected root's rights"
        )
        return
    command = [*_UNSHARE, "sh", "-c", _READ_ONLY, str(pipes), *context.driver]
    with programs(command, 1, environment) as (one,):
        answer = await asyncio.to_thread(one.ask, "hold", _BESIDE_MIB)
    findings.check(name, answer["error"], "")


async def _end_of_one(context: Context, findings: Findings, daemon: ControlDaemon, environment: Mapping[str, str]) -> None:
    with programs(context.driver, 2, environment) as (ended, other):
        for one in (ended, other):
            answer = await asyncio.to_thread(one.ask, "hold", _BESIDE_MIB)
            findings.check("MPS: one of two programs allocates", answer["error"], "")
        findings.value("MPS: servers with two programs", len(await daemon.servers()))
        ended.kill()
        again = await asyncio.to_thread(other.ask, "work", await _kind(other), context.seconds)
        findings.check("MPS: a program computes after another was killed", again["error"], "")
        try:
            await daemon.servers()
            findings.check("MPS: the control daemon answers after that", "it answers", "it answers")
        except ControlError as error:
            findings.check("MPS: the control daemon answers after that", str(error), "it answers")


async def _of_managed_memory(context: Context, findings: Findings, environment: Mapping[str, str]) -> None:
    with programs(context.driver, 1, environment) as (one,):
        answer = await asyncio.to_thread(one.ask, "managed", SHARE_MIB + 1024)
    findings.value(f"MPS: managed memory, 1 GiB more than {SHARE_MIB} MiB", answer["error"] or "not stopped")


async def _of_two_users(context: Context, findings: Findings, environment: Mapping[str, str]) -> None:
    # Another user has to reach the pipes.
    for folder in (context.folder, context.folder.parent):
        if folder != Path(tempfile.gettempdir()):
            folder.chmod(0o711)
    with programs(context.driver, 2, environment) as (first, second):
        await asyncio.to_thread(second.ask, "user", _OTHER_USER)
        await asyncio.to_thread(first.ask, "hold", _BESIDE_MIB)
        second.send("hold", _BESIDE_MIB)
        beside = await asyncio.to_thread(second.answer, _WAITS_SECONDS)
        findings.value("MPS: a program of another user beside the first", beside["error"] or "computes")
        first.end()
        if beside["error"]:
            after = await asyncio.to_thread(second.answer)
            findings.value("MPS: the same once the first has ended", after["error"] or "computes")


async def _after_a_fault(context: Context, findings: Findings, environment: Mapping[str, str]) -> None:
    with programs(context.driver, 2, environment) as (faulty, other):
        for one in (faulty, other):
            await asyncio.to_thread(one.ask, "hold", _BESIDE_MIB)
        await asyncio.to_thread(faulty.ask, "fault")
        answer = await asyncio.to_thread(other.ask, "work", await _kind(other), context.seconds)
        findings.value("MPS: a program after the fault of another", answer["error"] or "computes")
    with programs(context.driver, 1, environment) as (one,):
        answer = await asyncio.to_thread(one.ask, "hold", _BESIDE_MIB)
    findings.value("MPS: a new program after that", answer["error"] or "computes")


async def _kind(one: Program) -> str:
    kinds: list[str] = (await asyncio.to_thread(one.ask, "kinds"))["kinds"]
    return kinds[0] if kinds else "none"


def _with_driver(context: Context, findings: Findings, nvml: Pynvml, uuid: str) -> bool:
    """Whether the driver limits."""
    try:
        with group_of_its_own(groups.hierarchy()) as group:
            nvml.limit_memory(uuid, str(group), SHARE_MIB * 2**20)
            try:
                with programs(context.driver, 1, {hardware.VISIBLE: uuid}, [group]) as (one,):
                    answer: dict[str, Any] = one.ask("allocate", _STEP_MIB, SHARE_MIB + 1024)
                attempt = judged(protocol.ISOLATION_DRIVER, "asks", SHARE_MIB, answer, STOPPED)
                found = f"{attempt.outcome} at {attempt.allocated_mib} MiB {attempt.error}".rstrip()
                findings.check("the driver stops a program at its limit", found, STOPPED, attempt.as_expected)
            finally:
                nvml.limit_memory(uuid, str(group), None)
    except (NvmlError, OSError, NotPossible) as error:
        findings.cannot("memory limits of the driver", error)
        return False
    return True


async def _chosen(findings: Findings, expected: str) -> None:
    async with node("--isolation=auto") as it:
        await it.registered()
        deadline, found = asyncio.get_running_loop().time() + _CHOSEN_SECONDS, ""
        while not found and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.2)
            found = next((one.labels["isolation"] for one in await it.metrics() if one.name.endswith("_isolation_info")), "")
    findings.check("isolation that the plugin chooses by itself", found, expected)

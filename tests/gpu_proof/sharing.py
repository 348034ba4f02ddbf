# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What sharing costs: throughput of 1, 2 and 4 programs at the same time, without isolation and with MPS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from bench.isolation import CLIENTS
from gpu_proof import hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.workload import programs
from gpushare_runtime.core import mps, protocol
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import PynvmlGpus, obstacle

# Of all programs together, against one alone: sharing that costs more than this is no sharing.
_LEAST_OF_ONE: Final = 0.5


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    facts = hardware.first(nvml, max(CLIENTS) * context.context_mib)
    rows: list[dict[str, Any]] = []
    _measure(context, findings, rows, protocol.ISOLATION_NONE, {hardware.VISIBLE: facts.uuid})
    try:
        program = hardware.mps_program(context)
        if why := obstacle(facts.uuid, PynvmlGpus().read(facts.uuid)):
            raise NotPossible(why)
        asyncio.run(_with_mps(context, findings, rows, program, facts.uuid))
    except (NotPossible, ControlError) as error:
        findings.cannot("throughput with MPS", error)


async def _with_mps(context: Context, findings: Findings, rows: list[dict[str, Any]], program: str, uuid: str) -> None:
    folder = context.folder / "m"
    folder.mkdir()
    daemon = ControlDaemon(program, uuid, folder, folder / "log")
    try:
        await daemon.start()
        environment = {mps.ENV_PIPES: str(folder / mps.PIPES)}
        await asyncio.to_thread(_measure, context, findings, rows, protocol.ISOLATION_MPS, environment)
    finally:
        await daemon.stop()


def _measure(context: Context, findings: Findings, rows: list[dict[str, Any]], isolation: str, environment: Mapping[str, str]) -> None:
    """All programs are started once: to start one takes longer than to measure."""
    with programs(context.client, max(CLIENTS), environment) as started:
        known = [one.ask("kinds") for one in started]
        if errors := [one["error"] for one in known if one["error"]]:
            findings.check(f"{isolation}: the programs start", errors, [])
            return
        findings.value("programs", known[0]["framework"])
        for kind in known[0]["kinds"]:
            warm = [one.ask("work", kind, 0) for one in started]
            if errors := [one["error"] for one in warm if one["error"]]:
                findings.check(f"{isolation}: {kind} computes", errors, [])
                continue
            alone = 0.0
            for clients in CLIENTS:
                for one in started[:clients]:
                    one.send("work", kind, context.seconds)
                answers = [one.answer() for one in started[:clients]]
                errors = [one["error"] or "no time has passed" for one in answers if one["error"] or not one["seconds"]]
                if errors:
                    findings.check(f"{isolation}: {kind} by {clients} programs", errors, [])
                    break
                rates = [one["units"] / one["seconds"] for one in answers]
                alone = alone or rates[0]
                ratio = round(sum(rates) / alone, 2) if alone else 0.0
                rows.append(
                    {
                        "isolation": isolation,
                        "kind": kind,
                        "programs": clients,
                        "per_second": round(sum(rates), 1),
                        "of_one": ratio,
                        "slowest_of_fastest": round(min(rates) / max(rates), 2) if max(rates) else 0.0,
                    }
                )
                findings.value("throughput", rows)
                name = f"{isolation}: {kind} by {clients} programs together, of one alone"
                findings.check(name, ratio, f"at least {_LEAST_OF_ONE}", ratio >= _LEAST_OF_ONE)

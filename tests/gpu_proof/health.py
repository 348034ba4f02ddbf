# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The watch for XID errors, and what a program's deliberate fault does: to itself, to the GPU's health, to another program, to its pod."""

from __future__ import annotations

import asyncio
from typing import Final

from gpu_proof import hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings
from gpu_proof.node import node
from gpu_proof.workload import programs
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.health import SPARED_XIDS

_XID_SECONDS: Final = 10.0
_SETTLED_SECONDS: Final = 2.0


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    uuid = hardware.first(nvml, 2 * context.context_mib).uuid
    try:
        nvml.xid_events().close()
    except NvmlError as error:
        findings.cannot("XID errors can be watched", error)
    asyncio.run(_run(context, findings, uuid))


async def _run(context: Context, findings: Findings, uuid: str) -> None:
    async with node() as it:
        await it.registered()
        units = it.healthy()
        own = {hardware.VISIBLE: uuid}
        with programs(context.client, 1, own) as (other,), programs(context.driver, 1, own) as (faulty,):
            kind = (await asyncio.to_thread(other.ask, "kinds"))["kinds"][:1]
            if not kind:
                findings.check("a program that computes beside it", "none", "one")
                return
            seconds = context.seconds
            first = await asyncio.to_thread(other.ask, "work", kind[0], seconds)
            if not findings.check("the other program computes before the fault", first["error"], ""):
                return
            other.send("work", kind[0], 2 * seconds)
            said = await asyncio.to_thread(faulty.ask, "fault")
            findings.check("the program's own error", said["error"], "an error of CUDA", bool(said["error"]))
            findings.value("error of the program with the fault", said["error"])
            deadline = asyncio.get_running_loop().time() + _XID_SECONDS
            xids: list[str] = []
            while not xids and asyncio.get_running_loop().time() < deadline:
                xids = [one.labels["xid"] for one in await it.metrics() if one.name == "gpushare_device_plugin_xid_errors_total"]
                await asyncio.sleep(0.2)
            findings.value("XID errors", xids)
            findings.check(f"the plugin has heard an XID error within {_XID_SECONDS:g} s", xids, "at least one", bool(xids))
            alien = [one for one in xids if int(one) not in SPARED_XIDS]
            findings.check("XID errors that are not an application's", alien, [])
            await asyncio.sleep(_SETTLED_SECONDS)
            findings.check("healthy ids afterwards", it.healthy(), units)
            went_on = await asyncio.to_thread(other.answer)
            findings.check("the other program computes through the fault", went_on["error"], "")
            again = await asyncio.to_thread(other.ask, "work", kind[0], seconds)
            findings.check("the other program computes after it", again["error"], "")
            if first["units"] and again["units"]:
                rate = (again["units"] / again["seconds"]) / (first["units"] / first["seconds"])
                findings.value("its rate afterwards, of the rate before", round(rate, 2))
        with programs(context.driver, 1, own) as (fresh,):
            findings.check("a new program can use the GPU", (await asyncio.to_thread(fresh.ask, "hold", 64))["error"], "")
        findings.check("health of the GPU", (await it.inventory()).by_uuid[uuid].health, "ok")

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/reference/metrics.md has every metric that the daemons emit, with its type, labels and words, and no other."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import fields
from pathlib import Path

import aiohttp

from gpushare_runtime.core.load import NOTHING
from gpushare_runtime.device_plugin.gpu.discovery import MemoryLimit, Sensors
from gpushare_runtime.device_plugin.gpu.use import Use
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, admitted, reported, world
from unit.fakes.runtime.exposition import Read, read
from unit.fakes.runtime.extender.process import free_port, start
from unit.fakes.runtime.kube.fake_api import FakeApi, serving, until
from unit.fakes.runtime.pods import container, inventory, pod

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"


def row(family: Read) -> str:
    labels = ", ".join(f"`{name}`" for name in sorted(family.labels))
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


def documented(heading: str) -> list[str]:
    """The rows below a heading; of several tables, all."""
    _, _, rest = PAGE.read_text().partition(f"## {heading}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.M)[0]
    return [line for line in section.splitlines() if re.match(r"\| `(gpushare|process)_", line)]


def check(text: str, *headings: str) -> None:
    """The page has exactly these families below these headings."""
    emitted, written = [row(family) for family in read(text).values()], [line for heading in headings for line in documented(heading)]
    missing, superfluous = [r for r in emitted if r not in written], [r for r in written if r not in emitted]
    assert (missing, superfluous) == ([], []), "rows that docs/reference/metrics.md lacks, and rows that it should not have"
    assert len(written) == len(set(written))


def test_the_extender(tmp_path: Path) -> None:
    async def scraped() -> str:
        async with serving(FakeApi()) as api, aiohttp.ClientSession() as session:
            await api.put("/api/v1/nodes/n", {"metadata": {"name": "n", "annotations": {"gpushare/gpus": inventory(16).to_json()}}})
            # What labels the metric of waiting pods has shows only once one waits.
            waiting = pod(container(mem=8), name="waits")
            await api.put("/api/v1/namespaces/default/pods/waits", waiting)
            port = free_port()
            process = await start(tmp_path, api, free_port(), ["--preempt", "--metrics-listen", f"127.0.0.1:{port}"])
            try:
                async with asyncio.timeout(20):
                    while True:
                        try:
                            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                                text = await response.text()
                        except aiohttp.ClientConnectionError:
                            text = ""
                        if "gpushare_extender_ready 1.0" in text and "namespace_gpus_waiting{" in text:
                            return text
                        await asyncio.sleep(0.02)
            finally:
                process.terminate()
                await process.communicate()

    check(asyncio.run(scraped()), "The extender", "Both")


def test_the_device_plugin() -> None:
    async def scraped() -> str:
        async with world(16 * GIB) as it:
            await it.registered()
            await until(lambda: it.plugin.node.devices.inventory is not None)
            # What labels these have shows only once they have happened.
            it.plugin.counters.xids[it.inventory.gpus[0].uuid, 79] += 1
            it.plugin.counters.observe("Allocate", 0.001)
            made, uuid = memory(it.inventory, 0, 4), it.inventory.gpus[0].uuid
            uid, (main,) = await admitted(it, made), (each["name"] for each in made["spec"]["containers"])
            await until(lambda: it.plugin.node.usage.units_by_pod(it.inventory) == {(uid, uuid): 4})
            await reported(it, made)
            it.plugin._limits.use = {(uid, uuid): MemoryLimit(1, 1)}
            # One GPU that has all that a GPU may have.
            every = Sensors(uuid, **dict.fromkeys((each.name for each in fields(Sensors) if each.name != "uuid"), 1))
            it.plugin._memory.use = Use({}, {uuid: 1}, sensors={0: every}, by_container={(uid, uuid, main): 1})
            it.plugin._memory._activity.observe({(uid, uuid): NOTHING}, frozenset([(uid, uuid)]), time.monotonic(), 1.0)
            in_container = (uid, uuid, main)
            it.plugin._memory._containers.observe({in_container: NOTHING}, frozenset([in_container]), time.monotonic(), 1.0)
            return "".join(it.plugin.metrics_text())

    check(asyncio.run(scraped()), "The device plugin", "Both")

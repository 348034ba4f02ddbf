# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A real Prometheus scrapes the daemons of an installed cluster: the dashboard has data, and alerts fire and clear with their causes."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster, allocation
from e2e.manifests import pod
from e2e.running import NODE, gpu, uses
from monitoring import dashboard
from monitoring.prometheus import PLUGIN, RULES, Prometheus, rules_that_fire_at_once, serving
from unit.fakes.runtime.extender.process import free_port

pytestmark = pytest.mark.suite("alerts")

SECRET = secrets.token_hex(16)
METRICS = {
    "gpushare_metrics_address": "{{ ansible_host }}",
    "gpushare_metrics_token": f"{{{{ (inventory_hostname ~ '{SECRET}') | ansible.builtin.hash('sha256') }}}}",
}


@pytest.fixture(scope="module")
def monitored(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with metrics on; afterwards as it was."""
    cluster.clear()
    cluster.playbook("-e", json.dumps(METRICS))
    yield cluster
    gpu(cluster, "driver", "ok")
    cluster.clear()
    cluster.playbook()


def jobs(cluster: Cluster, folder: Path) -> list[dict[str, Any]]:
    """As the playbook writes them, of all hosts."""
    folder.mkdir()
    cluster.playbook("-e", json.dumps({**METRICS, "gpushare_scrape_dir": str(folder)}), name="playbooks/scrape_config.yml")
    return [job for path in sorted(folder.iterdir()) for job in yaml.safe_load(path.read_text())["scrape_configs"]]


async def exactly(server: Prometheus, *names: str) -> None:
    """These alerts fire, and no other."""

    async def holds() -> bool:
        return set(await server.firing()) == set(names)

    await server.until(f"exactly {names} fire", holds, 240)


async def in_thread(call: object, *arguments: object) -> None:
    """The lab's commands block."""
    await asyncio.get_running_loop().run_in_executor(None, lambda: call(*arguments))  # type: ignore[operator]


def test_alerts_and_dashboard_on_a_real_cluster(monitored: Cluster, tmp_path: Path) -> None:
    used: list[tuple[int, str]] = []
    queries = dashboard.expressions(json.loads(dashboard.FILE.read_text()))
    scraped_jobs = jobs(monitored, tmp_path / "scrape")
    assert len({job["authorization"]["credentials"] for job in scraped_jobs}) == len({CONTROL_PLANE, *GPU_NODES})

    async def run() -> None:
        text = rules_that_fire_at_once(RULES.read_text())
        async with serving(tmp_path, {}, free_port(), text, scraped_jobs) as server:

            async def scraped() -> bool:
                return [value for _, value in await server.query("sum(up) * (sum(cluster:gpushare_memory_bytes:sum) > bool 0)")] == [3]

            await server.until("both jobs are scraped and recorded", scraped)
            await exactly(server)
            monitored.create(pod("some", memory=4, node=NODE))
            await in_thread(monitored.until_running, "some")
            ((index),) = allocation(monitored.pod("some"))
            uses(monitored, used, "some", 2048)
            gpu(monitored, "xid", index, 31)
            await exactly(server)

            missing: dict[str, str] = {}
            for _ in range(120):
                missing = {}
                for name, expression in queries.items():
                    values = [value for _, value in await server.query(expression)]
                    if all(map(math.isnan, values)):
                        missing[name] = expression
                if not missing:
                    break
                await asyncio.sleep(0.5)
            assert missing == {}

            uses(monitored, used, "some", 5000)
            await exactly(server, "GPUShareMemoryExceeded")
            monitored.delete("some")
            for on, pid in used:
                gpu(monitored, "process", on, pid, 0, "trainer")
            await exactly(server)

            # So much of each GPU that 7 units are left on it, the largest GPU of a node first.
            for node in GPU_NODES:
                for number, gpu_ in enumerate(sorted((one.mib // 1024 for one in monitored.gpus(node)), reverse=True)):
                    monitored.create(pod(f"large-{node}-{number}", memory=gpu_ - 7, node=node))
                    await in_thread(monitored.until_running, f"large-{node}-{number}")
            monitored.create(pod("waits", memory=10))
            await exactly(server, "GPUShareMemoryFragmented")
            monitored.clear()
            await exactly(server)

            gpu(monitored, "lost", index)
            await exactly(server, "GPUShareGPUUnhealthy", "GPUShareDevicePluginDegraded")
            gpu(monitored, "back", index)
            await exactly(server)

            monitored.stop(CONTROL_PLANE, "gpushare-extender")
            await exactly(server, "GPUShareExtenderDown", "GPUShareNoActiveExtender")
            monitored.on(CONTROL_PLANE, "systemctl", "start", "gpushare-extender")
            await exactly(server)

            monitored.stop(NODE, PLUGIN)
            await exactly(server, "GPUShareDevicePluginDown")
            monitored.on(NODE, "systemctl", "start", PLUGIN)
            await exactly(server)

    asyncio.run(run())

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A real Prometheus scrapes both daemons: each query of the dashboard returns data, and alerts fire and clear with their causes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from gpushare_runtime.core import protocol
from gpushare_runtime.core.load import Load
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.gpu.discovery import Sensors
from monitoring import dashboard
from monitoring.scene import MIB, MIB_OF_GPU, Refusing, exactly, scene
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import admitted, path_of
from unit.fakes.runtime.extender.tls_files import NOW, make, options
from unit.fakes.runtime.kube.fake_api import serving as serving_api
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import pod

PANELS: Final = {"row", "stat", "gauge", "timeseries", "bargauge", "table"}


def test_the_file_is_what_the_list_of_panels_makes() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "write it with: python -m monitoring.dashboard --write"


def test_the_dashboard_needs_no_plugin_and_no_panel_covers_another() -> None:
    board = json.loads(dashboard.FILE.read_text())
    assert {one["type"] for one in board["panels"]} <= PANELS
    assert {one["datasource"]["type"] for one in board["panels"] if one["type"] != "row"} == {"prometheus"}
    cells = [
        (x, y)
        for place in (one["gridPos"] for one in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == dashboard.COLUMNS - 1
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])


def test_a_number_is_red_by_a_bound_of_its_own_and_a_column_of_values_has_a_title() -> None:
    board = json.loads(dashboard.FILE.read_text())
    numbers = [one for one in board["panels"] if one["type"] in ("stat", "gauge", "bargauge")]
    modes = {one["title"]: one["fieldConfig"]["defaults"]["color"]["mode"] for one in numbers}
    assert {title for title, mode in modes.items() if mode == "thresholds"} == {"GPUs that are not healthy"}
    assert set(modes.values()) == {"thresholds", "fixed"}
    tables = [one for one in board["panels"] if one["type"] == "table"]
    assert all(one["transformations"][0]["options"]["renameByName"]["Value"] for one in tables)


def test_a_scale_has_the_unit_of_what_is_asked_and_a_legend_the_labels_that_are_left() -> None:
    """Grafana shows 0.5 of a ratio as 0.5 unless its unit is percentunit, and {{label}} as it stands where there is none."""
    board = json.loads(dashboard.FILE.read_text())
    units = {"_celsius": "celsius", "_bytes": "bytes", "_hertz": "hertz", "_joules": "joule"}
    for one in board["panels"]:
        for target in one.get("targets", ()):
            name, asked, unit = f"{one['title']}: {target['expr']}", target["expr"], one["fieldConfig"]["defaults"]["unit"]
            is_ratio = re.search(r"ratio\b| / (?!3600)", asked) is not None
            assert (unit == "percentunit") == is_ratio, name
            assert is_ratio or all(unit == known for suffix, known in units.items() if re.search(rf"{suffix}\b", asked)), name
            assert target["datasource"]["uid"] == "${datasource}", name
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = re.search(r"^\w*\(?[\d., ]*\w+ by \(([\w, ]+)\)", asked)
            assert kept is None or labels <= set(kept[1].split(", ")), name
            # Lines without a name are told apart by nothing.
            assert one["type"] != "timeseries" or target["legendFormat"] != "__auto", name
    assert [one["name"] for one in board["templating"]["list"] if one["type"] == "datasource"] == ["datasource"]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.2)


def test_each_query_of_the_dashboard_returns_data(tmp_path: Path) -> None:
    queries = dashboard.expressions(json.loads(dashboard.FILE.read_text()))
    assert len(queries) > 20

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            uid = await admitted(it, memory(it.inventory, 0, 6))
            await admitted(it, memory(it.inventory, 1, 8))
            here.uses(0, uid, 2048)
            uuid = it.inventory.by_index[0].uuid
            it.nvml.felt[uuid] = Sensors(uuid, sm=50, watts=35.0, watts_limit=70.0, celsius=56, pcie_sent=1, nvlink_sent=1, reasons=4)
            it.nvml.busy[uuid] = {7: Load(50, 25)}
            it.nvml.report(1, 31)
            waiting = await here.wait("large", 15)

            async def missing() -> dict[str, str]:
                await here.filter(waiting)
                found = {}
                for name, expression in queries.items():
                    values = [value for _, value in await server.query(expression)]
                    # A verb that nobody has called has no quantile.
                    if all(map(math.isnan, values)):
                        found[name] = f"{expression}: {values}"
                return found

            for _ in range(180):
                if not (left := await missing()):
                    break
                await asyncio.sleep(0.5)
            assert left == {}
            # There may have been data before all of this was in it.
            whole = (
                "cluster:gpushare_memory_used_bytes:sum == 2 * 1024 ^ 3 and on () sum(gpushare_extender_pods_waiting_room) == 1 "
                "and on () max(gpushare_device_plugin_gpu_temperature_celsius) == 56 "
                "and on () sum(namespace:gpushare_gpus_used:sum) > 0.46"
            )
            await server.until("all of it is recorded", partial(server.query, whole), 180)
            values = {name: [value for _, value in await server.query(expression)] for name, expression in queries.items()}
            assert values["Allocated A"] == [14 / 32]
            assert values["Used A"] == [2 / 32]
            assert values["Allocated and idle A"] == [12 / 14]
            assert values["Memory of all GPUs A"] == [32 * 1024 * MIB]
            assert sorted(values["Pods that use most of what they have A"]) == [0, pytest.approx(1 / 3)]
            assert values["Pods that wait for room A"].count(1) == 1
            assert 0.5 in values["Load of the SMs by GPU A"]
            # Of one of the two pods: it is a mean that began at nothing. The other one is idle.
            idle, busy = sorted(values["Load of the SMs by pod A"])
            assert (idle, round(busy, 1)) == (0, 0.5)
            assert len(values["Pods that leave a GPU idle A"]) == 1
            assert 0.5 in values["Power, of the limit of each GPU A"]
            assert 56 in values["Temperature A"]
            assert values["GPUs whose clocks are held back A"].count(1) == 1
            # kubectl gpushare has the same from the same server.
            command = ["-m", "gpushare_runtime.kubectl_program.main", "pods", "-A", "-o", "json"]
            options = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--prometheus", server.url]
            process = await asyncio.create_subprocess_exec(sys.executable, *command, *options, stdout=PIPE, stderr=PIPE)
            out, err = await process.communicate()
            assert process.returncode == 0, err
            (node,) = json.loads(out)["nodes"]
            assert {one["uid"]: one["used_mib"] for one in node["pods"]}[uid] == 2048
            assert [one["used_mib"] for one in node["gpus"]] == [2048, 0]

    asyncio.run(run())


def test_alerts_fire_with_their_cause_and_clear_after_it(tmp_path: Path) -> None:
    """Their waits are left out here; test_rules.py has them."""

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            uid = await admitted(it, memory(it.inventory, 0, 6))

            fires = partial(exactly, server)
            await until(lambda: it.plugin.status.ready)
            await fires()
            # As if hours had passed.
            followed = it.plugin._memory._activity._followed
            await until(lambda: followed)
            (key,) = followed
            followed[key].idle_since = time.time() - 3 * 3600
            await fires("GPUShareGPUHeldIdle")
            said = (await server.firing())["GPUShareGPUHeldIdle"]["annotations"]["summary"]
            assert "has kept nothing of GPU 0 busy for 3h" in said
            followed[key].idle_since = time.time()
            await fires()
            here.uses(0, uid, 7 * 1024)
            await fires("GPUShareMemoryExceeded")
            assert (await server.firing())["GPUShareMemoryExceeded"]["annotations"]["summary"].startswith("pod default/p")
            here.uses(0, uid, 1024)
            await fires()
            # 10 and 16 units are free.
            await here.wait("large", 20)
            await fires("GPUShareMemoryFragmented")
            await here.wait("small", 16)
            await fires("GPUShareMemoryFragmented", "GPUSharePodsWaitWithRoom")
            await it.api.remove("/api/v1/namespaces/default/pods/large")
            await it.api.remove("/api/v1/namespaces/default/pods/small")
            await here.wait("impossible", 0)
            raw = pod(
                {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-count": "1"}}}, name="x", uid="x"
            )
            await it.api.put("/api/v1/namespaces/default/pods/x", raw)
            await fires("GPUSharePodsInvalid")
            await it.api.remove("/api/v1/namespaces/default/pods/x")
            await fires()
            it.nvml.lost = {1}
            await fires("GPUShareGPUUnhealthy", "GPUShareDevicePluginDegraded")
            it.nvml.lost = set()
            it.nvml.gpus[1] = facts(1, MIB_OF_GPU)
            await fires()
            await here.stop_extender()
            await fires("GPUShareExtenderDown", "GPUShareNoActiveExtender")
            await here.start_extender()
            await fires()

    asyncio.run(run())


def test_alerts_about_what_should_never_be_fire_with_their_cause_and_clear_after_it(tmp_path: Path) -> None:
    """A ledger with more than there is, memory of pods that are gone, admissions that are rejected, calls that fail."""

    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it = here.it
            fires = partial(exactly, server)
            await until(lambda: it.plugin.status.ready)
            await fires()

            # Somebody binds two pods to one GPU, past the extender, and kubelet does not know them.
            both = [memory(it.inventory, 0, 10) for _ in range(2)]
            for raw in both:
                await it.bind(raw)
            await fires("GPUShareLedgerOverbooked", "GPUShareLedgerInconsistent")
            await it.api.remove(path_of(both[1]))
            await fires()
            await it.api.remove(path_of(both[0]))

            # Processes that outlive their pod.
            raw = memory(it.inventory, 1, 6)
            uid = await admitted(it, raw)
            it.live.add(uid)
            it.kubelet.manager.active.discard(uid)
            await it.api.remove(path_of(raw))
            await fires("GPUShareDrift")
            it.live.clear()
            await fires()

            # kubelet admits pods that no scheduler gave a GPU.
            for _ in range(5):
                with contextlib.suppress(AdmissionError):
                    await it.kubelet.manager.admit(memory(it.inventory, 0, 17))
            await fires("GPUShareAdmissionRejections")
            await fires()

            url = f"http://127.0.0.1:{here.port}{protocol.EXTENDER_PREFIX}/filter"
            async with aiohttp.ClientSession() as session:

                async def broken() -> bool:
                    async with session.post(url, data=b"no JSON") as response:
                        assert response.status >= 400 or (await response.json())["Error"]
                    return "GPUShareVerbErrors" in await server.firing()

                await server.until("calls of filter fail", broken, 90)
            await fires()

    asyncio.run(run())


def test_an_alert_about_a_certificate_fires_and_clears_with_a_new_one(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    # Made 80 days ago for 90 days; nobody has renewed it since.
    files = make(pki, NOW - timedelta(days=80))

    async def run() -> None:
        async with scene(tmp_path, *options(files)["more"]) as (here, server):
            await exactly(server, "GPUShareCertificateExpires")
            assert " expires in 9d " in (await server.firing())["GPUShareCertificateExpires"]["annotations"]["summary"]
            make(pki)
            here.signal(signal.SIGHUP)
            await exactly(server)

    asyncio.run(run())


def test_an_alert_about_a_token_fires_while_no_new_one_is_given_and_clears_with_it(tmp_path: Path) -> None:
    seed, own = tmp_path / "seed", tmp_path / "token"

    async def run() -> None:
        api = Refusing()
        async with serving_api(api):
            seed.write_text(text := api.give_old())
            own.write_text(text)
            async with scene(tmp_path, "--seed-token-file", str(seed), "--token-file", str(own), api=api) as (_, server):
                await exactly(server, "GPUShareTokenExpires")
                assert api.asked == []
                api.refuses = False
                # The daemon asks after 10 s, and later less often.
                await exactly(server, seconds=600)
                assert own.read_text().strip() in api.good - {text}

    asyncio.run(run())

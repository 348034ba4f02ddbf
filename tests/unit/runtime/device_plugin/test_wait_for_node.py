# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the device plugin's pod waits for: the GPU Operator's toolkit, and what the API server says of the node."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gpushare_runtime.device_plugin.options import PluginSettings
from gpushare_runtime.device_plugin.wait_for_node import prepared
from gpushare_runtime.kube.client import KubeClient
from unit.runtime.device_plugin.plugin import NODE
from unit.runtime.kube.fake_api import FakeApi, until

INFO = {"kubeletVersion": "v1.34.1", "containerRuntimeVersion": "containerd://1.7.29"}


def settings(folder: Path) -> PluginSettings:
    return PluginSettings(
        "gpu1", host_root=folder, cdi_folders=(str(folder / "cdi"),), in_container=True, choose=True, runtime_class="nvidia"
    )


async def test_it_waits_for_the_operators_toolkit_and_for_the_node(tmp_path: Path, api: FakeApi, client: KubeClient) -> None:
    validations = tmp_path / "run/nvidia/validations"
    validations.mkdir(parents=True)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/management.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "management.nvidia.com/gpu", "devices": []}))
    waiting = asyncio.ensure_future(prepared(settings(tmp_path), client, asyncio.Event()))
    await asyncio.sleep(0.5)
    assert not api.requests
    (validations / "toolkit-ready").touch()
    # The node is not there at first.
    await until(lambda: api.requests)
    await api.put(NODE, {"metadata": {"name": "gpu1"}, "status": {"nodeInfo": INFO}})
    found = await asyncio.wait_for(waiting, 30)
    assert found is not None
    assert (found.node_kind, found.strategy) == ("gpu-operator", "cdi")


async def test_without_the_operator_it_waits_for_nothing_of_it(tmp_path: Path, api: FakeApi, client: KubeClient) -> None:
    await api.put(NODE, {"metadata": {"name": "gpu1"}, "status": {"nodeInfo": INFO}})
    found = await prepared(settings(tmp_path), client, asyncio.Event())
    assert found is not None
    assert (found.node_kind, found.strategy) == ("toolkit", "envvar")
    on_host = PluginSettings("gpu1")
    assert await prepared(on_host, client, asyncio.Event()) is on_host


async def test_a_signal_ends_the_waiting(tmp_path: Path, api: FakeApi, client: KubeClient) -> None:
    (tmp_path / "run/nvidia/validations").mkdir(parents=True)
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(prepared(settings(tmp_path), client, stop))
    await asyncio.sleep(0.1)
    stop.set()
    assert await asyncio.wait_for(waiting, 10) is None

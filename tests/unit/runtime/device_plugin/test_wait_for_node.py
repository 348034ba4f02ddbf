# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the device plugin's pod waits for: the GPU Operator's toolkit, and what the API server says of the node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin import wait_for_node
from gpushare_runtime.device_plugin.options import PluginSettings
from gpushare_runtime.device_plugin.wait_for_node import prepared
from gpushare_runtime.kube.client import KubeClient
from unit.fakes.runtime.device_plugin.plugin import NODE
from unit.fakes.runtime.kube.fake_api import FakeApi, stays, until

INFO = {"kubeletVersion": "v1.34.1", "containerRuntimeVersion": "containerd://1.7.29"}


def settings(folder: Path) -> PluginSettings:
    return PluginSettings(
        "gpu1", host_root=folder, cdi_folders=(str(folder / "cdi"),), in_container=True, choose=True, runtime_class="nvidia"
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What it has asked of the host, which it does often."""
    asked = list[object]()

    async def counted(function: Callable[[], bool]) -> bool:
        asked.append(function)
        return await in_thread(function)

    monkeypatch.setattr(wait_for_node, "in_thread", counted)
    for name in ("_POLL_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(wait_for_node, name, 0.01)
    return asked


async def test_it_waits_for_the_operators_toolkit_and_for_the_node(
    tmp_path: Path, api: FakeApi, client: KubeClient, asked: list[object]
) -> None:
    validations = tmp_path / "run/nvidia/validations"
    validations.mkdir(parents=True)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/management.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "management.nvidia.com/gpu", "devices": []}))
    waiting = asyncio.ensure_future(prepared(settings(tmp_path), client, asyncio.Event()))
    await stays(lambda: not api.requests, lambda: len(asked))
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


async def test_a_signal_ends_the_waiting(tmp_path: Path, api: FakeApi, client: KubeClient, asked: list[object]) -> None:
    (tmp_path / "run/nvidia/validations").mkdir(parents=True)
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(prepared(settings(tmp_path), client, stop))
    await until(lambda: asked)
    stop.set()
    assert await asyncio.wait_for(waiting, 10) is None

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A socket that cannot be made is said with its reason, and costs nothing however often it is tried."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path

import grpc.aio
import pytest

from gpushare_runtime.device_plugin.kubelet.server import PluginServer, ResourceService
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses


def server(path: Path) -> PluginServer:
    node = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
    return PluginServer(ResourceService("aliyun.com/gpu-mem", node, lambda: None, Counters()), path)


@pytest.mark.parametrize(("folder", "number"), [("missing", errno.ENOENT), ("x" * 120, errno.ENAMETOOLONG)])
async def test_no_server_is_made_that_could_not_listen(folder: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC keeps 4 KiB of each."""
    made = list[object]()
    monkeypatch.setattr(grpc.aio, "server", lambda *_, **__: made.append(None))
    with pytest.raises(OSError, match=rf"^\[Errno {number}\] \w"):
        await server(tmp_path / folder / "a.sock").start()
    assert not made


def test_nothing_but_the_socket_is_left() -> None:
    async def run(folder: Path) -> None:
        it = server(folder / "a.sock")
        await it.start()
        assert os.listdir(folder) == ["a.sock"]
        await it.stop(0)
        assert os.listdir(folder) == []

    with tempfile.TemporaryDirectory(prefix="gpushare-") as name:
        asyncio.run(run(Path(name)))

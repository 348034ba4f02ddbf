# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The original's ConfigMap, which the plugin of a cluster without the original may not write: said once for each content."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.publish import unhealthy_configmap
from gpushare_runtime.device_plugin.publish.unhealthy_configmap import UnhealthyMap
from gpushare_runtime.kube.client import KubeError
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import inventory


class Forbidding:
    """An API server without that right."""

    asked = 0

    async def patch(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise KubeError(403, "Forbidden", "no such right")


def test_a_right_that_nobody_needs_is_missed_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unhealthy_configmap, "_FORBIDDEN_SECONDS", 0.01)
    node, api = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses()), Forbidding()

    def lose(*indexes: int) -> None:
        read = inventory(16, 16)
        node.devices.set_inventory(replace(read, gpus=tuple(replace(g, health="lost") if g.index in indexes else g for g in read.gpus)))

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]

    async def run() -> None:
        client: Any = api
        writing = asyncio.ensure_future(UnhealthyMap(node, client, "gpu1").run())
        for indexes, messages in (((), 0), ((0,), 1), ((0, 1), 2)):
            lose(*indexes)
            before = api.asked
            await until(lambda before=before: api.asked > before + 5)
            assert len(said()) == messages
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing

    asyncio.run(run())
    assert "if the original's extender runs, allow this plugin's account" in said()[0]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The leader keeps the sizes of the GPUs in a ConfigMap: when it writes, and what it says if it may not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.placement.gpu_sizes import GpuSizes
from gpushare_runtime.extender import sizes
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.sizes import CONFIG_MAP, SizesWriter
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving
from unit.fakes.runtime.pods import inventory
from unit.golden import Golden


class World:
    """A cluster, and a writer with a clock of its own."""

    def __init__(self) -> None:
        self.cluster = ClusterCache()
        self.leads = True
        self.now = 1000.0
        self.writer = SizesWriter(self.cluster, active=lambda: self.leads, clock=lambda: self.now)

    def node(self, name: str, *units: int) -> None:
        self.cluster.ledger.set_inventory(name, inventory(*units) if units else Inventory(inventory(1).unit, ()))


async def test_it_writes_what_has_changed_and_sometimes_what_has_not(tmp_path: Path) -> None:
    world = World()
    async with serving(FakeApi()) as api, connected(api, tmp_path) as client:
        await api.put(CONFIG_MAP, {"metadata": {"name": "gpushare-gpus"}, "data": {"more": "of others"}})

        async def asked() -> list[tuple[str, str]]:
            """What one review asks the API server for."""
            before = len(api.requests)
            await world.writer.review(client)
            return [(method, path) for method, path, _ in api.requests[before:]]

        write = [("PATCH", CONFIG_MAP)]
        assert await asked() == [], "no GPU is known"
        world.node("a", 16, 24)
        assert await asked() == write
        data = api.objects[CONFIG_MAP]["data"]
        assert data["more"] == "of others"
        found = GpuSizes.from_json(data["sizes"])
        assert (found.largest.gpu, found.largest.gpu_count, str(found.unit)) == (24, 2, "1 GiB")
        world.node("b", 8)
        assert await asked() == [], "nothing of it has changed"
        world.node("b", 40)
        assert await asked() == write
        world.now += sizes.AGAIN_SECONDS
        assert await asked() == write
        # Another leader wrote meanwhile.
        world.leads = False
        world.node("b", 80)
        assert await asked() == []
        world.leads = True
        world.node("b", 40)
        assert await asked() == write
        assert GpuSizes.from_json(api.objects[CONFIG_MAP]["data"]["sizes"]).largest.gpu == 40
        # No GPU any more: what was known stays.
        for name in "ab":
            world.node(name)
        assert await asked() == []


@pytest.mark.parametrize(("code", "again"), [(403, False), (404, False), (500, True)])
async def test_what_fails_is_said_once(code: int, again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, golden: Golden) -> None:
    caplog.set_level(logging.WARNING, "gpushare_runtime.extender.sizes")
    world = World()
    world.node("a", 16)
    async with serving(FakeApi()) as api, connected(api, tmp_path) as client:
        for _ in range(2):
            api.faults = [fail(code, "Reason")] * 20
            await world.writer.review(client)
        # A right that is missing is not asked for again within ten minutes.
        assert len([one for one in api.requests if one[0] == "PATCH"]) == (2 if again else 1)
        world.now += sizes.AGAIN_SECONDS
        await world.writer.review(client)
    [said] = [record.getMessage() for record in caplog.records if record.name == "gpushare_runtime.extender.sizes"]
    assert said.startswith("ConfigMap kube-public/gpushare-gpus cannot be written: ")
    golden(said)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Alerts fire from their real cause and clear after it, with a real Prometheus: those whose cause takes more than a line to bring about."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from monitoring.test_dashboard import MIB_OF_CARD, exactly, scene
from unit.runtime.device_plugin.fake_nvml import facts
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.device_plugin.test_pod_limits import admitted
from unit.runtime.device_plugin.test_whole_strategies import cdi, write
from unit.runtime.kube.fake_api import until

# A fixture.
__all__ = ["cdi"]


def test_a_card_that_was_replaced_by_a_smaller_one_under_its_pods(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as (here, server):
            it, fires = here.it, partial(exactly, server)
            await admitted(it, memory(it.inventory, 0, 12))
            await until(lambda: it.plugin.status.ready)
            await fires()
            it.nvml.cards[0] = facts(0, MIB_OF_CARD // 2)
            await fires("GPUShareCardOverbooked", "GPUShareLedgerOverbooked", "GPUShareLedgerInconsistent")
            summary = (await server.firing())["GPUShareCardOverbooked"]["annotations"]["summary"]
            assert summary.startswith("card 0 (GPU-00000000-")
            assert " has 12 allocated units" in summary
            it.nvml.cards[0] = facts(0, MIB_OF_CARD)
            await fires()

    asyncio.run(run())


def test_a_cdi_spec_that_no_longer_fits_a_card(tmp_path: Path, cdi: Path) -> None:
    write(cdi, 0, 1)

    async def run() -> None:
        async with scene(tmp_path, strategy="cdi", cdi_folders=(str(cdi),)) as (here, server):
            fires = partial(exactly, server)
            await until(lambda: here.it.plugin.status.ready)
            await fires()
            write(cdi, 0)
            await fires("GPUShareCDISpecUnusable", "GPUShareDevicePluginDegraded")
            summary = (await server.firing())["GPUShareCDISpecUnusable"]["annotations"]["summary"]
            assert summary.startswith("no CDI spec fits card 1 (GPU-00000001-")
            # Its own failure says more.
            here.it.nvml.lost = {1}
            await fires("GPUShareCardUnhealthy", "GPUShareDevicePluginDegraded")
            here.it.nvml.lost = set()
            await fires("GPUShareCDISpecUnusable", "GPUShareDevicePluginDegraded")
            write(cdi, 0, 1)
            await fires()

    asyncio.run(run())

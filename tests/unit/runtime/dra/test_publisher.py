# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The slices in the API server follow the GPUs, come back when kubelet deletes them, and are written only for a reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.dra.publisher import SlicePublisher
from unit.fakes.runtime.dra.claims import A30, T4
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving, until

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FIRST = f"{SLICES}/gpu1-gpushare.kubernetes-0"


@dataclass
class World:
    api: FakeApi
    changes: Changes
    status: Status
    inventory: Inventory | None = None

    def read(self, *gpus: Any) -> None:
        self.inventory = Inventory(GIB, gpus)
        self.changes.notify()

    def devices(self) -> list[str]:
        """Of all slices, with the size of each device."""
        found = [one for path, one in sorted(self.api.objects.items()) if path.startswith(SLICES)]
        return [f"{device['name'][:6]} {device['capacity']['memory']['value']}" for one in found for device in one["spec"]["devices"]]

    def generations(self) -> list[int]:
        return [one["spec"]["pool"]["generation"] for path, one in sorted(self.api.objects.items()) if path.startswith(SLICES)]

    def writes(self) -> int:
        return sum(method in ("POST", "PATCH", "DELETE") for method, _, _ in self.api.requests)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with serving(FakeApi()) as api, connected(api, folder) as client:
        await api.put("/api/v1/nodes/gpu1", {"metadata": {"name": "gpu1", "uid": "node-uid"}})
        it = World(api, Changes(), Status(required=()))
        publisher = SlicePublisher(client, "gpu1", lambda: it.inventory, it.changes, it.status)
        tasks = [asyncio.ensure_future(publisher.reflector().run()), asyncio.ensure_future(publisher.run())]
        try:
            yield it
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def test_nothing_is_written_before_the_gpus_are_read_and_once_after(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await until(lambda: it.api.watching == 1)
        assert it.writes() == 0
        it.read(T4)
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        assert it.api.objects[FIRST]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
        for _ in range(5):
            it.changes.notify()
            await asyncio.sleep(0.02)
        assert it.writes() == 1
        assert it.generations() == [1]


async def test_other_gpus_are_a_new_generation_and_fewer_slices_remain(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        many = [replace(T4, index=10000 + place, uuid=f"MIG-{place:06}") for place in range(70)]
        it.read(*many)
        await until(lambda: len(it.devices()) == 70)
        assert it.generations() == [1, 1]
        it.read(T4, A30)
        await until(lambda: it.devices() == ["gpu-64 15Gi", "gpu-40 24Gi"])
        assert it.generations() == [2]


async def test_slices_that_kubelet_deletes_come_back(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.read(T4)
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        await it.api.remove(FIRST)
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        assert it.generations() == [2]


async def test_an_api_server_that_fails_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await until(lambda: it.api.watching == 1)
        it.api.faults += [fail(500), fail(403, "Forbidden", "gpushare-dra-slices denied request")]
        it.read(T4)
        await until(lambda: "written" in it.status.report()[1])
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        await until(lambda: it.status.report()[0])
        # A later failure is the first one again.
        it.api.faults += [fail(500)]
        it.read(T4, A30)
        await until(lambda: "written" in it.status.report()[1])
        assert it.status.report()[1].partition("trying again in ")[2][:3] in ("0.1", "0.2")


async def test_slices_of_a_node_of_that_name_before_are_written_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.read(T4)
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        old = {**it.api.objects[FIRST], "metadata": {"name": "gpu1-gpushare.kubernetes-0", "ownerReferences": [{"uid": "before"}]}}
        await it.api.put(FIRST, old)
        await until(lambda: it.api.objects[FIRST]["metadata"]["ownerReferences"][0].get("uid") == "node-uid")


async def test_slices_stay_with_a_new_node_of_the_same_name(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.read(T4)
        await until(lambda: it.devices() == ["gpu-64 15Gi"])
        await it.api.put("/api/v1/nodes/gpu1", {"metadata": {"name": "gpu1", "uid": "new-node"}})
        # As Kubernetes does with the slices of a node that is gone.
        await it.api.remove(FIRST)
        await until(lambda: it.api.objects[FIRST]["metadata"]["ownerReferences"][0].get("uid") == "new-node")

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The back end dra on the control plane of the benchmark: the manifest's policies, a slice of each node, and the controller of claims."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bench.scheduling.control_plane import ControlPlane
from bench.scheduling.objects import PODS, all_of, pending
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.dra.slices import API, slices
from gpushare_runtime.dra.templates import TEMPLATE, template
from gpushare_runtime.kube.client import METADATA_LIST, KubeClient, KubeError

CLAIMS: Final = f"/{API}/namespaces/default/resourceclaims"
_TEMPLATES: Final = f"/{API}/namespaces/default/resourceclaimtemplates"
_SLICES: Final = f"/{API}/resourceslices"
_MANIFEST: Final = Path(__file__).parents[3] / "docs/manifests/dra/gpushare-dra.yaml"
_KINDS: Final = ("DeviceClass", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")
_SECONDS: Final = 300.0


class Claims:
    """What a cluster with this back end has, from `start` to `stop`."""

    def __init__(self, plane: ControlPlane, client: KubeClient, inventories: Mapping[str, Inventory]) -> None:
        self._plane = plane
        self._client = client
        self._inventories = inventories
        self._objects = [one for one in yaml.safe_load_all(_MANIFEST.read_text()) if one["kind"].removesuffix("Binding") in _KINDS]

    async def start(self) -> None:
        """Until limits become claims."""
        # The API server validates them itself; its OpenAPI document would cost it more.
        self._kubectl("create", "--validate=false")
        await self._client.create(_TEMPLATES, template("default"))
        await all_of(self._publish(name, inventory) for name, inventory in self._inventories.items())
        self._plane.start_controllers("resourceclaim-controller")
        await _until("limits become claims", self._translates)

    async def made(self, pods: int) -> None:
        """Until each pod has its claim."""

        async def all_made() -> bool:
            return len((await self._client.get(CLAIMS, accept=METADATA_LIST, within=60))["items"] or ()) >= pods

        await _until("each pod has its claim", all_made)

    async def stop(self) -> None:
        """Leave nothing of it. The pods are gone already."""
        await self._client.delete(CLAIMS, {}, within=_SECONDS)
        await _until("the claims are gone", self._gone)
        self._plane.stop_controllers()
        await self._client.delete(_SLICES, {}, within=_SECONDS)
        await self._client.delete(f"{_TEMPLATES}/{TEMPLATE}", within=_SECONDS)
        self._kubectl("delete")

        async def as_before() -> bool:
            return not await self._translates()

        await _until("limits stay limits", as_before)

    def _kubectl(self, *words: str) -> None:
        self._plane.kubectl(*words, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": self._objects}))

    async def _publish(self, name: str, inventory: Inventory) -> None:
        node = await self._client.get(f"/api/v1/nodes/{name}")
        for part in slices(name, node["metadata"]["uid"], inventory, 1):
            await self._client.create(_SLICES, part)

    async def _translates(self) -> bool:
        try:
            pod = await self._client.create(PODS, pending(0), within=60, dryRun="All")
        except KubeError as error:
            # Between the two policies: one rejects what the other does not translate yet.
            if error.status != 422:
                raise
            return False
        return bool(pod["spec"].get("resourceClaims"))

    async def _gone(self) -> bool:
        return not (await self._client.get(CLAIMS, limit=1, within=60))["items"]


def gpus(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The GPUs of an allocated claim, each with its node; [] before that."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    return [(one["pool"], one["device"]) for one in devices.get("results", ())]


async def _until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """SystemExit when it does not hold in time."""
    deadline = time.monotonic() + _SECONDS
    while not await holds():
        if time.monotonic() > deadline:
            sys.exit(f"not after {_SECONDS:.0f} s: {what}")
        await asyncio.sleep(0.2)

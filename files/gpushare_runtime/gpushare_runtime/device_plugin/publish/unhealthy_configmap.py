# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The original's ConfigMap `unhealthy-gpu-<node>`: GPUs that its extender must not use. Ours reads `gpushare/gpus` instead."""

from __future__ import annotations

import logging
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

# Only an administrator can add the permission: a quick retry does not help.
_FORBIDDEN_SECONDS: Final = 300.0


class UnhealthyMap:
    """The ConfigMap comes with the first unusable GPU. Later it lists no GPU and stays: the plugin has no permission to delete it."""

    def __init__(self, node: NodeState, client: KubeClient, node_name: str) -> None:
        self._node = node
        self._client = client
        self._name = protocol.UNHEALTHY_PREFIX + node_name
        self._written: str | None = None
        self._forbidden: str | None = None

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        changes, backoff = self._node.changes, Backoff()
        while True:
            seen, wanted = changes.count, self._wanted()
            if wanted is None or wanted == self._written:
                await changes.after(seen)
                continue
            try:
                await self._write(wanted)
            except KubeError as error:
                forbidden = error.status == 403
                # In a cluster without the original no account needs the permission: once is enough.
                if not forbidden or (wanted and wanted != self._forbidden):
                    cure = "; if the original's extender runs, allow this plugin's account to get, patch and create it" if forbidden else ""
                    log.warning("ConfigMap %s/%s cannot be written: %s%s", protocol.UNHEALTHY_NAMESPACE, self._name, error, cure)
                self._forbidden = wanted if forbidden else None
                await changes.after(seen, _FORBIDDEN_SECONDS if forbidden else backoff.wait())
                continue
            backoff.reset()
            self._written = wanted

    def _wanted(self) -> str | None:
        inventory = self._node.devices.inventory
        return None if inventory is None else ",".join(str(gpu.index) for gpu in inventory.gpus if not gpu.usable)

    async def _write(self, wanted: str) -> None:
        maps = path("api/v1", "namespaces", protocol.UNHEALTHY_NAMESPACE, "configmaps")
        # Removes the key: the original reads an empty value as GPU 0.
        data = {protocol.UNHEALTHY_KEY: wanted or None}
        try:
            await self._client.patch(path(maps, self._name), {"data": data}, kind="merge", within=10.0)
        except KubeError as error:
            if error.status != 404:
                raise
            if not wanted:
                return
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}, "data": data}
            await self._client.create(maps, body, within=10.0)
        log.info("ConfigMap %s/%s: unusable GPUs %s", protocol.UNHEALTHY_NAMESPACE, self._name, wanted or "none")

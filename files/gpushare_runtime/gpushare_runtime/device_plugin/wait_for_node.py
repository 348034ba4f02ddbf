# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin's pod waits for its node before its work, and chooses the strategy by what it sees of the node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon import health_server
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders
from gpushare_runtime.device_plugin.host.own_spec import HostFiles
from gpushare_runtime.device_plugin.node.node_kind import NodeSight, node_kind
from gpushare_runtime.device_plugin.options import PluginSettings
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

#: Where the GPU Operator says how far a node is.
VALIDATIONS: Final = "/run/nvidia/validations"
TOOLKIT_READY: Final = "toolkit-ready"
_PART: Final = "node"
_POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 2.0


async def prepared(settings: PluginSettings, client: KubeClient, stop: asyncio.Event) -> PluginSettings | None:
    """The settings with what the node decides; None where `stop` was set before. kubelet's probes are answered meanwhile."""
    if settings.host_root is None:
        return settings
    status = Status(required=[_PART])
    health = [asyncio.ensure_future(part) for part in health_server.parts(settings.health_listen, status.readiness)]
    choosing = asyncio.ensure_future(_chosen(settings, HostFiles(settings.host_root), client, status))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done = (await asyncio.wait({choosing, stopping, *health}, return_when=asyncio.FIRST_COMPLETED))[0]
        for task in done.intersection(health):
            task.result()
        return choosing.result() if choosing in done else None
    finally:
        for task in (choosing, stopping, *health):
            task.cancel()
        await asyncio.gather(choosing, stopping, *health, return_exceptions=True)


async def _chosen(settings: PluginSettings, files: HostFiles, client: KubeClient, status: Status) -> PluginSettings:
    operator = await _toolkit_ready(files, status)
    if not settings.choose:
        return settings
    info = await _node_info(settings.node, client, status)
    specs = await in_thread(SpecFolders(settings.cdi_folders, in_container=True).read)
    seen = NodeSight(
        kubelet=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
        operator=operator,
        management=protocol.CDI_KIND_MANAGEMENT in specs.kinds,
        runtime_class=settings.runtime_class,
    )
    kind = node_kind(seen)
    log.log(logging.INFO if kind.strategy == protocol.STRATEGY_CDI else logging.WARNING, "node kind %s: %s", kind.name, kind.why)
    return replace(settings, strategy=kind.strategy, node_kind=kind.name)


async def _toolkit_ready(files: HostFiles, status: Status) -> bool:
    """Whether the GPU Operator works on this node; waits until its toolkit is there, without which no container gets a GPU."""
    folder = files.at(VALIDATIONS)
    while await in_thread(folder.is_dir):
        if await in_thread((folder / TOOLKIT_READY).exists):
            return True
        cure = "see the pod of its validator on this node"
        status.degraded(_PART, f"waiting for {VALIDATIONS}/{TOOLKIT_READY}, which the GPU Operator writes: {cure}")
        await asyncio.sleep(_POLL_SECONDS)
    return False


async def _node_info(node: str, client: KubeClient, status: Status) -> dict[str, object]:
    while True:
        with contextlib.suppress(KubeError, asyncio.TimeoutError):
            found = await client.get(path("api/v1", "nodes", node), within=10.0)
            info = (found.get("status") or {}).get("nodeInfo")
            if isinstance(info, dict):
                return info
        status.degraded(_PART, f"waiting for the API server, to know what kubelet and container runtime node {node} has")
        await asyncio.sleep(_RETRY_SECONDS)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The gRPC services that kubelet calls, on one socket in its folder of plugins.

kubelet watches that folder, asks behind each new socket what it is, and keeps the driver until the socket is removed. Each process has a
socket of its own name: kubelet rejects a second registration with the path of a first one that it has not yet given up.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from gpushare_runtime.core.inventory import HEALTHY, Inventory
from gpushare_runtime.daemon.grpc_socket import SocketServer
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.daemon.unix_sockets import remove_dead
from gpushare_runtime.dra.claims import CDI_KIND, Claim, ClaimError, PreparedClaim, cdi_name
from gpushare_runtime.dra.prepared import Claims
from gpushare_runtime.dra.proto import dra_pb2 as pb
from gpushare_runtime.dra.proto import health_pb2 as health_pb
from gpushare_runtime.dra.proto import pluginregistration_pb2 as registration_pb
from gpushare_runtime.dra.proto.dra_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from gpushare_runtime.dra.proto.health_pb2_grpc import DRAResourceHealthServicer, add_DRAResourceHealthServicer_to_server
from gpushare_runtime.dra.proto.pluginregistration_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from gpushare_runtime.dra.slices import DRIVER, device_name, published

log = logging.getLogger(__name__)

PART: Final = "DRA driver"
"""Of the status."""
REGISTERED: Final = "registered with kubelet"
_TYPE, _SERVICES = "DRAPlugin", ("v1.DRAPlugin", "v1.DRAResourceHealth")
# kubelet forgets a device's health 30 s after it was told of it.
_HEALTH_SECONDS: Final = 10.0
_SOCKET: Final = re.compile(rf"{re.escape(DRIVER)}-[0-9a-f]{{8}}-reg\.sock")
_POLL_SECONDS: Final = 1.0
# kubelet's plugin watcher is told of a new socket by inotify.
_ASKED_SECONDS: Final = 30.0
_DRAIN_SECONDS: Final = 1.0
# Claims of one request; kubelet asks for those of one pod.
_MOST_CLAIMS: Final = 64
_Context = Any  # grpc.aio.ServicerContext has no types


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this node. now: as they are, None before the first reading. changes: of them, and of anything else.

    cdi_kind: of the devices that are the GPUs themselves.
    """

    now: Callable[[], Inventory | None]
    changes: Changes
    cdi_kind: Callable[[], str]


class Services(DRAPluginServicer, DRAResourceHealthServicer, RegistrationServicer):
    """The answers to kubelet. endpoint: the socket that it asks at. told: takes what kubelet says about the registration.

    before_start: does what a claim's pod needs before its first process; ClaimError if that fails.
    """

    def __init__(
        self,
        claims: Claims,
        node: str,
        gpus: Gpus,
        before_start: Callable[[Claim], Awaitable[None]],
        endpoint: Path,
        told: Callable[[str], None],
    ) -> None:
        self._claims = claims
        self._node = node
        self._gpus = gpus
        self._before_start = before_start
        self._endpoint = endpoint
        self._told = told

    async def GetInfo(self, request: registration_pb.InfoRequest, context: _Context) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(type=_TYPE, name=DRIVER, endpoint=str(self._endpoint), supported_versions=_SERVICES)

    async def NotifyRegistrationStatus(
        self, request: registration_pb.RegistrationStatus, context: _Context
    ) -> registration_pb.RegistrationStatusResponse:
        self._told("" if request.plugin_registered else request.error[:300] or "it gives no reason")
        return registration_pb.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: pb.NodePrepareResourcesRequest, context: _Context) -> pb.NodePrepareResourcesResponse:
        async def prepare(claim: pb.Claim) -> pb.NodePrepareResourceResponse:
            started = time.monotonic()
            try:
                if len(request.claims) > _MOST_CLAIMS:
                    raise ClaimError(f"the pod has {len(request.claims)} claims with GPUs, and no more than {_MOST_CLAIMS} can be prepared")
                prepared = await self._claims.prepare(claim.namespace, claim.uid, claim.name)
                await self._before_start(prepared.claim)
            except ClaimError as error:
                log.warning("not prepared: %s", error)
                return pb.NodePrepareResourceResponse(error=str(error))
            units = ", ".join(f"{part.units} of {part.uuid}" for part in prepared.claim.parts)
            log.info("claim %s is prepared in %.0f ms: %s", prepared.claim, (time.monotonic() - started) * 1000, units)
            return pb.NodePrepareResourceResponse(devices=self._devices(prepared))

        return pb.NodePrepareResourcesResponse(claims=await _each(request.claims, prepare))

    def _devices(self, prepared: PreparedClaim) -> list[pb.Device]:
        """One for each result of the allocation. The environment comes with the first of each request: a second time it is an error."""
        devices, seen, kind = [], set(), self._gpus.cdi_kind()
        for part in prepared.claim.parts:
            ids = [f"{kind}={part.uuid}"]
            if part.request not in seen:
                seen.add(part.request)
                ids.append(f"{CDI_KIND}={cdi_name(prepared.claim, part.request)}")
            # A request of alternatives is named in the pod without the alternative.
            device = pb.Device(
                request_names=[part.request.partition("/")[0]], pool_name=self._node, device_name=device_name(part.uuid), cdi_device_ids=ids
            )
            if part.share:
                device.share_id = part.share
            devices.append(device)
        return devices

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: _Context
    ) -> pb.NodeUnprepareResourcesResponse:
        async def release(claim: pb.Claim) -> pb.NodeUnprepareResourceResponse:
            try:
                await self._claims.release(claim.uid)
            except ClaimError as error:
                log.warning("not released: %s", error)
                return pb.NodeUnprepareResourceResponse(error=str(error))
            return pb.NodeUnprepareResourceResponse()

        return pb.NodeUnprepareResourcesResponse(claims=await _each(request.claims, release))

    async def NodeWatchResources(
        self, request: health_pb.NodeWatchResourcesRequest, context: _Context
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        """The health of all devices: at once, whenever it has changed, and before kubelet forgets it. It shows it in the pods' status."""
        told: list[tuple[str, str, bool]] = []
        at = 0.0
        while True:
            count, inventory, now = self._gpus.changes.count, self._gpus.now(), time.monotonic()
            health = [(device_name(gpu.uuid), gpu.health, gpu.defective) for gpu in published(inventory)] if inventory else []
            if health and (health != told or now - at >= _HEALTH_SECONDS):
                yield health_pb.NodeWatchResourcesResponse(devices=[self._health(*each) for each in health])
                told, at = health, now
            await self._gpus.changes.after(count, _HEALTH_SECONDS)

    def _health(self, device: str, health: str, defective: bool) -> health_pb.DeviceHealth:
        good = health == HEALTHY
        # A fault of the driver, or of files, need not concern containers that run.
        bad = health_pb.UNHEALTHY if defective else health_pb.UNKNOWN
        return health_pb.DeviceHealth(
            device=health_pb.DeviceIdentifier(pool_name=self._node, device_name=device),
            health=health_pb.HEALTHY if good else bad,
            last_updated_time=int(time.time()),
            message="" if good else health,
        )


async def _each(claims: Any, answer: Callable[[Any], Awaitable[Any]]) -> dict[str, Any]:
    """kubelet asks again, for ever, where an answer is missing."""
    return {claim.uid: await answer(claim) for claim in claims}


class KubeletDriver:
    """Serves on a socket in kubelet's folder `plugins_registry`, and on another one where that goes.

    services: those of a socket, by what they are told. folder: as kubelet sees it, too.
    """

    def __init__(self, services: Callable[[Path, Callable[[str], None]], Services], folder: Path, status: Status) -> None:
        self._services = services
        self._folder = folder
        self._status = status
        self._server: SocketServer | None = None
        self._since = 0.0
        self._asked = False

    async def run(self) -> NoReturn:
        """Never returns. On cancellation it removes its socket: kubelet gives up the driver, and keeps its claims."""
        try:
            while True:
                if self._server is None or not self._server.listening():
                    await self._stop(0)
                    await self._serve()
                    remove_dead(self._folder, _SOCKET.fullmatch)
                elif not self._asked and time.monotonic() - self._since > _ASKED_SECONDS:
                    self._status.degraded(PART, f"kubelet does not ask at {self._folder}: is it 1.37 or newer, and is this its --root-dir?")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await self._stop(_DRAIN_SECONDS)

    async def _serve(self) -> None:
        where = self._folder / f"{DRIVER}-{secrets.token_hex(4)}-reg.sock"
        services = self._services(where, self._told)

        def add(server: Any) -> None:
            add_DRAPluginServicer_to_server(services, server)  # type: ignore[no-untyped-call]
            add_DRAResourceHealthServicer_to_server(services, server)  # type: ignore[no-untyped-call]
            add_RegistrationServicer_to_server(services, server)  # type: ignore[no-untyped-call]

        self._server = SocketServer(where, add)
        self._since, self._asked = time.monotonic(), False
        try:
            await self._server.start()
        except OSError as error:
            self._status.degraded(PART, f"cannot serve in {self._folder} ({error}): check that this process may write there")

    def _told(self, why: str) -> None:
        self._asked = True
        if why:
            self._status.degraded(PART, f"kubelet rejects the registration ({why}): see its log")
        else:
            self._status.ok(PART, REGISTERED)

    async def _stop(self, grace: float) -> None:
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

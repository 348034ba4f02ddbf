# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's side of the device plugin API over real unix sockets: registration, list, questions, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2_grpc as rpc
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError, DeviceManager, StartError

MESSAGE_BYTES = 4 * 1024 * 1024
DROP_SECONDS = 0.05


class FakeKubelet(rpc.RegistrationServicer):
    """root: has its folder of device plugins. registrations: (resource, seconds since the socket was there)."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "device-plugins"
        self.manager = DeviceManager(self.directory / "kubelet_internal_checkpoint", self.prefer, self._allocate)
        self.manager.pre_start = self._pre_start
        self.manager.pre_start_required = lambda resource: self.options[resource].pre_start_required
        self.registrations: list[tuple[str, float]] = []
        self.lists: dict[str, list[dict[str, str]]] = {}
        self.options: dict[str, pb.DevicePluginOptions] = {}
        self.responses: list[pb.ContainerAllocateResponse] = []
        self.reject_registration = False
        self.rejected = 0
        self._clients: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None
        self._started = 0.0

    async def start(self, *, sweep: bool = True) -> None:
        """Sweep the directory of all sockets, then listen, as kubelet does."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in self.directory.iterdir() if sweep else ():
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink()
        self.manager.read()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        self._started = time.monotonic()
        await self._server.start()

    async def stop(self) -> None:
        """As kill -9: connections break."""
        for task in list(self._tasks):
            task.cancel()
        for channel, _ in self._clients.values():
            await channel.close()
        self._clients.clear()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        self.registrations.clear()
        self.lists.clear()
        self.manager.given = {}
        await self.start()

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if self.reject_registration:
            self.rejected += 1
            await context.abort(grpc.StatusCode.UNKNOWN, "planned")
        assert request.version == "v1beta1"
        channel = grpc.aio.insecure_channel(
            f"unix:{self.directory / request.endpoint}", options=[("grpc.max_receive_message_length", MESSAGE_BYTES)]
        )
        stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        # The real one dials back before it answers.
        self.options[request.resource_name] = await stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        self._clients[request.resource_name] = channel, stub
        self.registrations.append((request.resource_name, time.monotonic() - self._started))
        task = asyncio.create_task(self._read_list(request.resource_name, stub))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pb.Empty()

    async def _read_list(self, resource: str, stub: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for response in stub.ListAndWatch(pb.Empty()):
                self.lists.setdefault(resource, []).append({device.ID: device.health for device in response.devices})
                self.manager.healthy[resource] = {d.ID for d in response.devices if d.health == "Healthy"}
                self.manager.write()
        # The plugin hung up. As the real one, which takes a moment over it: whoever is registered under that name by then goes.
        await asyncio.sleep(DROP_SECONDS)
        if resource in self._clients:
            channel, _ = self._clients.pop(resource)
            await channel.close()
        self.manager.healthy[resource] = set()

    @property
    def reading(self) -> int:
        """How many lists it reads, or is about to drop."""
        return len(self._tasks)

    def drop_lists(self) -> None:
        """No longer read the plugin's lists, while kubelet itself goes on."""
        for task in list(self._tasks):
            task.cancel()

    async def prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        try:
            answer = await self._stub(resource).GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[asked]))
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(f"GetPreferredAllocation: {error.code().name}: {error.details()}") from None
        return list(answer.container_responses[0].deviceIDs)

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        asked = pb.ContainerAllocateRequest(devices_ids=ids)
        try:
            answer = await self._stub(resource).Allocate(pb.AllocateRequest(container_requests=[asked]))
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(f"Allocate: {error.code().name}: {error.details()}") from None
        self.responses.append(answer.container_responses[0])
        return dict(answer.container_responses[0].envs)

    async def _pre_start(self, resource: str, ids: list[str]) -> None:
        try:
            await self._stub(resource).PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
        except grpc.aio.AioRpcError as error:
            raise StartError(f"{error.code().name}: {error.details()}") from None

    def _stub(self, resource: str) -> Any:
        return self._clients[resource][1]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's side of the device plugin API over real unix sockets: registration, list, questions, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2_grpc as rpc
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError, DeviceManager, StartError

MESSAGE_BYTES = 4 * 1024 * 1024
DROP_SECONDS = 0.05


@dataclass(eq=False)
class Client:
    """kubelet's connection to the plugin that registered a resource on a socket. stopped: its list has ended."""

    resource: str
    socket: str
    channel: Any
    stub: Any
    stopped: bool = False


class FakeKubelet(rpc.RegistrationServicer):
    """root: has its folder of device plugins. registrations: (resource, seconds since the socket was there).

    by_socket: it keeps plugins by resource and socket as 1.37.2 does (pkg/kubelet/cm/devicemanager/manager.go, plugin/v1beta1/handler.go
    and client.go), or by resource alone, as 1.36.3. awake: cleared while it is frozen. It completes then what it was asked before, whoever
    still waits for that.
    """

    def __init__(self, root: Path, *, by_socket: bool = True) -> None:
        self.by_socket = by_socket
        self.awake = asyncio.Event()
        self.awake.set()
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
        self.asked: list[str] = []  # the sockets, in the order of the requests
        self._clients: dict[str, list[Client]] = {}
        self._stored: dict[str, list[Client]] = {}
        self._endpoints: dict[str, Client] = {}
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
        for client in {*itertools.chain(*self._clients.values(), self._endpoints.values())}:
            await client.channel.close()
        for known in (self._clients, self._stored, self._endpoints):
            known.clear()
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
        self.asked.append(request.endpoint)
        connecting = asyncio.ensure_future(self._connect(request))
        self._tasks.add(connecting)
        connecting.add_done_callback(self._tasks.discard)
        problem = await asyncio.shield(connecting)
        if problem:
            await context.abort(grpc.StatusCode.UNKNOWN, problem)
        return pb.Empty()

    async def _connect(self, request: pb.RegisterRequest) -> str:
        """Why it rejects the registration; "" if it does not."""
        await self.awake.wait()
        resource, path = request.resource_name, str(self.directory / request.endpoint)
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", MESSAGE_BYTES)])
        client = Client(resource, path, channel, rpc.DevicePluginStub(channel))  # type: ignore[no-untyped-call]
        others = self._clients.get(resource, []) if self.by_socket else []
        self._clients[resource] = [*others, client]
        # The real one dials back before it answers.
        try:
            options = await client.stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        except grpc.aio.AioRpcError as error:
            self._forget(client)
            return f"failed to dial device plugin: {error.details()}"
        stored = self._stored.setdefault(resource, [])
        if self.by_socket and any(known.socket == path for known in stored):
            # With it the client goes that is connected: nobody forgets its socket when its list ends.
            self._forget(client)
            return f"device plugin already connected: {path}"
        stored.append(client)
        self._endpoints[resource], self.options[resource] = client, options
        self.registrations.append((resource, time.monotonic() - self._started))
        task = asyncio.create_task(self._read_list(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ""

    def _forget(self, client: Client) -> None:
        left = [known for known in self._clients.get(client.resource, []) if self.by_socket and known.socket != client.socket]
        self._clients[client.resource] = left

    async def _read_list(self, client: Client) -> None:
        resource = client.resource
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for response in client.stub.ListAndWatch(pb.Empty()):
                await self.awake.wait()
                self.lists.setdefault(resource, []).append({device.ID: device.health for device in response.devices})
                self.manager.healthy[resource] = {d.ID for d in response.devices if d.health == "Healthy"}
                self.manager.write()
        # The plugin hung up. As the real one, which takes a moment over it: whoever is registered under that name by then goes.
        await asyncio.sleep(DROP_SECONDS)
        found = next((known for known in self._clients.get(resource, []) if not self.by_socket or known.socket == client.socket), None)
        if found is None:
            return
        self._forget(found)
        await found.channel.close()
        found.stopped = True
        if self.by_socket:
            left = self._stored[resource] = [known for known in self._stored[resource] if known.socket != found.socket]
            if left:
                self._endpoints[resource] = left[0]
                return
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
        if self._endpoints[resource].stopped:
            raise AdmissionError(f"endpoint of {resource} is stopped")
        return self._endpoints[resource].stub

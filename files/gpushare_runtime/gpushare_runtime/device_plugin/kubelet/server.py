# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The gRPC service DevicePlugin for one extended resource, on a Unix socket, over the node's shared state.

Each registration has a server with a socket of its own: kubelet 1.37 and newer keep a plugin by the path of its socket, also one that
has ended while kubelet was busy (pkg/kubelet/cm/devicemanager/manager.go, PluginConnected).
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.grpc_socket import SocketServer
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.sync import Changes, any_after
from gpushare_runtime.daemon.unix_sockets import remove_dead
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import DevicePluginServicer, add_DevicePluginServicer_to_server
from gpushare_runtime.device_plugin.node.allocate_response import AllocateResult
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.sentences import gpu_name
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.node.turns import ORDER_SECONDS, Turn

_UNLIMITED: Final = -1
# kubelet's requests contain every free id, which exceeds gRPC's default of 4 MiB on large nodes.
_OPTIONS: Final = (("grpc.max_receive_message_length", _UNLIMITED), ("grpc.max_send_message_length", _UNLIMITED))
log = logging.getLogger(__name__)
# kubelet admits no other pod of the node while it waits for a response.
POD_WAIT_SECONDS: Final = 0.5
_OVERTAKEN: Final = (
    "kubelet requests devices for several pods at once, as it does after its checkpoint was lost, and would end if all succeeded; "
    "it will retry the start of a container"
)
# Between two requests for one pod (preference, Allocate, then its next container). kubelet takes some milliseconds, and more on a node
# whose CPUs are busy: with a fifth of this a test on a busy machine lost a pod once in some thousand runs.
_NEXT_REQUEST_SECONDS: Final = 0.5
_Context = Any  # grpc.aio.ServicerContext has no types
SOCKETS: Final = {protocol.RESOURCE_MEMORY: protocol.SOCKET_MEMORY, protocol.RESOURCE_GPUS: protocol.SOCKET_GPUS}
"""The resources, and how the names of their sockets in kubelet's plugin directory begin."""
_SOCKET: Final = re.compile(rf"({'|'.join(SOCKETS.values())})[0-9a-f]{{8}}{re.escape(protocol.SOCKET_END)}")


def new_socket(directory: Path, resource: str) -> Path:
    """A socket's path that no other registration has, of this process or another one."""
    return directory / f"{SOCKETS[resource]}{secrets.token_hex(4)}{protocol.SOCKET_END}"


def remove_dead_sockets(directory: Path) -> None:
    """Remove the sockets of former processes of ours, which were killed, and of the original. One on which a process listens stays."""
    remove_dead(directory, lambda name: name in protocol.FORMER_SOCKETS or _SOCKET.fullmatch(name))


class PluginServer(SocketServer):
    """Serves one resource on one socket. path: a new name, by which kubelet finds it."""

    def __init__(self, service: ResourceService, path: Path) -> None:
        super().__init__(path, lambda server: add_DevicePluginServicer_to_server(service, server), _OPTIONS)  # type: ignore[no-untyped-call]
        self.service = service

    async def stop(self, grace: float) -> None:
        """Remove the socket, then complete kubelet's running requests, for at most `grace` seconds."""
        self.remove()
        if grace:
            await self.service.drain(grace)
        # Only now: kubelet sends no requests to a plugin whose list has ended.
        self.service.close()
        await super().stop(grace)


async def _nothing_before(_resource: str, _ids: Sequence[str]) -> None:
    """Where the containers of a node have no limits."""


class ResourceService(DevicePluginServicer):
    """Belongs to one registration. refresh: updates the node's state from kubelet's checkpoint.

    before_start: prepares what a container with these ids needs before its first process; AllocationRejected if that fails.
    dev: the host's /dev, to be read.
    """

    def __init__(
        self,
        resource: str,
        node: NodeState,
        refresh: Callable[[], None],
        counters: Counters,
        before_start: Callable[[str, Sequence[str]], Awaitable[None]] = _nothing_before,
        dev: Path = Path("/dev"),
    ) -> None:
        self.resource = resource
        self.streams = 0  # open lists
        self.healthy: frozenset[str] | None = None  # of the last list that kubelet was sent
        self._closing = self._draining = False
        self._running = 0
        self._completed = Changes()
        self._node = node
        self._refresh = refresh
        self._counters = counters
        self._before_start = before_start
        self._dev = dev

    def options(self) -> pb.DevicePluginOptions:
        """Which optional requests kubelet should send.

        If kubelet has lost its record of a running pod, its PreStartContainer fails, and the container cannot restart. So the plugin
        does not require it then: kubelet calls Allocate again, and gets ids of the same GPU.
        """
        required = not self._node.usage.any_record_lost(self.resource)
        return pb.DevicePluginOptions(pre_start_required=required, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        changes, sent = self._node.changes, None
        try:
            while not self._closing:
                seen, key = changes.count, self._node.devices.reported_key(self.resource)
                if key != sent:
                    devices = self._node.devices.reported(self.resource)
                    self.healthy = frozenset(device_id for device_id, good in devices if good)
                    yield self._list(devices)
                    sent = key
                await changes.after(seen)
        finally:
            self.streams -= 1

    def _list(self, devices: list[tuple[str, bool]]) -> pb.ListAndWatchResponse:
        log.info("%s: reporting %d ids to kubelet, %d of them healthy", self.resource, len(devices), sum(good for _, good in devices))
        return pb.ListAndWatchResponse(
            devices=[pb.Device(ID=device_id, health="Healthy" if good else "Unhealthy") for device_id, good in devices]
        )

    async def drain(self, timeout: float) -> None:
        """Wait until kubelet waits for no response and has sent no request after the last one; at most `timeout` seconds.

        A pod with preferred ids would fail if its next request found no server.
        """
        deadline = time.monotonic() + timeout
        self._draining = True
        self._node.turns.changes.notify()
        while (left := deadline - time.monotonic()) > 0:
            seen = self._completed.count
            if not await self._completed.after(seen, min(left, _NEXT_REQUEST_SECONDS)) and not self._running:
                return

    def close(self) -> None:
        """End the lists, so that kubelet notices immediately that the plugin stops."""
        self._closing = True
        self._node.changes.notify()

    @contextmanager
    def _request(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._completed.notify()

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: _Context) -> pb.PreferredAllocationResponse:
        with self._request():
            return await self._prefer(request, context)

    async def _prefer(self, request: pb.PreferredAllocationRequest, context: _Context) -> pb.PreferredAllocationResponse:
        responses, started = [], time.monotonic()
        for container in request.container_requests:
            size, moment, turn = container.allocation_size, self._node.usage.moment, self._node.turns.begin(self.resource)
            try:
                await self._wait_for_pod(size, turn, started + POD_WAIT_SECONDS)
                if self._node.turns.must_fail(turn):
                    if turn.again:
                        await self._hold(size, turn, started + POD_WAIT_SECONDS)
                    await self._reject(context, AllocationRejected(f"{self.resource}: {_OVERTAKEN}", "overtaken"), grpc.StatusCode.ABORTED)
                ids, pending = self._node.allocator.prefer(
                    self.resource, container.available_deviceIDs, container.must_include_deviceIDs, size, moment
                )
                self._node.turns.tell(turn, frozenset(ids))
            except AllocationRejected as rejection:
                await self._reject(context, rejection)
            finally:
                if not turn.ids:
                    self._node.turns.end(turn)
            if pending is None:
                log.warning("%s: kubelet requests %d ids for a pod that is not known here; choosing a GPU for it", self.resource, size)
            log.debug("%s: %d ids preferred for %s in %.1f ms", self.resource, len(ids), pending, (time.monotonic() - started) * 1000)
            responses.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        self._counters.observe("GetPreferredAllocation", time.monotonic() - started)
        return pb.PreferredAllocationResponse(container_responses=responses)

    async def _wait_for_pod(self, size: int, turn: Turn, deadline: float) -> None:
        """Wait for a pod that this request may be for: kubelet may have received it a moment before the plugin.

        A container that starts without a record waits as well, only for other pods' requests: one that comes overtakes it. It waits
        no longer than for their order if no other one can begin: the processes of all may have been killed together, and kubelet does
        not bear either that it admits or resizes a pod without GPUs meanwhile. If others do not come, it succeeds in a calm moment.
        """
        changes, turns = self._node.changes, self._node.turns
        alone = time.monotonic() + ORDER_SECONDS
        quiet = max(turns.calm_after(time.monotonic()), alone)
        patient = turns.calm_after(turns.patience_ends(turn))
        while True:
            self._refresh()
            seen = (changes, changes.count), (turns.changes, turns.changes.count)
            known = self._recognize(size, turn)
            if turns.must_fail(turn):
                return
            if known and not turn.crowded:
                return
            ends = quiet if known else deadline
            if turn.again:
                ends = patient if turns.others_may_begin(len(self._node.pending.may_request())) else alone
            if time.monotonic() >= ends:
                return
            await any_after(*seen, timeout=ends - time.monotonic())

    def _recognize(self, size: int, turn: Turn) -> bool:
        """Whether a pod waits for this request. turn: is told whether it can be of a container whose record kubelet has lost."""
        match, lost = self._node.pending.match, self._node.usage.any_record_lost(self.resource)
        known = match(self.resource, size) is not None
        turn.again = not known and lost and match(self.resource, size, late=True) is not None
        return known

    async def _hold(self, size: int, turn: Turn, deadline: float) -> None:
        """Wait until the request is to fail. Until the deadline a pod may appear for which kubelet's loop waits: then that is now."""
        changes, turns = self._node.changes, self._node.turns
        turns.hold(turn)
        try:
            while not self._draining and (left := turns.seconds_held(turn)):
                seen = [(turns.changes, turns.changes.count)]
                if (early := deadline - time.monotonic()) > 0:
                    self._refresh()
                    seen.append((changes, changes.count))
                    if self._recognize(size, turn):
                        return
                await any_after(*seen, timeout=min(left, early) if early > 0 else left)
        finally:
            turns.release(turn)

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        with self._request():
            return await self._allocate(request, context)

    async def _allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        responses, started = [], time.monotonic()
        self._refresh()
        for container in request.container_requests:
            turn = self._node.turns.resume(self.resource, frozenset(container.devices_ids))
            try:
                if not turn.ids:
                    self._recognize(len(container.devices_ids), turn)
                if self._node.turns.must_fail(turn):
                    await self._reject(context, AllocationRejected(f"{self.resource}: {_OVERTAKEN}", "overtaken"), grpc.StatusCode.ABORTED)
                result = self._node.allocator.allocate(self.resource, container.devices_ids)
            except AllocationRejected as rejection:
                await self._reject(context, rejection)
            finally:
                self._node.turns.end(turn)
            self._report(result, len(container.devices_ids))
            responses.append(self._response(result))
        self._counters.observe("Allocate", time.monotonic() - started)
        return pb.AllocateResponse(container_responses=responses)

    def _response(self, result: AllocateResult) -> pb.ContainerAllocateResponse:
        access = result.access
        nodes = [name for name in access.device_nodes if (self._dev / name).exists()]
        return pb.ContainerAllocateResponse(
            envs=dict(result.environment),
            mounts=[pb.Mount(container_path=mount.inside, host_path=mount.outside, read_only=mount.read_only) for mount in access.mounts],
            devices=[pb.DeviceSpec(container_path=f"/dev/{name}", host_path=f"/dev/{name}", permissions="rw") for name in nodes],
            cdi_devices=[pb.CDIDevice(name=name) for name in access.cdi_devices],
        )

    def _report(self, result: AllocateResult, size: int) -> None:
        gpus = ", ".join(map(gpu_name, result.gpus))
        self._counters.allocations += 1
        if result.as_planned:
            log.info(
                "%s: %d ids of %s for pod %s, as the scheduler planned", self.resource, size, gpus, result.container, extra=_about(result)
            )
            return
        self._counters.unplanned += 1
        why = "which the scheduler did not place" if result.as_planned is None else "for which the scheduler planned another GPU"
        pod = f"pod {result.container}" if result.container else "a pod"
        log.warning("%s: %d ids of %s for %s, %s", self.resource, size, gpus, pod, why, extra=_about(result))

    async def _reject(self, context: _Context, rejection: AllocationRejected, code: Any = grpc.StatusCode.FAILED_PRECONDITION) -> NoReturn:
        """The extender holds a GPU back for the default code, see core/objects.py."""
        self._counters.rejections += 1
        log.warning("rejected: %s", rejection, extra=about(reason=rejection.reason))
        await context.abort(code, str(rejection))
        raise AssertionError("abort returned")

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: _Context) -> pb.PreStartContainerResponse:
        started = time.monotonic()
        self._refresh()
        try:
            recorded = self._node.starts.may_start(self.resource, request.devices_ids)
            try:
                await self._before_start(self.resource, request.devices_ids)
            except AllocationRejected:
                self._node.recorder.forget_start(self.resource, frozenset(request.devices_ids))
                raise
        except AllocationRejected as rejection:
            self._counters.start_rejections += 1
            log.warning("start rejected: %s", rejection, extra=about(reason=rejection.reason))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(rejection))
        if not recorded:
            self._counters.unrecorded_starts += 1
            size = len(request.devices_ids)
            log.warning("%s: a container starts with %d ids that kubelet's checkpoint does not list", self.resource, size)
        self._counters.observe("PreStartContainer", time.monotonic() - started)
        return pb.PreStartContainerResponse()


def _about(result: AllocateResult) -> dict[str, dict[str, str]]:
    pod = result.container.pod if result.container else ""
    return about(pod, gpu=",".join(str(gpu.index) for gpu in result.gpus))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One extended resource as kubelet sees it: the gRPC service DevicePlugin on a unix socket, over the shared state of the node.

The socket gets its name when the server listens, so that no client meets a half-open one, and a stopping server leaves alone the
socket of its successor.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.sync import Changes, any_after
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import DevicePluginServicer, add_DevicePluginServicer_to_server
from gpushare_runtime.device_plugin.metrics import Counters
from gpushare_runtime.device_plugin.node.allocator import Granted, NodeState, Refused, may_start

_UNLIMITED: Final = -1
# kubelet's questions carry every free id, which is more than gRPC's default of 4 MiB on large nodes.
_OPTIONS: Final = (("grpc.max_receive_message_length", _UNLIMITED), ("grpc.max_send_message_length", _UNLIMITED))
_numbers = itertools.count()


class PluginServer:
    """Serves one resource on one socket. path: where kubelet finds it."""

    def __init__(self, service: ResourceService, path: Path) -> None:
        self.service = service
        self.path = path
        self._server: Any = None
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen; whatever was at the path is replaced. OSError if the directory does not allow it."""
        # gRPC removes the name that it has bound when it stops; by then that name is long renamed, and `path` another's.
        bound = self.path.with_name(f".{self.path.name}.{os.getpid()}.{next(_numbers)}")
        _try_binding(bound)
        self._server = grpc.aio.server(options=_OPTIONS)
        add_DevicePluginServicer_to_server(self.service, self._server)  # type: ignore[no-untyped-call]
        try:
            self._server.add_insecure_port(f"unix:{bound}")
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error)) from None
        await self._server.start()
        try:
            bound.chmod(0o600)
            self._inode = bound.stat().st_ino
            bound.rename(self.path)
        except OSError:
            await self.stop(0)
            raise

    def listening(self) -> bool:
        """Whether the socket at the path is still this server's."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    async def stop(self, grace: float) -> None:
        """Take the socket away, then answer kubelet's questions under way, for at most `grace` seconds."""
        if self.listening():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._inode = None
        if grace:
            await self.service.quiet(grace)
        # Only now: kubelet asks nobody whose list has ended.
        self.service.close()
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None


def _try_binding(path: Path) -> None:
    """OSError if no socket can be made there. gRPC would not say why, and keeps some KiB of each server that could not listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind(os.fspath(path))
        except OSError as error:
            # A path that is too long has no errno.
            raise OSError(error.errno or errno.ENAMETOOLONG, error.strerror or str(error)) from None
    path.unlink()


log = logging.getLogger(__name__)

# kubelet admits no other pod of the node while it waits for an answer.
STEERING_SECONDS: Final = 0.5
# Between two questions about one pod: which ids, then for them, then the same for its next container. A hundred times what it takes.
_NEXT_SECONDS: Final = 0.1

_Context = Any  # grpc.aio.ServicerContext has no types


class ResourceService(DevicePluginServicer):
    """Belongs to one registration. refresh: brings the node's state up to kubelet's checkpoint on disk; streams: open lists."""

    def __init__(self, resource: str, node: NodeState, refresh: Callable[[], None], counters: Counters) -> None:
        self.resource = resource
        self.streams = 0
        self._closing = Changes()
        self._asking = 0
        self._answered = Changes()
        self._node = node
        self._refresh = refresh
        self._counters = counters

    def options(self) -> pb.DevicePluginOptions:
        """What kubelet is to ask: which ids we prefer, and whether a container may start.

        Without its record of a running pod kubelet fails that question by itself, and so every restart of a container; left
        out, it asks for new ids instead, and gets those of the same card.
        """
        return pb.DevicePluginOptions(
            pre_start_required=not self._node.holders.record_lost(self.resource), get_preferred_allocation_available=True
        )

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        told: Hashable = None
        try:
            while not self._closing.count:
                inventory, holders = self._node.inventory_changes, self._node.holders.changes
                seen = (self._closing, 0), (inventory, inventory.count), (holders, holders.count)
                key = self._node.devices_key(self.resource)
                if key != told:
                    yield self._list(self._node.devices(self.resource))
                    told = key
                await any_after(*seen)
        finally:
            self.streams -= 1

    def _list(self, devices: list[tuple[str, bool]]) -> pb.ListAndWatchResponse:
        log.info("%s: telling kubelet of %d ids, %d of them healthy", self.resource, len(devices), sum(good for _, good in devices))
        return pb.ListAndWatchResponse(
            devices=[pb.Device(ID=device_id, health="Healthy" if good else "Unhealthy") for device_id, good in devices]
        )

    async def quiet(self, timeout: float) -> None:
        """Until kubelet waits for no answer and has asked nothing more after the last one; at most `timeout` seconds.

        A pod whose ids were preferred would fail at the next question if that found nobody.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            seen = self._answered.count
            if not await self._answered.after(seen, min(left, _NEXT_SECONDS)) and not self._asking:
                return

    def close(self) -> None:
        """End the lists, so that kubelet sees at once that we go."""
        self._closing.notify()

    @contextmanager
    def _question(self) -> Iterator[None]:
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._answered.notify()

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: _Context) -> pb.PreferredAllocationResponse:
        with self._question():
            return await self._prefer(request, context)

    async def _prefer(self, request: pb.PreferredAllocationRequest, context: _Context) -> pb.PreferredAllocationResponse:
        answers, started = [], time.monotonic()
        for asked in request.container_requests:
            size = asked.allocation_size
            await self._wait_for_turn(size, started + STEERING_SECONDS)
            try:
                ids, turn = self._node.prefer(self.resource, asked.available_deviceIDs, asked.must_include_deviceIDs, size)
            except Refused as refusal:
                await self._refuse(context, refusal)
            if turn is None:
                log.warning("%s: kubelet asks for %d ids for a pod that is not known here; choosing a card for it", self.resource, size)
            log.debug("%s: %d ids preferred for %s in %.1f ms", self.resource, len(ids), turn, (time.monotonic() - started) * 1000)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        self._counters.took("GetPreferredAllocation", time.monotonic() - started)
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def _wait_for_turn(self, size: int, deadline: float) -> None:
        """Until a pod is known that this question can be about: kubelet may have seen it a moment before us."""
        pods = self._node.pods
        while True:
            self._refresh()
            seen = pods.changes.count
            if self._node.turn(self.resource, size) is not None:
                return
            if not await pods.changes.after(seen, max(0.0, deadline - time.monotonic())):
                return

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        with self._question():
            return await self._allocate(request, context)

    async def _allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        answers, started = [], time.monotonic()
        self._refresh()
        for asked in request.container_requests:
            try:
                granted = self._node.allocate(self.resource, asked.devices_ids)
            except Refused as refusal:
                await self._refuse(context, refusal)
            self._report(granted, len(asked.devices_ids))
            answers.append(pb.ContainerAllocateResponse(envs=dict(granted.environment)))
        self._counters.took("Allocate", time.monotonic() - started)
        return pb.AllocateResponse(container_responses=answers)

    def _report(self, granted: Granted, size: int) -> None:
        cards = ", ".join(f"card {card.index} ({card.uuid})" for card in granted.cards)
        self._counters.allocations += 1
        if granted.steered:
            log.info("%s: %d ids of %s for pod %s, as the scheduler chose", self.resource, size, cards, granted.turn)
            return
        self._counters.unsteered += 1
        why = "which the scheduler did not place" if granted.steered is None else "for which the scheduler chose otherwise"
        log.warning("%s: %d ids of %s for %s, %s", self.resource, size, cards, f"pod {granted.turn}" if granted.turn else "a pod", why)

    async def _refuse(self, context: _Context, refusal: Refused) -> NoReturn:
        self._counters.refusals += 1
        log.warning("refused: %s", refusal)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        raise AssertionError("abort returned")

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: _Context) -> pb.PreStartContainerResponse:
        started = time.monotonic()
        self._refresh()
        try:
            recorded = may_start(self._node, self.resource, request.devices_ids)
        except Refused as refusal:
            self._counters.start_refusals += 1
            log.warning("start refused: %s", refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        if not recorded:
            self._counters.unrecorded_starts += 1
            log.warning("%s: a container starts with %d ids that kubelet's record does not show", self.resource, len(request.devices_ids))
        self._counters.took("PreStartContainer", time.monotonic() - started)
        return pb.PreStartContainerResponse()


SOCKETS: Final = {protocol.RESOURCE_MEMORY: protocol.SOCKET_MEMORY, protocol.RESOURCE_CARDS: protocol.SOCKET_CARDS}
"""The resources and the names of their sockets in kubelet's plugin directory."""

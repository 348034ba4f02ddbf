# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Be registered with kubelet: as soon as its socket is there, again after it restarts, and whenever it has lost us.

kubelet removes every socket in its plugin directory when it starts, then makes its own.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Final, NoReturn

import grpc
import grpc.aio

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.inotify import DirectoryWatch
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import RegistrationStub
from gpushare_runtime.device_plugin.kubelet.server import SOCKETS, PluginServer, ResourceService
from gpushare_runtime.device_plugin.node.allocator import NodeState

log = logging.getLogger(__name__)

_API_VERSION: Final = "v1beta1"
_REGISTER_SECONDS: Final = 5.0
# A kubelet that has just made its socket answers within milliseconds; a stale socket of a dead one never does.
_FIRST_RETRY: Final = 0.02
_LAST_RETRY: Final = 1.0
# kubelet opens the list right after it has answered Register.
_STREAM_SECONDS: Final = 3.0
_DRAIN_SECONDS: Final = 1.0
# After its start kubelet admits anew what runs, and kills what asks for a resource that is away at that moment. From our first
# registration with it, which is no earlier.
_SETTLED_SECONDS: Final = 15.0
# kubelet drops a client by its resource's name, a moment after its list has ended: one registered before that would go instead.
_DROP_SECONDS: Final = 0.3


class Registration:
    """One resource's server and its registration. watch: of kubelet's plugin directory."""

    def __init__(
        self, resource: str, make_service: Callable[[], ResourceService], node: NodeState, watch: DirectoryWatch, status: Status
    ) -> None:
        self._resource = resource
        self._make_service = make_service
        self._node = node
        self._watch = watch
        self._status = status
        self._kubelet = watch.path / protocol.KUBELET_SOCKET
        self._socket = watch.path / SOCKETS[resource]
        self._server: PluginServer | None = None
        self._options = pb.DevicePluginOptions()
        self._ready_ns = 0
        self._settling: tuple[tuple[int, int] | None, float] = None, 0.0
        # systemd makes just this directory writable for us, as it was when we were started.
        self._writable = os.access(watch.path, os.W_OK)

    async def run(self) -> NoReturn:
        """Never returns; on cancellation it answers what kubelet is asking, for a moment, and removes its socket.

        FatalError if the directory has become another one, which only a new process may write.
        """
        try:
            await self._wait_for_cards()
            self._ready_ns = time.time_ns()
            while True:
                await self._wait_for_kubelet()
                socket = await self._register_until_done()
                why = await self._until_lost(socket)
                log.warning("%s: registering again: %s", self._resource, why)
                if socket is not None and self._kubelet_socket() == socket:
                    await self._stop_server(_DRAIN_SECONDS)
                    await self._kubelet_changes(socket, _DROP_SECONDS)
        finally:
            await self._stop_server(_DRAIN_SECONDS)

    async def _wait_for_cards(self) -> None:
        """Without a card there is nothing to offer: a plugin that registers none looks healthy and is not."""
        changes = self._node.inventory_changes
        while self._node.inventory is None or not self._node.inventory.cards:
            await changes.after(changes.count)

    async def _wait_for_kubelet(self) -> None:
        while self._kubelet_socket() is None:
            self._status.bad(self._resource, f"waiting for kubelet, whose socket {self._kubelet} is not there")
            await self._watch.changes.after(self._watch.changes.count)

    def _kubelet_socket(self) -> tuple[int, int] | None:
        """Which socket kubelet has, None if it has none."""
        try:
            stat = self._kubelet.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    async def _register_until_done(self) -> tuple[int, int] | None:
        """The socket of the kubelet that knows us now; None if it went away first."""
        socket, retry = self._kubelet_socket(), _FIRST_RETRY
        while socket is not None:
            problem = await self._register()
            if not problem:
                self._status.good(self._resource, "registered with kubelet")
                if socket[1] > self._ready_ns:
                    log.info("%s: registered %.0f ms after kubelet made its socket", self._resource, (time.time_ns() - socket[1]) / 1e6)
                return socket
            if retry == _LAST_RETRY:
                self._status.bad(self._resource, problem)
            changed = await self._kubelet_changes(socket, retry)
            retry = _FIRST_RETRY if changed else min(2 * retry, _LAST_RETRY)
            socket = self._kubelet_socket()
        return None

    async def _kubelet_changes(self, socket: tuple[int, int], timeout: float) -> bool:
        """Whether kubelet's socket becomes another one, or none, within so many seconds."""
        deadline = time.monotonic() + timeout
        while self._kubelet_socket() == socket:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self._watch.changes.after(self._watch.changes.count, left)
        return True

    async def _register(self) -> str:
        """Serve on a fresh socket and register it; what went wrong, "" if nothing."""
        await self._stop_server(0)
        service = self._make_service()
        self._options = service.options()
        server = PluginServer(service, self._socket)
        try:
            await server.start()
        except OSError as error:
            if error.errno == errno.EROFS and self._writable:
                raise FatalError(
                    f"{self._socket.parent} was removed and made again, and is read-only for this process: ending, to be started again "
                    "with the new one",
                    restart=True,
                ) from None
            return f"cannot serve on {self._socket} ({error.strerror}): check that this process may write in {self._socket.parent}"
        self._server = server
        request = pb.RegisterRequest(version=_API_VERSION, endpoint=self._socket.name, resource_name=self._resource, options=self._options)
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
                await RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)  # type: ignore[no-untyped-call]
        except grpc.aio.AioRpcError as error:
            return f"kubelet does not register it ({error.code().name}: {error.details()}): trying again; see kubelet's log if this stays"
        return ""

    async def _until_lost(self, socket: tuple[int, int] | None) -> str:
        """Wait until kubelet no longer knows us; why."""
        silent_since = time.monotonic()
        # By the socket's own time it would depend on the host's clock, which is set while a host boots.
        if self._settling[0] != socket:
            self._settling = socket, silent_since
        while self._server is not None:
            if self._kubelet_socket() != socket:
                return "kubelet restarted or stopped"
            if not self._server.listening():
                return f"{self._socket} was removed"
            settled = socket is not None and time.monotonic() - self._settling[1] > _SETTLED_SECONDS
            if settled and self._asks_in_vain(self._server.service):
                return "kubelet has lost its record, and is not to ask whether a container may start"
            if self._server.service.streams:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > _STREAM_SECONDS:
                return "kubelet does not read the list of ids"
            await self._watch.changes.after(self._watch.changes.count)
        return "it has no server"

    def _asks_in_vain(self, service: ResourceService) -> bool:
        """Whether kubelet still asks before each start, which without its record it cannot: containers would not start again.

        Asked less than needed does no harm: that is not changed back until kubelet restarts, since no pod is admitted meanwhile.
        """
        return self._options.pre_start_required and not service.options().pre_start_required

    async def _stop_server(self, grace: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Registers a resource with kubelet: as soon as its socket exists, after it restarts, and whenever it lost the registration.

At its start kubelet removes every socket in its plugin directory, then creates its own.
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
from gpushare_runtime.device_plugin.kubelet.podresources import KubeletIds
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import RegistrationStub
from gpushare_runtime.device_plugin.kubelet.server import SOCKETS, PluginServer, ResourceService, new_socket, remove_dead_sockets
from gpushare_runtime.device_plugin.node.state import NodeState

log = logging.getLogger(__name__)

_API_VERSION: Final = "v1beta1"
# kubelet connects to our socket before it answers, and allows 10 s for that.
REGISTER_SECONDS: Final = 15.0
# A kubelet that has just created its socket answers within milliseconds. The stale socket of a stopped one never does.
_FIRST_RETRY: Final = 0.02
_LAST_RETRY: Final = 1.0
# kubelet opens the list right after its response to Register.
_STREAM_SECONDS: Final = 3.0
DRAIN_SECONDS: Final = 1.0
# After its start kubelet admits running pods again, and kills pods whose resource is not registered at that moment. It counts from the
# first registration, which is later than the start.
SETTLED_SECONDS: Final = 15.0
# A moment after a list ends kubelet up to 1.36 drops the client by the resource's name: it would drop a new registration instead.
_DROP_SECONDS: Final = 0.3


class Registration:
    """One resource's server and its registration. watch: of kubelet's plugin directory. ids: what kubelet has of both resources."""

    def __init__(
        self,
        resource: str,
        make_service: Callable[[], ResourceService],
        node: NodeState,
        watch: DirectoryWatch,
        status: Status,
        ids: KubeletIds,
    ) -> None:
        self._resource = resource
        self._make_service = make_service
        self._node = node
        self._watch = watch
        self._status = status
        self._ids = ids
        self._kubelet = watch.path / protocol.KUBELET_SOCKET
        self._server: PluginServer | None = None
        self._options = pb.DevicePluginOptions()
        self._ready_ns = 0
        self._settling: tuple[tuple[int, int] | None, float] = None, 0.0
        # systemd makes just this directory writable for us, as it was when we were started.
        self._writable = os.access(watch.path, os.W_OK)

    async def run(self) -> NoReturn:
        """Never returns. On cancellation it removes its socket, and briefly completes kubelet's requests.

        FatalError if the directory was replaced, which only a new process may write.
        """
        try:
            await self._wait_for_gpus()
            await self._wait_for_specs()
            self._ready_ns = time.time_ns()
            while True:
                await self._wait_for_kubelet()
                socket = await self._register_until_done()
                why = await self._until_lost(socket)
                log.warning("%s: registering again: %s", self._resource, why)
                if socket is not None and self._kubelet_socket() == socket:
                    await self._stop_server(DRAIN_SECONDS)
                    await self._kubelet_changes(socket, _DROP_SECONDS)
        finally:
            await self._stop_server(DRAIN_SECONDS)

    async def _wait_for_gpus(self) -> None:
        """A plugin that registers without a GPU seems healthy although it is not."""
        changes = self._node.changes
        while self._node.devices.inventory is None or not self._node.devices.inventory.gpus:
            await changes.after(changes.count)

    async def _wait_for_specs(self) -> None:
        """With CDI no container could start on a GPU that no spec names.

        Where pods have GPUs already, as after a reboot, kubelet must get these ids before it admits the pods again; each start waits
        for the spec then.
        """
        changes = self._node.changes
        while self._node.devices.unusable_specs() and not self._node.usage.snapshot():
            self._status.waits(self._resource)
            await changes.after(changes.count)

    async def _wait_for_kubelet(self) -> None:
        while self._kubelet_socket() is None:
            self._status.degraded(self._resource, f"waiting for kubelet, whose socket {self._kubelet} does not exist")
            self._may_start_kubelet()
            await self._watch.changes.after(self._watch.changes.count)

    def _may_start_kubelet(self) -> None:
        """systemd starts kubelet after this process. kubelet fails a pod if it admits it before its ids are registered and healthy."""
        if not self._node.devices.awaiting_mps():
            self._status.waits(self._resource)

    def _kubelet_socket(self) -> tuple[int, int] | None:
        """The identity of kubelet's socket; None if there is none."""
        try:
            stat = self._kubelet.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    async def _register_until_done(self) -> tuple[int, int] | None:
        """The socket of the kubelet that accepted the registration; None if the socket disappeared first."""
        socket, retry = self._kubelet_socket(), _FIRST_RETRY
        while socket is not None:
            problem = await self._register()
            if not problem:
                self._status.ok(self._resource, protocol.REGISTERED)
                if socket[1] > self._ready_ns:
                    log.info("%s: registered %.0f ms after kubelet created its socket", self._resource, (time.time_ns() - socket[1]) / 1e6)
                return socket
            # Of a kubelet that has ended the socket is left.
            self._may_start_kubelet()
            if retry == _LAST_RETRY:
                self._status.degraded(self._resource, problem)
            changed = await self._kubelet_changes(socket, retry)
            retry = _FIRST_RETRY if changed else min(2 * retry, _LAST_RETRY)
            socket = self._kubelet_socket()
        return None

    async def _kubelet_changes(self, socket: tuple[int, int], timeout: float) -> bool:
        """Whether kubelet's socket changes or disappears within so many seconds."""
        deadline = time.monotonic() + timeout
        while self._kubelet_socket() == socket:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self._watch.changes.after(self._watch.changes.count, left)
        return True

    async def _register(self) -> str:
        """Serve on a new socket and register it. Returns the problem, "" if there is none.

        kubelet up to 1.36 asks the plugin that registered last, newer ones ask it as long as its list is open.
        """
        await self._stop_server(0)
        service = self._make_service()
        self._options = service.options()
        if not self._options.pre_start_required:
            self._node.set_asked(self._resource, False)
        folder, path = self._watch.path, new_socket(self._watch.path, self._resource)
        server = PluginServer(service, path)
        try:
            await server.start()
        except OSError as error:
            if error.errno == errno.EROFS and self._writable:
                raise FatalError(
                    f"{folder} was removed and created again, and is read-only for this process: ending, so that systemd "
                    "starts it with the new one",
                    restart=True,
                ) from None
            return f"cannot serve in {folder} ({error.strerror}): check that this process may write there"
        self._server = server
        request = pb.RegisterRequest(version=_API_VERSION, endpoint=path.name, resource_name=self._resource, options=self._options)
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
                await RegistrationStub(channel).Register(request, timeout=REGISTER_SECONDS)  # type: ignore[no-untyped-call]
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return f"waiting for kubelet, which does not answer at {self._kubelet} ({error.details()})"
            # The next attempt has another name.
            said = f"{error.code().name}: {error.details()}".replace(path.name, f"{SOCKETS[self._resource]}*{protocol.SOCKET_END}")
            return f"kubelet rejects the registration ({said}): trying again; if this stays: systemctl restart kubelet, and read its log"
        if self._options.pre_start_required:
            self._node.set_asked(self._resource, True)
        self._ids.served[self._resource] = service
        remove_dead_sockets(folder)
        return ""

    async def _until_lost(self, socket: tuple[int, int] | None) -> str:
        """Wait until kubelet has lost the registration. Returns the reason."""
        silent_since = time.monotonic()
        # Not by the socket's time: it depends on the host's clock, which is set during boot.
        if self._settling[0] != socket:
            self._settling = socket, silent_since
        while self._server is not None:
            if self._kubelet_socket() != socket:
                return "kubelet restarted or stopped"
            if not self._server.listening():
                return f"{self._server.path} was removed"
            if self._ids.are_lost(self._server.service):
                return "kubelet has other ids than were reported: another device plugin has registered the resource; if it runs, stop it"
            settled = socket is not None and time.monotonic() - self._settling[1] > SETTLED_SECONDS
            if settled and self._pre_start_fails(self._server.service):
                return "kubelet has lost its record, and must not call PreStartContainer any more"
            if self._server.service.streams:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > _STREAM_SECONDS:
                return "kubelet does not read the list of ids"
            await self._watch.changes.after(self._watch.changes.count)
        return "it has no server"

    def _pre_start_fails(self, service: ResourceService) -> bool:
        """Whether kubelet still calls PreStartContainer although it lost its record: then containers cannot restart.

        Without the call the plugin sets a pod's memory limit as soon as it sees its control group. It requires the call again only after
        kubelet restarts, because registering stops admission.
        """
        return self._options.pre_start_required and not service.options().pre_start_required

    async def _stop_server(self, grace: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

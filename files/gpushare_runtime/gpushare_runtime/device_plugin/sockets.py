# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A gRPC server on a unix socket that is there complete or not at all, and goes without taking its successor's with it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
from pathlib import Path
from typing import Any, Final

import grpc.aio

from gpushare_runtime.device_plugin.deviceplugin_pb2_grpc import add_DevicePluginServicer_to_server
from gpushare_runtime.device_plugin.service import ResourceService

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

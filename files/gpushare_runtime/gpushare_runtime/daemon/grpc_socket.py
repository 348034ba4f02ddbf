# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A gRPC server on a Unix socket of its own in a folder of kubelet's, where others remove sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from gpushare_runtime.daemon.unix_sockets import try_binding


class SocketServer:
    """path: a new name, by which kubelet finds it. add: puts the services on a server. options: of gRPC."""

    def __init__(self, path: Path, add: Callable[[Any], None], options: Sequence[tuple[str, int]] = ()) -> None:
        self.path = path
        self._add = add
        self._options = options
        self._server: Any = None
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen. OSError if the folder does not allow it."""
        try_binding(self.path)
        self._server = grpc.aio.server(options=self._options)
        self._add(self._server)
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error)) from None
        # It is there from now on, and the start gives way to others.
        try:
            self._inode = self.path.stat().st_ino
            self.path.chmod(0o600)
        except OSError:
            await self.stop(0)
            raise
        # A start that is cancelled in the middle leaves gRPC a server that cannot be stopped any more (InvalidStateError).
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            await self.stop(0)
            raise

    def listening(self) -> bool:
        """Whether the socket at the path is still this server's."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the socket, so that no new client finds the server."""
        if self.listening():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._inode = None

    async def stop(self, grace: float) -> None:
        """Remove the socket, then complete the running requests, for at most `grace` seconds."""
        self.remove()
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A gRPC server on a socket of its own, whose life is ended at any point of its start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.daemon.grpc_socket import SocketServer


def _nothing(server: Any) -> None:
    del server


def _in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("steps", range(6))
async def test_a_start_that_is_cancelled_at_any_point_leaves_no_socket_and_can_be_stopped(steps: int, tmp_path: Path) -> None:
    server = SocketServer(tmp_path / "one.sock", _nothing)
    starting = asyncio.ensure_future(server.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    # Awaited directly: with one more turn of the loop between, gRPC would have got over it.
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    await server.stop(0)
    assert _in(tmp_path) == []


async def test_a_socket_that_others_can_see_is_for_root_alone(tmp_path: Path) -> None:
    server = SocketServer(tmp_path / "one.sock", _nothing)
    starting = asyncio.ensure_future(server.start())
    for _ in range(100):
        if server.path.exists():
            break
        await asyncio.sleep(0)
    assert server.path.stat().st_mode & 0o777 == 0o600
    await starting
    await server.stop(0)


async def test_a_socket_whose_mode_cannot_be_set_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", read_only)
    with pytest.raises(OSError, match="Read-only"):
        await SocketServer(tmp_path / "one.sock", _nothing).start()
    assert _in(tmp_path) == []

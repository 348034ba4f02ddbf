# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What systemd is told never ends or stops a daemon, whatever has become of systemd's socket."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_runtime.daemon import runner


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """systemd's end."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"{folder}/notify")
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield sock


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not runner.notify("READY=1")


def test_a_socket_that_is_gone_or_dead(listener: socket.socket) -> None:
    assert runner.notify("READY=1")
    listener.close()
    assert not runner.notify("READY=1")
    Path(os.environ["NOTIFY_SOCKET"]).unlink()
    assert not runner.notify("READY=1")


def test_a_full_queue_holds_up_nobody(listener: socket.socket) -> None:
    started = time.monotonic()
    while runner.notify("STATUS=x"):
        assert time.monotonic() - started < 5


def test_readiness_is_said_with_each_beat(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")

    async def run() -> list[bytes]:
        ready = asyncio.Event()
        task = asyncio.create_task(runner.keep_alive(ready.is_set))
        said = [await asyncio.to_thread(listener.recv, 100)]
        ready.set()
        while said[-1] == said[0]:
            said.append(await asyncio.to_thread(listener.recv, 100))
        task.cancel()
        return said

    said = asyncio.run(run())
    assert (said[0], said[-1]) == (b"WATCHDOG=1", b"WATCHDOG=1\nREADY=1")

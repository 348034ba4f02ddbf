# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Addresses that systemd holds for a daemon: real sockets, in processes that get them as systemd passes them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_runtime.daemon import listener
from gpushare_runtime.daemon.listener import Listener

METRICS = """
import asyncio, sys
from gpushare_runtime.daemon.metrics_server import MetricsServer
asyncio.run(MetricsServer(("127.0.0.1", int(sys.argv[1])), None, lambda: ["x 1\\n"]).run())
"""
FAILING = """
import sys
from gpushare_runtime.daemon.runner import FatalError, run
async def serve(signals):
    raise FatalError("wrong settings")
sys.exit(run(serve, "info"))
"""
# Its process id is known to nobody before it runs.
AS_SYSTEMD = """
import os, sys
if sys.argv[1] != "3":
    os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
"""


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """As a .socket unit of root's."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


@contextlib.contextmanager
def process(held: socket.socket, program: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "daemon.py").write_text(program)
    daemon = [sys.executable, str(folder / "daemon.py"), str(port_of(held))]
    command = [sys.executable, "-c", AS_SYSTEMD, str(held.fileno()), *daemon]
    with subprocess.Popen(command, pass_fds=[held.fileno()], stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


def port_of(one: socket.socket) -> int:
    return int(one.getsockname()[1])


def take(port: int) -> int | None:
    """What another user's attempt to get the address ends with, None if he gets it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError as error:
            return error.errno
    return None


def ask(port: int) -> socket.socket:
    """A scrape whose answer is still to be read."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection


def answer(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def test_nobody_gets_the_address_of_a_daemon_that_restarts_and_callers_wait(held: socket.socket, tmp_path: Path) -> None:
    port = port_of(held)
    for _ in range(2):
        with process(held, METRICS, tmp_path) as daemon:
            assert answer(ask(port)).endswith(b"x 1\n")
            daemon.kill()
            daemon.wait(60)
            assert take(port) == errno.EADDRINUSE
            waiting = ask(port)
    with process(held, METRICS, tmp_path):
        assert answer(waiting).endswith(b"x 1\n")
        assert take(port) == errno.EADDRINUSE
    held.close()
    assert take(port) is None


def test_whoever_waits_for_a_daemon_that_fails_is_told(held: socket.socket, tmp_path: Path) -> None:
    waiting = [ask(port_of(held)) for _ in range(3)]
    with process(held, FAILING, tmp_path) as daemon:
        assert daemon.wait(60) == 2
        for one in waiting:
            with contextlib.suppress(ConnectionResetError):
                assert answer(one) == b""


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that this process got from systemd."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        monkeypatch.setattr(listener, "_FIRST_PASSED", one.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        yield one


def test_a_daemon_may_close_what_it_got_and_take_it_again(passed: socket.socket) -> None:
    for _ in range(2):
        with Listener("127.0.0.1", port_of(passed), most=1, seconds=1) as one:
            assert (one.getsockname(), one.getblocking(), os.get_inheritable(one.fileno())) == (passed.getsockname(), False, False)
            with socket.create_connection(passed.getsockname()):
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    with contextlib.suppress(BlockingIOError):
                        socket.socket.accept(one)[0].close()
                        break
                else:
                    raise AssertionError("nothing to accept")


@pytest.mark.parametrize(("name", "value"), [("LISTEN_PID", "1"), *(("LISTEN_FDS", count) for count in ("0", "-1", "x", ""))])
def test_what_is_for_another_process_is_not_taken(passed: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(OSError, match="in use"):
        Listener("127.0.0.1", port_of(passed), most=1, seconds=1)


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_a_socket_of_another_address_is_not_taken(passed: socket.socket, host: str) -> None:
    with Listener(host, port_of(passed), most=1, seconds=1) as one:
        assert one.getsockname()[0] == host


def test_what_is_no_listening_socket_of_tcp_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        monkeypatch.setattr(listener, "_FIRST_PASSED", udp.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "9999")
        with Listener("127.0.0.1", port_of(udp), most=1, seconds=1) as one:
            assert one.type == socket.SOCK_STREAM
        listener.hang_up_on_waiting()

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What callers cost that nobody knows yet is bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpushare_runtime.daemon import listener as listener_module
from gpushare_runtime.daemon.listener import Listener, RateLimit
from unit.fakes.runtime.kube.fake_api import until

pytestmark = pytest.mark.usefixtures("each_loop")

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(*, most: int, seconds: float) -> AsyncIterator[int]:
    """A server that welcomes whoever says "hello" and says it back; its port."""
    listener = Listener("127.0.0.1", 0, most=most, seconds=seconds)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"hello\n":
                listener.verified(writer.transport)
            writer.write(line)
        writer.close()

    listener.start(lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer))
    yield listener.getsockname()[1]
    listener.stop()


async def connect(port: int, say: str = "", host: str = "127.0.0.1", by: str | None = None) -> Connection:
    reader, writer = await asyncio.open_connection(host, port, local_addr=(by, 0) if by else None)
    if say:
        writer.write(f"{say}\n".encode())
        assert await asyncio.wait_for(reader.readline(), 5) == f"{say}\n".encode()
    return reader, writer


async def is_open(connection: Connection) -> bool:
    reader, writer = connection
    if reader.at_eof():
        return False
    writer.write(b"still\n")
    try:
        return await asyncio.wait_for(reader.readline(), 5) == b"still\n"
    except OSError:
        return False


async def test_where_one_more_comes_the_oldest_stranger_goes() -> None:
    async with listening(most=3, seconds=60) as port:
        known = [await connect(port, "hello") for _ in range(5)]
        strangers = [await connect(port, "x") for _ in range(5)]
        assert [await is_open(stranger) for stranger in strangers] == [False, False, True, True, True]
        # Room again, by one that went by itself.
        reader, writer = strangers[-1]
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        # The next one's descriptor has another number.
        with socket.socket():
            strangers.append(await connect(port, "x"))
        assert [await is_open(stranger) for stranger in strangers[2:4]] == [True, True]
        assert all([await is_open(connection) for connection in known])
        for _, writer in known + strangers:
            writer.close()


def calling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of 127.0.0.0/8 stand for those of other machines: each is a caller of its own."""
    monkeypatch.setattr(listener_module, "_caller", str)


async def test_who_connects_without_end_closes_its_own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pod that keeps kubelet's probes away would."""
    calling(monkeypatch)
    async with listening(most=4, seconds=60) as port:
        probe = await connect(port, "x", by="127.0.0.2")
        flood = [await connect(port, "x", by="127.0.0.3") for _ in range(40)]
        assert await is_open(probe)
        assert [await is_open(one) for one in flood] == [False] * 37 + [True] * 3
        # A second caller of that kind takes the places of the first.
        other = [await connect(port, "x", by="127.0.0.4") for _ in range(40)]
        assert await is_open(probe)
        for _, writer in [probe, *flood, *other]:
            writer.close()


async def test_the_addresses_of_one_host_are_one_caller() -> None:
    """Otherwise a user there, whose connections each have another one, would keep those that come from 127.0.0.1."""
    async with listening(most=4, seconds=60) as port:
        strangers = [await connect(port, "x", by=f"127.0.0.{number}") for number in range(2, 6)]
        scheduler = [await connect(port, "x") for _ in range(3)]
        assert all([await is_open(one) for one in scheduler])
        for _, writer in strangers + scheduler:
            writer.close()


async def test_what_has_come_is_read_while_many_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections than are kept wait in the kernel: those that have said hello are read before others replace them."""
    calling(monkeypatch)
    loop = asyncio.get_running_loop()
    async with listening(most=64, seconds=60) as port:
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        for caller in callers:
            caller.sendall(b"hello\n")
            caller.setblocking(False)
        for caller in callers:
            assert await asyncio.wait_for(loop.sock_recv(caller, 9), 10) == b"hello\n"
            caller.close()


async def test_a_stranger_has_to_go_in_time() -> None:
    async with listening(most=3, seconds=0.3) as port:
        known = await connect(port, "hello")
        for _ in range(2):
            stranger = await connect(port, "x")
            assert await is_open(stranger)
            assert await asyncio.wait_for(stranger[0].read(), 5) == b""
            stranger[1].close()
        assert await is_open(known)
        known[1].close()


async def test_without_descriptors_connections_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listener_module, "_EXHAUSTED_SECONDS", 0.05)
    async with listening(most=3, seconds=60) as port:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reader, writer = await connect(port, "hello")
        with socket.socket() as caller:
            resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    os.open("/dev/null", os.O_RDONLY)
                # The kernel connects it, before it is accepted.
                caller.connect(("127.0.0.1", port))
                caller.setblocking(False)
                await until(lambda: "Too many open files" in caplog.text)
                assert await is_open((reader, writer))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await asyncio.get_running_loop().sock_sendall(caller, b"hello\n")
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 9), 10) == b"hello\n"
        writer.close()


def test_an_address_that_cannot_be_had() -> None:
    with Listener("::1", 0, most=1, seconds=1) as taken, pytest.raises(OSError, match="Address already in use"):
        Listener("::1", taken.getsockname()[1], most=1, seconds=1)


def test_the_log_is_told_how_much_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = logging.getLogger("test_listener")
    seldom = RateLimit(2, 60.0, lambda: now)
    log.addFilter(seldom)
    try:
        for n in range(10):
            log.warning("rejected: %d", n)
        now = 61.0
        log.warning("rejected: %s", "100 %d")
        now = 122.0
        log.warning("rejected: %d", 11)
    finally:
        log.removeFilter(seldom)
    assert [record.getMessage() for record in caplog.records] == [
        "rejected: 0",
        "rejected: 1",
        "rejected: 100 %d (and 8 more like this before)",
        "rejected: 11",
    ]

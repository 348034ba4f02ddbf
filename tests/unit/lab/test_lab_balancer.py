# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The balancer before several API servers: where a connection goes, and what becomes of it when its server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial

import pytest

from gpushare_lab import balancer
from gpushare_lab.balancer import Server, candidates


def test_a_server_is_ready_from_its_first_good_answer_on() -> None:
    server = Server("10.0.0.1")
    assert server.judge(403) == "not ready (HTTP 403)"
    assert server.judge(200) == "ready"
    assert server.judge(200) == ""


def test_one_late_answer_is_forgiven_and_two_are_not() -> None:
    server = Server("10.0.0.1", answers=True, ready=True)
    assert server.judge(None) == ""
    assert server.judge(200) == ""
    assert (server.judge(None), server.judge(None)) == ("", "gone")
    assert not server.answers


def test_a_server_that_never_answered_is_not_gone_twice() -> None:
    server = Server("10.0.0.1")
    assert [server.judge(None) for _ in range(3)] == ["", "", ""]


def test_ready_servers_come_first_then_those_with_few_connections_and_silent_ones_last() -> None:
    busy, idle, starting, gone = (Server(name) for name in ("busy", "idle", "starting", "gone"))
    for server in (busy, idle, starting):
        server.judge(200)
    starting.judge(500)
    busy.connections = {object()}  # type: ignore[arg-type]
    assert [server.address for server in candidates([gone, busy, idle, starting])] == ["idle", "busy", "starting", "gone"]


def test_connections_go_to_a_server_that_can_be_reached_and_end_when_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "CHECK_EVERY_S", 0.01)
    asyncio.run(asyncio.wait_for(passed_on_and_ended(), 20))


async def passed_on_and_ended() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data.upper())
        writer.close()

    backend = await asyncio.start_server(echo, "127.0.0.2", 0)
    port = backend.sockets[0].getsockname()[1]
    # Nobody listens at the first address on this port.
    nobody, somebody = Server("127.0.0.3", answers=True, ready=True), Server("127.0.0.2", answers=True)
    front = await asyncio.start_server(partial(balancer.serve, servers=[nobody, somebody], port=port), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
    writer.write(b"hello")
    assert await reader.read(100) == b"HELLO"
    assert (len(nobody.connections), len(somebody.connections)) == (0, 1)

    # The backend speaks no TLS, so a check of it has no answer.
    watching = asyncio.create_task(balancer.watch(somebody, port, [nobody, somebody]))
    with contextlib.suppress(ConnectionError):
        assert await reader.read(100) == b""
    assert not somebody.answers
    watching.cancel()

    # Once nobody answers, connections are left alone.
    nobody.answers = False
    reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
    watching = asyncio.create_task(balancer.watch(somebody, port, [nobody, somebody]))
    for word in (b"still", b"here"):
        writer.write(word)
        assert await reader.read(100) == word.upper()
    watching.cancel()
    front.close()
    backend.close()


def test_a_connection_that_nobody_can_take_is_ended_at_once() -> None:
    async def rejected() -> bytes:
        front = await asyncio.start_server(partial(balancer.serve, servers=[Server("127.0.0.2")], port=1), "127.0.0.1", 0)
        reader, _writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        try:
            return await reader.read(100)
        except ConnectionError:
            return b""
        finally:
            front.close()

    assert asyncio.run(asyncio.wait_for(rejected(), 20)) == b""


def test_nothing_that_listens_is_no_answer() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert asyncio.run(balancer.status_of(Server("127.0.0.1"), port)) is None

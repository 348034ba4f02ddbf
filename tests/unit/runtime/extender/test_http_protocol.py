# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""HTTP/1.1 on raw sockets: what callers send in pieces, at once, in part, too much of, or as something else."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import logging
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.daemon.listener import Listener
from gpushare_runtime.extender import http_protocol
from gpushare_runtime.extender.http_protocol import HttpRequest, HttpResponse, HttpServer
from unit.fakes.runtime.extender.tls_files import make
from unit.fakes.runtime.kube.fake_api import until

pytestmark = pytest.mark.usefixtures("on_uvloop")

MOST = 1024
HELLO = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


class Echo:
    """Says what it was asked: `/echo` at once, `/later` once it is let go, `/never` fails, and `/after` once it has answered."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.went_on = False
        self.go = asyncio.Event()

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        self.asked.append(request)
        if request.path == "/never":
            raise ValueError(request.path)
        if request.path.startswith("/later"):
            return self._later(request)
        after = self._after if request.path == "/after" else None
        return HttpResponse(request.path.encode() + b":" + (b"nothing" if request.body is None else request.body), after=after)

    def _after(self) -> None:
        self.went_on = True
        raise ValueError("after")

    async def _later(self, request: HttpRequest) -> HttpResponse:
        await self.go.wait()
        if request.path == "/later/never":
            raise ValueError(request.path)
        return HttpResponse(request.path.encode())


@asynccontextmanager
async def serving(
    echo: Echo, served: ssl.SSLContext | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpServer, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server, and a connection to it, with TLS where there are contexts for both sides."""
    server = HttpServer(echo, Listener("127.0.0.1", 0, most=8, seconds=30.0), served, MOST)
    server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    try:
        yield server, reader, writer
    finally:
        echo.go.set()
        writer.close()
        await server.close()


async def answer(reader: asyncio.StreamReader, head_only: bool = False) -> tuple[int, bytes, bool]:
    """Status, body, and whether the server says that it closes."""
    async with asyncio.timeout(10):
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}
        length = int(named["content-length"])
        body = b"" if head_only else await reader.readexactly(length)
    return int(status.split()[1]), body, named.get("connection") == "close"


async def rest(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 10)


def talk(sent: bytes, *expected: tuple[int, bytes, bool]) -> Echo:
    """One connection on which this is sent, and the answers that come; after one that closes comes nothing."""

    async def run() -> Echo:
        echo = Echo()
        async with serving(echo) as (_, reader, writer):
            writer.write(sent)
            assert [await answer(reader) for _ in expected] == list(expected)
            if expected and expected[-1][2]:
                assert await rest(reader) == b""
        return echo

    return asyncio.run(run())


def test_what_follows_an_answer_harms_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    after = HELLO.replace(b"/echo", b"/after")
    echo = talk(after + HELLO, (200, b"/after:hello", False), (200, b"/echo:hello", False))
    assert echo.went_on
    assert caplog.messages == ["what was to follow an answer failed"]


@settings(max_examples=25)
@given(st.lists(st.integers(1, len(HELLO) * 3), max_size=8))
def test_requests_come_in_any_pieces(cuts: list[int]) -> None:
    sent = HELLO * 3

    async def run() -> None:
        async with serving(Echo()) as (_, reader, writer):
            for begin, end in itertools.pairwise([0, *sorted(cuts), len(sent)]):
                writer.write(sent[begin:end])
                await asyncio.sleep(0)
            assert [await answer(reader) for _ in range(3)] == [(200, b"/echo:hello", False)] * 3

    asyncio.run(run())


async def test_answers_come_in_the_order_of_the_requests_and_each_waits_for_the_one_before() -> None:
    echo = Echo()
    async with serving(echo) as (_, reader, writer):
        writer.write(b"POST /later HTTP/1.1\r\nContent-Length: 0\r\n\r\n" + HELLO * 500)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        assert len(echo.asked) == 1
        echo.go.set()
        assert [await answer(reader) for _ in range(501)] == [(200, b"/later", False), *[(200, b"/echo:hello", False)] * 500]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /echo?a=b HTTP/1.1\r\n\r\n", (200, b"/echo:", False)),
        (b"GET /echo HTTP/1.0\r\n\r\n", (200, b"/echo:", True)),
        (b"GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n", (200, b"/echo:", True)),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", (200, b"/echo:abcde", False)),
        # What curl --http2 sends: the request is answered, and nothing else is spoken.
        (b"GET /echo HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI", (200, b"/echo:", True)),
        (b"GET /never HTTP/1.1\r\n\r\n", (500, b"this failed, see the log\n", False)),
        (b"POST /later/never HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", (500, b"this failed, see the log\n", True)),
    ],
)
def test_one_request(sent: bytes, expected: tuple[int, bytes, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.Event, "wait", lambda *_: asyncio.sleep(0))
    talk(sent, expected)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"nothing\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * 1_000_000, 431),
        (b"GET /echo HTTP/1.1\r\n" + b"X: y\r\n" * 200_000, 431),
    ],
)
def test_what_is_no_request_ends_the_connection_after_the_answers_before_it(
    sent: bytes, status: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol._malformed, "filters", [])
    monkeypatch.setattr(http_protocol, "_LINGER_SECONDS", 0.1)

    async def run() -> None:
        echo = Echo()
        async with serving(echo) as (_, reader, writer):
            writer.write(HELLO + sent)
            assert await answer(reader) == (200, b"/echo:hello", False)
            found, body, closes = await answer(reader)
            assert (found, closes, len(body) <= 81) == (status, True, True)
            assert await rest(reader) == b""
            assert len(echo.asked) == 1

    asyncio.run(run())
    assert ["something else than HTTP/1.1" in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        True
    ]


async def test_a_body_that_is_too_large_is_not_kept_and_its_sender_reads_the_answer() -> None:
    """By a client that sends everything before it reads."""
    echo = Echo()
    async with serving(echo) as (server, _, _writer):

        def ask() -> tuple[int, bytes]:
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            client.request("POST", "/echo", b"x" * 5_000_000)
            response = client.getresponse()
            return response.status, response.read()

        assert await asyncio.to_thread(ask) == (200, b"/echo:nothing")
        assert [one.body for one in echo.asked] == [None]


async def test_who_sends_without_end_after_the_last_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_LINGER_SECONDS", 0.3)
    async with serving(Echo()) as (_, reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * (MOST + 1))
        assert await answer(reader) == (200, b"/echo:nothing", True)
        async with asyncio.timeout(10):
            # uvloop raises RuntimeError where the client has noticed it already.
            with contextlib.suppress(ConnectionError, RuntimeError):
                await send(writer, b"x" * 1000, 1_000_000_000, 0.02)


HEAD_WITHOUT_END = b"GET /echo HTTP/1.1\r\nX: " + b"a" * 70_000
CHUNKED = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: "


@pytest.mark.parametrize("begin", [HEAD_WITHOUT_END, b"GET /" + b"a" * 70_000, b"GET / HTTP/1.1\r\nx" + b"a" * 70_000, CHUNKED])
async def test_of_a_header_without_an_end_nothing_more_is_kept(begin: bytes) -> None:
    """Also behind the answer: the parser adds what comes to what it has, and copies both."""
    async with serving(Echo()) as (server, _, _writer):
        connection = http_protocol._HttpConnection(server)
        transport = mock.Mock(get_extra_info=lambda name: None, is_closing=lambda: False)
        connection.connection_made(transport)
        connection.data_received(begin)
        tracemalloc.start()
        try:
            for _ in range(64):
                connection.data_received(b"a" * 65536)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 300_000
        (said,) = [call.args[0].split(b"\r\n")[0] for call in transport.write.call_args_list]
        assert said == b"HTTP/1.1 431 Request Header Fields Too Large"
        connection.connection_lost(None)


async def test_trailers_of_a_usual_size_are_taken() -> None:
    async with serving(Echo()) as (_, reader, writer):
        trailer = b"a" * 40_000
        for _ in range(3):
            writer.write(CHUNKED + trailer)
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(b"\r\n\r\n")
            assert await answer(reader) == (200, b"/echo:abc", False)


async def test_chunks_are_no_trailers() -> None:
    """A call of kube-scheduler has megabytes, in chunks as large as they may be."""
    echo = Echo()
    async with serving(echo) as (server, reader, writer):
        server.most = 1_000_000
        writer.write(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            writer.write(b"30D40\r\n" + b"x" * 200_000 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        status, _, closes = await answer(reader)
        assert (status, closes, len(echo.asked[0].body or b"")) == (200, False, 800_000)


async def test_a_client_that_asks_before_it_sends_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Echo()) as (_, reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert await answer(reader) == (200, b"/echo:hello", False)


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving(Echo()) as (_, reader, writer):
        writer.write(b"HEAD /echo HTTP/1.1\r\n\r\n" + HELLO)
        assert (await answer(reader, head_only=True))[0] == 200
        assert await answer(reader) == (200, b"/echo:hello", False)


async def test_who_reads_no_answers_is_asked_for_nothing_more() -> None:
    echo = Echo()
    async with serving(echo) as (_, reader, writer):
        large = b"POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
        sending = asyncio.create_task(send(writer, large, 20_000))
        before = -1
        async with asyncio.timeout(30):
            while before != len(echo.asked):
                before = len(echo.asked)
                await asyncio.sleep(0.1)
        assert 0 < before < 20_000
        for _ in range(20_000):
            assert (await answer(reader))[0] == 200
        await sending


async def send(writer: asyncio.StreamWriter, what: bytes, times: int, pause: float = 0.0) -> None:
    for _ in range(times):
        writer.write(what)
        await writer.drain()
        await asyncio.sleep(pause)


async def test_the_end_completes_what_is_being_answered() -> None:
    echo = Echo()
    async with serving(echo) as (server, reader, writer):
        writer.write(b"POST /later HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        while not echo.asked:  # noqa: ASYNC110 - the condition is on the other side of a socket
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        assert not closing.done()
        echo.go.set()
        assert (await answer(reader))[1] == b"/later"
        await asyncio.wait_for(closing, 10)
        assert await rest(reader) == b""


async def test_a_caller_that_goes_stops_no_answer_under_way() -> None:
    echo = Echo()
    async with serving(echo) as (server, _, writer):
        writer.write(b"POST /later HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        while not echo.asked:  # noqa: ASYNC110 - the condition is on the other side of a socket
            await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(10):
            while server.connections:  # noqa: ASYNC110 - the condition is on the other side of a socket
                await asyncio.sleep(0.01)
        (task,) = server.tasks
        echo.go.set()
        await asyncio.wait_for(task, 10)


async def test_an_answer_waits_while_its_client_keeps_no_more_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    echo.go.set()
    async with serving(echo) as (server, *first):
        others = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        connections = [(first[0], first[1]), *others]
        for reader, writer in connections:
            writer.write(HELLO)
            assert (await answer(reader))[0] == 200
        later = HELLO.replace(b"/echo", b"/later")
        monkeypatch.setattr(http_protocol, "_HELD_SECONDS", 0.01)
        for reader, writer in connections[:2]:
            writer.write(later)
            assert (await answer(reader))[1] == b"/later"
        monkeypatch.setattr(http_protocol, "_HELD_SECONDS", 600.0)
        connections[0][1].write(later)
        # What needs no time is answered meanwhile, and lets none of them go.
        await until(lambda: server._held)
        connections[1][1].write(HELLO)
        assert (await answer(connections[1][0]))[1] == b"/echo:hello"
        assert not connections[0][0]._buffer  # type: ignore[attr-defined]
        connections[1][1].write(later)
        assert (await answer(connections[0][0]))[1] == b"/later"
        # One that took long does not wait.
        monkeypatch.setattr(http_protocol, "_PROMPT_SECONDS", -1.0)
        connections[2][1].write(later)
        for reader, _ in connections[1:]:
            assert (await answer(reader))[1] == b"/later"
        for _, writer in others:
            writer.close()


async def test_a_connection_that_is_being_made_counts_as_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client asked for it while all others were busy, and would close one of them if it were given more answers."""
    monkeypatch.setattr(http_protocol, "_HELD_SECONDS", 600.0)
    served, context = make(tmp_path).context(), ssl.create_default_context(cafile=tmp_path / "ca.crt")
    context.load_cert_chain(tmp_path / "scheduler/tls.crt", tmp_path / "scheduler/tls.key")
    later = HELLO.replace(b"/echo", b"/later")
    echo = Echo()
    echo.go.set()
    async with serving(echo, served, context) as (server, *first):
        second = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        for reader, writer in (first, second):
            writer.write(HELLO)
            assert (await answer(reader))[0] == 200
        first[1].write(later)
        assert (await answer(first[0]))[1] == b"/later"
        _, making = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.listener.connecting == 1)
        first[1].write(later)
        await until(lambda: server._held)
        making.close()
        await until(lambda: server.listener.connecting == 0)
        second[1].write(later)
        for reader, _ in (first, second):
            assert (await answer(reader))[1] == b"/later"
        second[1].close()


async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_IDLE_SECONDS", 0.3)
    async with serving(Echo()) as (_, reader, writer):
        writer.write(HELLO)
        assert await answer(reader) == (200, b"/echo:hello", False)
        assert await rest(reader) == b""

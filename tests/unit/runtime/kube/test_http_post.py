# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""POST against servers that answer byte by byte as a test says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.kube import http_post
from gpushare_runtime.kube.http_post import Destination, NotSentError, PostAnswer, Poster
from gpushare_runtime.pki.certificates import issue
from unit.fakes.runtime.kube.fake_api import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Scripted:
    """A server. answers: one after the other, for each request; the last one stays. requests: what has come; open: connections."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers) or [OK]
        self.requests: list[bytes] = []
        self.connections = self.open = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.go = asyncio.Event()
        self.go.set()
        self.url = ""

    @property
    def server(self) -> Destination:
        return Destination(self.url, None, None)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections, self.open = self.connections + 1, self.open + 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self.go.wait()
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[tuple[Scripted, Poster]]:
    it = Scripted(*answers)
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    poster = Poster(_socket)
    try:
        yield it, poster
    finally:
        poster.close()
        it.go.set()
        listening.close()


def _socket(address: Any) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setblocking(False)
    return made


async def post(poster: Poster, server: Destination, target: str = "/pods", body: bytes = b"{}", **within: float) -> PostAnswer:
    return await poster.post(server, target, {}, body, **{"connect_within": 10.0, "within": 10.0, **within})


async def test_a_request_has_what_its_server_wants_to_know() -> None:
    async with scripted() as (it, poster):
        answer = await poster.post(
            Destination(f"{it.url}/clusters/c1/", None, None), "/pods?a=1", {"Accept": "x/y"}, b"[1]", connect_within=10.0, within=10.0
        )
        assert answer == PostAnswer(200, b"{}", "")
        host = it.url.removeprefix("http://").encode()
        lines = b"POST /clusters/c1/pods?a=1 HTTP/1.1\r\nHost: " + host + b"\r\nAccept: x/y\r\nContent-Length: 3\r\n\r\n[1]"
        assert it.requests == [lines]


async def test_answers_of_any_form_are_read() -> None:
    chunked = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    busy = b"HTTP/1.1 429 Too Many Requests\r\nretry-AFTER: 7\r\nContent-Length: 0\r\n\r\n"
    first = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with scripted(chunked, busy, first + OK) as (it, poster):
        assert [await post(poster, it.server) for _ in range(3)] == [(201, b"abcde", ""), (429, b"", "7"), (200, b"{}", "")]
        assert it.connections == 1


async def test_each_request_has_a_connection_and_those_that_are_idle_serve_the_next_ones() -> None:
    async with scripted() as (it, poster):
        it.go.clear()
        several = [asyncio.create_task(post(poster, it.server, body=b"%d" % number)) for number in range(3)]
        await until(lambda: len(it.requests) == 3)
        it.go.set()
        await asyncio.gather(*several)
        for _ in range(5):
            await post(poster, it.server)
        assert it.connections == 3


async def test_a_connection_that_the_server_closes_serves_no_more() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with scripted(closing, OK) as (it, poster):
        await post(poster, it.server)
        await until(lambda: not it.open)
        await post(poster, it.server)
        it.writers[-1].close()
        await until(lambda: not poster._open)
        await post(poster, it.server)
        assert it.connections == 3


async def test_one_that_was_idle_for_long_serves_no_more() -> None:
    async with scripted() as (it, poster):
        await post(poster, it.server)
        (idle,) = poster._idle
        idle.used_at -= http_post._IDLE_SECONDS
        await post(poster, it.server)
        await until(lambda: it.open == 1)
        assert it.connections == 2


async def test_what_comes_too_late_is_no_answer_to_the_next_request() -> None:
    async with scripted(OK.replace(b"{}", b"[]"), OK) as (it, poster):
        it.go.clear()
        with pytest.raises(asyncio.TimeoutError):
            await post(poster, it.server, within=0.5)
        waiting = asyncio.create_task(post(poster, it.server))
        await until(lambda: len(it.requests) == 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        it.go.set()
        assert (await post(poster, it.server)).body == b"{}"
        await until(lambda: it.open == 1)
        assert it.connections == 3


async def test_a_lost_connection_and_bytes_that_are_no_answer_are_not_a_request_that_was_not_sent() -> None:
    async with scripted(b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{") as (it, poster):
        with pytest.raises(ConnectionError, match="not HTTP"):
            await post(poster, it.server)
        cut = asyncio.create_task(post(poster, it.server))
        await until(lambda: len(it.requests) == 2)
        it.writers[-1].close()
        with pytest.raises(ConnectionError, match="without an answer"):
            await cut
        await until(lambda: not poster._open)


async def test_what_nobody_has_asked_for_ends_a_connection() -> None:
    async with scripted(OK + OK, OK) as (it, poster):
        await post(poster, it.server)
        await until(lambda: not it.open)
        it.writers.clear()
        await post(poster, it.server)
        it.writers[0].write(OK)
        await until(lambda: not it.open)


async def test_other_certificates_or_another_address_have_connections_of_their_own() -> None:
    async with scripted() as (it, poster):
        it.go.clear()
        old = asyncio.create_task(post(poster, it.server))
        await until(lambda: it.requests)
        new = asyncio.create_task(post(poster, Destination(it.url, None, "another")))
        await until(lambda: len(it.requests) == 2)
        it.go.set()
        # What was under way is answered; it serves no more.
        assert [one.status for one in await asyncio.gather(old, new)] == [200, 200]
        await until(lambda: it.open == 1)
        await post(poster, Destination(it.url, None, "another"))
        assert it.connections == 2


async def test_a_server_that_is_not_there_has_not_seen_the_request() -> None:
    poster = Poster(_socket)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        context = ssl.create_default_context()
        with pytest.raises(NotSentError, match="no connection in time"):
            await post(poster, Destination(f"https://127.0.0.1:{port}", context, None), connect_within=0.2)
    for url in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
        with pytest.raises(NotSentError):
            await post(poster, Destination(url, None, None))
    assert not poster._open


async def test_a_certificate_is_checked_for_the_name_that_is_expected(tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    ca = issue("ca", None, now)
    own = issue("server", ca, now)
    for name, data in (("ca", ca.certificate_pem), ("crt", own.certificate_pem), ("key", own.key_pem)):
        (tmp_path / name).write_bytes(data)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    it, poster = Scripted(), Poster(_socket)
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0, ssl=served)
    it.url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    known = ssl.create_default_context(cafile=tmp_path / "ca")
    assert (await post(poster, Destination(it.url, known, None))).status == 200
    for context, name in ((known, "another.example"), (ssl.create_default_context(), None)):
        with pytest.raises(NotSentError, match="certificate"):
            await post(poster, Destination(it.url, context, name))
    assert len(it.requests) == 1
    poster.close()
    listening.close()

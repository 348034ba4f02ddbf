# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where metrics are served, and to whom."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpushare_runtime.daemon import page_server
from gpushare_runtime.daemon.listener import RateLimit
from gpushare_runtime.daemon.metrics_server import MetricsServer
from unit.fakes.runtime.daemon.raw_http import get
from unit.fakes.runtime.kube.fake_api import until

pytestmark = pytest.mark.usefixtures("each_loop")


@asynccontextmanager
async def serving(pieces: Callable[[], Iterable[str]], token: Path | None = None) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(("127.0.0.1", 0), token, pieces)
    running = asyncio.create_task(server.run())
    try:
        await until(lambda: server.port)
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_page_and_nothing_else() -> None:
    async with serving(lambda: iter(["a 1\n", "", "b 2\n"])) as server:
        text = await get(server.port)
        assert text.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n")
        assert "\r\nContent-Length: 8\r\n" in text
        assert text.endswith("\r\n\r\na 1\nb 2\n")
        assert (await get(server.port, line="GET /metrics?x=1 HTTP/1.1")).startswith("HTTP/1.1 200 OK\r\n")
        for line in ("GET / HTTP/1.1", "GET /?/metrics HTTP/1.1", "POST /metrics HTTP/1.1", "GET /metrics/x HTTP/1.1"):
            assert (await get(server.port, line=line)).startswith("HTTP/1.1 404 ")


async def test_what_is_not_http_is_a_bad_request_and_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda: ["a 1\n"]) as server:
        long = "GET /metrics?" + "x" * 9000 + " HTTP/1.1"
        for line, headers in (("x", ()), (long, ()), ("GET /metrics HTTP/1.1", ("Content-Length: x",))):
            assert (await get(server.port, *headers, line=line)).split(" ")[1] == "400"
    assert caplog.records == []


async def test_the_health_of_a_daemon_that_reports_it() -> None:
    health = [(True, "ok: GPUs: 2")]
    server = MetricsServer(("127.0.0.1", 0), None, lambda: ["a 1\n"], lambda: health[-1])
    running = asyncio.create_task(server.run())
    await until(lambda: server.port)
    answer = await get(server.port, line="GET /healthz HTTP/1.1")
    assert (answer.startswith("HTTP/1.1 200 OK\r\n"), answer.endswith("\r\n\r\nok: GPUs: 2\n")) == (True, True)
    health.append((False, "degraded: CDI: stale"))
    answer = await get(server.port, line="GET /healthz HTTP/1.1")
    assert answer.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith("degraded: CDI: stale\n")
    assert (await get(server.port)).endswith("a 1\n")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with serving(lambda: ["a 1\n"]) as other:
        assert (await get(other.port, line="GET /healthz HTTP/1.1")).startswith("HTTP/1.1 404 ")


async def test_only_who_shows_the_token_as_it_is_now(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with serving(lambda: ["a 1\n"], token) as server:
        for wrong in ([], ["Authorization: Bearer"], ["Authorization: Bearer secre"], ["Authorization: Basic secret"]):
            answer = await get(server.port, *wrong)
            assert answer.startswith("HTTP/1.1 401 ")
            assert "a 1" not in answer
        assert (await get(server.port, "authorization: Bearer secret")).endswith("a 1\n")
        token.write_text("other")
        assert (await get(server.port, "Authorization: Bearer secret")).startswith("HTTP/1.1 401 ")
        token.write_text("")
        assert (await get(server.port, "Authorization: Bearer ")).startswith("HTTP/1.1 401 ")
        token.write_bytes(b"\xff\xfe")
        assert (await get(server.port, "Authorization: Bearer ")).startswith("HTTP/1.1 503 ")
        token.unlink()
        assert (await get(server.port, "Authorization: Bearer other")).startswith("HTTP/1.1 503 ")


def test_a_page_that_cannot_be_made_is_a_failure_of_the_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(page_server._at_requests, "filters", [RateLimit(3)])

    def pieces() -> Iterable[str]:
        yield "a 1\n"
        raise LookupError("broken")

    async def run() -> None:
        async with serving(pieces) as server:
            for _ in range(50):
                answer = await get(server.port)
                assert answer.startswith("HTTP/1.1 500 ")
                assert "a 1" not in answer

    asyncio.run(run())
    # Whoever asks again and again does not fill the log.
    assert len([record for record in caplog.records if "could not be made" in record.getMessage()]) == 3


async def test_who_asks_for_nothing_keeps_nobody_away_and_has_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_REQUEST_SECONDS", 0.5)
    (tmp_path / "token").write_text("secret")
    async with serving(lambda: ["a 1\n"], tmp_path / "token") as server:
        # What the event loop opens once is open then.
        await get(server.port)
        before = len(os.listdir("/proc/self/fd"))
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        assert (await get(server.port, "Authorization: Bearer secret")).endswith("a 1\n")
        # Both ends are in this process.
        assert len(os.listdir("/proc/self/fd")) - before < 200 + page_server.UNVERIFIED + 10
        for reader, _ in silent:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        await until(lambda: len(os.listdir("/proc/self/fd")) - before <= 200)
        for _, writer in silent:
            writer.close()


# More than the kernel takes without a reader.
LONG = "a 1\n" * 4_000_000


async def test_no_more_than_some_are_answered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # None of them has to go before the next one has asked, on a busy machine either.
    monkeypatch.setattr(page_server, "_REQUEST_SECONDS", 600.0)
    async with serving(lambda: [LONG]) as server:
        asking = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(page_server.MOST)]
        for _, writer in asking:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server._answering == page_server.MOST)
        assert (await get(server.port)).startswith("HTTP/1.1 503 ")
        for _, writer in asking:
            writer.transport.abort()
        await until(lambda: not server._answering)


async def test_who_does_not_read_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_REQUEST_SECONDS", 0.5)
    asked: list[bool] = []
    async with serving(lambda: asked.append(True) or [LONG]) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: bool(asked) and not server._answering)
        writer.transport.abort()


async def test_who_hangs_up_while_the_page_is_made_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, wrong = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    async with serving(lambda: ["a 1\n"]) as server:
        asked = 0

        async def page() -> tuple[int, bytes]:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.3)
            return 200, b"a 1\n"

        monkeypatch.setattr(server, "_pages", {"/metrics": page})
        callers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
        for caller in callers:
            caller.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: asked == 8)
        for caller in callers:
            # It resets the connection.
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.close()
        await until(lambda: not server._answering)
        gc.collect()
        await asyncio.sleep(0)
    assert wrong == []
    assert caplog.records == []


async def test_a_long_page_lets_others_run_between_its_pieces() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen: list[int] = []

    def pieces() -> Iterable[str]:
        for n in range(100):
            seen.append(turns)
            yield f"a {n}\n"

    async with serving(pieces) as server:
        other_work = asyncio.create_task(other())
        await get(server.port)
        other_work.cancel()
    assert all(after > before for before, after in pairwise(seen))

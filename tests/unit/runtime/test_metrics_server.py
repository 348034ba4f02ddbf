# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where metrics are served, and to whom."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpushare_runtime import metrics_server
from gpushare_runtime.metrics_server import MetricsAddress, MetricsServer
from unit.runtime.kube.fake_api import until


@asynccontextmanager
async def serving(pieces: Callable[[], Iterable[str]], token: Path | None = None) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(MetricsAddress("127.0.0.1", 0, token), pieces)
    running = asyncio.create_task(server.run())
    try:
        await until(lambda: server.port)
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def get(port: int, *headers: str, line: str = "GET /metrics HTTP/1.1") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([line, "Host: x", *headers, "", ""]).encode())
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return text


def test_the_page_and_nothing_else() -> None:
    async def run() -> None:
        async with serving(lambda: iter(["a 1\n", "", "b 2\n"])) as server:
            text = await get(server.port)
            assert text.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 8\r\n")
            assert text.endswith("\r\n\r\na 1\nb 2\n")
            for line in ("GET / HTTP/1.1", "POST /metrics HTTP/1.1", "GET /metrics/x HTTP/1.1", "x"):
                assert (await get(server.port, line=line)).startswith("HTTP/1.1 404 ")

    asyncio.run(run())


def test_only_who_shows_the_token_as_it_is_now(tmp_path: Path) -> None:
    async def run() -> None:
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
            token.unlink()
            assert (await get(server.port, "Authorization: Bearer other")).startswith("HTTP/1.1 503 ")

    asyncio.run(run())


def test_a_long_page_lets_others_run_between_its_pieces() -> None:
    async def run() -> None:
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
            beside = asyncio.create_task(other())
            await get(server.port)
            beside.cancel()
        assert all(after > before for before, after in pairwise(seen))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--metrics-listen=9440"], "'9440' is no address and port, such as 127.0.0.1:9440"),
        (["--metrics-listen=127.0.0.1:0"], "'127.0.0.1:0' is no address and port"),
        (["--metrics-listen=localhost:9440"], "'localhost:9440' is no address and port"),
        (["--metrics-listen=0.0.0.0:9440"], "metrics on 0.0.0.0 would be open to the network: give --metrics-token-file as well"),
    ],
)
def test_addresses_that_cannot_be(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    metrics_server.add_options(parser)
    with pytest.raises(SystemExit):
        metrics_server.from_options(parser, parser.parse_args(argv))
    assert said in capsys.readouterr().err


def test_addresses() -> None:
    parser = argparse.ArgumentParser()
    metrics_server.add_options(parser)

    def parsed(*argv: str) -> MetricsAddress | None:
        return metrics_server.from_options(parser, parser.parse_args(argv))

    assert parsed() is None
    assert parsed("--metrics-listen=[::1]:9440") == MetricsAddress("::1", 9440)
    token = Path("/etc/token")
    assert parsed("--metrics-listen=0.0.0.0:9440", f"--metrics-token-file={token}") == MetricsAddress("0.0.0.0", 9440, token)

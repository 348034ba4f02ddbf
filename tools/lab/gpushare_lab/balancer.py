# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Passes TCP connections on to the API servers that are ready, and ends those of one that no longer answers.

A program for a container of its own, `balancer.py PORT ADDRESS…`: it imports nothing of the lab.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

CHECK_EVERY_S = 1.0
CHECK_WITHIN_S = 5.0
CONNECT_WITHIN_S = 1.0
#: Checks in a row without an answer until a server counts as gone: one may be late on a busy machine.
MISSES = 2
_CHUNK = 1 << 16


@dataclass(eq=False)
class Server:
    """One API server: whether it answers, whether it says that it is ready, and the connections to it."""

    address: str
    answers: bool = False
    ready: bool = False
    misses: int = 0
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    def judge(self, status: int | None) -> str:
        """Take in the HTTP status of a check, None without an answer; returns what has changed in words, or ""."""
        before = (self.answers, self.ready)
        self.misses = 0 if status else self.misses + 1
        if status:
            self.answers, self.ready = True, status == 200
        elif self.misses >= MISSES:
            self.answers = self.ready = False
        if before == (self.answers, self.ready):
            return ""
        return "ready" if self.ready else f"not ready (HTTP {status})" if self.answers else "gone"


def candidates(servers: Sequence[Server]) -> list[Server]:
    """In which order a new connection tries them: ready ones, then those that answer, then the rest; few connections before many."""
    return sorted(servers, key=lambda one: (not one.ready, not one.answers, len(one.connections)))


async def status_of(server: Server, port: int) -> int | None:
    """The HTTP status of /readyz, which everybody may ask; None without an answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def ask() -> int:
        reader, writer = await asyncio.open_connection(server.address, port, ssl=context)
        try:
            writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
            return int((await reader.readline()).split()[1])
        finally:
            writer.transport.abort()

    try:
        return await asyncio.wait_for(ask(), CHECK_WITHIN_S)
    except (OSError, asyncio.TimeoutError, ValueError, IndexError):
        return None


async def watch(server: Server, port: int, servers: Sequence[Server]) -> None:
    """Check a server again and again, and end its connections when it is gone: they would wait for an answer for minutes.

    Where none of the servers answers, it is the machine that is slow, and ending connections would make it worse.
    """
    while True:
        if change := server.judge(await status_of(server, port)):
            print(f"{server.address} is {change}, {len(server.connections)} connections", flush=True)
        if not server.answers and any(other.answers for other in servers):
            for connection in list(server.connections):
                connection.transport.abort()
        await asyncio.sleep(CHECK_EVERY_S)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, servers: Sequence[Server], port: int) -> None:
    """Pass one connection on, to the next server where one cannot be reached, until either side ends it."""
    try:
        for server in candidates(servers):
            try:
                there, back = await asyncio.wait_for(asyncio.open_connection(server.address, port), CONNECT_WITHIN_S)
            except (OSError, asyncio.TimeoutError):
                continue
            server.connections.add(back)
            try:
                await _both_ways((reader, back), (there, writer))
            finally:
                server.connections.discard(back)
                back.transport.abort()
            return
    finally:
        writer.transport.abort()


async def _both_ways(*directions: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    tasks = [asyncio.create_task(_copy(source, sink)) for source, sink in directions]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


async def main(port: int, addresses: Sequence[str]) -> None:
    """Listen, until the process is killed."""
    servers = [Server(address) for address in addresses]
    listening = await asyncio.start_server(lambda reader, writer: serve(reader, writer, servers, port), "0.0.0.0", port)
    async with listening:
        await asyncio.gather(*(watch(server, port, servers) for server in servers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))

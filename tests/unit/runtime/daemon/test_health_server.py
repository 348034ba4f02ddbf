# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pages for kubelet's probes: open, and so they say no more than a probe needs."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gpushare_runtime.daemon.health_server import HealthServer
from gpushare_runtime.daemon.runner import Status
from unit.fakes.runtime.daemon.raw_http import get
from unit.fakes.runtime.kube.fake_api import until


async def test_ready_are_the_required_parts_as_they_are_now() -> None:
    status = Status(required=["b", "a"])
    server = HealthServer(("127.0.0.1", 0), status.readiness)
    running = asyncio.create_task(server.run())
    await until(lambda: server.port)

    async def page(path: str) -> tuple[str, str]:
        head, _, body = (await get(server.port, line=f"GET {path} HTTP/1.1")).partition("\r\n\r\n")
        return head.split()[1], body

    assert (await page("/healthz"), await page("/readyz")) == (("200", "ok\n"), ("503", "not ready: a, b\n"))
    status.ok("a", "fine")
    status.degraded("gpus", "GPU-1 of 10.0.0.1 is lost")
    assert await page("/readyz") == ("503", "not ready: b\n")
    status.ok("b", "fine")
    assert await page("/readyz") == ("200", "ready; degraded: gpus\n")
    status.ok("gpus", "2")
    assert await page("/readyz") == ("200", "ready\n")
    # Unlike systemd's READY=1 it does not stay.
    status.degraded("a", "gone")
    assert await page("/readyz") == ("503", "not ready: a\n")
    assert (await page("/healthz"))[0] == "200"
    for path in ("/metrics", "/", "/healthz/x"):
        assert await page(path) == ("404", "only GET /healthz and /readyz is here\n")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.usefixtures("each_loop")
async def test_a_probe_is_answered_however_many_ask() -> None:
    server = HealthServer(("127.0.0.1", 0), lambda: ((), ()))
    running = asyncio.create_task(server.run())
    await until(lambda: server.port)
    loop = asyncio.get_running_loop()
    callers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for caller in callers:
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        caller.setblocking(False)
    answers = [(await asyncio.wait_for(loop.sock_recv(caller, 99), 10))[:15] for caller in callers]
    for caller in callers:
        caller.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert set(answers) == {b"HTTP/1.1 200 OK"}

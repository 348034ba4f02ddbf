# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /metrics of a daemon over plain HTTP on one address, and /healthz of one that has it; beyond loopback only with a bearer token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from gpushare_runtime.daemon.page_server import Address, Answer, PageServer

Health = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the state of each part in a line of its own."""


def parts(
    address: Address | None, token_file: Path | None, pieces: Callable[[], Iterable[str]], health: Health | None = None
) -> list[Coroutine[Any, Any, None]]:
    """The part of a daemon that serves its metrics; none without an address. health: for /healthz, None for a daemon without it."""
    return [MetricsServer(address, token_file, pieces, health).run()] if address else []


class MetricsServer(PageServer):
    """token_file: bearer token that a scraper must send, None for none, on a loopback address.

    pieces: the page in pieces, each made in about a millisecond; other tasks may run between two of them.
    """

    def __init__(
        self, address: Address, token_file: Path | None, pieces: Callable[[], Iterable[str]], health: Health | None = None
    ) -> None:
        async def page() -> Answer:
            made = bytearray()
            for piece in pieces():
                made += piece.encode()
                # kubelet and kube-scheduler go first: a large cluster's page takes a second.
                await asyncio.sleep(0)
            return 200, bytes(made)

        async def report() -> Answer:
            well, text = health() if health else (True, "")
            return 200 if well else 503, f"{text}\n".encode()

        pages = {"/metrics": page, **({"/healthz": report} if health else {})}
        super().__init__(*address, "metrics are", pages, token_file)

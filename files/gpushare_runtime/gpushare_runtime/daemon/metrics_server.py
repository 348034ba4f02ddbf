# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /metrics of a daemon over plain HTTP on one address, and /healthz of one that has it; beyond loopback only with a bearer token."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_runtime.daemon.page_server import Answer, PageServer, parse_address

Health = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the state of each part in a line of its own."""


@dataclass(frozen=True)
class MetricsAddress:
    """Where metrics are served. token_file: bearer token that a scraper must send; None disables authentication (loopback only)."""

    host: str
    port: int
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if self.token_file is None and not ipaddress.ip_address(self.host).is_loopback:
            raise ValueError(f"metrics on {self.host} would be open to the network: give --metrics-token-file as well, or 127.0.0.1")

    @classmethod
    def of(cls, text: str, token_file: Path | None = None) -> MetricsAddress | None:
        """From "127.0.0.1:9440" or "[::1]:9440"; None for "". ValueError with what was found and an example."""
        return cls(*parse_address(text, "127.0.0.1:9440"), token_file) if text else None


def parts(
    address: MetricsAddress | None, pieces: Callable[[], Iterable[str]], health: Health | None = None
) -> list[Coroutine[Any, Any, None]]:
    """The part of a daemon that serves its metrics; none without an address. health: for /healthz, None for a daemon without it."""
    return [MetricsServer(address, pieces, health).run()] if address else []


class MetricsServer(PageServer):
    """pieces: the page in pieces, each made in about a millisecond; other tasks may run between two of them."""

    def __init__(self, address: MetricsAddress, pieces: Callable[[], Iterable[str]], health: Health | None = None) -> None:
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
        super().__init__(address.host, address.port, "metrics are", pages, address.token_file)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /healthz and /readyz for kubelet's probes. They are open, because a probe sends no token: so they name parts, and nothing else.

/healthz is 200 while the event loop runs, like systemd's watchdog. /readyz is 200 if the daemon does its work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from gpushare_runtime.daemon.page_server import Answer, PageServer, parse_address

_OPTION: Final = "--health-listen"
Address = tuple[str, int]
Readiness = Callable[[], tuple[Sequence[str], Sequence[str]]]
"""Returns the names of the parts that keep the daemon from its work, and of those that are degraded besides."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The option --health-listen."""
    parser.add_argument(
        _OPTION, metavar="ADDRESS:PORT", help="serve /healthz and /readyz there, open, such as 0.0.0.0:9443; default: nowhere"
    )


def from_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Address | None:
    """Its address; None without the pages. Ends the process with a message if it is invalid."""
    if not given.health_listen:
        return None
    try:
        return parse_address(given.health_listen, "0.0.0.0:9443")
    except ValueError as error:
        parser.error(f"{_OPTION}: {error}")


def parts(address: Address | None, readiness: Readiness) -> list[Coroutine[Any, Any, None]]:
    """The part of a daemon that serves its health; none without an address."""
    return [HealthServer(address, readiness).run()] if address else []


class HealthServer(PageServer):
    """The two pages."""

    def __init__(self, address: Address, readiness: Readiness) -> None:
        async def alive() -> Answer:
            return 200, b"ok\n"

        async def ready() -> Answer:
            missing, degraded = readiness()
            if missing:
                return 503, f"not ready: {', '.join(missing)}\n".encode()
            return 200, (f"ready; degraded: {', '.join(degraded)}\n" if degraded else "ready\n").encode()

        super().__init__(*address, "health is", {"/healthz": alive, "/readyz": ready})

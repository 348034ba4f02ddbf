# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /healthz and /readyz for kubelet's probes. They are open, because a probe sends no token: so they name parts, and nothing else.

/healthz is 200 while the event loop runs, like systemd's watchdog. /readyz is 200 if the daemon does its work.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gpushare_runtime.daemon.page_server import Address, Answer, PageServer

Readiness = Callable[[], tuple[Sequence[str], Sequence[str]]]
"""Returns the names of the parts that keep the daemon from its work, and of those that are degraded besides."""


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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of a daemon, run together until they are to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.1


async def run_all(parts: Sequence[Coroutine[Any, Any, None]], stop: asyncio.Event | None = None) -> None:
    """Run all until `stop` is set, this is cancelled or the first of them ends; then none of them runs any more.

    Raises what a part raised; RuntimeError for one that ended without that, since none may.
    """
    tasks = {asyncio.ensure_future(part) for part in parts}
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
            raise RuntimeError(f"{task.get_coro()!r} ended by itself")
    finally:
        left = {*tasks, stopping}
        while left:
            # Again and again: asyncio.wait_for may swallow a cancellation that comes together with what it waits for.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
        # So that nobody complains of an exception that was not looked at.
        await asyncio.gather(*tasks, return_exceptions=True)

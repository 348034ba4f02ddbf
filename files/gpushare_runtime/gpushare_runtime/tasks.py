# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of a daemon, run together until they are to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

ENDING_SECONDS: Final = 3.0
"""What a part that is cancelled has for finishing what is under way; after that it is cancelled again."""


async def run_all(
    parts: Sequence[Coroutine[Any, Any, None]],
    stop: asyncio.Event | None = None,
    *,
    base: Sequence[Coroutine[Any, Any, None]] = (),
    ending_seconds: float = ENDING_SECONDS,
) -> None:
    """Run all until `stop` is set, this is cancelled or the first of them ends; then none of them runs any more.

    base: what the parts stand on; it goes on until they have ended. Raises what a part raised; RuntimeError for one that ended
    without that, since none may.
    """
    above = {asyncio.ensure_future(part) for part in parts}
    below = {asyncio.ensure_future(part) for part in base}
    tasks = above | below
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
            raise RuntimeError(f"{task.get_coro()!r} ended by itself")
    finally:
        for stage in ({stopping}, above, below):
            await _end(stage, ending_seconds)
        # So that nobody complains of an exception that was not looked at.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(tasks: Collection[asyncio.Future[Any]], seconds: float) -> None:
    left = set(tasks)
    while left:
        # Again, because asyncio.wait_for may swallow a cancellation that comes together with what it waits for; but not before
        # a part could do what it does at its end: that is what a second cancellation would cut short.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds)

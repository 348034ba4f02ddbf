# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Blocking calls beside the event loop, and waiting for changes of several things at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpushare_runtime.daemon.sync import Changes, any_after, in_thread

SECONDS = 10.0


async def test_results_and_exceptions_come_back_and_a_call_that_hangs_holds_up_no_other() -> None:
    release = threading.Event()

    def fail() -> None:
        raise ValueError("planned")

    hanging = asyncio.ensure_future(in_thread(release.wait))
    assert [await asyncio.wait_for(in_thread(lambda n=n: n * n), SECONDS) for n in range(5)] == [0, 1, 4, 9, 16]  # type: ignore[misc]
    with pytest.raises(ValueError, match="planned"):
        await in_thread(fail)
    assert not hanging.done()
    release.set()
    assert await asyncio.wait_for(hanging, SECONDS)


def test_a_thread_is_used_again() -> None:
    async def scenario() -> set[int]:
        used = set()
        for _ in range(50):
            used.add(await in_thread(threading.get_ident))
            # The next one may come before the thread has said that it is free.
            await asyncio.sleep(0.01)
        return used

    assert len(asyncio.run(scenario())) < 10


async def test_whichever_changes_first_ends_the_waiting_and_nothing_is_missed() -> None:
    first, second = Changes(), Changes()
    waiting = asyncio.ensure_future(any_after((first, first.count), (second, second.count)))
    await asyncio.sleep(0)
    assert not waiting.done()
    second.notify()
    await asyncio.wait_for(waiting, SECONDS)
    # What changed before one waits is not waited for.
    await asyncio.wait_for(any_after((first, 0), (second, 0)), SECONDS)
    assert not await first.after(0, timeout=0.01)
    waiting = asyncio.ensure_future(first.after(0))
    await asyncio.sleep(0)
    waiting.cancel()
    first.notify()
    assert await first.after(0)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of a daemon begin and end together. The time is virtual."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from gpushare_runtime.daemon.runner import ENDING_SECONDS, run_all

pytestmark = pytest.mark.usefixtures("virtual_time")


class Part:
    """Runs until cancelled. deaf: how many cancellations it swallows, as asyncio.wait_for may."""

    def __init__(self, deaf: int = 0) -> None:
        self.deaf = deaf
        self.running = False
        self.began = asyncio.Event()

    async def run(self) -> NoReturn:
        self.running = True
        self.began.set()
        try:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.deaf -= 1
                    if self.deaf < 0:
                        raise
        finally:
            self.running = False


async def failing() -> NoReturn:
    await asyncio.sleep(0)
    raise LookupError("broken")


async def test_they_run_until_they_are_to_stop_also_those_that_do_not_hear_it_at_once() -> None:
    parts, stop = [Part(), Part(deaf=2)], asyncio.Event()
    running = asyncio.create_task(run_all([part.run() for part in parts], stop, ending_seconds=0.05))
    for part in parts:
        await part.began.wait()
    stop.set()
    await asyncio.wait_for(running, 5)
    assert not any(part.running for part in parts)


async def test_what_a_part_does_at_its_end_is_not_cut_short_and_what_it_stands_on_goes_on_meanwhile() -> None:
    base, stop, finished = Part(), asyncio.Event(), list[bool]()

    async def serving() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # As the drain of a server.
            await asyncio.sleep(ENDING_SECONDS - 0.1)
            finished.append(base.running)

    running = asyncio.create_task(run_all([serving()], stop, base=[base.run()]))
    await base.began.wait()
    stop.set()
    await asyncio.wait_for(running, ENDING_SECONDS)
    assert finished == [True]
    assert not base.running


async def test_the_end_of_what_the_parts_stand_on_ends_them() -> None:
    part = Part()
    with pytest.raises(LookupError, match="broken"):
        await asyncio.wait_for(run_all([part.run()], base=[failing()]), 5)
    assert not part.running


async def test_cancelled_they_end_as_well() -> None:
    part = Part(deaf=1)
    running = asyncio.create_task(run_all([part.run()], ending_seconds=0.05))
    await part.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(running), 5)
    assert not part.running


async def test_what_one_of_them_raises_ends_the_others() -> None:
    part = Part(deaf=1)
    with pytest.raises(LookupError, match="broken"):
        await asyncio.wait_for(run_all([part.run(), failing()], asyncio.Event(), ending_seconds=0.05), 5)
    assert not part.running


async def test_none_may_end_by_itself() -> None:
    with pytest.raises(RuntimeError, match=r"sleep .* ended by itself"):
        await asyncio.wait_for(run_all([asyncio.sleep(0), Part().run()]), 5)

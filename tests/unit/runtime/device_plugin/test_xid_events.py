# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""XID errors are heard through losses and returns of cards and of NVML."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from gpushare_runtime.device_plugin.gpu.discovery import CardFacts, NvmlError
from gpushare_runtime.device_plugin.gpu.health import CardHealth
from gpushare_runtime.device_plugin.gpu.xid_events import XidFollower
from unit.runtime.kube.fake_api import until


class Subscription:
    def __init__(self, partial: bool) -> None:
        self.partial = partial
        self.closed = False
        self.said: queue.Queue[tuple[str, int] | NvmlError] = queue.Queue()

    def wait(self, seconds: float) -> tuple[str, int] | None:
        assert not self.closed
        assert threading.current_thread() is not threading.main_thread()
        try:
            item = self.said.get(timeout=min(seconds, 0.02))
        except queue.Empty:
            return None
        if isinstance(item, NvmlError):
            raise item
        return item

    def close(self) -> None:
        # A driver that hangs must not hang the event loop.
        assert threading.current_thread() is not threading.main_thread()
        self.closed = True


class Nvml:
    """subscriptions: all that were made; partial: whether the next one lacks a card; failing: none can be made."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.partial = False
        self.failing = False

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def count(self) -> int:
        return 0

    def facts(self, index: int) -> CardFacts:
        raise AssertionError("not asked")

    def xid_events(self) -> Subscription:
        if self.failing:
            raise NvmlError("gone")
        self.subscriptions.append(Subscription(self.partial))
        return self.subscriptions[-1]


def following(scenario: Callable[[Nvml, Counter[tuple[str, int]], list[None]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        nvml, counts, reads = Nvml(), Counter[tuple[str, int]](), list[None]()
        follower = XidFollower(nvml, CardHealth(), counts, lambda: reads.append(None), retry=0.01)
        task = asyncio.ensure_future(follower.run())
        try:
            await scenario(nvml, counts, reads)
        finally:
            task.cancel()

    asyncio.run(run())


def test_only_errors_of_the_card_have_it_read_at_once() -> None:
    async def scenario(nvml: Nvml, counts: Counter[tuple[str, int]], reads: list[None]) -> None:
        await until(lambda: nvml.subscriptions)
        nvml.subscriptions[0].said.put(("GPU-1", 31))
        nvml.subscriptions[0].said.put(("GPU-1", 79))
        await until(lambda: counts == {("GPU-1", 31): 1, ("GPU-1", 79): 1})
        assert len(reads) == 1
        assert len(nvml.subscriptions) == 1

    following(scenario)


def test_a_card_that_comes_back_is_listened_to_and_nothing_is_missed_meanwhile() -> None:
    async def scenario(nvml: Nvml, counts: Counter[tuple[str, int]], reads: list[None]) -> None:
        nvml.partial = True
        await until(lambda: len(nvml.subscriptions) >= 3)
        nvml.partial = False
        await until(lambda: not nvml.subscriptions[-1].partial)
        made = len(nvml.subscriptions)
        nvml.subscriptions[-1].said.put(("GPU-2", 48))
        await until(lambda: counts[("GPU-2", 48)] == 1)
        assert len(nvml.subscriptions) == made
        assert all(subscription.closed for subscription in nvml.subscriptions[:-1])

    following(scenario)


def test_after_a_failure_it_subscribes_anew() -> None:
    async def scenario(nvml: Nvml, counts: Counter[tuple[str, int]], reads: list[None]) -> None:
        await until(lambda: nvml.subscriptions)
        nvml.failing = True
        nvml.subscriptions[0].said.put(NvmlError("the card is lost"))
        await until(lambda: nvml.subscriptions[0].closed and len(reads) > 2)
        nvml.failing = False
        await until(lambda: len(nvml.subscriptions) == 2)
        nvml.subscriptions[1].said.put(("GPU-1", 79))
        await until(lambda: counts[("GPU-1", 79)] == 1)

    following(scenario)

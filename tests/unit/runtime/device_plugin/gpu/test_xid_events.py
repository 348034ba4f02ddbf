# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""XID errors are heard through losses and returns of GPUs and of NVML."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpushare_runtime.device_plugin.gpu.discovery import GpuFacts, NvmlError
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.gpu.xid_events import XidListener
from unit.fakes.runtime.kube.fake_api import until


class Subscription:
    def __init__(self, partial: bool, deaf: str) -> None:
        self.partial = partial
        self.deaf = deaf
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
    """subscriptions: all that were made; partial: whether the next one lacks a GPU; failing: none can be made.

    deaf: why waiting in each new one fails at once, "" if it does not.
    """

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.partial = False
        self.failing = False
        self.deaf = ""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def count(self) -> int:
        return 0

    def facts(self, index: int) -> GpuFacts:
        raise AssertionError("not asked")

    def xid_events(self) -> Subscription:
        if self.failing:
            raise NvmlError("gone")
        made = Subscription(self.partial, self.deaf)
        if made.deaf:
            made.said.put(NvmlError(made.deaf))
        self.subscriptions.append(made)
        return self.subscriptions[-1]


def following(scenario: Callable[[Nvml, Counter[tuple[str, int]], list[None]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        nvml, counts, reads = Nvml(), Counter[tuple[str, int]](), list[None]()
        listener = XidListener(nvml, GpuHealth(), counts, lambda: reads.append(None), retry=0.01)
        task = asyncio.ensure_future(listener.run())
        try:
            await scenario(nvml, counts, reads)
        finally:
            task.cancel()

    asyncio.run(run())


def test_only_errors_of_the_gpu_have_it_read_at_once() -> None:
    async def scenario(nvml: Nvml, counts: Counter[tuple[str, int]], reads: list[None]) -> None:
        await until(lambda: nvml.subscriptions)
        nvml.subscriptions[0].said.put(("GPU-1", 31))
        nvml.subscriptions[0].said.put(("GPU-1", 79))
        await until(lambda: counts == {("GPU-1", 31): 1, ("GPU-1", 79): 1})
        assert len(reads) == 1
        assert len(nvml.subscriptions) == 1

    following(scenario)


def test_a_gpu_that_comes_back_is_listened_to_and_nothing_is_missed_meanwhile() -> None:
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
        nvml.subscriptions[0].said.put(NvmlError("the GPU is lost"))
        await until(lambda: nvml.subscriptions[0].closed and len(reads) > 2)
        nvml.failing = False
        await until(lambda: len(nvml.subscriptions) == 2)
        nvml.subscriptions[1].said.put(("GPU-1", 79))
        await until(lambda: counts[("GPU-1", 79)] == 1)

    following(scenario)


def test_waiting_that_always_fails_is_said_once_until_something_was_heard(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(nvml: Nvml, counts: Counter[tuple[str, int]], reads: list[None]) -> None:
        nvml.deaf = "no GPU says its XID errors"
        await until(lambda: len(nvml.subscriptions) >= 6)
        assert [record.levelname for record in said()] == ["INFO"] + ["DEBUG"] * (len(said()) - 1)
        assert len(said()) >= 5
        nvml.deaf = ""
        await until(lambda: not nvml.subscriptions[-1].deaf)
        nvml.subscriptions[-1].said.put(("GPU-1", 31))
        await until(lambda: counts[("GPU-1", 31)] == 1)
        nvml.deaf = "no GPU says its XID errors"
        nvml.subscriptions[-1].said.put(NvmlError(nvml.deaf))
        made = len(nvml.subscriptions)
        await until(lambda: len(nvml.subscriptions) >= made + 3)
        assert [record.levelname for record in said()].count("INFO") == 2

    def said() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.message.startswith("subscribing to XID errors again")]

    with caplog.at_level(logging.DEBUG):
        following(scenario)

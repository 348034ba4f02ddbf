# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Events: one object for the same event, however often it is emitted and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from gpushare_runtime.kube import events
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, until

POD = ObjectReference("Pod", "a", "uid-a", "default")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def recording(api: FakeApi, directory: Path, clock: Clock) -> AsyncIterator[EventRecorder]:
    async with connected(api, directory) as client:
        recorder = EventRecorder(client, "gpushare-extender", "cp1", clock=clock, backoff=Backoff(0.01, 0.01))
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_one_event_with_what_kubectl_shows(tmp_path: Path, api: FakeApi) -> None:
    async with recording(api, tmp_path, Clock()) as recorder:
        recorder.emit(POD, "Warning", "TooLarge", "write 10")
        recorder.emit(ObjectReference("Node", "n1", "uid-n1"), "Normal", "Ready", "x" * 5000)
        await until(lambda: len(api.objects) == 2)
        node, pod = (api.objects[name] for name in sorted(api.objects, reverse=True))
        assert pod["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "uid-a", "namespace": "default"}
        assert (pod["type"], pod["reason"], pod["message"], pod["count"]) == ("Warning", "TooLarge", "write 10", 1)
        assert pod["source"] == {"component": "gpushare-extender", "host": "cp1"}
        assert node["metadata"]["namespace"] == "default"
        assert len(node["message"]) == 1024


async def test_repetitions_are_counted_and_sent_seldom(tmp_path: Path, api: FakeApi) -> None:
    clock = Clock()
    async with recording(api, tmp_path, clock) as recorder:
        for _ in range(50):
            recorder.emit(POD, "Warning", "TooLarge", "write 10")
        await until(lambda: api.objects)
        for _ in range(50):
            recorder.emit(POD, "Warning", "TooLarge", "write 10")
        recorder.emit(POD, "Warning", "Later", "write 10")
        await until(lambda: len(api.objects) == 2)
        assert [method for method, _, _ in api.requests] == ["POST", "POST"]
        clock.now = 301
        recorder.emit(POD, "Warning", "TooLarge", "write 10")
        await until(lambda: len(api.requests) == 4)
        assert {event["reason"]: event["count"] for event in api.objects.values()} == {"TooLarge": 101, "Later": 1}


async def test_a_restart_makes_no_second_event(tmp_path: Path, api: FakeApi) -> None:
    for requests in (["POST"], ["POST", "POST", "PATCH"]):
        async with recording(api, tmp_path, Clock()) as recorder:
            recorder.emit(POD, "Warning", "TooLarge", "write 10")
            await until(lambda requests=requests: [method for method, _, _ in api.requests] == requests)
    assert len(api.objects) == 1


async def test_a_rejected_event_does_not_stop_the_others(tmp_path: Path, api: FakeApi) -> None:
    async with recording(api, tmp_path, Clock()) as recorder:
        api.faults = [fail(403, "Forbidden", "namespace is being terminated")]
        recorder.emit(POD, "Warning", "One", "1")
        recorder.emit(POD, "Warning", "Two", "2")
        await until(lambda: [event["reason"] for event in api.objects.values()] == ["Two"])


async def test_one_that_fails_is_sent_again_behind_the_others_and_with_its_count(tmp_path: Path, api: FakeApi) -> None:
    async with recording(api, tmp_path, Clock()) as recorder:
        api.faults = [fail(500, "InternalError", "etcd is away"), fail(429, "TooManyRequests", "later")]
        recorder.emit(POD, "Warning", "One", "write 8 instead")
        recorder.emit(POD, "Warning", "One", "write 8 instead")
        recorder.emit(POD, "Warning", "Two", "2")
        await until(lambda: len(api.objects) == 2)
        counts = {event["reason"]: event["count"] for event in api.objects.values()}
        assert counts == {"One": 2, "Two": 1}
        # One after the other, and nothing is sent twice.
        recorder.emit(POD, "Warning", "Three", "3")
        await until(lambda: len(api.objects) == 3)
        assert [method for method, _, _ in api.requests] == ["POST"] * 5


async def test_one_that_fails_for_an_hour_is_left_out(tmp_path: Path, api: FakeApi) -> None:
    clock = Clock()

    async def an_hour_later(request: web.Request) -> web.Response:
        clock.now = 3601
        return await away(request)

    async with recording(api, tmp_path, clock) as recorder:
        away = fail(500, "InternalError", "etcd is away")
        api.faults = [away, away, an_hour_later]
        recorder.emit(POD, "Warning", "One", "1")
        await until(lambda: not api.faults)
        # Were it sent again, it would come before the second of these.
        for number in (2, 3):
            recorder.emit(POD, "Warning", "Other", f"{number}")
            await until(lambda number=number: len(api.objects) == number - 1)
        assert [event["reason"] for event in api.objects.values()] == ["Other", "Other"]
        # It may come up again.
        clock.now = 4000
        recorder.emit(POD, "Warning", "One", "1")
        await until(lambda: [event["reason"] for event in api.objects.values()] == ["Other", "Other", "One"])
        assert [event["count"] for event in api.objects.values()] == [1, 1, 1]


async def test_a_full_queue_drops_and_recovers(api: FakeApi, client: KubeClient) -> None:
    recorder = EventRecorder(client, "c", "h")
    for n in range(events._WAITING + 5):
        recorder.emit(POD, "Normal", "N", str(n))
    assert recorder._dropped == 5
    recorder._queue.get_nowait()
    recorder.emit(POD, "Normal", "N", str(events._WAITING + 4))
    assert recorder._queue.full()


async def accept(request: web.Request) -> None:
    """No fault."""


async def test_a_minor_event_waits_for_the_others_and_is_dropped_first(api: FakeApi, client: KubeClient) -> None:
    recorder = EventRecorder(client, "c", "h", backoff=Backoff(0.01, 0.01))
    for n in range(events._MINOR_WAITING + 5):
        recorder.emit(POD, "Normal", "Minor", str(n), minor=True)
    recorder.emit(POD, "Warning", "Major", "x")
    assert (len(recorder._minor), recorder._dropped) == (events._MINOR_WAITING, 0)
    # The major one fails and is sent again; the first minor one fails too, and is not.
    away = fail(500, "InternalError", "etcd is away")
    api.faults = [away, accept, away]
    task = asyncio.create_task(recorder.run())
    await until(lambda: len(api.objects) == 2)
    task.cancel()
    assert [event["message"] for event in api.objects.values()] == ["x", "1"]

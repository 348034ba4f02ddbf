# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The last hours: bounded samples of this process, and range queries of a Prometheus that may send anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.dashboard import history
from gpushare_runtime.dashboard.history import HistoryError, Prometheus, Samples, merged, read_series


def test_of_each_half_minute_the_last_sample_is_kept() -> None:
    samples = Samples()
    assert samples.to_json()["time"] == []
    for now, allocated in ((0, 9), (10, 8), (30, 7), (31, 6), (59, 5), (60, 4)):
        samples.add(now, 10, allocated, 1, None if now < 30 else allocated)
    made = samples.to_json()
    assert made["busy"] == [None, 5, 4]
    assert (made["time"], made["allocated"], made["total"], made["pending"]) == ([0, 30, 60], [8, 5, 4], [10] * 3, [1] * 3)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    samples = Samples()
    for now in (1000, 1035, 10, 40):
        samples.add(now, 1, 1, 0)
    assert samples.to_json()["time"] == [990, 1020, 0, 30]


def test_twelve_hours_are_kept() -> None:
    samples = Samples()
    for at in range(2 * history.MOST_SAMPLES):
        samples.add(at * 30, 1, 1, 0)
    assert len(samples.to_json()["time"]) == history.MOST_SAMPLES
    assert samples.to_json()["time"][-1] == (2 * history.MOST_SAMPLES - 1) * 30


def answer(values: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": values}}).encode()


def test_a_series_is_read() -> None:
    assert read_series(answer([{"metric": {}, "values": [[1.0, "2"], [3, "4.5"], [5, "NaN"], [6, "+Inf"]]}])) == {1: 2.0, 3: 4.5}
    assert read_series(answer([])) == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>" + b"x" * 10_000, "expected JSON"),
        (b"[1]", "rejected the query"),
        (json.dumps({"status": "error", "error": "y" * 10_000}).encode(), "rejected the query"),
        (b'{"status": "success"}', "expected the matrix"),
        (b'{"status": "success", "data": {"result": [{"values": [1]}]}}', "expected the matrix"),
        (b'{"status": "success", "data": {"result": [{"values": [["a", "b"]]}]}}', "expected the matrix"),
        *(
            (answer([{"values": [[1, "1"], point]}]), "expected the matrix")
            for point in ([1, "1e19"], [1, "-1e300"], [1e19, "1"], [-1e300, "1"])
        ),
        (b'{"status": "success", "data": {"result": [{"values": [[1e999, "1"]]}]}}', "expected"),
    ],
)
def test_another_answer_is_an_error_that_quotes_little_of_it(data: bytes, message: str) -> None:
    with pytest.raises(HistoryError, match=message) as error:
        read_series(data)
    assert len(str(error.value)) < 250


def test_only_times_with_all_and_free_memory_count() -> None:
    made = merged({"total": {1: 10, 2: 20}, "allocated": {2: 5, 3: 5}, "pending": {}, "busy": {1: 3}})
    assert made["busy"] == [None]
    assert merged({name: {1: 7.6} for name in history.QUERIES})["busy"] == [8]
    assert (made["time"], made["total"], made["allocated"], made["pending"], made["unit"]) == ([2], [20], [5], [0], "units")
    with pytest.raises(HistoryError, match="no samples of gpushare_extender_node_units"):
        merged({"total": {1: 1}, "allocated": {}, "pending": {}, "busy": {}})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(["1", "1e19", "NaN", "9" * 400, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "result", "values"]), inner, max_size=2),
    max_leaves=10,
)


TIMES = st.sampled_from([1, 2.5, -1, 2**53, 2**64, 1e19, -1e300, "3", True])
NUMBERS = st.sampled_from(["1", "-1", "2.5", "9007199254740993", "1e19", "-1e300", "NaN", "9" * 400, 7, 2**64])


@given(st.lists(st.tuples(TIMES, NUMBERS) | VALUES, max_size=3), VALUES)
def test_whatever_it_sends_is_an_error_or_can_be_sent_on(points: list[object], other: object) -> None:
    for data in (answer([{"values": points}]), answer(other), json.dumps(other).encode()):
        with suppress(HistoryError):
            series = read_series(data)
            orjson.dumps(merged(dict.fromkeys(history.QUERIES, series)))


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://p", "http://", "http://p/?a=b", "http://p#x"])
def test_another_thing_than_the_url_of_a_server_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a Prometheus server"):
        Prometheus(url)


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def against(handler: Handler, use: Callable[[Prometheus], Awaitable[None]]) -> None:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        await use(Prometheus(f"http://127.0.0.1:{runner.addresses[0][1]}/sub/", hours=1, clock=lambda: 7205.0))
    finally:
        await runner.cleanup()


def test_prometheus_is_queried_once_in_half_a_minute() -> None:
    seen: list[web.BaseRequest] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        value = str(1 + list(history.QUERIES.values()).index(request.query["query"]))
        return web.Response(body=answer([{"values": [[7200, value]]}]))

    async def use(prometheus: Prometheus) -> None:
        first = await prometheus.read()
        assert first == {
            "source": "Prometheus",
            "unit": "units",
            "problem": "",
            "time": [7200],
            "total": [1],
            "allocated": [2],
            "pending": [3],
            "busy": [4],
        }
        assert await prometheus.read() is first

    asyncio.run(against(handler, use))
    assert [request.query["query"] for request in seen] == list(history.QUERIES.values())
    assert {request.path for request in seen} == {"/sub/api/v1/query_range"}
    assert {(request.query["start"], request.query["end"], request.query["step"]) for request in seen} == {("3600", "7200", "15")}


def test_an_answer_without_end_or_at_another_place_and_no_answer_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_BYTES", 1000)
    monkeypatch.setattr(history, "_TIMEOUT_SECONDS", 0.2)

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 100)
        return response

    async def silent(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def elsewhere(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/"}) if request.path != "/" else web.Response(body=answer([]))

    def expect(message: str) -> Callable[[Prometheus], Awaitable[None]]:
        async def use(prometheus: Prometheus) -> None:
            with pytest.raises(HistoryError, match=message):
                await prometheus.read()

        return use

    asyncio.run(against(endless, expect("more than 1000 bytes")))
    asyncio.run(against(silent, expect("gave no answer")))
    asyncio.run(against(elsewhere, expect("expected JSON")))

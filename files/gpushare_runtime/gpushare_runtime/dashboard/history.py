# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The last hours of allocation: samples of this process, or a range query of Prometheus. Pure except `Prometheus.read`."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.errors import GpushareError

EVERY_SECONDS: Final = 30.0
MOST_SAMPLES: Final = 1440
"""Twelve hours."""
_TIMEOUT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 4 * 1024 * 1024
_KEPT_SECONDS: Final = 30.0
_POINTS: Final = 360
_MOST: Final = 2**53
"""Units, pods and seconds: more is none of ours, JSON may not have it, and a page could not count it."""
# Every extender exports every node: the largest of them counts once.
QUERIES: Final[Mapping[str, str]] = {
    "total": "sum(max by (node) (gpushare_extender_node_units))",
    "allocated": "sum(max by (node) (gpushare_extender_node_units_allocated))",
    "pending": "sum(max by (reason) (gpushare_extender_pods_waiting))",
    "busy": "100 * avg(max by (uuid) (gpushare_device_plugin_gpu_sm_utilization_ratio))",
}


class Samples:
    """The allocation since the start, one sample each half minute: MiB, pods that wait, percent of the SMs that are busy."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, int, int, int, int | None]] = deque(maxlen=MOST_SAMPLES)

    def add(self, now: float, total: int, allocated: int, pending: int, busy: int | None = None) -> None:
        """now: Unix time in seconds. busy: None where it is unknown. The last sample of each half minute is kept."""
        sample = (int(now // EVERY_SECONDS * EVERY_SECONDS), total, allocated, pending, busy)
        if self._kept and self._kept[-1][0] == sample[0]:
            self._kept[-1] = sample
        else:
            self._kept.append(sample)

    def to_json(self) -> dict[str, Any]:
        """Columns of equal length."""
        times, totals, allocated, pending, busy = zip(*self._kept, strict=True) if self._kept else ((), (), (), (), ())
        return {
            "source": "dashboard",
            "unit": "MiB",
            "problem": "",
            "time": list(times),
            "total": list(totals),
            "allocated": list(allocated),
            "pending": list(pending),
            "busy": list(busy),
        }


class HistoryError(GpushareError):
    """Prometheus gave no answer that can be used."""


class Prometheus:
    """Range queries of one server. hours: how far back; units are those of the nodes, which one series cannot convert."""

    def __init__(self, url: str, hours: float = 12.0, clock: Callable[[], float] = time.time) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{quote(url)} is not the URL of a Prometheus server, such as http://prometheus.monitoring:9090")
        self.url = url.rstrip("/")
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._hours = hours
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None

    async def read(self) -> dict[str, Any]:
        """As `Samples.to_json`. HistoryError with the reason."""
        async with self._lock:
            now = self._clock()
            if self._kept is None or not 0 <= now - self._kept[0] < _KEPT_SECONDS:
                self._kept = now, await self._read(now)
            return self._kept[1]

    async def _read(self, now: float) -> dict[str, Any]:
        step = max(15, math.ceil(self._hours * 3600 / _POINTS))
        end = int(now) // step * step
        window = {"start": str(end - int(self._hours * 3600)), "end": str(end), "step": str(step)}
        series = {}
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS), cookie_jar=aiohttp.DummyCookieJar()
            ) as http:
                for name, query in QUERIES.items():
                    async with http.get(self._url, params={"query": query, **window}, allow_redirects=False) as response:
                        series[name] = read_series(await _bounded(response))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise HistoryError(f"Prometheus gave no answer: {quote(str(error) or type(error).__name__)}") from None
        return merged(series)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    data = await response.content.read(_MOST_BYTES + 1)
    while data and len(data) <= _MOST_BYTES and not response.content.at_eof():
        data += await response.content.read(_MOST_BYTES + 1 - len(data))
    if len(data) > _MOST_BYTES:
        raise HistoryError(f"Prometheus sent more than {_MOST_BYTES} bytes")
    return data


def read_series(data: bytes) -> dict[int, float]:
    """Unix time → value of the one series of a range query. HistoryError with what was found."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise HistoryError(f"Prometheus sent {quote(data[:80].decode(errors='replace'))}; expected JSON") from None
    if not isinstance(body, dict) or body.get("status") != "success":
        found = body.get("error") if isinstance(body, dict) else body
        raise HistoryError(f"Prometheus rejected the query: {quote(found)}")
    try:
        result = body["data"]["result"]
        values = result[0]["values"] if result else []
        points = {int(at): float(value) for at, value in values}
        points = {at: value for at, value in points.items() if math.isfinite(value)}
        if any(max(abs(at), abs(value)) > _MOST for at, value in points.items()):
            raise ValueError
    except (KeyError, IndexError, OverflowError, TypeError, ValueError):
        raise HistoryError(f"Prometheus sent {quote(body)}; expected the matrix of a range query") from None
    return points


def merged(series: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """The times that have a total and an allocated amount. HistoryError where there are none."""
    times = sorted(series["total"].keys() & series["allocated"].keys())
    if not times:
        raise HistoryError("Prometheus has no samples of gpushare_extender_node_units; does it scrape the extenders?")
    columns = {name: [round(series[name].get(at, 0)) for at in times] for name in ("total", "allocated", "pending")}
    busy = [None if (value := series["busy"].get(at)) is None else round(value) for at in times]
    return {"source": "Prometheus", "unit": "units", "problem": "", "time": times, **columns, "busy": busy}

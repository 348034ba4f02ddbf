# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cache that follows the API server through lost connections, gaps and broken objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.reflector import Reflector
from unit.fakes.runtime.kube.fake_api import FakeApi, Fault, connected, fail, serving, status, until

PODS = "/api/v1/namespaces/default/pods/"


def pod(name: str, **metadata: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


class Cache:
    """Names of pods, kept as a user of the reflector would."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.replaced = 0

    def replace(self, names: list[str]) -> None:
        self.replaced += 1
        self.names = set(names)

    def event(self, kind: str, name: str) -> None:
        if kind == "DELETED":
            self.names.discard(name)
        else:
            self.names.add(name)


def name_of(raw: dict[str, Any]) -> str | None:
    if "broken" in raw["metadata"]:
        raise KeyError("broken")
    name: str = raw["metadata"]["name"]
    return None if name.startswith("other") else name


@asynccontextmanager
async def running(api: FakeApi, directory: Path, **options: Any) -> AsyncIterator[tuple[Cache, Reflector[str]]]:
    cache = Cache()
    async with connected(api, directory) as client:
        reflector = Reflector(
            client,
            "/api/v1/pods",
            on_replace=cache.replace,
            on_event=cache.event,
            transform=name_of,
            **{"backoff": Backoff(0.01, 0.05), **options},
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield cache, reflector
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_objects_of_a_list_are_condensed_and_those_of_a_watch_are_not(tmp_path: Path) -> None:
    api = FakeApi()
    async with serving(api):
        for name in ("a", "other", "b"):
            await api.put(f"{PODS}{name}", pod(name))
        async with running(api, tmp_path, limit=2, condense=str.upper) as (cache, _):
            await until(lambda: cache.names == {"A", "B"})
            await api.put(f"{PODS}c", pod("c"))
            await until(lambda: cache.names == {"A", "B", "c"})


async def test_lists_in_pages_then_watches(tmp_path: Path, api: FakeApi) -> None:
    for n in range(5):
        await api.put(f"{PODS}p{n}", pod(f"p{n}"))
    await api.put(f"{PODS}other", pod("other"))
    async with running(api, tmp_path, limit=2, field_selector="status.phase!=Failed") as (cache, reflector):
        assert not reflector.synced.is_set()
        assert reflector.last_contact is None
        await reflector.synced.wait()
        assert cache.names == {"p0", "p1", "p2", "p3", "p4"}
        await api.remove(f"{PODS}p0")
        await api.put(f"{PODS}new", pod("new"))
        await api.put(f"{PODS}other2", pod("other2"))
        await until(lambda: "new" in cache.names and "p0" not in cache.names)
        assert cache.replaced == 1
        assert all(query["fieldSelector"] == "status.phase!=Failed" for _, _, query in api.requests)
        assert reflector.last_contact is not None


async def test_why_it_was_interrupted_is_kept_until_the_server_answers_again(tmp_path: Path, api: FakeApi) -> None:
    api.faults = [fail(503)] * 3
    async with running(api, tmp_path) as (_, reflector):
        await until(lambda: bool(reflector.trouble))
        assert "planned" in reflector.trouble
        await reflector.synced.wait()
        assert reflector.trouble == ""


async def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path) as (cache, reflector):
        await reflector.synced.wait()
        for n in range(5):
            await until(lambda: api.watching)
            await api.cut()
            await api.put(f"{PODS}p{n}", pod(f"p{n}"))
        await until(lambda: len(cache.names) == 5)
        assert (cache.replaced, api.lists) == (1, 1)


async def test_a_deletion_in_a_gap_is_seen_by_the_fresh_list(tmp_path: Path, api: FakeApi) -> None:
    await api.put(f"{PODS}a", pod("a"))
    await api.put(f"{PODS}b", pod("b"))
    async with running(api, tmp_path) as (cache, reflector):
        await reflector.synced.wait()
        await until(lambda: api.watching)
        api.faults = [fail(503)]
        await api.cut()
        await api.remove(f"{PODS}a")
        await api.compact()
        await until(lambda: cache.names == {"b"})
        assert cache.replaced == 2


async def test_410_in_the_stream_lists_again(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path) as (cache, reflector):
        await reflector.synced.wait()
        await until(lambda: api.watching)
        await api.compact()
        await until(lambda: cache.replaced == 2)
        await api.put(f"{PODS}a", pod("a"))
        await until(lambda: cache.names == {"a"})


async def test_a_list_that_expires_half_way_is_taken_in_one_piece(tmp_path: Path, api: FakeApi) -> None:
    async def passes(_: web.Request) -> None:
        return None

    for n in range(5):
        await api.put(f"{PODS}p{n}", pod(f"p{n}"))
    api.faults = [passes, fail(410, "Expired")]
    async with running(api, tmp_path, limit=2) as (cache, reflector):
        await reflector.synced.wait()
        assert len(cache.names) == 5
        assert [query.get("limit") for _, _, query in api.requests[:3]] == ["2", "2", None]


async def test_silence_is_noticed(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path, read_timeout=0.1) as (cache, reflector):
        await reflector.synced.wait()
        await until(lambda: sum(query.get("watch") == "true" for _, _, query in api.requests) >= 3)
        await api.put(f"{PODS}a", pod("a"))
        await until(lambda: cache.names == {"a"})
        assert cache.replaced == 1


async def test_a_watch_that_ends_at_once_is_not_asked_for_at_once(tmp_path: Path, api: FakeApi) -> None:
    async def empty(request: web.Request) -> web.StreamResponse | None:
        return web.Response() if "watch" in request.query else None

    class CountedBackoff(Backoff):
        waits = 0

        def wait(self) -> float:
            self.waits += 1
            return super().wait()

    api.faults = [empty] * 1000
    backoff = CountedBackoff(0.01, 0.01)
    async with running(api, tmp_path, backoff=backoff) as (cache, _):
        await until(lambda: len(watches(api)) >= 5)
        assert backoff.waits >= 4
        assert cache.replaced == 1


async def test_not_synced_until_the_server_answers(tmp_path: Path, api: FakeApi) -> None:
    api.faults = [fail(403, "Forbidden"), fail(500), fail(429)]
    async with running(api, tmp_path) as (_, reflector):
        await until(lambda: not api.faults)
        await asyncio.wait_for(reflector.synced.wait(), 5)


async def test_a_broken_object_is_left_out_and_the_rest_goes_on(tmp_path: Path, api: FakeApi) -> None:
    await api.put(f"{PODS}bad", pod("bad", broken=True))
    await api.put(f"{PODS}a", pod("a"))
    async with running(api, tmp_path) as (cache, reflector):
        await reflector.synced.wait()
        await api.put(f"{PODS}bad2", pod("bad2", broken=True))
        await api.put(f"{PODS}b", pod("b"))
        await until(lambda: cache.names == {"a", "b"})
        assert cache.replaced == 1


async def test_what_stands_for_a_broken_object_takes_the_place_of_what_was_known_of_it(tmp_path: Path, api: FakeApi) -> None:
    await api.put(f"{PODS}bad", pod("bad", broken=True))
    async with running(api, tmp_path, unreadable=lambda raw: f"broken {raw['metadata']['name']}") as (cache, reflector):
        await reflector.synced.wait()
        assert cache.names == {"broken bad"}
        await api.put(f"{PODS}bad2", pod("bad2", broken=True))
        await until(lambda: cache.names == {"broken bad", "broken bad2"})
        await api.remove(f"{PODS}bad2")
        await until(lambda: cache.names == {"broken bad"})
        assert cache.replaced == 1


async def test_metadata_only_asks_for_it(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path, metadata_only=True) as (_, reflector):
        await reflector.synced.wait()
        await until(lambda: api.watching)
        assert ["as=PartialObjectMetadataList;" in h["Accept"] for h in api.headers] == [True, False]
        assert "as=PartialObjectMetadata;" in api.headers[1]["Accept"]


def test_backoff_grows_to_its_cap_and_starts_again() -> None:
    backoff = Backoff(1, 8)
    waits = [backoff.wait() for _ in range(6)]
    for seconds, most in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= seconds <= most
    backoff.reset()
    assert backoff.wait() <= 1


async def test_catching_up_by_what_the_watch_brings(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path) as (cache, reflector):
        await until(lambda: api.watching == 1)
        late = asyncio.create_task(reflector.catch_up(str(api.version + 1), grace=60))
        await asyncio.sleep(0.05)
        assert not late.done()
        await api.put(f"{PODS}a", pod("a"))
        await asyncio.wait_for(late, 10)
        assert (cache.names, cache.replaced) == ({"a"}, 1)


async def test_catching_up_by_a_new_list_where_nothing_happens(tmp_path: Path, api: FakeApi) -> None:
    async with running(api, tmp_path) as (cache, reflector):
        await until(lambda: api.watching == 1)
        # What the watch has not brought, such as a write of another resource.
        await asyncio.wait_for(reflector.catch_up(str(api.version + 1), grace=0.05), 10)
        assert cache.replaced == 2
        await until(lambda: api.watching == 1)
        await api.put(f"{PODS}b", pod("b"))
        await until(lambda: cache.names == {"b"})
        assert cache.replaced == 2
        await asyncio.wait_for(reflector.catch_up("not-a-number", grace=0), 10)
        assert cache.replaced == 3


def watches(api: FakeApi) -> list[str]:
    """The resourceVersions from which was watched."""
    return [query["resourceVersion"] for _, _, query in api.requests if query.get("watch") == "true"]


async def test_a_server_that_fails_twice_with_a_version_is_asked_for_a_list(tmp_path: Path, api: FakeApi) -> None:
    """It may never bear that one again, such as one of its future."""

    async def rejects(request: web.Request) -> web.StreamResponse | None:
        return status(504, "Timeout", "Too large resource version") if request.query.get("resourceVersion") == "101" else None

    await api.put(f"{PODS}a", pod("a"))
    async with running(api, tmp_path) as (cache, reflector):
        await until(lambda: api.watching)
        # One failure alone goes on where it was.
        api.faults = [fail(503)]
        await api.cut()
        await until(lambda: watches(api) == ["101"] * 3 and api.watching)
        assert (cache.replaced, reflector.lists) == (1, 1)
        api.faults = [rejects] * 2
        await api.cut()
        await api.put(f"{PODS}b", pod("b"))
        await until(lambda: cache.replaced == 2)
        await until(lambda: watches(api) == ["101"] * 5 + ["102"])


def bookmark(version: int) -> Fault:
    """A watch that brings one and ends in order."""

    async def told(_: web.Request) -> web.StreamResponse:
        line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})
        return web.Response(body=f"{line}\n".encode())

    return told


async def passes(_: web.Request) -> None:
    return None


async def test_failures_count_only_in_a_row(tmp_path: Path, api: FakeApi) -> None:
    api.faults = [passes, *[fail(500), bookmark(100)] * 3]
    async with running(api, tmp_path) as (cache, _):
        await until(lambda: api.watching)
        assert (cache.replaced, len(api.requests)) == (1, 8)


@pytest.mark.parametrize(("version", "lists"), [(99, 2), (100, 1), (101, 1)])
async def test_a_server_that_was_put_back_from_a_backup_is_listed_anew(tmp_path: Path, version: int, lists: int, api: FakeApi) -> None:
    api.faults = [passes, bookmark(version)]
    async with running(api, tmp_path) as (cache, _):
        await until(lambda: api.watching)
        assert cache.replaced == lists


async def test_how_old_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    """Only what was taken in counts: a list of which the first page has come is still the old cache."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr("gpushare_runtime.kube.reflector.time", Clock)
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> None:
        begun.set()
        await go.wait()

    await api.put(f"{PODS}a", pod("a"))
    await api.put(f"{PODS}b", pod("b"))
    api.faults = [passes, slow]
    async with running(api, tmp_path, limit=1) as (cache, reflector):
        now[0] += 7
        await asyncio.wait_for(begun.wait(), 10)
        assert (reflector.age, reflector.last_contact) == (7, 1007)
        go.set()
        await until(lambda: cache.replaced)
        assert reflector.age == 0
        await until(lambda: api.watching)
        now[0] += 400
        assert reflector.age == 400
        await api.put(f"{PODS}c", pod("c"))
        await until(lambda: "c" in cache.names)
        assert reflector.age == 0


async def test_a_list_that_had_begun_before_does_not_count(tmp_path: Path, api: FakeApi) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> None:
        began.set()
        await go.wait()

    api.faults = [slow]
    async with running(api, tmp_path) as (cache, reflector):
        await asyncio.wait_for(began.wait(), 10)
        late = asyncio.create_task(reflector.catch_up("not-a-number", grace=0))
        await asyncio.sleep(0.01)
        go.set()
        await asyncio.wait_for(late, 10)
        assert cache.replaced == 2

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keep a cache equal to what the API server has: list, then watch, for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar, cast

import orjson

from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import JSON, METADATA, METADATA_LIST, PAGE, Decode, KubeClient, KubeError

T = TypeVar("T")

_SHORTEST_WATCH: Final = 1.0
_FAILURES: Final = 2
_POLL: Final = 0.02
_LONGEST_TROUBLE: Final = 200

log = logging.getLogger(__name__)


class Decoders(NamedTuple):
    """Of a page of a list, and of an event of a watch."""

    page: Decode
    event: Decode


_WHOLE: Final = Decoders(orjson.loads, orjson.loads)


class Reflector(Generic[T]):
    """One resource, listed and watched.

    on_replace gets all objects after each list (what it does not contain is gone). on_event gets "ADDED", "MODIFIED" or
    "DELETED" and the object. Both get what `transform` makes of the raw object. Where it gives None the object is of no
    interest and left out. Raw objects are dropped page by page. An object that transform cannot bear is logged; what `unreadable`
    makes of it stands for it, so that nothing older does.
    metadata_only: ask the server for metadata alone. condense: what is kept of each object of a list until the others are there.
    pause: as of `KubeClient.watch`, for what may be so late. decode: as of `KubeClient`, for objects of which little is read.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        *,
        on_replace: Callable[[list[T]], None],
        on_event: Callable[[str, T], None],
        field_selector: str = "",
        label_selector: str = "",
        transform: Callable[[dict[str, Any]], T | None] | None = None,
        unreadable: Callable[[dict[str, Any]], T | None] = lambda raw: None,
        metadata_only: bool = False,
        condense: Callable[[T], T] = lambda item: item,
        limit: int = PAGE,
        read_timeout: float = 100.0,
        pause: Callable[[], float] | None = None,
        decode: Decoders = _WHOLE,
        backoff: Backoff | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.lists = 0
        """Complete lists since the start; after the first each has a reason."""
        self.interruptions = 0
        self.trouble = ""
        """Why the last list or watch ended; "" once the server has answered again."""
        """Lists and watches since the start that did not end in order."""
        self._client = client
        self._path = path
        self._on_replace = on_replace
        self._on_event = on_event
        self._selectors: dict[str, Any] = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._transform = transform or (lambda value: cast(T, value))
        self._unreadable = unreadable
        self._metadata_only = metadata_only
        self._condense = condense
        self._limit = limit
        self._read_timeout = read_timeout
        self._watch_pause = pause
        self._decode = decode
        self._backoff = backoff or Backoff()
        self._resource_version = ""
        self._last_contact: float | None = None
        self._current_at = time.monotonic()
        self._failures = 0
        self._begun = self._done = 0
        self._stale, self._listed = asyncio.Event(), asyncio.Event()

    @property
    def last_contact(self) -> float | None:
        """time.monotonic() when the server last sent anything; None before that."""
        return self._last_contact

    @property
    def age(self) -> float:
        """Seconds since the cache was known to be what the server has: at a list, an event or a bookmark; before that, since the start."""
        return time.monotonic() - self._current_at

    async def run(self) -> NoReturn:
        """Never returns; cancel it. `synced` is set after the first complete list."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                began = time.monotonic()
                await self._watch_until_stale()
                # The server has ended it in order; one that does so at once is not asked again at once.
                if self._resource_version and time.monotonic() - began < _SHORTEST_WATCH:
                    await asyncio.sleep(self._backoff.wait())
            except KubeError as error:
                # A lost connection continues from where it was, also over one failure of the server; whatever else happened, and where
                # a server fails again with this resourceVersion, a fresh list is right.
                self._failures = self._failures + 1 if error.status >= 500 else 0
                if (error.status and error.status < 500 and error.status != 429) or self._failures >= _FAILURES:
                    self._resource_version = ""
                await self._pause(str(error))
            except Exception:
                log.exception("%s: cannot take in what the API server sent; listing again", self._path)
                self._resource_version = ""
                await self._pause("listing again")

    async def catch_up(self, version: str, grace: float) -> None:
        """Returns when on_replace and on_event have had all up to this resourceVersion of the same resource.

        Where the watch does not get there within grace seconds (nothing may happen for long, and until 1.35 versions need not be
        comparable numbers), everything is listed again.
        """
        deadline = time.monotonic() + grace
        while not _reached(self._resource_version, version):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(_POLL)
        else:
            return
        # A list that has begun already may be older.
        begun = self._begun
        self._stale.set()
        while self._done <= begun:
            self._listed.clear()
            await self._listed.wait()

    async def _watch_until_stale(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        stale = asyncio.ensure_future(self._stale.wait())
        try:
            await asyncio.wait({watch, stale}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            else:
                self._resource_version = ""
        finally:
            for task in (watch, stale):
                task.cancel()
            await asyncio.gather(watch, stale, return_exceptions=True)

    async def _pause(self, why: str) -> None:
        self.interruptions += 1
        self.trouble = "".join(letter if letter.isprintable() else " " for letter in why[:_LONGEST_TROUBLE])
        seconds = self._backoff.wait()
        log.warning("watch of %s was interrupted, it continues in %.1f s: %s", self._path, seconds, why)
        await asyncio.sleep(seconds)

    async def _list(self) -> None:
        self._begun += 1
        number = self._begun
        self._stale.clear()
        try:
            items, version = await self._pages(self._limit)
        except KubeError as error:
            if error.status != 410:
                raise
            # The snapshot went away between two pages: in one piece it cannot.
            items, version = await self._pages(0)
        self._on_replace(items)
        self._resource_version = version
        self._current()
        self._done = number
        self._listed.set()
        self.lists += 1
        self.synced.set()

    def _current(self) -> None:
        self._current_at = time.monotonic()
        self._failures = 0
        self.trouble = ""

    async def _pages(self, limit: int) -> tuple[list[T], str]:
        items: list[T] = []
        version = ""
        accept = METADATA_LIST if self._metadata_only else JSON
        async for page in self._client.list_pages(self._path, limit=limit, accept=accept, decode=self._decode.page, **self._selectors):
            self._last_contact = time.monotonic()
            version = str((page.get("metadata") or {}).get("resourceVersion") or "")
            for raw in page.get("items") or ():
                item = self._take(raw)
                if item is not None:
                    items.append(self._condense(item))
        if not version:
            raise KubeError(0, "Invalid", f"the list of {self._path} has no resourceVersion; expected a Kubernetes list")
        return items, version

    async def _watch(self) -> None:
        accept = METADATA if self._metadata_only else JSON
        stream = self._client.watch(
            self._path,
            self._resource_version,
            accept=accept,
            timeout_seconds=random.randint(240, 480),
            read_timeout=self._read_timeout,
            pause=self._watch_pause,
            decode=self._decode.event,
            **self._selectors,
        )
        async with aclosing(stream):
            async for kind, raw in stream:
                self._last_contact = time.monotonic()
                self._backoff.reset()
                version = str(raw["metadata"]["resourceVersion"])
                if kind == "BOOKMARK":
                    if _before(version, self._resource_version):
                        # A watch from its future would stay silent about everything until then.
                        went_back = f"the API server is at {version}, behind {self._resource_version}: it was restored, as from a backup"
                        raise KubeError(410, "Expired", went_back)
                else:
                    item = self._take(raw)
                    if item is not None:
                        self._on_event(kind, item)
                self._resource_version = version
                self._current()

    def _take(self, raw: dict[str, Any]) -> T | None:
        try:
            return self._transform(raw)
        except Exception:
            metadata = raw.get("metadata") or {}
            log.exception("%s: cannot read %s/%s", self._path, metadata.get("namespace"), metadata.get("name"))
            return self._unreadable(raw)


def _before(version: str, other: str) -> bool:
    """Whether a resourceVersion is an earlier one of the same resource; not where that cannot be said."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def _reached(has: str, wanted: str) -> bool:
    """Whether a resourceVersion is another or a later one of the same resource."""
    return has == wanted or (has.isdecimal() and wanted.isdecimal() and int(has) >= int(wanted))

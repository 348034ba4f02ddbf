# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Events on objects, as `kubectl describe` and `kubectl events` show them; the same one again is counted, not repeated."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, Literal, NoReturn

from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

_WAITING: Final = 1000
# Of minor events.
_MINOR_WAITING: Final = 100
_REMEMBERED: Final = 4096
REPEAT_SECONDS: Final = 300.0
_PER_SECOND: Final = 20.0
_MESSAGE_BYTES: Final = 1024
# As long as the API server keeps an Event, an older one is not read.
_LATE_SECONDS: Final = 3600.0
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0


@dataclass(frozen=True)
class ObjectReference:
    """The object that an Event is about; namespace "" for a node."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = "v1"


@dataclass(frozen=True)
class _Event:
    about: ObjectReference
    type: str
    reason: str
    message: str
    minor: bool = field(default=False, compare=False)

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """The same for the same event, so that neither a restart nor a second instance makes another one."""
        text = "\0".join((self.about.uid, self.type, self.reason, self.message))
        return f"{self.about.name[:236]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass
class _Sent:
    """The known facts of one event. count: as the API server has it. sent_at: when it took it, or rejected it permanently, None before
    the first time. queued_at: since when it waits or is being sent, None if neither."""

    unsent: int = 0
    queued_at: float | None = None
    sent_at: float | None = None
    count: int = 0


class EventRecorder:
    """Sends Events in the background: `emit` never waits, `run` does the sending.

    component: who reports, such as "gpushare-extender". host: where. An event that is emitted again is sent at most every
    five minutes, as a higher count; all together at most twenty a second. One that fails is sent again for an hour, unless the API
    server has rejected it. An Event that exceeds the queue is dropped and logged. A minor event waits until no other does. At most a
    hundred of them wait, and one that exceeds that, or fails, is dropped without a word.
    """

    def __init__(
        self, client: KubeClient, component: str, host: str, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff | None = None
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._clock = clock
        self._backoff = backoff or Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(_WAITING)
        self._minor: deque[_Event] = deque()
        self._any = asyncio.Event()
        self._known: OrderedDict[_Event, _Sent] = OrderedDict()
        self._dropped = 0
        self._failing = False

    def emit(self, about: ObjectReference, type: Literal["Normal", "Warning"], reason: str, message: str, *, minor: bool = False) -> None:
        """One Event. reason: a CamelCase word. message: for people, cut after 1024 bytes. minor: the first to be dropped."""
        event = _Event(about, type, reason, message.encode()[:_MESSAGE_BYTES].decode(errors="ignore"), minor)
        known = self._known.setdefault(event, _Sent())
        self._known.move_to_end(event)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        known.unsent += 1
        now = self._clock()
        if known.queued_at is not None or (known.sent_at is not None and now - known.sent_at < REPEAT_SECONDS):
            return
        self._put(event, known, now)

    def _put(self, event: _Event, known: _Sent, since: float) -> None:
        known.queued_at = None
        if event.minor:
            if len(self._minor) < _MINOR_WAITING:
                self._minor.append(event)
                known.queued_at = since
                self._any.set()
            return
        try:
            self._queue.put_nowait(event)
            known.queued_at = since
            self._any.set()
        except asyncio.QueueFull:
            self._dropped += 1
            if self._dropped % _WAITING == 1:
                log.warning("%d events were dropped: more than %d wait for the API server", self._dropped, _WAITING)

    async def _next(self) -> _Event:
        while self._queue.empty() and not self._minor:
            self._any.clear()
            await self._any.wait()
        return self._minor.popleft() if self._queue.empty() else self._queue.get_nowait()

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            event = await self._next()
            known = self._known.setdefault(event, _Sent(unsent=1))
            new = known.unsent
            try:
                known.count = await self._send(event, known.count + new)
            except KubeError as error:
                await self._failed(event, known, error)
            else:
                known.unsent -= new
                known.sent_at, known.queued_at, self._failing = self._clock(), None, False
                self._backoff.reset()
            await asyncio.sleep(1 / _PER_SECOND)

    async def _failed(self, event: _Event, known: _Sent, error: KubeError) -> None:
        now = self._clock()
        since = now if known.queued_at is None else known.queued_at
        again = _passing(error) and now - since < _LATE_SECONDS and not event.minor
        words = "it is tried again" if again else "it is left out"
        # Once for all that fail in a row: that the API server is away is said elsewhere as well.
        level = logging.DEBUG if (again and self._failing) or event.minor else logging.WARNING
        log.log(level, "event %s on %s %s failed, %s: %s", event.reason, event.about.kind, event.about.name, words, error)
        if not again:
            known.sent_at, known.queued_at, known.unsent = now, None, 0
            return
        self._failing = True
        # Behind the others: this one alone may be the trouble.
        self._put(event, known, since)
        await asyncio.sleep(self._backoff.wait())

    async def _send(self, event: _Event, count: int) -> int:
        """The count that the API server now has."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        events = path("api/v1", "namespaces", event.namespace, "events")
        try:
            await self._client.create(events, self._body(event, count, now))
            return count
        except KubeError as error:
            if error.status != 409:
                raise
        change: dict[str, Any] = {"lastTimestamp": now}
        # A count of one may be our first after a restart: what is there already counts more.
        if count > 1:
            change["count"] = count
        kept = await self._client.patch(path(events, event.name), change, kind="merge")
        return int(kept.get("count") or count)

    def _body(self, event: _Event, count: int, now: str) -> dict[str, Any]:
        about = event.about
        involved = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        if about.namespace:
            involved["namespace"] = about.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": event.namespace},
            "involvedObject": involved,
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "count": count,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }


def _passing(error: KubeError) -> bool:
    """Whether the same may succeed later: no answer, no token at the moment, too many requests, or a failure of the server's own."""
    return error.status in (0, 401, 408, 429) or error.status >= 500

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Events of the API server, as far as a person may read them: of one pod, or of one reason in the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpushare_runtime.core.bounds import as_mapping, as_text
from gpushare_runtime.kube.client import KubeClient, path

MOST_MESSAGE: Final = 1024
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one answer: who may create Events decides how long they are."""
MOST_READ: Final = 500
SECONDS: Final = 10.0
_MOST_COUNT: Final = 2**53
# Of the time before a pod was bound, and about its GPUs: neither says why kubelet does not start it.
_NOT_OF_ITS_START: Final = ("FailedScheduling", "GPUShare")


@dataclass(frozen=True)
class PodEvent:
    """time: Unix time of the last one, 0 for none. source: the component. uid, namespace, name: of the object that it is about."""

    type: str
    reason: str
    message: str
    count: int
    time: int
    source: str
    uid: str
    namespace: str
    name: str


def read_event(raw: Any) -> PodEvent | None:
    """A v1.Event. None for anything else."""
    if not isinstance(raw, dict):
        return None
    series, source, about = (as_mapping(raw.get(key)) for key in ("series", "source", "involvedObject"))
    times = (series.get("lastObservedTime"), raw.get("lastTimestamp"), raw.get("eventTime"), raw.get("firstTimestamp"))
    count = next((each for each in (series.get("count"), raw.get("count")) if isinstance(each, int)), 1)
    return PodEvent(
        _text(raw.get("type"), 40),
        _text(raw.get("reason"), 128),
        _text(raw.get("message"), MOST_MESSAGE),
        max(1, min(count, _MOST_COUNT)),
        next((found for found in map(_time, times) if found), 0),
        _text(raw.get("reportingComponent") or source.get("component"), 128),
        *(_text(about.get(key), 253) for key in ("uid", "namespace", "name")),
    )


async def last_warning(client: KubeClient, namespace: str, uid: str) -> PodEvent | None:
    """The newest Warning that tells why a pod on a node is not started. KubeError."""
    where = path("api/v1", "namespaces", namespace, "events")
    found = [event for event in await _list(client, where, f"type=Warning,involvedObject.uid={uid}") if event.uid == uid]
    found = [event for event in found if event.type == "Warning" and not event.reason.startswith(_NOT_OF_ITS_START)]
    return max(found, key=lambda event: event.time, default=None)


async def with_reason(client: KubeClient, reason: str, since: float) -> list[PodEvent]:
    """The newest Event of this reason about each object of the cluster, not older than that. KubeError."""
    newest: dict[str, PodEvent] = {}
    for event in sorted(await _list(client, path("api/v1", "events"), f"reason={reason}"), key=lambda event: event.time):
        if event.reason == reason and event.time >= since:
            newest[event.uid] = event
    return list(newest.values())


async def _list(client: KubeClient, where: str, selector: str) -> list[PodEvent]:
    answer = await client.get(where, fieldSelector=selector, limit=MOST_READ, within=SECONDS, most=MOST_BYTES)
    items = answer.get("items")
    return [event for event in map(read_event, items if isinstance(items, list) else ()) if event]


def _text(value: object, most: int) -> str:
    return as_text(str(value or ""), most)


def _time(text: object) -> int:
    """Unix time, 0 for none."""
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) if isinstance(text, str) and len(text) < 40 else 0
    except (ValueError, OverflowError):
        return 0

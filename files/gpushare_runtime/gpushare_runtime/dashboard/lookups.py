# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The Events of a pod and the quotas of a namespace, which the API server is asked for when a person opens their page.

No watch: in a large cluster there are more Events than anything else, and few of them are about GPUs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import OBJECT_NAME, as_mapping, as_text, quote
from gpushare_runtime.core.quantity import parse_quantity
from gpushare_runtime.kube.client import KubeError, path
from gpushare_runtime.kubectl_gpushare.events import MOST_BYTES, MOST_READ, SECONDS, read_event

Json = dict[str, Any]
Get = Callable[..., Awaitable[Json]]
"""`KubeClient.get`, with the rights of the person who asks."""

MOST_EVENTS: Final = 50
MOST_QUOTAS: Final = 50
_AT_ONCE: Final = 4
_NAME: Final = re.compile(OBJECT_NAME)
_PREFIX: Final = "requests."
_OFFLINE: Final = "a file has none of them"
_MOST_AMOUNT: Final = 2**53


class Lookups:
    """At most so many at a time, from all people together."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def events(self, get: Get | None, namespace: str, name: str) -> Json:
        """{events, problem}: the newest first, {type, reason, message, count, time, source}. problem: why none is known, or ""."""
        found, problem = await self._list(
            get, "events", namespace, name, fieldSelector=f"involvedObject.kind=Pod,involvedObject.name={name}"
        )
        events = sorted(filter(None, map(_event, found)), key=lambda event: -event["time"])
        return {"events": events[:MOST_EVENTS], "problem": problem}

    async def quotas(self, get: Get | None, namespace: str) -> Json:
        """{quotas, problem}: each resource of ours in a ResourceQuota, {quota, resource, hard, used}, in units."""
        found, problem = await self._list(get, "resourcequotas", namespace)
        quotas = [row for raw in found for row in _quota(raw)]
        return {"quotas": sorted(quotas, key=lambda row: (row["resource"], row["hard"]))[:MOST_QUOTAS], "problem": problem}

    async def _list(self, get: Get | None, kind: str, namespace: str, *names: str, **selectors: str) -> tuple[list[Any], str]:
        if get is None:
            return [], _OFFLINE
        if not all(_NAME.fullmatch(name) for name in (namespace, *names)):
            return [], "no object of the API server has this name"
        where = path("api/v1", "namespaces", namespace, kind)
        try:
            async with self._turns:
                answer = await get(where, limit=MOST_READ, within=SECONDS, most=MOST_BYTES, **selectors)
        except KubeError as error:
            if error.status == 403:
                return [], f"the rights to list {kind} in the namespace {namespace} are missing"
            return [], f"the API server gave none: {quote(error.message)}"
        items = answer.get("items")
        return (items if isinstance(items, list) else []), ""


def _event(raw: Any) -> Json | None:
    """None for anything else than an Event."""
    event = read_event(raw)
    return None if event is None else {key: getattr(event, key) for key in ("type", "reason", "message", "count", "time", "source")}


def _quota(raw: Any) -> Iterator[Json]:
    metadata, status = (as_mapping(as_mapping(raw).get(key)) for key in ("metadata", "status"))
    hard, used = as_mapping(status.get("hard")), as_mapping(status.get("used"))
    for resource in protocol.RESOURCES:
        limit, taken = (_amount(amounts.get(_PREFIX + resource)) for amounts in (hard, used))
        if limit is not None:
            yield {"quota": as_text(str(metadata.get("name") or ""), 253), "resource": resource, "hard": limit, "used": taken or 0}


def _amount(value: object) -> int | None:
    try:
        # The API server writes quantities as texts.
        amount = parse_quantity(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return amount if amount is not None and 0 <= amount <= _MOST_AMOUNT else None

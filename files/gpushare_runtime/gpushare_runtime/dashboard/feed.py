# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keeps the page's state equal to the cluster: what has changed is computed again, in steps that let requests pass."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.explain import Largest
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.dashboard.history import EVERY_SECONDS, Samples
from gpushare_runtime.dashboard.rows import MOST_NAME, Row, node_row, waiting_row
from gpushare_runtime.dashboard.state import State
from gpushare_runtime.kubectl_gpushare.cluster import NOTHING_KNOWN, Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.used import PublishedUse
from gpushare_runtime.kubectl_gpushare.watcher import Watcher

T = TypeVar("T")

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 0.25
"""Between two differences: what happens meanwhile is one."""
MOST_WARNINGS: Final = 50
_STEP_SECONDS: Final = 0.02
STEP_MIB: Final = 64
"""Of memory in use: what is less is no reason to send a node again."""
STEP_PERCENT: Final = 5
"""The same of a load."""


class Feed:
    """The state of one cluster. read_at: when it was last known to be that of the API server, see `age`."""

    def __init__(self, cluster: Cluster, epoch: str, *, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self.state = State(epoch)
        self.samples = Samples()
        self.synced = False
        # State that was read from files stays as it is.
        self.offline = False
        self.age: Callable[[], float] = lambda: 0.0
        self._clock = clock
        self._sizes: tuple[Largest | None, Unit | None] = (None, None)
        # Of the GPUs whose load is known, the mean in percent.
        self._busy: int | None = None
        # "off" until it is followed, then "", or why it is not known.
        self._used_problem = "off"
        # An older row must not come after a newer one.
        self._refreshing = asyncio.Lock()
        self._news = asyncio.Event()

    def news(self) -> Awaitable[object]:
        """Ends at the next change of the state."""
        return self._news.wait()

    async def watch(self, watcher: Watcher) -> NoReturn:
        """Follow the cluster until this is cancelled, or the watcher fails."""
        self.age = lambda: watcher.age
        watching = asyncio.ensure_future(watcher.run())
        try:
            while True:
                if watcher.synced:
                    await self.refresh()
                changed = asyncio.ensure_future(watcher.changed.wait())
                # Also without a change: the history continues.
                await asyncio.wait({watching, changed}, timeout=EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if watching.done():
                    watching.result()
                await asyncio.sleep(REFRESH_SECONDS)
                watcher.changed.clear()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def keep(self) -> NoReturn:
        """For a cluster that does not change: one read from files."""
        while True:
            await self.refresh()
            await asyncio.sleep(EVERY_SECONDS)

    async def follow_published(self) -> NoReturn:
        """The use that nodes publish, as it comes with the watch of them."""
        while True:
            self._used_problem = "" if self.cluster.uses else "off"
            found = PublishedUse(self.cluster)
            await in_steps(sorted(self.cluster.ledger.nodes), found.add)
            await self.set_used(found.used)
            if self.synced:
                await self.refresh()
            # The first rows may have been made before this was known.
            await asyncio.sleep(EVERY_SECONDS if self.synced else REFRESH_SECONDS)

    async def follow_used(self, read: Callable[[], Awaitable[Used]]) -> NoReturn:
        """Read the memory in use every half minute. While that fails, none is known, and a warning of the page has the reason."""
        while True:
            try:
                used, problem = await read(), ""
            except InputError as error:
                used, problem = NOTHING_KNOWN, f"memory in use is not known: {error}"
            if problem and self._used_problem in ("", "off"):
                log.warning("%s", as_text(problem))
            self._used_problem = problem
            await self.set_used(used)
            if self.synced:
                await self.refresh()
            await asyncio.sleep(EVERY_SECONDS)

    async def set_used(self, used: Used) -> None:
        """This is in use now."""
        before, self.cluster.used = self.cluster.used, used
        loads = used.busy_gpus.values()
        self._busy = round(sum(loads) / len(loads)) if loads else None
        if used == before:
            # Most half minutes: a glance at the whole spares one at each of 50,000 pods.
            return
        nodes, changed = self.cluster.ledger.nodes, self.cluster.changed

        def compare(name: str) -> None:
            node = nodes.get(name)
            if node is not None and _differs(node, before, used):
                changed.nodes.add(name)

        await in_steps(list(nodes), compare)

    async def refresh(self) -> None:
        """Compute what has changed, and wake those who wait for news."""
        async with self._refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        cluster, state = self.cluster, self.state
        cluster.settle()
        changed = cluster.changed.take()
        nodes = await in_steps(changed.nodes, lambda name: node_row(cluster, name))
        sizes = (cluster.largest(), cluster.unit()) if cluster.waiting else self._sizes
        uids = changed.waiting if sizes == self._sizes else changed.waiting | cluster.waiting.keys()
        self._sizes = sizes
        waiting = await in_steps(uids, self._waiting_row)
        differs = state.update(_by_shown_name(nodes), _by_shown_name(waiting), self._header())
        self.samples.add(self._clock(), state.sums.total, state.sums.allocated, state.waiting, self._busy)
        if differs or not self.synced:
            self.synced = True
            self._news, before = asyncio.Event(), self._news
            before.set()

    def _waiting_row(self, uid: str) -> Row | None:
        wait = self.cluster.waiting.get(uid)
        return None if wait is None else waiting_row(wait, *self._sizes)

    def _header(self) -> dict[str, Any]:
        warnings = [as_text(text) for text in self.cluster.warnings[:MOST_WARNINGS]]
        warnings += [as_text(self._used_problem)] if self._used_problem not in ("", "off") else []
        more = len(self.cluster.warnings) - MOST_WARNINGS
        return {
            "offline": self.offline,
            "complete": self.cluster.complete,
            "knows_nodes": self.cluster.knows_nodes,
            "uses": as_text(self._used_problem),
            "warnings": [*warnings, *([f"{more} more"] if more > 0 else [])],
        }


def _differs(node: NodeLedger, before: Used, used: Used) -> bool:
    gpus = node.inventory.gpus if node.inventory else ()
    return any(_of_gpu(before, gpu.uuid) != _of_gpu(used, gpu.uuid) for gpu in gpus) or any(
        _of_pod(before, pod.uid) != _of_pod(used, pod.uid) for pod in node.pods
    )


def _of_gpu(used: Used, uuid: str) -> tuple[int | None, int | None]:
    """As coarse as the steps in which a page changes."""
    return _steps(used.by_gpu.get(uuid), STEP_MIB), _steps(used.busy_gpus.get(uuid), STEP_PERCENT)


def _of_pod(used: Used, uid: str) -> tuple[int | None, int | None, bool]:
    return _steps(used.by_pod.get(uid), STEP_MIB), _steps(used.busy_pods.get(uid), STEP_PERCENT), uid in used.idle


def _steps(value: int | None, step: int) -> int | None:
    return None if value is None else value // step


def _by_shown_name(rows: Mapping[str, Row | None]) -> dict[str, Row | None]:
    """Differences name what is gone as the rows do: the API server has no names that would not be printable, but a file may."""
    return {as_text(name, MOST_NAME): row for name, row in rows.items()}


async def in_steps(keys: Iterable[str], compute: Callable[[str], T]) -> dict[str, T]:
    """Key → `compute(key)`; other tasks run in between."""
    found, until = {}, time.monotonic() + _STEP_SECONDS
    for key in keys:
        found[key] = compute(key)
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _STEP_SECONDS
    return found

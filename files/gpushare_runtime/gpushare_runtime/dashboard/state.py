# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The content of every page, as a whole and as differences from one revision to the next. Pure.

A reader that has the whole of a revision and applies the differences since, in order, has the whole of the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from gpushare_runtime.dashboard.rows import Row, Sums

MOST_KEPT: Final = 1000
MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of the differences that are kept for pages that were away for a while. One that was away for longer reads the whole."""


class State:
    """The rows of nodes and of waiting pods. epoch: differs from one process to the next, so that no page applies another's differences."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.revision = 0
        self.sums = Sums()
        self._nodes: dict[str, Row] = {}
        self._waiting: dict[str, Row] = {}
        self._header: dict[str, Any] = {}
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0

    @property
    def waiting(self) -> int:
        """How many pods wait."""
        return len(self._waiting)

    @property
    def version(self) -> str:
        """Of the whole, for `since`."""
        return f"{self.epoch}.{self.revision}"

    def update(self, nodes: Mapping[str, Row | None], waiting: Mapping[str, Row | None], header: Mapping[str, Any]) -> bool:
        """These rows by name and by UID have become so; None: they are gone. Whether anything differs from before.

        header: what is not of one node, such as warnings; all of it.
        """
        node_rows, gone = _changed(self._nodes, nodes)
        pod_rows, done = _changed(self._waiting, waiting)
        for name in [*node_rows, *gone]:
            before, after = self._nodes.get(name), nodes[name]
            self.sums = self.sums.plus(before.sums if before else Sums(), -1).plus(after.sums if after else Sums())
        _apply(self._nodes, node_rows, gone)
        _apply(self._waiting, pod_rows, done)
        differs = bool(node_rows or gone or pod_rows or done) or self._header != header
        if not differs:
            return False
        self._header = dict(header)
        self.revision += 1
        self._keep(self._written(node_rows.values(), pod_rows.values(), gone=gone, done=done))
        return True

    def whole(self) -> bytes:
        """All rows."""
        return self._written(self._nodes.values(), self._waiting.values())

    def since(self, version: str) -> list[bytes] | None:
        """The differences since that version, the oldest first; None where they are not kept any more, or never were."""
        epoch, _, number = version.partition(".")
        if epoch != self.epoch or not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        revision = int(number)
        found = [data for kept, data in self._kept if kept > revision]
        return found if revision <= self.revision and len(found) == self.revision - revision else None

    def _written(self, nodes: Iterable[Row], waiting: Iterable[Row], **more: list[str]) -> bytes:
        sums = {**self.sums.to_json(), "pending": len(self._waiting)}
        head = orjson.dumps({"version": self.version, "sums": sums, **self._header, **more})
        return b'%b,"nodes":[%b],"waiting":[%b]}' % (
            head[:-1],
            b",".join(row.data for row in nodes),
            b",".join(row.data for row in waiting),
        )

    def _keep(self, data: bytes) -> None:
        self._kept.append((self.revision, data))
        self._kept_bytes += len(data)
        while len(self._kept) > MOST_KEPT or (self._kept_bytes > MOST_KEPT_BYTES and self._kept):
            self._kept_bytes -= len(self._kept.popleft()[1])


def _changed(rows: Mapping[str, Row], update: Mapping[str, Row | None]) -> tuple[dict[str, Row], list[str]]:
    """(rows that are new or differ, keys of rows that are gone)."""
    differ: dict[str, Row] = {}
    gone = []
    for key, row in update.items():
        before = rows.get(key)
        if row is None and before is not None:
            gone.append(key)
        elif row is not None and (before is None or before != row):
            differ[key] = row
    return differ, gone


def _apply(rows: dict[str, Row], differ: Mapping[str, Row], gone: Iterable[str]) -> None:
    rows.update(differ)
    for key in gone:
        del rows[key]

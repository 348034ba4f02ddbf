# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The states that the watch shows of nodes, on its way to the ledger: of one node at most one state a second, the last one,
and none in which nothing of ours differs: a heartbeat, or a report that the ledger does not use.

Reading a node's annotations and placing pods again after it is the most that one event can cost, and a node may write as often as the
API server lets it. The first state in a second is taken at once, so that a node which writes seldom never waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import NodeTexts, unreadable_texts
from gpushare_runtime.daemon.log_line import about

log = logging.getLogger(__name__)


class NodeStates:
    """take: called with "ADDED", "MODIFIED" or "DELETED", and each state that counts."""

    def __init__(self, take: Callable[[str, NodeRecord], None]) -> None:
        self.skipped: Counter[str] = Counter()
        """States that were never read, because a newer one came within the second, by node."""
        self._take = take
        self._taken: set[str] = set()
        self._waiting: dict[str, NodeTexts] = {}
        # Of the last texts that were taken, by node: a hash, because the texts of all nodes of a large cluster are 10 MiB.
        self._known: dict[str, int] = {}

    def event(self, kind: str, texts: NodeTexts) -> None:
        """A node was "ADDED", "MODIFIED" or "DELETED"; what is gone is so at once."""
        name = texts.name
        if kind == "DELETED":
            self._waiting.pop(name, None)
            self._taken.discard(name)
            self.skipped.pop(name, None)
            self._known.pop(name, None)
            self._take(kind, NodeRecord(name, None))
        elif self._known.get(name) == hash(texts):
            self.skipped[name] += self._waiting.pop(name, None) is not None
        elif name in self._taken:
            self.skipped[name] += name in self._waiting
            self._waiting[name] = texts
        else:
            self._taken.add(name)
            self._take_now(kind, texts)

    def replace(self, listed: list[NodeTexts]) -> list[NodeRecord]:
        """The reports of all nodes by a fresh list. Nothing older waits any more."""
        names = {texts.name for texts in listed}
        self._waiting.clear()
        self._known.clear()
        self._taken &= names
        for name in self.skipped.keys() - names:
            del self.skipped[name]
        return [read(texts) for texts in listed]

    def end_of_second(self) -> Iterator[None]:
        """Take what waits, one node at each step. To be called once a second."""
        self._taken.clear()
        for name in list(self._waiting):
            self._taken.add(name)
            self.take_waiting(name)
            yield

    def take_waiting(self, name: str) -> None:
        """Take what waits of this node now, if anything does."""
        texts = self._waiting.pop(name, None)
        if texts is not None:
            self._take_now("MODIFIED", texts)

    def _take_now(self, kind: str, texts: NodeTexts) -> None:
        self._known[texts.name] = hash(texts)
        self._take(kind, read(texts))


def condensed(texts: NodeTexts) -> NodeTexts:
    """The same without the texts: those of all nodes of a large cluster are 10 MiB."""
    return NodeTexts(texts.name, record=read(texts))


def read(texts: NodeTexts) -> NodeRecord:
    """The node's report; a fault in reading it concerns that node only."""
    if texts.record is not None:
        return texts.record
    try:
        return texts.read()
    except Exception:
        log.exception("cannot read the annotations of node %s", texts.name, extra=about(node=texts.name))
        return unreadable_texts(texts.name).read()

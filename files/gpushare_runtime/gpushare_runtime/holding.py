# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the ledger knows of one pod, one card and one node, and sums of what is held. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.held import NOTHING_HELD, Held
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.request import Request
from gpushare_runtime.rules import Labels


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that is bound to a node and not finished, or about to be.

    allocation None: its card is not known. labels: of the pod, for other pods' rules; leaving: it is being deleted; alive: by its
    last status it has containers that have not ended; mirror: it is the API's copy of a static pod, which anybody may make: only
    its node can say what it has.
    """

    uid: str
    namespace: str
    name: str
    node: str
    request: Request
    allocation: Allocation | None
    labels: Labels = ()
    priority: int = 0
    leaving: bool = False
    alive: bool = False
    mirror: bool = False

    @property
    def whole(self) -> bool:
        """Whether its cards are held whole, with no memory left for others."""
        return self.request.cards > 0

    def counts_as(self, other: Holder) -> bool:
        """Whether it makes no difference to any sum or rule which of the two is in the ledger."""
        return (
            self.node == other.node
            and self.mirror == other.mirror
            and self.allocation == other.allocation
            and self.request == other.request
            and self.labels == other.labels
        )


@dataclass(frozen=True, slots=True)
class CardState:
    """One card and what is left of it. free: units, never negative; empty: nobody holds any of it; core: per cent free."""

    card: Card
    free: int
    empty: bool
    core: int = 0

    def beside(self, units: int, core: int, whole: bool) -> CardState:
        """What is left beside one pod more."""
        return CardState(self.card, 0 if whole else max(0, self.free - units), False, 0 if whole else max(0, self.core - core))


@dataclass(frozen=True)
class NodeRecord:
    """What a node says of itself, in its metadata.

    inventory: None with error "" when no device plugin has published any cards; model, placement: its labels, "" without.
    """

    name: str
    inventory: Inventory | None
    error: str = ""
    held: Held = NOTHING_HELD
    model: str = ""
    placement: str = ""


@dataclass
class Sums:
    """What is held, by card index. whole: how many hold it whole; unknown: pods of which nobody knows the card."""

    used: dict[int, int] = field(default_factory=dict)
    core: dict[int, int] = field(default_factory=dict)
    whole: dict[int, int] = field(default_factory=dict)
    unknown: list[Holder] = field(default_factory=list)

    def add(self, cards: Mapping[int, int], core: int, whole: bool) -> None:
        for index, units in cards.items():
            self.used[index] = self.used.get(index, 0) + units
            if core:
                self.core[index] = self.core.get(index, 0) + core
            if whole:
                self.whole[index] = self.whole.get(index, 0) + 1

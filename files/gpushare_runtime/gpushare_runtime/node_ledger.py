# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One node's cards and who holds what of them. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from gpushare_runtime.holding import CardState, Holder, NodeRecord, Sums
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.request import Request
from gpushare_runtime.rules import Bearer, selects

T = TypeVar("T")


class NodeLedger:
    """Changed only through `Ledger`, read by placement. record: what the node says; holders: by UID.

    on_change: told the name when something is held or free that was not before.
    """

    def __init__(self, name: str, on_change: Callable[[str], None] = lambda name: None) -> None:
        self.name = name
        self._on_change = on_change
        self.record = NodeRecord(name, None)
        self._holders: dict[str, Holder] = {}
        self._cards: tuple[CardState, ...] | None = None
        self._totals: tuple[int, int, int] | None = None
        self._frees: tuple[int, ...] | None = None
        self._with_rules = 0
        self.memo: dict[object, object] = {}
        """What is remembered until the node changes: filter and prioritize ask the same of every node again and again."""

    @property
    def inventory(self) -> Inventory | None:
        return self.record.inventory

    @property
    def inventory_error(self) -> str:
        return self.record.error

    @property
    def holders(self) -> Collection[Holder]:
        return self._holders.values()

    def holder(self, uid: str) -> Holder:
        """KeyError when it holds nothing here."""
        return self._holders[uid]

    @property
    def cards(self) -> tuple[CardState, ...]:
        """Every card of the inventory by index, with what is left of it; () without an inventory."""
        if self._cards is None:
            self._cards = tuple(self._compute())
        return self._cards

    @property
    def usable(self) -> Iterator[CardState]:
        """The cards that may take new pods."""
        return (state for state in self.cards if state.card.usable)

    @property
    def free(self) -> int:
        """Units free on all usable cards together."""
        return self._summary[0]

    def largest_free(self) -> int:
        """Units free on the usable card that has most free."""
        return self._summary[1]

    def empty_cards(self) -> int:
        """Usable cards that nobody holds any of."""
        return self._summary[2]

    @property
    def _summary(self) -> tuple[int, int, int]:
        if self._totals is None:
            usable = list(self.usable)
            frees = [state.free for state in usable]
            self._totals = sum(frees), max(frees, default=0), sum(state.empty for state in usable)
        return self._totals

    def remembered(self, key: object, compute: Callable[[], T]) -> T:
        """`compute()`, once per key until the node changes."""
        try:
            return self.memo[key]  # type: ignore[return-value]
        except KeyError:
            value = self.memo[key] = compute()
            return value

    def leftover(self, request: Request) -> int | None:
        """What stays free on the fullest cards that take the request: units, or empty cards. None if it does not fit."""
        # Asked for every node at every attempt: no call more than needed.
        try:
            return self.memo[request.key]  # type: ignore[return-value]
        except KeyError:
            left = self.memo[request.key] = self._leftover(request)
            return left

    def _leftover(self, request: Request) -> int | None:
        if request.is_plain and not self._with_rules and not self.record.held.refused:
            # Nearly all requests: only free units decide.
            least = min((free for free in self._free_units if free >= request.per_card), default=None)
            return None if least is None else least - request.per_card
        found = self.candidates(request)
        if not found:
            return None
        if request.cards:
            return len(found) - request.cards
        if request.cards_per_pod == 1:
            return min(state.free for state in found) - request.per_card
        frees = sorted(state.free for state in found)[: request.cards_per_pod]
        return sum(frees) - request.per_card * request.cards_per_pod

    @property
    def _free_units(self) -> tuple[int, ...]:
        """Of each usable card."""
        if self._frees is None:
            self._frees = tuple(state.free for state in self.usable)
        return self._frees

    def candidates(self, request: Request) -> tuple[CardState, ...]:
        """The cards of which any `cards_per_pod` (or any `cards`, whole) will do; () if they are too few."""
        return self.remembered(("cards", request.key), lambda: self._candidates(request))

    def _candidates(self, request: Request) -> tuple[CardState, ...]:
        found = tuple(state for state in self.cards if not self.against(request, state))
        return found if len(found) >= (request.cards or request.cards_per_pod) else ()

    def could_hold(self, request: Request) -> bool:
        """Whether it would fit if nobody held anything here."""
        return self.remembered(("empty", request.key), lambda: self._could_hold(request))

    def _could_hold(self, request: Request) -> bool:
        if self.inventory is None or request.core > self.inventory.core:
            return False
        cards = [state.card for state in self.usable if request.cards or state.card.units >= request.per_card]
        suitable = sum(request.rules.accept(card.uuid, self._models(card)) for card in cards)
        return suitable >= (request.cards or request.cards_per_pod)

    def against(self, request: Request, state: CardState) -> str:
        """Why a card of this node does not take (its part of) a request, in a word; "" if it does."""
        if not state.card.usable:
            return "unusable"
        if request.rules.about_cards and not request.rules.accept(state.card.uuid, self._models(state.card)):
            return "refused"
        if not state.empty if request.cards else state.free < request.per_card or state.core < request.core:
            return "room"
        if self.record.held.refused and self._held_back(request, state.card):
            return "held back"
        if (self._with_rules or request.rules.about_pods) and not self._good_company(request, state.card):
            return "company"
        return ""

    def _models(self, card: Card) -> list[str]:
        """The node's label speaks for its cards only where they are all alike."""
        alike = self.record.model and self.inventory and len({c.model for c in self.inventory.cards}) == 1
        return [card.model, self.record.model] if alike else [card.model]

    def _held_back(self, request: Request, card: Card) -> bool:
        """The node refused a pod of this size on this card a moment ago: the same again would be a loop."""
        return any(
            refusal.card == card.uuid and (refusal.whole if request.cards else not refusal.whole and request.per_card >= refusal.units)
            for refusal in self.record.held.refused
        )

    def _good_company(self, request: Request, card: Card) -> bool:
        """Whether the rules of this pod and of those that are (or may be) on the card let them be together."""
        bearer, rules = request.bearer or Bearer("", ()), request.rules
        beside = False
        for holder in self._holders.values():
            known = self.known(holder)
            if known is not None and card.index not in known:
                continue
            if holder.namespace == bearer.namespace:
                if selects(rules.not_with, holder.labels) or selects(holder.request.rules.not_with, bearer.labels):
                    return False
                beside = beside or (known is not None and selects(rules.same_card_as, holder.labels))
        return beside or not rules.same_card_as or bearer.first

    def sound(self, holder: Holder) -> bool:
        """Whether a pod that is here already can still be admitted to the cards that it was given."""
        inventory, allocation = self.inventory, holder.allocation
        if inventory is None or allocation is None or self.known(holder) is not allocation.by_card:
            return False
        cards = [inventory.by_index[index] for index in allocation.by_card]
        over = self.overbooked()
        return all(card.usable and card.index not in over and not self._held_back(holder.request, card) for card in cards)

    def supposing(self, add: Iterable[Holder] = (), without: Collection[str] = ()) -> NodeLedger:
        """A copy with these pods more, and without those UIDs; this one stays as it is."""
        other = NodeLedger(self.name)
        other.record = self.record
        for holder in self._holders.values():
            if holder.uid not in without:
                other.put(holder)
        for holder in add:
            other.put(holder)
        return other

    def overbooked(self) -> dict[int, int]:
        """Card index → units held beyond what it has, or by pods beside a whole holder. {} when the ledger is sound."""
        excess: dict[int, int] = {}
        if self.inventory is None:
            return excess
        sums = self._stated()
        for index, units in sums.used.items():
            card = self.inventory.by_index.get(index)
            over = units - (card.units if card else 0)
            if sums.whole.get(index, 0) > 1:
                over = max(over, 1)
            if over > 0:
                excess[index] = over
        return excess

    def _stated(self) -> Sums:
        """What the pods' annotations say, possible or not."""
        sums = Sums()
        for holder in self._holders.values():
            if holder.allocation is not None:
                sums.add(holder.allocation.by_card, holder.request.core, holder.whole)
        return sums

    def problems(self) -> list[str]:
        """What cannot be, in words, one line each; [] when the ledger is sound."""
        if self.inventory is None:
            return []
        found = [f"card {index}: {units} units are held beyond what it has" for index, units in sorted(self.overbooked().items())]
        for index, core in sorted(self._stated().core.items()):
            if core > self.inventory.core:
                found.append(f"card {index}: {core} % of its compute are held, it shares out {self.inventory.core} %")
        for holder in self._holders.values():
            if self.known(holder) is None:
                found.append(f"pod {holder.namespace}/{holder.name}: {_unknown(holder)}")
        strangers = sorted({entry.card for entry in self.record.held.entries} - set(self.inventory.by_uuid))
        return found + [f"the node says that pods hold card {uuid}, which is not among its cards" for uuid in strangers]

    def known(self, holder: Holder) -> Mapping[int, int] | None:
        """{card: units} that this pod has; None if that is not known, or cannot be."""
        if self.inventory is None:
            return None
        by_index = self.inventory.by_index
        if holder.allocation is not None:
            cards = holder.allocation.by_card
            if all(index in by_index and units <= by_index[index].units for index, units in cards.items()):
                return cards
        said = self._said(holder.uid)
        enough = len(said) >= holder.request.cards if holder.whole else sum(said.values()) >= holder.request.units
        return said if said and enough else None

    def _said(self, uid: str) -> dict[int, int]:
        """What the node itself says that a pod holds, by card index."""
        said: dict[int, int] = {}
        for entry in self.record.held.entries:
            card = self.inventory.by_uuid.get(entry.card) if self.inventory else None
            if entry.uid == uid and card is not None:
                said[card.index] = said.get(card.index, 0) + entry.units
        return said

    def _uuid(self, index: int) -> str:
        card = self.inventory.by_index.get(index) if self.inventory else None
        return card.uuid if card else ""

    def _sums(self) -> Sums:
        sums = Sums()
        for holder in self._holders.values():
            known = self.known(holder)
            if known is None:
                sums.unknown.append(holder)
            else:
                sums.add(known, holder.request.core, holder.whole)
        if self.record.held.entries:
            self._add_said(sums)
        return sums

    def _add_said(self, sums: Sums) -> None:
        """What the node says beyond what the pods do: of a pod that is gone, or on another card than its annotations name."""
        for uid in {entry.uid for entry in self.record.held.entries}:
            holder = self._holders.get(uid)
            known = self.known(holder) if holder is not None else {}
            if known is None:
                continue
            whole = {entry.card for entry in self.record.held.entries if entry.uid == uid and entry.whole}
            for index, units in self._said(uid).items():
                if units > known.get(index, 0):
                    is_whole = index not in known and self._uuid(index) in whole
                    sums.add({index: units - known.get(index, 0)}, 0, is_whole)

    def _compute(self) -> Iterator[CardState]:
        if self.inventory is None:
            return
        sums, offered = self._sums(), self.inventory.core
        for card in self.inventory.cards:
            free = 0 if card.index in sums.whole else max(0, card.units - sums.used.get(card.index, 0))
            core = 0 if card.index in sums.whole else max(0, offered - sums.core.get(card.index, 0))
            empty = card.index not in sums.used
            # A pod whose card is not known counts against every card that could hold it.
            for holder in sums.unknown:
                if holder.whole:
                    free, core, empty = 0, 0, False
                elif holder.request.per_card <= card.units:
                    free, empty = max(0, free - holder.request.per_card), False
                    core = max(0, core - holder.request.core)
            yield CardState(card, free, empty, core)

    def set_record(self, record: NodeRecord) -> None:
        if record != self.record:
            self.record = record
            self._changed()

    def put(self, holder: Holder) -> None:
        before = self._holders.get(holder.uid)
        self._holders[holder.uid] = holder
        if before is None or not before.counts_as(holder):
            self._with_rules += bool(holder.request.rules.not_with) - bool(before and before.request.rules.not_with)
            self._changed()

    def drop(self, uid: str) -> None:
        gone = self._holders.pop(uid, None)
        if gone is not None:
            self._with_rules -= bool(gone.request.rules.not_with)
            self._changed()

    def _changed(self) -> None:
        self._cards = self._totals = self._frees = None
        self.memo.clear()
        self._on_change(self.name)


def _unknown(holder: Holder) -> str:
    if holder.allocation is None:
        return "its card is not known; it counts against every card that could hold it"
    named = ", ".join(map(str, sorted(holder.allocation.by_card)))
    return f"no pod can have what its annotations say of card {named}; it counts against every card that could hold it"

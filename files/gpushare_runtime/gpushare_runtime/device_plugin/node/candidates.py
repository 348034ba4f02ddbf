# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which of the free ids a container should get. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushare_runtime.core.inventory import Card


@dataclass(frozen=True)
class Offer:
    """A card that may be given from.

    ids: of this card that may be given, best first (for whole cards: its UUID); promised: units that the scheduler gave to
    pods which have not got their ids yet; other: it may be given although the scheduler chose another one.
    """

    card: Card
    ids: Sequence[str]
    promised: int = 0
    other: bool = True


def take_chosen(offers: Sequence[Offer], size: int, must: Collection[str], wanted: Mapping[int, int], room: int = 0) -> list[str] | None:
    """`size` unit ids with `must` among them, as the scheduler chose (card index → units); None if that cannot be had.

    room: units that must be free on each of the cards, for the other containers of the pod.
    """
    if not wanted or sum(wanted.values()) != size:
        return None
    by_index = {offer.card.index: offer for offer in offers}
    parts = [(by_index.get(index), units) for index, units in wanted.items()]
    ids = [i for offer, units in parts if offer and len(offer.ids) >= max(units, room) for i in _take(offer.ids, units, must)]
    return ids if len(ids) == size and set(must) <= set(ids) else None


def choose_units(
    offers: Sequence[Offer], size: int, must: Collection[str], wanted: Mapping[int, int], spread: int = 1, room: int = 0
) -> list[str] | None:
    """`size` unit ids with `must` among them; None if the cards do not have them.

    wanted: card index → units that the scheduler chose. If it cannot be had, the best other cards, `spread` of them with the
    same units each: first those with `room` for all containers of the pod, then those whose promised units stay free, then the
    fullest.
    """
    chosen = take_chosen(offers, size, must, wanted, room)
    if chosen is not None:
        return chosen
    if spread < 1 or size % spread:
        return None
    each = size // spread
    obliged = set(must)
    ranked = sorted(
        (o for o in offers if o.other and len(o.ids) >= each),
        key=lambda o: (obliged.isdisjoint(o.ids), len(o.ids) < room, len(o.ids) - o.promised < max(each, room), len(o.ids), o.card.index),
    )
    ids = [i for offer in ranked[:spread] for i in _take(offer.ids, each, must)]
    return ids if len(ids) == size and obliged <= set(ids) else None


def choose_cards(
    offers: Sequence[Offer], size: int, must: Collection[str], wanted: Mapping[int, int], of_pod: Collection[int] = ()
) -> list[str] | None:
    """`size` card UUIDs with `must` among them; None if there are not that many.

    First those that the scheduler chose for the container (`wanted`, by index), then its pod's others (`of_pod`: kubelet picks
    at random which of an init container's cards a later container has), then cards that nothing is promised on, smallest first.
    """

    def rank(offer: Offer) -> tuple[bool | int, ...]:
        card = offer.card
        return card.uuid not in must, card.index not in wanted, card.index not in of_pod, offer.promised > 0, card.units, card.index

    ranked = sorted((o for o in offers if o.other or o.card.index in wanted or o.card.index in of_pod or o.card.uuid in must), key=rank)
    chosen = [offer.card.uuid for offer in ranked[:size]]
    return chosen if len(chosen) == size and set(must) <= set(chosen) else None


def _take(ids: Sequence[str], count: int, must: Collection[str]) -> list[str]:
    if not must:
        return list(ids[:count])
    first = [i for i in ids if i in must]
    return (first + [i for i in ids if i not in must])[:count]

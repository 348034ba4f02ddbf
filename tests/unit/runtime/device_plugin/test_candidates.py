# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The choice among free ids: the scheduler's card, else one card, never two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeVar

from gpushare_runtime.device_plugin.node.candidates import Offer, choose_cards, choose_units
from unit.runtime.pods import card

T = TypeVar("T")


def offer(index: int, free: int, promised: int = 0, first: int = 0) -> Offer:
    return Offer(card(index, 16), [f"{index}-_-{slot}" for slot in range(first, first + free)], promised)


def whole(index: int, units: int = 16, promised: int = 0) -> Offer:
    return Offer(card(index, units), [f"GPU-{index:08d}"], promised)


def test_the_schedulers_card_with_its_lowest_slots() -> None:
    assert choose_units([offer(0, 8), offer(1, 8, first=3)], 2, [], {1: 2}) == ["1-_-3", "1-_-4"]


def test_the_fullest_card_when_the_schedulers_has_no_room() -> None:
    assert choose_units([offer(0, 8), offer(1, 1), offer(2, 4)], 3, [], {1: 3}) == ["2-_-0", "2-_-1", "2-_-2"]


def test_room_that_is_promised_to_others_is_taken_last() -> None:
    assert choose_units([offer(0, 3, promised=3), offer(1, 8)], 3, [], {}) == ["1-_-0", "1-_-1", "1-_-2"]
    assert choose_units([offer(0, 3, promised=3)], 3, [], {}) == ["0-_-0", "0-_-1", "0-_-2"]


def test_ids_that_must_be_in_it_decide_the_card() -> None:
    assert choose_units([offer(0, 8), offer(1, 8)], 2, ["1-_-7"], {}) == ["1-_-7", "1-_-0"]
    assert choose_units([offer(0, 8), offer(1, 8)], 2, ["1-_-7", "0-_-0"], {}) is None


def test_units_of_several_cards_when_the_scheduler_chose_several() -> None:
    assert choose_units([offer(0, 8), offer(1, 8)], 3, [], {0: 1, 1: 2}) == ["0-_-0", "1-_-0", "1-_-1"]


def drawn(random: Random, *, whole: bool) -> list[Offer]:
    """Cards 0, 1, … of which little is free, or which are small and whole."""
    offers = []
    for index in range(random.randrange(5)):
        units, promised, other = random.randrange(5), random.choice((0, 0, 1, 4)), random.random() < 0.8
        ids = [f"GPU-{index:08d}"] if whole else [f"{index}-_-{slot}" for slot in range(units)]
        offers.append(Offer(card(index, units), ids, promised, other))
    random.shuffle(offers)
    return offers


def some(random: Random, most: int, *of: T) -> list[T]:
    return random.sample(of, min(len(of), random.randrange(most + 1)))


def ways(offers: list[Offer], size: int, must: set[str], spread: int) -> Iterator[tuple[Offer, ...]]:
    """All in which the units can be given without the scheduler's choice: the same number on each of `spread` cards."""
    for way in itertools.combinations([o for o in offers if o.other], spread):
        obliged = [must & set(o.ids) for o in way]
        held = set().union(*obliged) == must and all(len(ids) <= size // spread <= len(o.ids) for ids, o in zip(obliged, way, strict=True))
        if size % spread == 0 and held:
            yield way


def units_by_card(offers: list[Offer], size: int, must: set[str], wanted: dict[int, int], spread: int) -> dict[int, int] | None:
    """Card → units: the scheduler's choice if it can be had, else the best of all ways, if there is one."""
    free = {o.card.index: set(o.ids) for o in offers}
    obliged = {index: must & free.get(index, set()) for index in wanted}
    possible = all(len(obliged[i]) <= units <= len(free.get(i, ())) for i, units in wanted.items())
    if sum(wanted.values()) == size and possible and set().union(*obliged.values()) == must:
        return wanted
    each = size // spread

    def worth(way: tuple[Offer, ...]) -> list[tuple[bool, bool, int, int]]:
        """First whose promised units stay free, then the fullest; the worst card of a way counts last."""
        return sorted((must.isdisjoint(o.ids), len(o.ids) - o.promised < each, len(o.ids), o.card.index) for o in way)

    best = min(ways(offers, size, must, spread), key=worth, default=None)
    return {o.card.index: each for o in best} if best is not None else None


def test_units_are_the_schedulers_else_the_best_of_all_that_could_be_given() -> None:
    random = Random(0)
    for _ in range(5000):
        offers = drawn(random, whole=False)
        size, spread = random.randint(1, 6), random.choice((1, 1, 2, 3))
        must = set(some(random, 3, *(i for o in offers for i in o.ids)))
        wanted = {index: random.choice((size, size // 2 or 1)) for index in some(random, 2, *range(5))}
        case = (offers, size, must, wanted, spread)
        chosen, expected = choose_units(offers, size, sorted(must), wanted, spread), units_by_card(*case)
        assert (chosen is None) == (expected is None), case
        if chosen is not None and expected is not None:
            assert Counter(int(i.partition("-")[0]) for i in chosen) == expected, case
            # Beside those that it must have the lowest slots.
            given = [sorted(o.ids, key=lambda i: i not in must)[: expected.get(o.card.index, 0)] for o in offers]
            assert sorted(chosen) == sorted(itertools.chain(*given)), case
            assert must <= set(chosen), case


def test_whole_cards_are_the_containers_then_its_pods_then_those_of_which_least_is_lost() -> None:
    random = Random(0)
    for _ in range(5000):
        offers, size = drawn(random, whole=True), random.randint(1, 4)
        must, wanted, of_pod = (some(random, 2, *range(5)) for _ in range(3))
        case = (offers, size, must, wanted, of_pod)
        chosen = choose_cards(offers, size, [f"GPU-{i:08d}" for i in must], dict.fromkeys(wanted, 1), of_pod)
        by_index = {o.card.index: o for o in offers}
        others = [i for i, o in by_index.items() if o.other]
        order: list[int] = []
        # Each group in turn, and in each the earlier rules again.
        for group in (must, wanted, of_pod, [i for i in others if not by_index[i].promised], others):
            fresh = [i for i in group if i in by_index and i not in order]
            order += sorted(fresh, key=lambda i: (i not in wanted, i not in of_pod, by_index[i].promised > 0, by_index[i].card.units, i))
        possible = len(order) >= size >= len(must) and by_index.keys() >= set(must)
        assert chosen == ([f"GPU-{i:08d}" for i in order[:size]] if possible else None), case


def test_whole_cards_are_the_schedulers_then_the_smallest_without_a_promise() -> None:
    offers = [whole(0, 24), whole(1, 16, promised=1), whole(2, 16), whole(3, 16)]
    assert choose_cards(offers, 1, [], {3: 16}) == ["GPU-00000003"]
    assert choose_cards(offers, 2, [], {3: 16}) == ["GPU-00000003", "GPU-00000002"]
    assert choose_cards(offers, 3, [], {}) == ["GPU-00000002", "GPU-00000003", "GPU-00000000"]
    assert choose_cards(offers, 5, [], {}) is None
    assert choose_cards(offers, 1, ["GPU-00000001"], {3: 16}) == ["GPU-00000001"]


def test_a_pods_own_cards_come_before_cards_that_nothing_is_promised_on() -> None:
    offers = [whole(0, 16), whole(1, 24, promised=24), whole(2, 24, promised=24)]
    assert choose_cards(offers, 2, ["GPU-00000002"], {2: 24}, [1, 2]) == ["GPU-00000002", "GPU-00000001"]

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The choice among free ids: the scheduler's card, else one card, never two."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.device_plugin.choice import Offer, choose_cards, choose_units
from unit.runtime.pods import card


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


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=5), st.integers(1, 6), st.integers(0, 5))
def test_units_come_from_one_card_if_any_has_them(free: list[int], size: int, wanted: int) -> None:
    chosen = choose_units([offer(index, count) for index, count in enumerate(free)], size, [], {wanted: size})
    if chosen is None:
        assert max(free, default=0) < size
    else:
        cards = {i.split("-_-")[0] for i in chosen}
        assert (len(chosen), len(set(chosen)), len(cards)) == (size, size, 1)
        if wanted < len(free) and free[wanted] >= size:
            assert cards == {str(wanted)}


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

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Cards from NVML, and the size of their list for kubelet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.device_plugin import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.cards import CardReader, NvmlError, list_bytes, smallest_fitting
from gpushare_runtime.device_plugin.health import CardHealth
from gpushare_runtime.inventory import Card, Inventory
from gpushare_runtime.quantity import GIB, UNITS, unit_id
from unit.runtime.device_plugin.fake_nvml import FakeNvml, facts


def test_a_card_is_what_nvml_says_in_whole_units() -> None:
    inventory = CardReader(FakeNvml(15360 + 1023), GIB, CardHealth()).read()
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    assert inventory.cards == (Card(0, uuid, 0, "0000:3b:00.0", "Tesla T4", 16383, 15, 0, "ok"),)


def test_cards_are_read_anew_each_time() -> None:
    nvml = FakeNvml(8192)
    reader = CardReader(nvml, GIB, CardHealth(checks=1))
    assert reader.read().units == 8
    nvml.cards = [facts(0, 4096, uuid="GPU-new"), facts(1, 4096)]
    assert [card.uuid for card in reader.read().cards] == ["GPU-new", nvml.cards[1].uuid]
    assert nvml.starts == 1


def test_one_lost_card_leaves_the_others_alone_and_comes_back() -> None:
    nvml = FakeNvml(8192, 8192)
    reader = CardReader(nvml, GIB, CardHealth(checks=1))
    before = reader.read()
    nvml.lost = {1}
    lost = reader.read()
    assert [(card.uuid, card.health) for card in lost.cards] == [(before.cards[0].uuid, "ok"), (before.cards[1].uuid, "the card is lost")]
    nvml.lost = set()
    assert reader.read() == before


def test_a_card_that_never_answered_is_left_out() -> None:
    nvml = FakeNvml(8192, 8192)
    nvml.lost = {0}
    assert [card.index for card in CardReader(nvml, GIB, CardHealth(checks=1)).read().cards] == [1]


def test_when_nvml_fails_all_cards_are_unusable_and_it_is_started_again() -> None:
    nvml = FakeNvml(8192)
    reader = CardReader(nvml, GIB, CardHealth(checks=1))
    nvml.failure = NvmlError("the driver is gone")
    with pytest.raises(NvmlError):
        reader.read()
    assert reader.failed("the driver is gone") is None
    nvml.failure = None
    before = reader.read()
    nvml.failure = NvmlError("the driver is gone")
    with pytest.raises(NvmlError):
        reader.read()
    failed = reader.failed("the driver is gone")
    assert failed is not None
    assert [(card.uuid, card.health, card.usable) for card in failed.cards] == [(before.cards[0].uuid, "the driver is gone", False)]
    starts, nvml.failure = nvml.starts, None
    assert reader.read() == before
    assert nvml.starts == starts + 1


def test_two_cards_with_one_uuid_are_an_exchange_under_way() -> None:
    nvml = FakeNvml(8192, 8192)
    nvml.cards[1] = nvml.cards[0]
    with pytest.raises(NvmlError, match="changed while they were read"):
        CardReader(nvml, GIB, CardHealth(checks=1)).read()


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=3))
def test_the_size_of_the_list_is_what_protobuf_makes_of_it(units: list[int]) -> None:
    cards = [(facts(index, 0).uuid, count) for index, count in enumerate(units)]
    devices = [pb.Device(ID=unit_id(uuid, slot), health="Unhealthy") for uuid, count in cards for slot in range(count)]
    assert list_bytes(cards) == pb.ListAndWatchResponse(devices=devices).ByteSize()


@pytest.mark.parametrize(
    ("cards", "mib", "unit"),
    [(1, 15360, "MiB"), (8, 15360, "64MiB"), (8, 81920, "64MiB"), (16, 294912, "128MiB"), (300, 294912, None)],
)
def test_the_smallest_unit_that_kubelet_takes(cards: int, mib: int, unit: str | None) -> None:
    read = CardReader(FakeNvml(*[mib] * cards), GIB, CardHealth()).read()
    fitting = smallest_fitting(read, list(UNITS.values()))
    assert (fitting.name if fitting else None) == unit


def test_units_of_the_inventory_are_those_of_the_unit() -> None:
    assert CardReader(FakeNvml(8192), UNITS["64MiB"], CardHealth()).read() == Inventory(
        UNITS["64MiB"], (Card(0, facts(0, 0).uuid, 0, "0000:3b:00.0", "Tesla T4", 8192, 128, 0),)
    )

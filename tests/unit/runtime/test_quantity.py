# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Units, unit ids and Kubernetes quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.quantity import UNITS, parse_quantity, parse_unit, parse_unit_id, unit_id


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (8, 8), ("8", 8), ("+8", 8), ("10G", 10_000_000_000), ("10Gi", 10_737_418_240), ("1k", 1000), ("1Ki", 1024),
        ("1e3", 1000), ("1E3", 1000), ("1.5k", 1500), ("2000m", 2), ("-3", -3), ("1E", 10**18), (".5k", 500), ("0", 0),
    ],
)  # fmt: skip
def test_quantities_of_kubernetes(written: object, number: int) -> None:
    assert parse_quantity(written) == number


@pytest.mark.parametrize("written", ["", "8 GiB", "eight", "0x8", "8g", "--8", "1.5", "500m", None, 1.5, True, "1e", "٨"])
def test_what_is_no_whole_quantity_is_refused_and_quoted(written: object) -> None:
    with pytest.raises(ValueError, match="whole number") as error:
        parse_quantity(written)
    assert repr(written) in str(error.value)


@given(st.integers(min_value=-(2**63), max_value=2**63))
def test_plain_numbers_mean_themselves(number: int) -> None:
    assert parse_quantity(str(number)) == parse_quantity(number) == number


@given(st.text(min_size=1), st.integers(min_value=0, max_value=10**6))
def test_unit_ids_name_their_card_and_slot(uuid: str, slot: int) -> None:
    assert parse_unit_id(unit_id(uuid, slot)) == (uuid, slot)


def test_unit_ids_have_the_originals_form_and_fit_kubelets_63_characters() -> None:
    uuid = "GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a2b"
    assert unit_id(uuid, 7) == "GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a2b-_-7"
    assert len(unit_id(uuid, 294_912)) <= 63


@pytest.mark.parametrize("device_id", ["", "GPU-1", "GPU-1-_-", "GPU-1-_-x", "-_-3", "GPU-1-_--3", "GPU-1-_-²"])
def test_other_ids_are_refused_and_quoted(device_id: str) -> None:
    with pytest.raises(ValueError, match="device id") as error:
        parse_unit_id(device_id)
    assert repr(device_id) in str(error.value)


def test_a_card_offers_whole_units_only() -> None:
    assert parse_unit("GiB").count(15_360) == 15
    assert parse_unit("GiB").count(23_028) == 22
    assert parse_unit("256MiB").count(23_028) == 89
    assert parse_unit("MiB").count(15_360) == 15_360


def test_an_unknown_unit_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="GB") as error:
        parse_unit("GB")
    assert all(name in str(error.value) for name in UNITS)

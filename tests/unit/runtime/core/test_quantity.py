# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Units, unit ids and Kubernetes quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.quantity import UNITS, parse_cpu, parse_quantity, parse_unit
from unit.golden import Golden


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (8, 8), (-8, -8), ("8", 8), ("+8", 8), ("10G", 10_000_000_000), ("10Gi", 10_737_418_240), ("1k", 1000), ("1Ki", 1024),
        ("1e3", 1000), ("1E3", 1000), ("1.5k", 1500), ("2000m", 2), ("-3", -3), (".5k", 500), ("0", 0), ("8.", 8), ("1e+2", 100),
        ("2M", 2 * 10**6), ("2T", 2 * 10**12), ("2P", 2 * 10**15), ("1E", 10**18), ("3000000u", 3), ("4000000000n", 4), ("500e-2", 5),
        ("2Mi", 2 * 2**20), ("2Ti", 2 * 2**40), ("2Pi", 2 * 2**50), ("2Ei", 2 * 2**60), ("0.5Ki", 512), ("-2Ki", -2048), ("-0", 0),
        ("1e12", 10**12),
    ],
)  # fmt: skip
def test_quantities_of_kubernetes(written: object, number: int) -> None:
    assert parse_quantity(written) == number


@pytest.mark.parametrize("written", ["", "8 GiB", "eight", "0x8", "8g", "--8", "1.5", "500m", None, 1.5, True, "1e", "٨",
    "8\n", " 8", "8Kii", "8ki", ".", "8e3k", "8k8", "1e100", "1e-1", "1E-3", "u", [8], b"8"])  # fmt: skip
def test_what_is_no_whole_quantity_is_rejected_and_quoted(written: object) -> None:
    with pytest.raises(ValueError, match="whole number") as error:
        parse_quantity(written)
    assert repr(written) in str(error.value)


@given(st.integers(-(10**6), 10**6), st.sampled_from("numkMGTPE"), st.integers(-9, 18))
def test_a_suffix_means_what_its_exponent_means(number: int, suffix: str, exponent: int) -> None:
    def read(text: str) -> int | None:
        try:
            return parse_quantity(text)
        except ValueError:
            return None

    same = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[suffix]
    assert read(f"{number}{suffix}") == read(f"{number}e{same}") == read(f"{number}.0E{same}")
    scaled = number * 10**9 * 10**exponent if exponent >= 0 else number * 10**9 // 10**-exponent
    assert read(f"{number}e{exponent}") == (scaled // 10**9 if scaled % 10**9 == 0 else None)


@given(st.integers(min_value=-(2**63), max_value=2**63))
def test_plain_numbers_mean_themselves(number: int) -> None:
    assert parse_quantity(str(number)) == parse_quantity(number) == number


@pytest.mark.parametrize(
    ("written", "thousandths"),
    [
        ("4", 4000), (4, 4000), ("500m", 500), ("1.5", 1500), (0.5, 500), ("100u", 1), ("1001u", 2), ("0", 0), ("1e3", 10**6),
        ("9E", 10**7), (10**400, 10**7),
    ],
)  # fmt: skip
def test_cpu_is_counted_in_thousandths_rounded_up_and_in_bounds(written: object, thousandths: int) -> None:
    assert parse_cpu(written, 10**7) == thousandths


@pytest.mark.parametrize("written", ["-1m", -1, "", "four", None, True, float("nan"), float("inf"), ["1"], "9" * 65])
def test_what_is_no_amount_of_cpu_is_rejected(written: object, golden: Golden) -> None:
    with golden.raised(ValueError) as error:
        parse_cpu(written, 10**7)
    assert len(str(error.value)) < 200


def test_each_unit_is_of_its_size_and_named_as_it_reads() -> None:
    assert {name: (unit.name, unit.mib, str(unit)) for name, unit in UNITS.items()} == {
        "GiB": ("GiB", 1024, "1 GiB"),
        "MiB": ("MiB", 1, "1 MiB"),
        "64MiB": ("64MiB", 64, "64 MiB"),
        "128MiB": ("128MiB", 128, "128 MiB"),
        "256MiB": ("256MiB", 256, "256 MiB"),
    }
    assert all(parse_unit(name) == unit for name, unit in UNITS.items())


def test_a_gpu_offers_whole_units_only() -> None:
    assert parse_unit("GiB").count(15_360) == 15
    assert parse_unit("GiB").count(23_028) == 22
    assert parse_unit("256MiB").count(23_028) == 89
    assert parse_unit("MiB").count(15_360) == 15_360


def test_an_unknown_unit_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="GB") as error:
        parse_unit("GB")
    assert all(name in str(error.value) for name in UNITS)

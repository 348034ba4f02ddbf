# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The sizes of GPUs that every user may read: what is written is read again, and what is none is an error."""

from __future__ import annotations

import pytest

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.placement.explain import Largest
from gpushare_runtime.core.placement.gpu_sizes import GpuSizes, sizes_of
from gpushare_runtime.core.quantity import GIB, UNITS
from unit.fakes.runtime.pods import gpu, inventory

MIB = UNITS["MiB"]
WRITTEN = '{"v":1,"unit":"GiB","one_unit":true,"largest_gpu":24,"most_gpus":2}'


def test_the_largest_gpu_and_the_unit_of_all_nodes() -> None:
    assert sizes_of([]) is None
    assert sizes_of([Inventory(GIB, ())]) is None
    found = sizes_of([inventory(16, 24), inventory(8)])
    assert found == GpuSizes(Largest(GIB, 24, 2), GIB)
    assert found.to_json() == WRITTEN
    assert GpuSizes.from_json(WRITTEN) == found


def test_where_nodes_have_different_units_nobody_knows_that_of_a_pod() -> None:
    found = sizes_of([inventory(16), Inventory(MIB, (gpu(0, 40_000), gpu(1, 40_000)))])
    assert found == GpuSizes(Largest(MIB, 40_000, 2), None)
    assert GpuSizes.from_json(found.to_json()) == found


def test_fields_of_later_releases_are_ignored() -> None:
    assert GpuSizes.from_json(WRITTEN[:-1] + ',"models":["T4"]}') == GpuSizes.from_json(WRITTEN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "version 'list' is not known"),
        (WRITTEN.replace('"v":1', '"v":2'), "version 2 is not known; this release reads version 1"),
        (WRITTEN.replace("GiB", "\\u001b[2J"), "unit must be a short text without control characters"),
        (WRITTEN.replace("GiB", "GB"), "memory unit 'GB' is not known"),
        (WRITTEN.replace("24", "-1"), "largest_gpu must not be negative"),
        (WRITTEN.replace("24", "0"), "must be at least 1, found 0 and 2"),
        (WRITTEN.replace("24", "2e9"), "largest_gpu must be int"),
        (WRITTEN.replace(":2}", ":129}"), "most_gpus must be at most 128"),
        (WRITTEN.replace("true", "1"), "one_unit must be bool"),
        (WRITTEN + " " * 5000, "5067 characters are more than a node has to say; expected at most 4096"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        GpuSizes.from_json(text)

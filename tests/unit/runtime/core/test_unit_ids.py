# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Device ids of units and GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.protocol import RESOURCE_GPUS, RESOURCE_MEMORY
from gpushare_runtime.core.unit_ids import gpu_of_unit, gpu_uuids_of, parse_unit_id, unit_id


@given(st.sampled_from(["GPU-1", "-_-", "-_-1-_-", "é "]), st.integers(min_value=0, max_value=10**6))
def test_unit_ids_name_their_gpu_and_slot(uuid: str, slot: int) -> None:
    assert parse_unit_id(unit_id(uuid, slot)) == (uuid, slot)


def test_unit_ids_have_the_originals_form_and_fit_kubelets_63_characters() -> None:
    uuid = "GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a2b"
    assert unit_id(uuid, 7) == "GPU-8f6d4b2a-0c1e-4d3f-9a8b-7c6d5e4f3a2b-_-7"
    assert len(unit_id(uuid, 294_912)) <= 63


@pytest.mark.parametrize("device_id", ["", "GPU-1", "GPU-1-_-", "GPU-1-_-x", "-_-3", "GPU-1-_--3", "GPU-1-_-²", "GPU-1-_-٣", "7"])
def test_other_ids_are_rejected_and_quoted(device_id: str) -> None:
    with pytest.raises(ValueError, match="device id") as error:
        parse_unit_id(device_id)
    assert repr(device_id) in str(error.value)


@pytest.mark.parametrize(
    ("device_id", "gpu"),
    [("GPU-1-_-0", "GPU-1"), ("MIG-GPU-1-_-2-_-13", "MIG-GPU-1-_-2"), ("GPU-1", "GPU-1"), ("GPU-1-_-x", "GPU-1-_-x"), ("-_-1", "-_-1")],
)
def test_an_id_of_another_form_is_of_no_gpu(device_id: str, gpu: str) -> None:
    assert gpu_of_unit(device_id) == gpu
    assert gpu_uuids_of(RESOURCE_MEMORY, [device_id, device_id]) == {gpu}
    assert gpu_uuids_of(RESOURCE_GPUS, [device_id]) == {device_id}

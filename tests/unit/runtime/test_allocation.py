# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Allocations and their annotations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.allocation import Allocation, AllocationError, read_allocation
from gpushare_runtime.request import Request, parse_request
from unit.runtime.pods import container, inventory, pod


def asking(**limits: object) -> Request:
    request = parse_request(pod(container(**limits)))
    assert request is not None
    return request


def test_the_binding_carries_all_six_as_documented() -> None:
    allocation = Allocation.of({0: {1: 8}})
    assert allocation.to_annotations(inventory(16, 24), 1_774_000_000_000_000_000) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1774000000000000000",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":8}}',
    }


@given(
    st.dictionaries(
        st.integers(0, 5), st.dictionaries(st.integers(0, 15), st.integers(1, 300), min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_what_is_written_is_read_back(containers: dict[int, dict[int, int]]) -> None:
    allocation = Allocation.of(containers)
    written = allocation.to_annotations(inventory(*[300] * 16), 1)
    assert read_allocation(written, asking(mem=1)) == allocation
    assert all(isinstance(value, str) for value in written.values())


def test_acks_form_is_read() -> None:
    found = read_allocation({"scheduler.framework.gpushare.allocation": '{"0":{"1":4,"2":4}}'}, asking(mem=8))
    assert found is not None
    assert (found.by_card, found.units, found.first_card) == ({1: 4, 2: 4}, 8, 1)


def test_a_pod_of_the_original_has_all_its_containers_on_one_card() -> None:
    request = parse_request(pod(container("a", mem=2), {"name": "b"}, container("c", mem=3)))
    assert request is not None
    found = read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "5"}, request)
    assert found == Allocation.of({0: {3: 2}, 2: {3: 3}})


def test_one_whole_card_is_read_from_the_five() -> None:
    found = read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_DEV": "16"}, asking(count=1))
    assert found == Allocation.of({0: {2: 16}})


@pytest.mark.parametrize("annotations", [{}, {"ALIYUN_COM_GPU_MEM_IDX": "-1"}, {"scheduler.framework.gpushare.allocation": "{}"}])
def test_no_card_named_means_none_known(annotations: dict[str, str]) -> None:
    assert read_allocation(annotations, asking(mem=8)) is None


@pytest.mark.parametrize(
    "annotations",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "first"},
        {"scheduler.framework.gpushare.allocation": "{"},
        {"scheduler.framework.gpushare.allocation": "[1]"},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":-4}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":true}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"x":4}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":4}'},
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_annotation(annotations: dict[str, str]) -> None:
    with pytest.raises(AllocationError, match=next(iter(annotations))):
        read_allocation(annotations, asking(mem=8))


def test_what_one_container_has() -> None:
    allocation = Allocation.of({0: {1: 4}, 2: {1: 3, 0: 1}})
    assert allocation.container(2) == {0: 1, 1: 3}
    assert allocation.container(1) == {}
    assert allocation.by_card == {0: 1, 1: 7}

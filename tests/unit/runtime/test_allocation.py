# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Allocations and their annotations."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare_runtime import protocol
from gpushare_runtime.allocation import Allocation, AllocationError, allocate, read_allocation, wanted
from gpushare_runtime.request import ContainerRequest, Kind, Request, parse_request
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


@st.composite
def placed(draw: st.DrawFn) -> tuple[Request, Allocation]:
    """Any request that is placed, on any cards."""
    kinds = st.tuples(st.sampled_from(list(Kind)), st.integers(1, 9))
    order = [Kind.INIT, Kind.SIDECAR, Kind.APP]
    asks = sorted(draw(st.lists(kinds, min_size=1, max_size=5)), key=lambda ask: ask[0] is Kind.APP)
    several, whole = draw(st.integers(1, 3)), draw(st.booleans())
    count = dict.fromkeys(order, 0)
    containers = []
    for kind, amount in asks:
        # Init containers and sidecars share one list in the spec.
        place = Kind.INIT if kind is Kind.SIDECAR else kind
        sizes = {"cards": amount % 3 + 1} if whole else {"units": amount * several}
        containers.append(ContainerRequest(kind, count[place], f"{kind.name}-{count[place]}", **sizes))
        count[place] += 1
    request = Request(tuple(containers), 1 if whole else several)
    assume(request.unsupported is None)
    cards = draw(st.permutations(range(16)))[: request.cards or several]
    return request, allocate(request, [(index, 300) for index in cards])


@given(placed())
def test_what_is_written_is_read_back(case: tuple[Request, Allocation]) -> None:
    request, allocation = case
    written = allocation.to_annotations(inventory(*[300] * 16), 1)
    assert read_allocation(written, request) == allocation
    assert all(isinstance(value, str) for value in written.values())


@given(placed())
def test_the_sums_are_what_kubelet_keeps(case: tuple[Request, Allocation]) -> None:
    request, allocation = case
    if request.cards:
        assert allocation.by_card == dict.fromkeys(allocation.by_card, 300)
        assert len(allocation.by_card) == request.cards
    else:
        assert set(allocation.by_card.values()) == {request.per_card}
        assert len(allocation.by_card) == request.cards_per_pod


@given(placed())
def test_every_container_is_given_what_it_asks_for_on_the_pods_cards(case: tuple[Request, Allocation]) -> None:
    request, allocation = case
    for container_ in request.containers:
        given_ = wanted(request, allocation, container_)
        assert set(given_) <= set(allocation.by_card)
        assert (len(given_) if container_.cards else sum(given_.values())) == (container_.cards or container_.units)


@given(placed())
def test_the_cards_of_app_containers_and_sidecars_alone_are_completed_where_that_is_certain(case: tuple[Request, Allocation]) -> None:
    """As ACK writes them, and as this project's first release did."""
    request, allocation = case
    own = {key: cards for key, cards in allocation.containers if key >= 0 or any(c.key == key and c.keeps for c in request.containers)}
    assume(own)
    text = json.dumps({str(key): {str(card): units for card, units in cards} for key, cards in own.items()})
    found = read_allocation({"scheduler.framework.gpushare.allocation": text}, request)
    certain = not request.cards or len(own) == len(allocation.containers)
    assert found == (allocation if certain else None)


@pytest.mark.parametrize(
    ("asking", "stated"),
    [
        (pod(container(mem=8)), {"0": {"1": 1}}),
        (pod(container(mem=8)), {"0": {"1": 8, "2": 8}}),
        (pod(container(mem=8)), {"1": {"1": 8}}),
        (pod(container(mem=8)), {"0": {"1": 8}, "1": {"1": 1}}),
        (pod(container(mem=8)), {"0": {"1": 8}, "-1": {"1": 1}}),
        (pod(container("a", mem=8), container("b", mem=2)), {"0": {"1": 8}}),
        (pod(container(count=2)), {"0": {"1": 16}}),
        (pod(container("a", count=1), container("b", count=1)), {"0": {"1": 16}, "1": {"1": 16}}),
        (pod(container(mem=2), init=[container("i", mem=8)]), {"0": {"1": 2}, "-1": {"1": 8}}),
    ],
)
def test_what_no_such_pod_can_have_is_an_error(asking: dict[str, object], stated: dict[str, object]) -> None:
    request = parse_request(asking)
    assert request is not None
    with pytest.raises(AllocationError, match=protocol.ANNOTATION_ALLOCATION):
        read_allocation({"scheduler.framework.gpushare.allocation": json.dumps(stated)}, request)


def test_the_originals_total_must_be_that_of_the_pod() -> None:
    with pytest.raises(AllocationError, match="GPU_MEM_POD is '1', but the pod asks for 8"):
        read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "1"}, asking(mem=8))


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

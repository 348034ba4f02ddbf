# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Allocations and their annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare_runtime.core import protocol
from gpushare_runtime.core.allocation import Allocation, AllocationError, allocate, allocation_of, read_allocation, wanted
from gpushare_runtime.core.request import ContainerRequest, Kind, Request, parse_request
from unit.fakes.runtime.core.naive import MEMORY, WHOLE, effective, shapes
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden


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


def test_the_device_plugin_says_that_the_containers_have_their_gpu() -> None:
    written = Allocation.of({0: {1: 8}}).to_annotations(inventory(16, 24), 1, assigned=True)
    assert written["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


def test_app_containers_stand_before_init_containers_and_the_first_ones_gpu_is_named() -> None:
    allocation = Allocation.of({-2: {0: 1}, -1: {3: 4, 1: 2}, 1: {5: 1}, 0: {2: 7, 4: 7}})
    assert [key for key, _ in allocation.containers] == [0, 1, -1, -2]
    written = allocation.to_annotations(inventory(*[16] * 6), 1)
    assert written["scheduler.framework.gpushare.allocation"] == '{"0":{"2":7,"4":7},"1":{"5":1},"-1":{"1":2,"3":4},"-2":{"0":1}}'
    assert (written["ALIYUN_COM_GPU_MEM_IDX"], written["ALIYUN_COM_GPU_MEM_POD"]) == ("2", "22")


def test_every_small_pod_is_placed_and_read_back_as_kubernetes_counts_it() -> None:
    """All pods of up to three containers: what is written says of each container and of the whole pod what it has."""
    for resource, several in ((MEMORY, 1), (MEMORY, 2), (WHOLE, 1)):
        for raw in shapes(resource, several):
            request = parse_request(raw)
            assert request is not None
            if request.unsupported is not None:
                continue
            gpus = [5, 3, 8, 1, 0, 2, 9, 4, 7][: request.whole_gpus or several]
            allocation = allocate(request, [(gpu, 10 + gpu) for gpu in gpus])
            each = {gpu: 10 + gpu if resource == WHOLE else effective(raw, resource) // several for gpu in gpus}
            assert allocation.by_gpu == each
            written = allocation.to_annotations(inventory(*range(10, 20)), 1)
            assert read_allocation(written, request) == allocation
            stated = json.loads(written["scheduler.framework.gpushare.allocation"])
            for container_, spec in zip(request.containers, raw["spec"]["initContainers"] + raw["spec"]["containers"], strict=True):
                amount = int(spec["resources"]["limits"][resource])
                own = stated.get(str(container_.key), {})
                if container_.kind is not Kind.INIT:
                    assert (len(own) if resource == WHOLE else sum(own.values())) == amount
                given_ = wanted(request, allocation, container_)
                assert given_.items() <= each.items() if resource == WHOLE else given_ == dict.fromkeys(gpus, amount // several)
                assert resource != WHOLE or len(given_) == amount


@st.composite
def placed(draw: st.DrawFn) -> tuple[Request, Allocation]:
    """Any request that is placed, on any GPUs."""
    kinds = st.tuples(st.sampled_from(list(Kind)), st.integers(1, 9))
    order = [Kind.INIT, Kind.SIDECAR, Kind.APP]
    asks = sorted(draw(st.lists(kinds, min_size=1, max_size=5)), key=lambda ask: ask[0] is Kind.APP)
    several, whole = draw(st.integers(1, 3)), draw(st.booleans())
    count = dict.fromkeys(order, 0)
    containers = []
    for kind, amount in asks:
        # Init containers and sidecars share one list in the spec.
        place = Kind.INIT if kind is Kind.SIDECAR else kind
        sizes = {"whole_gpus": amount % 3 + 1} if whole else {"units": amount * several}
        containers.append(ContainerRequest(kind, count[place], f"{kind.name}-{count[place]}", **sizes))
        count[place] += 1
    request = Request(tuple(containers), 1 if whole else several)
    assume(request.unsupported is None)
    gpus = draw(st.permutations(range(16)))[: request.whole_gpus or several]
    return request, allocate(request, [(index, 300) for index in gpus])


@given(placed())
def test_what_is_written_is_read_back_and_gives_each_what_it_asks_for_of_what_kubelet_keeps(case: tuple[Request, Allocation]) -> None:
    request, allocation = case
    written = allocation.to_annotations(inventory(*[300] * 16), 1)
    assert read_allocation(written, request) == allocation
    assert all(isinstance(value, str) for value in written.values())
    assert allocation.by_gpu == dict.fromkeys(allocation.by_gpu, 300 if request.whole_gpus else request.per_gpu)
    assert len(allocation.by_gpu) == (request.whole_gpus or request.gpus_per_pod)
    for container_ in request.containers:
        given_ = wanted(request, allocation, container_)
        assert set(given_) <= set(allocation.by_gpu)
        assert (len(given_) if container_.whole_gpus else sum(given_.values())) == (container_.whole_gpus or container_.units)


@given(placed())
def test_the_gpus_of_app_containers_and_sidecars_alone_are_completed_where_that_is_certain(case: tuple[Request, Allocation]) -> None:
    """As ACK writes them, and as this project's first release did."""
    request, allocation = case
    own = {key: gpus for key, gpus in allocation.containers if key >= 0 or any(c.key == key and c.keeps for c in request.containers)}
    assume(own)
    text = json.dumps({str(key): {str(gpu): units for gpu, units in gpus} for key, gpus in own.items()})
    found = read_allocation({"scheduler.framework.gpushare.allocation": text}, request)
    certain = not request.whole_gpus or len(own) == len(allocation.containers)
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
        (pod(container(mem=2), init=[container("i", mem=8)]), {"0": {"1": 2}, "-1": {"1": 9}}),
        (pod(container(mem=2), init=[container("i", mem=8)]), {"0": {"1": 2}, "-1": {"1": 3}}),
        (pod(container(mem=2), init=[container("i", mem=8)]), {"0": {"1": 2}, "-1": {"1": 7, "2": 2}}),
        (pod(container(count=2)), {"0": {"1": 16, "2": 16, "3": 16}}),
        (pod(container(count=1), init=[container("i", count=2)]), {"0": {"1": 16}, "-1": {"1": 16}}),
        (pod(container(count=1), init=[container("i", count=3)]), {"0": {"1": 16}, "-1": {"2": 16}}),
        (pod(container(count=1), init=[container("i", count=2)]), {"0": {"1": 16}, "-1": {"2": 16, "3": 16, "4": 16}}),
    ],
)
def test_what_no_such_pod_can_have_is_an_error(asking: dict[str, object], stated: dict[str, object]) -> None:
    with pytest.raises(AllocationError, match=protocol.ANNOTATION_ALLOCATION):
        read(asking, stated)


def test_what_a_container_was_to_have_is_told(golden: Golden) -> None:
    with golden.raised(AllocationError):
        read(pod(container(mem=8)), {"0": {"1": 1}})
    with golden.raised(AllocationError):
        read(pod(container(count=2)), {"0": {"1": 2}})
    with golden.raised(AllocationError):
        read(pod(container("a", mem=8), container("b", mem=2)), {"0": {"1": 8}})


def read(asking: dict[str, object], stated: Mapping[str, object], *, bound: bool = False) -> Allocation | None:
    """What is read of this allocation in JSON."""
    request = parse_request(asking, bound=bound)
    assert request is not None
    return read_allocation({"scheduler.framework.gpushare.allocation": json.dumps(stated)}, request)


def sidecar(name: str, **limits: object) -> dict[str, object]:
    return container(name, **limits) | {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("asking", "stated", "found"),
    [
        # Memory on one GPU, or on as many as the pod wants: the rest is certain.
        (pod(container(mem=2), init=[container("i", mem=8)]), {"0": {"1": 2}}, {0: {1: 2}, -1: {1: 6}}),
        (pod(container(mem=2), init=[container("i", mem=2)]), {"0": {"1": 2}}, {0: {1: 2}}),
        (pod(container(mem=2), init=[sidecar("s", mem=3)]), {"0": {"1": 2}}, {0: {1: 2}, -1: {1: 3}}),
        (
            pod(container(mem=4), init=[container("i", mem=8)], labels={"aliyun.com/gpu-count": "2"}),
            {"0": {"1": 2, "5": 2}},
            {0: {1: 2, 5: 2}, -1: {1: 2, 5: 2}},
        ),
        (
            pod(container(mem=4), init=[sidecar("s", mem=6)], labels={"aliyun.com/gpu-count": "2"}),
            {"0": {"1": 2, "5": 2}},
            {0: {1: 2, 5: 2}, -1: {1: 3, 5: 3}},
        ),
        # What is stated is believed, also where it is spread in another way.
        (pod(container(mem=4), init=[container("i", mem=6)]), {"0": {"1": 2, "5": 2}, "-1": {"5": 2}}, {0: {1: 2, 5: 2}, -1: {5: 2}}),
        (pod(container(count=2)), {"0": {"1": 16, "2": 24}}, {0: {1: 16, 2: 24}}),
        # On which GPU the rest is, nobody says.
        (pod(container(mem=4), init=[container("i", mem=6)]), {"0": {"1": 2, "5": 2}}, None),
        (pod(container(count=1), init=[container("i", count=2)]), {"0": {"1": 16}}, None),
        (pod(container(count=1), init=[sidecar("s", count=1)]), {"0": {"1": 16}}, None),
        # What is stated adds up, but to the init container's: the sidecar, which takes over from it, is not there.
        (pod(container(count=1), init=[container("i", count=2), sidecar("s", count=1)]), {"0": {"1": 16}, "-1": {"2": 16}}, None),
        (pod(container(mem=4), init=[container("i", mem=8), sidecar("s", mem=4)]), {"0": {"1": 2, "5": 2}, "-1": {"1": 4}}, None),
    ],
)
def test_what_is_left_out_is_completed_where_that_is_certain(
    asking: dict[str, object], stated: dict[str, object], found: dict[int, dict[int, int]] | None
) -> None:
    assert read(asking, stated) == (None if found is None else Allocation.of(found))


def test_a_pod_that_has_memory_and_whole_gpus_was_placed_by_nobody() -> None:
    assert read(pod(container(mem=2, count=1)), {"0": {"1": 16}}, bound=True) is None


def test_the_originals_total_must_be_that_of_the_pod_or_of_its_app_containers(golden: Golden) -> None:
    request = parse_request(pod(container(mem=3), init=[container("i", mem=8), sidecar("s", mem=4)]))
    assert request is not None
    read_ = {}
    for total in range(13):
        with suppress(AllocationError):
            read_[total] = read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": str(total)}, request)
    assert read_ == dict.fromkeys((3, 8), Allocation.of({0: {0: 3}, -2: {0: 4}, -1: {0: 1}}))
    assert read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "0"}, request) == read_[3]
    with golden.raised(AllocationError):
        read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "1"}, asking(mem=8))


def test_a_pod_of_the_original_has_all_its_containers_on_one_gpu() -> None:
    request = parse_request(pod(container("a", mem=2), {"name": "b"}, container("c", mem=3)))
    assert request is not None
    found = read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "5"}, request)
    assert found == Allocation.of({0: {3: 2}, 2: {3: 3}})


def test_one_whole_gpu_is_read_from_the_five() -> None:
    found = read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_DEV": "16"}, asking(count=1))
    assert found == Allocation.of({0: {2: 16}})
    assert read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "2"}, asking(count=1)) is None, "how large the GPU is, nobody says"
    assert read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_DEV": "16"}, asking(count=2)) is None


@pytest.mark.parametrize("annotations", [{}, {"ALIYUN_COM_GPU_MEM_IDX": "-1"}, {"scheduler.framework.gpushare.allocation": "{}"}])
def test_no_gpu_named_means_none_known(annotations: dict[str, str]) -> None:
    assert read_allocation(annotations, asking(mem=8)) is None


@pytest.mark.parametrize(
    "annotations",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "first"},
        {"scheduler.framework.gpushare.allocation": "{"},
        {"scheduler.framework.gpushare.allocation": "[1]"},
        {"scheduler.framework.gpushare.allocation": "[" * 60_000},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":2147483648}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":1,"2":0}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":2,"2":-1}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":true}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":1.0}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"x":1}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"-1":1}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"²":1}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"":1}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":1}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":1},"--1":{"1":1}}'},
        {"ALIYUN_COM_GPU_MEM_POD": "x", "ALIYUN_COM_GPU_MEM_IDX": "1"},
        {"ALIYUN_COM_GPU_MEM_IDX": "٣"},
        {"ALIYUN_COM_GPU_MEM_IDX": "-2"},
        {"ALIYUN_COM_GPU_MEM_IDX": ""},
        {"ALIYUN_COM_GPU_MEM_IDX": "1" * 19},
        {"ALIYUN_COM_GPU_MEM_IDX": "2147483648"},
        {"ALIYUN_COM_GPU_MEM_IDX": "1" * 5000},
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_annotation(annotations: dict[str, str]) -> None:
    with pytest.raises(AllocationError, match=f"^{next(iter(annotations))} (is|must)"):
        read_allocation(annotations, asking(mem=1))


def test_numbers_are_read_as_far_as_gpus_and_units_go() -> None:
    assert read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "2147483647"}, asking(mem=1)) == Allocation.of({0: {2147483647: 1}})
    assert read_allocation({"ALIYUN_COM_GPU_MEM_IDX": "000000000000000001"}, asking(mem=1)) == Allocation.of({0: {1: 1}})


def test_what_cannot_be_read_is_quoted_in_few_words() -> None:
    for text in ("x" * 60_000, '{"0":{"' + "9" * 60_000 + '":1}}', '{"0":"\\ud800"}', "x" * 200_000):
        with pytest.raises(AllocationError) as error:
            read_allocation({"scheduler.framework.gpushare.allocation": text}, asking(mem=1))
        assert len(str(error.value)) < 300
        assert str(error.value).isprintable()


def test_the_largest_pod_on_the_most_gpus_is_written_and_read_back() -> None:
    """Of all containers that may ask, spread over all GPUs that a node may have."""
    request = parse_request(pod(*(container(f"c{n}", mem=64 * 100_000) for n in range(64)), labels={"aliyun.com/gpu-count": "64"}))
    assert request is not None
    allocation = allocate(request, [(index, 2**31 - 1) for index in range(192, 256)])
    written = allocation.to_annotations(inventory(*[2**31 - 1] * 256), 1)
    assert read_allocation(written, request) == allocation


@pytest.mark.parametrize("annotations", [{"ALIYUN_COM_GPU_MEM_IDX": "0"}, {"scheduler.framework.gpushare.allocation": '{"0":{"0":1}}'}])
def test_compute_alone_is_on_no_gpu(annotations: dict[str, str]) -> None:
    request = parse_request(pod(container(core=20)), bound=True)
    assert request is not None
    assert read_allocation(annotations, request) is None


@pytest.mark.parametrize(
    ("asking", "allocation", "init"),
    [
        # 4 + 3 + 1 as another writer may spread it: 6 are as much on each of three GPUs, 2 are not.
        (pod(container(mem=8), init=[container("i", mem=6)]), {0: {1: 4, 2: 3, 5: 1}}, {1: 2, 2: 2, 5: 2}),
        (pod(container(mem=8), init=[container("i", mem=2)]), {0: {1: 4, 2: 3, 5: 1}}, {}),
        # The sidecar before it keeps its GPU; one after it takes over.
        (pod(container(count=2), init=[sidecar("s", count=1), container("i", count=2)]), {0: {1: 16, 2: 16}, -1: {3: 16}}, {1: 16, 2: 16}),
        (pod(container(count=2), init=[container("i", count=2), sidecar("s", count=1)]), {0: {1: 16, 2: 16}, -2: {0: 16}}, {0: 16, 1: 16}),
        # Fewer GPUs than it asks for: nothing can be said.
        (pod(container(count=2), init=[sidecar("s", count=1), container("i", count=3)]), {0: {1: 16, 2: 16}, -1: {3: 16}}, {}),
        (pod(container(count=3), init=[container("i", count=3)]), {0: {4: 16, 2: 16, 3: 16}}, {2: 16, 3: 16, 4: 16}),
    ],
)
def test_what_an_init_container_is_given(asking: dict[str, object], allocation: dict[int, dict[int, int]], init: dict[int, int]) -> None:
    request = parse_request(asking)
    assert request is not None
    container_ = next(c for c in request.containers if c.kind is Kind.INIT)
    assert wanted(request, Allocation.of(allocation), container_) == init
    for other in request.containers:
        if other.kind is not Kind.INIT:
            assert wanted(request, Allocation.of(allocation), other) == allocation[other.key]


def test_nothing_that_containers_have_is_no_allocation() -> None:
    assert allocation_of(asking(mem=1), {0: {}}, {}) is None


@pytest.mark.parametrize(
    ("init", "app", "stated", "readable"),
    [
        ({"mem": 2}, {"mem": 2}, {0: {0: 2}, -1: {0: 2}}, True),
        ({"mem": 2}, {"mem": 2}, {0: {0: 2}, -1: {1: 1}}, True),
        ({"mem": 2}, {"mem": 2}, {0: {0: 2}, -1: {0: 3}}, False),
        ({"mem": 4}, {"mem": 2}, {0: {0: 2}, -1: {0: 4}}, True),
        ({"mem": 4}, {"mem": 2}, {0: {0: 2}, -1: {0: 1}}, False),
        ({"count": 1}, {"count": 1}, {0: {0: 16}, -1: {1: 24}}, True),
        ({"count": 1}, {"count": 1}, {0: {0: 16}, -1: {0: 16}}, False),
        ({"count": 1}, {"count": 1}, {0: {0: 16}, -1: {1: 24, 2: 16}}, False),
    ],
)
def test_init_containers_may_have_ids_of_their_own_beside_those_of_later_ones_which_they_have_after_a_lost_record(
    init: dict[str, int], app: dict[str, int], stated: dict[int, dict[int, int]], readable: bool, golden: Golden
) -> None:
    request = parse_request(pod(container(**app), init=[container("first", **init)]))
    assert request is not None
    annotations = Allocation.of(stated).to_annotations(inventory(16, 24, 16), 1)
    if readable:
        assert read_allocation(annotations, request) == Allocation.of(stated)
    else:
        with golden.raised(AllocationError):
            read_allocation(annotations, request)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod asks for."""

from __future__ import annotations

import pytest

from gpushare_runtime.quantity import GIB, parse_unit
from gpushare_runtime.request import ContainerRequest, Kind, RequestError, explain_size, parse_request
from unit.runtime.pods import container, pod


def test_a_pod_without_our_resources_asks_for_nothing() -> None:
    assert parse_request(pod({"name": "main"})) is None
    assert parse_request(pod({"name": "main", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}})) is None
    assert parse_request(pod(container(mem=0))) is None
    assert parse_request({}) is None


def test_containers_that_ask_keep_their_place_in_the_spec() -> None:
    request = parse_request(pod({"name": "proxy"}, container("a", mem=3), container("b", mem="5")))
    assert request is not None
    assert [(c.index, c.name, c.units, c.kind) for c in request.containers] == [(1, "a", 3, Kind.APP), (2, "b", 5, Kind.APP)]
    assert (request.units, request.cards, request.unsupported) == (8, 0, None)


def test_requests_count_where_limits_are_missing() -> None:
    asking = {"name": "main", "resources": {"requests": {"aliyun.com/gpu-mem": "4"}}}
    request = parse_request(pod(asking))
    assert request is not None
    assert request.units == 4


def test_whole_cards() -> None:
    request = parse_request(pod(container(count=2)))
    assert request is not None
    assert (request.units, request.cards, request.unsupported) == (0, 2, None)


@pytest.mark.parametrize(
    "containers",
    [
        [container(mem=2, count=1)],
        [container("a", mem=2), container("b", count=1)],
    ],
)
def test_memory_and_whole_cards_at_once_are_refused(containers: list[dict[str, object]]) -> None:
    with pytest.raises(RequestError, match="not both"):
        parse_request(pod(*containers))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("-1", "negative"),
        ("99999999999999999999", "more than any machine has"),
        ("1.5", "whole number"),
        ("lots", "'lots'"),
        ("500m", "'500m'"),
    ],
)
def test_impossible_values_are_refused_with_the_container_and_the_resource(value: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        parse_request(pod(container("trainer", mem=value)))
    assert "'trainer'" in str(error.value)
    assert "aliyun.com/gpu-mem" in str(error.value)


@pytest.mark.parametrize("label", ["0", "-1", "two", "1.5", ""])
def test_an_impossible_number_of_cards_in_the_label_is_refused(label: str) -> None:
    with pytest.raises(RequestError, match=r"aliyun\.com/gpu-count"):
        parse_request(pod(container(mem=8), labels={"aliyun.com/gpu-count": label}))


def test_the_label_means_nothing_on_a_pod_without_memory() -> None:
    request = parse_request(pod(container(count=1), labels={"aliyun.com/gpu-count": "nonsense"}))
    assert request is not None
    assert request.cards_per_pod == 1


@pytest.mark.parametrize(
    ("asking", "says"),
    [
        (pod(container(mem=8), labels={"aliyun.com/gpu-count": "2"}), "several cards"),
        (pod(container(mem=8, core=20)), "gpu-core.percentage"),
        (pod({"name": "main"}, init=[container("warm", mem=2)]), "'warm'"),
        (pod({"name": "main"}, init=[container("side", mem=2) | {"restartPolicy": "Always"}]), "'side'"),
        (pod(container(core=20)), "gpu-core.percentage"),
    ],
)
def test_what_this_release_does_not_place_says_so(asking: dict[str, object], says: str) -> None:
    request = parse_request(asking)
    assert request is not None
    assert request.unsupported is not None
    assert says in request.unsupported


@pytest.mark.parametrize(
    ("written", "units", "unit", "advice"),
    [
        ("10G", 10_000_000_000, "GiB", "10G means 10000000000 units of 1 GiB; the largest card has 24; write 10"),
        ("8Gi", 8 * 2**30, "GiB", "8Gi means 8589934592 units of 1 GiB; the largest card has 24; write 8"),
        ("8192", 8192, "GiB", "8192 means 8192 units of 1 GiB; the largest card has 24; write 8"),
        ("1G", 10**9, "256MiB", "1G means 1000000000 units of 256 MiB; the largest card has 24; write 4"),
        ("25", 25, "GiB", "25 means 25 units of 1 GiB; the largest card has 24; write at most 24"),
        ("100G", 10**11, "GiB", "100G means 100000000000 units of 1 GiB; the largest card has 24; write at most 24"),
        ("24", 24, "GiB", None),
    ],
)
def test_a_request_too_large_for_every_card_is_explained(written: str, units: int, unit: str, advice: str | None) -> None:
    asking = ContainerRequest(Kind.APP, 0, "main", units=units, written=written)
    assert explain_size(asking, parse_unit(unit), 24) == advice


def test_the_unit_reads_as_a_person_writes_it() -> None:
    assert str(GIB) == "1 GiB"

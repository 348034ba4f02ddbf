# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod asks for."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime import reuse
from gpushare_runtime.quantity import GIB, parse_unit
from gpushare_runtime.request import ContainerRequest, Kind, RequestError, explain_size, parse_request
from gpushare_runtime.rules import NO_RULES
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


def sidecar(name: str, **limits: object) -> dict[str, object]:
    return container(name, **limits) | {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "apps", "kept"),
    [
        ([], [3, 5], 8),
        ([container("i", mem=2)], [3], 3),
        ([container("i", mem=9)], [3], 9),
        ([container("i", mem=2), container("j", mem=6)], [3, 1], 6),
        ([container("i", mem=4), sidecar("s", mem=3)], [3], 6),
        ([sidecar("s", mem=3), container("i", mem=4)], [3], 7),
        ([container("i", mem=4)], [], 4),
    ],
)
def test_what_kubelet_keeps_for_a_pod(init: list[dict[str, object]], apps: list[int], kept: int) -> None:
    request = parse_request(pod(*[container(f"c{n}", mem=units) for n, units in enumerate(apps)] or [{"name": "c"}], init=init))
    assert request is not None
    assert (request.units, request.unsupported) == (kept, None)


ASKS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=8)


@given(ASKS)
def test_what_kubelet_keeps_is_the_pods_effective_request_in_kubernetes(asks: list[tuple[bool, int]]) -> None:
    sidecars, most = 0, 0
    for keeps, amount in asks:
        sidecars += amount if keeps else 0
        most = max(most, sidecars + (0 if keeps else amount))
    assert reuse.held(asks) == max(most, sum(amount for keeps, amount in asks if keeps))


@given(ASKS, st.randoms())
def test_the_pool_is_that_of_kubelets_sets_of_ids(asks: list[tuple[bool, int]], random: Random) -> None:
    """Played with ids, as devicesToAllocate does it."""
    reusable: set[int] = set()
    used = 0
    for (keeps, amount), step in zip(asks, reuse.steps(asks), strict=True):
        assert step.pool == len(reusable)
        taken = set(random.sample(sorted(reusable), min(amount, len(reusable))))
        assert step.reused == len(taken)
        new = set(range(used, used + amount - len(taken)))
        assert step.new == len(new)
        used += len(new)
        reusable = reusable - taken - new if keeps else reusable | taken | new
    assert reuse.held(asks) == used


def test_several_cards() -> None:
    request = parse_request(pod(container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    assert request is not None
    assert (request.units, request.per_card, request.cards_per_pod, request.unsupported) == (8, 4, 2, None)


@pytest.mark.parametrize(("init", "app", "kept_right"), [(4, 4, True), (2, 4, True), (4, 2, False), (2, 0, True)])
def test_ids_of_several_cards_must_not_be_left_to_chance(init: int, app: int, kept_right: bool) -> None:
    request = parse_request(pod(container(mem=app), init=[container("warm", mem=init)], labels={"aliyun.com/gpu-count": "2"}))
    assert request is not None
    assert (request.unsupported is None) == kept_right
    if not kept_right:
        assert "takes 2 of the 4 units" in str(request.unsupported)


@pytest.mark.parametrize(
    ("asking", "says"),
    [
        (pod(container(mem=9), labels={"aliyun.com/gpu-count": "2"}), "write a multiple of 2, such as 10"),
        (pod(container(core=20)), "without aliyun.com/gpu-mem"),
        (pod(container(mem=8, core=22)), "22 is no multiple of 5; write such as 20"),
        (pod(container("a", mem=8, core=60), container("b", mem=8, core=60)), "120 per cent"),
        (pod(container(mem=8, core=20), labels={"aliyun.com/gpu-count": "2"}), "on one card only"),
        (pod(container(mem=8), annotations={"gpushare.request/models": ""}), "must be a list such as 'A100"),
        (pod(container(mem=8), annotations={"gpushare.request/model": "T4"}), "request/model is not known; those that are: "),
        (pod(container(mem=8), annotations={"gpushare.request/not-with": "app"}), "'app=encoder,tier=web', found 'app'"),
        (pod(container(count=1), annotations={"gpushare.request/same-card-as": "app=a"}), "a whole card is shared with nobody"),
    ],
)
def test_what_cannot_be_meant_says_what_to_write(asking: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_request(asking)
    assert says in str(error.value)


def test_on_a_node_the_same_counts_as_far_as_it_can_be_read() -> None:
    annotations = {"gpushare.request/not-with": "app", "gpushare.request/models": "T4"}
    request = parse_request(pod(container(mem=9), labels={"aliyun.com/gpu-count": "2"}, annotations=annotations), bound=True)
    assert request is not None
    assert (request.units, request.cards_per_pod, request.rules) == (9, 1, NO_RULES)


def test_alike_for_the_node_whatever_the_names() -> None:
    one, two = parse_request(pod(container("a", mem="8"))), parse_request(pod(container("b", mem=8)))
    other = parse_request(pod(container("a", mem=8), annotations={"gpushare.request/models": "T4"}))
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.shape == two.shape != other.shape
    assert one.key == two.key != other.key


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

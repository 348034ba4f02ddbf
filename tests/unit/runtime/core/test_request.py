# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod asks for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.core import request
from gpushare_runtime.core.constraints import NO_RULES, Context, Rules
from gpushare_runtime.core.request import ContainerRequest, Kind, Request, RequestError, parse_request
from unit.fakes.runtime.core.naive import CORE, MEMORY, WHOLE, effective, shapes
from unit.fakes.runtime.pods import container, pod
from unit.golden import Golden


def parsed(raw: dict[str, Any], *, bound: bool = False) -> Request:
    request = parse_request(raw, bound=bound)
    assert request is not None
    return request


def rejection(raw: dict[str, Any]) -> str:
    """In which words a pod is rejected."""
    with pytest.raises(RequestError) as error:
        parse_request(raw)
    return str(error.value)


def test_a_pod_without_our_resources_asks_for_nothing() -> None:
    assert parse_request(pod({"name": "main"})) is None
    assert parse_request(pod({"name": "main", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}})) is None
    assert parse_request(pod(container(mem=0))) is None
    assert parse_request({}) is None
    assert parse_request({"metadata": None, "spec": None}) is None
    none = ContainerRequest(Kind.APP, 0, "main")
    assert (none.units, none.whole_gpus, none.core, none.written) == (0, 0, 0, "")


def test_a_pod_needs_no_metadata() -> None:
    assert parsed({"spec": {"containers": [container(mem=4)]}}) == parsed(pod(container(mem=4)))


def test_containers_that_ask_keep_their_place_in_the_spec() -> None:
    request = parse_request(pod({"name": "proxy"}, container("a", mem=3), container("b", mem="5")))
    assert request is not None
    assert [(c.index, c.name, c.units, c.kind) for c in request.containers] == [(1, "a", 3, Kind.APP), (2, "b", 5, Kind.APP)]
    assert (request.units, request.whole_gpus, request.unsupported) == (8, 0, None)


def test_what_a_container_asks_none_of_does_not_count() -> None:
    asking = [container("a", mem=4, count=0, core=0), container("b", mem=0, count=0)]
    assert [(c.name, c.units, c.written) for c in parsed(pod(*asking)).containers] == [("a", 4, "4")]


def test_a_limit_goes_before_a_request_of_the_same_resource() -> None:
    resources = {"limits": {MEMORY: "4"}, "requests": {MEMORY: "2", CORE: "20"}}
    assert [(c.units, c.core) for c in parsed(pod({"name": "main", "resources": resources})).containers] == [(4, 20)]


def with_cpu(raw: dict[str, Any], *cpu: str) -> dict[str, Any]:
    """One of these for each of its containers, those that run first before the others."""
    spec = raw["spec"]
    for one, amount in zip([*spec.get("initContainers", ()), *spec["containers"]], cpu, strict=True):
        one["resources"]["limits"]["cpu"] = amount
    return raw


def test_the_cpu_of_every_small_pod_is_what_kubernetes_reserves() -> None:
    """Of containers without GPUs, too."""
    for raw in shapes("cpu"):
        expected = 1000 * effective(raw, "cpu")
        first = [*raw["spec"]["initContainers"], *raw["spec"]["containers"]][0]
        first["resources"]["limits"][MEMORY] = "4"
        assert parsed(raw).cpu == expected


def test_requests_of_cpu_go_before_limits_and_those_of_the_pod_before_all() -> None:
    raw = pod({"name": "main", "resources": {"limits": {MEMORY: "4", "cpu": "8"}, "requests": {"cpu": "500m"}}}, {"name": "log"})
    assert parsed(raw).cpu == 500
    raw["spec"]["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    assert parsed(raw).cpu == 750
    raw["spec"]["resources"] = {"requests": {"cpu": "3"}}
    assert parsed(raw, bound=True).cpu == 3250


@pytest.mark.parametrize(
    ("cpu", "counts"), [("-1", 0), ("many", 0), ("", 0), (None, 0), (["1"], 0), ({"a": 1}, 0), ("1" + "0" * 60, 2**31 - 1)]
)
def test_cpu_that_is_none_hinders_no_pod(cpu: object, counts: int) -> None:
    """The API server lets none pass; so it may come from a file."""
    raw = pod(container(mem=4))
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    assert parsed(raw).cpu == counts
    raw["spec"]["resources"], raw["spec"]["overhead"] = {"requests": None}, None
    assert parsed(raw).cpu == counts


def test_cpu_makes_no_other_kind_of_request() -> None:
    small, large = (parsed(with_cpu(pod(container(mem=4)), cpu)) for cpu in ("1", "64"))
    assert small != large
    assert (small.key, small.shape) == (large.key, large.shape)


def test_what_stands_in_the_request_of_every_small_pod() -> None:
    """All pods of up to three containers, with memory on one or two GPUs and with whole GPUs."""
    for resource, several in ((MEMORY, 1), (MEMORY, 2), (WHOLE, 1)):
        for raw in shapes(resource, several):
            request = parsed(raw)
            assert (request.units, request.whole_gpus, request.core) == tuple(effective(raw, name) for name in (MEMORY, WHOLE, CORE))
            assert (request.per_gpu * several, request.gpus_per_pod) == (request.units, several)
            spec = [*raw["spec"]["initContainers"], *raw["spec"]["containers"]]
            assert [c.name for c in request.containers] == [c["name"] for c in spec], "in kubelet's order"
            for found, written in zip(request.containers, spec, strict=True):
                assert {MEMORY: str(found.units), WHOLE: str(found.whole_gpus)}[resource] == written["resources"]["limits"][resource]
                assert found.keeps == (found.kind is not Kind.INIT) == (written["name"][0] != "i" or "restartPolicy" in written)
                # c0, c1, … are numbered 0, 1, …, and i0, i1, … -1, -2, …
                assert found.key == (found.index if written["name"][0] == "c" else -1 - found.index)
                assert found.index == int(written["name"][1])
            assert request.unsupported is None or several > 1


def test_no_more_containers_ask_than_a_pod_may_have() -> None:
    asking = [container(f"c{number}", mem=1) for number in range(65)]
    assert parsed(pod(*asking[:64])).units == 64
    assert "more than 64 containers" in rejection(pod(*asking))


def test_the_clients_of_a_gpu_are_the_containers_that_run_at_the_same_time() -> None:
    warm, whole = replace(ONE, kind=Kind.INIT), replace(ONE, units=0, whole_gpus=1)
    for containers, clients in (((warm, warm), 1), ((warm, ONE), 1), ((warm, ONE, ONE), 2), ((whole, whole, whole), 3)):
        assert Request(containers).clients == clients


def test_per_gpu_is_never_less_than_what_is_asked_for() -> None:
    assert Request((ContainerRequest(Kind.APP, 0, "main", units=9),), gpus_per_pod=2).per_gpu == 5


@pytest.mark.parametrize(
    "containers",
    [[container(mem=2, count=1)], [container("a", mem=2), container("b", count=1)], [container("a", count=1), container("b", core=20)]],
)
def test_memory_and_whole_gpus_at_once_are_rejected(containers: list[dict[str, object]]) -> None:
    with pytest.raises(RequestError, match="not both"):
        parse_request(pod(*containers))


@pytest.mark.parametrize(
    ("value", "says"),
    [("-1", "negative"), (str(2**56 + 1), "more than any machine has"), ("1.5", "whole number"), ("lots", "'lots'"), ("500m", "'500m'")],
)
def test_impossible_values_are_rejected_with_the_container_and_the_resource(value: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        parse_request(pod(container("trainer", mem=value)))
    assert "'trainer'" in str(error.value)
    assert "aliyun.com/gpu-mem" in str(error.value)


def test_the_largest_amounts_together_are_a_number_that_json_can_have() -> None:
    assert parsed(pod(*(container(f"c{n}", mem=2**56) for n in range(64)))).units == 2**62


@pytest.mark.parametrize("label", ["0", "-1", "two", "1.5", "", "²", "٢", "1000000", 2])
def test_an_impossible_number_of_gpus_in_the_label_is_rejected(label: object, golden: Golden) -> None:
    golden(rejection(pod(container(mem=8000000), labels={WHOLE: label})))


@pytest.mark.parametrize("label", ["1", "2", "007", "999999"])
def test_a_number_of_gpus_in_the_label_is_read(label: str) -> None:
    assert parsed(pod(container(mem=int(label)), labels={WHOLE: label})).gpus_per_pod == int(label)


def test_the_label_means_nothing_on_a_pod_without_memory() -> None:
    assert parsed(pod(container(count=1), labels={WHOLE: "nonsense"})).gpus_per_pod == 1


def sidecar(name: str, **limits: object) -> dict[str, object]:
    return container(name, **limits) | {"restartPolicy": "Always"}


ASKS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=8)


@given(ASKS)
def test_what_kubelet_keeps_is_the_pods_effective_request_in_kubernetes(asks: list[tuple[bool, int]]) -> None:
    sidecars, most = 0, 0
    for keeps, amount in asks:
        sidecars += amount if keeps else 0
        most = max(most, sidecars + (0 if keeps else amount))
    assert request.kept(asks) == max(most, sum(amount for keeps, amount in asks if keeps))


@given(ASKS, st.randoms())
def test_the_pool_is_that_of_kubelets_sets_of_ids(asks: list[tuple[bool, int]], random: Random) -> None:
    """Played with ids, as devicesToAllocate does it."""
    reusable: set[int] = set()
    used = 0
    for (keeps, amount), step in zip(asks, request.steps(asks), strict=True):
        assert step.pool == len(reusable)
        taken = set(random.sample(sorted(reusable), min(amount, len(reusable))))
        assert step.reused == len(taken)
        new = set(range(used, used + amount - len(taken)))
        assert step.new == len(new)
        used += len(new)
        reusable = reusable - taken - new if keeps else reusable | taken | new
    assert request.kept(asks) == used


@pytest.mark.parametrize(("init", "app", "kept_right"), [(4, 4, True), (2, 4, True), (4, 2, False), (2, 0, True)])
def test_ids_of_several_gpus_must_not_be_left_to_chance(init: int, app: int, kept_right: bool) -> None:
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
        (pod(container(mem=8, core=22)), "22 is not a multiple of 5; write such as 20"),
        (pod(container(mem=8, core=3)), "3 is not a multiple of 5; write such as 5"),
        (pod(container("a", mem=8), container("b", core=20)), "container 'b' asks for aliyun.com/gpu-core.percentage without"),
        (pod(container("a", mem=8, core=60), container("b", mem=8, core=60)), "120 per cent"),
        (pod(container("a", mem=8, core=60), container("b", mem=8, core=45)), "105 per cent"),
        (pod(container(mem=8, core=20), labels={"aliyun.com/gpu-count": "2"}), "on one GPU only"),
        (pod(container(mem=8), annotations={"gpushare.request/models": ""}), "must be a list such as 'A100"),
        (pod(container(mem=8), annotations={"gpushare.request/model": "T4"}), "request/model is not known; those that are: "),
        (pod(container(mem=8), annotations={"gpushare.request/not-with": "app"}), "'app=encoder,tier=web', found 'app'"),
        (pod(container(count=1), annotations={"gpushare.request/same-gpu-as": "app=a"}), "a whole GPU is not shared"),
    ],
)
def test_what_cannot_be_meant_says_what_to_write(asking: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_request(asking)
    assert says in str(error.value)


def test_all_of_one_gpus_compute_can_be_asked_for() -> None:
    request = parsed(pod(container("a", mem=8, core=60), container("b", mem=8, core=40), container("c", mem=1)))
    assert (request.core, request.gpus_per_pod) == (100, 1)


@pytest.mark.parametrize(
    ("units", "label", "models", "gpus_per_pod", "rules"),
    [
        (9, "2", {"gpushare.request/models": "T4", "gpushare.request/not-with": "app"}, 1, NO_RULES),
        (9, "2", {"gpushare.request/models": "T4"}, 1, Rules(models=("T4",))),
        (8, "2", {"gpushare.request/not-with": "app"}, 2, NO_RULES),
        (8, "2", {}, 2, NO_RULES),
    ],
)
def test_on_a_node_the_same_counts_as_far_as_it_can_be_read(
    units: int, label: str, models: dict[str, str], gpus_per_pod: int, rules: Rules
) -> None:
    request = parsed(pod(container(mem=units), labels={WHOLE: label}, annotations=models), bound=True)
    assert (request.units, request.gpus_per_pod, request.rules) == (units, gpus_per_pod, rules)


def test_on_a_node_the_label_counts_where_any_container_has_memory() -> None:
    asking = pod(container("a", mem=8), container("b", core=20), labels={WHOLE: "2"})
    assert parsed(asking, bound=True).gpus_per_pod == 2


def test_on_a_node_all_of_it_counts_whatever_would_be_rejected() -> None:
    request = parsed(pod(container("a", mem=9, core=7), container("b", count=3, core=200)), bound=True)
    assert (request.units, request.whole_gpus, request.core) == (9, 3, 207)


ONE = ContainerRequest(Kind.APP, 0, "main", units=8, written="8")
PLAIN = Request((ONE,))
OTHERS = {
    "more memory": Request((replace(ONE, units=9),)),
    "whole GPUs": Request((replace(ONE, units=0, whole_gpus=8),)),
    "more whole GPUs": Request((replace(ONE, units=0, whole_gpus=9),)),
    "compute": Request((replace(ONE, core=20),)),
    "two GPUs": Request((ONE,), gpus_per_pod=2),
    "a rule": Request((ONE,), rules=Rules(placement="spread")),
    "another rule": Request((ONE,), rules=Rules(models=("T4",))),
    "a model to avoid": Request((ONE,), rules=Rules(models_refused=("T4",))),
    "one GPU": Request((ONE,), rules=Rules(gpu_uuids=("GPU-a",))),
    "a context": PLAIN.in_context(Context("default", ())),
    "another context": PLAIN.in_context(Context("other", ())),
}


def test_only_memory_of_one_gpu_with_nothing_else_is_plain() -> None:
    assert PLAIN.is_plain
    assert [name for name, request in OTHERS.items() if request.is_plain] == ["more memory"]
    told_apart = [name for name, request in OTHERS.items() if not request.by_likeness]
    assert told_apart == ["compute", "one GPU", "a context", "another context"], "the others see of a GPU its model and what is free"
    assert PLAIN.in_context(None) is PLAIN
    assert OTHERS["a context"].in_context(None) == PLAIN


def test_requests_that_fit_elsewhere_are_remembered_apart_and_names_make_no_difference() -> None:
    assert PLAIN.key == Request((ContainerRequest(Kind.APP, 3, "other", units=8, written="8k"),)).key
    for one, other in combinations([PLAIN, *OTHERS.values()], 2):
        assert one.key != other.key


def test_pods_of_one_shape_may_have_each_others_gpus() -> None:
    """Whatever their names, and whoever asks; not where a container is another one, or asks for something else."""
    assert PLAIN.shape == Request((replace(ONE, name="other", written="8k"),)).shape == OTHERS["a context"].shape
    sidecar, second = replace(ONE, kind=Kind.SIDECAR), replace(ONE, index=1)
    shapes = [PLAIN, Request((sidecar,)), Request((replace(ONE, kind=Kind.INIT),)), Request((second,)), Request((ONE, second))]
    different = [*shapes, *(request for request in OTHERS.values() if request.context is None)]
    assert len({request.shape for request in different}) == len(different)

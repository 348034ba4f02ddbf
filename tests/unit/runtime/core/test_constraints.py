# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs a pod accepts, by its annotations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.constraints import NO_RULES, Rules, labels_of, parse_rules, selects
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import parse_request
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden


def test_the_annotations_of_other_things_are_no_rules() -> None:
    assert parse_rules({"a": "b", "ALIYUN_COM_GPU_MEM_IDX": "1"}) is NO_RULES


def test_other_annotations_may_stand_beside_them() -> None:
    rules = parse_rules({"a": "b", "gpushare.request/models": "T4", "gpushare/cordon": "0"})
    assert rules == Rules(models=("T4",))
    assert parse_rules({"gpushare.request/not-with": "a=b"}) == Rules(not_with=(("a", "b"),))


def test_all_of_them() -> None:
    rules = parse_rules(
        {
            "gpushare.request/models": "A100, Tesla-V100",
            "gpushare.request/models-refused": "T4",
            "gpushare.request/gpus": "GPU-1",
            "gpushare.request/gpus-refused": "GPU-2,GPU-3",
            "gpushare.request/same-gpu-as": "app=encoder, tier = web",
            "gpushare.request/not-with": "example.com/noisy==true",
            "gpushare.request/placement": "spread",
            "gpushare.request/isolation": "driver",
        }
    )
    assert rules == Rules(
        models=("A100", "Tesla-V100"),
        models_refused=("T4",),
        gpu_uuids=("GPU-1",),
        gpus_refused=("GPU-2", "GPU-3"),
        same_gpu_as=(("app", "encoder"), ("tier", "web")),
        not_with=(("example.com/noisy", "true"),),
        placement="spread",
        isolation="driver",
    )


class _Compared(str):
    """A UUID that counts what it is compared with."""

    __slots__ = ("others",)
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        self.others = getattr(self, "others", 0) + 1
        return str.__eq__(self, other)


def test_a_gpu_is_looked_up_among_uuids_however_many_a_pod_names() -> None:
    named = tuple(f"GPU-{number}" for number in range(64))
    gpu = _Compared("GPU-63")
    assert Rules(gpu_uuids=named).accept(gpu, ())
    assert not Rules(gpus_refused=named).accept(gpu, ())
    assert gpu.others <= 4


@pytest.mark.parametrize(
    ("model", "wanted", "accepted"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", False),
        ("Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB", True),
        ("Tesla T4", "Tesla T4", True),
    ],
)
def test_a_model_is_named_by_words_of_it_in_a_row(model: str, wanted: str, accepted: bool) -> None:
    assert Rules(models=(wanted,)).accept("GPU-1", [model]) is accepted
    assert Rules(models_refused=(wanted,)).accept("GPU-1", [model]) is not accepted


@pytest.mark.parametrize("model", ["A100", "A 100", "100", "X A100", "A100 X"])
def test_the_words_must_follow_each_other_and_be_whole(model: str) -> None:
    assert Rules(models=("a100",)).accept("GPU-1", [model]) is ("A100" in model)
    assert Rules(models=("a 100",)).accept("GPU-1", [model]) is (model == "A 100")


def test_every_rule_about_a_gpu_must_hold() -> None:
    def accepts(**rules: tuple[str, ...]) -> bool:
        return Rules(**rules).accept("GPU-1", ["Tesla T4", "other name"])  # type: ignore[arg-type]

    assert accepts()
    assert accepts(models=("A100", "T4"), models_refused=("A100",), gpu_uuids=("GPU-2", "GPU-1"), gpus_refused=("GPU-2",))
    assert accepts(models=("other",))
    assert accepts(models=("A100",)) is False
    assert accepts(models_refused=("A100", "T4")) is False
    assert accepts(models=("T4",), models_refused=("other name",)) is False
    assert accepts(gpu_uuids=("GPU-2",), models=("T4",)) is False
    assert accepts(gpu_uuids=("GPU-1",), gpus_refused=("GPU-1",)) is False


@pytest.mark.parametrize(
    ("rules", "gpus", "pods"),
    [
        ({}, False, False),
        ({"placement": "binpack"}, False, False),
        ({"models": ("T4",)}, True, False),
        ({"models_refused": ("T4",)}, True, False),
        ({"gpu_uuids": ("GPU-1",)}, True, False),
        ({"gpus_refused": ("GPU-1",)}, True, False),
        ({"same_gpu_as": (("a", "b"),)}, False, True),
        ({"not_with": (("a", "b"),)}, False, True),
    ],
)
def test_what_rules_are_about(rules: dict[str, Any], gpus: bool, pods: bool) -> None:
    assert (Rules(**rules).about_gpus, Rules(**rules).about_pods) == (gpus, pods)


def test_a_selector_wants_all_its_pairs_and_an_empty_one_nothing() -> None:
    labels = (("app", "a"), ("tier", "web"))
    assert selects(labels, labels)
    assert selects((("tier", "web"),), labels)
    assert not selects((("app", "a"), ("tier", "db")), labels)
    assert not selects((("app", "a"), ("more", "x")), labels)
    assert not selects((), labels)


def test_labels_are_sorted_and_may_be_missing() -> None:
    assert labels_of({"labels": {"b": "1", "a": "2"}}) == (("a", "2"), ("b", "1"))
    assert [labels_of({}), labels_of({"labels": None}), labels_of({"labels": {}})] == [(), (), ()]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("models", "", "gpushare.request/models must be a list such as 'A100,Tesla-V100', found ''"),
        ("models", "T4,--", "gpushare.request/models must be a list"),
        ("models", "T4,,A100", "gpushare.request/models must be a list"),
        ("models-refused", "--", "gpushare.request/models-refused must be a list such as 'T4,P4', found '--'"),
        ("gpus", ",", "gpushare.request/gpus must be a list such as 'GPU-"),
        ("gpus-refused", " ", "gpushare.request/gpus-refused must be a list such as 'GPU-"),
        ("same-gpu-as", "", "gpushare.request/same-gpu-as must be pod labels"),
        ("not-with", "app=a,", "gpushare.request/not-with must be pod labels"),
        ("not-with", "app!=a", "gpushare.request/not-with must be pod labels"),
        ("not-with", "=a", "gpushare.request/not-with must be pod labels"),
        ("placement", "best", "gpushare.request/placement: 'best' is not a policy; write one of binpack, spread"),
        ("isolation", "watch", "gpushare.request/isolation: 'watch' is not known; write driver or mps"),
        ("placements", "spread", "gpushare.request/placements is not known"),
        ("Models", "T4", "gpushare.request/Models is not known"),
        ("", "T4", "gpushare.request/ is not known"),
    ],
)
def test_what_cannot_be_meant_names_the_annotation(key: str, value: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^annotation {re.escape(says)}"):
        parse_rules({f"gpushare.request/{key}": value, "gpushare.request/gpus": "GPU-1"} | {f"gpushare.request/{key}": value})


def test_a_label_may_have_an_empty_value() -> None:
    assert parse_rules({"gpushare.request/not-with": "b=,a==x"}).not_with == (("a", "x"), ("b", ""))


def test_a_name_that_is_not_known_is_answered_with_those_that_are() -> None:
    names = ["gpus", "gpus-refused", "isolation", "links", "models", "models-refused", "not-with", "placement", "same-gpu-as"]
    with pytest.raises(ValueError, match=r"^annotation") as error:
        parse_rules({"gpushare.request/b": "", "gpushare.request/a": "", "gpushare/cordon": "0"})
    known = ", ".join(f"gpushare.request/{name}" for name in names)
    assert str(error.value) == f"annotation gpushare.request/a is not known; those that are: {known}"


def test_the_key_of_a_request_is_small_and_differs_with_its_rules() -> None:
    asked = [
        parse_request(pod(container(mem=1), annotations={"gpushare.request/gpus": ",".join(f"GPU-{number}-{n}" for n in range(60))}))
        for number in (1, 1, 2)
    ]
    first, same, other = (request.key for request in asked if request)
    assert first == same != other
    assert len(repr(first)) < 100


@pytest.mark.parametrize("name", ["models", "models-refused", "gpus", "gpus-refused", "same-gpu-as", "not-with"])
def test_a_list_has_so_many_entries_and_characters(name: str, golden: Golden) -> None:
    key = f"gpushare.request/{name}"
    entry = "a=b" if name in ("same-gpu-as", "not-with") else "T4"
    assert parse_rules({key: ",".join([entry] * 64)}) != NO_RULES
    assert parse_rules({key: entry + "4" * (4096 - len(entry))}) != NO_RULES
    with golden.raised(ValueError):
        parse_rules({key: ",".join([entry] * 65)})
    with golden.raised(ValueError):
        parse_rules({key: entry + "4" * (4097 - len(entry))})


@pytest.mark.parametrize("name", ["models", "gpus", "same-gpu-as", "placement", "x" * 60])
def test_what_was_found_is_quoted_in_few_words(name: str) -> None:
    with pytest.raises(ValueError, match=r"^annotation gpushare\.request/") as error:
        parse_rules({f"gpushare.request/{name}": "-\n" * 2000})
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_the_nodes_label_names_its_gpus_where_they_are_alike() -> None:
    ledger = Ledger()
    ledger.set_inventory("n", inventory(16, 16, 16))
    node = ledger.nodes["n"]

    def gpus(models: str) -> list[int]:
        request = parse_request(pod(container(mem=4), annotations={"gpushare.request/models": models}))
        return [state.gpu.index for state in node.candidates(request)] if request else []

    known = node.inventory.gpus if node.inventory else ()
    ledger.set_node(replace(node.record, model="Tesla-V100"))
    assert gpus("V100") == [0, 1, 2]
    assert gpus("T4") == [0, 1, 2], "the GPUs' own name is still theirs"
    ledger.set_node(replace(node.record, inventory=Inventory(GIB, (known[0], replace(known[1], model="A100")))))
    assert gpus("V100") == []
    assert gpus("A100") == [1]

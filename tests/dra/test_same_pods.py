# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tests of pods that the other back end has, with this one. What is left out is a row of the table on the page."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from docs.pages import rows, section
from dra.by_claims import ALLOCATION, ByClaims
from dra.shares import clear
from e2e import checks, test_explain, test_faults, test_full, test_requests, test_shapes, test_verbs, test_whole_gpus
from e2e.api import Json
from e2e.cluster import Cluster
from e2e.manifests import pod

pytestmark = pytest.mark.suite("dra")

MODULES = (test_requests, test_shapes, test_whole_gpus, test_full)
CONTROL_PLANE = "control plane"
NODE = "node of a pod"
GPU = "GPU of a pod between the GPUs of a node"
MEANT = "a request that cannot be meant, such as 7 units on 2 GPUs"
CORE = "`aliyun.com/gpu-core.percentage`"
RULES = "`same-gpu-as`, `not-with`, `placement`, `isolation` of a pod"
MODELS = "models and GPUs by UUID"
#: Tests, and files of tests as a whole, that are not run → the row of the page.
EXCEPTIONS = {
    # Each question is one to the extender.
    "test_verbs": CONTROL_PLANE,
    "test_filter_rejects_what_cannot_be_meant": CONTROL_PLANE,
    "test_an_annotation_makes_the_scheduler_look_at_a_rejected_pod_again": CONTROL_PLANE,
    # Faults in the places that the samples have with the extender; test_the_checks_find_faults has others.
    "test_faults": NODE,
    "test_a_whole_gpu_is_taken_from_nobody_and_given_to_nobody": NODE,
    # explain beside the extender's choice among random pods, of which most have rules and compute.
    "test_explain": RULES,
    "test_both_resources_at_once_are_rejected": MEANT,
    "test_bytes_instead_of_units_are_explained": MEANT,
    "test_an_amount_that_gpus_cannot_share_is_rejected": MEANT,
    "test_a_mistaken_annotation_is_named": MEANT,
    "test_the_nodes_label_names_the_model_of_gpus_that_are_alike": MODELS,
    "test_pods_choose_their_neighbours": RULES,
    "test_a_pods_own_policy_goes_first": RULES,
    "test_pods_spread_between_nodes_by_their_own_policy": RULES,
    "test_compute_is_counted_where_the_node_shares_it_out": CORE,
    "test_compute_is_rejected_where_nobody_shares_it_out": CORE,
    "test_a_nodes_label_is_the_policy_between_its_gpus": GPU,
}


def cases(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name.startswith("test_") and callable(value)}


SAME = {name: test for module in MODULES for name, test in cases(module).items() if name not in EXCEPTIONS}
# pytest finds them here, with the fixtures of this file.
globals().update(SAME)


@pytest.fixture(scope="module")
def by_claims(cluster: Cluster) -> ByClaims:
    return ByClaims(cluster.name)


@pytest.fixture
def empty(by_claims: ByClaims) -> Iterator[Cluster]:
    clear(by_claims)
    yield by_claims
    clear(by_claims)


def test_what_is_left_out_differs_by_a_row_of_the_page() -> None:
    table = {what: (extender, dra) for what, extender, dra in rows(section("docs/use/dra.md", "What each back end gives"))}
    assert {row: table[row] for row in EXCEPTIONS.values() if table[row][0] == table[row][1]} == {}
    files = {module.__name__.rpartition(".")[2] for module in (test_verbs, test_faults, test_explain)}
    assert EXCEPTIONS.keys() == files | {name for module in MODULES for name in cases(module)} - SAME.keys()


def test_the_checks_find_faults(empty: Cluster) -> None:
    """As if claims said something else."""
    for name in ("first", "second"):
        empty.create(pod(name, memory=6, node="gpu1"))
        empty.until_running(name)
    first, second = empty.pod("first"), empty.pod("second")
    assert checks.check_devices(empty, [first, second]) == checks.check_environment(empty, [first, second]) == []

    def pretended(**changes: str) -> Json:
        return {**first, "metadata": {**first["metadata"], "annotations": {**first["metadata"]["annotations"], **changes}}}

    moved = pretended(ALIYUN_COM_GPU_MEM_IDX="1", **{ALLOCATION: '{"0":{"1":6}}'})
    assert checks.check_devices(empty, [moved]) == ["first/main on gpu1: has ['nvidia0'] in /dev, its annotated GPUs [1] are ['nvidia1']"]
    assert checks.check_environment(empty, [moved]) == ["first/main on gpu1: PID 1 has ALIYUN_COM_GPU_MEM_IDX=0, expected 1"]
    larger = pretended(**{ALLOCATION: '{"0":{"0":11}}'})
    assert checks.check_totals(empty, [larger, second]) == ["GPU 0 of gpu1 has 16 units, pods hold 17"]
    assert checks.check_whole_gpu(empty, first) == ["GPU 0 of gpu1 is whole for first, and another pod holds memory of it"]

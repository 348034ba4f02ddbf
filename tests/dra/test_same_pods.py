# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The first file of the suite `pods-by-claims`, whose others are the other back end's tests of pods: they see this cluster as theirs.

What that suite leaves out is a row of the table on the page.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.pages import rows, section
from dra.by_claims import ALLOCATION, ByClaims
from e2e import checks
from e2e.api import Json
from e2e.cluster import Cluster
from e2e.manifests import pod
from labs import Labs
from suites.table import SUITES

CONTROL_PLANE = "control plane"
NODE = "node of a pod"
GPU = "GPU of a pod between the GPUs of a node"
MEANT = "a request that cannot be meant, such as 7 units on 2 GPUs"
CORE = "`aliyun.com/gpu-core.percentage`"
RULES = "`same-gpu-as`, `not-with`, `placement` of a pod"
MODELS = "models and GPUs by UUID"
#: Files of the suite `pods` that are not run → the row of the page.
FILES = {
    # Each question is one to the extender.
    "tests/e2e/test_verbs.py": CONTROL_PLANE,
    # Faults in the places that the samples have with the extender; test_the_checks_find_faults has others.
    "tests/e2e/test_faults.py": NODE,
    # explain beside the extender's choice among random pods, of which many have rules and compute.
    "tests/e2e/test_explain.py": RULES,
}
#: Tests of the other files.
TESTS = {
    "test_filter_rejects_what_cannot_be_meant": CONTROL_PLANE,
    "test_an_annotation_makes_the_scheduler_look_at_a_rejected_pod_again": CONTROL_PLANE,
    "test_a_whole_gpu_is_taken_from_nobody_and_given_to_nobody": NODE,
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


@pytest.fixture(scope="module")
def by_claims(cluster: Cluster, labs: Labs) -> ByClaims:
    found = ByClaims(cluster.name)
    labs.is_now(found)
    return found


@pytest.fixture
def empty(by_claims: ByClaims) -> Iterator[Cluster]:
    by_claims.clear()
    yield by_claims
    by_claims.clear()


def test_what_is_left_out_differs_by_a_row_of_the_page() -> None:
    table = {what: (extender, dra) for what, extender, dra in rows(section("docs/use/dra.md", "What each back end gives"))}
    assert [row for row in (*FILES.values(), *TESTS.values()) if table[row][0] == table[row][1]] == []
    run, others = (next(one.tests for one in SUITES if one.name == name) for name in ("pods-by-claims", "pods"))
    assert FILES.keys() == set(others) - set(run)
    assert TESTS.keys() == {one.rpartition("::")[2] for one in run if one.startswith("--deselect=")}


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

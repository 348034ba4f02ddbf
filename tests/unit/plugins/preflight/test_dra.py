# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight says of drivers of dynamic resource allocation on our nodes: installed alone, by a GPUCluster, and what they leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import GpuManager
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding, HostFindings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.device_managers import judge_managers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.dra import judge, said
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.reasons import Judgement

from unit.fakes.plugins.preflight.operator_facts import NO_DRA, NO_OPERATOR, dra, gpu_cluster
from unit.golden import Golden

OURS = ("gpu1", "gpu2")


def judged(facts: dict[str, Any], operator: dict[str, Any] = NO_OPERATOR, of_hosts: tuple[str, ...] = ()) -> list[Finding]:
    found = HostFindings("cp1")
    judge(found, facts, operator, OURS, of_hosts)
    return found.list


@pytest.mark.parametrize(
    ("facts", "operator", "of_hosts"),
    [
        (NO_DRA, NO_OPERATOR, ()),
        (dra("gpu9", holders=["gpu9"]), NO_OPERATOR, ()),
        (NO_DRA, gpu_cluster("gpu9"), ()),
        # Whoever leaves the label behind, without a GPUCluster nobody reads it.
        (NO_DRA, {**gpu_cluster("gpu1"), "clusters": []}, ()),
        (dra("gpu1", holders=["gpu1"]), NO_OPERATOR, ("gpu1",)),
    ],
)
def test_nothing_speaks_against_it(facts: dict[str, Any], operator: dict[str, Any], of_hosts: tuple[str, ...]) -> None:
    assert judged(facts, operator, of_hosts) == []


def test_each_driver_is_named_with_its_nodes_and_its_own_cure(golden: Golden) -> None:
    both = {**NO_DRA, "published": [*dra("gpu2", "gpu1")["published"], *dra("gpu2", driver="gpu.example.org")["published"]]}
    other, nvidias = judged(both)
    assert (nvidias.check, nvidias.severity) == ("managers", "error")
    golden(nvidias.found)
    assert "its Helm chart" in nvidias.cure
    golden(other.found)
    assert "Helm" not in other.cure


def test_pods_that_a_driver_has_left_with_gpus_are_named(golden: Golden) -> None:
    (pods,) = judged(dra(holders=["gpu2"]))
    golden(pods.found)


def test_a_gpu_cluster_is_kept_off_by_labels_in_the_order_that_works() -> None:
    """Parts of the operator have claims, too: without the driver they would end never. So its own label is the last."""
    (reason,) = judged(dra("gpu1"), gpu_cluster("gpu1", "gpu9"))
    assert (reason.check, reason.severity) == ("operator", "error")
    assert reason.found == "GPUCluster gpu-cluster, which deploys NVIDIA's DRA driver on gpu1"
    first, last = (reason.cure.index(f"nvidia.com/gpu.deploy.{part}=false") for part in ("dra-validator", "dra-driver"))
    assert first < reason.cure.index("when their pods have ended") < last
    # Another node of ours has the driver by another way.
    assert [one.check for one in judged(dra("gpu1", "gpu2"), gpu_cluster("gpu1"))] == ["operator", "managers"]


def test_names_of_the_cluster_are_quoted_in_short() -> None:
    (reason,) = judged({**NO_DRA, "published": [{"node": "gpu1", "driver": "x" * 300}]})
    assert "x" * 80 in reason.found
    assert "x" * 81 not in reason.found


@pytest.mark.parametrize(
    ("name", "active", "of_hosts"),
    [("NVIDIA DRA driver", True, {"gpu1"}), ("NVIDIA DRA driver", False, set()), ("NVIDIA device plugin", True, set())],
)
def test_a_host_that_has_named_the_driver_says_more(name: str, active: bool, of_hosts: set[str]) -> None:
    found = HostFindings("h1")
    judge_managers(found, [GpuManager(name, active, ("process 7",))], False)
    # As an action returns it to the play.
    judgement = Judgement.from_dict(Judgement("h1", "gpu1", tuple(found.list)).as_dict())
    assert said([judgement, replace(judgement, node_name=None)]) == of_hosts

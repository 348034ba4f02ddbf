# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight says of NVIDIA's GPU Operator: each state of its ClusterPolicy, and whose nodes it serves."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding, HostFindings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.gpu_operator import goes, judge

from unit.fakes.plugins.preflight.operator_facts import NO_OPERATOR, operator, policy

KUBECTL = 'kubectl patch clusterpolicies.nvidia.com cluster-policy --type=merge --patch \'{"spec":{"devicePlugin":{"enabled":false}}}\''
HELM = "helm upgrade gpu nvidia/gpu-operator --namespace gpu-operator --reuse-values --set devicePlugin.enabled=false"
OF_HELM = {"owner": "the Helm release gpu", "release": "gpu-operator/gpu"}
ELSEWHERE = "gpu9 lose nvidia.com/gpu then, until NVIDIA's device plugin serves them by its own chart"


def judged(facts: dict[str, Any], mode: str = "check", ours: tuple[str, ...] = ("gpu1", "gpu2")) -> list[Finding]:
    found = HostFindings("cp1")
    judge(found, facts, ours, mode)
    return found.list


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        (NO_OPERATOR, "check"),
        (operator(policy(enabled=False)), "check"),
        (operator(policy(enabled=False)), "patch"),
        (operator(policy(enabled=False, **OF_HELM)), "patch"),
        (operator(policy()), "patch"),
        # Its plugin and its validator are on nodes of others only.
        (operator(policy(), nodes=("gpu9",)), "check"),
        (operator(policy(**OF_HELM), nodes=("gpu9",)), "patch"),
        # A node of ours that another run serves is none that loses anything.
        (operator(policy(), nodes=("gpu1", "gpu9"), ours=["gpu9"]), "patch"),
    ],
)
def test_nothing_speaks_against_it(facts: dict[str, Any], mode: str) -> None:
    assert judged(facts, mode) == []


def test_names_of_the_cluster_are_quoted_in_short() -> None:
    facts = operator(policy(), policy(name="x" * 100))
    (finding,) = judged(facts)
    assert finding.found == f"2 objects ClusterPolicy (cluster-policy, {'x' * 80})"


@pytest.mark.parametrize(
    ("facts", "mode", "words"),
    [
        (operator(policy()), "check", f"on gpu1, gpu2; expected devicePlugin.enabled: false.*gpushare_gpu_operator: patch.*{KUBECTL}"),
        (operator(policy(**OF_HELM)), "check", f"belongs to the Helm release gpu; .*{HELM}"),
        (operator(policy(**OF_HELM)), "patch", f"belongs to the Helm release gpu; .*{HELM}"),
        (operator(policy(owner="OLM (gpu-operator)")), "patch", f"belongs to OLM (gpu-operator); .*{KUBECTL}"),
        (operator(policy(), nodes=("gpu1", "gpu9")), "check", f"on gpu1; .*{KUBECTL}; {ELSEWHERE}"),
        (operator(policy(**OF_HELM), nodes=("gpu1", "gpu9")), "patch", f"{HELM}; {ELSEWHERE}"),
        (operator(policy(), policy(name="second")), "check", "2 objects ClusterPolicy (cluster-policy, second); expected one"),
        (operator(versions=["v2", "v3alpha1"]), "check", "of nvidia.com/v2, v3alpha1; expected nvidia.com/v1"),
        (operator(policy(problem="ClusterPolicy x has devicePlugin 7")), "patch", "has devicePlugin 7; expected"),
        (operator(), "patch", "found no ClusterPolicy of the GPU Operator, and gpushare_gpu_operator: patch; expected one"),
        (NO_OPERATOR, "patch", "found no ClusterPolicy"),
        ({**NO_OPERATOR, "clusters": ["gpu-cluster"]}, "patch", "found no ClusterPolicy but a GPUCluster.*leave gpushare_gpu_operator out"),
    ],
)
def test_it_is_rejected(facts: dict[str, Any], mode: str, words: str) -> None:
    (reason,) = judged(facts, mode)
    assert (reason.check, reason.severity) == ("operator", "error")
    assert [part for part in words.split(".*") if part not in str(reason)] == [], str(reason)


def test_what_other_nodes_lose_is_said_before_it_is_done() -> None:
    (reason,) = judged(operator(policy(), nodes=("gpu1", "gpu9")), "patch")
    assert (reason.severity, ELSEWHERE in reason.cure) == ("warning", True)


def test_whether_its_plugin_goes() -> None:
    assert goes(operator(policy(enabled=False)), "check")
    assert goes(operator(policy()), "patch")
    assert not goes(operator(policy()), "check")

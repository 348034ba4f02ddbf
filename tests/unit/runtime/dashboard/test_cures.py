# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a person copies of each cure that `explain` names, and that no name of others becomes part of a command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.dashboard import cures
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.explain import Conclusion, Cure, conclude, explain
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, held, node, pod, read_all
from unit.fakes.runtime.pods import container, gpu

Json = dict[str, Any]


def waiting(cluster: Cluster, name: str = "w") -> PendingPod:
    found = cluster.waiting[f"uid-{name}"].pod
    assert isinstance(found, PendingPod)
    return found


def copied(cluster: Cluster) -> tuple[str, dict[str, list[str]]]:
    """Of the sentence, and by node of each cure."""
    one = waiting(cluster)
    found = explain(cluster, one)
    conclusion = conclude(one, found, "", cluster.largest())
    by_node = {each.node: [cures.of_node(cure, each.node, one) for cure in each.cures] for each in found}
    return cures.of_conclusion(conclusion, one, cluster.largest()), by_node


def full(name: str, index: int, units: int, namespace: str = "default") -> Json:
    return pod(name, "a", annotations=allocation({"0": {str(index): units}}), mem=units, namespace=namespace)


def test_a_smaller_request_is_a_line_of_the_manifest_and_pods_that_end_are_deleted() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [full("x", 0, 3), full("y", 0, 3, "team"), pod("w", None, mem=14)])
    assert copied(cluster) == (
        "aliyun.com/gpu-mem: 10",
        {"a": ["aliyun.com/gpu-mem: 10", "kubectl delete pod -n default x && kubectl delete pod -n team y"]},
    )


def test_a_request_for_less_than_half_gives_way_to_the_end_of_pods() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [full("x", 0, 12), pod("w", None, mem=14)])
    assert copied(cluster)[0] == "kubectl delete pod -n default x"


@pytest.mark.parametrize(("change", "copy"), [({"cordoned": True}, "kubectl gpushare uncordon a 0"), ({"health": "XID 79"}, "")])
def test_the_end_of_a_cordon_is_a_command_and_a_repair_is_none(change: Json, copy: str) -> None:
    cluster = read_all([node("a", "10.0.0.1", gpus=Inventory(GIB, (replace(gpu(0, 16), **change),)))], [pod("w", None, mem=14)])
    assert copied(cluster) == (copy, {"a": [copy]})


def test_a_node_that_kubectl_cordoned_is_uncordoned_by_it() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16) | {"spec": {"unschedulable": True}}], [pod("w", None, mem=14)])
    assert copied(cluster) == ("kubectl uncordon a", {"a": ["kubectl uncordon a"]})


@pytest.mark.parametrize(
    ("limits", "copy"),
    [({"mem": 25}, "aliyun.com/gpu-mem: 16"), ({"mem": 8 * 2**30}, "aliyun.com/gpu-mem: 8"), ({"count": 3}, "aliyun.com/gpu-count: 2")],
)
def test_what_fits_on_no_gpu_has_the_line_that_would(limits: Json, copy: str) -> None:
    cluster = read_all([node("a", "10.0.0.1", 16, 16)], [pod("w", None, **limits)])
    assert copied(cluster)[0] == copy


def test_whole_gpus_that_are_left_are_a_line() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16, 16)], [full("x", 0, 12), pod("w", None, count=2)])
    assert copied(cluster) == ("aliyun.com/gpu-count: 1", {"a": ["aliyun.com/gpu-count: 1", "kubectl delete pod -n default x"]})


def test_pods_of_lower_priority_are_deleted() -> None:
    raw = pod("w", None, mem=14)
    raw["spec"]["priority"] = 100
    # Room by kube-scheduler's count, and none on one GPU.
    cluster = read_all([node("a", "10.0.0.1", 16, 16)], [full("x", 0, 5), full("y", 1, 12), raw])
    assert copied(cluster)[0] == "kubectl delete pod -n default x"


def test_processes_that_are_waited_for_and_pods_that_are_not_all_named_have_nothing_to_copy() -> None:
    left = held(node("a", "10.0.0.1", 16), gpu0=[{"uid": "gone", "pod": "default/gone", "units": 16, "why": "orphaned"}])
    assert copied(read_all([left], [pod("w", None, mem=14)])) == ("", {"a": [""]})
    many = read_all([node("a", "10.0.0.1", 16)], [*(full(f"x{at}", 0, 3) for at in range(5)), pod("w", None, mem=16)])
    assert copied(many) == ("", {"a": ["aliyun.com/gpu-mem: 1", ""]})


def test_of_several_containers_no_single_line_would_say_it() -> None:
    raw = pod("w", None, mem=7)
    raw["spec"]["containers"].append(container("other", mem=7))
    cluster = read_all([node("a", "10.0.0.1", 16)], [full("x", 0, 6), raw])
    assert copied(cluster)[1]["a"][0] == ""


@pytest.mark.parametrize("name", ["a; rm -rf /", "$(id)", "a\nb", "-n kube-system", "A", "a b", "`x`", "a&&b"])
def test_a_name_that_kubernetes_would_not_accept_is_in_no_command(name: str) -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [pod("w", None, mem=14)])
    one = waiting(cluster)
    for cure in (
        Cure("uncordon", "x"),
        Cure("uncordon-node", f"kubectl uncordon {name}"),
        Cure("describe-node", f"kubectl describe node {name}"),
    ):
        assert cures.of_node(cure, name, one) == ""
        assert cures.of_conclusion(Conclusion("x", cure, name), one, cluster.largest()) == ""
    for pods in ((f"default/{name}",), (f"{name}/x",), ("default/x", f"default/{name}")):
        assert cures.of_node(Cure("end", "x", pods), "a", one) == ""
        assert cures.of_conclusion(Conclusion("x", Cure("end", "x", pods)), one, cluster.largest()) == ""

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who holds what, read from nodes and pods as they are met in real clusters."""

from __future__ import annotations

import json

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.kubectl_gpushare.inspect_usage import PodUsage, read_usage
from unit.fakes.runtime.kubectl_gpushare.objects import node, original_node, pod
from unit.fakes.runtime.pods import container, gpu
from unit.golden import Golden

NODE = node("a", "10.0.0.1", 8, 8)


def test_only_bound_unfinished_pods_that_ask_for_gpus_hold_something() -> None:
    pods = [
        pod("runs", "a", gpu=0, mem=1),
        pod("starts", "a", gpu=0, mem=1, phase="Pending"),
        pod("lost", "a", gpu=0, mem=1, phase="Unknown"),
        pod("done", "a", gpu=0, mem=1, phase="Succeeded"),
        pod("failed", "a", gpu=0, mem=1, phase="Failed"),
        pod("waits", None, mem=1, phase="Pending"),
        pod("elsewhere", "b", gpu=0, mem=1),
        pod("plain", "a"),
    ]
    assert [held.name for held in read_usage([NODE], pods).nodes[0].pods] == ["runs", "starts", "lost"]


def test_a_node_without_shared_gpus_is_left_out() -> None:
    plain = {"metadata": {"name": "cp1"}, "status": {"allocatable": {"cpu": "2"}}}
    empty = node("empty", "10.0.0.9", gpus=Inventory(GIB, ()))
    assert [found.name for found in read_usage([plain, NODE, empty], []).nodes] == ["a"]


def test_containers_on_one_gpu_are_added_up() -> None:
    two = pod("two", "a", gpu=1)
    two["spec"]["containers"] = [container("x", mem=2), container("y", mem=3)]
    assert read_usage([NODE], [two]).nodes[0].pods == (PodUsage("default", "two", {1: 5}),)


def test_units_of_mig_instances_are_those_of_their_gpu() -> None:
    """The original's tables have a column for each GPU from 0 on."""
    made = Inventory(GIB, (gpu(0, 8), *(gpu(11070 + 10 * i, 9, uuid=f"MIG-{i}") for i in range(2))))
    pods = [pod(f"p{i}", "a", gpu=11070 + 10 * i, mem=2 + i) for i in range(2)]
    usage = read_usage([node("a", "10.0.0.1", gpus=made)], pods).nodes[0]
    assert (usage.gpus, usage.by_gpu, usage.columns) == ({0: 8, 1: 18}, {0: 0, 1: 5}, 2)
    assert [held.by_gpu for held in usage.pods] == [{1: 2}, {1: 3}]


def test_the_allocation_annotation_goes_before_the_index() -> None:
    both = pod("both", "a", gpu=1, mem=4, annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":3,"1":1}}'})
    assert read_usage([NODE], [both]).nodes[0].pods == (PodUsage("default", "both", {0: 3, 1: 1}),)


def test_whole_gpus_hold_all_their_units() -> None:
    whole = pod("whole", "a", count=1, annotations={"scheduler.framework.gpushare.allocation": '{"0":{"1":8}}'})
    usage = read_usage([NODE], [whole]).nodes[0]
    assert (usage.by_gpu, usage.pending, usage.allocated) == ({0: 0, 1: 8}, 0, 8)


def test_a_pod_without_an_allocation_is_pending() -> None:
    usage = read_usage([NODE], [pod("none", "a", mem=3), pod("minus", "a", gpu=-1, mem=2), pod("whole", "a", count=1)]).nodes[0]
    assert [held.pending for held in usage.pods] == [3, 2, 8]
    assert (usage.by_gpu, usage.allocated) == ({0: 0, 1: 0}, 13)


def test_what_cannot_be_read_is_said_and_counted_as_pending(golden: Golden) -> None:
    usage = read_usage([NODE], [pod("broken", "a", gpu="one", mem=3)])
    assert usage.nodes[0].pending == 3
    unreadable, problem = usage.warnings
    golden(unreadable)
    golden(problem)


def test_a_gpu_that_the_node_has_no_more_is_pending() -> None:
    usage = read_usage([NODE], [pod("p", "a", gpu=7, mem=3)])
    assert usage.nodes[0].pending == 3
    assert "node a: GPU 7: 3 units are allocated beyond what it has" in usage.warnings
    assert any(text.startswith("node a: pod default/p: no pod can have what its annotations say of GPU 7") for text in usage.warnings)


def test_a_pod_whose_gpu_is_gone_is_said_and_counted_on_no_gpu(golden: Golden) -> None:
    raw = node("n1", "10.0.0.1", 16)
    entry = {"pod": "default/p", "uid": "uid-p", "units": 6, "why": "gone"}
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": {"GPU-old": [entry]}, "rejected": []})
    usage = read_usage([raw], [pod("p", "n1", gpu=0, mem=6)])
    assert (usage.nodes[0].by_gpu, usage.nodes[0].pods, usage.nodes[0].pending) == ({0: 0}, (), 0)
    golden("\n".join(usage.warnings))


def test_a_bound_pod_counts_also_where_it_would_be_rejected_now(golden: Golden) -> None:
    usage = read_usage([NODE], [pod("both", "a", mem=1, count=1)])
    assert usage.nodes[0].pending == 9
    (problem,) = usage.warnings
    golden(problem)


def test_an_amount_that_cannot_be_read_is_said_and_not_counted(golden: Golden) -> None:
    usage = read_usage([NODE], [pod("odd", "a", mem=-1)])
    assert usage.nodes[0].pods == ()
    assert len(usage.warnings) == 1
    golden(usage.warnings[0])


def test_what_only_the_node_knows_is_counted() -> None:
    held = {
        gpu(0, 8).uuid: [{"pod": "default/gone", "uid": "u1", "units": 3, "why": "orphaned"}],
        gpu(1, 8).uuid: [
            {"pod": "default/static", "uid": "u2", "units": 2, "why": "unmanaged"},
            {"pod": "default/whole", "uid": "u3", "units": 8, "why": "orphaned", "whole": True},
        ],
    }
    says = node("a", "10.0.0.1", 8, 8)
    says["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": held, "rejected": []})
    static = pod("static", "a", mem=2)
    static["metadata"]["uid"] = "u2"
    assert read_usage([says], [static]).nodes[0].pods == (
        PodUsage("default", "static", {1: 2}),
        PodUsage("default", "gone (orphaned)", {0: 3}),
        PodUsage("default", "whole (orphaned)", {1: 8}),
    )


def test_a_pod_that_its_node_reports_on_another_gpu_takes_both() -> None:
    moved = pod("moved", "a", gpu=0, mem=3)
    elsewhere = {"pod": "default/moved", "uid": moved["metadata"]["uid"], "units": 3, "why": "unmanaged"}
    says = node("a", "10.0.0.1", 8, 8)
    says["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": {gpu(1, 8).uuid: elsewhere}})
    usage = read_usage([says], [moved]).nodes[0]
    assert usage.pods == (PodUsage("default", "moved", {0: 3, 1: 3}),)
    assert (usage.by_gpu, usage.allocated) == ({0: 3, 1: 3}, 6)


def test_a_static_pod_has_what_its_node_says_and_nothing_else() -> None:
    static = pod("static", "a", gpu=0, mem=2, annotations={"kubernetes.io/config.mirror": "file"})
    static["metadata"]["uid"] = "u"
    assert read_usage([NODE], [static]).nodes[0].pods == ()
    says = node("a", "10.0.0.1", 8, 8)
    entry = {"pod": "default/static", "uid": "u", "units": 2, "why": "unmanaged"}
    says["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": {gpu(1, 8).uuid: entry}})
    assert read_usage([says], [static]).nodes[0].pods == (PodUsage("default", "static", {1: 2}),)


def test_nothing_that_a_node_says_is_obeyed_by_a_terminal() -> None:
    odd = node("a", "10.0.0.1\x1b]0;owned\x07\n" + "x" * 1000, 8)
    assert read_usage([odd], []).nodes[0].address == "10.0.0.1 ]0;owned  " + "x" * 45


@pytest.mark.parametrize(
    ("resource", "amount", "says"),
    [
        ("aliyun.com/gpu-count", "129", "its aliyun.com/gpu-count of 129 cannot be; a node has at most 128"),
        ("aliyun.com/gpu-count", "1e18", "its aliyun.com/gpu-count of 1000000000000000000 cannot be"),
        ("aliyun.com/gpu-count", "-1", "its aliyun.com/gpu-count of -1 cannot be"),
        ("aliyun.com/gpu-mem", "2147483648", "its aliyun.com/gpu-mem of 2147483648 cannot be"),
        ("aliyun.com/gpu-mem", "many", "'many' is not a quantity"),
    ],
)
def test_a_node_whose_totals_cannot_be_is_left_out_and_said(resource: str, amount: str, says: str) -> None:
    odd = original_node("odd", "10.0.0.2", memory=64, count=64)
    assert [found.name for found in read_usage([odd, NODE], []).nodes] == ["a", "odd"]
    odd["status"]["allocatable"][resource] = amount
    usage = read_usage([odd, NODE], [pod("p", "odd", mem=1)])
    assert [found.name for found in usage.nodes] == ["a"]
    assert usage.warnings[0].startswith(f"node odd: {says}")


def test_a_word_of_the_node_that_cannot_be_read_is_said(golden: Golden) -> None:
    says = node("a", "10.0.0.1", 8)
    says["metadata"]["annotations"]["gpushare/held"] = '{"v":2}'
    golden(read_usage([says], []).warnings[0])


def test_a_lost_gpu_leaves_its_column() -> None:
    usage = read_usage([node("a", "10.0.0.1", gpus=Inventory(GIB, (gpu(1, 8),)))], []).nodes[0]
    assert (usage.columns, usage.gpus) == (2, {1: 8})


def test_gpus_that_are_ill_or_cordoned_are_counted() -> None:
    ill = Inventory(GIB, (gpu(0, 8, health="xid 79"), gpu(1, 8, cordoned=True)))
    assert read_usage([node("a", "10.0.0.1", gpus=ill)], []).nodes[0].total == 16


def test_an_inventory_that_cannot_be_read_falls_back_to_totals(golden: Golden) -> None:
    newer = original_node("a", "10.0.0.1", memory=30, count=2)
    newer["metadata"]["annotations"] = {"gpushare/gpus": '{"v":2}'}
    usage = read_usage([newer], [pod("p", "a", gpu=1, mem=5)])
    assert (usage.nodes[0].gpus, usage.nodes[0].by_gpu) == ({0: 15, 1: 15}, {0: 0, 1: 5})
    assert len(usage.warnings) == 1
    golden(usage.warnings[0])


def test_a_node_without_an_address() -> None:
    assert read_usage([{**NODE, "status": {}}], []).nodes[0].address == "unknown"


def test_different_units_are_said(golden: Golden) -> None:
    mib = original_node("m", "10.0.0.2", memory=15000, count=1)
    golden("\n".join(read_usage([NODE, mib], []).warnings))

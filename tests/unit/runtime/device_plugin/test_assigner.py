# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod's annotations should say, by kubelet's record."""

from __future__ import annotations

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.device_plugin.assigner import allocation_in, annotations_due
from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.pods import LocalPod, parse_local_pod
from unit.runtime.device_plugin.local_pods import bound, memory, whole
from unit.runtime.pods import container, inventory

MEMORY, CARDS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 24)


def got(pod: LocalPod, container_name: str, card: int, units: int) -> Entry:
    return Entry(pod.uid, container_name, MEMORY, frozenset(f"GPU-{card:08d}-_-{slot}" for slot in range(units)))


def pair() -> LocalPod:
    return parse_local_pod(bound(NODE, {0: {0: 2}, 1: {1: 3}}, container("a", mem=2), container("b", mem=3)))


def test_nothing_is_known_until_every_container_has_its_ids() -> None:
    pod = pair()
    assert allocation_in(pod, [got(pod, "a", 0, 2)], NODE) is None
    assert allocation_in(pod, [got(pod, "a", 0, 2), got(pod, "b", 1, 3)], NODE) == Allocation.of({0: {0: 2}, 1: {1: 3}})


def test_entries_of_other_pods_and_of_cards_that_are_gone_say_nothing() -> None:
    pod, other = pair(), pair()
    assert allocation_in(pod, [got(other, "a", 0, 2), got(other, "b", 1, 3)], NODE) is None
    assert allocation_in(pod, [got(pod, "a", 0, 2), got(pod, "b", 7, 3)], NODE) is None


def test_of_an_init_container_only_what_nobody_else_has_counts() -> None:
    pod = parse_local_pod(bound(NODE, {0: {1: 4}}, container(mem=4), init=[container("first", mem=2)]))
    assert allocation_in(pod, [got(pod, "first", 1, 2), got(pod, "main", 1, 4)], NODE) == Allocation.of({0: {1: 4}})
    large = parse_local_pod(bound(NODE, {0: {1: 4}, -1: {1: 3}}, container(mem=4), init=[container("first", mem=7)]))
    actual = allocation_in(large, [got(large, "first", 1, 7), got(large, "main", 1, 4)], NODE)
    assert actual == large.allocation == Allocation.of({0: {1: 4}, -1: {1: 3}})


def test_a_sidecar_is_part_of_it() -> None:
    side = container("side", mem=3) | {"restartPolicy": "Always"}
    pod = parse_local_pod(bound(NODE, {0: {1: 4}, -1: {1: 3}}, container(mem=4), init=[side]))
    slots = Entry(pod.uid, "main", MEMORY, frozenset(f"GPU-00000001-_-{slot}" for slot in range(3, 7)))
    assert allocation_in(pod, [got(pod, "side", 1, 3), slots], NODE) == pod.allocation


def test_whole_cards_count_with_all_their_units() -> None:
    pod = parse_local_pod(whole(NODE, 0, 1))
    entry = Entry(pod.uid, "main", CARDS, frozenset({"GPU-00000000", "GPU-00000001"}))
    assert allocation_in(pod, [entry], NODE) == Allocation.of({0: {0: 16, 1: 24}})


def test_what_is_right_is_marked_and_what_is_marked_is_left() -> None:
    pod = memory(NODE, 1, 4)
    actual = Allocation.of({0: {1: 4}})
    assert annotations_due(parse_local_pod(pod), actual, NODE, 5) == {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
    assert annotations_due(parse_local_pod(pod), actual, NODE, 5) == {}


def test_the_originals_five_annotations_are_left_as_they_are_when_right() -> None:
    pod = memory(NODE, 1, 4)
    del pod["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"]
    assert annotations_due(parse_local_pod(pod), Allocation.of({0: {1: 4}}), NODE, 5) == {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}


def test_a_pod_that_nobody_placed_gets_all_six() -> None:
    assert annotations_due(parse_local_pod(memory(None, 1, 4)), Allocation.of({0: {1: 4}}), NODE, 5) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":4}}',
    }

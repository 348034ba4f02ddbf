# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a container reads in its environment, whatever it got and whatever was chosen for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.allocate_response import allocate_response
from gpushare_runtime.device_plugin.node.local_pods import PendingContainer, parse_local_pod
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.pods import container, inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 24, 32)


def pending(raw: Mapping[str, Any], place: int = 0) -> PendingContainer:
    pod = parse_local_pod(raw)
    return PendingContainer(pod, pod.container_devices[place])


def ids(gpu: int, units: int) -> list[str]:
    return [f"GPU-{gpu:08d}-_-{slot}" for slot in range(units)]


PAIR = bound(NODE, {0: {1: 4}, 1: {1: 3}}, container("a", mem=4), container("b", mem=3))
INIT = bound(None, {}, container(mem=4), init=[container("first", mem=6)])
# What this container of the pod is to get cannot be said.
UNSAID = replace(pending(whole(NODE, 1, 2)), devices=replace(pending(whole(NODE, 1, 2)).devices, units_by_gpu={}))
WHOLE_PAIR = bound(NODE, {0: {0: 16}, 1: {1: 24}}, container("a", count=1), container("b", count=1))


@pytest.mark.parametrize(
    ("asked", "given", "gpu", "units", "pod_units", "as_planned"),
    [
        (None, ids(1, 4), 1, 4, 4, None),
        (pending(memory(NODE, 1, 4)), ids(1, 4), 1, 4, 4, True),
        (pending(memory(NODE, 1, 4)), ids(0, 4), 0, 4, 4, False),
        (pending(PAIR, 1), ids(1, 3), 1, 3, 7, True),
        (pending(memory(None, 1, 4)), ids(1, 4), 1, 4, 4, None),
        (pending(INIT, 1), ids(1, 4), 1, 4, 6, None),
    ],
    ids=["nobody known", "as chosen", "another GPU", "one of two", "nobody chose", "nobody chose, with an init container"],
)
def test_memory(asked: PendingContainer | None, given: list[str], gpu: int, units: int, pod_units: int, as_planned: bool | None) -> None:
    granted = allocate_response(MEMORY, given, (NODE.by_index[gpu],), asked)
    assert granted.environment == {
        "NVIDIA_VISIBLE_DEVICES": f"GPU-{gpu:08d}",
        "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        "ALIYUN_COM_GPU_MEM_DEV": str(NODE.by_index[gpu].units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
    }
    assert (granted.container, granted.gpus, granted.as_planned) == (asked, (NODE.by_index[gpu],), as_planned)


@pytest.mark.parametrize(
    ("asked", "given", "units", "pod_units", "as_planned"),
    [
        (None, (1, 2), 56, 56, None),
        (pending(whole(NODE, 1, 2)), (1, 2), 56, 56, True),
        (pending(whole(NODE, 1, 2)), (0, 2), 48, 48, False),
        (pending(whole(NODE, 1)), (1, 2), 56, 56, False),
        (pending(WHOLE_PAIR), (0,), 16, 40, True),
        (pending(WHOLE_PAIR), (2,), 32, 56, False),
        (pending(whole(None, count=1)), (2,), 32, 32, None),
        (UNSAID, (0,), 16, 56, None),
    ],
    ids=["nobody known", "as chosen", "one other", "more than chosen", "one of two", "a larger one of two", "nobody chose", "unsaid"],
)
def test_whole_gpus(asked: PendingContainer | None, given: tuple[int, ...], units: int, pod_units: int, as_planned: bool | None) -> None:
    gpus = tuple(NODE.by_index[index] for index in given)
    granted = allocate_response(GPUS, [gpu.uuid for gpu in gpus], gpus, asked)
    assert granted.environment == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus),
        "ALIYUN_COM_GPU_MEM_IDX": str(given[0]),
        "ALIYUN_COM_GPU_MEM_DEV": str(gpus[0].units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
    }
    assert granted.as_planned is as_planned


def test_with_mps_the_only_gpu_of_a_container_has_limits() -> None:
    one = allocate_response(MEMORY, ids(1, 4), (NODE.by_index[1],), pending(memory(NODE, 1, 4)), "envvar", 1024, "mps")
    assert one.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    two = allocate_response(MEMORY, ids(0, 2) + ids(1, 2), NODE.gpus[:2], None, "envvar", 1024, "mps")
    assert not [name for name in two.environment if name.startswith("CUDA_MPS")]

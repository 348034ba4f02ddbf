# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a GPU is not available for a container, and what the container requested."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.id_usage import GpuUsers
from gpushare_runtime.device_plugin.node.sentences import requested, unavailable
from unit.fakes.runtime.pods import gpu, inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
MINE = gpu(0, 16).uuid
NAMES = {"u1": "x/one", "u2": "x/two"}


@pytest.mark.parametrize(
    ("resource", "changes", "memory", "whole", "why"),
    [
        (MEMORY, {}, {}, {}, ""),
        (GPUS, {}, {}, {}, ""),
        # Memory is shared, and other GPUs are no obstacle.
        (MEMORY, {}, {MINE: ["u1"]}, {}, ""),
        (MEMORY, {}, {}, {"GPU-other": "u1"}, ""),
        (GPUS, {}, {"GPU-other": ["u1"]}, {}, ""),
        # kubelet itself gives no whole GPU to two containers.
        (GPUS, {}, {}, {MINE: "u1"}, ""),
        (MEMORY, {}, {}, {MINE: "u1"}, "whole to x/one"),
        (GPUS, {}, {MINE: ["u2", "u1"]}, {}, "memory allocated to x/one, x/two"),
        *((each, {"cordoned": True}, {MINE: ["u1"]}, {MINE: "u1"}, "is cordoned") for each in (MEMORY, GPUS)),
        *((each, {"health": "XID 79"}, {}, {}, "not usable (XID 79)") for each in (MEMORY, GPUS)),
        (MEMORY, {"health": "XID 79", "cordoned": True}, {}, {}, "not usable (XID 79)"),
    ],
)
def test_a_gpu_that_is_not_available_has_its_reason(
    resource: str, changes: dict[str, Any], memory: dict[str, list[str]], whole: dict[str, str], why: str
) -> None:
    found = unavailable(resource, gpu(0, 16, **changes), GpuUsers(memory, whole), NAMES.__getitem__)
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("resource", "size", "gpus_per_pod", "words"),
    [
        (GPUS, 1, 1, "1 whole GPU"),
        (GPUS, 3, 1, "3 whole GPUs"),
        (MEMORY, 8, 1, "8 units of 1 GiB on one GPU"),
        (MEMORY, 8, 2, "8 units of 1 GiB on 2 GPUs"),
    ],
)
def test_what_a_container_requested_is_said_in_its_units(resource: str, size: int, gpus_per_pod: int, words: str) -> None:
    assert requested(resource, size, gpus_per_pod, inventory(16)) == words

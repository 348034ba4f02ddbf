# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A mixed cluster of 150 nodes and its pods, for where no trace is there. Made up after openb: an eighth of it, and its usual kinds.

A fourth of the pods with GPUs names models.
"""

from __future__ import annotations

import random
from typing import Final

from bench.placement.workload import Machine, Pod
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.kubectl_gpushare.trace import UNITS, TracePod

#: How many nodes have so many CPUs, GiB, GPUs, and of which model.
_NODES: Final = (
    (54, 96, 384, 8, "G2"),
    (38, 104, 512, 2, "T4"),
    (11, 16, 120, 2, "P100"),
    (4, 128, 768, 8, "G3"),
    (3, 32, 128, 4, "V100M16"),
    (2, 64, 256, 2, "P100"),
    (2, 96, 768, 8, "V100M32"),
    (2, 96, 384, 4, "T4"),
    (1, 48, 368, 4, "V100M32"),
    (1, 64, 256, 8, "V100M16"),
    (13, 32, 256, 0, ""),
    (9, 96, 512, 0, ""),
    (5, 96, 384, 0, ""),
    (5, 64, 512, 0, ""),
)
#: How many of a thousand pods ask for so many thousandths of CPU, GiB, thousandths of a GPU, and GPUs.
_PODS: Final = (
    (190, 3152, 5, 810, 1),
    (75, 3152, 5, 1000, 1),
    (215, 11300, 48, 1000, 1),
    (65, 11900, 46, 470, 1),
    (60, 8000, 29, 470, 1),
    (45, 11900, 46, 650, 1),
    (40, 18700, 63, 1000, 1),
    (60, 9800, 40, 1000, 1),
    (35, 4000, 22, 320, 1),
    (25, 4000, 29, 230, 1),
    (10, 24000, 96, 1000, 2),
    (5, 48000, 192, 1000, 4),
    (10, 88000, 300, 1000, 8),
    (75, 12500, 56, 0, 0),
    (50, 32000, 48, 0, 0),
    (40, 8000, 29, 0, 0),
)
_NAME_MODELS: Final = 0.25
_MODELS: Final = {("T4",): 55, ("P100",): 20, ("G2",): 12, ("V100M16", "V100M32"): 13}


def machines() -> list[Machine]:
    """The nodes."""
    kinds = [kind for kind in _NODES for _ in range(kind[0])]
    return [Machine(f"node-{n:03d}", 1000 * cpu, 1024 * memory, gpus, model) for n, (_, cpu, memory, gpus, model) in enumerate(kinds)]


def pods(seed: int, capacity: int, load: float = 1.0) -> list[Pod]:
    """In the order in which they come, until they ask for `load` of the capacity, in thousandths of GPUs."""
    draw, asked = random.Random(seed), 0
    found: list[Pod] = []
    while True:
        _, cpu, memory, milli, count = draw.choices(_PODS, [kind[0] for kind in _PODS])[0]
        named = milli and count == 1 and draw.random() < _NAME_MODELS
        models = draw.choices(list(_MODELS), list(_MODELS.values()))[0] if named else ()
        if asked + milli * count > load * capacity:
            return found
        asked += milli * count
        whole = count if milli == UNITS else 0
        container = ContainerRequest(Kind.APP, 0, "main", units=0 if whole else milli, whole_gpus=whole)
        request = Request((container,), rules=Rules(models=models)) if milli else None
        pod = TracePod(f"pod-{len(found):05d}", cpu, 1024 * memory, request, milli * count)
        found.append(Pod(pod, cpu, 1024 * memory, milli, count, models))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Logs of churns that never took place, for tests: one node with GPUs of 16 and 24 units, whose second has minor 5."""

from __future__ import annotations

import json
from dataclasses import replace

from e2e.churn_log import ALLOCATION, Container, Given, GpuOf, Log, Plan, Pod

GPUS = (GpuOf("gpu2", 0, 0, "GPU-a", 16), GpuOf("gpu2", 1, 5, "GPU-b", 24))


def annotations(allocation: dict[int, dict[int, int]], **other: str) -> dict[str, str]:
    first = min(allocation[0])
    total = sum(units for of in allocation.values() for units in of.values())
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(first),
        "ALIYUN_COM_GPU_MEM_DEV": str(GPUS[first].units),
        "ALIYUN_COM_GPU_MEM_POD": str(total),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1000",
        ALLOCATION: json.dumps({str(c): {str(gpu): units for gpu, units in of.items()} for c, of in allocation.items()}),
        **other,
    }


class Story:
    """A log that is told pod by pod. minor: of the second GPU."""

    def __init__(self, minor: int = 5) -> None:
        self._gpus = (GPUS[0], replace(GPUS[1], minor=minor))
        self.log = Log(self._gpus)
        self._slots = {gpu.index: 0 for gpu in GPUS}

    def pod(
        self,
        plan: Plan,
        *containers: dict[int, int],
        at: float = 0.0,
        end: float | None = None,
        slots: int | None = None,
        assumed: int = 1000,
    ) -> Pod:
        """One that is right: created, bound, admitted and started at `at`.

        containers: GPU → units of each; slots: number of the first id.
        """
        uid = f"uid-{len(self.log.pods)}"
        notes = annotations(dict(enumerate(containers)), ALIYUN_COM_GPU_MEM_ASSUME_TIME=str(assumed))
        pod = Pod(uid, plan, at, node="gpu2", bound=at, running=at + 1, annotations=notes, first_annotations=notes)
        self.log.pods[uid] = pod
        for place, gpus in enumerate(containers):
            self._container(pod, place, gpus, at, end, slots)
        return pod

    def _container(self, pod: Pod, place: int, gpus: dict[int, int], at: float, end: float | None, slots: int | None) -> None:
        ids: list[str] = []
        for index, units in gpus.items():
            first = self._slots[index] if slots is None else slots
            self._slots[index] = first + units
            ids += [f"{GPUS[index].uuid}-_-{number}" for number in range(first, first + units)]
        name, identity = f"c{place}", f"{pod.uid}-{place}"
        first_gpu = GPUS[min(gpus)]
        environment = {
            "ALIYUN_COM_GPU_MEM_IDX": str(first_gpu.index),
            "ALIYUN_COM_GPU_MEM_DEV": str(first_gpu.units),
            "ALIYUN_COM_GPU_MEM_POD": str(pod.plan.total),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(sum(gpus.values())),
        }
        devices = tuple(sorted(f"nvidia{self._gpus[index].minor}" for index in gpus))
        self.log.given.append(Given(at, "gpu2", pod.uid, name, tuple(ids)))
        self.log.containers[identity] = Container("gpu2", identity, pod.uid, name, devices, environment, at, end)
        pod.containers.add(identity)

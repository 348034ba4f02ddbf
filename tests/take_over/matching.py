# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How the original device plugin decides which GPU a container gets, as a model in our own words.

After gpushare-device-plugin at 45fb8b8, pkg/gpu/nvidia: Allocate and buildErrResponse (allocate.go), getCandidatePods,
makePodOrderdByAge and getPendingPodsInNode (podmanager.go), isGPUMemoryAssumedPod and getGPUMemoryFromPodResource
(podutils.go). What it does:

- It counts the ids that kubelet sends and never looks at them, so neither their GPUs nor who had them before matter.
- It lists the pods of the node that are Pending by the API server, and keeps those that ask for units in `spec.containers`,
  have an assume time, and have the annotation ASSIGNED "false".
- The oldest assume time whose *pod* asks for as many units as this call has ids is taken for the one: its annotation IDX names
  the GPU, as the minor number of the device, and ASSIGNED becomes "true" on it.
- Nothing found: on a node with one GPU that GPU; else an answer without an error whose variables name no GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A Pending pod of the node as its annotations tell of it. units: of all app containers together; index: None without one."""

    uid: str
    units: int
    assume_time: int | None
    assigned: str | None
    index: int | None


@dataclass(frozen=True)
class Answer:
    """pod: whom it took for the one that asks; GPU: the minor number that it names, None for the text `no-gpu-has-…-to-run`."""

    pod: str | None
    gpu: int | None


def allocate(ids: Collection[str], pending: Iterable[Candidate], minors: Collection[int]) -> Answer:
    """The answer to one Allocate of kubelet, which is about one container. minors: of the node's GPUs."""
    asked = len(ids)
    for pod in sorted(filter(_waits, pending), key=_age):
        if pod.units == asked:
            return Answer(pod.uid, pod.index if pod.index in minors else None)
    if len(minors) == 1:
        return Answer(None, next(iter(minors)))
    return Answer(None, None)


def _waits(pod: Candidate) -> bool:
    return pod.units > 0 and pod.assume_time is not None and pod.assigned == "false"


def _age(pod: Candidate) -> int:
    return pod.assume_time or 0

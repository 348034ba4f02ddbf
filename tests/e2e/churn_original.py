# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The log of a churn as the model of the original takes it. No I/O."""

from __future__ import annotations

import json
from collections import Counter
from statistics import median

from e2e.churn_log import ALLOCATION, ASSUME_TIME, CONTAINER_UNITS, INDEX, Container, Log, Pod
from take_over.replay import Admission, Bound, Errors, Hasty, replay

FOREVER = float("inf")


def original_errors(log: Log) -> Errors:
    """What the original's matching makes of the same admissions."""
    gpus = {gpu.node: {other.minor: other.units for other in log.gpus if other.node == gpu.node} for gpu in log.gpus}
    minors = {(gpu.node, gpu.index): gpu.minor for gpu in log.gpus}
    pods = {pod.uid: _bound(pod, minors) for pod in log.pods.values() if pod.bound is not None and pod.first_annotations}
    return replay(_admissions(log, pods), list(pods.values()), gpus, _hasty(log, gpus, minors))


def _bound(pod: Pod, minors: dict[tuple[str, int], int]) -> Bound:
    """As the scheduler's side wrote it; what was corrected later is our node's work."""
    notes = pod.first_annotations
    gpus = {int(gpu) for of in json.loads(notes[ALLOCATION]).values() for gpu in of}
    assert pod.bound is not None
    return Bound(
        uid=pod.uid,
        node=pod.node,
        units=pod.plan.total,
        assume_time=int(notes[ASSUME_TIME]),
        index=int(notes[INDEX]),
        gpus=frozenset(minors[pod.node, gpu] for gpu in gpus),
        pending_from=pod.bound,
        pending_to=min(t if t is not None else FOREVER for t in (pod.running, pod.failed, pod.gone)),
    )


def _admissions(log: Log, pods: dict[str, Bound]) -> list[Admission]:
    lives: dict[tuple[str, str], Container] = {}
    for container in log.containers.values():
        # The first of that name: kubelet asks for ids once, however often the container is started.
        known = lives.setdefault((container.uid, container.name), container)
        if container.start < known.start:
            lives[container.uid, container.name] = container
    found = []
    for entry in log.given:
        if (pod := pods.get(entry.uid)) is not None:
            life = lives.get((entry.uid, entry.container))
            end = (life.end if life.end is not None else FOREVER) if life else None
            found.append(Admission(entry.t, pod, entry.container, entry.ids, end))
    for rejected in log.pods.values():
        if rejected.rejected and rejected.failed is not None and rejected.uid in pods:
            # Our node has given it nothing; what kubelet would have sent is as many ids as the first container asks for.
            ids = tuple(f"any-_-{number}" for number in range(rejected.plan.units[0]))
            found.append(Admission(rejected.failed, pods[rejected.uid], "c0", ids, None))
    return found


def _hasty(log: Log, gpus: dict[str, dict[int, int]], minors: dict[tuple[str, int], int]) -> list[Hasty]:
    waited = [pod for pod in log.pods.values() if not pod.plan.room and pod.plan.spread == 1 and pod.bound is not None]
    # What a pod that need not wait takes from its creation to its admission.
    admitted = {entry.uid: entry.t for entry in log.given}
    usual = [admitted[pod.uid] - pod.created for pod in log.pods.values() if pod.plan.room and pod.uid in admitted]
    if not usual:
        return []
    found = []
    for pod in waited:
        t = min(pod.created + median(usual), admitted.get(pod.uid, FOREVER))
        held, live = Counter[int](), Counter[int]()
        for other in log.pods.values():
            ended = min(t if t is not None else FOREVER for t in (other.asked_away, other.failed, other.gone))
            if other.node == pod.node and other.bound is not None and other.bound <= pod.created < ended:
                for of in json.loads(other.first_annotations.get(ALLOCATION, "{}")).values():
                    held.update({minors[other.node, int(gpu)]: units for gpu, units in of.items()})
        for container in log.containers.values():
            if container.node == pod.node and container.uid != pod.uid and container.start <= t < (container.end or FOREVER):
                share = int(container.environment[CONTAINER_UNITS]) // max(1, len(container.devices))
                live.update({int(device.removeprefix("nvidia")): share for device in container.devices})
        free = {minor: units - held[minor] for minor, units in gpus[pod.node].items()}
        found.append(Hasty(pod.node, pod.plan.total, free, live))
    return found

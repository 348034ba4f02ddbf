# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The log of a churn: what was asked of the API server, what it said of each pod, and what was seen on the nodes. No I/O.

Times are seconds of CLOCK_BOOTTIME, on the nodes and here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = dict[str, Any]

MEMORY = "aliyun.com/gpu-mem"
GPUS_LABEL = "aliyun.com/gpu-count"
INDEX, GPU_UNITS, POD_UNITS, ASSIGNED, ASSUME_TIME = (
    f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME")
)
CONTAINER_UNITS = "ALIYUN_COM_GPU_MEM_CONTAINER"
ALLOCATION = "scheduler.framework.gpushare.allocation"
OURS = (INDEX, GPU_UNITS, POD_UNITS, ASSIGNED, ASSUME_TIME, ALLOCATION)

REJECTED = "UnexpectedAdmissionError"
# A container whose whole life was as short as this may have ended between two looks of churn_watch.py; kubelet tells whole seconds.
BRIEF_SECONDS = 1


@dataclass(frozen=True)
class GpuOf:
    """One GPU of a node. units: what kubelet may give of it."""

    node: str
    index: int
    minor: int
    uuid: str
    units: int


@dataclass(frozen=True)
class Plan:
    """A pod that the churn makes.

    units: of each container, in order; spread: on so many GPUs; node: "" for any; stubborn: its processes ignore SIGTERM, and
    end when `grace` seconds are over; room: whether it could be placed at once when it was made, by the churn's own sums;
    group: made together with others; retry: how often a pod of this name was rejected by kubelet right before it; slow: seconds
    from its admission to its containers, as where an image has to come first; again: seconds after which each container ends and
    starts again, once, 0 for never.
    """

    name: str
    units: tuple[int, ...]
    node: str = ""
    spread: int = 1
    stubborn: bool = False
    grace: int = 1
    room: bool = True
    group: int = 0
    retry: int = 0
    slow: int = 0
    again: int = 0

    @property
    def total(self) -> int:
        return sum(self.units)


@dataclass
class Pod:
    """A pod's life as the API server told it; times are None until it happened."""

    uid: str
    plan: Plan
    created: float
    node: str = ""
    bound: float | None = None
    running: float | None = None
    failed: float | None = None
    reason: str = ""
    message: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    first_annotations: Mapping[str, str] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)
    """ids of containers that have run for longer than churn_watch.py can miss"""
    asked_away: float | None = None
    forced: bool = False
    early: bool = False
    """deleted on purpose before it ran"""
    gone: float | None = None

    @property
    def rejected(self) -> bool:
        return self.reason == REJECTED

    @property
    def reached(self) -> bool:
        return self.running is not None

    def __str__(self) -> str:
        return f"{self.plan.name} ({self.uid[:8]}) on {self.node or 'no node'}"


@dataclass(frozen=True)
class Given:
    """Ids that kubelet's record gives a container, when the record was written."""

    t: float
    node: str
    uid: str
    container: str
    ids: tuple[str, ...]


@dataclass
class Container:
    """A container on a node, by its first process; end: None while that lives."""

    node: str
    id: str
    uid: str
    name: str
    devices: tuple[str, ...]
    environment: Mapping[str, str]
    start: float
    end: float | None = None


@dataclass
class Log:
    """Everything, as it came in."""

    gpus: tuple[GpuOf, ...] = ()
    pods: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)

    def node_says(self, node: str, line: Json) -> None:
        """A line of churn_watch.py."""
        match line["event"]:
            case "given":
                self.given.append(Given(line["t"], node, line["uid"], line["container"], tuple(line["ids"])))
            case "start":
                self.containers[line["id"]] = Container(
                    node, line["id"], line["uid"], line["container"], tuple(line["devices"]), line["environment"], line["t"]
                )
            case "end":
                self.containers[line["id"]].end = line["t"]

    def made(self, plan: Plan, answer: Json, t: float) -> Pod:
        """The API server has taken a pod."""
        uid = answer["metadata"]["uid"]
        # The watch may have been faster.
        pod = self.pods.setdefault(uid, Pod(uid, plan, t))
        pod.plan, pod.created = plan, min(pod.created, t)
        return pod

    def api_says(self, kind: str, seen: Json, t: float) -> Pod | None:
        """An event of the watch on pods; None if it is of no pod of a churn."""
        meta, status = seen["metadata"], seen["status"]
        pod = self.pods.setdefault(meta["uid"], Pod(meta["uid"], Plan(meta["name"], ()), t))
        node = seen["spec"].get("nodeName", "")
        annotations = {name: text for name, text in (meta.get("annotations") or {}).items() if name in OURS}
        if node and pod.bound is None:
            pod.node, pod.bound, pod.first_annotations = node, t, annotations
        pod.annotations = annotations
        phase, statuses = status.get("phase"), status.get("containerStatuses", ())
        for of in statuses:
            ended = of["state"].get("terminated", {})
            if of.get("containerID") and ("running" in of["state"] or ended.get("startedAt")):
                identity = of["containerID"].partition("://")[2]
                if ended.get("startedAt") and _seconds(ended["startedAt"], ended["finishedAt"]) <= BRIEF_SECONDS:
                    pod.containers.discard(identity)
                else:
                    pod.containers.add(identity)
        complete = statuses and all("running" in of["state"] for of in statuses)
        if phase == "Running" and complete and pod.running is None:
            pod.running = t
        if phase in ("Failed", "Succeeded") and pod.failed is None:
            pod.failed, pod.reason, pod.message = t, status.get("reason", ""), status.get("message", "")
        # A list that is older than the pod has it not, and the watch after that list shows it.
        pod.gone = t if kind == "DELETED" else None
        return pod

    def alive(self, uid: str) -> list[Container]:
        return [container for container in self.containers.values() if container.uid == uid and container.end is None]


def _seconds(since: str, until: str) -> float:
    """Between two times as the API server writes them."""
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()

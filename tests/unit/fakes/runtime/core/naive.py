# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster counted the slow and plain way, from pods as users write them: what the ledger and placement are held against.

Shares no code with them: it reads raw pods, counts effective requests as Kubernetes documents them, and adds up every GPU anew
at every question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

MEMORY, WHOLE, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"


def effective(pod: dict[str, Any], resource: str) -> int:
    """max(largest init container and the sidecars before it, all app containers and sidecars)."""
    sidecars = most = 0
    for container in pod["spec"].get("initContainers", []):
        amount = int(container["resources"]["limits"].get(resource, 0))
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + amount)
    apps = sum(int(c["resources"]["limits"].get(resource, 0)) for c in pod["spec"]["containers"])
    return max(most, apps + sidecars)


def shapes(resource: str, several: int = 1, most: int = 3, amounts: tuple[int, ...] = (1, 2, 3)) -> Iterator[dict[str, Any]]:
    """Every pod of up to `most` containers, of which each asks for a little of one resource: c0, c1, … and before them i0, i1, …"""
    labels = {WHOLE: str(several)} if several > 1 else {}
    for count in range(1, most + 1):
        for kinds in product(("init", "sidecar", "app"), repeat=count):
            if list(kinds) != sorted(kinds, key="app".__eq__):
                continue
            for asked in product(amounts, repeat=count):
                init: list[dict[str, Any]] = []
                apps: list[dict[str, Any]] = []
                for kind, amount in zip(kinds, asked, strict=True):
                    to = apps if kind == "app" else init
                    name = f"{'c' if kind == 'app' else 'i'}{len(to)}"
                    always = {"restartPolicy": "Always"} if kind == "sidecar" else {}
                    to.append({"name": name, "resources": {"limits": {resource: str(amount * several)}}, **always})
                yield {"metadata": {"labels": labels, "annotations": {}}, "spec": {"containers": apps, "initContainers": init}}


def pairs(text: str) -> list[tuple[str, str]]:
    """A selector's text."""
    return [(a, b) for a, b in (part.split("=") for part in text.split(",") if part)]


@dataclass
class NaivePod:
    """gpus: index → units, None when nobody knows."""

    raw: dict[str, Any]
    node: str
    gpus: dict[int, int] | None

    @cached_property
    def several(self) -> int:
        return int(self.raw["metadata"]["labels"].get(WHOLE, 1))

    @cached_property
    def per_gpu(self) -> int:
        return effective(self.raw, MEMORY) // self.several

    @cached_property
    def whole(self) -> int:
        return effective(self.raw, WHOLE)

    @cached_property
    def core(self) -> int:
        return effective(self.raw, CORE)

    def selector(self, name: str) -> list[tuple[str, str]]:
        return pairs(self.raw["metadata"]["annotations"].get(f"gpushare.request/{name}", ""))

    def matches(self, selector: list[tuple[str, str]]) -> bool:
        return bool(selector) and all(self.raw["metadata"]["labels"].get(a) == b for a, b in selector)


@dataclass
class NaiveGpu:
    units: int
    model: str
    usable: bool = True


@dataclass
class Ghost:
    """Units of a GPU that are still held by a pod that the API has forgotten."""

    uid: str
    node: str
    gpu: int
    units: int
    whole: bool


@dataclass
class Naive:
    nodes: dict[str, list[NaiveGpu]]
    pods: dict[str, NaivePod] = field(default_factory=dict)
    ghosts: list[Ghost] = field(default_factory=list)
    core: int = 100

    def on(self, node: str) -> list[NaivePod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    def gpus_of(self, pod: NaivePod) -> dict[int, int] | None:
        """None also where no such pod can be on the GPUs that it names."""
        gpus = self.nodes[pod.node]
        if pod.gpus is None or any(index >= len(gpus) or units > gpus[index].units for index, units in pod.gpus.items()):
            return None
        return pod.gpus

    def free(self, node: str, index: int) -> tuple[int, int, bool]:
        """(units, per cent of compute, whether nobody has any of it)."""
        gpu = self.nodes[node][index]
        units, core, empty = gpu.units, self.core, True
        for pod in self.on(node):
            gpus = self.gpus_of(pod)
            if gpus is not None and index not in gpus:
                continue
            empty = False
            units -= gpu.units if pod.whole else pod.per_gpu
            core -= self.core if pod.whole else pod.core
        for ghost in self.ghosts:
            if (ghost.node, ghost.gpu) == (node, index) and ghost.uid not in self.pods:
                empty = False
                units -= gpu.units if ghost.whole else ghost.units
                core -= self.core if ghost.whole else 0
        return max(0, units), max(0, core), empty

    def takes(self, pod: NaivePod, node: str, index: int) -> bool:
        """Whether this GPU can have its part of the pod."""
        gpu = self.nodes[node][index]
        units, core, empty = self.free(node, index)
        if not gpu.usable or (pod.whole and not empty) or (not pod.whole and (units < pod.per_gpu or core < pod.core)):
            return False
        annotations = pod.raw["metadata"]["annotations"]
        if gpu.model not in annotations.get("gpushare.request/models", gpu.model):
            return False
        if gpu.model in annotations.get("gpushare.request/models-refused", "").split(","):
            return False
        return self.good_company(pod, node, index)

    def good_company(self, pod: NaivePod, node: str, index: int) -> bool:
        maybe = [p for p in self.on(node) if self.gpus_of(p) is None or index in (self.gpus_of(p) or {})]
        if any(p.matches(pod.selector("not-with")) or pod.matches(p.selector("not-with")) for p in maybe):
            return False
        wanted = pod.selector("same-gpu-as")
        if not wanted or any(p.matches(wanted) for p in maybe if self.gpus_of(p) is not None):
            return True
        return pod.matches(wanted) and not any(p.matches(wanted) for p in self.pods.values())

    def fits(self, pod: NaivePod, node: str) -> bool:
        return sum(self.takes(pod, node, index) for index in range(len(self.nodes[node]))) >= (pod.whole or pod.several)

    def left(self, pod: NaivePod, node: str) -> int | None:
        """What stays free on the fullest GPUs that take it, or how many GPUs stay empty; None if it does not fit."""
        if not self.fits(pod, node):
            return None
        frees = sorted(self.free(node, index)[0] for index in range(len(self.nodes[node])) if self.takes(pod, node, index))
        return len(frees) - pod.whole if pod.whole else sum(frees[: pod.several]) - pod.per_gpu * pod.several

    def still_valid(self) -> bool:
        """Whether no GPU is given twice: of what is known and held."""
        for name, gpus in self.nodes.items():
            for index, gpu in enumerate(gpus):
                here = [pod for pod in self.on(name) if index in (self.gpus_of(pod) or {})]
                if sum(gpu.units if pod.whole else pod.per_gpu for pod in here) > gpu.units or sum(pod.core for pod in here) > self.core:
                    return False
        return True


@dataclass
class NaiveLife:
    """What is held for one pod, as the ledger's methods promise it. how: "" (nothing), "reserved", "assumed" or "bound"."""

    how: str = ""
    node: str = ""
    until: float = 0.0
    held_until: float | None = None
    expired: int = 0

    def end(self) -> None:
        self.how, self.node, self.held_until = "", "", None

    def hold(self, how: str, node: str) -> None:
        if node != self.node:
            self.end()
        self.how, self.node = how, node

    def reserve(self, node: str, until: float) -> None:
        if self.how in ("", "reserved"):
            self.hold("reserved", node)
            self.until = until

    def seen(self, node: str) -> None:
        self.hold("bound", node)
        self.held_until = None

    def give_up(self, how: str) -> None:
        if self.how == how:
            self.end()

    def hold_until(self, until: float) -> None:
        if self.how and self.held_until is None:
            self.held_until = until

    def listed(self, node: str, exists: bool) -> None:
        if node:
            self.seen(node)
        elif self.held_until is None and not (exists and self.how in ("assumed", "reserved")):
            self.end()

    def node_speaks(self, node: str) -> None:
        if self.held_until is not None and self.node == node:
            self.end()

    def expire(self, clock: float) -> bool:
        ran_out = self.how == "reserved" and self.until <= clock
        over = ran_out or (self.held_until is not None and self.held_until <= clock)
        self.expired += ran_out
        if over:
            self.end()
        return over


@dataclass
class NaiveCycles:
    """Until when room is kept for the pods of groups that are placed at once, from a diary of all that has happened.

    diary: (time, what, pod). "asked": the scheduler looked for a node; "kept": it found one; "goes": bound, being bound, or told to
    wait there; "gone": ended otherwise; "looked": somebody looked at the clock. groups: of each pod, "" for none.
    """

    groups: dict[str, str]
    diary: list[tuple[float, str, str]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    """By group: the place in the diary before which nothing counts any more."""

    def kept(self, group: str) -> set[str]:
        last = {pod: what for _, what, pod in self.diary[self.ended.get(group, 0) :] if self.groups.get(pod) == group}
        return {pod for pod, what in last.items() if what == "kept"}

    def binds(self, group: str) -> bool:
        """Whether a pod has gone to its node since the scheduler asked about the group last."""
        mine = [
            what for _, what, pod in self.diary[self.ended.get(group, 0) :] if self.groups.get(pod) == group and what in ("asked", "goes")
        ]
        return bool(mine) and mine[-1] == "goes"

    def over(self, group: str) -> float | None:
        """When, None where that is not decided yet."""
        pages = self.diary[self.ended.get(group, 0) :]
        at = max((i for i, (_, what, pod) in enumerate(pages) if self.groups.get(pod) == group and what in ("asked", "goes")), default=None)
        if at is None:
            return None
        if pages[at][1] == "goes":
            looked = next((time for time, what, _ in pages[at:] if what == "looked"), None)
            return None if looked is None else looked + 10
        others = next((time for time, what, pod in pages[at:] if what == "asked" and self.groups.get(pod) != group), None)
        return min(pages[at][0] + 10, math.inf if others is None else others + 2)

    def write(self, time: float, what: str, pod: str = "") -> None:
        group = self.groups.get(pod, "")
        if what == "asked" and group and pod in self.kept(group) and not self.binds(group):
            self.ended[group] = len(self.diary)
        if what == "looked":
            self.diary.append((time, what, pod))
        for other in {*self.groups.values()} - {"", group}:
            over = self.over(other)
            if over is not None and over <= time and (what == "looked" or (what == "asked" and not self.binds(other))):
                self.ended[other] = len(self.diary)
        if what != "looked":
            self.diary.append((time, what, pod))

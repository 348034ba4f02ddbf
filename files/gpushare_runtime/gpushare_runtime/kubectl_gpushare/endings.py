# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command that frees what an idle pod has, and ends no pod that is busy. Pure.

An administrator pastes it: names that Kubernetes would not take come from a node or from a tenant, and get into no command.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core.bounds import OBJECT_NAME, quote

_NAME: Final = re.compile(OBJECT_NAME)
_SCALED: Final = ("Deployment", "ReplicaSet", "StatefulSet")
"""Kinds of owners that have a number of replicas."""


@dataclass(frozen=True)
class Owned:
    """A pod with GPUs. kind, owner: of the object that made it, "" without one. ready: whether kubelet says so. known: whether the API
    server has it, and not as the copy of a static pod."""

    namespace: str
    name: str
    kind: str
    owner: str
    idle: bool
    ready: bool
    known: bool


class OwnersPods:
    """All pods of one owner that have GPUs. Each is asked about all others, of which there may be thousands: they are counted once."""

    def __init__(self, pods: Iterable[Owned]) -> None:
        mine = list(pods)
        self.count = len(mine)
        self.all_idle = all(pod.idle for pod in mine)
        self._not_ready = sum(not pod.ready for pod in mine)
        self._names = {pod.name for pod in mine}
        self._ordinals = sorted(map(_ordinal, mine))

    def others_are_ready(self, pod: Owned) -> bool:
        """Whether all are, apart from this one of them."""
        return self._not_ready == (0 if pod.ready else 1)

    def has(self, name: str) -> bool:
        return name in self._names

    def is_last(self, pod: Owned) -> bool:
        """Whether this one of them has the highest number."""
        return self._ordinals[-1] == _ordinal(pod) > max(self._ordinals[-2:-1], default=-1)


def ending(pod: Owned, together: OwnersPods, waiting: Collection[tuple[str, str]]) -> str:
    """The command, or why there is none. together: it is one of these. waiting: (namespace, name) of pods on no node."""
    names = [pod.namespace, pod.name, *([pod.owner] if pod.kind else [])]
    if not pod.known:
        return "none: the API server has no such pod, or its file lies on the node"
    if odd := next((name for name in names if not _NAME.fullmatch(name)), None):
        return f"none: {quote(odd)} is not a name that Kubernetes takes"
    within = f"-n {pod.namespace}"
    if not pod.kind:
        return f"kubectl delete pod {pod.name} {within}"
    owner = f"{quote(pod.kind)[1:-1]}/{pod.owner}"
    if pod.kind != "Job" and pod.kind not in _SCALED:
        return f"none: {owner} would start it again: ask its owner"
    busy = f"others of {owner} are busy: ask its owner"
    if together.all_idle:
        all_of = f"kubectl delete job {pod.owner} {within}"
        return all_of if pod.kind == "Job" else f"kubectl scale {pod.kind.lower()} {pod.owner} {within} --replicas=0"
    if pod.kind == "Job":
        return busy
    scale = f"kubectl scale {pod.kind.lower()} {pod.owner} {within} --replicas"
    if pod.kind == "StatefulSet":
        return f"{scale}={last}" if (last := _last(pod, together, waiting)) else busy
    # A ReplicaSet ends those that are not ready before those whose deletion costs less.
    if not together.others_are_ready(pod):
        return f"others of {owner} are not ready, and would end first: ask its owner"
    return f"kubectl annotate pod {pod.name} {within} controller.kubernetes.io/pod-deletion-cost=-1 && {scale}={together.count - 1}"


def _last(pod: Owned, together: OwnersPods, waiting: Collection[tuple[str, str]]) -> int:
    """The number of the pods before it, where it is the last of a StatefulSet that counts from 0; else 0."""
    first = f"{pod.owner}-0"
    counts_from_0 = (pod.namespace, first) in waiting or together.has(first)
    return _ordinal(pod) if counts_from_0 and together.is_last(pod) else 0


def _ordinal(pod: Owned) -> int:
    """-1 for a name without one."""
    text = pod.name.removeprefix(f"{pod.owner}-")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1

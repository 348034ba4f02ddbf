# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The facts that are kept of a pod that requests GPUs: pending, invalid, with allocated GPUs, or finished. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.constraints import Labels
from gpushare_runtime.core.request import Request
from gpushare_runtime.core.reservation import RESERVED_SECONDS, Group


@dataclass(frozen=True)
class PendingPod:
    """A pod on no node that requests GPUs.

    nominated: the node on which kube-scheduler has made room for it, "" for none.
    failure: a number for the message of its last failed attempt, 0 for none.
    seconds_to_bind: the longest time between the choice of its node and the call of bind.
    group: of pods that are placed together.
    version: its resourceVersion, "" without.
    """

    uid: str
    namespace: str
    name: str
    request: Request
    labels: Labels = ()
    priority: int = 0
    nominated: str = ""
    failure: int = 0
    seconds_to_bind: float = RESERVED_SECONDS
    version: str = field(default="", compare=False)
    group: Group | None = None

    def allocated(self, node: str, allocation: Allocation | None) -> AllocatedPod:
        """The same pod with these GPUs of a node; None: with unknown GPUs."""
        request = self.request.in_context(None)
        return AllocatedPod(self.uid, self.namespace, self.name, node, request, allocation, self.labels, self.priority, group=self.group)

    @property
    def nominee(self) -> PendingPod | None:
        """Itself as the ledger keeps it, None if it is nominated to no node."""
        if not self.nominated or self.request.unsupported is not None:
            return None
        return replace(self, failure=0)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class InvalidPod:
    """A pod on no node whose request is invalid. error: names the field, what was found and what to write."""

    uid: str
    namespace: str
    name: str
    error: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    """A pod that is bound to a node and not finished, or about to be bound.

    allocation: None where its GPUs are not known.
    labels: for other pods' rules.
    terminating: it has a deletionTimestamp.
    alive: by its last state it may have processes: it is not ended by kubelet, or not all its containers have ended.
    mirror: it is the API's copy of a static pod, which anybody may create; only its node can report what it has.
    group: of a pod that has not been seen bound yet, for which the room is kept together with others'.
    """

    uid: str
    namespace: str
    name: str
    node: str
    request: Request
    allocation: Allocation | None
    labels: Labels = ()
    priority: int = 0
    terminating: bool = False
    alive: bool = False
    mirror: bool = False
    group: Group | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def whole(self) -> bool:
        """Whether it has whole GPUs, with no memory left for others."""
        return self.request.whole_gpus > 0

    def counts_as(self, other: AllocatedPod) -> bool:
        """Whether it makes no difference to any sum or rule which of the two is in the ledger."""
        return (
            self.node == other.node
            and self.mirror == other.mirror
            and self.allocation == other.allocation
            and self.request == other.request
            and self.labels == other.labels
            and self.group == other.group
        )


@dataclass(frozen=True)
class FinishedPod:
    """A pod that has ended and has no GPUs any more, or of which only its node can report what it has.

    alive: containers may run all the same: by its status, since kubelet before 1.22 fails a pod first and ends them then, or because
    the pod cannot be read. It keeps its GPUs for the moment that its node takes to report them.
    rejected: its node's device plugin rejected what it should have got.
    """

    uid: str
    alive: bool = False
    rejected: bool = False


PodRecord = AllocatedPod | PendingPod | InvalidPod | FinishedPod
"""What is kept of a pod that requests GPUs."""

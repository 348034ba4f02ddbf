# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Affinity and anti-affinity: which pods of a namespace may, and which must, share a GPU, by the rules of both. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from gpushare_runtime.core.constraints import NO_CONTEXT, Context, Labels, selects
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.request import Request


@dataclass(frozen=True)
class Neighbours:
    """The GPUs of a node, by index, whose pods matter to a request. excluded: with a pod that it may not be with, by the rules of either.
    shared: with a pod that it wants to be with."""

    excluded: Collection[int]
    shared: Collection[int]

    def allow(self, request: Request, index: int) -> bool:
        """Whether the pod may be on this GPU."""
        if index in self.excluded:
            return False
        return not request.rules.same_gpu_as or index in self.shared or (request.context or NO_CONTEXT).starts_group


def neighbours(
    request: Request, pods: Iterable[AllocatedPod], gpus_of: Callable[[AllocatedPod], Collection[int] | None], every: Collection[int]
) -> Neighbours:
    """pods: of one node. gpus_of: the GPUs of a pod, None if they are unknown; it may then be on `every` GPU."""
    context, rules = request.context or NO_CONTEXT, request.rules
    excluded: set[int] = set()
    shared: set[int] = set()
    for pod in pods:
        if pod.namespace != context.namespace:
            continue
        if selects(rules.not_with, pod.labels) or selects(pod.request.rules.not_with, context.labels):
            known = gpus_of(pod)
            excluded.update(every if known is None else known)
        elif selects(rules.same_gpu_as, pod.labels):
            shared.update(gpus_of(pod) or ())
    return Neighbours(excluded, shared)


class Namespaces:
    """The pods that have GPUs, by namespace, and which labels their rules exclude."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, AllocatedPod]] = {}
        self._not_with: dict[str, Counter[Labels]] = {}

    def add(self, pod: AllocatedPod) -> None:
        self._pods.setdefault(pod.namespace, {})[pod.uid] = pod
        if pod.request.rules.not_with:
            self._not_with.setdefault(pod.namespace, Counter())[pod.request.rules.not_with] += 1

    def remove(self, pod: AllocatedPod) -> None:
        here = self._pods[pod.namespace]
        del here[pod.uid]
        if not here:
            del self._pods[pod.namespace]
        selector = pod.request.rules.not_with
        if selector:
            selectors = self._not_with[pod.namespace]
            selectors[selector] -= 1
            if not selectors[selector]:
                del selectors[selector]
            if not selectors:
                del self._not_with[pod.namespace]

    def request_of(self, pod: PendingPod) -> Request:
        """Its request, with the pod's context where the rules of any pod about others make that matter."""
        rules = pod.request.rules
        selectors = [selector for selector in self._not_with.get(pod.namespace, ()) if selects(selector, pod.labels)]
        if not rules.about_pods and not selectors:
            return pod.request.in_context(None)
        starts_group = False
        if selects(rules.same_gpu_as, pod.labels):
            here = self._pods.get(pod.namespace, {}).values()
            starts_group = not any(selects(rules.same_gpu_as, other.labels) for other in here)
        # No more of its labels than others' rules select: pods that differ in the rest have equal requests.
        labels = tuple(sorted({pair for selector in selectors for pair in selector}))
        return pod.request.in_context(Context(pod.namespace, labels, starts_group))

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container kubelet is asking for: it names only a resource and a size, and goes in a known order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpushare_runtime.device_plugin.pods import Ask, LocalPod

Served = Collection[tuple[str, str, str]]
"""(pod UID, container, resource) that have their ids."""


@dataclass(frozen=True)
class Turn:
    """A container, and what it is to get now."""

    pod: LocalPod
    ask: Ask

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pod.uid, self.ask.container, self.ask.resource

    def __str__(self) -> str:
        return f"{self.pod} container {self.ask.container}"


def next_asks(pod: LocalPod, served: Served) -> list[Ask]:
    """What kubelet may ask next for this pod: of the first container that has not got everything, in no known order."""
    left = [ask for ask in pod.asks if (pod.uid, ask.container, ask.resource) not in served]
    return [ask for ask in left if ask.container == left[0].container]


def find_turn(
    pods: Iterable[LocalPod],
    served: Served,
    resource: str,
    size: int,
    *,
    refused: Collection[str] = (),
    late: bool = False,
) -> Turn | None:
    """The first container, in admission order, that asks for `size` of `resource` and is next in its pod.

    A pod that is half served is in kubelet's hands right now and comes first. late: also look at pods that should be past
    this (assigned, running, refused) but are not in kubelet's record, as after a lost checkpoint.
    """
    best: tuple[int, Turn] | None = None
    for pod in pods:
        past = not pod.waiting or pod.uid in refused
        if pod.finished or (past and not late):
            continue
        ask = next((ask for ask in next_asks(pod, served) if ask.resource == resource and ask.size == size), None)
        if ask is None:
            continue
        begun = any((pod.uid, other.container, other.resource) in served for other in pod.asks)
        rank = (2 if past else 0) + (not begun)
        if best is None or rank < best[0]:
            best = rank, Turn(pod, ask)
    return best[1] if best else None

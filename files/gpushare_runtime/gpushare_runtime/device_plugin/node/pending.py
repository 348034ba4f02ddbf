# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container kubelet is asking for: it names only a resource and a size, and goes in a known order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare_runtime.device_plugin.node.ids import Key
from gpushare_runtime.device_plugin.node.local_pods import Ask, LocalPod

Served = Collection[Key]
"""Those that have their ids."""


@dataclass(frozen=True)
class Turn:
    """A container, and what it is to get now."""

    pod: LocalPod
    ask: Ask

    @property
    def key(self) -> Key:
        return self.pod.uid, self.ask.container, self.ask.resource

    def __str__(self) -> str:
        return f"{self.pod} container {self.ask.container}"


def next_asks(pod: LocalPod, served: Served) -> list[Ask]:
    """What kubelet may ask next for this pod: of the first container that has not got everything, in no known order.

    It never asks for a container that runs, also not when its record of it is lost.
    """
    left = [ask for ask in pod.asks if (pod.uid, ask.container, ask.resource) not in served and ask.container not in pod.running]
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


def allowed_cards(turn: Turn | None, pods: Collection[LocalPod], got: Mapping[Key, Collection[int]]) -> Collection[int] | None:
    """The cards (NVML index) that may stand in for the chosen ones; None: any with room.

    Where the choice was more than a matter of room, only a card that another pod of the same shape leaves free by having
    got another one. got: the cards that containers really have.
    """
    if turn is None or turn.pod.request is None or not turn.ask.cards:
        return None
    request = turn.pod.request
    particular = request.core or request.rules.about_cards or request.rules.about_pods
    if not particular and not any(pod.request and pod.request.rules.about_pods for pod in pods):
        return None
    allowed = set(turn.ask.cards)
    for pod in pods:
        same = pod.request is not None and pod.request.shape == request.shape and pod.labels == turn.pod.labels
        if pod.uid == turn.pod.uid or not same or pod.namespace != turn.pod.namespace:
            continue
        for ask in pod.asks:
            has = got.get((pod.uid, ask.container, ask.resource))
            if has is not None and ask.cards:
                allowed |= set(ask.cards) - set(has)
    return allowed

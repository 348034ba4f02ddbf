# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Logs of churns that never took place, for tests: one node with cards of 16 and 24 units, whose second has minor 5."""

from __future__ import annotations

import json
from dataclasses import replace

from e2e.churn_log import ALLOCATION, CardOf, Container, Given, Log, Plan, Pod

CARDS = (CardOf("gpu2", 0, 0, "GPU-a", 16), CardOf("gpu2", 1, 5, "GPU-b", 24))


def annotations(allocation: dict[int, dict[int, int]], **other: str) -> dict[str, str]:
    first = min(allocation[0])
    total = sum(units for of in allocation.values() for units in of.values())
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(first),
        "ALIYUN_COM_GPU_MEM_DEV": str(CARDS[first].units),
        "ALIYUN_COM_GPU_MEM_POD": str(total),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1000",
        ALLOCATION: json.dumps({str(c): {str(card): units for card, units in of.items()} for c, of in allocation.items()}),
        **other,
    }


class Story:
    """A log that is told pod by pod. minor: of the second card."""

    def __init__(self, minor: int = 5) -> None:
        self._cards = (CARDS[0], replace(CARDS[1], minor=minor))
        self.log = Log(self._cards)
        self._slots = {card.index: 0 for card in CARDS}

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

        containers: card → units of each; slots: number of the first id.
        """
        uid = f"uid-{len(self.log.pods)}"
        notes = annotations(dict(enumerate(containers)), ALIYUN_COM_GPU_MEM_ASSUME_TIME=str(assumed))
        pod = Pod(uid, plan, at, node="gpu2", bound=at, running=at + 1, annotations=notes, first_annotations=notes)
        self.log.pods[uid] = pod
        for place, cards in enumerate(containers):
            self._container(pod, place, cards, at, end, slots)
        return pod

    def _container(self, pod: Pod, place: int, cards: dict[int, int], at: float, end: float | None, slots: int | None) -> None:
        ids: list[str] = []
        for index, units in cards.items():
            first = self._slots[index] if slots is None else slots
            self._slots[index] = first + units
            ids += [f"{CARDS[index].uuid}-_-{number}" for number in range(first, first + units)]
        name, identity = f"c{place}", f"{pod.uid}-{place}"
        first_card = CARDS[min(cards)]
        environment = {
            "ALIYUN_COM_GPU_MEM_IDX": str(first_card.index),
            "ALIYUN_COM_GPU_MEM_DEV": str(first_card.units),
            "ALIYUN_COM_GPU_MEM_POD": str(pod.plan.total),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(sum(cards.values())),
        }
        devices = tuple(sorted(f"nvidia{self._cards[index].minor}" for index in cards))
        self.log.given.append(Given(at, "gpu2", pod.uid, name, tuple(ids)))
        self.log.containers[identity] = Container("gpu2", identity, pod.uid, name, devices, environment, at, end)
        pod.containers.add(identity)

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a container reads in its environment, whatever it got and whatever was chosen for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.allocator import grant
from gpushare_runtime.device_plugin.node.local_pods import parse_local_pod
from gpushare_runtime.device_plugin.node.pending import Turn
from unit.runtime.device_plugin.local_pods import bound, memory, whole
from unit.runtime.pods import container, inventory

MEMORY, CARDS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 24, 32)


def turn(raw: Mapping[str, Any], place: int = 0) -> Turn:
    pod = parse_local_pod(raw)
    return Turn(pod, pod.asks[place])


def ids(card: int, units: int) -> list[str]:
    return [f"GPU-{card:08d}-_-{slot}" for slot in range(units)]


PAIR = bound(NODE, {0: {1: 4}, 1: {1: 3}}, container("a", mem=4), container("b", mem=3))
INIT = bound(None, {}, container(mem=4), init=[container("first", mem=6)])
# What this container of the pod is to get cannot be said.
UNSAID = replace(turn(whole(NODE, 1, 2)), ask=replace(turn(whole(NODE, 1, 2)).ask, cards={}))
WHOLE_PAIR = bound(NODE, {0: {0: 16}, 1: {1: 24}}, container("a", count=1), container("b", count=1))


@pytest.mark.parametrize(
    ("asked", "given", "card", "units", "pod_units", "steered"),
    [
        (None, ids(1, 4), 1, 4, 4, None),
        (turn(memory(NODE, 1, 4)), ids(1, 4), 1, 4, 4, True),
        (turn(memory(NODE, 1, 4)), ids(0, 4), 0, 4, 4, False),
        (turn(PAIR, 1), ids(1, 3), 1, 3, 7, True),
        (turn(memory(None, 1, 4)), ids(1, 4), 1, 4, 4, None),
        (turn(INIT, 1), ids(1, 4), 1, 4, 6, None),
    ],
    ids=["nobody known", "as chosen", "another card", "one of two", "nobody chose", "nobody chose, with an init container"],
)
def test_memory(asked: Turn | None, given: list[str], card: int, units: int, pod_units: int, steered: bool | None) -> None:
    granted = grant(MEMORY, given, (NODE.by_index[card],), asked)
    assert granted.environment == {
        "NVIDIA_VISIBLE_DEVICES": f"GPU-{card:08d}",
        "ALIYUN_COM_GPU_MEM_IDX": str(card),
        "ALIYUN_COM_GPU_MEM_DEV": str(NODE.by_index[card].units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
    }
    assert (granted.turn, granted.cards, granted.steered) == (asked, (NODE.by_index[card],), steered)


@pytest.mark.parametrize(
    ("asked", "given", "units", "pod_units", "steered"),
    [
        (None, (1, 2), 56, 56, None),
        (turn(whole(NODE, 1, 2)), (1, 2), 56, 56, True),
        (turn(whole(NODE, 1, 2)), (0, 2), 48, 48, False),
        (turn(whole(NODE, 1)), (1, 2), 56, 56, False),
        (turn(WHOLE_PAIR), (0,), 16, 40, True),
        (turn(WHOLE_PAIR), (2,), 32, 56, False),
        (turn(whole(None, count=1)), (2,), 32, 32, None),
        (UNSAID, (0,), 16, 56, None),
    ],
    ids=["nobody known", "as chosen", "one other", "more than chosen", "one of two", "a larger one of two", "nobody chose", "unsaid"],
)
def test_whole_cards(asked: Turn | None, given: tuple[int, ...], units: int, pod_units: int, steered: bool | None) -> None:
    cards = tuple(NODE.by_index[index] for index in given)
    granted = grant(CARDS, [card.uuid for card in cards], cards, asked)
    assert granted.environment == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(card.uuid for card in cards),
        "ALIYUN_COM_GPU_MEM_IDX": str(given[0]),
        "ALIYUN_COM_GPU_MEM_DEV": str(cards[0].units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
    }
    assert granted.steered is steered

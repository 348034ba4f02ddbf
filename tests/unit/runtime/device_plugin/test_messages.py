# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a card is not available for a container, and what the container requested."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.device_plugin.node.messages import requested, unavailable
from gpushare_runtime.device_plugin.node.usage import CardUsers
from unit.runtime.pods import card, inventory

MEMORY, CARDS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
MINE = card(0, 16).uuid
NAMES = {"u1": "x/one", "u2": "x/two"}


@pytest.mark.parametrize(
    ("resource", "changes", "memory", "whole", "why"),
    [
        (MEMORY, {}, {}, {}, ""),
        (CARDS, {}, {}, {}, ""),
        # Memory is shared, and other cards are no obstacle.
        (MEMORY, {}, {MINE: ["u1"]}, {}, ""),
        (MEMORY, {}, {}, {"GPU-other": "u1"}, ""),
        (CARDS, {}, {"GPU-other": ["u1"]}, {}, ""),
        # kubelet itself gives no whole card to two containers.
        (CARDS, {}, {}, {MINE: "u1"}, ""),
        (MEMORY, {}, {}, {MINE: "u1"}, "whole to x/one"),
        (CARDS, {}, {MINE: ["u2", "u1"]}, {}, "memory allocated to x/one, x/two"),
        *((each, {"cordoned": True}, {MINE: ["u1"]}, {MINE: "u1"}, "is cordoned") for each in (MEMORY, CARDS)),
        *((each, {"health": "XID 79"}, {}, {}, "not usable (XID 79)") for each in (MEMORY, CARDS)),
        (MEMORY, {"health": "XID 79", "cordoned": True}, {}, {}, "not usable (XID 79)"),
    ],
)
def test_a_card_that_is_not_available_has_its_reason(
    resource: str, changes: dict[str, Any], memory: dict[str, list[str]], whole: dict[str, str], why: str
) -> None:
    found = unavailable(resource, card(0, 16, **changes), CardUsers(memory, whole), NAMES.__getitem__)
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("resource", "size", "cards_per_pod", "words"),
    [
        (CARDS, 1, 1, "1 whole card"),
        (CARDS, 3, 1, "3 whole cards"),
        (MEMORY, 8, 1, "8 units of 1 GiB on one card"),
        (MEMORY, 8, 2, "8 units of 1 GiB on 2 cards"),
    ],
)
def test_what_a_container_requested_is_said_in_its_units(resource: str, size: int, cards_per_pod: int, words: str) -> None:
    assert requested(resource, size, cards_per_pod, inventory(16)) == words

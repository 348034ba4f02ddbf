# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a container with certain ids is told in its environment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.turns import Turn
from gpushare_runtime.inventory import Card


@dataclass(frozen=True)
class Granted:
    """The answer to Allocate. steered: whether these are the cards that the scheduler chose, None if it chose none."""

    environment: Mapping[str, str]
    cards: tuple[Card, ...]
    turn: Turn | None
    steered: bool | None


def grant(resource: str, ids: Collection[str], cards: tuple[Card, ...], turn: Turn | None) -> Granted:
    """cards: those of the ids, by index."""
    units = len(ids) if resource == protocol.RESOURCE_MEMORY else sum(card.units for card in cards)
    pod_units, steered = units, None
    if turn is not None:
        wanted = turn.ask.cards
        if turn.pod.allocation is not None:
            pod_units = turn.pod.allocation.units
            if resource == protocol.RESOURCE_CARDS:
                # Other cards than chosen may be of another size.
                pod_units += units - (sum(wanted.values()) or units)
        elif turn.pod.request is not None and resource == protocol.RESOURCE_MEMORY:
            pod_units = turn.pod.request.units
        steered = set(wanted) == {card.index for card in cards} if wanted else None
    environment = {
        protocol.ENV_VISIBLE_DEVICES: ",".join(card.uuid for card in cards),
        protocol.ENV_INDEX: str(cards[0].index),
        protocol.ENV_CARD_UNITS: str(cards[0].units),
        protocol.ENV_CONTAINER_UNITS: str(units),
        protocol.ENV_POD_UNITS: str(pod_units),
    }
    return Granted(environment, cards, turn, steered)

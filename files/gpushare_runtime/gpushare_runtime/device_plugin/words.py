# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a card cannot be given, and what a node has instead of what was asked for, in words for a pod's status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.choice import Offer
from gpushare_runtime.device_plugin.holdings import Held
from gpushare_runtime.inventory import HEALTHY, Card, Inventory


def card_name(card: Card) -> str:
    return f"card {card.index} ({card.uuid})"


def unavailable(resource: str, card: Card, held: Held, name: Callable[[str], str]) -> str:
    """Why nothing of this card may be given as this resource; "" if it may. name: a pod's name from its UID."""
    if not card.usable:
        return "is cordoned" if card.health == HEALTHY else f"is not usable ({card.health})"
    if resource == protocol.RESOURCE_MEMORY and card.uuid in held.whole:
        return f"is held whole by {name(held.whole[card.uuid])}"
    if resource == protocol.RESOURCE_CARDS and card.uuid in held.memory:
        return f"has memory held by {', '.join(sorted(map(name, held.memory[card.uuid])))}"
    return ""


def wanted_words(resource: str, size: int, spread: int, inventory: Inventory) -> str:
    """What a container asked for. spread: over how many cards its memory goes."""
    if resource == protocol.RESOURCE_CARDS:
        return f"{size} whole {'card' if size == 1 else 'cards'}"
    return f"{size} units of {inventory.unit} on {'one card' if spread == 1 else f'{spread} cards'}"


def shortage(
    resource: str, inventory: Inventory, offers: Collection[Offer], why: Mapping[int, str], leaving: Mapping[str, Collection[str]]
) -> str:
    """What each card has. why: card index → why it may not be given; leaving: card UUID → pods whose processes outlive them."""
    offered = {offer.card.uuid: offer for offer in offers}
    cards = []
    for card in inventory.cards:
        offer = offered.get(card.uuid)
        left = len(offer.ids) if offer else 0
        has = f"has {left} free" if resource == protocol.RESOURCE_MEMORY else "is free" if left else "is taken"
        if offer and not offer.other:
            has += " but is not the one it was placed on"
        if card.uuid in leaving:
            has += f" (processes of {', '.join(sorted(leaving[card.uuid]))} hold some that kubelet has freed)"
        cards.append(f"card {card.index} {why[card.index] or has}")
    return ", ".join(cards)

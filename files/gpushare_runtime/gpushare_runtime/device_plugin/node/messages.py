# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The sentences for a pod's status and events: why a card cannot be given, and what a pod has without the scheduler's choice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY, Card, Inventory
from gpushare_runtime.device_plugin.node.candidates import Offer
from gpushare_runtime.device_plugin.node.ids import cards_of
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.usage import Held, Holdings


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


def never_placed(has: str) -> str:
    """For a pod without an allocation. has: what it has now."""
    return (
        f"No scheduler extender placed it; it has {has} by what was free on the node. "
        "Check that it goes through a kube-scheduler that calls the extender"
    )


def unsayable(pod: LocalPod, holdings: Holdings, inventory: Inventory) -> str:
    """For a pod whose annotations cannot say what it has, once it has something; "" before."""
    parts = []
    for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_CARDS):
        ids = holdings.recorded(pod.uid, resource)
        for uuid in sorted(cards_of(resource, ids)):
            card = inventory.by_uuid.get(uuid)
            if card is not None:
                units = len([i for i in ids if i.startswith(uuid)]) if resource == protocol.RESOURCE_MEMORY else 0
                parts.append(f"{f'{units} units of' if units else 'the whole'} {card_name(card)}")
    if not parts:
        return ""
    has = f"it has {', '.join(parts)} by what was free on the node"
    if pod.static:
        return f"No scheduler places a static pod; {has}. Make it an ordinary pod if its card is to be chosen"
    why = pod.problem or f"it asks for {protocol.RESOURCE_MEMORY} and {protocol.RESOURCE_CARDS} at once"
    return f"No scheduler extender can place it ({why}); {has}. Correct the request and create the pod anew"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Sentences for a pod's status and events: why a card is not available, and which cards a pod has without a plan. Pure."""

from __future__ import annotations

from collections.abc import Callable

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY, Card, Inventory
from gpushare_runtime.device_plugin.node.ids import card_uuids_of
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.device_plugin.node.usage import CardUsers, Usage


def card_name(card: Card) -> str:
    return f"card {card.index} ({card.uuid})"


def unavailable(resource: str, card: Card, users: CardUsers, name: Callable[[str], str]) -> str:
    """Why this card is not available as this resource; "" if it is. name: returns a pod's name from its UID."""
    if not card.usable:
        return "is cordoned" if card.health == HEALTHY else f"is not usable ({card.health})"
    if resource == protocol.RESOURCE_MEMORY and card.uuid in users.whole:
        return f"is allocated whole to {name(users.whole[card.uuid])}"
    if resource == protocol.RESOURCE_CARDS and card.uuid in users.memory:
        return f"has memory allocated to {', '.join(sorted(map(name, users.memory[card.uuid])))}"
    return ""


def requested(resource: str, size: int, cards_per_pod: int, inventory: Inventory) -> str:
    """What a container requested."""
    if resource == protocol.RESOURCE_CARDS:
        return f"{size} whole {'card' if size == 1 else 'cards'}"
    return f"{size} units of {inventory.unit} on {'one card' if cards_per_pod == 1 else f'{cards_per_pod} cards'}"


def never_placed(has: str) -> str:
    """For a pod without an allocation. has: its cards now."""
    return (
        f"No scheduler extender placed it; it has {has} by what was free on the node. "
        "Check that it goes through a kube-scheduler that calls the extender"
    )


def explain_unannotatable(pod: LocalPod, usage: Usage, inventory: Inventory) -> str:
    """For a pod whose annotations cannot report its cards; "" before it has any."""
    parts = []
    for resource in (protocol.RESOURCE_MEMORY, protocol.RESOURCE_CARDS):
        ids = usage.recorded_ids(pod.uid, resource)
        for uuid in sorted(card_uuids_of(resource, ids)):
            card = inventory.by_uuid.get(uuid)
            if card is not None:
                units = len([i for i in ids if i.startswith(uuid)]) if resource == protocol.RESOURCE_MEMORY else 0
                parts.append(f"{f'{units} units of' if units else 'the whole'} {card_name(card)}")
    if not parts:
        return ""
    has = f"it has {', '.join(parts)} by what was free on the node"
    if pod.static:
        return f"No scheduler places a static pod; {has}. To have its card chosen, make it an ordinary pod"
    why = pod.problem or f"it requests both {protocol.RESOURCE_MEMORY} and {protocol.RESOURCE_CARDS}"
    return f"No scheduler extender can place it ({why}); {has}. Correct the request and create the pod again"

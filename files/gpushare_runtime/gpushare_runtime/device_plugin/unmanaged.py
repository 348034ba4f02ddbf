# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a pod is told that has cards without the scheduler's choice: cause, what it has, and the cure. Pure."""

from __future__ import annotations

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.holdings import Holdings
from gpushare_runtime.device_plugin.pods import LocalPod
from gpushare_runtime.device_plugin.shares import cards_of
from gpushare_runtime.device_plugin.words import card_name
from gpushare_runtime.inventory import Inventory


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

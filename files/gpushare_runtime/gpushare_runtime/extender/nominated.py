# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Room that kube-scheduler has made by evicting others belongs to the pod it was made for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpushare_runtime.ledger import Holder, Ledger, NodeLedger, Nominee
from gpushare_runtime.placement import Policy


def seen_by(ledger: Ledger, policy: Policy, node: NodeLedger, uid: str, priority: int) -> NodeLedger:
    """The node as a pod of this UID and priority may use it: without the room of others nominated there that are not less."""
    here = ledger.nominees.get(node.name)
    if not here:
        return node
    nominees = [n for n in here.values() if n.uid != uid and n.priority >= priority and not ledger.holder(n.uid)]
    return node.supposing(add=places(ledger, policy, node, nominees)) if nominees else node


def places(ledger: Ledger, policy: Policy, node: NodeLedger, nominees: Iterable[Nominee]) -> list[Holder]:
    """Where they will be once the pods that are leaving are gone; on no known card where even that is not enough."""
    after = node.supposing(without={holder.uid for holder in node.holders if holder.leaving})
    found = []
    for nominee in sorted(nominees, key=lambda n: (-n.priority, n.uid)):
        request = ledger.asked_by(nominee.request, nominee.namespace, nominee.labels)
        allocation = policy.choose(request, after)
        holder = Holder(nominee.uid, nominee.namespace, nominee.name, node.name, nominee.request, allocation, nominee.labels)
        found.append(holder)
        after = after.supposing(add=[holder])
    return found

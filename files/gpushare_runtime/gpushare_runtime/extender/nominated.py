# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Room that kube-scheduler has made by evicting others belongs to the pod it was made for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpushare_runtime.ledger import Holder, Ledger, NodeLedger, Nominee
from gpushare_runtime.placement import Policy
from gpushare_runtime.request import Request


def seen_by(ledger: Ledger, policy: Policy, node: NodeLedger, uid: str, priority: int) -> NodeLedger:
    """The node as a pod of this UID and priority may use it: without the room of others nominated there that are not less.

    Remembered until the node or those others change; to be read only.
    """
    here = ledger.nominees.get(node.name)
    if not here:
        return node
    nominees = [n for n in here.values() if n.uid != uid and n.priority >= priority and not ledger.holder(n.uid)]
    if not nominees:
        return node
    asked = [(n, ledger.asked_by(n.request, n.namespace, n.labels)) for n in sorted(nominees, key=lambda n: (-n.priority, n.uid))]
    key = "nominees", tuple((n.uid, n.labels, request.key) for n, request in asked)
    return node.remembered(key, lambda: node.supposing(add=places(policy, node, asked)))


def places(policy: Policy, node: NodeLedger, nominees: Iterable[tuple[Nominee, Request]]) -> list[Holder]:
    """Where they will be once the pods that are leaving are gone, each in its turn; on no known card where even that is not enough."""
    after = node.supposing(without={holder.uid for holder in node.holders if holder.leaving})
    found = []
    for nominee, request in nominees:
        allocation = policy.choose(request, after)
        holder = Holder(nominee.uid, nominee.namespace, nominee.name, node.name, nominee.request, allocation, nominee.labels)
        found.append(holder)
        after = after.supposing(add=[holder])
    return found

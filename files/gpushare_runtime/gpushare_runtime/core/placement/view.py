# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The nodes as one pod may use them: room that others were nominated for is not its own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.placement.explain import NoFit, failed_nodes, no_fit
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.ranking import NodeCost, names_of, scores_of
from gpushare_runtime.core.pods import AllocatedPod, PendingPod


@dataclass(frozen=True)
class PodView:
    """The nodes of a ledger as a pod may use them. pod: with its request as others' rules make it, see `view_of`."""

    ledger: Ledger
    policy: Policy
    pod: PendingPod

    def node(self, name: str) -> NodeLedger:
        """The node as this pod may use it; one without GPUs where nothing is known of it, or it cannot be computed."""
        node = self.ledger.node(name)
        if node is None:
            return NodeLedger(name)
        seen = node.guarded(partial(seen_by, self.ledger, self.policy, node, self.pod), None)
        if seen is None:
            seen = NodeLedger(name)
            seen.fault = node.fault
        return seen

    def fitting(self, names: Sequence[str], most: int = 0) -> tuple[Sequence[str], Collection[str]]:
        """(the nodes for the scheduler, the nodes that are unknown or where the pod does not fit). most: only the best so many; 0: all."""
        if not self.ledger.nominees:
            return self.policy.ranking(self.pod.request, self.ledger).fitting(names, most)
        weights = self._weights(names)
        fitting = [weight for weight in weights if weight is not None]
        unfit = {name for name, weight in zip(names, weights, strict=True) if weight is None}
        return names_of(nsmallest(most, fitting) if most else fitting), unfit

    def scores(self, names: Sequence[str]) -> tuple[str, Mapping[str, int]]:
        """(the best node, "" for none; name → 1 … 10)."""
        if not self.ledger.nominees:
            return self.policy.ranking(self.pod.request, self.ledger).scores(names)
        return scores_of(list(filter(None, self._weights(names))))

    def no_fits(self, unfit: Collection[str]) -> Mapping[str, NoFit]:
        """The reason for each of the nodes on which the pod does not fit."""
        explain, nominees = partial(no_fit, self.pod.request), self.ledger.nominees
        # Where others are nominated each pod sees another node.
        own = {name: explain(self.node(name)) for name in unfit if name in nominees} if nominees else {}
        rest = [name for name in unfit if name not in own] if own else unfit
        # In a full cluster those are most nodes, and few have changed since the last pod.
        found = self.policy.ranking(self.pod.request, self.ledger).noted(rest, explain)
        found.update(own)
        return found

    def in_words(self, found: Mapping[str, NoFit]) -> dict[str, str]:
        """The words for each of the nodes of `no_fits`, as `failed_nodes` has them."""
        return failed_nodes(self.pod.request, found, self.node)

    def choice(self, name: str) -> Allocation | None:
        """The GPUs that the policy chooses on a node; None where the pod does not fit."""
        node = self.node(name)
        return node.guarded(partial(self.policy.choose, self.pod.request, node), None)

    def _weights(self, names: Sequence[str]) -> list[NodeCost | None]:
        """The weight of each node, while room on some is kept for nominees; None where it does not fit or nothing is known."""
        weights = self.policy.ranking(self.pod.request, self.ledger).weights(names)
        for place, name in enumerate(names):
            if name in self.ledger.nominees:
                node = self.node(name)
                weights[place] = node.guarded(partial(self.policy.node_cost, self.pod.request, node), None)
        return weights


def view_of(ledger: Ledger, policy: Policy, pod: PendingPod) -> PodView:
    """The view of a pod as the API server has it; nearly always others' rules leave its request as it is."""
    request = ledger.for_pod(pod)
    return PodView(ledger, policy, pod if request is pod.request else replace(pod, request=request))


def seen_by(ledger: Ledger, policy: Policy, node: NodeLedger, pod: PendingPod) -> NodeLedger:
    """The node as this pod may use it: without the room of others nominated there whose priority is not lower.

    It is remembered until the node or those others change; to be read only.
    """
    here = ledger.nominees.get(node.name)
    if not here:
        return node
    nominees = [n for n in here.values() if n.uid != pod.uid and n.priority >= pod.priority and not ledger.pod(n.uid)]
    if not nominees:
        return node
    asked = [replace(n, request=ledger.for_pod(n)) for n in sorted(nominees, key=lambda n: (-n.priority, n.uid))]
    key = "nominees", tuple((n.uid, n.labels, n.request.key) for n in asked)
    return node.remembered(key, lambda: node.simulate(add=places(policy, node, asked)))


def places(policy: Policy, node: NodeLedger, nominees: Iterable[PendingPod]) -> list[AllocatedPod]:
    """The nominees with the GPUs that they get once the terminating pods are gone, each in its turn; on no known GPU where even that is not
    enough."""
    after = node.simulate(without={other.uid for other in node.pods if other.terminating})
    found = []
    for nominee in nominees:
        placed = nominee.allocated(node.name, policy.choose(nominee.request, after))
        found.append(placed)
        after = after.simulate(add=[placed])
    return found

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The state of the ledger as metrics. Pure; the verbs' own counts and latencies are the server's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.pods import PendingPod
from gpushare_runtime.ledger import CardState, Ledger
from gpushare_runtime.metrics import Family, Sample


def families(cluster: Cluster) -> list[Family]:
    """Units are those of each node."""
    ledger = cluster.ledger
    states = Counter(_state(ledger, holder.uid) for node in ledger.nodes.values() for holder in node.holders)
    waiting = Counter(_why(pod) for pod in cluster.pending.values())
    problems = [Sample(len(node.problems()), {"node": name}) for name, node in sorted(ledger.nodes.items())]
    return [
        Family("gpushare_card_units", "gauge", "Units of each card.", _cards(ledger, lambda state: state.card.units)),
        Family("gpushare_card_units_free", "gauge", "Units of each card that nobody holds.", _cards(ledger, lambda state: state.free)),
        Family("gpushare_card_usable", "gauge", "1 where new pods may be placed.", _cards(ledger, lambda state: int(state.card.usable))),
        Family("gpushare_pods", "gauge", "Pods that hold cards, by how sure that is.", _counts("state", states, _STATES)),
        Family("gpushare_pods_waiting", "gauge", "Pods on no node, by why.", _counts("why", waiting, _WHYS)),
        Family("gpushare_reservations_expired_total", "counter", "Reservations that no bind followed.", [Sample(ledger.expired)]),
        Family("gpushare_ledger_problems", "gauge", "Things that cannot be: see /inspect.", [p for p in problems if p.value]),
    ]


_STATES: Final = ("bound", "assumed", "reserved", "lingering")
_WHYS: Final = ("room", "invalid", "unsupported")


def _cards(ledger: Ledger, value: Callable[[CardState], int]) -> list[Sample]:
    return [
        Sample(value(state), {"node": name, "card": str(state.card.index), "uuid": state.card.uuid})
        for name, node in sorted(ledger.nodes.items())
        for state in node.cards
    ]


def _counts(label: str, counted: Mapping[str, int], all_of: Sequence[str]) -> list[Sample]:
    return [Sample(counted.get(one, 0), {label: one}) for one in all_of]


def _state(ledger: Ledger, uid: str) -> str:
    if ledger.is_lingering(uid):
        return "lingering"
    return "reserved" if ledger.is_reserved(uid) else "assumed" if ledger.is_assumed(uid) else "bound"


def _why(pod: PendingPod) -> str:
    return "invalid" if pod.request is None else "unsupported" if pod.request.unsupported else "room"

# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger's state as a scrape shows it."""

from __future__ import annotations

from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.figures import families
from gpushare_runtime.extender.pods import NodeRecord, PendingPod
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.metrics import render
from gpushare_runtime.quantity import GIB
from unit.runtime.pods import card
from unit.runtime.test_ledger import holder, memory, on


def test_cards_pods_and_what_is_wrong() -> None:
    cluster = Cluster(now=lambda: 0.0, clock=lambda: 9.0)
    cluster.node_event("ADDED", NodeRecord("n", Inventory(GIB, (card(0, 16), card(1, 24, health="XID 79")))))
    cluster.ledger.apply(holder("a", memory(6), on(0, 6)))
    cluster.ledger.assume(holder("b", memory(2), on(0, 2)))
    cluster.ledger.reserve(holder("c", memory(1), on(0, 1)), 20.0)
    cluster.ledger.reserve(holder("d", memory(1), on(0, 1)), 20.0)
    cluster.ledger.apply(holder("e", memory(9), on(0, 9)))
    cluster.pod_event("ADDED", PendingPod("w", "default", "w", memory(40)))
    cluster.pod_event("ADDED", PendingPod("x", "default", "x", None, "asks for nonsense"))
    text = render(families(cluster))
    for line in (
        'gpushare_card_units{node="n",card="0",uuid="GPU-00000000"} 16',
        'gpushare_card_units_free{node="n",card="0",uuid="GPU-00000000"} 0',
        'gpushare_card_units_free{node="n",card="1",uuid="GPU-00000001"} 24',
        'gpushare_card_usable{node="n",card="1",uuid="GPU-00000001"} 0',
        'gpushare_pods{state="bound"} 2',
        'gpushare_pods{state="assumed"} 1',
        'gpushare_pods{state="reserved"} 2',
        'gpushare_pods_waiting{why="room"} 1',
        'gpushare_pods_waiting{why="invalid"} 1',
        "gpushare_reservations_expired_total 0",
        'gpushare_ledger_problems{node="n"} 1',
    ):
        assert line in text.splitlines()
    cluster.ledger.expire(0.0, 20.0)
    assert "gpushare_reservations_expired_total 2" in render(families(cluster)).splitlines()
